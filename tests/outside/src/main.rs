//! A control plane of its own, from public APIs only: a native kind with hooks (`toys`), a kind
//! that is computed instead of stored (`quotes`), a computed subresource (`play`), one that another
//! server answers (`radio`), an admission step that writes in the transaction of the request
//! (`tally`), users and rights from elsewhere (`guests`), and a controller (`toymaker`).

mod guests;
mod play;
mod quotes;
mod radio;
mod tally;
mod toymaker;
mod toys;

use ferrokube_client::Connection;
use ferrokube_controllers::ControllerManager;
use ferrokube_server::ControlPlane;
use ferrokube_server::pki::{CONTROLLER_MANAGER, LEAF_LIFETIME};
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::sync::watch;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: outside DIRECTORY")?;
    let radio = radio::Radio::start().await?;
    let generic = ferrokube_resources::bundle().only([
        "namespaces",
        "configmaps",
        "secrets",
        "serviceaccounts",
        "events",
        "*.events.k8s.io",
        "*.rbac.authorization.k8s.io",
        "*.authorization.k8s.io",
        "*.coordination.k8s.io",
    ]);
    let mut server = ControlPlane::builder()
        .bundle(generic)
        .bundle(toys::bundle())
        .computed("quotes.toy.example.com", "", |_| Arc::new(quotes::Quotes))
        .computed("toys.toy.example.com", "play", |_| Arc::new(play::Play))
        .connection("toys.toy.example.com", "radio", move |_| Arc::new(radio))
        .token_authenticator(|_| Arc::new(guests::Guests))
        .authorizer(|_| Arc::new(guests::Guests))
        .admission(|context| Arc::new(tally::Tally::new(context)))
        .data_dir(directory)
        .listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .build()?
        .start()
        .await?;
    let pki = server.pki();
    let pair = pki.client(&CONTROLLER_MANAGER, LEAF_LIFETIME)?;
    let connection =
        Connection::from_parts(server.url(), pki.ca_pem(), &pair.chain_pem, &pair.key_pem).await?;
    let manager = ControllerManager::builder(connection)
        .controllers(["namespace-controller", "garbage-collector-controller"])
        .controller("toymaker", "toymaker", toymaker::run)
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
