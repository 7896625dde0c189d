//! `/ui/features/`: off without the Feature API, authorization as for the Features, and the page in
//! a browser, during a transition.

use crate::FERROKUBE;
use crate::objects::made;
use crate::trace_page::{Browser, Helper};
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, newest_kubectl, wait_until};
use serde_json::{Value, json};

const PAGE: &str = "/ui/features/";
const ON: &str = "--feature-gates=FeatureAPI=true";
const OFF: &str = "--feature-gates=FeatureAPI=true,LogTracking=false";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn start(gates: &str) -> Cluster {
    let launch = Launch::new(FERROKUBE).role("all-in-one").flag(gates);
    launch.flag("--feature-evaluation-time=1s").start().unwrap()
}

async fn opened(client: &Client, rest: &str) -> (u16, String) {
    let page = client.get(&format!("{PAGE}{rest}")).await.unwrap();
    (page.status, page.text)
}

#[tokio::test]
async fn the_features_page_comes_with_the_api_and_is_only_read() {
    let without = Cluster::start(FERROKUBE).unwrap();
    assert_eq!(opened(&without.admin().unwrap(), "").await.0, 404);
    let cluster = start(ON);
    let admin = cluster.admin().unwrap();
    let page = admin.get(PAGE).await.unwrap();
    let header = |name: &str| page.headers[name].to_str().unwrap();
    assert_eq!((page.status, header("content-type")), (200, "text/html; charset=utf-8"));
    let policy = header("content-security-policy");
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(header("cache-control"), "no-store");
    assert!(page.text.contains(">LogTracking</a>"), "{}", page.text);
    let bare = admin.get("/ui/features").await.unwrap();
    assert_eq!(bare.headers["location"], "features/");
    assert_eq!(opened(&admin, "style.css").await.0, 200);
    wait_until("the server reports its use", BOUND, || async {
        let (status, text) = opened(&admin, "LogTracking").await;
        let is_reported = status == 200 && text.contains("system:apiserver");
        if is_reported { Ok(()) } else { Err(text) }
    })
    .await;
    for missing in ["Nothing", "a/b", "?namespace=%2f", "..%2fx"] {
        assert_eq!(opened(&admin, missing).await.0, 404, "{missing}");
    }
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let request = admin.request(method.parse().unwrap(), PAGE);
        assert_eq!(admin.send(request).await.unwrap().status, 405, "{method}");
    }
    let anonymous = cluster.anonymous().unwrap().get(PAGE).await.unwrap();
    assert_eq!(anonymous.status, 403, "{}", anonymous.text);
}

/// A service account that may open the pages.
async fn reader(cluster: &Cluster, admin: &Client) -> Client {
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}});
    made(admin, "/api/v1/namespaces/default/serviceaccounts", account).await;
    let rules = json!([{"nonResourceURLs": ["/ui/features/*"], "verbs": ["get"]}]);
    grant(admin, "pages", rules, "").await;
    let token = admin
        .post("/api/v1/namespaces/default/serviceaccounts/reader/token", &json!({"spec": {}}))
        .await
        .unwrap();
    cluster.with_token(token.body["status"]["token"].as_str().unwrap()).unwrap()
}

/// Gives the reader a role, in a namespace or everywhere.
async fn grant(admin: &Client, name: &str, rules: Value, namespace: &str) {
    let (place, prefix) = match namespace {
        "" => (RBAC.to_owned(), "cluster"),
        namespace => (format!("{RBAC}/namespaces/{namespace}"), ""),
    };
    let kind = if prefix.is_empty() { "Role" } else { "ClusterRole" };
    let object = |kind: String| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    let mut role = object(kind.to_owned());
    role["rules"] = rules;
    made(admin, &format!("{place}/{prefix}roles"), role).await;
    let mut binding = object(format!("{kind}Binding"));
    binding["subjects"] =
        json!([{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}]);
    binding["roleRef"] =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    made(admin, &format!("{place}/{prefix}rolebindings"), binding).await;
}

#[tokio::test]
async fn the_features_page_shows_what_the_api_would() {
    let cluster = start(ON);
    let admin = cluster.admin().unwrap();
    let reader = reader(&cluster, &admin).await;
    let refused = wait_until("the page opens", BOUND, async || match opened(&reader, "").await {
        (403, text) if text.contains("You may not list") => Ok(text),
        (status, text) => Err(format!("{status} {text}")),
    })
    .await;
    assert!(!refused.contains("LogTracking"), "{refused}");
    // Neither whether a feature exists.
    for name in ["LogTracking", "Nothing"] {
        assert_eq!(opened(&reader, name).await.0, 403, "{name}");
    }
    let one = json!([{"apiGroups": ["features.k8s.io"], "resources": ["features"], "verbs": ["get"], "resourceNames": ["LogTracking"]}]);
    grant(&admin, "one", one, "kube-system").await;
    wait_until("the feature is shown", BOUND, async || {
        match opened(&reader, "LogTracking").await {
            (200, _) => Ok(()),
            (status, text) => Err(format!("{status} {text}")),
        }
    })
    .await;
    assert_eq!(opened(&reader, "FeatureAPI").await.0, 403);
    assert_eq!(opened(&reader, "").await.0, 403);
    assert_eq!(opened(&reader, "LogTracking?namespace=default").await.0, 403);
    let all =
        json!([{"apiGroups": ["features.k8s.io"], "resources": ["features"], "verbs": ["list"]}]);
    grant(&admin, "all", all, "default").await;
    wait_until("the board is shown", BOUND, async || {
        match opened(&reader, "?namespace=default").await {
            (200, _) => Ok(()),
            (status, text) => Err(format!("{status} {text}")),
        }
    })
    .await;
    assert_eq!(opened(&reader, "").await.0, 403);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_features_page_shows_a_transition_in_a_browser() {
    let mut cluster = start(ON);
    let admin = cluster.admin().unwrap();
    let feature = "/apis/features.k8s.io/v1alpha1/namespaces/kube-system/features/LogTracking";
    let state = async |admin: &Client, wanted: &str| {
        wait_until("the state", BOUND, async || match admin.get(feature).await.unwrap() {
            found if found.body["status"]["state"] == wanted => Ok(()),
            found => Err(found.text),
        })
        .await;
    };
    state(&admin, "On").await;
    cluster.terminate().unwrap();
    cluster.restart_with(&["--feature-evaluation-time=1h", OFF]).unwrap();
    let admin = cluster.admin().unwrap();
    state(&admin, "TurningOff").await;
    let (_proxy, line) = Helper::start(
        newest_kubectl().command(&cluster.kubeconfig()).args(["proxy", "--port=0"]),
        "Starting to serve on",
    );
    let base = format!("http://{}{PAGE}", line.rsplit(' ').next().unwrap());
    let browser = Browser::start().await;
    browser.open(&base).await;
    let text = browser.run("return document.body.innerText").await;
    let text = text.as_str().unwrap();
    for part in ["In transition", "LogTracking", "TurningOff", "WaitForUses", "FeatureAPI"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let styled =
        browser.run("return getComputedStyle(document.querySelector('.state')).borderRadius");
    assert_eq!(styled.await, "16px", "the style sheet is allowed by the policy and loaded");
    assert_eq!(browser.run("return document.scripts.length").await, 0);
    assert_eq!(
        browser.run("return document.querySelector('meta[http-equiv=refresh]') !== null").await,
        true
    );
    browser.screenshot("features-page.png").await;
    // Tab to the feature, Enter opens it.
    for _ in 0..20 {
        browser.press('\u{e004}').await;
        let found = "return document.activeElement.textContent === 'LogTracking'";
        if browser.run(found).await == true {
            break;
        }
    }
    browser.press('\u{e007}').await;
    let title = wait_until("the feature's page", BOUND, async || {
        match browser.run("return document.title").await {
            Value::String(title) if title.starts_with("LogTracking") => Ok(title),
            other => Err(other.to_string()),
        }
    })
    .await;
    assert_eq!(title, "LogTracking - ferrokube features");
    let text = browser.run("return document.body.innerText").await;
    assert!(
        text.as_str().unwrap().contains("--feature-gates=LogTracking=true of apiserver"),
        "{text}"
    );
    browser.screenshot("features-page-one.png").await;
    assert_eq!(browser.refused_by_policy().await, [] as [String; 0]);
    browser.end().await;
}
