//! `TokenRequest`: the `token` subresource of service accounts.

use super::bound::BoundKind;
use super::claims::{Claims, Reference, from_unix, unix};
use super::service_account::{Inner, ServiceAccountTokens};
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::field::FieldError;
use ferrokube_apimachinery::gvk::GroupResource;
use ferrokube_apimachinery::status::{Failure, Reason};
use ferrokube_apimachinery::time;
use ferrokube_registry::catalog::{ComputedCall, ComputedFuture};
use ferrokube_registry::offload::{INLINE_BYTES, leave_worker_for};
use ferrokube_registry::{ComputedResource, RequestContext, Target};
use ferrokube_storage::Need;

/// Lifetimes of tokens: default, min and max.
const DEFAULT_SECONDS: i64 = 3_600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;

/// Microseconds of a slow signature: with RSA of 2048 bits one millisecond, of 4096 bits six.
const SIGNING_MICROS: u64 = 2_000;

impl ComputedResource for ServiceAccountTokens {
    fn fill_in(&self, object: &mut Document) {
        if object.get(&["spec", "expirationSeconds"]).is_none_or(Value::is_null) {
            object.set(&["spec", "expirationSeconds"], DEFAULT_SECONDS);
        }
    }

    /// Controllers complete deletions.
    fn need(&self, target: &Target) -> Need {
        match target.namespace.as_deref() {
            Some("kube-system") => Need::Essential,
            _ => Need::Ordinary,
        }
    }

    fn create<'a>(&'a self, call: ComputedCall<'a>, object: Document) -> ComputedFuture<'a> {
        let ComputedCall { context, target, .. } = call;
        let (namespace, name) = (
            target.namespace.as_deref().unwrap_or_default(),
            target.name.as_deref().unwrap_or_default(),
        );
        Box::pin(async move {
            if let Some(micros) = self.inner.long_micros(namespace, &object) {
                leave_worker_for(micros).await;
            }
            self.inner.issue(context, namespace, name, object)
        })
    }
}

impl Inner {
    /// Microseconds of a request that takes long: to sign, or to read the object that the token is
    /// to be bound to, which its owner writes.
    pub(super) fn long_micros(&self, namespace: &str, request: &Document) -> Option<u64> {
        let text = |field| request.str(&["spec", "boundObjectRef", field]).unwrap_or_default();
        let kind = match text("kind") {
            "Pod" => Some(BoundKind::Pod),
            "Node" => Some(BoundKind::Node),
            "Secret" => Some(BoundKind::Secret),
            _ => None,
        };
        let bytes = kind.map_or(0, |kind| self.objects.bytes(kind, namespace, text("name")));
        match self.signs_slowly() {
            true => Some(SIGNING_MICROS),
            false => (bytes > INLINE_BYTES).then_some(0),
        }
    }

    pub(super) fn issue(
        &self,
        context: &RequestContext,
        namespace: &str,
        name: &str,
        mut request: Document,
    ) -> Result<Document, Failure> {
        check_metadata(&request, namespace, name)?;
        let account = self
            .objects
            .facts(BoundKind::ServiceAccount, namespace, name)
            .ok_or_else(|| Failure::not_found(&GroupResource::new("", "serviceaccounts"), name))?;
        if !request.uid().is_empty() && request.uid() != &*account.uid {
            let why = format!(
                "the UID in the token request ({}) does not match the UID of the service account ({})",
                request.uid(),
                account.uid
            );
            return Err(Failure::conflict(
                &GroupResource::new("authentication.k8s.io", "TokenRequest"),
                name,
                &why,
            ));
        }
        let audiences = self.audiences(&request);
        let asked = asked_seconds(&request)?;
        let issued = unix(context.now);
        let account = Reference { name: name.to_owned(), uid: account.uid.to_string() };
        let mut claims = Claims {
            issuer: self.config.issuers[0].clone(),
            audiences: audiences.clone(),
            issued,
            not_before: issued,
            expires: issued,
            id: uuid::Uuid::new_v4().to_string(),
            namespace: namespace.to_owned(),
            account,
            ..Claims::default()
        };
        self.bind(&request, &mut claims)?;
        let seconds = self.shortened(context, asked);
        claims.expires = issued.saturating_add(seconds);
        context.annotate_audit(
            "authentication.kubernetes.io/issued-credential-id",
            format!("JTI={}", claims.id),
        );
        answer(&mut request, &claims, seconds, context);
        request.set(&["status", "token"], self.sign(&claims));
        Ok(request)
    }

    fn audiences(&self, request: &Document) -> Vec<String> {
        let asked: Vec<String> = request
            .list(&["spec", "audiences"])
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect();
        if asked.is_empty() { self.config.api_audiences.clone() } else { asked }
    }

    /// Caps the lifetime at the server's maximum, with a warning.
    fn shortened(&self, context: &RequestContext, asked: i64) -> i64 {
        let most = self
            .config
            .max_life
            .map_or(MAX_SECONDS, |life| i64::try_from(life.as_secs()).unwrap_or(MAX_SECONDS))
            .max(MIN_SECONDS);
        if asked > most {
            context.warn(format!(
                "requested expiration of {asked} seconds shortened to {most} seconds"
            ));
        }
        asked.min(most)
    }

    /// Binds the token to the object in the request.
    fn bind(&self, request: &Document, claims: &mut Claims) -> Result<(), Failure> {
        let Some(reference) =
            request.get(&["spec", "boundObjectRef"]).filter(|value| !value.is_null())
        else {
            return Ok(());
        };
        let text = |field: &str| reference.get(field).and_then(Value::as_str).unwrap_or_default();
        // As in kube-apiserver, of the API version only the (core) group is checked.
        let (group, version) =
            text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
        let (kind, resource) = match (group, text("kind")) {
            ("", "Pod") => (BoundKind::Pod, "pods"),
            ("", "Node") => (BoundKind::Node, "nodes"),
            ("", "Secret") => (BoundKind::Secret, "secrets"),
            (group, kind) => {
                return Err(Failure::bad_request(format!(
                    "cannot bind token to object of type {group}/{version}, Kind={kind}"
                )));
            }
        };
        let name = text("name");
        if name.is_empty() {
            return Err(Failure::bad_request("Name parameter required."));
        }
        let object = self
            .objects
            .get(kind, &claims.namespace, name)
            .ok_or_else(|| Failure::not_found(&GroupResource::new("", resource), name))?;
        // As in kube-apiserver, before the uid is compared.
        if kind == BoundKind::Pod {
            self.bind_pod(&object, claims)?;
        }
        if !text("uid").is_empty() && text("uid") != object.uid() {
            let why = format!(
                "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
                text("uid")
            );
            return Err(Failure::conflict(&GroupResource::new("", text("kind")), name, &why));
        }
        let bound = Some(Reference { name: name.to_owned(), uid: object.uid().to_owned() });
        match kind {
            BoundKind::Pod => claims.pod = bound,
            BoundKind::Node => claims.node = bound,
            _ => claims.secret = bound,
        }
        Ok(())
    }

    fn bind_pod(&self, pod: &Document, claims: &mut Claims) -> Result<(), Failure> {
        if pod.str(&["spec", "serviceAccountName"]) != Some(&claims.account.name) {
            let why = format!(
                "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                claims.account.name
            );
            return Err(Failure::new(Reason::BadRequest, why));
        }
        if let Some(node) = pod.str(&["spec", "nodeName"]).filter(|node| !node.is_empty()) {
            // A kubelet makes its Node as long as it likes.
            let facts = self.objects.facts(BoundKind::Node, "", node);
            let uid = facts.map(|node| node.uid.to_string()).unwrap_or_default();
            claims.node = Some(Reference { name: node.to_owned(), uid });
        }
        Ok(())
    }
}

/// The requested lifetime. The error names no object, as kube-apiserver's.
fn asked_seconds(request: &Document) -> Result<i64, Failure> {
    let asked = request
        .get(&["spec", "expirationSeconds"])
        .and_then(Value::as_i64)
        .unwrap_or(DEFAULT_SECONDS);
    let why = match asked {
        ..MIN_SECONDS => "may not specify a duration less than 10 minutes",
        MIN_SECONDS..=MAX_SECONDS => return Ok(asked),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let error = FieldError::invalid("spec.expirationSeconds", asked, why);
    Err(Failure::invalid("authentication.k8s.io", "TokenRequest", "", &[error]))
}

fn check_metadata(request: &Document, namespace: &str, name: &str) -> Result<(), Failure> {
    if !request.namespace().is_empty() && request.namespace() != namespace {
        return Err(Failure::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    if !request.name().is_empty() && request.name() != name {
        let error = FieldError::invalid(
            "metadata.name",
            request.name(),
            "must match the service account name if specified",
        );
        return Err(Failure::invalid("authentication.k8s.io", "TokenRequest", name, &[error]));
    }
    Ok(())
}

/// Fills in the response, except for the token.
fn answer(request: &mut Document, claims: &Claims, seconds: i64, context: &RequestContext) {
    request.set(&["apiVersion"], "authentication.k8s.io/v1");
    request.set(&["kind"], "TokenRequest");
    request.set(&["metadata", "name"], claims.account.name.as_str());
    request.set(&["metadata", "namespace"], claims.namespace.as_str());
    request.set(&["metadata", "uid"], claims.account.uid.as_str());
    request.set(&["metadata", "creationTimestamp"], time::rfc3339_seconds(context.now));
    request.set(&["spec", "audiences"], json!(claims.audiences));
    request.set(&["spec", "expirationSeconds"], seconds);
    if request.get(&["spec", "boundObjectRef"]).is_none() {
        request.set(&["spec", "boundObjectRef"], Value::Null);
    }
    request.remove(&["status"]);
    request
        .set(&["status", "expirationTimestamp"], time::rfc3339_seconds(from_unix(claims.expires)));
}
