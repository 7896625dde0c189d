//! Names of compute resources, and which rules apply to each.

use crate::checks::FieldErrors;
use crate::paths::FieldPath;
use ferrokube_apimachinery::name;

pub(crate) const HUGE_PAGES: &str = "hugepages-";
/// Unprefixed resources of containers and of pods.
const OF_CONTAINERS: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
const OF_PODS: [&str; 2] = ["cpu", "memory"];
/// Unprefixed resources besides huge pages.
const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];

/// Checks the name of a resource.
pub(crate) type NameCheck = fn(&str, FieldPath<'_>, &mut FieldErrors);

/// Checks that a name is known or has a prefix. Returns whether it is valid.
pub(crate) fn resource_name(resource: &str, path: FieldPath<'_>, errors: &mut FieldErrors) -> bool {
    let whys = name::qualified_name(resource);
    if !whys.is_empty() {
        errors.all_invalid(path, resource, whys);
        return false;
    }
    let is_known =
        resource.contains('/') || STANDARD.contains(&resource) || resource.starts_with(HUGE_PAGES);
    if !is_known {
        errors.invalid(path, resource, "must be a standard resource type or fully qualified");
    }
    is_known
}

pub(crate) fn container_resource_name(
    resource: &str,
    path: FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    resource_name(resource, path, errors);
    if !resource.contains('/') {
        if !OF_CONTAINERS.contains(&resource) && !resource.starts_with(HUGE_PAGES) {
            errors.invalid(path, resource, "must be a standard resource for containers");
        }
    } else if !is_native(resource) && !is_extended(resource) {
        errors.invalid(path, resource, "doesn't follow extended resource name standard");
    }
}

pub(crate) fn pod_resource_name(resource: &str, path: FieldPath<'_>, errors: &mut FieldErrors) {
    if resource_name(resource, path, errors)
        && !OF_PODS.contains(&resource)
        && !resource.starts_with(HUGE_PAGES)
    {
        errors.not_supported(path, resource, &["cpu", HUGE_PAGES, "memory"]);
    }
}

pub(crate) fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}

pub(crate) fn is_extended(resource: &str) -> bool {
    !is_native(resource)
        && !resource.starts_with("requests.")
        && name::qualified_name(&format!("requests.{resource}")).is_empty()
}

/// Whether its limit may exceed its request.
pub(crate) fn may_overcommit(resource: &str) -> bool {
    is_native(resource) && !resource.starts_with(HUGE_PAGES)
}

/// Whether a resource is counted in whole units.
pub(crate) fn is_whole_only(resource: &str) -> bool {
    is_extended(resource)
        || matches!(
            resource,
            "pods"
                | "resourcequotas"
                | "services"
                | "replicationcontrollers"
                | "secrets"
                | "configmaps"
                | "persistentvolumeclaims"
                | "services.nodeports"
                | "services.loadbalancers"
        )
}
