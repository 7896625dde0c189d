//! Reads compose files and manifests of pods; checks that their containers have no rights.

use serde_json::{Value, json};

/// A container, however its file describes it.
pub(super) struct ManifestContainer {
    pub(super) name: String,
    /// Entrypoint and arguments.
    pub(super) command: Vec<String>,
    /// Volumes and the paths where they are mounted.
    pub(super) mounts: Vec<(String, String)>,
    /// URL that says whether it is ready.
    pub(super) health: Option<String>,
    /// Runs to its end before the next one starts.
    pub(super) ends: bool,
}

impl ManifestContainer {
    pub(super) fn is_server(&self) -> bool {
        ["/usr/bin/all-in-one", "/usr/bin/kube-apiserver"].contains(&self.command[0].as_str())
    }

    /// The port in its flags.
    pub(super) fn port(&self) -> Option<u16> {
        let flag = self.command.iter().find_map(|word| word.strip_prefix("--secure-port="));
        flag.map(|port| port.parse().unwrap())
    }
}

/// The documents of a YAML file.
fn documents(text: &str) -> Vec<Value> {
    text.split("\n---\n")
        .map(|document| {
            let read = ferrokube_apimachinery::yaml::read_any(document.as_bytes()).unwrap();
            serde_json::from_slice(&ferrokube_apimachinery::json::to_vec(&read.value)).unwrap()
        })
        .collect()
}

fn words(list: &Value) -> Vec<String> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

/// The entrypoint of an image of `deploy/container/image`, or nothing of others.
fn entrypoint(image: &str) -> Option<String> {
    let role = image.strip_prefix("localhost/ferrokube/")?.strip_suffix(":latest")?;
    let name = match role {
        "apiserver" | "controller-manager" => format!("kube-{role}"),
        other => other.to_owned(),
    };
    Some(format!("/usr/bin/{name}"))
}

/// Services in the order of their dependencies.
pub(super) fn compose(text: &str) -> Vec<ManifestContainer> {
    let [file] = &documents(text)[..] else { panic!("one document") };
    let services = file["services"].as_object().unwrap();
    let mut waiting: Vec<(&String, &Value)> = services.iter().collect();
    let mut sorted: Vec<ManifestContainer> = Vec::new();
    while !waiting.is_empty() {
        let is_next = |service: &Value| {
            let after = service["depends_on"].as_object();
            let is_started = |name: &String| sorted.iter().any(|other| other.name == *name);
            after.is_none_or(|after| after.keys().all(is_started))
        };
        let next = waiting.iter().position(|(_, service)| is_next(service)).expect("no circle");
        let (name, service) = waiting.remove(next);
        sorted.push(of_service(name, service, file));
    }
    sorted
}

fn of_service(name: &str, service: &Value, file: &Value) -> ManifestContainer {
    let image = service["image"].as_str().unwrap();
    let mut command = words(&service["entrypoint"]);
    if command.is_empty() {
        command.extend(entrypoint(image));
    }
    command.extend(words(&service["command"]));
    if entrypoint(image).is_some() {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(service["cap_drop"], json!(["ALL"]), "{name}");
        assert_eq!(service["security_opt"], json!(["no-new-privileges:true"]), "{name}");
    }
    let mounts = words(&service["volumes"]).into_iter().map(|mount| {
        let mut parts = mount.split(':');
        let (volume, path) = (parts.next().unwrap(), parts.next().unwrap());
        assert!(file["volumes"].get(volume).is_some(), "{name}: {volume} is not declared");
        (volume.to_owned(), path.to_owned())
    });
    let check = words(&service["healthcheck"]["test"]);
    assert!(check.is_empty() || check[..3] == ["CMD", "/usr/bin/ferrokube", "probe"], "{name}");
    let restarts = service["restart"] == "on-failure";
    assert_eq!(restarts, service["entrypoint"].is_null(), "{name}");
    ManifestContainer {
        name: name.to_owned(),
        command,
        mounts: mounts.collect(),
        health: check.get(3).cloned(),
        ends: !restarts,
    }
}

/// Init containers and containers of the pod in a file.
pub(super) fn pod(text: &str) -> Vec<ManifestContainer> {
    let documents = documents(text);
    let pod = documents.iter().find(|object| object["kind"] == "Pod").expect("a pod");
    let spec = &pod["spec"];
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    let claims = documents.iter().filter(|object| object["kind"] == "PersistentVolumeClaim");
    let claims: Vec<&Value> = claims.map(|claim| &claim["metadata"]["name"]).collect();
    let volumes = spec["volumes"].as_array().unwrap();
    for volume in volumes {
        let claim = &volume["persistentVolumeClaim"]["claimName"];
        assert!(claims.contains(&claim), "{claim} is not in the file");
    }
    let mut all = Vec::new();
    for (list, ends) in [("initContainers", true), ("containers", false)] {
        let list = spec[list].as_array().map(Vec::as_slice).unwrap_or_default();
        all.extend(list.iter().map(|container| of_container(container, ends)));
    }
    all
}

fn of_container(container: &Value, ends: bool) -> ManifestContainer {
    let name = container["name"].as_str().unwrap().to_owned();
    let context = &container["securityContext"];
    assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
    assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
    assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{name}");
    assert!(container["resources"]["limits"]["memory"].is_string(), "{name}");
    let mut command = words(&container["command"]);
    if command.is_empty() {
        command.extend(entrypoint(container["image"].as_str().unwrap()));
    }
    command.extend(words(&container["args"]));
    let mounts = container["volumeMounts"].as_array().unwrap().iter().map(|mount| {
        let text = |field: &str| mount[field].as_str().unwrap().to_owned();
        (text("name"), text("mountPath"))
    });
    // By the executable: podman would call curl, which is not in the image.
    let check = words(&container["readinessProbe"]["exec"]["command"]);
    assert!(check.is_empty() || check[..2] == ["/usr/bin/ferrokube", "probe"], "{name}");
    let health = check.get(2).cloned();
    ManifestContainer { name, command, mounts: mounts.collect(), health, ends }
}
