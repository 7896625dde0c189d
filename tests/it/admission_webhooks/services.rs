//! Webhooks behind Services that are objects: where their endpoints are, or at their cluster IP.

use super::server::ReviewServer;
use super::{CONFIG_MAPS, GROUP, hook, labelled, register};
use crate::FERROKUBE;
use ferrokube_testkit::{ApiResponse, Client, Launch};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};

const SERVICES: &str = "/api/v1/namespaces/hooks/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/hooks/endpointslices";

/// An address of this machine that endpoints may have: those of its loopback interface may not.
fn own_address() -> IpAddr {
    let found = ferrokube_pki::main_addresses(Ipv4Addr::UNSPECIFIED.into());
    found.into_iter().next().expect("a machine with an address besides 127.0.0.1")
}

async fn create(admin: &Client, path: &str, object: Value) {
    let made = admin.post(path, &object).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.text);
}

async fn write(admin: &Client) -> ApiResponse {
    admin.post(&format!("{CONFIG_MAPS}?dryRun=All"), &labelled("a", "a")).await.unwrap()
}

#[tokio::test]
async fn webhooks_are_called_where_their_services_are() {
    let address = own_address();
    let server = ReviewServer::at(address).await;
    let launch = Launch::new(FERROKUBE).role("apiserver").flag("--profile=kubernetes");
    let mut cluster = launch.start().unwrap();
    let admin = cluster.admin().unwrap();
    create(&admin, "/api/v1/namespaces", json!({"metadata": {"name": "hooks"}})).await;
    let mut behind = hook(&server, "deny", "a");
    behind["clientConfig"] = server.service_config("/deny");
    register(&admin, false, "v", vec![behind]).await;
    let refused = write(&admin).await;
    let want = "Post \"https://reviews.hooks.svc:443/deny\": service \"reviews\" not found";
    assert!(refused.body["message"].as_str().unwrap().ends_with(want), "{}", refused.text);
    let service = json!({"metadata": {"name": "reviews"},
        "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 9443}]}});
    create(&admin, SERVICES, service).await;
    let refused = write(&admin).await;
    let want = "no endpoints available for service \"reviews\"";
    assert!(refused.body["message"].as_str().unwrap().ends_with(want), "{}", refused.text);
    let slice = json!({
        "metadata": {"name": "reviews-1", "labels": {"kubernetes.io/service-name": "reviews"}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": server.port}],
        "endpoints": [
            {"addresses": ["198.51.100.1"], "conditions": {"ready": false}},
            {"addresses": [address.to_string()]},
        ],
    });
    create(&admin, SLICES, slice).await;
    let want = "admission webhook \"deny.example.com\" denied the request: not today";
    assert_eq!(write(&admin).await.body["message"], want);

    cluster.restart_with(&["--profile=kubernetes", "--enable-aggregator-routing=false"]).unwrap();
    let admin = cluster.admin().unwrap();
    assert!(write(&admin).await.text.contains("the service has no ClusterIP"));
    assert_eq!(admin.delete(&format!("{SERVICES}/reviews")).await.unwrap().status, 200);
    // A proxy of services would have the address on this machine.
    let service = json!({"metadata": {"name": "reviews"},
        "spec": {"clusterIP": address.to_string(), "ports": [{"port": server.port}]}});
    create(&admin, SERVICES, service).await;
    let path = format!("{GROUP}/validatingwebhookconfigurations/v");
    let mut moved = admin.get(&path).await.unwrap().body;
    moved["webhooks"][0]["clientConfig"]["service"]["port"] = json!(server.port);
    let moved = admin.put(&path, &moved).await.unwrap();
    assert_eq!(moved.status, 200, "{}", moved.text);
    assert_eq!(write(&admin).await.body["message"], want);
}
