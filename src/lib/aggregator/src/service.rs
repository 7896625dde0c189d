//! APIServices as the loops and the proxy read them.

use ferrokube_apimachinery::document::{Document, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// API group of APIServices. Always served locally, regardless of APIServices: otherwise one that
/// locks all users out could not be removed.
pub const GROUP: &str = "apiregistration.k8s.io";
/// Plural name of APIServices.
pub const PLURAL: &str = "apiservices";
/// How the registration loop maintains an APIService.
pub(crate) const MANAGED_LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";
const AVAILABLE: &str = "Available";

/// All APIServices by name.
pub(crate) type Known = Arc<BTreeMap<String, Arc<RegisteredService>>>;

/// Fields of an APIService that count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegisteredService {
    pub(crate) uid: String,
    pub(crate) group: String,
    pub(crate) version: String,
    /// Value of [`MANAGED_LABEL`].
    pub(crate) managed: Option<String>,
    pub(crate) group_priority: i64,
    pub(crate) version_priority: i64,
    /// `None`: served by this server.
    pub(crate) remote: Option<RemoteService>,
    pub(crate) condition: Option<Available>,
}

/// The service that serves an aggregated group version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteService {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) port: u16,
    /// PEM in base64.
    pub(crate) ca_bundle: String,
    pub(crate) insecure: bool,
}

/// The condition `Available`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Available {
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Available {
    pub(crate) fn new(status: &str, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status: status.to_owned(), reason: reason.into(), message: message.into() }
    }

    /// Availability of APIServices that this server itself serves.
    pub(crate) fn local() -> Self {
        Self::new("True", "Local", "Local APIServices are always available")
    }

    fn of(object: &Document) -> Option<Self> {
        let condition = object
            .list(&["status", "conditions"])
            .iter()
            .find(|condition| text(condition, "type") == AVAILABLE)?;
        let [status, reason, message] =
            ["status", "reason", "message"].map(|field| text(condition, field).to_owned());
        Some(Self { status, reason, message })
    }

    pub(crate) fn is_true(&self) -> bool {
        self.status == "True"
    }

    /// Puts the condition into an object. The transition time changes with the status only.
    pub(crate) fn put(&self, object: &mut Document, now: &str) {
        let mut conditions = object.list(&["status", "conditions"]).to_vec();
        let old = conditions.iter().position(|known| text(known, "type") == AVAILABLE);
        let since = old
            .map(|at| &conditions[at])
            .filter(|known| text(known, "status") == self.status)
            .map_or(now, |known| text(known, "lastTransitionTime"))
            .to_owned();
        let mut condition = Document::new();
        for (field, value) in [
            ("type", AVAILABLE),
            ("status", &self.status),
            ("lastTransitionTime", &since),
            ("reason", &self.reason),
            ("message", &self.message),
        ] {
            condition.set(&[field], value);
        }
        match old {
            Some(at) => conditions[at] = condition.into_value(),
            None => conditions.push(condition.into_value()),
        }
        object.set(&["status", "conditions"], conditions);
    }
}

impl RegisteredService {
    pub(crate) fn of(object: &Document) -> Self {
        let spec = |field: &str| object.str(&["spec", field]).unwrap_or_default().to_owned();
        let number =
            |field: &str| object.get(&["spec", field]).and_then(Value::as_i64).unwrap_or_default();
        let insecure = object.get(&["spec", "insecureSkipTLSVerify"]).and_then(Value::as_bool);
        let remote =
            object.get(&["spec", "service"]).filter(|service| !service.is_null()).map(|service| {
                RemoteService {
                    namespace: text(service, "namespace").to_owned(),
                    name: text(service, "name").to_owned(),
                    port: service
                        .get("port")
                        .and_then(Value::as_i64)
                        .and_then(|port| u16::try_from(port).ok())
                        .unwrap_or(443),
                    ca_bundle: spec("caBundle"),
                    insecure: insecure == Some(true),
                }
            });
        Self {
            uid: object.uid().to_owned(),
            group: spec("group"),
            version: spec("version"),
            managed: object.str(&["metadata", "labels", MANAGED_LABEL]).map(str::to_owned),
            group_priority: number("groupPriorityMinimum"),
            version_priority: number("versionPriority"),
            remote,
            condition: Available::of(object),
        }
    }

    /// Whether requests go to another server.
    pub(crate) fn is_routed(&self) -> bool {
        self.remote.is_some() && self.group != GROUP
    }

    pub(crate) fn is_available(&self) -> bool {
        self.condition.as_ref().is_some_and(Available::is_true)
    }
}

/// A string field; empty if absent.
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
