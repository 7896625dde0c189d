//! `apiserver` as a separate process, with kube-apiserver's flags.

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Client, Launch, raw, wait_until, write_secret};
use futures::future::join_all;
use reqwest::Method;
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

pub(crate) fn openssl(directory: &Path, arguments: &str) {
    let output =
        Command::new("openssl").args(arguments.split(' ')).current_dir(directory).output().unwrap();
    assert!(
        output.status.success(),
        "openssl {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Writes `NAME.crt` and `NAME.key` of a new CA.
fn ca(directory: &Path, name: &str) {
    openssl(
        directory,
        &format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout {name}.key -out {name}.crt -subj /CN={name}"
        ),
    );
}

/// Writes `NAME.crt` and `NAME.key`, signed by a CA, with the given extensions.
fn signed(directory: &Path, ca: &str, name: &str, subject: &str, extensions: &str) {
    fs::write(directory.join(format!("{name}.ext")), extensions).unwrap();
    openssl(
        directory,
        &format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {name}.key -out {name}.csr -subj {subject}"
        ),
    );
    openssl(
        directory,
        &format!(
            "x509 -req -in {name}.csr -CA {ca}.crt -CAkey {ca}.key -CAcreateserial -days 2 -extfile {name}.ext -out {name}.crt"
        ),
    );
    fs::set_permissions(directory.join(format!("{name}.key")), fs::Permissions::from_mode(0o600))
        .unwrap();
}

fn identity(directory: &Path, name: &str) -> Vec<u8> {
    [
        fs::read(directory.join(format!("{name}.crt"))).unwrap(),
        fs::read(directory.join(format!("{name}.key"))).unwrap(),
    ]
    .concat()
}

/// Certificates of a server, clients and front proxies, each by its own CA; `stranger` is signed by
/// a CA that is not trusted for clients.
fn sign_all(path: &Path) {
    for name in ["serving-ca", "client-ca", "proxy-ca"] {
        ca(path, name);
    }
    let serving = "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n";
    let client = "extendedKeyUsage=clientAuth\n";
    signed(path, "serving-ca", "serving", "/CN=server", serving);
    signed(path, "client-ca", "alice", "/O=system:masters/CN=alice", client);
    signed(path, "proxy-ca", "proxy", "/CN=front-proxy", client);
    signed(path, "proxy-ca", "other-proxy", "/CN=other-proxy", client);
    signed(path, "serving-ca", "stranger", "/O=system:masters/CN=stranger", client);
}

#[tokio::test]
async fn fault_52_certificates_of_the_user_clients_and_front_proxies() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    sign_all(path);
    let flag = |name: &str, file: &str| format!("--{name}={}", path.join(file).display());
    let launch = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag(flag("tls-cert-file", "serving.crt"))
        .flag(flag("tls-private-key-file", "serving.key"))
        .flag(flag("client-ca-file", "client-ca.crt"))
        .flag("--requestheader-allowed-names=front-proxy")
        .flag("--requestheader-username-headers=X-Remote-User,X-Caller")
        .flag(flag("token-auth-file", "tokens.csv"));
    fs::write(path.join("tokens.csv"), "known,dave,u-dave\n").unwrap();
    fs::set_permissions(path.join("tokens.csv"), fs::Permissions::from_mode(0o600)).unwrap();
    let cluster =
        launch.clone().flag(flag("requestheader-client-ca-file", "proxy-ca.crt")).start().unwrap();
    let serving_ca = fs::read(path.join("serving-ca.crt")).unwrap();
    let client = |name: Option<&str>| {
        Client::new(
            cluster.url(),
            &serving_ca,
            name.map(|name| identity(path, name)).as_deref(),
            None,
        )
        .unwrap()
    };
    let whoami = async |client: &Client, headers: &[(&str, &str)]| {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let mut request = client
            .request(Method::POST, "/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        client.send(request.body(body.to_string())).await.unwrap()
    };
    let of = |answer: &ferrokube_testkit::ApiResponse| {
        answer.body["status"]["userInfo"]["username"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(of(&whoami(&client(Some("alice")), &[]).await), "alice");
    // Only the front proxy may set these headers.
    let remote = [("x-remote-user", "bob"), ("x-remote-group", "system:masters")];
    assert_eq!(of(&whoami(&client(Some("alice")), &remote).await), "alice");
    assert_eq!(of(&whoami(&client(Some("proxy")), &remote).await), "bob");
    assert_eq!(
        of(&whoami(&client(Some("proxy")), &[("x-caller", "carol")]).await),
        "carol",
        "whatever the header is called"
    );
    // Other proxies are refused unless they authenticate otherwise.
    assert_eq!(whoami(&client(Some("other-proxy")), &remote).await.status, 401);
    assert_eq!(
        of(&whoami(&client(Some("other-proxy")), &[remote[0], ("authorization", "Bearer known")])
            .await),
        "dave"
    );
    assert_eq!(whoami(&client(Some("stranger")), &[]).await.status, 401);
    assert_eq!(whoami(&client(None), &remote).await.status, 403);
    // The ConfigMap tells extension servers which CAs to trust.
    let info = client(Some("alice"))
        .get("/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication")
        .await
        .unwrap();
    let data = |key: &str| info.body["data"][key].as_str().unwrap_or_default().to_owned();
    assert!(
        data("client-ca-file")
            .contains(fs::read_to_string(path.join("client-ca.crt")).unwrap().trim()),
        "{}",
        info.text
    );
    let proxies = data("requestheader-client-ca-file");
    assert!(
        proxies.starts_with(fs::read_to_string(path.join("proxy-ca.crt")).unwrap().trim()),
        "{proxies}"
    );
    assert_eq!(
        proxies.matches("BEGIN CERTIFICATE").count(),
        2,
        "and this server's own, for the servers that it aggregates"
    );
    assert_eq!(
        (data("requestheader-username-headers"), data("requestheader-allowed-names")),
        (
            r#"["X-Remote-User","X-Caller"]"#.into(),
            r#"["front-proxy","front-proxy-client"]"#.into()
        )
    );
    drop(cluster);
    // A shared CA would let every client impersonate anyone.
    let refused =
        launch.flag(flag("requestheader-client-ca-file", "client-ca.crt")).start().unwrap_err();
    assert!(format!("{refused:#}").contains("share a key"), "{refused:#}");
}

#[tokio::test]
async fn without_anonymous_requests_need_credentials() {
    for role in ["apiserver", "all-in-one"] {
        let cluster =
            Launch::new(FERROKUBE).role(role).flag("--anonymous-auth=false").start().unwrap();
        let status = async |client: Client| client.get("/livez").await.unwrap().status;
        assert_eq!(status(cluster.anonymous().unwrap()).await, 401, "{role}");
        assert_eq!(status(cluster.admin().unwrap()).await, 200, "{role}");
        assert!(raw(&cluster, "h2").await.is_ok(), "{role}");
    }
}

#[tokio::test]
async fn service_account_tokens_have_the_issuer_and_audience_of_the_flags() {
    let launch = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag("--service-account-issuer=https://issuer.example")
        .flag("--api-audiences=one,two");
    let cluster = launch.start().unwrap();
    let admin = cluster.admin().unwrap();
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    assert_eq!(
        admin.post("/api/v1/namespaces/default/serviceaccounts", &account).await.unwrap().status,
        201
    );
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let token = admin
        .post("/api/v1/namespaces/default/serviceaccounts/robot/token", &request)
        .await
        .unwrap();
    assert_eq!(token.status, 201, "{}", token.text);
    assert_eq!(token.body["spec"]["audiences"], json!(["one", "two"]));
    let robot = cluster.with_token(token.body["status"]["token"].as_str().unwrap()).unwrap();
    let refused = robot.get("/api/v1/namespaces/default/secrets").await.unwrap();
    assert_eq!(refused.status, 403);
    assert!(refused.text.contains("system:serviceaccount:default:robot"), "{}", refused.text);
    let any = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("*/*"))]);
    let read = async |client: &Client, path: &str| {
        client.send(client.request(Method::GET, path).headers(any.clone())).await.unwrap()
    };
    let paths = ["/.well-known/openid-configuration", "/openid/v1/jwks"];
    // kube-apiserver's default binding lets service accounts read the keys; other users need to be
    // bound to the role.
    let discovery = read(&robot, paths[0]).await;
    assert_eq!(discovery.body["issuer"], "https://issuer.example", "{}", discovery.text);
    let keys = read(&robot, paths[1]).await;
    assert_eq!(keys.body["keys"].as_array().map(Vec::len), Some(1), "{}", keys.text);
    let anonymous = cluster.anonymous().unwrap();
    for (path, status) in paths.into_iter().zip([200, 403]) {
        assert_eq!(read(&anonymous, path).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn the_issuers_keys_are_public_on_request_only() {
    let cluster =
        Launch::new(FERROKUBE).role("apiserver").flag("--public-issuer-discovery").start().unwrap();
    let anonymous = cluster.anonymous().unwrap();
    for path in ["/.well-known/openid-configuration", "/openid/v1/jwks"] {
        let any = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("*/*"))]);
        assert_eq!(
            anonymous.send(anonymous.request(Method::GET, path).headers(any)).await.unwrap().status,
            200,
            "{path}"
        );
    }
    assert_eq!(anonymous.get("/openid/v2").await.unwrap().status, 403);
}

/// Fault 51: removing a token from the file revokes it.
#[tokio::test]
async fn fault_51_static_tokens_are_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens.csv");
    let replace = |text: &str, mode: u32| {
        let next = directory.path().join("next");
        fs::write(&next, text).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(mode)).unwrap();
        fs::rename(next, &path).unwrap();
    };
    replace("canary-one,alice,u,system:masters\n", 0o600);
    let cluster = Launch::new(FERROKUBE)
        .flag(format!("--token-auth-file={}", path.display()))
        .start()
        .unwrap();
    let status =
        async |token: &str| cluster.with_token(token).unwrap().get("/api").await.unwrap().status;
    let becomes = async |token: &str, code: u16| {
        wait_until("the file is read again", BOUND, || async {
            (status(token).await == code).then_some(()).ok_or_else(|| cluster.log())
        })
        .await;
    };
    assert_eq!((status("canary-one").await, status("canary-two").await), (200, 401));
    replace("canary-two,bob,u,system:masters\n", 0o644);
    cluster.wait_for_log("is open to others").await;
    assert_eq!(
        (status("canary-one").await, status("canary-two").await),
        (200, 401),
        "a file that others may write is not believed"
    );
    replace("canary-two\n", 0o600);
    cluster.wait_for_log("line 1 of the token file").await;
    assert_eq!(status("canary-one").await, 200);
    replace("canary-two,bob,u,system:masters\n", 0o600);
    becomes("canary-one", 401).await;
    assert_eq!(status("canary-two").await, 200);
    assert!(!cluster.log().contains("canary"), "no token is logged");
}

/// Fault 51: off by default, as in kube-apiserver.
#[tokio::test]
async fn fault_51_bootstrap_tokens_are_opt_in() {
    for (flags, code) in [(&[][..], 401), (&["--enable-bootstrap-token-auth"], 200)] {
        let launch = flags
            .iter()
            .fold(Launch::new(FERROKUBE).role("apiserver"), |launch, flag| launch.flag(*flag));
        let cluster = launch.start().unwrap();
        let data = json!({"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"});
        let metadata = json!({"name": "bootstrap-token-abcdef", "namespace": "kube-system"});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token", "metadata": metadata, "stringData": data});
        assert_eq!(
            cluster
                .admin()
                .unwrap()
                .post("/api/v1/namespaces/kube-system/secrets", &secret)
                .await
                .unwrap()
                .status,
            201
        );
        assert_eq!(
            cluster
                .with_token("abcdef.0123456789abcdef")
                .unwrap()
                .get("/api")
                .await
                .unwrap()
                .status,
            code,
            "{flags:?}"
        );
    }
}

#[tokio::test]
async fn service_account_token_lifetimes_are_capped() {
    for (flags, hours) in [(&[][..], 24), (&["--service-account-max-token-expiration=2h"], 2)] {
        let launch = flags
            .iter()
            .fold(Launch::new(FERROKUBE).role("apiserver"), |launch, flag| launch.flag(*flag));
        let cluster =
            launch.flag("--service-account-extend-token-expiration=false").start().unwrap();
        let admin = cluster.admin().unwrap();
        let account =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
        assert_eq!(
            admin
                .post("/api/v1/namespaces/default/serviceaccounts", &account)
                .await
                .unwrap()
                .status,
            201
        );
        let spec = json!({"expirationSeconds": 365 * 24 * 3600});
        let request =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let token = admin
            .post("/api/v1/namespaces/default/serviceaccounts/robot/token", &request)
            .await
            .unwrap();
        assert_eq!(
            (token.status, &token.body["spec"]["expirationSeconds"]),
            (201, &json!(hours * 3600)),
            "{}",
            token.text
        );
        let warning = token.headers["warning"].to_str().unwrap();
        assert!(warning.contains("shortened to"), "{warning}");
    }
}

/// Fault 51: a token is valid as long as its key, and keys rotate without a restart.
#[tokio::test]
async fn fault_51_token_keys_rotate_and_old_tokens_live_as_long_as_their_key_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    for name in ["one", "two"] {
        openssl(
            path,
            &format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {name}.key"),
        );
        openssl(path, &format!("pkey -in {name}.key -pubout -out {name}.pub"));
    }
    let read = |name: &str| fs::read(path.join(name)).unwrap();
    // Atomically, so that no half-written file is seen.
    let replace = |name: &str, bytes: &[u8]| {
        let next = path.join("next");
        fs::write(&next, bytes).unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(next, path.join(name)).unwrap();
    };
    replace("signing.key", &read("one.key"));
    replace("all.pub", &[read("one.pub"), read("two.pub")].concat());
    let launch = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag(format!("--service-account-signing-key-file={}", path.join("signing.key").display()));
    let cluster = launch
        .flag(format!("--service-account-key-file={}", path.join("all.pub").display()))
        .start()
        .unwrap();
    let admin = cluster.admin().unwrap();
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    assert_eq!(
        admin.post("/api/v1/namespaces/default/serviceaccounts", &account).await.unwrap().status,
        201
    );
    let issue = async || {
        let request =
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let answer = admin
            .post("/api/v1/namespaces/default/serviceaccounts/robot/token", &request)
            .await
            .unwrap();
        answer.body["status"]["token"].as_str().unwrap().to_owned()
    };
    let status =
        async |token: &str| cluster.with_token(token).unwrap().get("/api").await.unwrap().status;
    let head = |token: &str| token.split('.').next().unwrap().to_owned();
    let old = issue().await;
    assert_eq!(status(&old).await, 200);

    replace("signing.key", &read("two.key"));
    let new = wait_until("the new key signs", BOUND, || async {
        Some(issue().await).filter(|token| head(token) != head(&old)).ok_or_else(String::new)
    })
    .await;
    assert_eq!((status(&old).await, status(&new).await), (200, 200), "both keys are there");

    replace("all.pub", b"nonsense");
    cluster.wait_for_log("cannot reload").await;
    assert_eq!((status(&old).await, status(&new).await), (200, 200), "and changes nothing");

    replace("all.pub", &read("two.pub"));
    wait_until("the old key is gone", BOUND, || async {
        (status(&old).await == 401).then_some(()).ok_or_else(|| cluster.log())
    })
    .await;
    assert_eq!(status(&new).await, 200);
    assert!(!cluster.log().contains("PRIVATE"), "no key is logged");
}

#[tokio::test]
async fn events_are_limited_if_the_flags_say_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admission.json");
    let own = json!({"apiVersion": "eventratelimit.admission.k8s.io/v1alpha1",
        "kind": "Configuration", "limits": [{"type": "Namespace", "qps": 1, "burst": 1}]});
    let config = json!({"apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "EventRateLimit", "configuration": own}]});
    write_secret(&path, &config.to_string());
    let cluster = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag("--storage=memory")
        .flag("--enable-admission-plugins=EventRateLimit")
        .flag(format!("--admission-control-config-file={}", path.display()))
        .start()
        .unwrap();
    let admin = cluster.admin().unwrap();
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "e"},
        "involvedObject": {"namespace": "default"}, "type": "Normal", "reason": "R"});
    let creates = (0..60).map(|_| admin.post("/api/v1/namespaces/default/events", &event));
    let answers: Vec<_> = join_all(creates).await.into_iter().map(Result::unwrap).collect();
    assert!(answers.iter().any(|answer| answer.status == 201), "{}", answers[0].text);
    let refused = answers.iter().find(|answer| answer.status == 429).expect("60 in a minute");
    let message = "Too many requests: limit reached on type Namespace for key default";
    assert_eq!(refused.body["message"], message);
}
