//! The library in programs of others: the examples, and a package outside of the workspace, each
//! as a process with the real kubectl.

mod page;

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Kubectl, newest_kubectl, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Once;
use tempfile::TempDir;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// A program that serves; killed on drop.
pub(crate) struct RunningProgram {
    process: Child,
    pub(crate) url: String,
    pub(crate) kubeconfig: PathBuf,
    kubectl: Kubectl,
    _directory: TempDir,
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs cargo as a user would, without the network.
fn cargo(directory: &Path, arguments: &[&str], rustdoc_flags: &str) {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(directory).args(arguments).arg("--offline");
    command.env("CARGO_TARGET_DIR", target()).env("RUSTDOCFLAGS", rustdoc_flags);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Shared with the packages outside, which then compile few crates again.
fn target() -> PathBuf {
    Path::new(FERROKUBE).parent().unwrap().parent().unwrap().to_owned()
}

/// The package outside of the workspace, built once.
pub(crate) fn outside_package() -> PathBuf {
    static BUILD: Once = Once::new();
    let package = Path::new(ROOT).join("tests/outside");
    BUILD.call_once(|| {
        // The versions of this workspace, of which cargo keeps those that it needs.
        std::fs::copy(Path::new(ROOT).join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
        cargo(&package, &["build"], "");
    });
    package
}

impl RunningProgram {
    fn example(name: &str) -> Self {
        Self::example_with(name, &[])
    }

    /// With arguments after the directory.
    pub(crate) fn example_with(name: &str, arguments: &[&str]) -> Self {
        cargo(Path::new(ROOT), &["build", "--example", name], "");
        let program = Path::new(FERROKUBE).with_file_name("examples").join(name);
        Self::start_with(&program, arguments)
    }

    fn start(program: &Path) -> Self {
        Self::start_with(program, &[])
    }

    fn start_with(program: &Path, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut process = Command::new(program)
            .arg(directory.path().join("data"))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let ready = lines.map_while(Result::ok).find(|line| line.starts_with("ready: "));
        let ready = ready.expect("the program ended before it was ready");
        let words: Vec<&str> = ready.split(' ').collect();
        let url = words[1].to_owned();
        let kubeconfig = directory.path().join("data/admin.kubeconfig");
        // A program that accepts no client certificates prints none.
        assert!(words.get(3).is_none_or(|printed| Path::new(printed) == kubeconfig), "{ready}");
        Self { process, url, kubeconfig, kubectl: newest_kubectl(), _directory: directory }
    }

    /// Runs kubectl; its output.
    fn kubectl(&self, arguments: &str) -> String {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let ran = self.kubectl.run(&self.kubeconfig, &arguments);
        assert!(ran.ok, "{arguments:?}: {}{}", ran.stdout, ran.stderr);
        ran.stdout
    }

    /// Runs kubectl, which must fail; its error.
    fn fails(&self, arguments: &str) -> String {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let ran = self.kubectl.run(&self.kubeconfig, &arguments);
        assert!(!ran.ok, "{arguments:?}: {}", ran.stdout);
        ran.stderr
    }

    /// Creates an object from JSON. Without CustomResourceDefinitions kubectl cannot check kinds
    /// that have no PATCH, so only the server does.
    fn create(&self, object: &str) -> (bool, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), object).unwrap();
        let path = file.path().display().to_string();
        let arguments = ["create", "--validate=false", "-o", "json", "-f", &path];
        let ran = self.kubectl.run(&self.kubeconfig, &arguments);
        (ran.ok, ran.stdout + &ran.stderr)
    }

    fn resources(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .kubectl("api-resources -o name")
            .lines()
            .map(|line| line.trim().to_owned())
            .collect();
        names.sort();
        names
    }

    async fn until(&self, what: &str, arguments: &str, words: &str) {
        wait_until(what, BOUND, async || {
            let output = self.kubectl(arguments);
            if output.contains(words) { Ok(()) } else { Err(output) }
        })
        .await;
    }

    /// Stops it; it must end well.
    fn stop(mut self) {
        let pid = Pid::from_raw(self.process.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_core_is_an_api_server_alone() {
    let core = RunningProgram::example("kube_core");
    assert!(core.resources().contains(&"customresourcedefinitions.apiextensions.k8s.io".into()));
    core.kubectl("create namespace shop");
    // There is no controller that would make the account of a new namespace.
    assert!(core.kubectl("get serviceaccounts --all-namespaces -o name").is_empty());
    core.kubectl("auth can-i delete namespaces");
    core.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_hyper_mini_has_server_storage_and_controllers() {
    let mini = RunningProgram::example("kube_hyper_mini");
    mini.kubectl("create namespace shop");
    mini.until("the account", "get serviceaccounts -n shop -o name", "serviceaccount/default")
        .await;
    mini.kubectl("create configmap page -n shop --from-literal=color=blue");
    mini.kubectl("delete namespace shop --timeout=180s");
    assert!(mini.fails("get namespace shop").contains("NotFound"));
    // The server's part of the controllers' work.
    let (created, output) = mini.create(
        r#"{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "few"}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]},
            "validations": [{"expression": "size(object.data) < 10"}]}}"#,
    );
    assert!(created, "{output}");
    let observed =
        "get validatingadmissionpolicy few -o jsonpath=generation={.status.observedGeneration}";
    mini.until("the type check", observed, "generation=1").await;
    mini.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generic_control_plane_takes_less_than_100_lines() {
    let source = format!("{ROOT}/examples/sample_generic_controlplane.rs");
    assert!(std::fs::read_to_string(source).unwrap().lines().count() < 100);
    let sample = RunningProgram::example("sample_generic_controlplane");
    let expected = [
        "clusterrolebindings.rbac.authorization.k8s.io",
        "clusterroles.rbac.authorization.k8s.io",
        "configmaps",
        "localsubjectaccessreviews.authorization.k8s.io",
        "namespaces",
        "rolebindings.rbac.authorization.k8s.io",
        "roles.rbac.authorization.k8s.io",
        "secrets",
        "selfsubjectaccessreviews.authorization.k8s.io",
        "selfsubjectrulesreviews.authorization.k8s.io",
        "subjectaccessreviews.authorization.k8s.io",
        "tickets.box.example.com",
    ];
    assert_eq!(sample.resources(), expected);
    let ticket = |name: &str, seat: i64| {
        format!(
            r#"{{"apiVersion": "box.example.com/v1", "kind": "Ticket", "metadata": {{"name": "{name}", "namespace": "default"}}, "spec": {{"seat": {seat}, "show": "hamlet"}}}}"#
        )
    };
    let (created, output) = sample.create(&ticket("first", 7));
    assert!(created, "{output}");
    let (created, output) = sample.create(&ticket("last", 501));
    let refused = "spec.seat: Invalid value: 501: must be between 1 and 500";
    assert!(!created && output.contains(refused), "{output}");
    let table = sample.kubectl("get tk");
    assert!(table.contains("NAME    SEAT   AGE") && table.contains("first   7"), "{table}");
    let other = sample.kubectl("get tickets --field-selector=spec.show=macbeth -o name");
    assert!(other.is_empty(), "{other}");
    sample.kubectl("explain ticket.spec.seat");
    let patch = r#"patch ticket first --type=merge -p {"spec":{"seat":8}}"#;
    assert!(sample.fails(patch).contains("spec.seat: Forbidden: field is immutable"));
    sample.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_package_outside_brings_kinds_steps_and_controllers() {
    let package = outside_package();
    let outside = RunningProgram::start(&Path::new(FERROKUBE).with_file_name("outside"));
    let toy = |namespace: &str, size: i64| {
        format!(
            r#"{{"apiVersion": "toy.example.com/v1", "kind": "Toy", "metadata": {{"name": "ball", "namespace": "{namespace}"}}, "spec": {{"size": {size}}}}}"#
        )
    };
    // The step of the program.
    let (created, output) = outside.create(&toy("default", 7));
    assert!(!created && output.contains("nobody tallies toys here"), "{output}");
    outside.kubectl("create configmap tally");
    // The kind's hooks, before and with the transaction.
    let (created, output) = outside.create(&toy("default", 101));
    assert!(!created && output.contains("must be between 0 and 100"), "{output}");
    let tally = "get configmap tally -o jsonpath={.data.toys}";
    assert_eq!(outside.kubectl(tally), "");
    let (created, output) = outside.create(&toy("default", 7));
    assert!(created && output.contains(r#""color": "red""#), "{output}");
    assert_eq!(outside.kubectl(tally), "1");
    // The controller.
    outside.until("the toy is made", "get toys", "Made").await;
    // Its subresources: one that is computed, and one that another server answers.
    let path = "/apis/toy.example.com/v1/namespaces/default/toys";
    let play = tempfile::NamedTempFile::new().unwrap();
    let object = r#"{"apiVersion": "toy.example.com/v1", "kind": "Play"}"#;
    std::fs::write(play.path(), object).unwrap();
    let file = play.path().display();
    let played = outside.kubectl(&format!("create --raw {path}/ball/play -f {file}"));
    assert!(played.contains("kubernetes-admin is happy"), "{played}");
    let heard = outside.kubectl(&format!("get --raw {path}/ball/radio?loud=1"));
    assert_eq!(heard, "/red?loud=1 for kubernetes-admin\n");
    assert!(outside.fails(&format!("get --raw {path}/none/radio")).contains("not found"));
    let discovery = outside.kubectl("get --raw /apis/toy.example.com/v1");
    assert!(discovery.contains(r#""name":"toys/radio""#), "{discovery}");
    let openapi = outside.kubectl("get --raw /openapi/v3/apis/toy.example.com/v1");
    for subresource in ["play", "radio"] {
        assert!(openapi.contains(&format!("/toys/{{name}}/{subresource}\"")), "{openapi}");
    }
    // Users and rights from elsewhere.
    // Whichever test runs first in the process chooses the TLS library.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let guest = reqwest::Client::builder().danger_accept_invalid_certs(true).build().unwrap();
    for (token, verb, path, code) in [
        ("guest-ann", "GET", format!("{path}/ball"), 200),
        ("guest-ann", "DELETE", format!("{path}/ball"), 403),
        ("guest-ann", "GET", format!("{path}/ball/radio"), 403),
        ("guest-", "GET", format!("{path}/ball"), 401),
    ] {
        let method = reqwest::Method::from_bytes(verb.as_bytes()).unwrap();
        let request = guest.request(method, format!("{}{path}", outside.url));
        let response = request.bearer_auth(token).send().await.unwrap();
        assert_eq!(response.status(), code, "{token} {verb} {path}");
    }
    // The kind without a store.
    let quote = r#"{"apiVersion": "toy.example.com/v1", "kind": "Quote", "spec": {"size": 4}}"#;
    let (created, output) = outside.create(quote);
    assert!(created && output.contains(r#""cents": 100"#), "{output}");
    assert!(outside.fails("get quotes").contains("the server does not allow this method"));
    outside.stop();
    cargo(&package, &["doc", "--no-deps", "--document-private-items"], "-D warnings");
}
