//! Service account tokens of the real process: tokens in secrets, token requests, key rotation.

use crate::FERROKUBE;
use crate::apiserver::openssl;
use ferrokube_testkit::{ApiResponse, BOUND, Client, Cluster, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

async fn create(admin: &Client, path: &str, object: &Value) -> Value {
    let answer = admin.post(path, object).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.body
}

fn token_secret(name: &str, account: &str) -> Value {
    let annotations = json!({"kubernetes.io/service-account.name": account});
    json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata": {"name": name, "annotations": annotations}})
}

/// Waits for the token in a secret.
async fn token_in(admin: &Client, name: &str) -> String {
    let path = format!("{SECRETS}/{name}");
    let encoded = wait_until("the secret is filled", BOUND, async || {
        let answer = admin.get(&path).await.unwrap();
        answer.body["data"]["token"].as_str().map(str::to_owned).ok_or(answer.text)
    })
    .await;
    String::from_utf8(decode(&encoded)).unwrap()
}

fn decode(text: &str) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).unwrap()
}

async fn gone(admin: &Client, path: &str) {
    wait_until(path, BOUND, async || {
        let answer = admin.get(path).await.unwrap();
        if answer.status == 404 { Ok(()) } else { Err(answer.text) }
    })
    .await;
}

async fn who(cluster: &Cluster, token: &str) -> ApiResponse {
    cluster
        .with_token(token)
        .unwrap()
        .post(
            WHO_AM_I,
            &json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"}),
        )
        .await
        .unwrap()
}

#[tokio::test]
async fn fault_51_a_token_lives_in_its_secret_and_with_its_account() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let account = create(&admin, ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await;
    create(&admin, SECRETS, &token_secret("one", "robot")).await;
    let token = token_in(&admin, "one").await;
    let answer = who(&cluster, &token).await;
    let user = &answer.body["status"]["userInfo"];
    assert_eq!(
        (&user["username"], &user["uid"]),
        (&json!("system:serviceaccount:default:robot"), &account["metadata"]["uid"]),
        "{}",
        answer.text
    );
    let held = admin.get(&format!("{SECRETS}/one")).await.unwrap().body;
    assert_eq!(decode(held["data"]["namespace"].as_str().unwrap()), b"default");
    assert_eq!(
        decode(held["data"]["ca.crt"].as_str().unwrap()),
        fs::read(cluster.data_dir().join("pki/ca.crt")).unwrap()
    );
    assert_eq!(
        held["metadata"]["annotations"]["kubernetes.io/service-account.uid"],
        account["metadata"]["uid"]
    );

    // A secret of a missing account is deleted, as is a reference to a missing secret.
    create(&admin, SECRETS, &token_secret("of-nobody", "nobody")).await;
    gone(&admin, &format!("{SECRETS}/of-nobody")).await;
    assert_eq!(
        admin
            .merge(
                &format!("{ACCOUNTS}/robot"),
                &json!({"secrets": [{"name": "one"}, {"name": "other"}]})
            )
            .await
            .unwrap()
            .status,
        200
    );
    assert_eq!(admin.delete(&format!("{SECRETS}/one")).await.unwrap().status, 200);
    assert_eq!(who(&cluster, &token).await.status, 401, "its secret is gone");
    wait_until("the account forgets the secret", BOUND, async || {
        let answer = admin.get(&format!("{ACCOUNTS}/robot")).await.unwrap();
        if answer.body["secrets"] == json!([{"name": "other"}]) { Ok(()) } else { Err(answer.text) }
    })
    .await;

    create(&admin, SECRETS, &token_secret("two", "robot")).await;
    let token = token_in(&admin, "two").await;
    assert_eq!(admin.delete(&format!("{ACCOUNTS}/robot")).await.unwrap().status, 200);
    assert_eq!(who(&cluster, &token).await.status, 401, "its account is gone");
    gone(&admin, &format!("{SECRETS}/two")).await;
}

#[tokio::test]
async fn token_requests_are_decoded_by_their_schema() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    create(&admin, ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await;
    let path = format!("{ACCOUNTS}/robot/token");
    let ask = async |query: &str, spec: Value| {
        admin.post(&format!("{path}{query}"), &json!({ "spec": spec })).await.unwrap()
    };
    let answer = ask("", json!({"bogus": 1})).await;
    assert_eq!((answer.status, answer.body["spec"].get("bogus")), (201, None), "{}", answer.text);
    assert_eq!(ask("?fieldValidation=Strict", json!({"bogus": 1})).await.status, 400);
    assert_eq!(ask("", json!({"audiences": "x"})).await.status, 400);
    assert_eq!(ask("", json!({"expirationSeconds": "600"})).await.status, 400);
}

#[tokio::test]
async fn fault_51_the_servers_own_key_is_read_again() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    create(&admin, ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await;
    let path = format!("{ACCOUNTS}/robot/token");
    let token = create(&admin, &path, &json!({"spec": {}})).await["status"]["token"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(who(&cluster, &token).await.status, 201);
    let pki = cluster.data_dir().join("pki");
    openssl(&pki, "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out next");
    fs::set_permissions(pki.join("next"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(pki.join("next"), pki.join("sa.key")).unwrap();
    wait_until("the old key's token is refused", BOUND, async || {
        let answer = who(&cluster, &token).await;
        if answer.status == 401 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    let token = create(&admin, &path, &json!({"spec": {}})).await["status"]["token"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(who(&cluster, &token).await.status, 201);
}
