//! The LeaseCandidate of a process (KEP-4355): it names the lease that it applies for, and answers
//! the coordinator's pings.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// Between renewals without a ping, as in client-go.
const RENEWAL: Duration = Duration::from_secs(5 * 60);

/// Versions by which a candidate is chosen: the oldest one that is emulated leads, so that an
/// upgrade of one of several processes changes nothing yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidateVersions {
    /// Version of the program, such as `1.36.0`.
    pub binary: String,
    /// Version that it emulates.
    pub emulation: String,
}

/// A candidate for a lease.
pub(crate) struct Candidacy {
    candidates: Api<DynamicObject>,
    kind: ApiResource,
    lease: String,
    name: String,
    versions: CandidateVersions,
    /// The last ping that was answered.
    answered: Option<String>,
    renewed: Option<Instant>,
}

impl Candidacy {
    /// Namespace and name of the lease, and the identity, which is the candidate's name.
    pub(crate) fn new(
        client: Client,
        [namespace, lease, identity]: [&str; 3],
        versions: CandidateVersions,
    ) -> Self {
        let kind = GroupVersionKind::gvk("coordination.k8s.io", "v1beta1", "LeaseCandidate");
        let kind = ApiResource::from_gvk(&kind);
        Self {
            candidates: Api::namespaced_with(client, namespace, &kind),
            kind,
            lease: lease.to_owned(),
            name: identity.to_owned(),
            versions,
            answered: None,
            renewed: None,
        }
    }

    /// Creates the candidate if it is missing, and renews it if it is due or was pinged.
    pub(crate) async fn keep(&mut self) -> Result<(), kube::Error> {
        let now = MicroTime(jiff::Timestamp::now());
        let Some(mut stored) = self.candidates.get_opt(&self.name).await? else {
            let spec = json!({ "spec": {
                "leaseName": self.lease,
                "binaryVersion": self.versions.binary,
                "emulationVersion": self.versions.emulation,
                "strategy": "OldestEmulationVersion",
                "renewTime": now,
            }});
            let candidate = DynamicObject::new(&self.name, &self.kind).data(spec);
            self.candidates.create(&PostParams::default(), &candidate).await?;
            self.renewed = Some(Instant::now());
            return Ok(());
        };
        let ping = stored.data["spec"]["pingTime"].as_str().map(str::to_owned);
        let is_due = self.renewed.is_none_or(|renewed| renewed.elapsed() >= RENEWAL);
        if ping != self.answered || is_due {
            stored.data["spec"]["renewTime"] = json!(now);
            match self.candidates.replace(&self.name, &PostParams::default(), &stored).await {
                Ok(_) => {
                    self.answered = ping;
                    self.renewed = Some(Instant::now());
                }
                // Pinged in the meantime: answered by the next attempt.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
