//! The Service `default/kubernetes`: its endpoints are the servers that live.

use crate::FERROKUBE;
use ferrokube_etcd::testing::EtcdProcess;
use ferrokube_testkit::{BOUND, Client, Cluster, Launch, newest_kubectl, wait_until};
use serde_json::{Value, json};

const SERVICE: &str = "/api/v1/namespaces/default/services/kubernetes";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/kubernetes";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";

fn launch(flags: &[&str]) -> Launch {
    let launch = Launch::new(FERROKUBE).role("apiserver").flag("--profile=kubernetes");
    flags.iter().fold(launch, |launch, flag| launch.flag(*flag))
}

fn port(server: &Cluster) -> u64 {
    server.url().rsplit(':').next().unwrap().parse().unwrap()
}

/// Waits for Endpoints and slice with these addresses, and returns both.
async fn endpoints(client: &Client, addresses: &[&str]) -> [Value; 2] {
    wait_until(&format!("endpoints are {addresses:?}"), BOUND, || async {
        let found = client.get(ENDPOINTS).await.map_err(|error| error.to_string())?;
        let slice = client.get(SLICE).await.map_err(|error| error.to_string())?;
        let subsets = found.body["subsets"].as_array().cloned().unwrap_or_default();
        let listed = subsets.iter().flat_map(|subset| subset["addresses"].as_array().unwrap());
        let listed: Vec<&str> = listed.filter_map(|one| one["ip"].as_str()).collect();
        let points = slice.body["endpoints"].as_array().cloned().unwrap_or_default();
        let mirrored: Vec<&str> =
            points.iter().filter_map(|point| point["addresses"][0].as_str()).collect();
        match (listed.as_slice(), mirrored.as_slice()) == (addresses, addresses) {
            true => Ok([found.body.clone(), slice.body.clone()]),
            false => Err(format!("{listed:?}, {mirrored:?}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_an_endpoint_while_it_runs() {
    let mut server = launch(&["--advertise-address=10.1.1.1"]).start().unwrap();
    let client = server.admin().unwrap();
    let service = client.get(SERVICE).await.unwrap().body;
    assert_eq!(service["spec"]["clusterIP"], "10.0.0.1", "{service}");
    assert_eq!(service["spec"]["ports"][0]["targetPort"], port(&server));
    assert_eq!(service["metadata"]["labels"]["component"], "apiserver");
    let [found, slice] = endpoints(&client, &["10.1.1.1"]).await;
    let port_of_server = json!([{"name": "https", "port": port(&server), "protocol": "TCP"}]);
    assert_eq!(found["subsets"][0]["ports"], port_of_server, "{found}");
    assert_eq!(slice["ports"], port_of_server, "{slice}");
    assert_eq!(found["metadata"]["labels"]["endpointslice.kubernetes.io/skip-mirror"], "true");
    assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "kubernetes");
    let shown = newest_kubectl().run(&server.kubeconfig(), &["get", "endpoints", "kubernetes"]);
    assert!(shown.stdout.contains(&format!("10.1.1.1:{}", port(&server))), "{}", shown.stdout);
    // Killed, and started elsewhere: nobody renews the old lease, which the store remembers.
    server.kill().unwrap();
    let flags = ["--profile=kubernetes", "--advertise-address=10.1.1.2"];
    server.restart_with(&flags).unwrap();
    endpoints(&server.admin().unwrap(), &["10.1.1.2"]).await;
    // Stopped: not even for the time of a lease.
    server.terminate().unwrap();
    server.restart_with(&["--profile=kubernetes"]).unwrap();
    endpoints(&server.admin().unwrap(), &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_nobody_reaches_is_no_endpoint() {
    for flags in [&[][..], &["--advertise-address=10.1.1.1", "--endpoint-reconciler-type=none"]] {
        let server = launch(flags).start().unwrap();
        let client = server.admin().unwrap();
        assert_eq!(client.get(SERVICE).await.unwrap().status, 200, "{flags:?}");
        assert_eq!(client.get(ENDPOINTS).await.unwrap().status, 404, "{flags:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_of_an_etcd_are_endpoints_until_they_die() {
    for executable in EtcdProcess::executables() {
        let directory = tempfile::tempdir().unwrap();
        let etcd = EtcdProcess::start(&executable, &directory.path().join("etcd"));
        let state = format!("--etcd-servers={}", etcd.url());
        let start = |address: &str| {
            launch(&[&state, &format!("--advertise-address={address}")]).start().unwrap()
        };
        let (one, mut other) = (start("10.1.1.1"), start("10.1.1.2"));
        let client = one.admin().unwrap();
        endpoints(&client, &["10.1.1.1", "10.1.1.2"]).await;
        other.kill().unwrap();
        endpoints(&client, &["10.1.1.1"]).await;
    }
}
