//! How long a transition takes.

use crate::features::{
    FEATURES, annotated, is_state, remaining, restarted_with, server, stopped, wait_for,
    wait_while_time_passes,
};
use ferrokube_apimachinery::document::Value;
use std::time::Duration;
use tokio::time::Instant;

/// What components may take to report is all that it waits for.
#[tokio::test]
async fn a_transition_ends_with_its_evaluation() {
    const EVALUATION: Duration = Duration::from_secs(60);
    const MOST: Duration = Duration::from_secs(5);
    let path = format!("{FEATURES}/LogTracking");
    let server = server("").await;
    annotated(&server, 100).await;
    wait_for(&server, &path, is_state("On")).await;
    stopped(&server.plane).await;
    let off = restarted_with(&server, "LogTracking=false", |settings| {
        settings.evaluation = EVALUATION;
    });
    let (began, off) = (Instant::now(), off.await);
    let is_evaluated = |one: &Value| one["status"]["useEvaluationTime"] != Value::Null;
    wait_for(&server, &path, is_evaluated).await;
    let cleared = began.elapsed();
    assert_eq!(remaining(&server).await, 0);
    let began = Instant::now();
    wait_while_time_passes(&server, Duration::from_millis(200), is_state("Off")).await;
    let evaluated = began.elapsed();
    // A machine that is busy may take longer to clear the objects.
    assert!(evaluated > EVALUATION - MOST && evaluated < EVALUATION + MOST, "{evaluated:?}");
    println!("cleared in {cleared:?}, evaluated in {evaluated:?}");
    stopped(&off).await;
}
