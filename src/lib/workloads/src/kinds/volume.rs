//! PersistentVolume and PersistentVolumeClaim.

use crate::cells::{CellValue, at, list_at, str_at};
use crate::checks::{self, FieldErrors, text};
use crate::hooks::KindCode;
use crate::kinds::podspec::resources;
use crate::paths::FieldPath;
use crate::resource_names;
use crate::rules::numbers::NO_AMOUNT;
use crate::rules::same;
use crate::warnings::Warnings;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::quantity::Quantity;
use ferrokube_resource::Change;
use std::time::SystemTime;

/// Fields of a volume's spec besides its source.
const SHARED_FIELDS: [&str; 9] = [
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];
/// Deprecated labels of nodes, and those that replace them.
const RENAMED: [(&str, &str); 5] = [
    ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
    ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ("beta.kubernetes.io/os", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
];
/// Sources that are mounted with the options of an annotation.
const MOUNTED: [&str; 13] = [
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "nfs",
    "rbd",
    "quobyte",
    "iscsi",
    "cinder",
    "cephfs",
    "azureFile",
    "vsphereVolume",
    "azureDisk",
    "photonPersistentDisk",
];
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
/// The deprecated annotation for the class name.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const ATTRIBUTES_CLASS: &[&str] = &["spec", "volumeAttributesClassName"];
const EXPAND_SECRET: &[&str] = &["spec", "csi", "controllerExpandSecretRef"];

/// PersistentVolume: a piece of provisioned storage.
#[derive(Debug)]
pub(crate) struct PersistentVolume;

impl KindCode for PersistentVolume {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        const SINCE: [&str; 2] = ["status", "lastPhaseTransitionTime"];
        if let Some(old) = change.old.filter(|_| change.subresource == "status") {
            let (before, after) = (old.get(&SINCE).cloned(), object.get(&SINCE).cloned());
            let same_phase = old.str(&["status", "phase"]) == object.str(&["status", "phase"]);
            match (same_phase, after) {
                (true, None) => {
                    if let Some(before) = before {
                        object.set(&SINCE, before);
                    }
                }
                (false, after) if after.is_none() || after == before => {
                    let now = ferrokube_apimachinery::time::rfc3339_seconds(change.now);
                    object.set(&SINCE, now);
                }
                _ => {}
            }
        }
        if change.old.is_none() {
            let now = ferrokube_apimachinery::time::rfc3339_seconds(change.now);
            object.set(&["status"], json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        if !change.subresource.is_empty() {
            return;
        }
        let root = FieldPath::Root;
        let spec = root.field("spec");
        let is_given = |object: &Document, path: &[&str]| at_given(object, path).is_some();
        let is_mounted = MOUNTED.iter().any(|source| is_given(object, &["spec", source]));
        if object.annotation(MOUNT_OPTIONS).is_some() && !is_mounted {
            let (place, why) =
                ("metadata.annotations", "may not specify mount options for this volume type");
            errors.forbidden(root.field(place).field(MOUNT_OPTIONS), why);
        }
        let Some(old) = change.old else { return };
        let may_set_secret = is_given(old, &["spec", "csi"]) && !is_given(old, EXPAND_SECRET);
        let source = |object: &Document| {
            let mut object = object.clone();
            if may_set_secret {
                object.remove(EXPAND_SECRET);
            }
            let spec = object.get(&["spec"]).and_then(Value::as_object).cloned();
            let mut spec = spec.unwrap_or_default();
            SHARED_FIELDS.iter().for_each(|field| {
                spec.remove(field);
            });
            Value::Object(spec)
        };
        if !same(Some(&source(old)), Some(&source(object))) {
            let why = "spec.persistentvolumesource is immutable after creation";
            errors.forbidden(spec.field("persistentvolumesource"), why);
        }
        let pair = |field: &str| (old.get(&["spec", field]), object.get(&["spec", field]));
        let (before, after) = pair("volumeMode");
        if !same(before, after) {
            errors.invalid(root.field("volumeMode"), after, "field is immutable");
        }
        let (before, after) = pair("nodeAffinity");
        let before = before.filter(|value| !value.is_null());
        if before.is_some_and(|before| !same(Some(&renamed(before, after)), after)) {
            errors.invalid(
                root.field("nodeAffinity"),
                after,
                "field is immutable, except for updating from beta label to GA",
            );
        }
        if is_given(old, ATTRIBUTES_CLASS) && !is_given(object, ATTRIBUTES_CLASS) {
            let why = "update from non-nil value to nil is forbidden";
            errors.forbidden(spec.field("volumeAttributesClassName"), why);
        }
    }

    fn warnings(&self, _change: &Change<'_>, object: &Document, out: &mut Warnings) {
        old_annotations(object, out);
    }

    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        CellValue::text(match word {
            "capacity" => quantity(object, &["spec", "capacity", "storage"]),
            "access-modes" => modes(list_at(object, &["spec", "accessModes"])),
            "claim" => match at(object, &["spec", "claimRef"]).filter(|claim| !claim.is_null()) {
                Some(claim) => format!("{}/{}", text(claim, "namespace"), text(claim, "name")),
                None => String::new(),
            },
            _ => shared(word, object),
        })
    }

    fn selectable(&self, path: &str, object: &Document) -> Option<String> {
        (path == "name").then(|| object.name().to_owned())
    }
}

/// The stored node affinity, with labels renamed where the new one does so.
fn renamed(before: &Value, after: Option<&Value>) -> Value {
    let wanted = after.map_or(&[][..], |after| list_at(after, &["required", "nodeSelectorTerms"]));
    let mut before = before.clone();
    let terms = before.pointer_mut("/required/nodeSelectorTerms").and_then(Value::as_array_mut);
    let terms = terms.into_iter().flat_map(|terms| terms.iter_mut());
    for (term, wanted) in terms.zip(wanted) {
        for list in ["matchExpressions", "matchFields"] {
            let wanted = list_at(wanted, &[list]);
            let needs = term.get_mut(list).and_then(Value::as_array_mut);
            let needs = needs.into_iter().flat_map(|needs| needs.iter_mut());
            for (need, wanted) in needs.zip(wanted) {
                let key = text(wanted, "key");
                let is_renamed = RENAMED.contains(&(text(need, "key"), key));
                if let Some(fields) = need.as_object_mut().filter(|_| is_renamed) {
                    fields.insert("key", key.into());
                }
            }
        }
    }
    before
}

/// PersistentVolumeClaim: a request for storage.
#[derive(Debug)]
pub(crate) struct VolumeClaim;

impl KindCode for VolumeClaim {
    fn prepare(&self, change: &Change<'_>, object: &mut Document) {
        if change.old.is_none() {
            object.set(&["status"], json!({"phase": "Pending"}));
        }
        if change.subresource.is_empty() {
            data_sources(change.old, object);
        }
    }

    fn validate(&self, change: &Change<'_>, object: &Document, errors: &mut FieldErrors) {
        if !change.subresource.is_empty() {
            return allocated(object, errors);
        }
        let root = FieldPath::Root;
        let spec = root.field("spec");
        let given = |field: &str| at_given(object, &["spec", field]);
        if let (Some(source), Some(reference)) = (given("dataSource"), given("dataSourceRef")) {
            if !text(reference, "namespace").is_empty() {
                let why = "may not be specified when dataSourceRef.namespace is specified";
                errors.invalid(spec, json!({}), why);
            } else if ["apiGroup", "kind", "name"]
                .iter()
                .any(|field| checks::given(source, field) != checks::given(reference, field))
            {
                errors.invalid(spec, json!({}), "must match dataSourceRef");
            }
        }
        if let Some(old) = change.old {
            claim_change(old, object, errors);
        }
    }

    fn warnings(&self, _change: &Change<'_>, object: &Document, out: &mut Warnings) {
        old_annotations(object, out);
    }

    fn cell(&self, word: &str, object: &Value, _now: SystemTime) -> CellValue {
        let is_bound = !str_at(object, &["spec", "volumeName"]).is_empty();
        CellValue::text(match word {
            "capacity" if is_bound => quantity(object, &["status", "capacity", "storage"]),
            "access-modes" if is_bound => modes(list_at(object, &["status", "accessModes"])),
            "capacity" | "access-modes" => String::new(),
            _ => shared(word, object),
        })
    }

    fn selectable(&self, path: &str, object: &Document) -> Option<String> {
        (path == "name").then(|| object.name().to_owned())
    }
}

/// Rejects changes of immutable fields of a claim's spec.
fn claim_change(old: &Document, object: &Document, errors: &mut FieldErrors) {
    let root = FieldPath::Root;
    let spec = root.field("spec");
    let is_bound = object.str(&["status", "phase"]) == Some("Bound");
    let (was, is) = (old.annotation(CLASS), object.annotation(CLASS));
    let given_class = object.str(&["spec", "storageClassName"]);
    let had_class = at_given(old, &["spec", "storageClassName"]).is_some();
    // A claim without a class may get the default one, or that of the deprecated annotation.
    let may_get_class = !had_class && was.is_none_or(|was| given_class == Some(was));
    let is_moved = was.is_some() && is.is_none() && may_get_class;
    let note = is.unwrap_or_default();
    if !is_moved && note != was.unwrap_or_default() {
        let path = root.field("metadata.annotations");
        errors.invalid(path.field(CLASS), note, "field is immutable");
    }
    let fixed = |object: &Document| {
        let mut spec = object.get(&["spec"]).cloned().unwrap_or_default();
        if let Some(map) = spec.as_object_mut() {
            if is_bound {
                map.remove("volumeAttributesClassName");
            }
            if may_get_class {
                map.remove("storageClassName");
            }
            // Empty: a controller may bind it.
            if old.str(&["spec", "volumeName"]).unwrap_or_default().is_empty() {
                map.remove("volumeName");
            }
        }
        let requests = spec
            .get_mut("resources")
            .and_then(|resources| resources.as_object_mut()?.get_mut("requests")?.as_object_mut());
        if let Some(requests) = requests.filter(|_| is_bound) {
            requests.remove("storage");
        }
        spec
    };
    if !same(Some(&fixed(old)), Some(&fixed(object))) {
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n";
        errors.forbidden(spec, why);
    }
    shrunk(old, object, errors);
    let modes = [old, object].map(|object| object.get(&["spec", "volumeMode"]));
    if !same(modes[0], modes[1]) {
        errors.invalid(root.field("volumeMode"), modes[1], "field is immutable");
    }
    let is_changed = at_given(old, ATTRIBUTES_CLASS) != at_given(object, ATTRIBUTES_CLASS);
    if is_changed && at_given(old, &["status", "currentVolumeAttributesClassName"]).is_some() {
        let path = spec.field("volumeAttributesClassName");
        match object.str(ATTRIBUTES_CLASS) {
            None => errors.forbidden(
                path,
                "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil",
            ),
            Some("") => errors.forbidden(
                path,
                "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil",
            ),
            Some(_) => {}
        }
    }
}

/// A failed expansion may be reduced, but not below the current capacity.
fn shrunk(old: &Document, object: &Document, errors: &mut FieldErrors) {
    let amount = |object: &Document, path: &[&str]| {
        let given = object.get(path).and_then(|value| Quantity::from_value(value).ok());
        given.unwrap_or_default()
    };
    let request = ["spec", "resources", "requests", "storage"];
    let (before, after) = (amount(old, &request), amount(object, &request));
    let capacity = amount(old, &["status", "capacity", "storage"]);
    if after < before && after <= capacity {
        let why = "field can not be less than status.capacity";
        errors.forbidden(FieldPath::Root.field("spec.resources.requests.storage"), why);
    }
}

fn at_given<'a>(object: &'a Document, path: &[&str]) -> Option<&'a Value> {
    object.get(path).filter(|value| !value.is_null())
}

/// Checks the allocated resources (only storage) and the resize status of a claim.
fn allocated(object: &Document, errors: &mut FieldErrors) {
    const STATES: [&str; 5] = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let root = FieldPath::Root;
    for (field, of_states) in [("allocatedResourceStatuses", true), ("allocatedResources", false)] {
        let status = root.field("status");
        let path = status.field(field);
        let map = object.get(&["status", field]).and_then(Value::as_object);
        for (name, value) in map.into_iter().flatten() {
            if errors.is_full() {
                return;
            }
            let whys = ferrokube_apimachinery::name::qualified_name(name);
            let is_name = whys.is_empty();
            let is_odd = is_name && resource_names::is_native(name) && name.as_str() != "storage";
            errors.all_invalid(path, name, whys);
            if is_odd {
                errors.not_supported(path, name.as_str(), &["storage"]);
            }
            if of_states && !STATES.contains(&value.as_str().unwrap_or_default()) {
                errors.not_supported(path, name.as_str(), &STATES);
            } else if !of_states && is_name && !is_odd {
                let amount = Quantity::from_value(value).unwrap_or_default().value();
                if amount < 0 {
                    errors.invalid(path.key(name), amount, NO_AMOUNT);
                } else {
                    resources::amount("storage", value, path.key(name), errors);
                }
            }
        }
    }
}

/// `dataSource` and `dataSourceRef` name the same object, unless it is in another namespace.
/// References to other namespaces need a feature gate, and sources of other kinds the reference.
fn data_sources(old: Option<&Document>, object: &mut Document) {
    const SOURCE: &[&str] = &["spec", "dataSource"];
    const REFERENCE: &[&str] = &["spec", "dataSourceRef"];
    let had = |path| old.is_some_and(|old| at_given(old, path).is_some());
    let of_other = |reference: &Value| !text(reference, "namespace").is_empty();
    if !had(REFERENCE) && at_given(object, REFERENCE).is_some_and(of_other) {
        object.remove(REFERENCE);
    }
    let is_known = |source: &Value| {
        matches!(
            (text(source, "apiGroup"), text(source, "kind")),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        )
    };
    let has_reference = at_given(object, REFERENCE).is_some();
    if !had(SOURCE) && !has_reference && !at_given(object, SOURCE).is_some_and(is_known) {
        object.remove(SOURCE);
    }
    match (at_given(object, SOURCE).cloned(), at_given(object, REFERENCE).cloned()) {
        (Some(source), None) => object.set(REFERENCE, source),
        (None, Some(reference)) if !of_other(&reference) => {
            let mut source = reference;
            source.as_object_mut().map(|fields| fields.remove("namespace"));
            object.set(SOURCE, source);
        }
        _ => {}
    }
}

fn old_annotations(object: &Document, out: &mut Warnings) {
    let (root, place) = (FieldPath::Root, "metadata.annotations");
    let path = root.field(place);
    let has = |key: &str| object.get(&["metadata", "annotations", key]).is_some();
    if has(CLASS) {
        let why = "deprecated since v1.8; use \"storageClassName\" attribute instead";
        out.at(path.key(CLASS), why);
    }
    if has(MOUNT_OPTIONS) && object.kind() == "PersistentVolume" {
        let why = "deprecated since v1.31; use \"mountOptions\" attribute instead";
        out.at(path.key(MOUNT_OPTIONS), why);
    }
}

fn shared(word: &str, object: &Value) -> String {
    match word {
        "status" => {
            let deleted = at(object, &["metadata", "deletionTimestamp"]);
            match deleted.is_some_and(|time| !time.is_null()) {
                true => "Terminating".to_owned(),
                false => str_at(object, &["status", "phase"]).to_owned(),
            }
        }
        "class" => {
            let annotated = at(object, &["metadata", "annotations", CLASS]);
            let class = at(object, &["spec", "storageClassName"]);
            annotated.or(class).and_then(Value::as_str).unwrap_or_default().to_owned()
        }
        "attributes-class" => {
            let class = at(object, &["spec", "volumeAttributesClassName"]);
            class.and_then(Value::as_str).unwrap_or("<unset>").to_owned()
        }
        _ => String::new(),
    }
}

fn quantity(object: &Value, path: &[&str]) -> String {
    match str_at(object, path) {
        "" => "0".to_owned(),
        amount => amount.to_owned(),
    }
}

/// Short names of access modes, in a fixed order.
fn modes(modes: &[Value]) -> String {
    const SHORT: [(&str, &str); 4] = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| modes.iter().any(|one| one.as_str() == Some(mode));
    let short: Vec<&str> =
        SHORT.iter().filter(|(mode, _)| has(mode)).map(|(_, short)| *short).collect();
    short.join(",")
}
