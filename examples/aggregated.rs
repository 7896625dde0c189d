//! A server of one kind, `halls`, that stands behind another server: an APIService of that one
//! names it, and its clients see `halls` among their resources. Users come from the other server,
//! which has authenticated and authorized them.
//!
//!     cargo run --example aggregated -- DIRECTORY CA_OF_THE_FRONT_PROXY NAME ADDRESS

use anyhow::Context;
use ferrokube_server::auth::{Access, Authorizer, Decision};
use ferrokube_server::resource::native::{KindBody, NativeKind};
use ferrokube_server::resource::{Bundle, Scope};
use ferrokube_server::{ControlPlane, FrontProxyConfig, ListenerConfig};
use std::sync::Arc;

const HALLS: NativeKind =
    NativeKind::new("stage.example.com", ["halls", "hall", "Hall"], Scope::Cluster, || KindBody {
        storage: Some("stage.example.com/halls"),
        ..KindBody::default()
    });

const SCHEMAS: &str = "definition\tfield\ttype\trequired\temit
io.k8s.api.stage.v1.Hall\tapiVersion\tstring\t\to
\tkind\tstring\t\to
\tmetadata\tref:io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta\t\ta
\tspec\tref:io.k8s.api.stage.v1.HallSpec\tyes\ta
io.k8s.api.stage.v1.HallSpec\tseats\tinteger/int32\tyes\ta
";

/// Allows what the front server has let through: only it can authenticate here.
struct FrontDecides;

impl Authorizer for FrontDecides {
    fn authorize(&self, _access: &Access<'_>) -> Decision {
        Decision::Allow("authorized by the front server".to_owned())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = || arguments.next().context("usage: PROGRAM DIRECTORY CA NAME ADDRESS");
    let (directory, ca_file, name) = (argument()?, argument()?, argument()?);
    let address = argument()?.parse()?;
    let server = ControlPlane::builder()
        .bundle(Bundle::new("stage").kind(HALLS).schemas(SCHEMAS))
        .front_proxies(FrontProxyConfig {
            ca_file: ca_file.into(),
            allowed_names: vec!["front-proxy-client".to_owned()],
            ..FrontProxyConfig::default()
        })
        // No other users: no client certificates, no tokens.
        .builtin_authenticators([])
        .anonymous(false)
        .authorizer(|_| Arc::new(FrontDecides))
        .data_dir(directory)
        .listener(ListenerConfig { address, names: vec![name], ..ListenerConfig::default() })
        .build()?
        .start()
        .await?;
    println!("ready: {}", server.url());
    server.run_until_signal().await?;
    Ok(())
}
