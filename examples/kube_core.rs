//! kube-core (KEP-4080, story 2): the API server alone, so that its parts scale on their own.
//! Controllers run elsewhere: `ferrokube controller-manager`, kube-rs, controller-runtime.
//!
//!     cargo run --example kube_core -- DIRECTORY

use anyhow::Context;
use ferrokube_server::ControlPlane;
use std::net::{Ipv4Addr, SocketAddr};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let directory = std::env::args().nth(1).context("usage: PROGRAM DIRECTORY")?;
    let server = ControlPlane::builder()
        .bundle(ferrokube_resources::bundle())
        .data_dir(directory)
        .listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .build()?
        .start()
        .await?;
    println!("ready: {} kubeconfig {}", server.url(), server.kubeconfig().display());
    server.run_until_signal().await?;
    Ok(())
}
