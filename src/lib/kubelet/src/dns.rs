//! The resolver of a pod: the cluster's name servers, the node's, or those that the pod gives.

use crate::background::in_background;
use crate::config::dns::{ClusterDns, RESOLV_CONF};
use crate::node::PodNode;
use crate::pod::NodePod;
use ferrokube_cri::DNSConfig;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// Bounds of `resolv.conf`; kubelet's.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_BYTES: usize = 2048;
/// Options that a pod may add.
const MAX_OPTIONS: usize = 256;

/// The resolver of a pod's sandbox; `None`: the runtime takes the node's.
pub(crate) async fn config(node: &PodNode, pod: &NodePod) -> io::Result<Option<DNSConfig>> {
    let policy = pod.spec.dns_policy.as_deref().unwrap_or("ClusterFirst");
    let is_on_host = pod.spec.host_network == Some(true);
    let wants_cluster = match policy {
        "ClusterFirst" => !is_on_host,
        "ClusterFirstWithHostNet" => true,
        _ => false,
    };
    if wants_cluster && node.dns.servers.is_empty() {
        let message = format!(
            "pod: \"{}_{}({})\". kubelet does not have ClusterDNS IP configured and cannot create \
             Pod using {policy:?} policy. Falling back to \"Default\" policy.",
            pod.name, pod.namespace, pod.uid
        );
        node.warn(pod, "MissingClusterDNS", message);
    }
    let is_of_cluster = wants_cluster && !node.dns.servers.is_empty();
    let is_plain = !is_of_cluster && policy != "None" && pod.spec.dns_config.is_none();
    if is_plain && node.dns.resolv_conf == Path::new(RESOLV_CONF) {
        return Ok(None);
    }
    let mut resolver = if policy == "None" {
        DNSConfig::default()
    } else {
        let path = node.dns.resolv_conf.clone();
        in_background(move || read(&path)).await?
    };
    if is_of_cluster {
        resolver = of_cluster(&node.dns, &pod.namespace, resolver);
    }
    Ok(Some(bounded(with_own(resolver, pod))))
}

fn of_cluster(cluster: &ClusterDns, namespace: &str, node: DNSConfig) -> DNSConfig {
    let domain = &cluster.domain;
    let own = [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.clone()];
    DNSConfig {
        servers: cluster.servers.clone(),
        searches: own.into_iter().chain(node.searches).collect(),
        options: vec!["ndots:5".to_owned()],
    }
}

/// Adds the pod's own settings; its options replace those of the same name.
fn with_own(mut resolver: DNSConfig, pod: &NodePod) -> DNSConfig {
    let Some(own) = pod.spec.dns_config.clone() else { return resolver };
    resolver.servers.extend(own.nameservers.unwrap_or_default());
    resolver.searches.extend(own.searches.unwrap_or_default());
    let mut names = BTreeSet::new();
    let mut added = Vec::new();
    for option in own.options.unwrap_or_default().into_iter().rev().take(MAX_OPTIONS) {
        let name = option.name.unwrap_or_default();
        if names.insert(name.clone()) {
            added.push(match option.value.filter(|value| !value.is_empty()) {
                Some(value) => format!("{name}:{value}"),
                None => name,
            });
        }
    }
    resolver.options.retain(|known| !names.contains(known.split(':').next().unwrap_or_default()));
    resolver.options.extend(added.into_iter().rev());
    resolver
}

/// Removes duplicates, and what exceeds the limits of resolvers.
fn bounded(resolver: DNSConfig) -> DNSConfig {
    let unique = |all: Vec<String>| {
        let mut kept: Vec<String> = Vec::new();
        for one in all {
            if !kept.contains(&one) {
                kept.push(one);
            }
        }
        kept
    };
    let mut servers = unique(resolver.servers);
    servers.truncate(MAX_SERVERS);
    let mut searches = unique(resolver.searches);
    searches.truncate(MAX_SEARCHES);
    let mut left = MAX_SEARCH_BYTES;
    let fits = |search: &String| {
        let rest = left.checked_sub(search.len() + 1);
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    let searches = searches.into_iter().take_while(fits).collect();
    DNSConfig { servers, searches, options: resolver.options }
}

fn read(path: &Path) -> io::Result<DNSConfig> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(DNSConfig::default()),
        Err(error) => Err(error),
    }
}

/// The last `search` line and the last `options` line count.
fn parse(text: &str) -> DNSConfig {
    let mut found = DNSConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let rest = words.map(str::to_owned);
        match kind {
            "nameserver" => found.servers.extend(rest.take(1)),
            "search" => {
                let names = rest.map(|name| match name.trim_end_matches('.') {
                    "" => name,
                    trimmed => trimmed.to_owned(),
                });
                found.searches = names.collect();
            }
            "options" => found.options = rest.collect(),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const FILE: &str = "# of the node\nnameserver 10.0.0.2\nnameserver 10.0.0.3 x\nsearch a b.\n\
                        options ndots:1 rotate\n";

    fn pod(dns: Value) -> NodePod {
        let spec = json!({"containers": [{"name": "c", "image": "i"}], "dnsConfig": dns});
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns"}, "spec": spec});
        NodePod::from_file(pod.to_string().as_bytes(), "n").unwrap()
    }

    fn shown(resolver: &DNSConfig) -> [String; 3] {
        [&resolver.servers, &resolver.searches, &resolver.options].map(|all| all.join(" "))
    }

    #[test]
    fn the_file_of_the_node_is_read_as_resolvers_do() {
        assert_eq!(shown(&parse(FILE)), ["10.0.0.2 10.0.0.3", "a b", "ndots:1 rotate"]);
        assert_eq!(parse(""), DNSConfig::default());
    }

    #[test]
    fn the_cluster_comes_before_the_node_and_the_pod_adds_its_own() {
        let cluster =
            ClusterDns { servers: vec!["10.96.0.10".to_owned()], ..ClusterDns::default() };
        let resolver = of_cluster(&cluster, "ns", parse(FILE));
        let searches = "ns.svc.cluster.local svc.cluster.local cluster.local a b";
        assert_eq!(shown(&resolver), ["10.96.0.10", searches, "ndots:5"]);
        let own = json!({"nameservers": ["1.1.1.1", "10.96.0.10"], "searches": ["x"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}]});
        let all = bounded(with_own(resolver, &pod(own)));
        let searches = format!("{searches} x");
        assert_eq!(shown(&all), ["10.96.0.10 1.1.1.1", &searches, "ndots:2 edns0"]);
    }

    #[test]
    fn what_resolvers_do_not_read_is_left_out() {
        let many = |count: usize| (0..count).map(|number| format!("s{number}")).collect();
        let all = bounded(DNSConfig { servers: many(9), searches: many(99), options: Vec::new() });
        assert_eq!((all.servers.len(), all.searches.len()), (3, 32));
        let long = vec!["a".repeat(2000), "b".repeat(100), "c".to_owned()];
        let all = bounded(DNSConfig { searches: long, ..DNSConfig::default() });
        assert_eq!(all.searches.len(), 1);
    }
}
