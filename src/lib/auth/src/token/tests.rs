//! Refused tokens; token requests.

use super::claims::unix;
use super::{SecretToken, ServiceAccountTokens, TokenConfig, TokenKeys};
use crate::authenticate::{Bearer, TokenAuthenticator, TokenIdentity, Unauthenticated};
use crate::testing::{FakeClock, NOW, context, delete, put, store};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::status::Failure;
use ferrokube_apimachinery::work;
use ferrokube_storage::Store;
use rcgen::{KeyPair, PublicKeyData};
use ring::rand::SystemRandom;
use ring::{hmac, signature};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

const API: &str = "https://kubernetes.default.svc";

struct Fixture {
    store: Store,
    clock: FakeClock,
    pem: String,
    tokens: ServiceAccountTokens,
}

fn config() -> TokenConfig {
    TokenConfig {
        issuers: vec![API.into(), "https://old.example.com".into()],
        api_audiences: vec![API.into()],
        jwks_uri: String::new(),
        max_life: None,
    }
}

fn account(uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot", "namespace": "n", "uid": uid}})
}

impl Fixture {
    async fn new() -> Self {
        let (store, clock) = (store(), FakeClock::new());
        put(&store, "serviceaccounts", account("u-robot")).await;
        let pem = KeyPair::generate().expect("key").serialize_pem();
        let keys = TokenKeys::from_pem(pem.as_bytes(), &[]).expect("keys");
        let tokens = ServiceAccountTokens::new(config(), keys, store.clone(), clock.clock());
        Self { store, clock, pem, tokens }
    }

    fn request(&self, spec: Value) -> Result<Document, Failure> {
        let request = Document::from_value(json!({"spec": spec})).expect("an object");
        self.tokens.inner.issue(&context(&self.clock), "n", "robot", request)
    }

    fn token(&self, spec: Value) -> String {
        self.request(spec).expect("issued").str(&["status", "token"]).expect("a token").to_owned()
    }

    fn ask(&self, token: &str, audience: &str) -> Result<TokenIdentity, Unauthenticated> {
        Bearer::new(vec![Arc::new(self.tokens.clone())], vec![API.into()])
            .identify(token, &[audience.to_owned()])
    }

    fn is_valid(&self, token: &str) -> bool {
        self.ask(token, API).is_ok()
    }

    /// A token with changed claims, signed with the real key.
    fn forged(&self, change: impl FnOnce(&mut Document)) -> String {
        self.forged_with_header(|_| (), change)
    }

    fn forged_with_header(
        &self,
        header: impl FnOnce(&mut Document),
        claims: impl FnOnce(&mut Document),
    ) -> String {
        let token = self.token(json!({}));
        let mut parts = token.split('.').map(|part| URL_SAFE_NO_PAD.decode(part).expect("base64"));
        let mut read = || {
            Document::from_value(
                ferrokube_apimachinery::json::read_value(&parts.next().expect("a part"))
                    .expect("JSON"),
            )
            .expect("an object")
        };
        let (mut new_header, mut new_claims) = (read(), read());
        header(&mut new_header);
        claims(&mut new_claims);
        self.sign(&new_header.into_value(), &new_claims.into_value())
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let text = format!(
            "{}.{}",
            URL_SAFE_NO_PAD.encode(header.to_string()),
            URL_SAFE_NO_PAD.encode(claims.to_string())
        );
        let der = KeyPair::from_pem(&self.pem).expect("key").serialize_der();
        let random = SystemRandom::new();
        let key = signature::EcdsaKeyPair::from_pkcs8(
            &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
            &der,
            &random,
        )
        .expect("key");
        let signature = key.sign(&random, text.as_bytes()).expect("signature");
        format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

#[tokio::test]
async fn a_token_authenticates_its_account() {
    let fixture = Fixture::new().await;
    let known = fixture.ask(&fixture.token(json!({})), API).expect("valid");
    let user = known.identity.user;
    assert_eq!(user.name, "system:serviceaccount:n:robot");
    assert_eq!(user.uid, "u-robot");
    assert_eq!(
        user.groups,
        ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"]
    );
    assert!(user.extra["authentication.kubernetes.io/credential-id"][0].starts_with("JTI="));
    assert_eq!(known.identity.method, "service-account");
}

#[tokio::test]
async fn a_token_request_is_answered_as_by_kube_apiserver() {
    let fixture = Fixture::new().await;
    let answer = fixture.request(json!({})).expect("issued");
    assert_eq!(answer.uid(), "u-robot");
    assert_eq!((answer.name(), answer.namespace()), ("robot", "n"));
    assert_eq!(answer.get(&["spec", "expirationSeconds"]), Some(&json!(3600)));
    assert_eq!(answer.get(&["spec", "boundObjectRef"]), Some(&Value::Null));
    assert_eq!(answer.get(&["spec", "audiences"]), Some(&json!([API])));
    let expires = ferrokube_apimachinery::time::parse_rfc3339(
        answer.str(&["status", "expirationTimestamp"]).expect("a time"),
    )
    .expect("a time");
    assert_eq!(unix(expires), i64::try_from(NOW).expect("small") + 3600);
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let fixture = Fixture::new().await;
    let code = |spec: Value| fixture.request(spec).expect_err("refused").code;
    assert_eq!(code(json!({"expirationSeconds": 599})), 422);
    assert_eq!(code(json!({"expirationSeconds": (1_i64 << 32) + 1})), 422);
    assert_eq!(
        code(json!({"boundObjectRef": {"kind": "ConfigMap", "apiVersion": "v1", "name": "x"}})),
        400
    );
    assert_eq!(
        code(json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "missing"}})),
        404
    );
    let issue = |name: &str, metadata: Value| {
        let request =
            Document::from_value(json!({"metadata": metadata, "spec": {}})).expect("an object");
        fixture
            .tokens
            .inner
            .issue(&context(&fixture.clock), "n", name, request)
            .expect_err("refused")
    };
    assert_eq!(issue("missing", json!({})).code, 404);
    assert_eq!(issue("robot", json!({"namespace": "other"})).code, 400);
    assert_eq!(issue("robot", json!({"uid": "other"})).code, 409);
    let renamed = issue("robot", json!({"name": "other"}));
    assert_eq!(renamed.code, 422);
    assert_eq!(renamed.details.expect("details").causes[0].field, "metadata.name");
}

#[tokio::test]
async fn fault_51_wrong_audiences_and_times_are_refused() {
    let fixture = Fixture::new().await;
    let other = fixture.token(json!({"audiences": ["vault"]}));
    assert!(!fixture.is_valid(&other));
    assert_eq!(
        fixture.ask(&other, "vault").expect("valid there").audiences,
        Some(vec!["vault".to_owned()])
    );
    let token = fixture.token(json!({"expirationSeconds": 600}));
    assert!(fixture.is_valid(&token));
    fixture.clock.forward(600 + 61);
    assert!(!fixture.is_valid(&token), "expired");
    let future = fixture.forged(|claims| claims.set(&["nbf"], unix(fixture.clock.now()) + 120));
    assert!(!fixture.is_valid(&future));
    fixture.clock.forward(60);
    assert!(fixture.is_valid(&future));
}

/// Clocks of servers are never the same.
#[tokio::test]
async fn tokens_of_servers_whose_clocks_are_a_minute_apart_are_valid() {
    let fixture = Fixture::new().await;
    let ahead = fixture.forged(|claims| claims.set(&["nbf"], unix(fixture.clock.now()) + 59));
    assert!(fixture.is_valid(&ahead));
    let token = fixture.token(json!({"expirationSeconds": 600}));
    fixture.clock.forward(600 + 59);
    assert!(fixture.is_valid(&token), "of a server that is behind");
}

#[tokio::test]
async fn fault_51_required_claims() {
    let fixture = Fixture::new().await;
    assert!(fixture.is_valid(&fixture.forged(|_| ())), "the forger's signature is valid");
    for missing in [
        &["aud"][..],
        &["exp"],
        &["sub"],
        &["iss"],
        &["kubernetes.io"],
        &["kubernetes.io", "serviceaccount"],
        &["kubernetes.io", "namespace"],
    ] {
        let token = fixture.forged(|claims| drop(claims.remove(missing)));
        assert!(!fixture.is_valid(&token), "{missing:?}");
    }
    let wrong: [(&[&str], Value); 7] = [
        (&["aud"], json!([])),
        (&["aud"], json!(7)),
        (&["exp"], json!("never")),
        (&["sub"], json!("system:serviceaccount:kube-system:admin")),
        (&["iss"], json!("https://another.cluster")),
        (&["kubernetes.io", "serviceaccount", "uid"], json!("other")),
        (&["kubernetes.io", "pod"], json!("robot")),
    ];
    for (path, value) in wrong {
        assert!(
            !fixture.is_valid(&fixture.forged(|claims| claims.set(path, value.clone()))),
            "{path:?} {value}"
        );
    }
    assert!(
        fixture.is_valid(&fixture.forged(|claims| claims.set(&["iss"], "https://old.example.com"))),
        "an accepted older issuer"
    );
}

#[tokio::test]
async fn fault_51_algorithms_and_headers() {
    let fixture = Fixture::new().await;
    let token = fixture.token(json!({}));
    let [header, claims, signature] =
        <[&str; 3]>::try_from(token.split('.').collect::<Vec<_>>()).expect("three parts");
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    assert!(!fixture.is_valid(&format!("{}.{claims}.", encode("{\"alg\":\"none\"}"))));
    assert!(!fixture.is_valid(&format!("{}.{claims}.{signature}", encode("{\"alg\":\"none\"}"))));
    let hs256 = format!("{}.{claims}", encode("{\"alg\":\"HS256\"}"));
    for secret in
        [fixture.pem.as_bytes(), KeyPair::from_pem(&fixture.pem).expect("key").der_bytes()]
    {
        let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), hs256.as_bytes());
        assert!(!fixture.is_valid(&format!("{hs256}.{}", URL_SAFE_NO_PAD.encode(mac))));
    }
    for bad in [json!("RS256"), json!("ES384"), json!(7), Value::Null] {
        assert!(
            !fixture.is_valid(
                &fixture.forged_with_header(|header| header.set(&["alg"], bad.clone()), |_| ())
            ),
            "{bad}"
        );
    }
    assert!(!fixture.is_valid(
        &fixture.forged_with_header(|header| header.set(&["crit"], json!(["x"])), |_| ())
    ));
    assert!(
        fixture
            .is_valid(&fixture.forged_with_header(|header| drop(header.remove(&["kid"])), |_| ())),
        "without an id every key is tried"
    );
    assert!(!fixture.is_valid(&format!("{header}.{claims}")));
    assert!(!fixture.is_valid(&format!("{token}.x")));
    assert!(!fixture.is_valid(&format!(
        "{}.{claims}.{signature}",
        encode("{\"alg\":\"none\",\"alg\":\"ES256\"}")
    )));
}

#[tokio::test]
async fn fault_51_kid_is_only_compared() {
    let fixture = Fixture::new().await;
    for kid in [
        json!("../../../../dev/null"),
        json!("/etc/passwd"),
        json!("'; drop table keys"),
        json!(""),
        json!(1),
        json!(["x"]),
    ] {
        assert!(
            !fixture.is_valid(
                &fixture.forged_with_header(|header| header.set(&["kid"], kid.clone()), |_| ())
            ),
            "{kid}"
        );
    }
}

#[tokio::test]
async fn fault_51_tampered_and_huge() {
    let fixture = Fixture::new().await;
    let token = fixture.token(json!({}));
    assert!(fixture.is_valid(&token));
    for at in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        if bytes != token.as_bytes() {
            assert!(
                !fixture.is_valid(std::str::from_utf8(&bytes).expect("ASCII")),
                "changed at {at}"
            );
        }
    }
    let huge = fixture.forged(|claims| claims.set(&["padding"], "x".repeat(17_000)));
    assert!(!fixture.is_valid(&huge));
    let deep = fixture.forged(|claims| claims.set(&["padding"], "[".repeat(5_000)));
    assert!(fixture.is_valid(&deep), "long is not deep");
    assert!(!fixture.is_valid(&format!(
        "{}.{}.x",
        "e30",
        URL_SAFE_NO_PAD.encode("[".repeat(8_000))
    )));
}

#[tokio::test]
async fn fault_51_dies_with_its_account() {
    let fixture = Fixture::new().await;
    let token = fixture.token(json!({}));
    assert!(fixture.is_valid(&token));
    delete(&fixture.store, "serviceaccounts", "n", "robot").await;
    assert!(!fixture.is_valid(&token), "at once, despite the cache");
    put(&fixture.store, "serviceaccounts", account("u-other")).await;
    assert!(!fixture.is_valid(&token), "another account of the same name");
}

#[tokio::test]
async fn fault_51_dies_with_its_pod() {
    let fixture = Fixture::new().await;
    let pod = |extra: Value| {
        let mut pod = Document::from_value(
            json!({"metadata": {"name": "p", "namespace": "n", "uid": "u-p"}, "spec": {"serviceAccountName": "robot", "nodeName": "node"}}),
        );
        if let (Ok(pod), Some(at)) = (&mut pod, extra.as_str()) {
            pod.set(&["metadata", "deletionTimestamp"], at);
        }
        pod.expect("an object").into_value()
    };
    put(&fixture.store, "pods", pod(Value::Null)).await;
    put(&fixture.store, "minions", json!({"metadata": {"name": "node", "uid": "u-node"}})).await;
    let reference = |uid: &str| json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": uid}});
    assert_eq!(fixture.request(reference("other")).expect_err("refused").code, 409);
    let token = fixture.token(reference("u-p"));
    let extra = &fixture.ask(&token, API).expect("valid").identity.user.extra;
    for (key, value) in
        [("pod-name", "p"), ("pod-uid", "u-p"), ("node-name", "node"), ("node-uid", "u-node")]
    {
        assert_eq!(extra[&format!("authentication.kubernetes.io/{key}")], [value]);
    }
    let deleted = ferrokube_apimachinery::time::rfc3339_seconds(fixture.clock.now());
    put(&fixture.store, "pods", pod(json!(deleted))).await;
    assert!(fixture.is_valid(&token), "a pod that is being deleted keeps its token for a minute");
    fixture.clock.forward(61);
    assert!(!fixture.is_valid(&token));
    put(&fixture.store, "pods", json!({"metadata": {"name": "p", "namespace": "n", "uid": "u-new"}, "spec": {"serviceAccountName": "other"}})).await;
    assert!(!fixture.is_valid(&token));
    for uid in ["u-new", "other"] {
        assert_eq!(fixture.request(reference(uid)).expect_err("another account's pod").code, 400);
    }
}

#[tokio::test]
async fn fault_51_rotated_keys() {
    let fixture = Fixture::new().await;
    let old = fixture.token(json!({}));
    assert!(fixture.is_valid(&old));
    let (new_key, public) = (
        KeyPair::generate().expect("key"),
        KeyPair::from_pem(&fixture.pem).expect("key").public_key_pem(),
    );
    let both = TokenKeys::from_pem(new_key.serialize_pem().as_bytes(), &[public.as_bytes()])
        .expect("keys");
    fixture.tokens.replace_keys(both);
    let new = fixture.token(json!({}));
    assert!(fixture.is_valid(&old) && fixture.is_valid(&new));
    let keys: Value =
        ferrokube_apimachinery::json::read_value(&fixture.tokens.jwks()).expect("JSON");
    assert_eq!(keys["keys"].as_array().expect("keys").len(), 2);
    fixture
        .tokens
        .replace_keys(TokenKeys::from_pem(new_key.serialize_pem().as_bytes(), &[]).expect("keys"));
    assert!(!fixture.is_valid(&old), "despite the cache");
    assert!(fixture.is_valid(&new));
}

/// kube-apiserver takes the key of a certificate; envtest passes one.
#[tokio::test]
async fn a_certificate_verifies_the_tokens_of_its_key() {
    let fixture = Fixture::new().await;
    let token = fixture.token(json!({}));
    let certificate = |key: &KeyPair| {
        rcgen::CertificateParams::default().self_signed(key).expect("a certificate").pem()
    };
    let replace = |verifying: &str| {
        let signing = KeyPair::generate().expect("key").serialize_pem();
        TokenKeys::from_pem(signing.as_bytes(), &[verifying.as_bytes()])
            .map(|keys| fixture.tokens.replace_keys(keys))
    };
    replace(&certificate(&KeyPair::generate().expect("key"))).expect("a key");
    assert!(!fixture.is_valid(&token));
    replace(&certificate(&KeyPair::from_pem(&fixture.pem).expect("key"))).expect("a key");
    assert!(fixture.is_valid(&token));
    let other = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("key");
    replace(&certificate(&other)).expect_err("neither P-256 nor RSA");
}

fn openssl(arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("openssl");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("openssl");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("written");
    String::from_utf8(child.wait_with_output().expect("openssl").stdout).expect("PEM")
}

/// kubeadm and many test suites make RSA keys.
#[tokio::test]
async fn fault_51_rsa_keys_sign_and_verify_rs256_only() {
    let fixture = Fixture::new().await;
    let old = fixture.token(json!({}));
    let pkcs1 = openssl(&["genrsa", "-traditional", "2048"], "");
    let pkcs8 = openssl(&["pkcs8", "-topk8", "-nocrypt"], &pkcs1);
    let public = openssl(&["rsa", "-pubout"], &pkcs1);
    assert!(pkcs1.contains("BEGIN RSA PRIVATE KEY") && pkcs8.contains("BEGIN PRIVATE KEY"));
    let keys = |signing: &str| {
        TokenKeys::from_pem(signing.as_bytes(), &[public.as_bytes(), fixture.pem.as_bytes()])
    };
    let read = |bytes: &[u8]| ferrokube_apimachinery::json::read_value(bytes).expect("JSON");
    let takes_long = || fixture.tokens.inner.long_micros("n", &Document::new()).is_some();
    for form in [&pkcs1, &pkcs8] {
        fixture.tokens.replace_keys(keys(form).expect("an RSA key"));
        assert!(takes_long(), "it is signed off the workers");
        let new = fixture.token(json!({}));
        assert!(fixture.is_valid(&old) && fixture.is_valid(&new));
        let [header, claims, signature] =
            <[&str; 3]>::try_from(new.split('.').collect::<Vec<_>>()).expect("three parts");
        let header = read(&URL_SAFE_NO_PAD.decode(header).expect("base64"));
        assert_eq!(header["alg"], "RS256");
        let jwks = read(&fixture.tokens.jwks());
        let jwks = jwks["keys"].as_array().expect("keys");
        // The public key is that of the signing key, and has its id.
        assert_eq!((jwks.len(), &jwks[0]["kid"]), (2, &header["kid"]));
        assert_eq!((&jwks[0]["kty"], &jwks[0]["e"]), (&json!("RSA"), &json!("AQAB")));
        assert_eq!(jwks[0]["n"].as_str().map(str::len), Some(342));
        let discovery = read(&fixture.tokens.discovery_document());
        assert_eq!(discovery["id_token_signing_alg_values_supported"], json!(["ES256", "RS256"]));
        for algorithm in ["ES256", "RS384", "RS512", "PS256", "HS256", "none"] {
            let mut other = header.clone();
            other["alg"] = json!(algorithm);
            let other = URL_SAFE_NO_PAD.encode(other.to_string());
            assert!(!fixture.is_valid(&format!("{other}.{claims}.{signature}")), "{algorithm}");
        }
        // After a rotation to another algorithm.
        fixture.tokens.replace_keys(
            TokenKeys::from_pem(fixture.pem.as_bytes(), &[public.as_bytes()]).expect("keys"),
        );
        assert!(fixture.is_valid(&old) && fixture.is_valid(&new) && !takes_long());
    }
    let small = openssl(&["genrsa", "-traditional", "1024"], "");
    assert!(small.contains("BEGIN RSA PRIVATE KEY"));
    keys(&small).expect_err("too small");
}

#[tokio::test]
async fn discovery() {
    let fixture = Fixture::new().await;
    let document: Value =
        ferrokube_apimachinery::json::read_value(&fixture.tokens.discovery_document())
            .expect("JSON");
    assert_eq!(document["issuer"], API);
    assert_eq!(document["jwks_uri"], format!("{API}/openid/v1/jwks"));
    let keys: Value =
        ferrokube_apimachinery::json::read_value(&fixture.tokens.jwks()).expect("JSON");
    let point = [
        URL_SAFE_NO_PAD.decode(keys["keys"][0]["x"].as_str().expect("x")),
        URL_SAFE_NO_PAD.decode(keys["keys"][0]["y"].as_str().expect("y")),
    ];
    let der = KeyPair::from_pem(&fixture.pem).expect("key").der_bytes().to_vec();
    assert_eq!(der[1..], point.map(|half| half.expect("base64")).concat());
}

#[tokio::test]
async fn fault_54_keys_and_tokens_are_not_in_debug_or_errors() {
    let fixture = Fixture::new().await;
    let token = fixture.token(json!({}));
    let shown = format!("{:?} {:?}", fixture.tokens, fixture.ask(&token, API));
    assert!(
        !shown.contains(&token) && !shown.contains(token.rsplit('.').next().expect("a signature"))
    );
    let canary = fixture.pem.replace("PRIVATE KEY", "EC PRIVATE KEY");
    let error = TokenKeys::from_pem(canary.as_bytes(), &[]).expect_err("refused");
    assert!(!format!("{error} {error:?}").contains(fixture.pem.lines().nth(1).expect("a line")));
}

#[tokio::test]
async fn the_longest_life_is_bounded() {
    let fixture = Fixture::new().await;
    let keys = TokenKeys::from_pem(fixture.pem.as_bytes(), &[]).expect("keys");
    let config = TokenConfig { max_life: Some(std::time::Duration::from_secs(7_200)), ..config() };
    let tokens =
        ServiceAccountTokens::new(config, keys, fixture.store.clone(), fixture.clock.clock());
    let context = context(&fixture.clock);
    let request =
        Document::from_value(json!({"spec": {"expirationSeconds": 100_000}})).expect("an object");
    let answer = tokens.inner.issue(&context, "n", "robot", request).expect("issued");
    assert_eq!(answer.get(&["spec", "expirationSeconds"]), Some(&json!(7200)));
    assert_eq!(context.take_warnings().len(), 1);
}

#[tokio::test]
async fn fault_51_a_token_in_a_secret_is_valid_as_long_as_the_secret_holds_it() {
    let fixture = Fixture::new().await;
    let keys = TokenKeys::from_pem(fixture.pem.as_bytes(), &[]).expect("keys");
    let sign = |uid: &str| {
        SecretToken { namespace: "n", account: "robot", account_uid: uid, secret: "s" }.sign(&keys)
    };
    let (token, other) = (sign("u-robot"), sign("u-before"));
    let secret = |token: &str, labels: Value| json!({"metadata": {"name": "s", "namespace": "n", "labels": labels}, "data": {"token": STANDARD.encode(token)}});
    assert!(!fixture.is_valid(&token), "no secret yet");
    put(&fixture.store, "secrets", secret(&token, json!({}))).await;
    let known = fixture.ask(&token, API).expect("valid");
    assert_eq!(
        (known.identity.user.name.as_str(), known.identity.user.uid.as_str()),
        ("system:serviceaccount:n:robot", "u-robot")
    );
    assert!(known.identity.user.extra.is_empty());
    fixture.clock.forward(400_000_000);
    assert!(fixture.is_valid(&token), "it does not expire");
    assert_eq!(fixture.ask(&token, "https://elsewhere.example.com"), Err(Unauthenticated));
    put(
        &fixture.store,
        "secrets",
        secret(&token, json!({"kubernetes.io/legacy-token-invalid-since": "2026-01-01"})),
    )
    .await;
    assert!(!fixture.is_valid(&token), "disabled");
    put(&fixture.store, "secrets", secret("another", json!({}))).await;
    assert!(!fixture.is_valid(&token), "replaced");
    put(&fixture.store, "secrets", secret(&other, json!({}))).await;
    assert!(!fixture.is_valid(&other), "of an earlier account with this name");
    let mut ending = secret(&token, json!({}));
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    put(&fixture.store, "secrets", ending).await;
    assert!(!fixture.is_valid(&token), "being deleted");
    put(&fixture.store, "secrets", secret(&token, json!({}))).await;
    assert!(fixture.is_valid(&token));
    delete(&fixture.store, "secrets", "n", "s").await;
    assert!(!fixture.is_valid(&token), "deleted");
}

#[tokio::test]
async fn refusals_name_the_same_objects_as_kube_apiserver() {
    let fixture = Fixture::new().await;
    let details = |object: Value| {
        let failure = fixture
            .tokens
            .inner
            .issue(
                &context(&fixture.clock),
                "n",
                "robot",
                Document::from_value(object).expect("an object"),
            )
            .expect_err("refused");
        (failure.code, failure.details.map(|details| (details.group, details.kind, details.name)))
    };
    let names = |group: &str, kind: &str, name: &str| {
        Some((group.to_owned(), kind.to_owned(), name.to_owned()))
    };
    const GROUP: &str = "authentication.k8s.io";
    assert_eq!(
        details(json!({"spec": {"expirationSeconds": 1}})),
        (422, names(GROUP, "TokenRequest", ""))
    );
    assert_eq!(
        details(json!({"metadata": {"name": "other"}, "spec": {}})),
        (422, names(GROUP, "TokenRequest", "robot"))
    );
    assert_eq!(
        details(json!({"metadata": {"uid": "u-other"}, "spec": {}})),
        (409, names(GROUP, "TokenRequest", "robot"))
    );
    let bound = |version: &str, kind: &str, name: &str| json!({"spec": {"boundObjectRef": {"apiVersion": version, "kind": kind, "name": name, "uid": "u-x"}}});
    assert_eq!(details(bound("v1", "Secret", "missing")), (404, names("", "secrets", "missing")));
    assert_eq!(details(bound("apps/v1", "Deployment", "d")), (400, None));
    put(
        &fixture.store,
        "secrets",
        json!({"metadata": {"name": "s", "namespace": "n", "uid": "u-s"}}),
    )
    .await;
    assert_eq!(details(bound("v1", "Secret", "s")), (409, names("", "Secret", "s")));
}

/// Large accounts, pods and secrets, in every state: each revision is parsed once, for valid and
/// invalid tokens, however many there are.
#[tokio::test]
async fn fault_34_a_token_is_bound_to_a_long_object_off_the_workers() {
    let fixture = Fixture::new().await;
    for (name, length) in [("short", 100), ("long", 20_000)] {
        let metadata = json!({"name": name, "namespace": "n", "uid": name});
        let secret = json!({"metadata": metadata, "data": {"text": "x".repeat(length)}});
        put(&fixture.store, "secrets", secret).await;
    }
    let takes_long = |name: &str| {
        let reference = json!({"apiVersion": "v1", "kind": "Secret", "name": name});
        fixture.token(json!({ "boundObjectRef": reference }));
        let request = json!({"spec": {"boundObjectRef": reference}});
        let request = Document::from_value(request).expect("an object");
        fixture.tokens.inner.long_micros("n", &request).is_some()
    };
    assert_eq!(["short", "long"].map(takes_long), [false, true]);
}

/// Requests with tokens of an object wait for the one that reads it, on workers.
#[tokio::test]
async fn fault_34_a_bound_object_is_read_without_giving_way() {
    thread_local! {
        static GIVEN: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }
    let fixture = Fixture::new().await;
    let token = fixture.token(json!({}));
    let mut account = account("u-robot");
    let labels = (0..1000).map(|n| (format!("l{n}"), json!("")));
    account["metadata"]["labels"] = Value::Object(labels.collect());
    let read = ferrokube_apimachinery::json::to_vec(&account);
    assert!(fixture.is_valid(&token));
    put(&fixture.store, "serviceaccounts", account).await;
    work::set_breather(|| GIVEN.set(GIVEN.get() + 1));
    ferrokube_apimachinery::json::read_value(&read).expect("JSON");
    assert!(GIVEN.replace(0) > 0, "it is long enough");
    assert!(fixture.is_valid(&token));
    assert_eq!(GIVEN.get(), 0);
}

#[tokio::test]
async fn fault_34_audiences_are_looked_up() {
    const ASKED: usize = 10_000;
    let fixture = Fixture::new().await;
    let own: Vec<String> = (0..100).map(|n| format!("own{n:03}")).collect();
    let token = fixture.token(json!({ "audiences": own }));
    let asked: Vec<String> =
        (0..ASKED).map(|n| format!("ask{n:03}")).chain(["own007".to_owned()]).collect();
    let ask = || fixture.tokens.authenticate_token(&token, &asked);
    let (known, steps) = work::counted(ask);
    let known = known.expect("valid").expect("known");
    assert_eq!(known.audiences, Some(vec!["own007".to_owned()]));
    assert!(steps < 3 * ASKED as u64, "{steps}");
}

#[tokio::test]
async fn fault_51_tokens_of_large_objects_cost_one_parse_per_revision() {
    const FAT: usize = 200_000;
    let fixture = Fixture::new().await;
    let tokens = [fixture.token(json!({})), fixture.token(json!({}))];
    let ask = |tokens: &[String], is_valid: bool| {
        let ((), read) = work::counted(|| {
            for token in tokens.iter().cycle().take(20) {
                assert_eq!(fixture.is_valid(token), is_valid);
            }
        });
        read
    };
    let fat = |uid: &str, deleted: Value| {
        let mut account = account(uid);
        account["metadata"]["deletionTimestamp"] = deleted;
        account["secrets"] = json!([{"name": "x".repeat(FAT)}]);
        account
    };
    let deleted = json!(ferrokube_apimachinery::time::rfc3339_seconds(fixture.clock.now()));
    for (account, is_valid) in [
        (fat("u-robot", Value::Null), true),
        (fat("u-robot", deleted), true),
        (fat("u-next", Value::Null), false),
    ] {
        put(&fixture.store, "serviceaccounts", account).await;
        let read = ask(&tokens, is_valid);
        assert!((1..1_000).contains(&read), "only its metadata, and once: {read}");
        assert_eq!(ask(&tokens, is_valid), 0);
    }
    let keys = TokenKeys::from_pem(fixture.pem.as_bytes(), &[]).expect("keys");
    put(&fixture.store, "serviceaccounts", account("u-robot")).await;
    let token =
        SecretToken { namespace: "n", account: "robot", account_uid: "u-robot", secret: "s" }
            .sign(&keys);
    put(
        &fixture.store,
        "secrets",
        json!({"metadata": {"name": "s", "namespace": "n"}, "data": {"token": "x".repeat(FAT)}}),
    )
    .await;
    assert!((1..2 * FAT as u64).contains(&ask(std::slice::from_ref(&token), false)));
    assert_eq!(ask(std::slice::from_ref(&token), false), 0);
}
