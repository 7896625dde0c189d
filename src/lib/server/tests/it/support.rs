//! Control planes in memory, whose users are named by their tokens.

use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::json as codec;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_auth::{Authenticator, Credentials, Identity, Unauthenticated};
use ferrokube_server::{ControlPlane, ControlPlaneBuilder, RunningControlPlane, StorageConfig};
use http_body_util::BodyExt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tempfile::TempDir;

/// A token is the name of its user, in its own group: `system:masters` may do everything.
pub(crate) struct TokenGroups;

impl Authenticator for TokenGroups {
    fn authenticate(
        &self,
        credentials: &Credentials<'_>,
    ) -> Result<Option<Identity>, Unauthenticated> {
        let Some(name) = credentials.bearer else { return Ok(None) };
        let user = UserInfo {
            name: name.to_owned(),
            groups: vec![name.to_owned()],
            ..UserInfo::default()
        };
        Ok(Some(Identity::new(user, "test")))
    }
}

pub(crate) fn builder(directory: &TempDir) -> ControlPlaneBuilder {
    ControlPlane::builder()
        .data_dir(directory.path().join("data"))
        .storage(StorageConfig::memory())
        .listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .authenticator(|_| Arc::new(TokenGroups))
}

pub(crate) struct TestPlane {
    pub(crate) server: RunningControlPlane,
    pub(crate) directory: TempDir,
}

impl TestPlane {
    pub(crate) async fn start(
        choose: impl FnOnce(ControlPlaneBuilder) -> ControlPlaneBuilder,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::of(choose(builder(&directory)), directory).await
    }

    pub(crate) async fn of(builder: ControlPlaneBuilder, directory: TempDir) -> Self {
        Self { server: builder.build().unwrap().start().await.unwrap(), directory }
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        user: &str,
        body: &str,
    ) -> (u16, String) {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {user}"))
            .header("content-type", "application/json")
            .body(ferrokube_serve::full(body.to_owned()))
            .unwrap();
        let response = self.server.api().call(request).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        self.send("GET", path, "system:masters", "").await
    }

    pub(crate) async fn post(&self, path: &str, object: &Value) -> (u16, String) {
        self.send("POST", path, "system:masters", &object.to_string()).await
    }

    pub(crate) async fn json(&self, path: &str) -> Value {
        let (code, text) = self.get(path).await;
        assert_eq!(code, 200, "{path}: {text}");
        codec::read_value(text.as_bytes()).unwrap()
    }

    /// `plural.group` of everything in discovery, sorted.
    pub(crate) async fn resources(&self) -> Vec<String> {
        let mut paths = vec![("/api/v1".to_owned(), String::new())];
        for group in self.json("/apis").await["groups"].as_array().unwrap() {
            let name = group["name"].as_str().unwrap().to_owned();
            for version in group["versions"].as_array().unwrap() {
                let version = version["groupVersion"].as_str().unwrap();
                paths.push((format!("/apis/{version}"), name.clone()));
            }
        }
        let mut all = Vec::new();
        for (path, group) in paths {
            let (code, text) = self.get(&path).await;
            if code == 404 {
                continue;
            }
            let list = codec::read_value(text.as_bytes()).unwrap();
            for resource in list["resources"].as_array().unwrap() {
                let name = resource["name"].as_str().unwrap();
                if !name.contains('/') {
                    all.push(format!("{name}.{group}").trim_end_matches('.').to_owned());
                }
            }
        }
        all.sort();
        all
    }
}
