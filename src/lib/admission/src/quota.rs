//! ResourceQuota: object counts that creates never exceed, however many run at once.
//!
//! A create reads the pending heads of the namespace's quotas, guards all that count it, and writes
//! their new usage with the object in one transaction: of two creates that read the same usage, one
//! finds its guard broken and computes again. Deletes are counted back by the controller.
//!
//! A quota counts only what its `status.hard` names, which is the controller's doing: a fresh quota
//! refuses nothing yet. Scopes select pods and come with them.

use crate::step::Step;
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::{Attributes, Effects, Operation};
use ferrokube_storage::{Entry, Guard, Prefix, Put, Sidecar, Store, Write};
use std::fmt::Write as _;
use std::sync::Arc;

/// The storage prefix of quotas.
const PREFIX: &str = "resourcequotas";
/// Resources of the core group that are also counted under their plain name. (`pods` is no count of
/// objects: finished ones do not count.)
const LEGACY: [&str; 6] = [
    "configmaps",
    "persistentvolumeclaims",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
];
/// Resources that no quota counts.
const UNCOUNTED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

/// The step.
pub struct Quota {
    store: Store,
    prefix: Prefix,
}

/// A quota that counts the resource of the write.
struct Matched {
    entry: Arc<Entry>,
    object: Document,
    /// The names under which it counts: name, limit, usage.
    counted: Vec<(String, i64, i64)>,
}

impl Quota {
    /// Over the store that holds the quotas.
    ///
    /// # Panics
    /// Never: the prefix is a constant.
    pub fn new(store: Store) -> Self {
        Self { store, prefix: Prefix::new(PREFIX).expect("a constant without a slash") }
    }

    /// The quotas of a namespace that count any of the names, by name of the quota.
    fn matched(
        &self,
        attributes: &Attributes<'_>,
        namespace: &str,
        names: &[String],
    ) -> Result<Vec<Matched>, Failure> {
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
                matched.push(Matched { entry, object, counted });
            }
        }
        Ok(matched)
    }
}

impl Step for Quota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn validate(
        &self,
        attributes: &Attributes<'_>,
        _object: Option<&Document>,
        effects: &mut Effects,
    ) -> Result<(), Failure> {
        let target = attributes.target;
        let definition = &target.served.definition;
        let creates = attributes.operation == Operation::Create
            && target.subresource.is_empty()
            && definition.storage_prefix.is_some();
        let Some(namespace) = target.namespace.as_deref().filter(|_| creates) else {
            return Ok(());
        };
        if self.store.snapshot(&self.prefix).count(Some(namespace), None) == 0 {
            return Ok(());
        }
        let names = names(&definition.group, &definition.plural);
        let matched = self.matched(attributes, namespace, &names)?;
        for quota in &matched {
            enforce(attributes, quota)?;
        }
        effects.guards.extend(
            matched.iter().map(|quota| Guard::At(quota.entry.key.clone(), quota.entry.revision)),
        );
        effects.writes.extend(matched.into_iter().map(charge));
        Ok(())
    }
}

/// The names under which one object of a namespaced resource counts; none for what is never
/// counted. The controller that repairs usage goes by the same.
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
    names
}

fn is_scoped(quota: &Document) -> bool {
    !quota.list(&["spec", "scopes"]).is_empty()
        || quota.get(&["spec", "scopeSelector"]).is_some_and(|selector| !selector.is_null())
}

/// What a quota says about the names: only what its status limits; usage must then be known.
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

/// A count; counts are whole numbers, which validation sees to, in canonical form.
fn amount(quota: &Document, field: &str, name: &str) -> Option<i64> {
    let text = quota.str(&["status", field, name])?;
    Some(text.parse().unwrap_or_else(|_| scaled(text)))
}

/// `1k`, `2M`, `1Ki`, `5e3`: what the canonical form makes of round numbers. Anything else is as no
/// limit could be read: zero.
fn scaled(text: &str) -> i64 {
    let split =
        text.find(|letter: char| !letter.is_ascii_digit() && letter != '-').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(split);
    let factor: Option<i64> = match suffix {
        "k" => Some(1_000),
        "M" => Some(1_000_000),
        "G" => Some(1_000_000_000),
        "T" => Some(1_000_000_000_000),
        "P" => Some(1_000_000_000_000_000),
        "Ki" => Some(1 << 10),
        "Mi" => Some(1 << 20),
        "Gi" => Some(1 << 30),
        "Ti" => Some(1 << 40),
        "Pi" => Some(1 << 50),
        _ => suffix
            .strip_prefix(['e', 'E'])
            .and_then(|power| power.parse().ok())
            .and_then(|power| 10_i64.checked_pow(power)),
    };
    let digits: i64 = digits.parse().unwrap_or(0);
    digits.saturating_mul(factor.unwrap_or(0))
}

fn enforce(attributes: &Attributes<'_>, quota: &Matched) -> Result<(), Failure> {
    let exceeded: Vec<&(String, i64, i64)> =
        quota.counted.iter().filter(|(_, hard, used)| used >= hard).collect();
    if exceeded.is_empty() {
        return Ok(());
    }
    let list = |value: &dyn Fn(&(String, i64, i64)) -> i64| {
        let mut list = String::new();
        for (index, counted) in exceeded.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(list, "{comma}{}={}", counted.0, value(counted));
        }
        list
    };
    let why = format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        quota.object.name(),
        list(&|_| 1),
        list(&|counted| counted.2),
        list(&|counted| counted.1)
    );
    Err(forbidden(attributes, &why))
}

/// The write of a quota's new usage.
fn charge(quota: Matched) -> Write {
    let Matched { entry, mut object, counted } = quota;
    for (name, _, used) in counted {
        object.set(&["status", "used", &name], Value::from(used.saturating_add(1).to_string()));
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
