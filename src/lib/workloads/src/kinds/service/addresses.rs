//! Addresses of services: `clusterIP` is the first of `clusterIPs`, each with its family.

use crate::checks::{FieldErrors, ip};
use crate::conditions::is_given;
use crate::paths::FieldPath;
use ferrokube_apimachinery::document::{Document, Value};

const ONE: &[&str] = &["spec", "clusterIP"];
const ALL: &[&str] = &["spec", "clusterIPs"];
const FAMILIES: &[&str] = &["spec", "ipFamilies"];
const POLICY: &[&str] = &["spec", "ipFamilyPolicy"];

fn is_external(object: &Document) -> bool {
    object.str(&["spec", "type"]) == Some("ExternalName")
}

fn is_headless(object: &Document) -> bool {
    object.list(ALL).first().and_then(Value::as_str) == Some("None")
}

fn is_v6(address: &Value) -> bool {
    address.as_str().is_some_and(|text| text.contains(':'))
}

/// Syncs the two fields for old clients, which set only the first.
pub(super) fn normalize(old: Option<&Document>, object: &mut Document) {
    if let Some(old) = old.filter(|old| !is_external(old) && !is_external(object)) {
        if object.str(ONE).unwrap_or_default().is_empty()
            && let Some(one) = old.get(ONE).cloned()
        {
            object.set(ONE, one);
        }
        if object.list(ALL).is_empty()
            && let Some(all) = old.get(ALL).cloned()
        {
            object.set(ALL, all);
        }
    }
    let one = object.str(ONE).unwrap_or_default().to_owned();
    let Some(old) = old else {
        if !one.is_empty() && object.list(ALL).is_empty() {
            object.set(ALL, vec![Value::from(one)]);
        }
        return;
    };
    let was = old.str(ONE).unwrap_or_default();
    let same = old.list(ALL) == object.list(ALL);
    match one.as_str() {
        one if one == was => {
            if object.list(ALL).is_empty()
                && let Some(all) = old.get(ALL).cloned()
            {
                object.set(ALL, all);
            }
        }
        "" if same => _ = object.remove(ALL),
        "" => {}
        one if same => object.set(ALL, vec![Value::from(one)]),
        _ => {}
    }
}

/// Sets the address families, in a single-stack cluster.
pub(super) fn families(old: Option<&Document>, object: &mut Document) {
    if is_external(object) {
        return;
    }
    let v6 = object.list(ALL).first().is_some_and(is_v6);
    let headless = object.str(ONE) == Some("None");
    let selector = object.get(&["spec", "selector"]).and_then(Value::as_object);
    let free = headless && selector.is_none_or(|map| map.is_empty());
    let had_policy = old.and_then(|old| old.get(POLICY)).filter(|value| is_given(value)).cloned();
    let policy = match object.get(POLICY).filter(|value| !value.is_null()) {
        Some(policy) => policy.clone(),
        None => had_policy
            .unwrap_or_else(|| if free { "RequireDualStack" } else { "SingleStack" }.into()),
    };
    let is_single = policy.as_str() == Some("SingleStack");
    object.set(POLICY, policy);
    if let Some(old) = old.filter(|_| is_single) {
        // What was not changed follows the policy.
        for field in [ALL, FAMILIES] {
            let list = object.list(field);
            if list.len() > 1 && old.list(field) == list {
                object.set(field, vec![list[0].clone()]);
            }
        }
    }
    let mut families = object.list(FAMILIES).to_vec();
    if families.is_empty() {
        families.push(if v6 { "IPv6" } else { "IPv4" }.into());
    }
    if free && !is_single && families.len() == 1 {
        let is_v4 = families[0].as_str() == Some("IPv4");
        families.push(if is_v4 { "IPv6" } else { "IPv4" }.into());
    }
    object.set(FAMILIES, families);
}

/// Rejects node ports of a headless service.
pub(super) fn validate_headless(object: &Document, errors: &mut FieldErrors) {
    let kind = object.str(&["spec", "type"]).unwrap_or_default();
    if is_headless(object) && matches!(kind, "NodePort" | "LoadBalancer") {
        let (root, list) = (FieldPath::Root, "spec.clusterIPs");
        let why = format!("may not be set to 'None' for {kind} services");
        errors.invalid(root.field(list).index(0), "None", &why);
    }
}

/// Checks made by kube-apiserver's allocator, before all others: their errors are reported alone.
/// Returns whether there are none.
pub(super) fn are_well_formed(object: &Document, errors: &mut FieldErrors) -> bool {
    if is_external(object) {
        return true;
    }
    check(object, errors);
    let root = FieldPath::Root;
    !errors.prefer(
        &[ALL, FAMILIES, POLICY].map(|field| root.field("spec").field(field[1]).to_string()),
    )
}

fn check(object: &Document, errors: &mut FieldErrors) {
    let root = FieldPath::Root;
    let spec = root.field("spec");
    let path = spec.field("clusterIPs");
    let (all, shown) = (object.list(ALL), object.get(ALL));
    let one = object.str(ONE).unwrap_or_default();
    let first = all.first().and_then(Value::as_str).unwrap_or_default();
    match (one.is_empty(), all.is_empty()) {
        (true, false) => {
            errors.invalid(path, shown, "must be empty when `clusterIP` is not specified");
        }
        (false, true) => errors.required(path, ""),
        _ if one != first => errors.invalid(path, shown, "first value must match `clusterIP`"),
        _ => {}
    }
    let before = errors.count();
    for (index, address) in all.iter().enumerate().take(MAX_CHECKED) {
        let address = address.as_str().unwrap_or_default();
        if index > 0 || address != "None" {
            errors.all_invalid(path.index(index), address, ip(address));
        } else if all.len() > 1 {
            errors.invalid(path, shown, "'None' must be the first and only value");
        }
    }
    let is_odd = errors.count() > before;
    if all.len() > 2 {
        errors.invalid(path, shown, "may only hold up to 2 values");
    }
    if is_odd {
        return;
    }
    if all.len() > 1 && (all.iter().all(is_v6) || !all.iter().any(is_v6)) {
        errors.invalid(path, shown, "may specify no more than one IP for each IP family");
    }
    let families = object.list(FAMILIES);
    for (index, (address, family)) in all.iter().zip(families).enumerate() {
        let expected = match (family.as_str(), is_v6(address)) {
            (Some("IPv4"), true) => "IPv4",
            (Some("IPv6"), false) => "IPv6",
            _ => continue,
        };
        if !is_headless(object) {
            let why = format!("expected an {expected} value as indicated by `ipFamilies[{index}]`");
            errors.invalid(path.index(index), address, &why);
        }
    }
}

/// Max addresses checked; a service has at most two.
const MAX_CHECKED: usize = 100;

const FIXED: &str = "may not change once set";

/// Checks that the first address is unchanged; a second one may be added or removed.
pub(super) fn validate_change(old: &Document, object: &Document, errors: &mut FieldErrors) {
    let (was, is) = (is_headless(old), is_headless(object));
    if is_external(old) || is_external(object) || (was && is) {
        return;
    }
    let root = FieldPath::Root;
    let spec = root.field("spec");
    let single = object.str(POLICY) == Some("SingleStack");
    let released = |old: usize, new: usize, what: &str, errors: &mut FieldErrors| {
        if old > new && new == 1 && !single {
            let why = format!("must be set to 'SingleStack' when releasing the secondary {what}");
            errors.invalid(spec.field("ipFamilyPolicy"), object.get(POLICY), &why);
        }
    };
    let (before, after, shown) = (old.list(ALL), object.list(ALL), object.get(ALL));
    let path = spec.field("clusterIPs");
    let first =
        |old: &[Value], new: &[Value]| !old.is_empty() && !new.is_empty() && old[0] != new[0];
    if before.len() == after.len() {
        for (index, _) in before.iter().zip(after).enumerate().filter(|(_, (a, b))| a != b) {
            errors.invalid(path.index(index), shown, FIXED);
        }
    } else {
        if before.len() > after.len() && after.is_empty() {
            errors.invalid(path.index(0), shown, "primary clusterIP can not be unset");
        }
        if first(before, after) {
            errors.invalid(path.index(0), shown, FIXED);
        }
    }
    released(before.len(), after.len(), "clusterIP", errors);
    if was || is {
        return;
    }
    let path = spec.field("ipFamilies");
    let path = path.index(0);
    let (before, after) = (old.list(FAMILIES), object.list(FAMILIES));
    if before.len() == after.len() {
        for _ in before.iter().zip(after).filter(|(a, b)| a != b) {
            errors.invalid(path, object.get(FAMILIES), FIXED);
        }
    } else {
        if before.len() > after.len() && object.list(ALL).is_empty() {
            errors.invalid(path, object.get(FAMILIES), "primary ipFamily can not be unset");
        }
        if first(before, after) {
            errors.invalid(path, shown, FIXED);
        }
    }
    released(before.len(), after.len(), "ipFamily", errors);
}
