//! The sandbox image: no container uses it, but no pod starts without it.

use ferrokube_cri::{CriError, ImageSpec, ImageStatusRequest, Runtime, RuntimeStatusRequest};
use serde_json::Value;
use std::collections::BTreeSet;

/// Names and ids of the sandbox image, from the runtime's verbose status. Empty if the runtime pins
/// it.
pub(super) async fn sandbox_images(runtime: &Runtime) -> Result<BTreeSet<String>, CriError> {
    let info = runtime.status(RuntimeStatusRequest { verbose: true }).await?.info;
    let mut names = BTreeSet::new();
    for text in info.values() {
        if let Ok(value) = serde_json::from_str(text) {
            find(&value, &mut names);
        }
    }
    // The runtime resolves short names.
    let mut found = names.clone();
    for image in names {
        let spec = Some(ImageSpec { image, ..ImageSpec::default() });
        let request = ImageStatusRequest { image: spec, verbose: false };
        found.extend(runtime.image_status(request).await?.image.map(|image| image.id));
    }
    Ok(found)
}

/// containerd has `sandboxImage`, or `pinnedImages: {sandbox: ..}`; CRI-O `pause_image`.
fn find(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let key = key.replace('_', "").to_ascii_lowercase();
                match (&*key, value) {
                    ("sandboximage" | "pauseimage", Value::String(name)) if !name.is_empty() => {
                        names.insert(name.clone());
                    }
                    ("pinnedimages", Value::Object(images)) => {
                        names.extend(images.values().filter_map(Value::as_str).map(str::to_owned));
                    }
                    _ => find(value, names),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| find(item, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn runtimes_name_the_image_in_several_ways() {
        let mut names = BTreeSet::new();
        find(&json!({"sandboxImage": "r.io/a:1", "registry": {"x": ["y"]}}), &mut names);
        find(&json!({"cri": [{"pinnedImages": {"sandbox": "r.io/b:1"}}]}), &mut names);
        find(&json!({"crio": {"image": {"pause_image": "r.io/c:1"}}}), &mut names);
        find(&json!({"sandboxImage": "", "pauseImage": 1}), &mut names);
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["r.io/a:1", "r.io/b:1", "r.io/c:1"]);
    }
}
