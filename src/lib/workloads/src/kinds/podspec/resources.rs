//! Requests and limits of containers and pods.

use crate::cells::at;
use crate::checks::{FieldErrors, items, text};
use crate::paths::FieldPath;
use crate::resource_names::{
    HUGE_PAGES, NameCheck, container_resource_name, is_whole_only, may_overcommit,
    pod_resource_name,
};
use ferrokube_apimachinery::document::{Map, Value};
use ferrokube_apimachinery::field::{FieldError, FieldReason};
use ferrokube_apimachinery::name;
use ferrokube_apimachinery::quantity::Quantity;
use ferrokube_apimachinery::work::{self, CountedKey};
use std::collections::{BTreeMap, HashSet};

/// Checks that an amount is not negative, and whole for counted resources.
pub(crate) fn amount(
    resource: &str,
    value: &Value,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) -> Option<Quantity> {
    let amount = Quantity::from_value(value).ok()?;
    if amount.is_negative() {
        let shown = amount.canonical();
        errors.invalid(path, shown.as_str(), "must be greater than or equal to 0");
    }
    if is_whole_only(resource) && !amount.is_whole() {
        errors.invalid(path, amount.canonical().as_str(), "must be an integer");
    }
    Some(amount)
}

fn huge_pages(resource: &str, amount: &Quantity, path: FieldPath<'_>, errors: &mut FieldErrors) {
    let Some(size) = resource.strip_prefix(HUGE_PAGES) else { return };
    let size = Quantity::parse(size).ok().map_or(0, |size| size.value());
    if size <= 0 || amount.value() % size != 0 {
        let shown = amount.canonical();
        let why = format!("{shown} is not positive integer multiple of {resource}");
        errors.invalid(path, shown.as_str(), &why);
    }
}

/// Requests, limits and claims at a path.
pub(crate) fn requirements(
    resources: Option<&Value>,
    names: Option<NameCheck>,
    claims: &HashSet<&str>,
    own: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let Some(resources) = resources.filter(|value| value.is_object()) else { return };
    let map = |field: &str| resources.get(field).and_then(Value::as_object);
    let limits_path = own.field("limits");
    for (resource, value) in map("limits").into_iter().flatten() {
        if errors.is_full() {
            return;
        }
        let path = limits_path.key(resource);
        names.inspect(|check| check(resource, path, errors));
        if let Some(amount) = amount(resource, value, path, errors) {
            huge_pages(resource, &amount, path, errors);
        }
    }
    let requests_path = own.field("requests");
    for (resource, value) in map("requests").into_iter().flatten() {
        if errors.is_full() {
            return;
        }
        let path = requests_path.key(resource);
        names.inspect(|check| check(resource, path, errors));
        let Some(amount) = amount(resource, value, path, errors) else { continue };
        let limit = map("limits").and_then(|limits| limits.get(resource));
        let limit = limit.and_then(|limit| Quantity::from_value(limit).ok());
        compare(resource, &amount, limit.as_ref(), own, errors);
        huge_pages(resource, &amount, path, errors);
    }
    let has = |fits: fn(&str) -> bool| {
        let both = ["limits", "requests"].into_iter().filter_map(map);
        both.flat_map(Map::keys).any(|name| fits(name))
    };
    if has(|name| name.starts_with(HUGE_PAGES)) && !has(|name| matches!(name, "cpu" | "memory")) {
        errors.forbidden(own, "HugePages require cpu or memory");
    }
    claim_names(resources, claims, own.field("claims"), errors);
}

fn compare(
    resource: &str,
    requested: &Quantity,
    limit: Option<&Quantity>,
    own: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let Some(limit) = limit else {
        if !may_overcommit(resource) {
            let why = "Limit must be set for non overcommitable resources";
            errors.required(own.field("limits"), why);
        }
        return;
    };
    let difference = requested.sub(limit);
    let shown = requested.canonical();
    if !may_overcommit(resource) && !difference.is_zero() {
        let why = format!("must be equal to {resource} limit of {}", limit.canonical());
        errors.invalid(own.field("requests"), shown.as_str(), &why);
    } else if !difference.is_negative() && !difference.is_zero() {
        let why =
            format!("must be less than or equal to {resource} limit of {}", limit.canonical());
        errors.invalid(own.field("requests"), shown.as_str(), &why);
    }
}

/// Checks that a container's claims are declared by the pod.
fn claim_names(
    resources: &Value,
    known: &HashSet<&str>,
    list: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let mut taken: HashSet<(&str, &str)> = HashSet::new();
    let mut named: HashSet<CountedKey<&str>> = HashSet::new();
    for (at, claim) in items(resources, "claims").iter().enumerate() {
        if errors.is_full() {
            return;
        }
        let (name, request, path) = (text(claim, "name"), text(claim, "request"), list.index(at));
        if name.is_empty() {
            errors.required(path, "");
            continue;
        }
        if !request.is_empty() {
            errors.all_invalid(path.field("request"), request, name::dns1123_label(request));
        }
        if taken.contains(&(name, "")) {
            errors.duplicate(path, name);
        } else if taken.contains(&(name, request)) {
            errors.duplicate(path, format!("{name}/{request}").as_str());
        } else if request.is_empty() && named.contains(&CountedKey(name)) {
            errors.duplicate(path, name);
        }
        taken.insert((name, request));
        named.insert(CountedKey(name));
        if !known.contains(name) {
            let why = "must be one of the names in pod.spec.resourceClaims";
            work::count(known.len());
            let mut known: Vec<&str> =
                known.iter().copied().filter(|name| !name.is_empty()).collect();
            known.sort_unstable();
            let why = match known.as_slice() {
                [] => format!("{why} which is empty"),
                known => format!("{why}: {}", known.join(", ")),
            };
            let shown = ferrokube_apimachinery::field::quote(name);
            let why = format!("{shown}: {why}");
            errors.push(|| FieldError::unshown(FieldReason::NotFound, path, why));
        }
    }
}

/// Checks pod-level resources against those of the containers.
pub(super) fn of_pod(
    spec: &Value,
    claims: &HashSet<&str>,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let overhead = spec.get("overhead").filter(|value| value.is_object());
    if let Some(overhead) = overhead {
        let limits = ferrokube_apimachinery::document::json!({"limits": overhead.clone()});
        let names = Some(container_resource_name as NameCheck);
        requirements(Some(&limits), names, claims, path.field("overhead"), errors);
    }
    let Some(own) = spec.get("resources").filter(|value| value.is_object()) else { return };
    let path = path.field("resources");
    if at(spec, &["os", "name"]).and_then(Value::as_str) == Some("windows") {
        return errors.forbidden(path, "may not be set for a windows pod");
    }
    if own.get("claims").is_some_and(|claims| !claims.is_null()) {
        errors.forbidden(path.field("claims"), "claims may not be set for Resources at pod-level");
    }
    requirements(Some(own), Some(pod_resource_name), claims, path, errors);
    let quantity =
        |map: &str, resource: &str| Quantity::from_value(own.get(map)?.get(resource)?).ok();
    let requests_path = path.field("requests");
    for (resource, sum) in aggregate(spec, "requests") {
        if let Some(own) = quantity("requests", &resource)
            && exceeds(&sum, &own)
        {
            let why = "must be greater than or equal to aggregate container requests of";
            let why = format!("{why} {}", sum.canonical());
            errors.invalid(requests_path.key(&resource), own.canonical().as_str(), &why);
        }
    }
    let limits_path = path.field("limits");
    let huge = aggregate(spec, "limits").into_iter();
    for (resource, sum) in huge.filter(|(resource, _)| resource.starts_with(HUGE_PAGES)) {
        if let Some(own) = quantity("limits", &resource)
            && exceeds(&sum, &own)
        {
            let why = "must be greater than or equal to aggregate container limits of";
            let why = format!("{why} {}", sum.canonical());
            errors.invalid(limits_path.key(&resource), own.canonical().as_str(), &why);
        }
    }
    let list = path.field("containers");
    for (index, container) in items(spec, "containers").iter().enumerate() {
        let limits = at(container, &["resources", "limits"]).and_then(Value::as_object);
        for (resource, value) in limits.into_iter().flatten() {
            let (Ok(limit), Some(own)) =
                (Quantity::from_value(value), quantity("limits", resource))
            else {
                continue;
            };
            if exceeds(&limit, &own) {
                let why =
                    format!("must be less than or equal to pod limits of {}", own.canonical());
                let place = list.index(index);
                let place = place.key(resource);
                errors.invalid(place.field("limits"), limit.canonical().as_str(), &why);
            }
        }
    }
}

fn exceeds(one: &Quantity, other: &Quantity) -> bool {
    let difference = one.sub(other);
    !difference.is_negative() && !difference.is_zero()
}

/// Max resources that a pod's containers need at any time.
pub(crate) fn aggregate(spec: &Value, field: &str) -> BTreeMap<String, Quantity> {
    type Sums = BTreeMap<String, Quantity>;
    let own = |container: &Value| -> Sums {
        let map = at(container, &["resources", field]).and_then(Value::as_object);
        let pair = |(name, value): (&_, &Value)| {
            let name: &ferrokube_apimachinery::document::Text = name;
            Some((name.to_string(), Quantity::from_value(value).ok()?))
        };
        map.into_iter().flatten().filter_map(pair).collect()
    };
    let add = |sums: &mut Sums, more: &Sums| {
        for (name, amount) in more {
            let sum = sums.entry(name.clone()).or_insert_with(|| amount.sub(amount));
            *sum = sum.add(amount);
        }
    };
    let raise = |sums: &mut Sums, more: &Sums| {
        for (name, amount) in more {
            match sums.get(name) {
                Some(known) if !exceeds(amount, known) => {}
                _ => _ = sums.insert(name.clone(), amount.clone()),
            }
        }
    };
    let (mut all, mut sidecars, mut init) = (Sums::new(), Sums::new(), Sums::new());
    for container in items(spec, "containers") {
        add(&mut all, &own(container));
    }
    for container in items(spec, "initContainers") {
        let own = own(container);
        if super::is_sidecar(container) {
            add(&mut all, &own);
            add(&mut sidecars, &own);
            raise(&mut init, &sidecars.clone());
        } else {
            let mut sum = own;
            add(&mut sum, &sidecars);
            raise(&mut init, &sum);
        }
    }
    raise(&mut all, &init);
    all
}
