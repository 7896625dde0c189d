//! `toys/radio`: a subresource that another server answers. Here that is a task of the program.

use ferrokube_server::api::connect::{
    BackendLocation, BackendServer, ConnectResource, LocateCall, LocateFuture,
};
use ferrokube_server::apimachinery::gvk::GroupResource;
use ferrokube_server::apimachinery::status::Failure;
use ferrokube_server::registry::Local;
use http::{HeaderMap, HeaderValue};
use std::io;
use std::net::Ipv4Addr;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Sends requests to the radio station.
pub struct Radio(BackendServer);

impl Radio {
    /// Starts the station.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    if let Err(error) = respond(stream).await {
                        eprintln!("a listener is gone: {error}");
                    }
                });
            }
        });
        Ok(Self(BackendServer::plain(address)))
    }
}

impl ConnectResource for Radio {
    fn locate<'a>(&'a self, call: LocateCall<'a>) -> LocateFuture<'a> {
        Box::pin(async move {
            let toys = Local::of(call.registry, call.target.served.clone());
            let namespace = call.target.namespace.as_deref().unwrap_or_default();
            let name = call.target.name.as_deref().unwrap_or_default();
            let resource = GroupResource::new("toy.example.com", "toys");
            let toy = toys.get(namespace, name).await?;
            let toy = toy.ok_or_else(|| Failure::not_found(&resource, name))?;
            // The station believes this server, which has checked the user.
            let mut headers = HeaderMap::new();
            if let Ok(user) = HeaderValue::from_str(&call.context.user.name) {
                headers.insert("x-listener", user);
            }
            let path = format!("/{}", toy.str(&["spec", "color"]).unwrap_or_default());
            let query = call.query.to_owned();
            Ok(BackendLocation { backend: self.0.clone(), path, query, headers })
        })
    }
}

/// Answers one request with what it was asked, and by whom.
async fn respond(stream: TcpStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let (mut request, mut listener) = (String::new(), String::new());
    stream.read_line(&mut request).await?;
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await?;
        if header.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("x-listener")
        {
            listener = value.trim().to_owned();
        }
    }
    let asked = request.split(' ').nth(1).unwrap_or_default();
    let text = format!("{asked} for {listener}\n");
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
    stream.write_all((head + &text).as_bytes()).await?;
    stream.flush().await
}
