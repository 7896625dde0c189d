//! Subresources that connect, with a kubelet of the test's own: where requests go, as whom, and
//! what those gain who write the status of nodes and pods.

use crate::FERROKUBE;
use ferrokube_pki::self_signed;
use ferrokube_serve::{
    Handler, ListenerLimits, Peer, Request, Response, Server, ShutdownTrigger, Tls, full,
};
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, raw, wait_until};
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PODS: &str = "/api/v1/namespaces/default/pods";
const NODES: &str = "/api/v1/nodes";

/// Answers by path, to whom it knows.
struct FakeKubelet;

impl Handler for FakeKubelet {
    fn call(self: Arc<Self>, request: Request) -> Pin<Box<dyn Future<Output = Response> + Send>> {
        Box::pin(async move {
            let uri = request.uri().clone();
            let is_known = request
                .extensions()
                .get::<Arc<Peer>>()
                .is_some_and(|peer| peer.certificate.is_some());
            let shown = format!("{} {} {is_known}\n", request.method(), uri);
            let mut response = Response::new(full(shown));
            match uri.path() {
                "/containerLogs/default/p/b" => {
                    *response.body_mut() = full("previous terminated container not found");
                    *response.status_mut() = StatusCode::BAD_REQUEST;
                }
                "/containerLogs/default/p/c" | "/redirect" => {
                    *response.status_mut() = StatusCode::FOUND;
                    let location = HeaderValue::from_static("/elsewhere?a=b");
                    response.headers_mut().insert("location", location);
                }
                _ => {}
            }
            response
        })
    }
}

struct ServerWithKubelet {
    server: Cluster,
    admin: Client,
    kubelet: SocketAddr,
    _trigger: ShutdownTrigger,
}

impl ServerWithKubelet {
    async fn start() -> Self {
        let server = Launch::new(FERROKUBE).flag("--profile=kubernetes").start().unwrap();
        let admin = server.admin().unwrap();
        let pair = self_signed(&["n".to_owned()]).unwrap();
        let tls = Tls::new(pair.chain_pem.as_bytes(), pair.key_pem.as_bytes()).unwrap();
        let ca = std::fs::read(server.data_dir().join("pki/client-ca.crt")).unwrap();
        tls.replace_client_ca(&ca).unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = Server::bind(any, tls, ListenerLimits::default()).unwrap();
        let kubelet = listener.local_address();
        let (trigger, shutdown) = ShutdownTrigger::new();
        tokio::spawn(listener.serve(Arc::new(FakeKubelet), shutdown));
        let world = Self { server, admin, kubelet, _trigger: trigger };
        world.create(NODES, &json!({"metadata": {"name": "n"}})).await;
        world.place("127.0.0.1", kubelet.port()).await;
        let container = |name: &str| json!({"name": name, "image": "i"});
        let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers":
            [container("a"), container("b"), container("c")]}});
        world.create(PODS, &pod).await;
        world
    }

    async fn create(&self, path: &str, object: &Value) {
        wait_until("the object is created", BOUND, || async {
            let response = self.admin.post(path, object).await.unwrap();
            if response.status == 201 { Ok(()) } else { Err(response.text) }
        })
        .await;
    }

    /// Says where the node's kubelet is, as any writer of its status may.
    async fn place(&self, address: &str, port: u16) {
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
        let placed = self.admin.merge(&format!("{NODES}/n/status"), &status).await.unwrap();
        assert_eq!(placed.status, 200, "{}", placed.text);
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let response = self.admin.get(path).await.unwrap();
        let message = response.body["message"].as_str().map(str::to_owned);
        (response.status, message.unwrap_or(response.text))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_and_proxies_reach_the_kubelet_as_the_server() {
    let world = ServerWithKubelet::start().await;
    let log = world.get(&format!("{PODS}/p/log?container=a&tailLines=2&follow=false")).await;
    let shown = "GET /containerLogs/default/p/a?tailLines=2 true\n";
    assert_eq!(log, (200, shown.to_owned()));
    let refused = world.get(&format!("{PODS}/p/log?container=b")).await;
    assert_eq!(refused, (400, "previous terminated container not found".to_owned()));
    let redirected = world.get(&format!("{PODS}/p/log?container=c")).await;
    assert_eq!(redirected.0, 502, "{}", redirected.1);
    let which = world.get(&format!("{PODS}/p/log")).await;
    let words = "a container name must be specified for pod p, choose one of: [a b c]";
    assert_eq!(which, (400, words.to_owned()));
    let unbound = json!({"metadata": {"name": "unbound"}, "spec": {"containers":
        [{"name": "a", "image": "i"}]}});
    world.create(PODS, &unbound).await;
    assert_eq!(world.get(&format!("{PODS}/unbound/log")).await, (204, String::new()));
    let wrong = world.get(&format!("{PODS}/p/log?container=a&tailLines=-1")).await;
    assert_eq!(wrong.0, 422, "{}", wrong.1);
    let proxied = world.get(&format!("{NODES}/n/proxy/stats/summary?a=b%20c")).await;
    assert_eq!(proxied, (200, "GET /stats/summary?a=b%20c true\n".to_owned()));
    let by_port = world.get(&format!("{NODES}/n:{}/proxy/x", world.kubelet.port())).await;
    assert_eq!(by_port, (200, "GET /x true\n".to_owned()));
    let response = world.admin.get(&format!("{NODES}/n/proxy/redirect")).await.unwrap();
    assert_eq!(response.status, 302, "{}", response.text);
    let posted = world
        .admin
        .post(&format!("{PODS}/p/exec?container=a&command=true"), &json!({}))
        .await
        .unwrap();
    assert_eq!(
        (posted.status, posted.body["message"].as_str()),
        (400, Some("Upgrade request required"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_of_status_gains_nothing() {
    let world = ServerWithKubelet::start().await;
    let own = world.admin.url().rsplit(':').next().unwrap().trim_end_matches('/').parse().unwrap();
    // The server itself: it sees a user who may only reach kubelets.
    world.place("127.0.0.1", own).await;
    let (status, message) = world.get(&format!("{NODES}/n/proxy/api/v1/secrets")).await;
    assert_eq!(status, 403, "{message}");
    assert!(message.contains("kube-apiserver-kubelet-client"), "{message}");
    for address in ["169.254.169.254", "0.0.0.0", "224.0.0.1"] {
        world.place(address, 443).await;
        let (status, message) = world.get(&format!("{NODES}/n/proxy/")).await;
        assert_eq!(status, 503, "{address}: {message}");
        assert!(message.contains("address not allowed"), "{message}");
        let (status, message) = world.get(&format!("{PODS}/p/log?container=a")).await;
        assert_eq!(status, 500, "{address}: {message}");
    }
    // Another port than the kubelet's is not the kubelet: this machine's are not reached.
    world.place("127.0.0.1", world.kubelet.port()).await;
    let (status, message) = world.get(&format!("{NODES}/https:n:{own}/proxy/")).await;
    assert_eq!((status, message.as_str()), (400, "address not allowed"));
    for address in ["127.0.0.1", "169.254.169.254", "::ffff:127.0.0.1"] {
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        world.admin.merge(&format!("{PODS}/p/status"), &status).await.unwrap();
        let (status, message) = world.get(&format!("{PODS}/p:{own}/proxy/")).await;
        assert_eq!((status, message.as_str()), (400, "address not allowed"), "{address}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_that_are_no_pods_are_not_proxied_to() {
    let world = ServerWithKubelet::start().await;
    let namespace = "/api/v1/namespaces/default";
    let service = json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "None",
        "ports": [{"name": "http", "port": 80}]}});
    world.create(&format!("{namespace}/services"), &service).await;
    let endpoints = json!({"metadata": {"name": "s"}, "subsets": [{
        "addresses": [{"ip": "10.1.2.3"}, {"ip": "10.1.2.3",
            "targetRef": {"kind": "Pod", "name": "p", "namespace": "default"}}],
        "ports": [{"name": "http", "port": 80}]}]});
    world.create(&format!("{namespace}/endpoints"), &endpoints).await;
    let answer = world.get(&format!("{namespace}/services/s:80/proxy/")).await;
    let words = "no endpoints available for service \"s:80\"";
    assert_eq!(answer, (503, words.to_owned()));
    let answer = world.get(&format!("{namespace}/services/s:81/proxy/")).await;
    assert_eq!(answer, (503, "no service port 81 found for service \"s\"".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admission_sees_connections_with_their_options() {
    let world = ServerWithKubelet::start().await;
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CONNECT"],
        "resources": ["pods/exec"]});
    let policy = json!({"metadata": {"name": "no-shells"}, "spec": {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "!('sh' in object.command)", "message": "no shells"}]}});
    world.create(policies, &policy).await;
    let binding = json!({"metadata": {"name": "no-shells"},
        "spec": {"policyName": "no-shells", "validationActions": ["Deny"]}});
    world.create(&policies.replace("policies", "policybindings"), &binding).await;
    let exec = |command: &str| format!("{PODS}/p/exec?container=a&stdout=true&command={command}");
    wait_until("the policy denies", BOUND, || async {
        let denied = world.admin.post(&exec("sh"), &json!({})).await.unwrap();
        if denied.text.contains("no shells") { Ok(()) } else { Err(denied.text) }
    })
    .await;
    let allowed = world.admin.post(&exec("true"), &json!({})).await.unwrap();
    assert_eq!(allowed.body["message"], "Upgrade request required", "{}", allowed.text);
    let _ = &world.server;
}

/// A websocket is a GET.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_49_readers_run_no_commands_by_websockets() {
    let world = ServerWithKubelet::start().await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = |verbs: &[&str]| {
        let resources =
            ["pods/exec", "pods/attach", "pods/portforward", "pods/proxy", "nodes/proxy"];
        json!([{"apiGroups": [""], "resources": resources, "verbs": verbs}])
    };
    let role = json!({"metadata": {"name": "reader"}, "rules": rules(&["get"])});
    let binding = json!({"metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "reader"}]});
    world.create(&format!("{rbac}/clusterroles"), &role).await;
    world.create(&format!("{rbac}/clusterrolebindings"), &binding).await;
    let upgraded = async |path: &str| {
        let mut stream = raw(&world.server, "http/1.1").await.unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: x\r\nimpersonate-user: reader\r\n\
             connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             sec-websocket-protocol: v5.channel.k8s.io\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        String::from_utf8_lossy(&status).into_owned()
    };
    let paths = [
        format!("{PODS}/p/exec?container=a&command=true&stdout=true"),
        format!("{PODS}/p/attach?container=a&stdout=true"),
        format!("{PODS}/p/portforward?ports=80"),
        format!("{PODS}/p/proxy/"),
        format!("{NODES}/n/proxy/exec/default/p/a?command=true&output=1"),
    ];
    for path in &paths {
        assert_eq!(upgraded(path).await, "HTTP/1.1 403", "{path}");
    }
    let role = json!({"rules": rules(&["get", "create"])});
    let changed = world.admin.merge(&format!("{rbac}/clusterroles/reader"), &role).await.unwrap();
    assert_eq!(changed.status, 200, "{}", changed.text);
    for path in &paths {
        assert_ne!(upgraded(path).await, "HTTP/1.1 403", "{path}");
    }
}
