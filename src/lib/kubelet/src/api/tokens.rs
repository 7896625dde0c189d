//! Cached service account tokens bound to pods, renewed before they expire.

use crate::objects::PodObjectError;
use crate::pod::NodePod;
use k8s_openapi::api::authentication::v1::{
    BoundObjectReference, TokenRequest, TokenRequestSpec, TokenRequestStatus,
};
use k8s_openapi::api::core::v1::{ServiceAccount, ServiceAccountTokenProjection};
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// The API's default lifetime; seconds.
const DEFAULT_SECONDS: i64 = 3600;
/// Age at which any token is renewed, as in kubelet.
const LONGEST_USE: Duration = Duration::from_secs(24 * 3600);
/// Idle time after which a token is evicted: its pod is gone.
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// Bounded by the volumes of the node's pods.
#[derive(Default)]
pub(super) struct PodTokens(Mutex<BTreeMap<TokenKey, BoundToken>>);

/// UID of the pod, audience and lifetime.
type TokenKey = (String, Option<String>, i64);

#[derive(Clone)]
struct BoundToken {
    granted: TokenRequestStatus,
    renewed_from: Instant,
    valid_until: Instant,
    used: Instant,
}

impl BoundToken {
    fn new(granted: TokenRequestStatus, life: Duration) -> Self {
        let used = Instant::now();
        // Four fifths of its lifetime, as in kubelet.
        let renewed_from = used + (life * 4 / 5).min(LONGEST_USE);
        Self { granted, renewed_from, valid_until: used + life, used }
    }
}

impl PodTokens {
    /// A cached or new token; `None` if the server returned none. If renewal fails, the old token
    /// is used while it is valid.
    pub(super) async fn get(
        &self,
        client: Client,
        pod: &NodePod,
        wanted: &ServiceAccountTokenProjection,
    ) -> Result<Option<TokenRequestStatus>, PodObjectError> {
        if pod.is_static {
            return Err(PodObjectError::NoSource("service account tokens"));
        }
        let seconds = wanted.expiration_seconds.unwrap_or(DEFAULT_SECONDS);
        let audience = wanted.audience.clone().filter(|audience| !audience.is_empty());
        let key = (pod.uid.clone(), audience.clone(), seconds);
        let now = Instant::now();
        let kept = self.0.lock().get_mut(&key).map(|kept| {
            kept.used = now;
            kept.clone()
        });
        if let Some(kept) = kept.as_ref().filter(|kept| now < kept.renewed_from) {
            return Ok(Some(kept.granted.clone()));
        }
        match request(client, pod, audience, seconds).await {
            Ok(Some(new)) => {
                let granted = new.granted.clone();
                let mut all = self.0.lock();
                all.retain(|_, kept| kept.used.elapsed() < FORGOTTEN);
                all.insert(key, new);
                Ok(Some(granted))
            }
            Ok(None) => Ok(None),
            Err(error) => match kept.filter(|kept| now < kept.valid_until) {
                Some(kept) => {
                    tracing::warn!(namespace = pod.namespace, pod = pod.name, %error, "token");
                    Ok(Some(kept.granted))
                }
                None => Err(error),
            },
        }
    }
}

async fn request(
    client: Client,
    pod: &NodePod,
    audience: Option<String>,
    seconds: i64,
) -> Result<Option<BoundToken>, PodObjectError> {
    let account = pod.service_account();
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
    };
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: audience.map(|audience| vec![audience]),
            bound_object_ref: Some(bound),
            expiration_seconds: Some(seconds),
        }),
        ..TokenRequest::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(client, &pod.namespace);
    let made = accounts.create_token_request(account, &PostParams::default(), &request).await;
    let answer = made.map_err(|error| {
        let why = error.to_string();
        PodObjectError::Unread { kind: "a token of serviceaccount", name: account.to_owned(), why }
    })?;
    // The server may grant a shorter lifetime.
    let granted = answer.spec.and_then(|spec| spec.expiration_seconds).unwrap_or(seconds);
    let life = Duration::from_secs(u64::try_from(granted.min(seconds)).unwrap_or(0));
    let granted = answer.status.filter(|status| status.token.is_some());
    Ok(granted.map(|granted| BoundToken::new(granted, life)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_is_renewed_after_four_fifths_of_its_life_or_a_day() {
        let now = Instant::now();
        let after = |seconds| {
            let kept = BoundToken::new(TokenRequestStatus::default(), Duration::from_secs(seconds));
            (kept.renewed_from - now).as_secs()
        };
        assert_eq!(after(600), 480);
        assert_eq!(after(3600), 2880);
        assert_eq!(after(365 * 24 * 3600), 24 * 3600);
    }
}
