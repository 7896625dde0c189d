//! Names of a pod in the network: its host name, its domain, and `/etc/hosts` of its containers.

use crate::assemble;
use crate::background::in_background;
use crate::node::PodNode;
use crate::pod::NodePod;
use ferrokube_cri::ContainerMount;
use k8s_openapi::api::core::v1::Container;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const HOSTS: &str = "/etc/hosts";
const LOCAL: &str = "# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
fe00::0\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
";
/// Longest label of a name.
const MAX_NAME: usize = 63;
/// Longest host name that Linux takes.
const MAX_KERNEL_NAME: usize = 64;
/// Bytes of the node's own file that are taken.
const MAX_HOSTS: usize = 1 << 20;

/// `spec.hostnameOverride` or `spec.hostname`, else the name of the pod.
fn host_name(pod: &NodePod) -> String {
    if let Some(name) = &pod.spec.hostname_override {
        return name.clone();
    }
    let given = pod.spec.hostname.as_deref().filter(|name| !name.is_empty());
    let name = given.unwrap_or(&pod.name);
    name.get(..MAX_NAME).unwrap_or(name).trim_end_matches(['-', '.']).to_owned()
}

/// The host name that processes see: with the domain if the pod wants that. `cluster` is the
/// cluster's domain.
///
/// # Errors
/// It is longer than the kernel takes; the message is kubelet's.
pub(crate) fn kernel_name(pod: &NodePod, cluster: &str) -> Result<String, String> {
    let name = host_name(pod);
    let domain = domain(pod, cluster).filter(|_| pod.spec.set_hostname_as_fqdn == Some(true));
    let Some(domain) = domain else { return Ok(name) };
    let full = format!("{name}.{domain}");
    let length = full.len();
    if length > MAX_KERNEL_NAME {
        return Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long \
             ({MAX_KERNEL_NAME} characters is the max, {length} characters requested)"
        ));
    }
    Ok(full)
}

/// The domain of the pod's subdomain; an override of the host name has none.
fn domain(pod: &NodePod, cluster: &str) -> Option<String> {
    if pod.spec.hostname_override.is_some() {
        return None;
    }
    let subdomain = pod.spec.subdomain.as_deref().filter(|name| !name.is_empty())?;
    Some(format!("{subdomain}.{}.svc.{cluster}", pod.namespace))
}

/// The file in the pod's own directory.
pub(crate) fn hosts_file(root: &Path, uid: &str) -> PathBuf {
    assemble::pod_directory(root, uid).join("etc-hosts")
}

/// Writes `/etc/hosts` of a pod; returns its mount. `None`: the container has a volume there.
pub(crate) async fn hosts_mount(
    node: &PodNode,
    pod: &NodePod,
    container: &Container,
    pod_ips: &[String],
) -> io::Result<Option<ContainerMount>> {
    let mut mounts = container.volume_mounts.iter().flatten();
    if pod_ips.is_empty() || mounts.any(|mount| mount.mount_path == HOSTS) {
        return Ok(None);
    }
    let path = hosts_file(&node.paths.root, &pod.uid);
    let (own, pod, ips) = (path.clone(), pod.clone(), pod_ips.to_vec());
    let cluster = node.dns.domain.clone();
    in_background(move || {
        let is_on_host = pod.spec.host_network == Some(true);
        let base =
            if is_on_host { of_node(&fs::read(HOSTS)?) } else { of_pod(&pod, &ips, &cluster) };
        // Written in place: running containers have the file mounted.
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true);
        let nofollow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let mut file = options.custom_flags(nofollow).open(&own)?;
        file.write_all(format!("{base}{}", aliases(&pod)).as_bytes())?;
        file.set_permissions(Permissions::from_mode(0o644))
    })
    .await?;
    let host_path = path.display().to_string();
    let container_path = HOSTS.to_owned();
    Ok(Some(ContainerMount { container_path, host_path, ..ContainerMount::default() }))
}

fn of_node(content: &[u8]) -> String {
    let content = content.get(..MAX_HOSTS).unwrap_or(content);
    let content = String::from_utf8_lossy(content);
    format!("# Kubernetes-managed hosts file (host network).\n{content}")
}

fn of_pod(pod: &NodePod, ips: &[String], cluster: &str) -> String {
    let name = host_name(pod);
    let names = match domain(pod, cluster) {
        Some(domain) => format!("{name}.{domain}\t{name}"),
        None => name,
    };
    let own: String = ips.iter().map(|ip| format!("{ip}\t{names}\n")).collect();
    format!("{LOCAL}{own}")
}

fn aliases(pod: &NodePod) -> String {
    let all: Vec<String> = pod
        .spec
        .host_aliases
        .iter()
        .flatten()
        .map(|alias| {
            let names = alias.hostnames.as_deref().unwrap_or_default();
            format!("{}\t{}\n", alias.ip, names.join("\t"))
        })
        .collect();
    if all.is_empty() {
        return String::new();
    }
    format!("\n# Entries added by HostAliases.\n{}", all.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> NodePod {
        let mut all = json!({"containers": [{"name": "c", "image": "i"}]});
        all.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "shop", "uid": "u"}, "spec": all});
        NodePod::from_file(pod.to_string().as_bytes(), "n").unwrap()
    }

    #[test]
    fn a_pod_has_its_name_or_the_one_it_is_given() {
        assert_eq!(host_name(&pod(json!({}))), "web-n");
        assert_eq!(host_name(&pod(json!({"hostname": "db"}))), "db");
        let mut long = pod(json!({}));
        long.name = format!("{}-tail", "a".repeat(62));
        assert_eq!(host_name(&long), "a".repeat(62));
    }

    #[test]
    fn processes_see_the_full_name_if_the_pod_wants_that_and_it_fits() {
        let named = |spec: Value| kernel_name(&pod(spec), "cluster.local");
        let plain = json!({"hostname": "db", "subdomain": "sub"});
        assert_eq!(named(plain).unwrap(), "db");
        let full = json!({"hostname": "db", "subdomain": "sub", "setHostnameAsFQDN": true});
        assert_eq!(named(full).unwrap(), "db.sub.shop.svc.cluster.local");
        let alone = json!({"hostname": "db", "setHostnameAsFQDN": true});
        assert_eq!(named(alone).unwrap(), "db", "without a subdomain");
        let long =
            json!({"hostname": "a".repeat(63), "subdomain": "sub", "setHostnameAsFQDN": true});
        let why = named(long).unwrap_err();
        assert!(why.ends_with("is too long (64 characters is the max, 90 characters requested)"));
        let other = json!({"hostname": "db", "subdomain": "sub", "hostnameOverride": "db.example"});
        assert_eq!(named(other.clone()).unwrap(), "db.example");
        let hosts = of_pod(&pod(other), &["10.0.0.7".to_owned()], "cluster.local");
        assert!(hosts.ends_with("10.0.0.7\tdb.example\n"), "{hosts}");
    }

    #[test]
    fn the_hosts_file_is_kubelets() {
        let ips = ["10.0.0.7".to_owned(), "fd00::7".to_owned()];
        let plain = of_pod(&pod(json!({})), &ips, "cluster.local");
        assert!(plain.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"));
        assert!(plain.ends_with("ip6-allrouters\n10.0.0.7\tweb-n\nfd00::7\tweb-n\n"), "{plain}");
        let named = pod(json!({"hostname": "db", "subdomain": "sub"}));
        let named = of_pod(&named, &ips[..1], "cluster.local");
        assert!(named.ends_with("10.0.0.7\tdb.sub.shop.svc.cluster.local\tdb\n"), "{named}");
        assert_eq!(aliases(&pod(json!({}))), "");
        let aliased = json!({"hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]});
        let want = "\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n";
        assert_eq!(aliases(&pod(aliased)), want);
        let node = of_node(b"127.0.0.1 localhost\n");
        assert_eq!(node, "# Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n");
    }
}
