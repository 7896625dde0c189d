//! An image registry on loopback: images are made of a few files, and a test may hold their layers
//! back.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Serves any image: its layers have busybox for names in `with_busybox`, else one small file.
pub(crate) struct ImageRegistry {
    port: u16,
    shared: Arc<ServedImages>,
    task: JoinHandle<()>,
}

struct ServedImages {
    busybox: Bytes,
    /// By path below `/v2/`: media type and content.
    content: Mutex<BTreeMap<String, (&'static str, Bytes)>>,
    /// By name: the header that its clients must send.
    private: Mutex<BTreeMap<String, String>>,
    seen: watch::Sender<SeenPulls>,
}

/// What clients have asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct SeenPulls {
    /// Names, one for each time that a tag was resolved.
    pub(super) resolved: Vec<String>,
    /// Names whose layer is held back now.
    pub(super) held: BTreeSet<String>,
    /// Most layers that were held at a time.
    pub(super) most: usize,
    /// Whether layers are held back, but for `free` names.
    is_holding: bool,
    free: BTreeSet<String>,
}

impl ImageRegistry {
    pub(super) async fn start(busybox: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(ServedImages {
            busybox: busybox.into(),
            content: Mutex::default(),
            private: Mutex::default(),
            seen: watch::channel(SeenPulls::default()).0,
        });
        let own = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&own);
                tokio::spawn(async move {
                    let serve = service_fn(move |request| serve(Arc::clone(&shared), request));
                    let server = Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), serve).await;
                });
            }
        });
        let registry = Self { port, shared, task };
        registry.add("pause", true, &["/busybox", "sleep", "2147483647"]);
        registry.add("busybox", true, &["/busybox", "sh"]);
        registry
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Reference to an image of this registry.
    pub(crate) fn image(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}:v1", self.port)
    }

    /// Adds a small image that nothing else shares a layer with.
    pub(super) fn add_small(&self, name: &str) {
        self.add(name, false, &["/name"]);
    }

    /// Adds a copy of busybox that only this user may pull.
    pub(super) fn protect(&self, name: &str, user: &str, password: &str) {
        let pair = STANDARD.encode(format!("{user}:{password}"));
        let mut private = self.shared.private.lock().unwrap();
        private.insert(name.to_owned(), format!("Basic {pair}"));
        drop(private);
        self.add(name, true, &["/busybox", "sh"]);
    }

    /// Adds a small image whose layer is not what its digest says.
    pub(super) fn add_damaged(&self, name: &str) {
        self.add_small(name);
        let path = format!("/v2/{name}/blobs/");
        let mut content = self.shared.content.lock().unwrap();
        let layers =
            content.iter_mut().filter(|(own, (kind, _))| own.starts_with(&path) && *kind == LAYER);
        for (_, (_, body)) in layers {
            *body = vec![b'x'; body.len()].into();
        }
    }

    fn add(&self, name: &str, has_busybox: bool, command: &[&str]) {
        let layer = if has_busybox {
            archive(&["busybox", "bin/sh", "bin/tar"].map(|name| (name, &self.shared.busybox[..])))
        } else {
            archive(&[("name", name.as_bytes())])
        };
        let architecture = match std::env::consts::ARCH {
            "aarch64" => "arm64",
            _ => "amd64",
        };
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {"Cmd": command, "Labels": {"name": name}, "Env": ["PATH=/bin:/"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &config),
            "layers": [descriptor(LAYER, &layer)],
        });
        let manifest = manifest.to_string().into_bytes();
        let mut content = self.shared.content.lock().unwrap();
        let mut put = |path: String, kind: &'static str, body: Vec<u8>| {
            content.insert(format!("/v2/{name}/{path}"), (kind, body.into()));
        };
        put("manifests/v1".to_owned(), MANIFEST, manifest.clone());
        put(format!("manifests/{}", digest(&manifest)), MANIFEST, manifest);
        put(format!("blobs/{}", digest(&config)), CONFIG, config);
        put(format!("blobs/{}", digest(&layer)), LAYER, layer);
    }

    /// Holds all layers back from now on; forgets what was seen.
    pub(super) fn hold(&self) {
        self.shared.seen.send_replace(SeenPulls { is_holding: true, ..SeenPulls::default() });
    }

    /// Lets the layers of an image go.
    pub(super) fn release(&self, name: &str) {
        self.shared.seen.send_modify(|seen| _ = seen.free.insert(name.to_owned()));
    }

    pub(super) fn seen(&self) -> SeenPulls {
        self.shared.seen.borrow().clone()
    }

    /// Waits until the layers of exactly these are held back.
    pub(super) async fn until_held(&self, names: &[String]) {
        let expected: BTreeSet<String> = names.iter().cloned().collect();
        let mut changes = self.shared.seen.subscribe();
        let held = changes.wait_for(|seen| seen.held == expected);
        let waited = tokio::time::timeout(ferrokube_testkit::BOUND, held).await.is_ok();
        assert!(waited, "{expected:?} are held: {:?}", self.seen());
    }
}

impl Drop for ImageRegistry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Notes that a layer is no longer held, also when its client goes.
struct HeldLayer<'a> {
    seen: &'a watch::Sender<SeenPulls>,
    name: String,
}

impl Drop for HeldLayer<'_> {
    fn drop(&mut self) {
        self.seen.send_modify(|seen| _ = seen.held.remove(&self.name));
    }
}

async fn serve(
    shared: Arc<ServedImages>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path();
    let is_get = request.method() == Method::GET;
    let found = shared.content.lock().unwrap().get(path).cloned();
    let Some((kind, body)) = found else {
        let mut response = Response::new(Full::default());
        if path != "/v2/" {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        return Ok(response);
    };
    let name = path.trim_start_matches("/v2/").split('/').next().unwrap_or_default().to_owned();
    let wanted = shared.private.lock().unwrap().get(&name).cloned();
    let given = request.headers().get("Authorization").and_then(|value| value.to_str().ok());
    if wanted.is_some() && wanted.as_deref() != given {
        let refused = Response::builder().status(StatusCode::UNAUTHORIZED);
        let refused = refused.header("WWW-Authenticate", "Basic realm=\"test\"");
        return Ok(refused.body(Full::default()).unwrap());
    }
    if path.ends_with("/manifests/v1") {
        shared.seen.send_modify(|seen| seen.resolved.push(name.clone()));
    }
    if is_get && kind == LAYER {
        hold(&shared.seen, name).await;
    }
    let response = Response::builder()
        .header("Content-Type", kind)
        .header("Content-Length", body.len())
        .header("Docker-Content-Digest", digest(&body));
    let body = if is_get { body } else { Bytes::new() };
    Ok(response.body(Full::new(body)).unwrap())
}

async fn hold(seen: &watch::Sender<SeenPulls>, name: String) {
    let is_held = |seen: &SeenPulls| seen.is_holding && !seen.free.contains(&name);
    let has_begun = seen.send_if_modified(|seen| {
        let is_held = is_held(seen);
        if is_held {
            seen.held.insert(name.clone());
            seen.most = seen.most.max(seen.held.len());
        }
        is_held
    });
    if has_begun {
        let held = HeldLayer { seen, name: name.clone() };
        let _ = seen.subscribe().wait_for(|seen| !is_held(seen)).await;
        drop(held);
    }
}

fn digest(content: &[u8]) -> String {
    let hex: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn descriptor(kind: &str, content: &[u8]) -> Value {
    json!({"mediaType": kind, "digest": digest(content), "size": content.len()})
}

/// A tar archive of executable files (ustar).
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, content) in files {
        let mut header = [0_u8; 512];
        let mut put = |at: usize, text: &str| {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        put(0, name);
        put(100, "0000755");
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{:011o}", content.len()));
        put(136, "00000000000");
        put(148, "        ");
        put(156, "0");
        put(257, "ustar");
        put(263, "00");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.extend_from_slice(&header);
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out.resize(out.len() + 1024, 0);
    out
}
