//! Removes requests that are over: an hour after a decision, a day after a create without one, and
//! at the end of the certificate.

use super::{APPROVED, DENIED, FAILED, WORKERS};
use super::{certificate, condition, is_issued, watch};
use crate::queue::{Next, WorkQueue};
use crate::rest::code;
use ferrokube_pki::CertificateFacts;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use std::time::{Duration, SystemTime};

/// After an approval with its certificate, a denial or a failure; kube-controller-manager's.
const DECIDED: Duration = Duration::from_secs(3600);
/// After a create without a decision, or an approval without a certificate.
const PENDING: Duration = Duration::from_secs(24 * 3600);

/// Runs until dropped.
pub(crate) async fn run(client: Client) {
    let queue: WorkQueue<String> = WorkQueue::default();
    let watch = watch(client.clone(), &queue);
    let work = queue.run("certificatesigningrequest-cleaner", WORKERS, move |name, trace| {
        clean(trace.client(&client), name)
    });
    tokio::join!(watch, work);
}

async fn clean(client: Client, name: String) -> Result<Next, kube::Error> {
    let requests: Api<CertificateSigningRequest> = Api::all(client);
    let Some(request) = requests.get_opt(&name).await? else { return Ok(Next::Done) };
    let Some(left) = remaining(&request, SystemTime::now()) else { return Ok(Next::Done) };
    if !left.is_zero() {
        return Ok(Next::After(left));
    }
    let preconditions =
        Preconditions { uid: request.uid(), resource_version: request.resource_version() };
    let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match requests.delete(&name, &parameters).await {
        // Changed: the watch wakes us again.
        Err(error) if matches!(code(&error), 404 | 409) => Ok(Next::Done),
        other => other.map(|_| Next::Done),
    }
}

/// Time until the removal; `None` without a time to count from.
fn remaining(request: &CertificateSigningRequest, now: SystemTime) -> Option<Duration> {
    let after = |time: Option<&Time>, delay| time.map(|time| SystemTime::from(time.0) + delay);
    let decided = |kind, delay| {
        condition(request, kind).and_then(|it| after(it.last_update_time.as_ref(), delay))
    };
    let approved = if is_issued(request) { DECIDED } else { PENDING };
    let is_pending = request.status.as_ref().is_none_or(|status| {
        status.conditions.as_deref().unwrap_or_default().is_empty() && !is_issued(request)
    });
    let created = request.metadata.creation_timestamp.as_ref().filter(|_| is_pending);
    let facts = certificate(request).and_then(|pem| CertificateFacts::read_all(pem).ok());
    let ends = [
        decided(APPROVED, approved),
        decided(DENIED, DECIDED),
        decided(FAILED, DECIDED),
        after(created, PENDING),
        facts.and_then(|facts| facts.first().map(|first| first.not_after)),
    ];
    let end = ends.into_iter().flatten().min()?;
    Some(end.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::add_condition;
    use super::super::tests::{NODE, USAGES, request};
    use super::*;
    use k8s_openapi::ByteString;
    use k8s_openapi::jiff::Timestamp;

    #[test]
    fn requests_stay_for_as_long_as_somebody_may_need_them() {
        let now = SystemTime::now();
        let left = |request: &CertificateSigningRequest| {
            remaining(request, now).map(|left| left.as_secs() / 60)
        };
        let mut pending = request(&NODE, &[], &USAGES);
        assert_eq!(left(&pending), None, "without a time");
        pending.metadata.creation_timestamp = Some(Time(Timestamp::now()));
        assert_eq!(left(&pending), Some(24 * 60));
        let with = |kind: &str| {
            let mut decided = pending.clone();
            add_condition(&mut decided, kind, "Test", String::new());
            decided
        };
        assert_eq!(left(&with(DENIED)), Some(60));
        assert_eq!(left(&with(FAILED)), Some(60));
        assert_eq!(left(&with(APPROVED)), Some(24 * 60), "no certificate yet");
        let mut issued = with(APPROVED);
        issued.status.as_mut().expect("a status").certificate = Some(ByteString(b"x".to_vec()));
        assert_eq!(left(&issued), Some(60));
        assert_eq!(remaining(&issued, now + Duration::from_secs(7200)), Some(Duration::ZERO));
    }
}
