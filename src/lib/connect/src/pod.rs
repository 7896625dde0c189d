//! Selects the container of a pod.

use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::status::Failure;

/// Names in one of a pod's container lists.
fn names<'a>(pod: &'a Document, list: &str) -> Vec<&'a str> {
    let all = pod.list(&["spec", list]).iter();
    all.filter_map(|container| container.get("name").and_then(Value::as_str)).collect()
}

/// The name of the requested container, or of the default one if the request names none.
///
/// # Errors
/// 400, with kube-apiserver's messages.
pub(crate) fn container(pod: &Document, wanted: &str) -> Result<String, Failure> {
    let main = names(pod, "containers");
    let [init, ephemeral] = ["initContainers", "ephemeralContainers"].map(|list| names(pod, list));
    let name = pod.name();
    if !wanted.is_empty() {
        return if [&main, &init, &ephemeral].iter().any(|list| list.contains(&wanted)) {
            Ok(wanted.to_owned())
        } else {
            let why = format!("container {wanted} is not valid for pod {name}");
            Err(Failure::bad_request(why))
        };
    }
    let mut why = format!("a container name must be specified for pod {name}");
    match main.as_slice() {
        [only] => return Ok((*only).to_owned()),
        [] => {}
        all => {
            why.push_str(&format!(", choose one of: [{}]", all.join(" ")));
            for (list, kind) in [(init, "init"), (ephemeral, "ephemeral")] {
                if !list.is_empty() {
                    why.push_str(&format!(
                        " or one of the {kind} containers: [{}]",
                        list.join(" ")
                    ));
                }
            }
        }
    }
    Err(Failure::bad_request(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;

    #[test]
    fn the_container_of_a_pod_with_one_need_not_be_named() {
        let of = |spec: Value, wanted: &str| {
            let pod = json!({"metadata": {"name": "p"}, "spec": spec});
            let pod = Document::from_value(pod).unwrap();
            container(&pod, wanted).map_err(|failure| failure.message)
        };
        let one = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]});
        let two = json!({"containers": [{"name": "a"}, {"name": "b"}],
            "initContainers": [{"name": "i"}]});
        assert_eq!(of(one.clone(), ""), Ok("a".to_owned()));
        assert_eq!(of(one.clone(), "i"), Ok("i".to_owned()));
        assert_eq!(of(one, "x"), Err("container x is not valid for pod p".to_owned()));
        let why = "a container name must be specified for pod p, choose one of: [a b] or one of \
                   the init containers: [i]";
        assert_eq!(of(two, ""), Err(why.to_owned()));
    }
}
