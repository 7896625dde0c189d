//! ResourceQuota: limits object counts, also under concurrent creates.
//!
//! A create reads the pending heads of the namespace's quotas, guards each one that counts the
//! object, and writes their usage in the same transaction. If two creates read the same usage, the
//! guard of one fails and it computes again. The controller subtracts deleted objects.
//!
//! A quota counts only the resources in `status.hard`, which the controller sets: a new quota
//! rejects nothing yet. Scopes select pods, and are not supported before pods are.
//!
//! Tenants write quotas, and every create reads those of its namespace: their bytes are bounded.

use crate::step::AdmissionStep;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::quantity::{Format, Quantity};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{Attributes, Effects, Operation, Target};
use ferrokube_storage::{Entry, Guard, Prefix, Presence, Put, Sidecar, Store, Write};
use std::sync::Arc;

/// Bytes of a namespace's quotas: each create reads them, and writes those that count its object.
const MAX_BYTES: usize = 256 << 10;
/// More bytes are read off the worker.
const FEW_BYTES: usize = 8 << 10;
/// Storage prefix of quotas.
const PREFIX: &str = "resourcequotas";
/// Resources of the core group that are also counted by their plain name. (`pods` is not an object
/// count: finished pods are excluded.)
const LEGACY: [&str; 6] = [
    "configmaps",
    "persistentvolumeclaims",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];
/// Resources that quotas never count.
const UNCOUNTED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

/// Rejects creates beyond a quota, and counts the others in the same transaction.
pub struct QuotaStep {
    store: Store,
    prefix: Prefix,
    quotas: Presence,
}

/// A quota that counts the resource of the write.
struct MatchedQuota {
    entry: Arc<Entry>,
    object: Document,
    /// Name, limit and usage of each matching count.
    counted: Vec<(String, i64, i64)>,
}

impl QuotaStep {
    /// Over the store of the quotas.
    ///
    /// # Panics
    /// Never: the prefix is a constant.
    pub fn new(store: Store) -> Self {
        let prefix = Prefix::new(PREFIX).expect("a constant without a slash");
        Self { quotas: store.presence(&prefix), store, prefix }
    }

    /// The namespace whose quotas count a create of the target; `None` if none do.
    fn namespace(target: &Target) -> Option<&str> {
        let is_counted =
            target.subresource.is_empty() && target.served.definition.storage_prefix.is_some();
        target.namespace.as_deref().filter(|_| is_counted)
    }

    /// Bytes of a namespace's quotas, counted up to the first one beyond [`MAX_BYTES`].
    fn bytes(&self, namespace: &str) -> usize {
        if !self.quotas.has_any(Some(namespace)) {
            return 0;
        }
        let snapshot = self.store.snapshot(&self.prefix);
        let mut bytes = 0;
        for entry in snapshot.range(Some(namespace), None) {
            bytes += entry.bytes.len();
            if bytes > MAX_BYTES {
                break;
            }
        }
        bytes
    }

    /// Quotas of a namespace that count one of the names, sorted by name.
    fn matched(
        &self,
        attributes: &Attributes<'_>,
        namespace: &str,
        names: &[String],
    ) -> Result<Vec<MatchedQuota>, Failure> {
        let snapshot = self.store.snapshot(&self.prefix);
        let mut matched = Vec::new();
        for published in snapshot.range(Some(namespace), None) {
            let Some(entry) = self.store.pending(&published.key) else {
                continue;
            };
            let Ok(decoded) = json::read(&entry.bytes) else {
                return Err(Failure::internal(format!(
                    "the quota {} cannot be read",
                    entry.key.name()
                )));
            };
            let object = decoded.document;
            if is_scoped(&object) {
                continue;
            }
            let counted = counted(attributes, &object, names)?;
            if !counted.is_empty() {
                matched.push(MatchedQuota { entry, object, counted });
            }
        }
        Ok(matched)
    }
}

impl AdmissionStep for QuotaStep {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn mutates(&self) -> bool {
        false
    }

    fn create_takes_long(&self, target: &Target) -> bool {
        Self::namespace(target).is_some_and(|namespace| self.bytes(namespace) > FEW_BYTES)
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&Document>,
        effects: &mut Effects,
    ) -> Result<(), Failure> {
        let target = attributes.target;
        let definition = &target.served.definition;
        let creates = attributes.operation == Operation::Create;
        let Some(namespace) = Self::namespace(target).filter(|_| creates) else {
            return Ok(());
        };
        match self.bytes(namespace) {
            0 => return Ok(()),
            1..=MAX_BYTES => {}
            _ if attributes.context.is_own() => return Ok(()),
            _ => {
                let why = format!(
                    "the quotas of namespace {namespace} have more than {MAX_BYTES} bytes: delete some"
                );
                return Err(forbidden(attributes, &why));
            }
        }
        let names = names(&definition.group, &definition.plural);
        let matched = self.matched(attributes, namespace, &names)?;
        // The server's own writes are counted, too, but none of them must prevent its start.
        if !attributes.context.is_own() {
            matched.iter().try_for_each(|quota| enforce(attributes, quota))?;
        }
        effects.guards.extend(
            matched.iter().map(|quota| Guard::At(quota.entry.key.clone(), quota.entry.revision)),
        );
        effects.writes.extend(matched.into_iter().map(charge));
        Ok(())
    }
}

/// Names that count objects of a resource; none if it is never counted. Also used by the controller
/// that repairs usage.
pub fn names(group: &str, plural: &str) -> Vec<String> {
    if UNCOUNTED.contains(&(group, plural)) {
        return Vec::new();
    }
    let mut names = vec![if group.is_empty() {
        format!("count/{plural}")
    } else {
        format!("count/{plural}.{group}")
    }];
    if group.is_empty() && LEGACY.contains(&plural) {
        names.push(plural.to_owned());
    }
    names.sort_unstable();
    names
}

fn is_scoped(quota: &Document) -> bool {
    !quota.list(&["spec", "scopes"]).is_empty()
        || quota.get(&["spec", "scopeSelector"]).is_some_and(|selector| !selector.is_null())
}

/// The quota's counts among the names: those with a limit in status. Fails if their usage is
/// unknown.
fn counted(
    attributes: &Attributes<'_>,
    quota: &Document,
    names: &[String],
) -> Result<Vec<(String, i64, i64)>, Failure> {
    let limited: Vec<(&String, i64)> =
        names.iter().filter_map(|name| Some((name, amount(quota, "hard", name)?))).collect();
    let counted: Option<Vec<_>> = limited
        .iter()
        .map(|(name, hard)| Some(((*name).clone(), *hard, amount(quota, "used", name)?)))
        .collect();
    counted.ok_or_else(|| {
        let limited: Vec<&str> = limited.iter().map(|(name, _)| name.as_str()).collect();
        forbidden(
            attributes,
            &format!(
                "status unknown for quota: {}, resources: {}",
                quota.name(),
                limited.join(",")
            ),
        )
    })
}

/// A count. Validation ensures an integer.
fn amount(quota: &Document, field: &str, name: &str) -> Option<i64> {
    let text = quota.str(&["status", field, name])?;
    let parsed = || Quantity::parse(text).map_or(0, |quantity| quantity.value());
    Some(text.parse().unwrap_or_else(|_| parsed()))
}

fn enforce(attributes: &Attributes<'_>, quota: &MatchedQuota) -> Result<(), Failure> {
    let exceeded: Vec<&(String, i64, i64)> =
        quota.counted.iter().filter(|(_, hard, used)| used >= hard).collect();
    if exceeded.is_empty() {
        return Ok(());
    }
    let list = |amount: &dyn Fn(&str) -> String| {
        let shown: Vec<String> =
            exceeded.iter().map(|(name, ..)| format!("{name}={}", amount(name))).collect();
        shown.join(",")
    };
    let stored = |field: &str| {
        list(&|name| quota.object.str(&["status", field, name]).unwrap_or_default().to_owned())
    };
    let why = format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        quota.object.name(),
        list(&|_| "1".to_owned()),
        stored("used"),
        stored("hard")
    );
    Err(forbidden(attributes, &why))
}

/// Writes a quota's new usage.
fn charge(quota: MatchedQuota) -> Write {
    let MatchedQuota { entry, mut object, counted } = quota;
    for (name, _, used) in counted {
        let used = Quantity::new(used.saturating_add(1), Format::DecimalSi);
        object.set(&["status", "used", &name], Value::from(used.canonical()));
    }
    let (value, layout) = json::write(&object);
    let sidecar = Sidecar {
        marks: layout.marks(),
        revision_at: layout.revision_at,
        comma: layout.comma(),
        ..entry.sidecar.clone()
    };
    Write::Put(Put { key: entry.key.clone(), value: value.into(), sidecar, ttl: None })
}

fn forbidden(attributes: &Attributes<'_>, why: &str) -> Failure {
    let name = attributes.target.name.as_deref().unwrap_or_default();
    Failure::forbidden(&attributes.target.served.definition.group_resource(), name, why)
}
