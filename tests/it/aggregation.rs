//! Aggregation: a second server behind the first, as real processes.

use crate::FERROKUBE;
use crate::library::RunningProgram;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferrokube_testkit::{ApiResponse, BOUND, Client, Cluster, Launch, newest_kubectl, wait_until};
use reqwest::Method;
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use serde_json::{Value, json};
use std::fs;
use std::net::Ipv4Addr;

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

/// A server, and one that it aggregates.
fn start(role: &str) -> (Cluster, Cluster) {
    let mut front = Launch::new(FERROKUBE).role(role).start().unwrap();
    let proxy_ca = front.data_dir().join("pki/front-proxy-ca.crt");
    let back = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag("--storage=memory")
        .flag("--tls-san=widgets.backs.svc")
        .flag(format!("--requestheader-client-ca-file={}", proxy_ca.display()))
        .flag("--requestheader-allowed-names=front-proxy-client")
        .start()
        .unwrap();
    let address = back.url().trim_start_matches("https://");
    front.restart_with(&[&format!("--service-address=widgets.backs={address}")]).unwrap();
    (front, back)
}

fn service(back: &Cluster) -> Value {
    let ca = fs::read(back.data_dir().join("pki/ca.crt")).unwrap();
    json!({
        "metadata": {"name": "v1.example.com"},
        "spec": {
            "group": "example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
            "caBundle": STANDARD.encode(ca), "service": {"namespace": "backs", "name": "widgets"},
        },
    })
}

async fn define_widgets(back: &Client) {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": open}}],
        },
    });
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(back.post(path, &definition).await.unwrap().status, 201);
}

async fn wait_for_reason(front: &Client, reason: &str) {
    wait_until("the condition of the API service", BOUND, async || {
        let service = front.get(&format!("{SERVICES}/v1.example.com")).await.unwrap();
        let condition = &service.body["status"]["conditions"][0];
        if condition["reason"] == reason { Ok(()) } else { Err(condition.to_string()) }
    })
    .await;
}

async fn freshness(front: &Client) -> Option<String> {
    // Instead of the client's own `Accept`.
    let accept = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(AGGREGATED))]);
    let request = front.request(Method::GET, "/apis").headers(accept);
    let answer = front.send(request).await.unwrap();
    let groups = answer.body["items"].as_array().cloned().unwrap_or_default();
    let group = groups.iter().find(|group| group["metadata"]["name"] == "example.com")?;
    Some(group["versions"][0]["freshness"].as_str().unwrap_or_default().to_owned())
}

fn as_user(client: &Client, method: Method, path: &str) -> reqwest::RequestBuilder {
    client.request(method, path).header("impersonate-user", "alice")
}

/// A program that was built with the library, behind the server.
#[tokio::test(flavor = "multi_thread")]
async fn the_aggregated_example_serves_its_kind_through_the_first_server() {
    let mut front = Launch::new(FERROKUBE).role("all-in-one").start().unwrap();
    let proxy_ca = front.data_dir().join("pki/front-proxy-ca.crt").display().to_string();
    let back =
        RunningProgram::example_with("aggregated", &[&proxy_ca, "halls.backs.svc", "127.0.0.1:0"]);
    let address = back.url.trim_start_matches("https://");
    front.restart_with(&[&format!("--service-address=halls.backs={address}")]).unwrap();
    let ca = fs::read(back.kubeconfig.with_file_name("pki").join("ca.crt")).unwrap();
    let service = json!({
        "metadata": {"name": "v1.stage.example.com"},
        "spec": {
            "group": "stage.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
            "caBundle": STANDARD.encode(ca), "service": {"namespace": "backs", "name": "halls"},
        },
    });
    let client = front.admin().unwrap();
    assert_eq!(client.post(SERVICES, &service).await.unwrap().status, 201);
    let kubectl = newest_kubectl();
    let run = |arguments: &[&str]| kubectl.run(&front.kubeconfig(), arguments);
    wait_until("the kind of the aggregated server", BOUND, async || {
        let listed = run(&["api-resources", "--api-group=stage.example.com", "-o", "name"]);
        if listed.stdout == "halls.stage.example.com\n" { Ok(()) } else { Err(listed.stdout) }
    })
    .await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let hall = json!({"apiVersion": "stage.example.com/v1", "kind": "Hall", "metadata": {"name": "big"}, "spec": {"seats": 500}});
    fs::write(file.path(), hall.to_string()).unwrap();
    let path = file.path().display().to_string();
    let applied = run(&["apply", "--server-side", "-f", &path]);
    assert_eq!(
        applied.stdout, "hall.stage.example.com/big serverside-applied\n",
        "{}",
        applied.stderr
    );
    let explained = run(&["explain", "hall.spec.seats"]);
    assert!(explained.stdout.contains("FIELD: seats <integer>"), "{explained:?}");
    // The front decides: a user without rights there is refused before the program sees it.
    let refused = run(&["get", "halls", "--as=alice"]);
    assert!(!refused.ok && refused.stderr.contains("(Forbidden)"), "{}", refused.stderr);
    let granted = run(&[
        "create",
        "clusterrole",
        "halls",
        "--verb=list",
        "--resource=halls.stage.example.com",
    ]);
    assert!(granted.ok, "{}", granted.stderr);
    assert!(
        run(&["create", "clusterrolebinding", "halls", "--clusterrole=halls", "--user=alice"]).ok
    );
    let listed = run(&["get", "halls", "--as=alice", "-o", "name"]);
    assert_eq!(listed.stdout, "hall.stage.example.com/big\n", "{}", listed.stderr);
    // Nobody gets past the front.
    let direct = reqwest::Client::builder().danger_accept_invalid_certs(true).build().unwrap();
    let path = format!("{}/apis/stage.example.com/v1/halls", back.url);
    let answer = direct.get(path).header("X-Remote-User", "admin").send().await.unwrap();
    assert_eq!(answer.status(), 401);
    let own = newest_kubectl().run(&back.kubeconfig, &["get", "halls"]);
    assert!(!own.ok && own.stderr.contains("must be logged in"), "{}", own.stderr);
}

#[tokio::test]
async fn an_aggregated_server_is_used_through_the_first_one() {
    let (front, back) = start("apiserver");
    let (client, back_client) = (front.admin().unwrap(), back.admin().unwrap());
    define_widgets(&back_client).await;
    assert_eq!(client.post(SERVICES, &service(&back)).await.unwrap().status, 201);
    wait_for_reason(&client, "Passed").await;

    // Requests and watches reach it, with the ids of log tracking.
    let mut events = client.watch("/apis/example.com/v1/widgets?watch=true").await.unwrap();
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let initial = "4bf92f3577b34da6a3ce929d0e0e4736";
    let create = client
        .request(Method::POST, WIDGETS)
        .header("content-type", "application/json")
        .header("traceparent", format!("00-{trace}-b7ad6b7169203331-01"))
        .header("initial-trace-id", initial)
        .body(
            json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}})
                .to_string(),
        );
    let created = client.send(create).await.unwrap();
    assert_eq!(created.status, 201, "{}", created.text);
    let annotations = &created.body["metadata"]["annotations"];
    assert_eq!(annotations["trace.kubernetes.io/trace-id"], trace);
    assert_eq!(annotations["trace.kubernetes.io/initial-trace-id"], initial);
    let event = events.next().await.unwrap().unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&json!("ADDED"), &json!("w"))
    );
    assert_eq!(back_client.get(&format!("{WIDGETS}/w")).await.unwrap().status, 200);

    // Both servers check the rights of the user, whatever the client says about itself.
    let forged = |request: reqwest::RequestBuilder| {
        request.header("x-remote-user", "root").header("x-remote-group", "system:masters")
    };
    let list = || forged(as_user(&client, Method::GET, WIDGETS));
    let refused = client.send(list()).await.unwrap();
    assert_eq!(refused.status, 403, "{}", refused.text);
    let role = json!({"metadata": {"name": "widgets"}, "rules": [{"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["list"]}]});
    let binding = json!({"metadata": {"name": "widgets"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "widgets"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]});
    let grant = async |client: &Client| {
        for (plural, object) in [("clusterroles", &role), ("clusterrolebindings", &binding)] {
            let path = format!("/apis/rbac.authorization.k8s.io/v1/{plural}");
            assert_eq!(client.post(&path, object).await.unwrap().status, 201);
        }
    };
    grant(&client).await;
    let refused = client.send(list()).await.unwrap();
    let user = "User \\\"alice\\\" cannot list resource";
    assert!(refused.status == 403 && refused.text.contains(user), "{}", refused.text);
    grant(&back_client).await;
    assert_eq!(client.send(list()).await.unwrap().status, 200);

    // Clients find it.
    assert_eq!(freshness(&client).await.as_deref(), Some("Current"));
    let kubectl = newest_kubectl();
    let got = kubectl.run(&front.kubeconfig(), &["get", "widgets", "-o", "name"]);
    assert_eq!(got.stdout.trim(), "widget.example.com/w", "{}", got.stderr);
    let groups = client.get("/apis").await.unwrap();
    assert_eq!(groups.body["groups"][0]["name"], "apiregistration.k8s.io");
    assert_eq!(client.get("/apis/example.com").await.unwrap().body["kind"], "APIGroup");

    // The OpenAPI documents have its kinds, too.
    wait_until("the merged document", BOUND, async || {
        let document = client.get("/openapi/v2").await.unwrap().body;
        let kind =
            &document["definitions"]["com.example.v1.Widget"]["x-kubernetes-group-version-kind"];
        let paths = document["paths"].as_object().unwrap();
        let path = "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}";
        let is_merged = paths.contains_key(path) && kind[0]["kind"] == "Widget";
        if is_merged { Ok(()) } else { Err(format!("{:?}", paths.keys())) }
    })
    .await;
    let explained = kubectl.run(&front.kubeconfig(), &["explain", "widgets"]);
    assert!(explained.stdout.contains("KIND:       Widget"), "{}", explained.stderr);

    // Without the object its paths are gone.
    assert_eq!(client.delete(&format!("{SERVICES}/v1.example.com")).await.unwrap().status, 200);
    wait_until("the group to be gone", BOUND, async || {
        match client.get(WIDGETS).await.unwrap().status {
            404 => Ok(()),
            other => Err(other.to_string()),
        }
    })
    .await;
    assert_eq!(freshness(&client).await, None);
    let document = client.get("/openapi/v2").await.unwrap().text;
    assert!(!document.contains("/apis/example.com/v1/"));
}

#[tokio::test]
async fn fault_26_an_unavailable_server_keeps_nothing_else_from_being_deleted() {
    let (front, mut back) = start("all-in-one");
    let client = front.admin().unwrap();
    define_widgets(&back.admin().unwrap()).await;
    assert_eq!(client.post(SERVICES, &service(&back)).await.unwrap().status, 201);
    wait_for_reason(&client, "Passed").await;
    let doomed = json!({"metadata": {"name": "doomed"}});
    assert_eq!(client.post("/api/v1/namespaces", &doomed).await.unwrap().status, 201);
    let maps = "/api/v1/namespaces/doomed/configmaps";
    let map = json!({"metadata": {"name": "m"}});
    assert_eq!(client.post(maps, &map).await.unwrap().status, 201);

    back.kill().unwrap();
    let failed = client.get(WIDGETS).await.unwrap();
    assert_eq!(failed.status, 503, "{}", failed.text);
    wait_for_reason(&client, "FailedDiscoveryCheck").await;
    assert_eq!(client.get(WIDGETS).await.unwrap().text, "service unavailable\n");
    assert_eq!(freshness(&client).await.as_deref(), Some("Stale"));
    let metrics = client.get("/metrics").await.unwrap().text;
    let unavailable = r#"aggregator_unavailable_apiservice{name="v1.example.com"} 1"#;
    assert!(metrics.contains(unavailable), "{metrics}");
    let outages = r#"aggregator_unavailable_apiservice_total{name="v1.example.com",reason="FailedDiscoveryCheck"} 1"#;
    assert!(metrics.contains(outages), "{metrics}");

    let namespace = "/api/v1/namespaces/doomed";
    assert_eq!(client.delete(namespace).await.unwrap().status, 200);
    wait_until("the content to be deleted", BOUND, async || {
        let maps = client.get(maps).await.unwrap();
        let left = maps.body["items"].as_array().map_or(0, Vec::len);
        if left == 0 { Ok(()) } else { Err(maps.text) }
    })
    .await;
    wait_until("the condition of the namespace", BOUND, async || {
        let namespace = client.get(namespace).await.unwrap();
        if namespace.text.contains("example.com/v1") { Ok(()) } else { Err(namespace.text) }
    })
    .await;
    // Nobody knows what the server has in the namespace, until it is declared gone.
    assert_eq!(client.delete(&format!("{SERVICES}/v1.example.com")).await.unwrap().status, 200);
    wait_until("the namespace to be gone", BOUND, async || {
        let namespace: ApiResponse = client.get(namespace).await.unwrap();
        if namespace.status == 404 { Ok(()) } else { Err(namespace.text) }
    })
    .await;
}

/// With profile kubernetes, services are objects, and found at their endpoints.
#[tokio::test]
async fn an_aggregated_server_is_found_at_the_endpoints_of_its_service() {
    let found = ferrokube_pki::main_addresses(Ipv4Addr::UNSPECIFIED.into());
    let address = found.first().expect("a machine with an address besides 127.0.0.1");
    let launch = Launch::new(FERROKUBE).role("apiserver").flag("--profile=kubernetes");
    let front = launch.start().unwrap();
    let proxy_ca = front.data_dir().join("pki/front-proxy-ca.crt");
    let back = Launch::new(FERROKUBE)
        .role("apiserver")
        .flag("--storage=memory")
        .flag("--tls-san=widgets.backs.svc")
        .flag(format!("--bind-address={address}"))
        .flag(format!("--requestheader-client-ca-file={}", proxy_ca.display()))
        .start()
        .unwrap();
    let client = front.admin().unwrap();
    define_widgets(&back.admin().unwrap()).await;
    let create = async |path: &str, object: Value| {
        let made = client.post(path, &object).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.text);
    };
    create(SERVICES, service(&back)).await;
    wait_for_reason(&client, "ServiceNotFound").await;
    create("/api/v1/namespaces", json!({"metadata": {"name": "backs"}})).await;
    let object = |port: u16| json!({"metadata": {"name": "widgets"}, "spec": {"ports": [{"name": "tls", "port": port}]}});
    let services = "/api/v1/namespaces/backs/services";
    create(services, object(444)).await;
    wait_for_reason(&client, "ServicePortError").await;
    let ports = json!({"spec": {"ports": [{"name": "tls", "port": 443}]}});
    let moved = client.merge(&format!("{services}/widgets"), &ports).await.unwrap();
    assert_eq!(moved.status, 200, "{}", moved.text);
    wait_for_reason(&client, "EndpointsNotFound").await;
    let port: u16 = back.url().rsplit(':').next().unwrap().parse().unwrap();
    let slices = "/apis/discovery.k8s.io/v1/namespaces/backs/endpointslices";
    let slice = json!({
        "metadata": {"name": "widgets-1", "labels": {"kubernetes.io/service-name": "widgets"}},
        "addressType": "IPv4", "ports": [{"name": "tls", "port": port}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": false}}],
    });
    create(slices, slice).await;
    wait_for_reason(&client, "MissingEndpoints").await;
    let ready = json!({"endpoints": [{"addresses": [address], "conditions": {"ready": true}}]});
    let moved = client.merge(&format!("{slices}/widgets-1"), &ready).await.unwrap();
    assert_eq!(moved.status, 200, "{}", moved.text);
    wait_for_reason(&client, "Passed").await;
    let widget =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    create(WIDGETS, widget).await;
}

#[tokio::test]
async fn a_service_that_claims_a_bundled_group_can_be_taken_back() {
    let mut front = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let client = front.admin().unwrap();
    let leases = "/apis/coordination.k8s.io/v1/leases";
    let own = format!("{SERVICES}/v1.coordination.k8s.io");
    let claim = json!({"spec": {"service": {"namespace": "none", "name": "none"}, "insecureSkipTLSVerify": true}});
    assert_eq!(client.merge(&own, &claim).await.unwrap().status, 200);
    wait_until("the group to be claimed", BOUND, async || {
        let answer = client.get(leases).await.unwrap();
        if answer.status == 503 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    wait_until("its condition", BOUND, async || {
        let text = client.get(&own).await.unwrap().text;
        let why = r#"service/none in \"none\" is not present"#;
        if text.contains("ServiceNotFound") && text.contains(why) { Ok(()) } else { Err(text) }
    })
    .await;
    // The group of API services itself cannot be claimed.
    let service = json!({"metadata": {"name": "v1.apiregistration.k8s.io"}, "spec": {
        "group": "apiregistration.k8s.io", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
        "insecureSkipTLSVerify": true, "service": {"namespace": "none", "name": "none"}}});
    assert_eq!(client.post(SERVICES, &service).await.unwrap().status, 201);
    let release = json!({"spec": {"service": null, "insecureSkipTLSVerify": null}});
    assert_eq!(client.merge(&own, &release).await.unwrap().status, 200);
    wait_until("the group to be back", BOUND, async || {
        let answer = client.get(leases).await.unwrap();
        if answer.status == 200 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    // A restart takes it back, too.
    assert_eq!(client.merge(&own, &claim).await.unwrap().status, 200);
    front.restart().unwrap();
    let client = front.admin().unwrap();
    assert_eq!(client.get(leases).await.unwrap().status, 200);
    let own = client.get(&own).await.unwrap();
    assert_eq!(own.body["spec"]["service"], Value::Null, "{}", own.text);
}
