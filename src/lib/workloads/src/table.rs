//! The table of kinds with code. Flags in `kinds.tsv`:
//!
//! | word | the kind |
//! |---|---|
//! | `generation` | counts its generations |
//! | `annotations` | counts those of its annotations, too |
//! | `named` | a POST without a name gets one, as random as a uid |
//! | `prefixed` | has its `generateName` as its name, as it is |
//! | `creates` | is created by a PUT, too |
//! | `conditional` | needs a resourceVersion for a PUT |
//! | `returns` | is returned by its DELETE |
//! | `unnamespaced` | has no field selector for namespaces |
//! | `twice` | is checked twice by an update |
//! | `changes`, `object`, `unvalidated` | repeats some, or none, of the metadata errors of an update |
//! | `undomained` | accepts finalizers without a domain |
//! | `keeps` | keeps the status of a new object |
//! | `orphans` | leaves its dependents alone when deleted without a propagation policy |

use crate::hooks::{KindCode, KindHooks, PlainKind};
use crate::kinds::templated::{self, DaemonSet, ReplicationController};
use crate::kinds::{
    autoscaler, csidriver, devices, endpoints, job, limits, networking, node, pod, priority,
    revision, service, storage, volume,
};
use crate::rows::{self, DISCOVERY, DiscoveryRow};
use ferrokube_apimachinery::field::quote;
use ferrokube_resource::definition::Scope;
use ferrokube_resource::native::{KindBody, NativeColumn, NativeKind};
use ferrokube_resource::{FinalizerDomain, MetadataRules, Policy};
use std::sync::Arc;

/// Rows of kinds: the name of the resource, and the code beyond its rows.
macro_rules! table {
    ($($name:literal => $code:expr,)*) => {
        const BODIES: &[(&str, fn() -> KindBody)] =
            &[$(($name, || body($name, const { &$code })),)*];
    };
}

table! {
    "bindings" => PlainKind,
    "componentstatuses" => node::ComponentStatus,
    "endpoints" => endpoints::Endpoints,
    "limitranges" => limits::LimitRange,
    "nodes" => node::NodeKind,
    "persistentvolumeclaims" => volume::VolumeClaim,
    "persistentvolumes" => volume::PersistentVolume,
    "pods" => pod::Pod,
    "podtemplates" => templated::TEMPLATE,
    "replicationcontrollers" => ReplicationController,
    "services" => service::Service,
    "controllerrevisions.apps" => revision::ControllerRevision,
    "daemonsets.apps" => DaemonSet,
    "deployments.apps" => templated::CONTROLLER,
    "replicasets.apps" => templated::CONTROLLER,
    "statefulsets.apps" => templated::StatefulSet,
    "horizontalpodautoscalers.autoscaling" => autoscaler::Autoscaler,
    "cronjobs.batch" => job::CronJob,
    "jobs.batch" => job::Job,
    "endpointslices.discovery.k8s.io" => endpoints::EndpointSlice,
    "ingressclasses.networking.k8s.io" => networking::IngressClass,
    "ingresses.networking.k8s.io" => networking::Ingress,
    "ipaddresses.networking.k8s.io" => networking::IpAddress,
    "networkpolicies.networking.k8s.io" => networking::NetworkPolicy,
    "servicecidrs.networking.k8s.io" => networking::ServiceCidr,
    "runtimeclasses.node.k8s.io" => node::RuntimeClass,
    "poddisruptionbudgets.policy" => PlainKind,
    "deviceclasses.resource.k8s.io" => PlainKind,
    "resourceclaims.resource.k8s.io" => devices::ResourceClaim,
    "resourceclaimtemplates.resource.k8s.io" => devices::ResourceClaimTemplate,
    "resourceslices.resource.k8s.io" => devices::ResourceSlice,
    "priorityclasses.scheduling.k8s.io" => priority::PriorityClass,
    "csidrivers.storage.k8s.io" => csidriver::CsiDriver,
    "csinodes.storage.k8s.io" => storage::CsiNode,
    "csistoragecapacities.storage.k8s.io" => PlainKind,
    "storageclasses.storage.k8s.io" => storage::StorageClass,
    "volumeattachments.storage.k8s.io" => storage::VolumeAttachment,
    "volumeattributesclasses.storage.k8s.io" => PlainKind,
}

/// The rows, in discovery order.
pub(crate) fn native_kinds() -> Vec<NativeKind> {
    BODIES.iter().filter_map(|(name, body)| Some(native(newest(name)?, *body))).collect()
}

/// The rows of a resource, one for each version, the oldest first.
fn discovered(resource: &str) -> impl Iterator<Item = &'static DiscoveryRow> {
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    DISCOVERY.iter().filter(move |row| row.resource == plural && row.group == group)
}

/// The row in the newest version, which is stored.
fn newest(resource: &str) -> Option<&'static DiscoveryRow> {
    discovered(resource).last()
}

fn native(row: &'static DiscoveryRow, body: fn() -> KindBody) -> NativeKind {
    NativeKind {
        group: row.group,
        version: row.version,
        plural: row.resource,
        singular: row.singular,
        kind: row.kind,
        scope: if row.scope == "Cluster" { Scope::Cluster } else { Scope::Namespaced },
        short_names: rows::words(row.short_names, ','),
        verbs: rows::verbs(row.verbs),
        body,
    }
}

/// Warning of deletes of jobs that name no propagation policy.
const ORPHANED_PODS: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning";

/// A kind apart from its discovery row.
///
/// # Panics
/// If the tables lack it, which a test rules out.
fn body(resource: &'static str, code: &'static dyn KindCode) -> KindBody {
    let row = newest(resource).expect("every kind of the table is discovered: tested");
    let kind = rows::kind(resource);
    let has = |flag: &str| kind.flags.split(' ').any(|word| word == flag);
    let metadata_rules = match () {
        () if has("unvalidated") => MetadataRules::Nothing,
        () if has("changes") => MetadataRules::Changes,
        () if has("object") && has("twice") => MetadataRules::ObjectTwice,
        () if has("object") => MetadataRules::Object,
        () => MetadataRules::All,
    };
    let columns = rows::columns(resource);
    let subresources = rows::subresources(row, kind.status_reset);
    let status = subresources.iter().any(|subresource| subresource.name == "status");
    let group = row.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
    let types = discovered(resource)
        .map(|row| (row.version, format!("{group}.{}.{}", row.version, row.kind)))
        .collect();
    KindBody {
        categories: rows::words(row.categories, ','),
        subresources,
        reset: if status { &["status"] } else { &[] },
        columns: columns
            .map_or(const { &[NativeColumn::NAME, NativeColumn::AGE] }, |rows| &rows.columns),
        selectable: rows::words(kind.selectable, ' '),
        storage: match kind.prefix {
            "-" => None,
            "" => Some(row.resource),
            prefix => Some(prefix),
        },
        policy: Policy {
            untabled_subresources: match resource {
                "pods" => &["binding", "ephemeralcontainers", "eviction", "resize"],
                "resourceclaims" => &["status"],
                _ => &[],
            },
            counts_generation: has("generation"),
            counts_annotations: has("annotations"),
            names_itself: has("named"),
            prefix_becomes_name: has("prefixed"),
            create_on_update: has("creates"),
            unconditional_update: !has("conditional"),
            returns_deleted: has("returns"),
            selects_namespace: !has("unnamespaced"),
            keeps_reset_on_create: has("keeps"),
            orphans_by_default: has("orphans"),
            orphan_warning: if row.resource == "jobs" { ORPHANED_PODS } else { "" },
            finalizer_domain: if has("undomained") {
                FinalizerDomain::Optional
            } else {
                FinalizerDomain::Required
            },
            metadata_rules,
            subresource_metadata_rules: match metadata_rules {
                MetadataRules::Nothing => MetadataRules::Nothing,
                _ => MetadataRules::Changes,
            },
            metadata_last: metadata_rules == MetadataRules::Nothing,
            conversion_error: match resource {
                "daemonsets.apps" => Some(templated::conversion_error_of_daemon_set),
                "deployments.apps" => Some(templated::conversion_error_of_deployment),
                _ => None,
            },
            internal_annotations: match resource {
                "daemonsets.apps" => &templated::INTERNAL_OF_DAEMON_SET,
                "deployments.apps" => &templated::INTERNAL_OF_DEPLOYMENT,
                "horizontalpodautoscalers.autoscaling" => &autoscaler::IN_ANNOTATIONS,
                _ => &[],
            },
            missing_resource: (resource == "componentstatuses").then_some(row.singular),
            unknown_field: match resource {
                "jobs.batch" => {
                    Some(|field| format!("field label {} not supported for Job", quote(field)))
                }
                "resourceslices.resource.k8s.io" => Some(|field| {
                    format!(
                        "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: {field}"
                    )
                }),
                _ => None,
            },
            ..Policy::DEFAULT
        },
        hooks: Arc::new(KindHooks::new(types, columns, kept(kind.status_reset), has, code)),
        versions: older(resource),
        guarded: if resource == "statefulsets.apps" { &templated::GUARDED } else { &[] },
        deprecation: (!kind.deprecation.is_empty()).then_some(kind.deprecation),
        ..KindBody::default()
    }
}

/// Metadata that a write of the status does not change.
fn kept(status_reset: &str) -> &'static [&'static str] {
    match status_reset.split(' ').find(|path| path.starts_with("metadata")) {
        Some("metadata.labels") => &["labels"],
        Some("metadata.deletionTimestamp") => &["ownerReferences"],
        _ => &[],
    }
}

/// Versions of a resource besides the newest.
fn older(resource: &str) -> &'static [&'static str] {
    let mut versions: Vec<&'static str> = discovered(resource).map(|row| row.version).collect();
    versions.pop();
    versions.leak()
}
