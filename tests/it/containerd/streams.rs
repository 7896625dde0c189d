//! Logs, commands, terminals and ports of pods, by stock kubectl through API server and kubelet.

use super::node::{NODE, NodeUnderTest, PODS};
use ferrokube_testkit::{BOUND, Kubectl, newest_kubectl, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

/// Both protocols of kubectl.
const PROTOCOLS: [&str; 2] = ["true", "false"];

pub(super) struct Kube<'a> {
    pub(super) kubectl: Kubectl,
    pub(super) node: &'a NodeUnderTest,
    pub(super) websockets: &'static str,
}

/// A process, killed on drop.
pub(super) struct KubectlProcess(pub(super) Child);

impl Drop for KubectlProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Kube<'_> {
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.kubectl.command(&self.node.server.kubeconfig());
        command
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", self.websockets)
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", self.websockets)
            .args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    pub(super) fn prints(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}: {output:?}\n{}", self.node.log());
        text(&output.stdout)
    }

    fn refuses(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Runs with this standard input, which ends.
    fn fed(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut stdin = process.stdin.take().unwrap();
        let input = input.to_vec();
        let writing = std::thread::spawn(move || stdin.write_all(&input));
        let output = process.wait_with_output().unwrap();
        let _ = writing.join();
        output
    }
}

pub(super) fn pod(name: &str, containers: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": NODE, "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1, "containers": containers}})
}

/// Writes a line on SIGUSR1, to the standard error, echoes lines of its standard input, and serves
/// a page.
const SCRIPT: &str = "trap 'exit 0' TERM; trap 'echo more >&2' USR1; echo first; echo second; \
                      mkdir /www; echo page > /www/index.html; busybox httpd -p 8080 -h /www; \
                      while :; do if read -t 1 line; then echo got $line; fi; done";

/// Waits until the kubelet lets the API server in.
pub(super) async fn trusts(node: &NodeUnderTest) {
    let path = format!("/api/v1/nodes/{NODE}/proxy/healthz");
    wait_until("the kubelet trusts the API server", BOUND, || async {
        let response = node.admin.get(&path).await.unwrap();
        if response.status == 200 { Ok(()) } else { Err(response.text) }
    })
    .await;
}

async fn started() -> Option<NodeUnderTest> {
    let node = NodeUnderTest::start().await?;
    let mut main = node.busybox("main", SCRIPT);
    main["stdin"] = true.into();
    let crash = "test -e /shared/ran && exec sleep 100000; touch /shared/ran; echo old; exit 3";
    let shared = node.containerd.path("shared");
    std::fs::create_dir(&shared).unwrap();
    let mut crashing = node.busybox("crashing", crash);
    crashing["volumeMounts"] = json!([{"name": "shared", "mountPath": "/shared"}]);
    let mut both = pod("both", &[node.busybox("other", "exec sleep 100000"), crashing]);
    both["spec"]["volumes"] = json!([{"name": "shared", "hostPath": {"path": shared}}]);
    node.create(PODS, &pod("web", &[main])).await;
    node.create(PODS, &both).await;
    node.until("web", "it runs", |pod| pod["status"]["containerStatuses"][0]["started"] == true)
        .await;
    let has_restarted = |pod: &Value| {
        let all = pod["status"]["containerStatuses"].as_array().cloned().unwrap_or_default();
        all.iter().any(|one| one["restartCount"] == 1 && one["state"]["running"].is_object())
    };
    node.until("both", "its container was started again", has_restarted).await;
    trusts(&node).await;
    Some(node)
}

pub(super) async fn lines(kube: &Kube<'_>, arguments: &[&str], wanted: &str) {
    wait_until("the log has the lines", BOUND, || async {
        let seen = kube.prints(arguments);
        if seen == wanted { Ok(()) } else { Err(seen) }
    })
    .await;
}

/// What pods use, as metrics-server and `kubectl get --raw` read it.
async fn usage(kube: &Kube<'_>) {
    let path = format!("/api/v1/nodes/{NODE}/proxy/stats/summary");
    let has_used = |value: &Value| value.as_u64().is_some_and(|number| number > 0);
    let probe = || async {
        let response = kube.node.admin.get(&path).await.unwrap();
        let pods = response.body["pods"].as_array().cloned().unwrap_or_default();
        let web = pods.into_iter().find(|pod| pod["podRef"]["name"] == "web");
        let web = web.ok_or_else(|| response.text.clone())?;
        let main = &web["containers"][0];
        let is_whole = has_used(&web["cpu"]["usageCoreNanoSeconds"])
            && has_used(&web["memory"]["workingSetBytes"])
            && main["name"] == "main"
            && has_used(&main["cpu"]["usageCoreNanoSeconds"])
            && has_used(&main["memory"]["workingSetBytes"])
            && has_used(&main["rootfs"]["usedBytes"])
            && has_used(&main["rootfs"]["capacityBytes"])
            && has_used(&response.body["node"]["runtime"]["imageFs"]["capacityBytes"]);
        if is_whole { Ok(()) } else { Err(response.text) }
    };
    wait_until("the summary has all that containerd says", BOUND, probe).await;
    let path = format!("/api/v1/nodes/{NODE}/proxy/metrics/resource");
    let labels = "{container=\"main\",namespace=\"default\",pod=\"web\"} ";
    let probe = || async {
        let text = kube.node.admin.get(&path).await.unwrap().text;
        let is_whole = ["container_cpu_usage_seconds_total", "container_memory_working_set_bytes"]
            .iter()
            .all(|name| text.contains(&format!("\n{name}{labels}")));
        if is_whole && text.contains("resource_scrape_error 0") { Ok(()) } else { Err(text) }
    };
    wait_until("the metrics have the container", BOUND, probe).await;
}

async fn logs(kube: &Kube<'_>) {
    lines(kube, &["logs", "web"], "first\nsecond\n").await;
    assert_eq!(kube.prints(&["logs", "web", "--tail=1"]), "second\n");
    assert_eq!(kube.prints(&["logs", "web", "--limit-bytes=3"]), "fir");
    let stamped = kube.prints(&["logs", "web", "--timestamps"]);
    assert!(stamped.lines().all(|line| line.contains("Z ") && line.starts_with("20")), "{stamped}");
    assert_eq!(kube.prints(&["logs", "web", "--since-time=2100-01-01T00:00:00Z"]), "");
    assert_eq!(kube.prints(&["logs", "both", "-c", "crashing", "--previous"]), "old\n");
    let none = kube.refuses(&["logs", "web", "--previous"]);
    let words = "previous terminated container \"main\" in pod \"web\" not found";
    assert!(none.contains(words), "{none}");
    let which = kube.node.admin.get(&format!("{PODS}/both/log")).await.unwrap();
    let words = "a container name must be specified for pod both, choose one of: [other crashing]";
    assert_eq!((which.status, which.body["message"].as_str().unwrap()), (400, words));
    let wrong = kube.refuses(&["logs", "web", "-c", "nothing"]);
    assert!(wrong.contains("container nothing is not valid for pod web"), "{wrong}");
    let mut follow = kube.command(&["logs", "-f", "web"]);
    let mut follow = KubectlProcess(follow.stdout(Stdio::piped()).spawn().unwrap());
    let mut followed = BufReader::new(follow.0.stdout.take().unwrap()).lines();
    assert_eq!(followed.next().unwrap().unwrap(), "first");
    assert_eq!(followed.next().unwrap().unwrap(), "second");
    kube.prints(&["exec", "web", "--", "sh", "-c", "kill -USR1 1"]);
    assert_eq!(followed.next().unwrap().unwrap(), "more", "a line that came later");
}

fn commands(kube: &Kube<'_>) {
    let output = kube.run(&["exec", "web", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&output.stdout), "out\n", "{output:?}");
    assert!(text(&output.stderr).starts_with("err\n"), "{output:?}");
    assert_eq!(output.status.code(), Some(7), "the exit code of the command");
    let verbose = kube.run(&["exec", "-v=4", "web", "--", "sh", "-c", "true"]);
    let verbose = text(&verbose.stderr);
    assert!(!verbose.contains("fallback"), "it uses the protocol: {verbose}");
    let input: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let output = kube.fed(&["exec", "-i", "web", "--", "sh", "-c", "cat"], &input);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stdout == input, "{} of {} bytes", output.stdout.len(), input.len());
    let missing = kube.refuses(&["exec", "web", "--", "/nothing"]);
    assert!(missing.contains("/nothing"), "{missing}");
    let wrong = kube.refuses(&["exec", "web", "-c", "nothing", "--", "true"]);
    assert!(wrong.contains("container nothing is not valid for pod web"), "{wrong}");
}

fn attached(kube: &Kube<'_>) {
    let mut attach = kube.command(&["attach", "-i", "web"]);
    attach.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut attach = KubectlProcess(attach.spawn().unwrap());
    attach.0.stdin.as_mut().unwrap().write_all(b"hello\n").unwrap();
    let mut lines = BufReader::new(attach.0.stdout.take().unwrap()).lines();
    let found = lines.find(|line| line.as_ref().is_ok_and(|line| line == "got hello"));
    assert!(found.is_some(), "{}\n{}", kube.node.log(), kube.node.server.log());
}

fn forwarded(kube: &Kube<'_>) {
    let mut forward = kube.command(&["port-forward", "pod/web", ":8080"]);
    let mut forward = KubectlProcess(forward.stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(forward.0.stdout.take().unwrap()).lines();
    let line = lines.next().unwrap().unwrap();
    let address = line.strip_prefix("Forwarding from ").and_then(|rest| rest.split(' ').next());
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address.unwrap()).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        assert!(page.ends_with("page\n"), "{page:?}");
    }
}

/// By `tar` in the container.
fn copied(kube: &Kube<'_>) {
    let [source, back] = ["source", "back"].map(|name| {
        let path = kube.node.containerd.path(&format!("{name}-{}", kube.websockets));
        path.to_str().unwrap().to_owned()
    });
    let content: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(&source, &content).unwrap();
    kube.prints(&["cp", &source, "web:/copied"]);
    kube.prints(&["cp", "web:/copied", &back]);
    assert!(fs::read(&back).unwrap() == content, "another content");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_reads_logs_runs_commands_attaches_and_forwards_ports() {
    let Some(node) = started().await else { return };
    for websockets in PROTOCOLS {
        let kube = Kube { kubectl: newest_kubectl(), node: &node, websockets };
        if websockets == "true" {
            logs(&kube).await;
            let path = format!("/api/v1/nodes/{NODE}/proxy/healthz");
            assert_eq!(kube.prints(&["get", "--raw", &path]), "ok");
            let path = format!("{PODS}/web:8080/proxy/");
            assert_eq!(kube.prints(&["get", "--raw", &path]), "page\n");
            usage(&kube).await;
        }
        commands(&kube);
        attached(&kube);
        forwarded(&kube);
        copied(&kube);
    }
    hostile(&node).await;
}

/// The kubelet's own server, without and with credentials; and what users may write.
async fn hostile(node: &NodeUnderTest) {
    let path = format!("/api/v1/nodes/{NODE}");
    let object = node.admin.get(&path).await.unwrap().body;
    let port = &object["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"];
    let port = u16::try_from(port.as_u64().unwrap()).unwrap();
    let url = format!("https://127.0.0.1:{port}");
    for (path, token, status) in [
        ("/healthz", None, 401),
        ("/pods", None, 401),
        ("/exec/default/web/main?command=true&output=1", None, 401),
        ("/pods", Some("x"), 401),
    ] {
        assert_eq!(status_of(&format!("{url}{path}"), token).await, status, "{path}");
    }
    // A pod whose address is the API server's own machine, or a link's.
    for address in ["127.0.0.1", "169.254.169.254", "::1", "0.0.0.0"] {
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        let ghost = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ghost"},
            "spec": {"nodeName": "elsewhere", "containers": [{"name": "a", "image": "i"}]}});
        node.create(PODS, &ghost).await;
        let patched = node.admin.merge(&format!("{PODS}/ghost/status"), &status).await.unwrap();
        assert_eq!(patched.status, 200, "{}", patched.text);
        let proxied = node.admin.get(&format!("{PODS}/ghost:{port}/proxy/")).await.unwrap();
        assert_eq!(proxied.status, 400, "{address}: {}", proxied.text);
        assert!(proxied.text.contains("address not allowed"), "{}", proxied.text);
        let deleted = format!("{PODS}/ghost?gracePeriodSeconds=0");
        assert_eq!(node.admin.delete(&deleted).await.unwrap().status, 200);
    }
}

async fn status_of(url: &str, token: Option<&str>) -> u16 {
    let client = reqwest::Client::builder().tls_danger_accept_invalid_certs(true).build().unwrap();
    let request = client.get(url);
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    request.send().await.unwrap().status().as_u16()
}
