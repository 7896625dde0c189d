//! Environment variables of a container: literals, references to config maps, secrets and fields,
//! and service links.

use crate::fields::{self, NodeFacts};
use crate::objects::{PodObjectError, PodObjects};
use crate::pod::NodePod;
use crate::service_links;
use crate::variables::{VariableRoom, Variables};
use k8s_openapi::api::core::v1::{Container, EnvVarSource};
use std::collections::BTreeMap;

/// Max length of an argument or variable of a Linux process, in bytes.
const MAX_TEXT: usize = 128 << 10;
/// Max length of a referenced variable's name, in bytes.
const MAX_VARIABLE: usize = 1024;

/// The variables of a container, and the remaining size budget for references in its command.
pub(crate) struct ContainerEnvironment {
    pub(crate) values: Variables,
    pub(crate) room: VariableRoom,
}

/// All variables of a container. Later ones may refer to earlier ones.
pub(crate) async fn resolve(
    objects: &dyn PodObjects,
    pod: &NodePod,
    container: &Container,
    facts: &NodeFacts,
) -> Result<ContainerEnvironment, PodObjectError> {
    let services = objects.services().await?.unwrap_or_default();
    let has_links = pod.spec.enable_service_links.unwrap_or(true);
    let (mut all, mut room) = (Variables::new(), VariableRoom::new());
    service_links::add_variables(&mut all, &mut room, &services, &pod.namespace, has_links)?;
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let mut found = BTreeMap::new();
        if let Some(reference) = &source.config_map_ref {
            let is_optional = reference.optional.unwrap_or(false);
            found = config_map(objects, &pod.namespace, &reference.name, is_optional).await?;
        } else if let Some(reference) = &source.secret_ref {
            let is_optional = reference.optional.unwrap_or(false);
            found = secret(objects, &pod.namespace, &reference.name, is_optional).await?;
        }
        // An object of a megabyte may be named a thousand times.
        for (key, value) in found {
            room.take(prefix.len() + key.len() + value.len())?;
            // A variable must be valid UTF-8.
            if let Ok(text) = String::from_utf8(value) {
                all.insert(format!("{prefix}{key}"), text);
            }
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match &variable.value_from {
            Some(source) => {
                let value = referenced(objects, pod, container, facts, source).await?;
                room.take(value.as_ref().map_or(0, String::len))?;
                value
            }
            None => Some(expanded(variable.value.as_deref().unwrap_or_default(), &all, &mut room)),
        };
        if let Some(value) = value {
            all.insert(variable.name.clone(), value);
        }
    }
    Ok(ContainerEnvironment { values: all, room })
}

/// `None`: optional and absent.
async fn referenced(
    objects: &dyn PodObjects,
    pod: &NodePod,
    container: &Container,
    facts: &NodeFacts,
    source: &EnvVarSource,
) -> Result<Option<String>, PodObjectError> {
    if let Some(selector) = &source.field_ref {
        return fields::field(pod, facts, &selector.field_path).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        return fields::resource(pod, facts, Some(container), selector).map(Some);
    }
    let namespace = pod.namespace.as_str();
    let (kind, name, key, is_optional, mut found) = if let Some(key) = &source.config_map_key_ref {
        let is_optional = key.optional.unwrap_or(false);
        let found = config_map(objects, namespace, &key.name, is_optional).await?;
        ("ConfigMap", &key.name, &key.key, is_optional, found)
    } else if let Some(key) = &source.secret_key_ref {
        let is_optional = key.optional.unwrap_or(false);
        let found = secret(objects, namespace, &key.name, is_optional).await?;
        ("Secret", &key.name, &key.key, is_optional, found)
    } else {
        return Ok(None);
    };
    match found.remove(key) {
        Some(value) => Ok(Some(String::from_utf8_lossy(&value).into_owned())),
        None if is_optional => Ok(None),
        None => Err(PodObjectError::MissingKey {
            kind,
            namespace: namespace.to_owned(),
            name: name.clone(),
            key: key.clone(),
        }),
    }
}

/// The entries of a config map; empty for an absent optional one.
pub(crate) async fn config_map(
    objects: &dyn PodObjects,
    namespace: &str,
    name: &str,
    is_optional: bool,
) -> Result<BTreeMap<String, Vec<u8>>, PodObjectError> {
    let Some(found) = objects.config_map(namespace, name).await? else {
        return missing("configmap", name, is_optional);
    };
    let texts = found.data.unwrap_or_default().into_iter();
    let texts = texts.map(|(key, text)| (key, text.into_bytes()));
    let bytes = found.binary_data.unwrap_or_default().into_iter();
    Ok(texts.chain(bytes.map(|(key, bytes)| (key, bytes.0))).collect())
}

/// The entries of a secret; empty for an absent optional one.
pub(crate) async fn secret(
    objects: &dyn PodObjects,
    namespace: &str,
    name: &str,
    is_optional: bool,
) -> Result<BTreeMap<String, Vec<u8>>, PodObjectError> {
    let Some(found) = objects.secret(namespace, name).await? else {
        return missing("secret", name, is_optional);
    };
    let data = found.data.unwrap_or_default().into_iter();
    Ok(data.map(|(key, bytes)| (key, bytes.0)).collect())
}

fn missing<T: Default>(
    kind: &'static str,
    name: &str,
    is_optional: bool,
) -> Result<T, PodObjectError> {
    if is_optional {
        return Ok(T::default());
    }
    Err(PodObjectError::Missing { kind, name: name.to_owned() })
}

/// Replaces `$(NAME)` by its value, if there is one; `$$` is a dollar sign. Values can double with
/// each reference: a result beyond the kernel's limit, with which the start fails anyway, is cut
/// soon after it. `room` bounds the bytes added in total.
pub(crate) fn expanded(text: &str, variables: &Variables, room: &mut VariableRoom) -> String {
    expand(text, |name| variables.get(name).map(String::as_str), room)
}

/// As [`expanded`], with another lookup.
pub(crate) fn expand<'a>(
    text: &str,
    mut lookup: impl FnMut(&str) -> Option<&'a str>,
    room: &mut VariableRoom,
) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // Position of the next closing bracket, searched once instead of per reference.
    let mut close = 0;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
            continue;
        }
        let at = text.len() - after.len();
        if close < at {
            close = text[at..].find(')').map_or(text.len(), |end| at + end);
        }
        let is_open = after.starts_with('(') && close < text.len() && close - at <= MAX_VARIABLE;
        let value = is_open.then(|| lookup(&text[at + 1..close])).flatten();
        match value.filter(|value| value.len() <= room.left) {
            Some(value) => {
                let left = (MAX_TEXT + 1).saturating_sub(out.len());
                let end = (left..value.len()).find(|at| value.is_char_boundary(*at));
                let end = end.unwrap_or(value.len());
                out.push_str(&value[..end]);
                room.left -= end;
                rest = &text[close + 1..];
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::{NoObjects, ObjectFuture};
    use crate::variables::MAX_VARIABLES;
    use k8s_openapi::api::core::v1::{ConfigMap, Service};
    use std::sync::Arc;

    #[test]
    fn references_are_expanded_as_by_kubelet() {
        let variables = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        let check = |text: &str, expected: &str| {
            assert_eq!(expanded(text, &variables, &mut VariableRoom::new()), expected);
        };
        check("$(A)-$(A)", "1-1");
        check("$$(A)", "$(A)");
        check("$(B)", "$(B)");
        check("$A $", "$A $");
        check("$(A", "$(A");
        check("$(B$(A))", "$(B1)");
        check("$(A)$$(A)$(", "1$(A)$(");
    }

    async fn environment(env: Vec<(String, String)>) -> Variables {
        let env: Vec<_> = env
            .into_iter()
            .map(|(name, value)| serde_json::json!({"name": name, "value": value}))
            .collect();
        let container = serde_json::json!({"name": "c", "env": env});
        let container = serde_json::from_value(container).unwrap();
        let text = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, \
                    image: i}]}}";
        let pod = NodePod::from_file(text.as_bytes(), "n").unwrap();
        resolve(&NoObjects, &pod, &container, &NodeFacts::default()).await.unwrap().values
    }

    #[tokio::test]
    async fn values_that_double_do_not_fill_the_memory() {
        let pair = |at: usize| (format!("v{at}"), format!("$(v{0})$(v{0})", at.wrapping_sub(1)));
        let doubling = std::iter::once(("v0".to_owned(), "\u{e9}".repeat(100)));
        let made = environment(doubling.chain((1..64).map(pair)).collect()).await;
        // Beyond the kernel's limit: the start fails.
        assert!(made["v63"].len() > MAX_TEXT);
        assert!(made.values().all(|value| value.len() <= MAX_TEXT + 4));
        let many = (1..100_000).map(|at| (format!("w{at}"), "$(v0)".to_owned()));
        let many = std::iter::once(("v0".to_owned(), "x".repeat(MAX_TEXT))).chain(many).collect();
        let made = environment(many).await;
        assert!(made.values().map(String::len).sum::<usize>() < 2 * MAX_VARIABLES);
        // Unclosed references are scanned only once.
        let open = "$(".repeat(2_000_000);
        assert_eq!(expanded(&open, &made, &mut VariableRoom::new()), open);
        let open = format!("{open})");
        assert_eq!(expanded(&open, &made, &mut VariableRoom::new()), open);
    }

    /// One service, and a config map of many short keys.
    struct ServiceOfTheServer;

    impl PodObjects for ServiceOfTheServer {
        fn config_map<'a>(&'a self, _: &'a str, _: &'a str) -> ObjectFuture<'a, ConfigMap> {
            let data = (0..1000).map(|at| (format!("k{at}"), String::new())).collect();
            let found = ConfigMap { data: Some(data), ..ConfigMap::default() };
            Box::pin(std::future::ready(Ok(Some(found))))
        }

        fn services(&self) -> ObjectFuture<'_, Vec<Arc<Service>>> {
            let service = serde_json::json!({
                "metadata": {"namespace": "default", "name": "kubernetes"},
                "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "https", "port": 443}]},
            });
            let service = Arc::new(serde_json::from_value(service).unwrap());
            Box::pin(std::future::ready(Ok(Some(vec![service]))))
        }
    }

    #[tokio::test]
    async fn variables_of_services_are_referred_to_and_replaced() {
        let container = serde_json::json!({"name": "c", "env": [
            {"name": "URL", "value": "https://$(KUBERNETES_SERVICE_HOST)"},
            {"name": "KUBERNETES_SERVICE_PORT", "value": "6443"},
        ]});
        let container = serde_json::from_value(container).unwrap();
        let text = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, \
                    image: i}]}}";
        let pod = NodePod::from_file(text.as_bytes(), "n").unwrap();
        let made =
            resolve(&ServiceOfTheServer, &pod, &container, &NodeFacts::default()).await.unwrap();
        let value = |name: &str| made.values.get(name).map(String::as_str);
        assert_eq!(value("URL"), Some("https://10.0.0.1"));
        assert_eq!(value("KUBERNETES_SERVICE_HOST"), Some("10.0.0.1"));
        assert_eq!(value("KUBERNETES_SERVICE_PORT_HTTPS"), Some("443"));
        assert_eq!(value("KUBERNETES_SERVICE_PORT"), Some("6443"), "its own one");
    }

    /// A prefix is repeated in every name.
    #[tokio::test]
    async fn long_names_do_not_fill_the_memory() {
        let text = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, \
                    image: i}]}}";
        let pod = NodePod::from_file(text.as_bytes(), "n").unwrap();
        for (len, fits) in [(8_000, true), (9_000, false)] {
            let source =
                serde_json::json!({"prefix": "p".repeat(len), "configMapRef": {"name": "m"}});
            let container = serde_json::json!({"name": "c", "envFrom": [source]});
            let container = serde_json::from_value(container).unwrap();
            let made = resolve(&ServiceOfTheServer, &pod, &container, &NodeFacts::default()).await;
            let outcome = made.map(|made| made.values.len()).map_err(|error| error.to_string());
            assert_eq!(outcome.is_ok(), fits, "{outcome:?}");
        }
    }
}
