//! The kubelet's serving certificate, requested from the API server.

use super::node::{NODE, NodeUnderTest};
use ferrokube_testkit::{BOUND, Client, wait_until};
use serde_json::json;
use std::fs;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

#[tokio::test(flavor = "multi_thread")]
async fn a_requested_serving_certificate_is_served_once_it_is_approved() {
    let settings = json!({"serverTLSBootstrap": true});
    let Some(node) = NodeUnderTest::start_with(settings).await else { return };
    let port = || async {
        let found = node.admin.get(&format!("/api/v1/nodes/{NODE}")).await.unwrap();
        let port = found.body["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
        port.ok_or(found.text)
    };
    let port = wait_until("the node says its port", BOUND, port).await;
    let ca = fs::read(node.server.data_dir().join("pki/client-ca.crt")).unwrap();
    let url = format!("https://127.0.0.1:{port}");
    // Verified by name and CA; without credentials.
    let status = async || {
        let client = Client::new(&url, &ca, None, None).unwrap();
        client.get("/healthz").await.map(|response| response.status)
    };
    let request = || async {
        let requests = node.admin.get(REQUESTS).await.unwrap();
        let all = requests.body["items"].as_array().cloned().unwrap_or_default();
        let own =
            |it: &&serde_json::Value| it["spec"]["signerName"] == "kubernetes.io/kubelet-serving";
        all.iter().find(own).cloned().ok_or_else(|| node.log())
    };
    let mut request = wait_until("a certificate is requested", BOUND, request).await;
    assert!(status().await.is_err(), "self-signed until then");
    assert!(request["status"]["conditions"].is_null(), "approved by people only");
    let name = request["metadata"]["name"].as_str().unwrap().to_owned();
    request["status"] = json!({"conditions": [
        {"type": "Approved", "status": "True", "reason": "Test", "message": "its names are right"}]});
    let approved = node.admin.put(&format!("{REQUESTS}/{name}/approval"), &request).await.unwrap();
    assert_eq!(approved.status, 200, "{}", approved.text);
    let served = || async {
        let status = status().await;
        if matches!(status, Ok(401)) { Ok(()) } else { Err(format!("{status:?}\n{}", node.log())) }
    };
    wait_until("it is served", BOUND, served).await;
}
