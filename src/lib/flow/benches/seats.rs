//! Cost of classification and seats per create, on one thread, without other work.
//!
//! ```text
//! cargo bench -p ferrokube-flow --bench seats              # a million requests of each kind
//! cargo bench -p ferrokube-flow --bench seats -- --check   # fails above three microseconds
//! ```
//!
//! `cargo test -p ferrokube-flow --bench seats` runs a few, to see that it works.

#[path = "../tests/support/mod.rs"]
mod support;

use ferrokube_apimachinery::user::UserInfo;
use ferrokube_flow::priority::FlowAction;
use ferrokube_flow::{Flow, Limits, with_budgets};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Aim, in nanoseconds.
const AIM: f64 = 3000.0;

fn main() -> ExitCode {
    let options: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| options.iter().any(|option| option == name);
    let requests: u32 = if has("--bench") { 1_000_000 } else { 1000 };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut rows = Vec::new();
    let flow = support::flow(&Limits::default());
    for (name, user) in support::users() {
        rows.push((name.to_owned(), runtime.block_on(seated(&flow, &user, requests))));
    }
    println!("| request | ns |\n|---|---|");
    for (name, nanoseconds) in &rows {
        println!("| {name} | {nanoseconds:.0} |");
    }
    let is_met = rows.iter().all(|(_, nanoseconds)| *nanoseconds <= AIM);
    if has("--check") && !is_met {
        eprintln!("missed: more than {AIM} ns");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Nanoseconds of a request that finds a seat.
async fn seated(flow: &Arc<Flow>, user: &UserInfo, requests: u32) -> f64 {
    let action: Arc<dyn FlowAction> = Arc::new(support::CreateAction);
    let start = Instant::now();
    for _ in 0..requests {
        with_budgets(Arc::clone(flow), support::pass(flow, user, &action)).await;
    }
    start.elapsed().as_nanos() as f64 / f64::from(requests)
}
