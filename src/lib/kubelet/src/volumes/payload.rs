//! The files of a volume from config maps, secrets, the downward API, or a projection of several.

use super::atomic::{VolumeFile, VolumeFiles, is_inside};
use crate::environment;
use crate::fields::{self, NodeFacts};
use crate::objects::{PodObjectError, PodObjects};
use crate::pod::NodePod;
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Volume};
use std::collections::BTreeMap;

const DEFAULT_MODE: i32 = 0o644;
/// Mode of a token file in a pod with an fsGroup.
const GROUP_TOKEN_MODE: u32 = 0o600;

/// Mapping of keys to files.
struct KeySelection<'a> {
    kind: &'static str,
    items: Option<&'a [KeyToPath]>,
    mode: i32,
    is_optional: bool,
}

/// The files; `None` for volumes that are plain directories.
pub(super) async fn payload(
    objects: &dyn PodObjects,
    pod: &NodePod,
    volume: &Volume,
    facts: &NodeFacts,
) -> Result<Option<VolumeFiles>, PodObjectError> {
    let namespace = pod.namespace.as_str();
    if let Some(source) = &volume.config_map {
        let is_optional = source.optional.unwrap_or(false);
        let data = environment::config_map(objects, namespace, &source.name, is_optional).await?;
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let items = source.items.as_deref();
        let keys = KeySelection { kind: "configmap", items, mode, is_optional };
        return keys.files(data).map(Some);
    }
    if let Some(source) = &volume.secret {
        let is_optional = source.optional.unwrap_or(false);
        let name = source.secret_name.as_deref().unwrap_or_default();
        let data = environment::secret(objects, namespace, name, is_optional).await?;
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let items = source.items.as_deref();
        let keys = KeySelection { kind: "secret", items, mode, is_optional };
        return keys.files(data).map(Some);
    }
    if let Some(source) = &volume.downward_api {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let items = source.items.as_deref().unwrap_or_default();
        return downward(pod, facts, items, mode).map(Some);
    }
    let Some(source) = &volume.projected else { return Ok(None) };
    let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
    let mut files = VolumeFiles::new();
    for part in source.sources.iter().flatten() {
        if let Some(source) = &part.config_map {
            let is_optional = source.optional.unwrap_or(false);
            let data =
                environment::config_map(objects, namespace, &source.name, is_optional).await?;
            let items = source.items.as_deref();
            let keys = KeySelection { kind: "configmap", items, mode, is_optional };
            files.extend(keys.files(data)?);
        }
        if let Some(source) = &part.secret {
            let is_optional = source.optional.unwrap_or(false);
            let data = environment::secret(objects, namespace, &source.name, is_optional).await?;
            let items = source.items.as_deref();
            let keys = KeySelection { kind: "secret", items, mode, is_optional };
            files.extend(keys.files(data)?);
        }
        if let Some(source) = &part.service_account_token {
            let token = objects.token(pod, source).await?.and_then(|granted| granted.token);
            let token = token.ok_or_else(|| {
                let name = pod.service_account().to_owned();
                PodObjectError::Missing { kind: "serviceaccount", name }
            })?;
            // As in kubelet, readable by the group only.
            let mode = pod.fs_group().map_or(permissions(mode), |_| GROUP_TOKEN_MODE);
            let file = VolumeFile { bytes: token.into_bytes(), mode };
            files.insert(checked(&source.path)?, file);
        }
        if let Some(source) = &part.downward_api {
            let items = source.items.as_deref().unwrap_or_default();
            files.extend(downward(pod, facts, items, mode)?);
        }
    }
    Ok(Some(files))
}

impl KeySelection<'_> {
    /// All keys, or the selected ones at their paths.
    fn files(&self, mut data: BTreeMap<String, Vec<u8>>) -> Result<VolumeFiles, PodObjectError> {
        let Some(items) = self.items.filter(|items| !items.is_empty()) else {
            let file =
                |(key, bytes): (String, Vec<u8>)| Ok((checked(&key)?, self.file(bytes, None)));
            return data.into_iter().map(file).collect();
        };
        let mut files = VolumeFiles::new();
        for item in items {
            match data.get_mut(&item.key) {
                Some(bytes) => {
                    let file = self.file(bytes.clone(), item.mode);
                    files.insert(checked(&item.path)?, file);
                }
                None if self.is_optional => {}
                None => {
                    let key = item.key.clone();
                    return Err(PodObjectError::MissingItem { kind: self.kind, key });
                }
            }
        }
        Ok(files)
    }

    fn file(&self, bytes: Vec<u8>, mode: Option<i32>) -> VolumeFile {
        VolumeFile { bytes, mode: permissions(mode.unwrap_or(self.mode)) }
    }
}

fn permissions(mode: i32) -> u32 {
    mode.unsigned_abs() & 0o777
}

fn checked(path: &str) -> Result<String, PodObjectError> {
    if is_inside(path) {
        return Ok(path.to_owned());
    }
    Err(PodObjectError::Invalid(format!("invalid path {path:?}")))
}

fn downward(
    pod: &NodePod,
    facts: &NodeFacts,
    items: &[DownwardAPIVolumeFile],
    mode: i32,
) -> Result<VolumeFiles, PodObjectError> {
    let mut files = VolumeFiles::new();
    for item in items {
        let text = match (&item.field_ref, &item.resource_field_ref) {
            (Some(selector), _) => fields::field(pod, facts, &selector.field_path)?,
            (None, Some(selector)) => fields::resource(pod, facts, None, selector)?,
            (None, None) => continue,
        };
        let mode = permissions(item.mode.unwrap_or(mode));
        files.insert(checked(&item.path)?, VolumeFile { bytes: text.into_bytes(), mode });
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::ObjectFuture;
    use k8s_openapi::api::authentication::v1::TokenRequestStatus;
    use k8s_openapi::api::core::v1::{
        ConfigMap, Secret, ServiceAccount, ServiceAccountTokenProjection,
    };
    use serde_json::json;

    /// A config map and a secret of the name `there`.
    struct TestObjects;

    impl PodObjects for TestObjects {
        fn config_map<'a>(&'a self, _: &'a str, name: &'a str) -> ObjectFuture<'a, ConfigMap> {
            let object = json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": "AwM="}});
            let found = (name == "there").then(|| serde_json::from_value(object).unwrap());
            Box::pin(std::future::ready(Ok(found)))
        }

        fn secret<'a>(&'a self, _: &'a str, name: &'a str) -> ObjectFuture<'a, Secret> {
            let object = json!({"data": {"key": "czNjcmV0"}});
            let found = (name == "there").then(|| serde_json::from_value(object).unwrap());
            Box::pin(std::future::ready(Ok(found)))
        }

        fn service_account<'a>(
            &'a self,
            _: &'a str,
            _: &'a str,
        ) -> ObjectFuture<'a, ServiceAccount> {
            Box::pin(std::future::ready(Ok(None)))
        }

        fn token<'a>(
            &'a self,
            pod: &'a NodePod,
            wanted: &'a ServiceAccountTokenProjection,
        ) -> ObjectFuture<'a, TokenRequestStatus> {
            let text = format!("of {} for {:?}", pod.service_account(), wanted.audience);
            let granted = TokenRequestStatus { token: Some(text), expiration_timestamp: None };
            Box::pin(std::future::ready(Ok(Some(granted))))
        }
    }

    async fn files(volume: &str) -> Result<Option<VolumeFiles>, PodObjectError> {
        files_for("", volume).await
    }

    async fn files_for(context: &str, volume: &str) -> Result<Option<VolumeFiles>, PodObjectError> {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p, labels: {{l: x}}}}, spec: \
             {{securityContext: {{{context}}}, containers: [{{name: a, image: i}}], volumes: \
             [{{name: v, {volume}}}]}}}}"
        );
        let pod = NodePod::from_file(text.as_bytes(), "n").unwrap();
        let volume = pod.spec.volumes.clone().unwrap().remove(0);
        payload(&TestObjects, &pod, &volume, &NodeFacts::default()).await
    }

    async fn texts(volume: &str) -> Vec<(String, String, u32)> {
        let files = files(volume).await.unwrap().unwrap().into_iter();
        files
            .map(|(path, file)| (path, String::from_utf8(file.bytes).unwrap(), file.mode))
            .collect()
    }

    #[tokio::test]
    async fn keys_become_files_all_or_those_that_are_chosen() {
        let all = texts("configMap: {name: there}").await;
        let paths: Vec<_> = all.iter().map(|(path, _, mode)| (path.as_str(), *mode)).collect();
        assert_eq!(paths, [("a", 0o644), ("b", 0o644), ("c", 0o644)]);
        let one = "configMap: {name: there, defaultMode: 256, items: [{key: b, path: d/x}]}";
        assert_eq!(texts(one).await, [("d/x".to_owned(), "2".to_owned(), 0o400)]);
        let secret = texts("secret: {secretName: there}").await;
        assert_eq!(secret, [("key".to_owned(), "s3cret".to_owned(), 0o644)]);
    }

    #[tokio::test]
    async fn missing_sources_are_errors_unless_optional() {
        let why = async |volume| files(volume).await.unwrap_err().to_string();
        assert_eq!(why("configMap: {name: none}").await, "configmap \"none\" not found");
        assert_eq!(why("secret: {secretName: none}").await, "secret \"none\" not found");
        let key = "configMap: {name: there, items: [{key: z, path: z}]}";
        assert_eq!(why(key).await, "references non-existent configmap key: z");
        assert!(texts("configMap: {name: none, optional: true}").await.is_empty());
        let path = "configMap: {name: there, items: [{key: a, path: ../z}]}";
        assert_eq!(why(path).await, "invalid path \"../z\"");
    }

    #[tokio::test]
    async fn a_token_is_for_the_group_of_the_volumes() {
        let token = "projected: {sources: [{serviceAccountToken: {path: t}}]}";
        for (context, mode) in [("", 0o644), ("fsGroup: 7", 0o600)] {
            assert_eq!(files_for(context, token).await.unwrap().unwrap()["t"].mode, mode);
        }
    }

    #[tokio::test]
    async fn a_projected_volume_is_the_sum_of_its_sources() {
        let all = texts(
            "projected: {sources: [{configMap: {name: there, items: [{key: a, path: a}]}}, \
             {secret: {name: there}}, {downwardAPI: {items: [{path: l, fieldRef: {fieldPath: \
             metadata.labels}}]}}, {serviceAccountToken: {path: t, audience: x}}]}",
        )
        .await;
        let texts: Vec<_> = all.iter().map(|(path, text, _)| (path.as_str(), &**text)).collect();
        assert_eq!(
            texts,
            [("a", "1"), ("key", "s3cret"), ("l", "l=\"x\""), ("t", "of default for Some(\"x\")")]
        );
    }
}
