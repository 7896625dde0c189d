//! `/ui/trace/`: access over HTTP, and the page in headless Chromium without script, by keyboard,
//! with a screenshot in `target/trace-page.png`.

use crate::FERROKUBE;
use crate::objects::{config_map, made};
use base64::Engine;
use ferrokube_testkit::{ApiResponse, BOUND, Client, Cluster, Launch, newest_kubectl, wait_until};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const PAGE: &str = "/ui/trace/";

fn family(object: &Value) -> String {
    object["metadata"]["annotations"]["trace.kubernetes.io/initial-trace-id"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
}

fn with_page() -> Launch {
    Launch::new(FERROKUBE)
        .flag("--trace-ui")
        .flag("--trace-ui-backend=https://jaeger.example/trace/{trace_id}")
}

#[tokio::test]
async fn the_page_is_off_by_default_and_get_only() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    assert_eq!(cluster.admin().unwrap().get(PAGE).await.unwrap().status, 404);
    let cluster = with_page().start().unwrap();
    let admin = cluster.admin().unwrap();
    let page = admin.get(PAGE).await.unwrap();
    assert_eq!(
        (page.status, header(&page.headers, "content-type")),
        (200, "text/html; charset=utf-8")
    );
    let policy = header(&page.headers, "content-security-policy");
    assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(header(&page.headers, "cache-control"), "no-store");
    assert_eq!(admin.get("/ui/trace/style.css").await.unwrap().status, 200);
    assert_eq!(admin.get("/ui/trace").await.unwrap().headers["location"], "trace/");
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        assert_eq!(
            admin.send(admin.request(method.parse().unwrap(), PAGE)).await.unwrap().status,
            405,
            "{method}"
        );
    }
    let anonymous = cluster.anonymous().unwrap().get(PAGE).await.unwrap();
    assert_eq!(anonymous.status, 403, "{}", anonymous.text);
}

/// A service account that may open the page and get ConfigMaps in one namespace.
async fn reader(cluster: &Cluster, admin: &Client) -> Client {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let kind = |kind: &str, name: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    let with = |mut object: Value, fields: Value| {
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        object
    };
    let subjects = json!([{"kind": "ServiceAccount", "name": "reader", "namespace": "default"}]);
    let role = |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    made(
        admin,
        "/api/v1/namespaces/default/serviceaccounts",
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader"}}),
    )
    .await;
    let page = json!({"rules": [{"nonResourceURLs": ["/ui/trace/*"], "verbs": ["get"]}]});
    made(admin, &format!("{rbac}/clusterroles"), with(kind("ClusterRole", "trace-page"), page))
        .await;
    let binding = json!({"subjects": subjects, "roleRef": role("ClusterRole", "trace-page")});
    made(
        admin,
        &format!("{rbac}/clusterrolebindings"),
        with(kind("ClusterRoleBinding", "trace-page"), binding),
    )
    .await;
    let rules = json!({"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["shown"]}]});
    made(admin, &format!("{rbac}/namespaces/default/roles"), with(kind("Role", "shown"), rules))
        .await;
    let binding = json!({"subjects": subjects, "roleRef": role("Role", "shown")});
    made(
        admin,
        &format!("{rbac}/namespaces/default/rolebindings"),
        with(kind("RoleBinding", "shown"), binding),
    )
    .await;
    let token = admin
        .post("/api/v1/namespaces/default/serviceaccounts/reader/token", &json!({"spec": {}}))
        .await
        .unwrap();
    cluster.with_token(token.body["status"]["token"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn events_are_shown_only_to_users_who_may_get_the_object() {
    let cluster = with_page().start().unwrap();
    let admin = cluster.admin().unwrap();
    let shown = family(&made(&admin, CONFIGMAPS, config_map("shown", None)).await);
    let hidden = family(&made(&admin, CONFIGMAPS, config_map("hidden", None)).await);
    let page = admin.get(&format!("{PAGE}{shown}")).await.unwrap();
    assert!(
        page.status == 200
            && page.text.contains("create configmaps default/shown")
            && page.text.contains("kubernetes-admin"),
        "{}",
        page.text
    );
    assert!(page.text.contains(&format!("https://jaeger.example/trace/{shown}")));
    let reader = reader(&cluster, &admin).await;
    let open = |rest: String| {
        let reader = reader.clone();
        async move { reader.get(&format!("{PAGE}{rest}")).await.unwrap() }
    };
    let visible: ApiResponse =
        wait_until("the bindings are seen", BOUND, async || match open(shown.clone()).await {
            answer if answer.status == 200 => Ok(answer),
            answer => Err(format!("{} {}", answer.status, answer.text)),
        })
        .await;
    assert!(visible.text.contains("configmaps default/shown"));
    assert_eq!(open(hidden.clone()).await.status, 404);
    let index = open(String::new()).await;
    assert!(
        index.status == 200
            && index.text.contains(&shown)
            && !index.text.contains(&hidden)
            && !index.text.contains("hidden"),
        "{}",
        index.text
    );
    assert_eq!(open("?q=configmap/hidden".to_owned()).await.status, 404);
}

#[tokio::test]
async fn a_separate_server_links_to_the_tracing_backend() {
    let cluster = with_page().role("apiserver").start().unwrap();
    let admin = cluster.admin().unwrap();
    let id = family(&made(&admin, CONFIGMAPS, config_map("a", None)).await);
    let page = admin.get(&format!("{PAGE}{id}")).await.unwrap();
    assert!(
        page.status == 200
            && page.text.contains(&format!("href=\"https://jaeger.example/trace/{id}\"")),
        "{}",
        page.text
    );
}

/// A process, killed on drop, and the first line of its output with certain words.
pub(crate) struct Helper(Child);

impl Helper {
    pub(crate) fn start(command: &mut Command, words: &str) -> (Self, String) {
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.by_ref().map_while(Result::ok).find(|line| line.contains(words));
        let line = line.unwrap_or_else(|| panic!("it ended without saying {words:?}"));
        // Keep reading, so that the process never blocks on its output.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        (Self(process), line)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A browser, driven by the WebDriver protocol.
pub(crate) struct Browser {
    http: reqwest::Client,
    session: String,
    _driver: Helper,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub(crate) async fn start() -> Self {
        let installed = ["/usr/bin/chromium", "/usr/bin/chromedriver"]
            .into_iter()
            .all(|path| Path::new(path).exists());
        assert!(installed, "this test needs a browser: apt-get install chromium chromium-driver");
        let profile = tempfile::tempdir().unwrap();
        let (driver, line) = Helper::start(
            Command::new("chromedriver").arg("--port=0"),
            "started successfully on port",
        );
        let port: u16 = line.rsplit("port ").next().unwrap().trim_end_matches('.').parse().unwrap();
        let mut arguments: Vec<String> = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1400,1100",
        ]
        .map(str::to_owned)
        .to_vec();
        arguments.push(format!("--user-data-dir={}", profile.path().display()));
        let options = json!({"binary": "/usr/bin/chromium", "args": arguments});
        let capabilities = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}});
        let mut browser = Self {
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            session: format!("http://127.0.0.1:{port}/session"),
            _driver: driver,
            _profile: profile,
        };
        let made = browser.post("", capabilities).await;
        browser.session = format!(
            "{}/{}",
            browser.session,
            made["sessionId"].as_str().unwrap_or_else(|| panic!("{made}"))
        );
        browser
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        let answer = self
            .http
            .post(format!("{}{path}", self.session))
            .header("content-type", "application/json")
            .body(body.to_string())
            .send()
            .await
            .unwrap();
        value(&answer.text().await.unwrap())
    }

    async fn get(&self, path: &str) -> Value {
        value(
            &self
                .http
                .get(format!("{}{path}", self.session))
                .send()
                .await
                .unwrap()
                .text()
                .await
                .unwrap(),
        )
    }

    pub(crate) async fn open(&self, url: &str) {
        self.post("/url", json!({"url": url})).await;
    }

    pub(crate) async fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", json!({"script": script, "args": []})).await
    }

    pub(crate) async fn press(&self, key: char) {
        let actions = json!([{"type": "keyDown", "value": key.to_string()}, {"type": "keyUp", "value": key.to_string()}]);
        self.post(
            "/actions",
            json!({"actions": [{"type": "key", "id": "keys", "actions": actions}]}),
        )
        .await;
    }

    pub(crate) async fn screenshot(&self, name: &str) -> Vec<u8> {
        let text = self.get("/screenshot").await;
        let bytes =
            base64::engine::general_purpose::STANDARD.decode(text.as_str().unwrap()).unwrap();
        let target = Path::new(FERROKUBE).ancestors().nth(2).unwrap();
        std::fs::write(target.join(name), &bytes).unwrap();
        bytes
    }

    /// What the pages' content security policy forbade.
    pub(crate) async fn refused_by_policy(&self) -> Vec<String> {
        let log = self.post("/se/log", json!({"type": "browser"})).await;
        let messages = log.as_array().into_iter().flatten();
        let messages = messages.filter_map(|entry| entry["message"].as_str());
        let is_refusal = |message: &&str| message.contains("Security Policy");
        messages.filter(is_refusal).map(str::to_owned).collect()
    }

    pub(crate) async fn end(self) {
        let _ = self.http.delete(&self.session).send().await;
    }
}

fn value(text: &str) -> Value {
    let answer: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    answer["value"].clone()
}

/// A page's create, update and delete, with two children: the content of the screenshot.
async fn life(admin: &Client) -> String {
    let early = made(admin, CONFIGMAPS, config_map("early", None)).await;
    made(admin, CONFIGMAPS, config_map("follower", Some(&early))).await;
    let gone = async |name: &str| {
        wait_until("it goes", BOUND, async || {
            match admin.get(&format!("{CONFIGMAPS}/{name}")).await.unwrap() {
                answer if answer.status == 404 => Ok(()),
                answer => Err(answer.text),
            }
        })
        .await;
    };
    admin.delete(&format!("{CONFIGMAPS}/early")).await.unwrap();
    gone("follower").await;
    let page = made(admin, CONFIGMAPS, config_map("page", None)).await;
    for number in 0..4 {
        made(admin, CONFIGMAPS, config_map(&format!("page-part-{number}"), Some(&page))).await;
    }
    admin.merge(&format!("{CONFIGMAPS}/page"), &json!({"data": {"color": "green"}})).await.unwrap();
    admin.delete(&format!("{CONFIGMAPS}/page?propagationPolicy=Background")).await.unwrap();
    for number in 0..4 {
        gone(&format!("page-part-{number}")).await;
    }
    family(&page)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_works_in_a_browser_by_keyboard() {
    let kubectl = newest_kubectl();
    let cluster = with_page().start().unwrap();
    let id = life(&cluster.admin().unwrap()).await;
    let (_proxy, line) = Helper::start(
        kubectl.command(&cluster.kubeconfig()).args(["proxy", "--port=0"]),
        "Starting to serve on",
    );
    let base = format!("http://{}{PAGE}", line.rsplit(' ').next().unwrap());
    let browser = Browser::start().await;

    browser.open(&format!("{base}?q=configmap/page")).await;
    assert!(
        browser.run("return location.pathname").await.as_str().unwrap().ends_with(&id),
        "the form leads to the family"
    );
    assert_eq!(
        browser.run("return document.querySelectorAll('section').length").await,
        3,
        "create, patch, delete"
    );
    let rows = browser
        .run("return document.querySelectorAll('section:last-of-type details').length")
        .await;
    assert!(rows.as_u64().unwrap() > 4, "the deletion with what followed: {rows}");
    let styled =
        browser.run("return getComputedStyle(document.querySelector('summary')).display").await;
    assert_eq!(styled, "grid", "the style sheet is allowed by the policy and loaded");
    let bars = browser.run("return [...document.querySelectorAll('.bar')].every(bar => bar.getBoundingClientRect().width > 0)").await;
    assert_eq!(bars, true);

    // Tab until a row of the last request has the focus, Enter opens it.
    for _ in 0..200 {
        browser.press('\u{e004}').await;
        if browser.run("return document.activeElement.matches('section:last-of-type details:nth-of-type(2) > summary')").await == true {
            break;
        }
    }
    assert_eq!(browser.run("return document.activeElement.tagName").await, "SUMMARY");
    browser.press('\u{e007}').await;
    assert_eq!(browser.run("return document.activeElement.parentElement.open").await, true);
    browser.run("window.scrollTo(0, 0)").await;
    let picture = browser.screenshot("trace-page.png").await;
    assert!(picture.starts_with(b"\x89PNG") && picture.len() > 20_000, "{} bytes", picture.len());

    browser.open(&base).await;
    assert!(
        browser
            .run("return document.body.innerText")
            .await
            .as_str()
            .unwrap()
            .contains("configmaps default/page")
    );
    browser.screenshot("trace-page-recent.png").await;
    assert_eq!(browser.refused_by_policy().await, [] as [String; 0]);
    browser.end().await;
}
