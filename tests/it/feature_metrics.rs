//! Metrics of features in the components, and what they and events say about a transition.

use crate::FERROKUBE;
use crate::controllers::ManagerProcess;
use ferrokube_testkit::{BOUND, Launch, wait_until};

#[tokio::test]
async fn p10_the_controller_manager_says_which_features_are_on() {
    let cluster = Launch::new(FERROKUBE).role("apiserver").start().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let flag = "--feature-gates=LogTracking=false";
    let manager = ManagerProcess::start(&cluster.kubeconfig(), log, &[flag]);
    let address = wait_until("it listens", BOUND, async || {
        let log = manager.log();
        let line = log.lines().find(|line| line.contains("listening for health and metrics"));
        let found = line.and_then(|line| {
            let (_, rest) = line.split_once("127.0.0.1:")?;
            rest.split(|letter: char| !letter.is_ascii_digit()).next().map(str::to_owned)
        });
        found.ok_or(log)
    })
    .await;
    // Chooses the process's crypto provider.
    drop(cluster.admin().unwrap());
    let client =
        reqwest::Client::builder().no_proxy().danger_accept_invalid_certs(true).build().unwrap();
    let metrics = client.get(format!("https://127.0.0.1:{address}/metrics")).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    for line in [
        "kubernetes_feature_enabled{name=\"LogTracking\",stage=\"BETA\"} 0\n",
        "kubernetes_feature_enabled{name=\"FeatureAPI\",stage=\"ALPHA\"} 0\n",
        "leader_election_master_status{",
    ] {
        assert!(metrics.contains(line), "{metrics}");
    }
}
