//! Fault 55: the real process's audit log contains every acknowledged write and no credentials, and
//! relates objects to requests.

use crate::FERROKUBE;
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, json_lines, wait_until};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";

fn events(cluster: &Cluster) -> Vec<Value> {
    json_lines(&cluster.data_dir().join("audit.log"))
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

/// Creates objects until the server is gone, and records the acknowledged ones.
async fn writer(client: Client, prefix: String, acknowledged: Arc<Mutex<Vec<String>>>) {
    for number in 0.. {
        let name = format!("{prefix}-{number}");
        match client.post(CONFIGMAPS, &config_map(&name)).await {
            Ok(answer) if answer.status == 201 => acknowledged.lock().unwrap().push(name),
            Ok(answer) => panic!("{}", answer.text),
            Err(_) => return,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_55_kill_9_loses_no_event_of_an_acknowledged_write() {
    let mut cluster = Cluster::start(FERROKUBE).unwrap();
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    for round in 0..5_u64 {
        let before = acknowledged.lock().unwrap().len();
        let client = cluster.admin().unwrap();
        let writers: Vec<_> = (0..4)
            .map(|one| {
                tokio::spawn(writer(
                    client.clone(),
                    format!("r{round}-{one}"),
                    Arc::clone(&acknowledged),
                ))
            })
            .collect();
        wait_until("writes", BOUND, async || {
            let written = acknowledged.lock().unwrap().len() - before;
            if written > 5 { Ok(()) } else { Err(written.to_string()) }
        })
        .await;
        // Not a wait: varies where in its work the server is killed.
        tokio::time::sleep(Duration::from_millis(round * 41)).await;
        cluster.kill().unwrap();
        for writer in writers {
            writer.await.unwrap();
        }
        cluster.restart().unwrap();
    }
    let events = events(&cluster);
    let recorded: BTreeSet<&str> = events
        .iter()
        .filter(|event| event["responseStatus"]["code"] == 201)
        .filter_map(|event| event["objectRef"]["name"].as_str())
        .collect();
    let acknowledged = acknowledged.lock().unwrap();
    for name in acknowledged.iter() {
        assert!(
            recorded.contains(name.as_str()),
            "{name} was acknowledged and is not in the audit log"
        );
    }
}

/// A client that disconnects at once may have written, and must be recorded.
#[tokio::test(flavor = "multi_thread")]
async fn fault_55_a_write_whose_client_hung_up_is_recorded() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let stored = async || {
        let list = admin.get(CONFIGMAPS).await.unwrap().body;
        let names = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|item| item["metadata"]["name"].as_str())
            .filter(|name| name.starts_with("brief-"));
        names.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let (mut answered, mut number, begun) = (0, 0_u64, std::time::Instant::now());
    // Until enough of them were written without a response.
    while stored().await.len() < answered + 20 {
        assert!(
            begun.elapsed() < BOUND,
            "{number} writes, {answered} of them answered: none was cut off in time"
        );
        for _ in 0..20 {
            number += 1;
            let body = config_map(&format!("brief-{number}"));
            // From far too short to far too long for any machine.
            let patience = Duration::from_micros((100 + number * 61 % 100) << (number % 10));
            answered += usize::from(
                tokio::time::timeout(patience, admin.post(CONFIGMAPS, &body)).await.is_ok(),
            );
        }
    }
    let recorded = || {
        let events = events(&cluster);
        let creates = events.iter().filter(|event| event["objectRef"]["resource"] == "configmaps");
        creates
            .filter_map(|event| event["objectRef"]["name"].as_str().map(str::to_owned))
            .collect::<BTreeSet<_>>()
    };
    wait_until("every object has its event", BOUND, async || {
        let missing: Vec<String> = stored().await.difference(&recorded()).cloned().collect();
        if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) }
    })
    .await;
}

#[tokio::test]
async fn an_event_has_the_ids_of_its_object() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let made = cluster.admin().unwrap().post(CONFIGMAPS, &config_map("traced")).await.unwrap();
    let events = events(&cluster);
    let event = events
        .iter()
        .find(|event| event["objectRef"]["name"] == "traced")
        .expect("recorded before the response");
    for id in ["trace-id", "span-id", "initial-trace-id"] {
        let key = format!("trace.kubernetes.io/{id}");
        assert_eq!(event["annotations"][&key], made.body["metadata"]["annotations"][&key], "{id}");
        assert!(event["annotations"][&key].is_string());
    }
    assert_eq!(event["auditID"].as_str(), made.headers["audit-id"].to_str().ok());
    assert_eq!(event["user"]["username"], "kubernetes-admin");
    assert_eq!(event["annotations"]["authentication.k8s.io/method"], "x509");
    assert_eq!(event["objectRef"]["resourceVersion"], made.body["metadata"]["resourceVersion"]);
}

/// Sockets that a process has connected to a port.
pub(crate) fn sockets_to(process: u32, port: u16) -> usize {
    let name = |inode: &str| PathBuf::from(format!("socket:[{inode}]"));
    let own: BTreeSet<PathBuf> = fs::read_dir(format!("/proc/{process}/fd"))
        .unwrap()
        .filter_map(|file| fs::read_link(file.unwrap().path()).ok())
        .collect();
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap();
    let to = format!(":{port:04X}");
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words[2].ends_with(&to) && own.contains(&name(words[9])))
        .count()
}

#[tokio::test]
async fn controllers_of_an_all_in_one_are_audited_by_name_and_open_no_connection() {
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let name = "/api/v1/namespaces/brief";
    let namespace = json!({"metadata": {"name": "brief"}});
    assert_eq!(admin.post("/api/v1/namespaces", &namespace).await.unwrap().status, 201);
    assert_eq!(admin.delete(name).await.unwrap().status, 200);
    wait_until("its controller has removed the namespace", BOUND, async || {
        let answer = admin.get(name).await.map_err(|error| error.to_string())?;
        if answer.status == 404 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    let port = cluster.url().rsplit(':').next().unwrap().parse().unwrap();
    assert_eq!(sockets_to(std::process::id(), port).min(1), 1, "ours");
    assert_eq!(sockets_to(cluster.pid(), port), 0);
    let events = events(&cluster);
    let of = |user: &str, resource: &str, subresource: &str| {
        let found = events.iter().find(|event| {
            event["user"]["username"] == user
                && event["objectRef"]["resource"] == resource
                && event["objectRef"]["subresource"] == subresource
        });
        found.unwrap_or_else(|| panic!("nothing of {user} at {resource}/{subresource}")).clone()
    };
    let manager = of("system:kube-controller-manager", "serviceaccounts", "token");
    let account = "system:serviceaccount:kube-system:namespace-controller";
    let controller = of(account, "namespaces", "finalize");
    for event in [&manager, &controller] {
        assert_eq!(event["sourceIPs"], json!(["127.0.0.1"]), "{event}");
        let agent = event["userAgent"].as_str().unwrap();
        assert!(agent.starts_with("kube-controller-manager/"), "{event}");
    }
    let method = |event: &Value| event["annotations"]["authentication.k8s.io/method"].clone();
    assert_eq!(method(&manager), "x509");
    let credential = &manager["user"]["extra"]["authentication.kubernetes.io/credential-id"][0];
    assert!(credential.as_str().unwrap().starts_with("X509SHA256="), "{manager}");
    assert_ne!(method(&controller), "x509", "by its token");
    let deleted = events
        .iter()
        .find(|event| event["verb"] == "delete" && event["user"]["username"] == "kubernetes-admin");
    let trace = |event: &Value| event["annotations"]["trace.kubernetes.io/trace-id"].clone();
    assert!(trace(&controller).is_string());
    assert_eq!(trace(&controller), trace(deleted.unwrap()), "caused by the delete");
}

#[tokio::test]
async fn fault_54_no_policy_records_bodies_with_credentials() {
    let directory = tempfile::tempdir().unwrap();
    let policy = directory.path().join("policy.yaml");
    fs::write(
        &policy,
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: RequestResponse\n",
    )
    .unwrap();
    let cluster = Launch::new(FERROKUBE)
        .flag(format!("--audit-policy-file={}", policy.display()))
        .start()
        .unwrap();
    let admin = cluster.admin().unwrap();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"b": "canary-secret"}});
    assert_eq!(
        admin.post("/api/v1/namespaces/default/secrets", &secret).await.unwrap().status,
        201
    );
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    assert_eq!(
        admin.post("/api/v1/namespaces/default/serviceaccounts", &account).await.unwrap().status,
        201
    );
    let token = admin
        .post("/api/v1/namespaces/default/serviceaccounts/robot/token", &json!({"spec": {}}))
        .await
        .unwrap();
    let token = token.body["status"]["token"].as_str().unwrap().to_owned();
    let review = admin
        .post("/apis/authentication.k8s.io/v1/tokenreviews", &json!({"spec": {"token": token}}))
        .await
        .unwrap();
    assert_eq!(
        review.body["status"]["user"]["username"], "system:serviceaccount:default:robot",
        "{}",
        review.text
    );
    let own = cluster
        .with_token(&token)
        .unwrap()
        .post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({}))
        .await
        .unwrap();
    assert_eq!(
        own.body["status"]["userInfo"]["username"], "system:serviceaccount:default:robot",
        "{}",
        own.text
    );
    assert_eq!(admin.post(CONFIGMAPS, &config_map("plain")).await.unwrap().status, 201);

    let text = fs::read_to_string(cluster.data_dir().join("audit.log")).unwrap();
    for canary in ["canary-secret", &token, token.rsplit('.').next().unwrap(), "Y2FuYXJ5LXNlY3JldA"]
    {
        assert!(!text.contains(canary), "{canary}");
        assert!(!cluster.log().contains(canary), "{canary}");
    }
    let events = events(&cluster);
    let of = |resource: &str| {
        let found = events.iter().find(|event| {
            event["objectRef"]["resource"] == resource
                // The cluster creates ConfigMaps of its own.
                && (resource != "configmaps" || event["objectRef"]["name"] == "plain")
                && event["verb"] == "create"
                && event["stage"] == "ResponseComplete"
        });
        found.unwrap_or_else(|| panic!("no event of {resource}"))
    };
    assert_eq!(of("configmaps")["requestObject"]["data"]["k"], "v");
    assert_eq!(of("secrets")["level"], "Metadata");
    assert_eq!(of("tokenreviews")["level"], "Metadata");
}

#[tokio::test]
async fn reads_of_secrets_and_refusals_are_recorded_by_default() {
    // More than are recorded while they are sent: 60, and one more a second.
    const FLOOD: usize = 400;
    let cluster = Cluster::start(FERROKUBE).unwrap();
    let (admin, anonymous) = (cluster.admin().unwrap(), cluster.anonymous().unwrap());
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "canary"}, "stringData": {"password": "canary-password"}});
    assert_eq!(
        admin.post("/api/v1/namespaces/default/secrets", &secret).await.unwrap().status,
        201
    );
    assert_eq!(admin.get("/api/v1/namespaces/default/secrets/canary").await.unwrap().status, 200);
    assert_eq!(admin.get("/api/v1/secrets?limit=1").await.unwrap().status, 200);
    assert_eq!(admin.get("/api/v1/namespaces/default/configmaps").await.unwrap().status, 200);
    assert_eq!(anonymous.get("/api/v1/namespaces/default/configmaps").await.unwrap().status, 403);
    assert_eq!(
        cluster
            .with_token("canary-token")
            .unwrap()
            .get("/api/v1/nodes?watch=1")
            .await
            .unwrap()
            .status,
        401
    );
    let mut refused = 0;
    for _ in 0..FLOOD {
        refused += usize::from(anonymous.get("/metrics").await.unwrap().status == 403);
    }
    assert_eq!(refused, FLOOD);
    // Reads are answered before they are recorded.
    wait_until("reads are recorded, and some of a flood", BOUND, async || {
        let events = events(&cluster);
        let count = |verb: &str, code: u16, uri: &str| {
            let is = |event: &&Value| {
                event["verb"] == verb
                    && event["responseStatus"]["code"] == code
                    && event["requestURI"] == uri
            };
            events.iter().filter(is).inspect(|event| assert_eq!(event["level"], "Metadata")).count()
        };
        let counts = [
            count("get", 200, "/api/v1/namespaces/default/secrets/canary"),
            count("list", 200, "/api/v1/secrets?limit=1"),
            count("list", 200, "/api/v1/namespaces/default/configmaps"),
            count("list", 403, "/api/v1/namespaces/default/configmaps"),
            count("watch", 401, "/api/v1/nodes?watch=1"),
        ];
        let flood = count("get", 403, "/metrics");
        let is_so = counts == [1, 1, 0, 1, 1] && (58..FLOOD).contains(&flood);
        if is_so { Ok(()) } else { Err(format!("{counts:?}, {flood} of a flood")) }
    })
    .await;
    assert!(
        !fs::read_to_string(cluster.data_dir().join("audit.log")).unwrap().contains("canary-"),
        "neither secrets nor tokens"
    );
}

#[tokio::test]
async fn the_end_of_a_watch_says_who_watched_what() {
    let directory = tempfile::tempdir().unwrap();
    let policy = directory.path().join("policy.yaml");
    fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n").unwrap();
    let cluster = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag(format!("--audit-policy-file={}", policy.display()))
        .start()
        .unwrap();
    let admin = cluster.admin().unwrap();
    let path = format!("{CONFIGMAPS}?watch=1&timeoutSeconds=1");
    let request = admin
        .request(reqwest::Method::GET, &path)
        .header("impersonate-user", "jane")
        .header("impersonate-group", "system:masters");
    let answer = admin.send(request.header("user-agent", "looker/1")).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text);
    let stages = ["ResponseStarted", "ResponseComplete"];
    let of_watch = || {
        events(&cluster)
            .into_iter()
            .filter(|event| event["verb"] == "watch" && event["userAgent"] == "looker/1")
    };
    let both = || async {
        Some(of_watch().collect::<Vec<_>>())
            .filter(|found| found.len() == stages.len())
            .ok_or_else(|| format!("{:?}", events(&cluster)))
    };
    let mut found = wait_until("the end is recorded", BOUND, both).await;
    for (event, stage) in found.iter_mut().zip(stages) {
        assert_eq!(event["stage"], stage);
        assert_eq!(event["impersonatedUser"]["username"], "jane", "{event}");
        assert_eq!(event["objectRef"]["resource"], "configmaps", "{event}");
        assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "allow", "{event}");
        event
            .as_object_mut()
            .unwrap()
            .retain(|field, _| field != "stage" && field != "stageTimestamp");
    }
    assert_eq!(found[0], found[1]);
}

/// Polls, because the log has its own thread.
async fn says_so(cluster: &Cluster) {
    let probe = || async {
        cluster
            .log()
            .contains("cannot write the audit log")
            .then_some(())
            .ok_or_else(|| cluster.log())
    };
    wait_until("the log says so", BOUND, probe).await;
}

#[tokio::test]
async fn fault_55_while_the_log_cannot_be_written_writes_are_refused_and_reads_go_on() {
    let cluster = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag("--profile=kubernetes")
        .flag("--audit-log-path=/dev/full")
        .start()
        .unwrap();
    let admin = cluster.admin().unwrap();
    let first = admin.post(CONFIGMAPS, &config_map("first")).await.unwrap();
    assert_eq!(first.status, 500, "{}", first.text);
    let second = admin.post(CONFIGMAPS, &config_map("second")).await.unwrap();
    assert_eq!(second.status, 500, "{}", second.text);
    assert_eq!(
        admin.get(&format!("{CONFIGMAPS}/second")).await.unwrap().status,
        404,
        "refused before it was executed"
    );
    // A websocket that runs a command is a GET.
    let run = "/api/v1/namespaces/default/pods/absent/exec?command=ls&stdout=true";
    let run = admin.get(run).await.unwrap();
    assert_eq!(run.body["message"], "the audit log cannot be written", "{}", run.text);
    says_so(&cluster).await;
}

/// `/dev/full` is a disk that others hold full, without reserves.
#[tokio::test]
async fn fault_55_on_a_full_disk_what_leads_to_deletes_goes_on_and_is_counted() {
    let mut cluster = Cluster::start(FERROKUBE).unwrap();
    let admin = cluster.admin().unwrap();
    let mut held = config_map("held");
    held["metadata"]["finalizers"] = json!(["ex.com/held"]);
    for object in [config_map("plain"), config_map("kept"), held] {
        assert_eq!(admin.post(CONFIGMAPS, &object).await.unwrap().status, 201);
    }
    cluster.kill().unwrap();
    cluster.restart_with(&["--audit-log-path=/dev/full"]).unwrap();
    let admin = cluster.admin().unwrap();
    let [plain, kept, held] = ["plain", "kept", "held"].map(|name| format!("{CONFIGMAPS}/{name}"));
    let first = admin.delete(&plain).await.unwrap();
    assert_eq!(first.status, 200, "{}", first.text);
    let absent = admin.delete(&plain).await.unwrap();
    assert_eq!(absent.status, 404, "{}", absent.text);
    let marked = admin.delete(&held).await.unwrap();
    assert_eq!(marked.status, 200, "{}", marked.text);
    let changed = admin.merge(&kept, &json!({"data": {"k": "w"}})).await.unwrap();
    let created = admin.post(CONFIGMAPS, &config_map("new")).await.unwrap();
    let account = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"});
    for refused in [changed, created, admin.post(account, &token).await.unwrap()] {
        assert_eq!(refused.status, 500, "{}", refused.text);
        assert_eq!(refused.body["message"], "the audit log cannot be written");
    }
    let released = admin.merge(&held, &json!({"metadata": {"finalizers": null}})).await.unwrap();
    assert_eq!(released.status, 200, "{}", released.text);
    let all = admin.delete(CONFIGMAPS).await.unwrap();
    assert_eq!(all.status, 200, "{}", all.text);
    assert_eq!(admin.get(&kept).await.unwrap().status, 404);
    let ready = admin.get("/readyz").await.unwrap();
    assert!(ready.text.contains("[-]audit failed"), "{}", ready.text);
}

#[tokio::test]
async fn fault_55_or_events_are_dropped_visibly_when_the_mode_says_so() {
    let cluster = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag("--audit-log-path=/dev/full")
        .flag("--audit-log-mode=blocking")
        .start()
        .unwrap();
    let admin = cluster.admin().unwrap();
    let answer = admin.post(CONFIGMAPS, &config_map("first")).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
    says_so(&cluster).await;
    let metrics = admin.get("/metrics").await.unwrap().text;
    for name in ["ferrokube_audit_errors ", "ferrokube_audit_dropped "] {
        let line = metrics.lines().find(|line| line.starts_with(name)).expect("the metric");
        assert!(!line.ends_with(" 0"), "{line}");
    }
}

#[tokio::test]
async fn a_policy_that_omits_no_stage_records_both_ends_of_requests() {
    let directory = tempfile::tempdir().unwrap();
    let policy = directory.path().join("policy.yaml");
    fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n")
        .unwrap();
    let cluster = Launch::new(FERROKUBE)
        .flag(format!("--audit-policy-file={}", policy.display()))
        .start()
        .unwrap();
    let admin = cluster.admin().unwrap();
    assert_eq!(admin.get(&format!("{CONFIGMAPS}/absent")).await.unwrap().status, 404);
    let of = |event: &Value| event["objectRef"]["name"] == "absent";
    let mine = wait_until("both stages are in the log", BOUND, async || {
        let mine: Vec<Value> = events(&cluster).into_iter().filter(of).collect();
        if mine.len() == 2 { Ok(mine) } else { Err(format!("{mine:?}")) }
    })
    .await;
    assert_eq!(
        (&mine[0]["stage"], &mine[1]["stage"]),
        (&json!("RequestReceived"), &json!("ResponseComplete"))
    );
    assert_eq!(mine[0]["auditID"], mine[1]["auditID"]);
    assert!(mine[0].get("responseStatus").is_none() && mine[0]["user"] == mine[1]["user"]);
    assert_eq!(
        mine[1]["responseStatus"]["details"],
        json!({"name": "absent", "kind": "configmaps"})
    );
}

#[tokio::test]
async fn objects_are_recorded_in_every_encoding() {
    let directory = tempfile::tempdir().unwrap();
    let policy = directory.path().join("policy.yaml");
    let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nomitManagedFields: true\nrules:\n- level: RequestResponse\n";
    fs::write(&policy, text).unwrap();
    let cluster = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag(format!("--audit-policy-file={}", policy.display()))
        .start()
        .unwrap();
    let admin = cluster.admin().unwrap();
    let send = async |method: reqwest::Method, path: &str, types: (&str, &str), body: &str| {
        let headers = [("content-type", types.0), ("accept", types.1), ("user-agent", "form/1")];
        // They replace the client's own.
        let headers = headers.map(|(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        });
        admin
            .send(
                admin
                    .request(method, path)
                    .headers(HeaderMap::from_iter(headers))
                    .body(body.to_owned()),
            )
            .await
            .unwrap()
    };
    let applied = format!("{CONFIGMAPS}/a?fieldManager=me");
    let yaml = "application/yaml";
    let object = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n";
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let protobuf = "application/vnd.kubernetes.protobuf";
    send(reqwest::Method::PATCH, &applied, ("application/apply-patch+yaml", protobuf), object)
        .await;
    send(reqwest::Method::POST, CONFIGMAPS, (yaml, yaml), object).await;
    send(reqwest::Method::GET, CONFIGMAPS, (yaml, table), "").await;
    send(reqwest::Method::GET, CONFIGMAPS, (yaml, protobuf), "").await;
    send(
        reqwest::Method::DELETE,
        &format!("{CONFIGMAPS}/a"),
        (yaml, protobuf),
        "propagationPolicy: Background\n",
    )
    .await;
    send(reqwest::Method::DELETE, CONFIGMAPS, (yaml, yaml), "gracePeriodSeconds: 0\n").await;
    let mine = wait_until("all six are recorded", BOUND, async || {
        let mine: Vec<Value> =
            events(&cluster).into_iter().filter(|event| event["userAgent"] == "form/1").collect();
        if mine.len() == 6 { Ok(mine) } else { Err(format!("{mine:?}")) }
    })
    .await;
    let [apply, create, rows, list, delete, collection] = mine.as_slice() else {
        unreachable!("six")
    };
    assert_eq!(
        (&apply["requestObject"]["data"]["k"], &apply["responseObject"]["data"]["k"]),
        (&json!("v"), &json!("v")),
        "{apply}"
    );
    assert!(apply["responseObject"]["metadata"].get("managedFields").is_none(), "{apply}");
    assert_eq!(
        (&create["requestObject"]["data"]["k"], &create["objectRef"]["name"]),
        (&json!("v"), &json!("a")),
        "{create}"
    );
    assert_eq!(
        (&create["responseObject"]["kind"], &create["responseObject"]["reason"]),
        (&json!("Status"), &json!("AlreadyExists")),
        "{create}"
    );
    assert_eq!(rows["responseObject"]["rows"][0]["object"]["metadata"]["name"], "a", "{rows}");
    assert!(
        rows["responseObject"]["rows"][0]["object"]["metadata"].get("managedFields").is_none(),
        "{rows}"
    );
    assert_eq!(
        (&list["responseObject"]["kind"], &list["responseObject"]["items"][0]["data"]["k"]),
        (&json!("ConfigMapList"), &json!("v")),
        "{list}"
    );
    assert_eq!(delete["requestObject"]["propagationPolicy"], "Background", "{delete}");
    assert_eq!(delete["responseObject"]["status"], "Success", "{delete}");
    assert_eq!(collection["requestObject"]["gracePeriodSeconds"], 0, "{collection}");
    assert_eq!(
        (&collection["verb"], &collection["responseObject"]["kind"]),
        (&json!("deletecollection"), &json!("ConfigMapList")),
        "{collection}"
    );
}
