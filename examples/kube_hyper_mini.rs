//! kube-hyper-mini (KEP-4080, story 1): one program with the API server, its storage and the
//! controllers of a generic control plane, for APIs that are defined by
//! CustomResourceDefinitions or served by others.
//!
//!     cargo run --example kube_hyper_mini -- DIRECTORY

use anyhow::Context;
use ferrokube_client::Connection;
use ferrokube_controllers::ControllerManager;
use ferrokube_server::ControlPlane;
use ferrokube_server::admission_steps::quota;
use ferrokube_server::pki::{CONTROLLER_MANAGER, LEAF_LIFETIME};
use std::net::{Ipv4Addr, SocketAddr};
use tokio::sync::watch;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let directory = std::env::args().nth(1).context("usage: PROGRAM DIRECTORY")?;
    let mut server = ControlPlane::builder()
        .bundle(ferrokube_resources::bundle())
        .with_controllers(true)
        .data_dir(directory)
        .listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .build()?
        .start()
        .await?;
    // The controllers are clients like any other, with an identity of their own; their requests
    // stay in the process.
    let (pki, own) = (server.pki(), server.in_process());
    let identity = own.client(&pki.client(&CONTROLLER_MANAGER, LEAF_LIFETIME)?)?;
    let (url, ca) = (server.url(), pki.ca_pem());
    let connection = Connection::in_process(url, ca, identity, own.anonymous_client()).await?;
    let manager = ControllerManager::builder(connection)
        // Quotas have the names that admission counts by.
        .counted_as(quota::names)
        // There is nothing to sign secrets of service accounts with here.
        .controllers(["*", "-serviceaccount-token-controller"])
        .build()?;
    let shutdown = server.shutdown();
    server.spawn(async move {
        let (leading, _) = watch::channel(false);
        if let Err(error) = manager.run(shutdown, leading).await {
            eprintln!("the controllers ended: {error}");
        }
    });
    println!("ready: {} kubeconfig {}", server.url(), server.kubeconfig().display());
    server.run_until_signal().await?;
    Ok(())
}
