//! A CSI driver for tests: a gRPC server on unix sockets, with a directory per volume that it
//! bind-mounts where this process may mount, and a device for block volumes.

use crate::mounts::{is_mount_point, unmount_all};
use crate::wait::BOUND;
use bytes::Bytes;
use ferrokube_csi::{
    AccessType, CallCode, InfoRequest, NodeExpandVolumeRequest, NodeExpandVolumeResponse,
    NodeGetCapabilitiesResponse, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodeServiceCapability, NodeServiceRpc,
    NodeServiceRpcType, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse, Topology,
    VolumeCapability, VolumeCondition, VolumeUsage, VolumeUsageUnit, path,
};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use prost::Message;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// A driver's description of itself.
#[derive(Clone, Debug)]
pub struct CsiDriverConfig {
    /// Name of the driver.
    pub name: String,
    /// Id of this node.
    pub node_id: String,
    /// Volumes per node; 0: any number.
    pub max_volumes: i64,
    /// Where the node is.
    pub topology: BTreeMap<String, String>,
    /// Returned by NodeGetCapabilities.
    pub capabilities: Vec<NodeServiceRpcType>,
    /// Versions of CSI.
    pub versions: Vec<String>,
    /// Path of its socket as it tells the kubelet; `None`: where it is.
    pub endpoint: Option<PathBuf>,
    /// The device that every block volume is.
    pub device: PathBuf,
}

impl CsiDriverConfig {
    /// A driver that stages its volumes.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            node_id: "id-of-node".to_owned(),
            max_volumes: 0,
            topology: BTreeMap::new(),
            capabilities: vec![NodeServiceRpcType::StageUnstageVolume],
            versions: vec!["1.0.0".to_owned()],
            endpoint: None,
            device: "/dev/null".into(),
        }
    }
}

/// A call that the driver got.
#[derive(Clone, Debug)]
pub struct CsiCall {
    /// Name of the method.
    pub method: String,
    /// The request, encoded.
    pub request: Bytes,
    /// Metadata of the call.
    pub headers: HeaderMap,
}

impl CsiCall {
    /// The request, of the method's type.
    ///
    /// # Panics
    /// If it is of another.
    pub fn decode<M: Message + Default>(&self) -> M {
        M::decode(self.request.clone()).expect("the method's request")
    }

    /// Attributes of the volume that the call publishes.
    pub fn attributes(&self) -> BTreeMap<String, String> {
        self.decode::<NodePublishVolumeRequest>().volume_context
    }
}

/// State of the driver, in memory and in its directory.
struct DriverState {
    config: CsiDriverConfig,
    volumes: PathBuf,
    socket: PathBuf,
    calls: Mutex<Vec<CsiCall>>,
    /// By method: how its calls fail.
    failures: Mutex<BTreeMap<String, (CallCode, String)>>,
    /// Methods whose calls are not answered.
    hanging: Mutex<Vec<String>>,
    /// Calls that were cancelled while they hung.
    cancelled: Mutex<Vec<String>>,
    registered: Mutex<Option<RegistrationStatus>>,
    /// Paths that calls have mounted volumes on; `None` once the driver is gone.
    targets: Mutex<Option<BTreeSet<PathBuf>>>,
    changed: Notify,
}

/// A driver, which serves until dropped, and then unmounts what it has mounted.
pub struct CsiTestDriver {
    state: Arc<DriverState>,
    registration: PathBuf,
    _servers: JoinSet<()>,
}

impl CsiTestDriver {
    /// Serves in a kubelet's root directory: the driver's socket in `plugins`, the one by which it
    /// registers in `plugins_registry`. Volumes are directories in `volumes`.
    ///
    /// # Panics
    /// If it cannot.
    pub fn start(root: &Path, volumes: &Path, config: CsiDriverConfig) -> Self {
        let own = root.join("plugins").join(&config.name);
        let registry = root.join("plugins_registry");
        for directory in [&own, &registry, &volumes.to_owned()] {
            fs::create_dir_all(directory).expect("a directory of the driver");
        }
        let registration = registry.join(format!("{}-reg.sock", config.name));
        let state = Arc::new(DriverState {
            socket: own.join("csi.sock"),
            config,
            volumes: volumes.to_owned(),
            calls: Mutex::default(),
            failures: Mutex::default(),
            hanging: Mutex::default(),
            cancelled: Mutex::default(),
            registered: Mutex::default(),
            targets: Mutex::new(Some(BTreeSet::new())),
            changed: Notify::new(),
        });
        let mut servers = JoinSet::new();
        for path in [&state.socket, &registration] {
            let _ = fs::remove_file(path);
            let listener = UnixListener::bind(path).expect("a socket of the driver");
            servers.spawn(serve(listener, Arc::clone(&state)));
        }
        Self { state, registration, _servers: servers }
    }

    /// Path of the socket by which it registers.
    pub fn registration(&self) -> &Path {
        &self.registration
    }

    /// All calls of a method so far.
    pub fn calls(&self, method: &str) -> Vec<CsiCall> {
        self.state.calls.lock().iter().filter(|call| call.method == method).cloned().collect()
    }

    /// Names of the methods that were called on volumes, in order.
    pub fn order(&self) -> Vec<String> {
        let calls = self.state.calls.lock();
        let names = calls.iter().map(|call| call.method.clone());
        names.filter(|name| name.ends_with("Volume")).collect()
    }

    /// Lets all calls of a method fail; `None`: lets them work again.
    pub fn fail(&self, method: &str, how: Option<(CallCode, &str)>) {
        let mut failures = self.state.failures.lock();
        match how {
            Some((code, message)) => {
                failures.insert(method.to_owned(), (code, message.to_owned()));
            }
            None => _ = failures.remove(method),
        }
    }

    /// Answers no call of a method, or answers them again.
    pub fn hang(&self, method: &str, hangs: bool) {
        let mut hanging = self.state.hanging.lock();
        hanging.retain(|own| own != method);
        if hangs {
            hanging.push(method.to_owned());
        }
    }

    /// Methods of calls that the kubelet has cancelled.
    pub fn cancelled(&self) -> Vec<String> {
        self.state.cancelled.lock().clone()
    }

    /// The kubelet's last message about the registration.
    pub fn registered(&self) -> Option<RegistrationStatus> {
        self.state.registered.lock().clone()
    }

    /// Waits until a condition holds, which calls may change.
    ///
    /// # Panics
    /// If it does not hold within [`BOUND`], with the calls so far.
    pub async fn until(&self, what: &str, is_it: impl Fn(&Self) -> bool) {
        let holds = async {
            loop {
                let changed = self.state.changed.notified();
                if is_it(self) {
                    return;
                }
                changed.await;
            }
        };
        let in_time = tokio::time::timeout(BOUND, holds).await;
        assert!(in_time.is_ok(), "{what}: not within {BOUND:?}: {:?}", self.order());
    }
}

impl Drop for CsiTestDriver {
    fn drop(&mut self) {
        // A call that is being answered mounts nothing from now on.
        let targets = self.state.targets.lock().take();
        targets.iter().flatten().for_each(|target| unmount_all(target));
    }
}

async fn serve(listener: UnixListener, state: Arc<DriverState>) {
    // Ends all connections with the server.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        let answer = service_fn(move |request: Request<Incoming>| {
            let state = Arc::clone(&state);
            async move {
                let headers = request.headers().clone();
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect().await?.to_bytes();
                // A flag and the length come first.
                let answered = state.answer(&path, body.slice(5.min(body.len())..), headers).await;
                Ok::<_, hyper::Error>(response(answered))
            }
        });
        connections.spawn(async move {
            let connection = http2::Builder::new(TokioExecutor::new());
            let _ = connection.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

type ResponseFrames =
    StreamBody<futures::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, hyper::Error>>>>;

fn response(answered: Result<Vec<u8>, (CallCode, String)>) -> Response<ResponseFrames> {
    let mut trailers = HeaderMap::new();
    let mut frames = Vec::new();
    match answered {
        Ok(message) => {
            let length = u32::try_from(message.len()).expect("a small message");
            let framed = [&[0][..], &length.to_be_bytes(), &message].concat();
            frames.push(Ok(Frame::data(Bytes::from(framed))));
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
        }
        Err((code, message)) => {
            trailers.insert("grpc-status", HeaderValue::from(code as u16));
            let message = HeaderValue::from_str(&message).expect("plain text");
            trailers.insert("grpc-message", message);
        }
    }
    frames.push(Ok(Frame::trailers(trailers)));
    let body = StreamBody::new(futures::stream::iter(frames));
    let response = Response::builder().header("content-type", "application/grpc");
    response.body(body).expect("a valid header")
}

/// Notes that a hanging call was dropped.
struct HangingCall<'a>(&'a DriverState, String);

impl Drop for HangingCall<'_> {
    fn drop(&mut self) {
        self.0.cancelled.lock().push(self.1.clone());
        self.0.changed.notify_waiters();
    }
}

impl DriverState {
    async fn answer(
        &self,
        path: &str,
        request: Bytes,
        headers: HeaderMap,
    ) -> Result<Vec<u8>, (CallCode, String)> {
        let method = path.rsplit('/').next().unwrap_or_default().to_owned();
        let call = CsiCall { method: method.clone(), request: request.clone(), headers };
        self.calls.lock().push(call);
        self.changed.notify_waiters();
        let hangs = self.hanging.lock().contains(&method);
        if hangs {
            let _call = HangingCall(self, method);
            std::future::pending::<()>().await;
            unreachable!("it is pending");
        }
        if let Some(failure) = self.failures.lock().get(&method) {
            return Err(failure.clone());
        }
        let answered = self.method(path, request);
        self.changed.notify_waiters();
        answered
    }

    fn method(&self, path: &str, request: Bytes) -> Result<Vec<u8>, (CallCode, String)> {
        let io = |error: std::io::Error| (CallCode::Internal, error.to_string());
        match path {
            path::get_info => {
                decode::<InfoRequest>(request)?;
                Ok(self.info().encode_to_vec())
            }
            path::notify_registration_status => {
                *self.registered.lock() = Some(decode(request)?);
                Ok(RegistrationStatusResponse {}.encode_to_vec())
            }
            path::node_get_info => Ok(NodeGetInfoResponse {
                node_id: self.config.node_id.clone(),
                max_volumes_per_node: self.config.max_volumes,
                accessible_topology: Some(Topology { segments: self.config.topology.clone() }),
            }
            .encode_to_vec()),
            path::node_get_capabilities => {
                let capability = |rpc: &NodeServiceRpcType| NodeServiceCapability {
                    rpc: Some(NodeServiceRpc { r#type: *rpc as i32 }),
                };
                let capabilities = self.config.capabilities.iter().map(capability).collect();
                Ok(NodeGetCapabilitiesResponse { capabilities }.encode_to_vec())
            }
            path::node_stage_volume => {
                let request: NodeStageVolumeRequest = decode(request)?;
                let volume = self.volume(&request.volume_id)?;
                let target = Path::new(&request.staging_target_path);
                if !target.is_dir() {
                    let missing = "the staging path is no directory".to_owned();
                    return Err((CallCode::InvalidArgument, missing));
                }
                if !is_block(request.volume_capability.as_ref()) {
                    let mut targets = self.targets()?;
                    targets.insert(target.to_owned());
                    bind(&volume, target, false).map_err(io)?;
                }
                Ok(Vec::new())
            }
            path::node_publish_volume => {
                let request: NodePublishVolumeRequest = decode(request)?;
                let target = Path::new(&request.target_path);
                let mut targets = self.targets()?;
                targets.insert(target.to_owned());
                if is_block(request.volume_capability.as_ref()) {
                    bind_device(&self.config.device, target).map_err(io)?;
                    return Ok(Vec::new());
                }
                let source = match request.staging_target_path.as_str() {
                    "" => self.volume(&request.volume_id)?,
                    staged => staged.into(),
                };
                bind(&source, target, request.readonly).map_err(io)?;
                Ok(Vec::new())
            }
            path::node_unpublish_volume => {
                let request: NodeUnpublishVolumeRequest = decode(request)?;
                release(Path::new(&request.target_path)).map_err(io)?;
                Ok(Vec::new())
            }
            path::node_unstage_volume => {
                let request: NodeUnstageVolumeRequest = decode(request)?;
                release(Path::new(&request.staging_target_path)).map_err(io)?;
                Ok(Vec::new())
            }
            path::node_expand_volume => {
                let request: NodeExpandVolumeRequest = decode(request)?;
                self.volume(&request.volume_id)?;
                let wanted = request.capacity_range.unwrap_or_default();
                let capacity_bytes = wanted.required_bytes;
                Ok(NodeExpandVolumeResponse { capacity_bytes }.encode_to_vec())
            }
            path::node_get_volume_stats => {
                let request: NodeGetVolumeStatsRequest = decode(request)?;
                self.volume(&request.volume_id)?;
                Ok(stats().encode_to_vec())
            }
            other => Err((CallCode::Unimplemented, format!("unknown method {other}"))),
        }
    }

    /// Keeps the driver from going while the caller mounts.
    fn targets(&self) -> Result<MappedMutexGuard<'_, BTreeSet<PathBuf>>, (CallCode, String)> {
        let gone = |_| (CallCode::Unavailable, "the driver is gone".to_owned());
        MutexGuard::try_map(self.targets.lock(), Option::as_mut).map_err(gone)
    }

    fn info(&self) -> PluginInfo {
        let endpoint = self.config.endpoint.as_ref().unwrap_or(&self.socket);
        PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.config.name.clone(),
            endpoint: endpoint.display().to_string(),
            supported_versions: self.config.versions.clone(),
        }
    }

    fn volume(&self, id: &str) -> Result<PathBuf, (CallCode, String)> {
        if id.is_empty() || id.contains('/') {
            return Err((CallCode::InvalidArgument, "no volume id".to_owned()));
        }
        let volume = self.volumes.join(id);
        fs::create_dir_all(&volume).map_err(|error| (CallCode::Internal, error.to_string()))?;
        Ok(volume)
    }
}

/// Any volume has 1000 bytes, 400 of which are used, and half of 20 files. It is damaged.
fn stats() -> NodeGetVolumeStatsResponse {
    let usage = |unit: VolumeUsageUnit, total, used| VolumeUsage {
        available: total - used,
        total,
        used,
        unit: unit as i32,
    };
    NodeGetVolumeStatsResponse {
        usage: vec![
            usage(VolumeUsageUnit::Bytes, 1000, 400),
            usage(VolumeUsageUnit::Inodes, 20, 10),
        ],
        volume_condition: Some(VolumeCondition { abnormal: true, message: "damaged".to_owned() }),
    }
}

fn decode<M: Message + Default>(request: Bytes) -> Result<M, (CallCode, String)> {
    M::decode(request).map_err(|error| (CallCode::InvalidArgument, error.to_string()))
}

/// Bind-mounts a directory, once. Where this process may not mount, only the directory is made.
fn bind(source: &Path, target: &Path, readonly: bool) -> std::io::Result<()> {
    fs::create_dir_all(target)?;
    if is_mount_point(target) {
        return Ok(());
    }
    match rustix::mount::mount_bind(source, target) {
        Err(Errno::PERM) => return Ok(()),
        other => other?,
    }
    if readonly {
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        rustix::mount::mount_remount(target, flags, c"")?;
    }
    Ok(())
}

fn is_block(capability: Option<&VolumeCapability>) -> bool {
    let kind = capability.and_then(|capability| capability.access_type.as_ref());
    matches!(kind, Some(AccessType::Block(_)))
}

/// Bind-mounts a device on a file, once. Where this process may not mount, only the file is made.
fn bind_device(device: &Path, target: &Path) -> std::io::Result<()> {
    if is_mount_point(target) {
        return Ok(());
    }
    fs::write(target, "")?;
    match rustix::mount::mount_bind(device, target) {
        Err(Errno::PERM) => Ok(()),
        other => Ok(other?),
    }
}

/// Unmounts a directory or file and removes it, if it is there.
fn release(target: &Path) -> std::io::Result<()> {
    while is_mount_point(target) {
        rustix::mount::unmount(target, UnmountFlags::NOFOLLOW)?;
    }
    let removed = match fs::remove_dir(target) {
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => fs::remove_file(target),
        other => other,
    };
    match removed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
