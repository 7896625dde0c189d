//! The table of generic kinds, in discovery order.

use crate::kinds::{
    apiservice, configmap, crd, csr, event, feature, flowschema, lease, leasecandidate, namespace,
    policy, policybinding, prioritylevel, resourcequota, review, role, rolebinding, secret,
    serviceaccount, storageversion, storageversionmigration, webhookconfiguration,
};
use ferrokube_resource::Verbs;
use ferrokube_resource::definition::Scope::{self, Cluster, Namespaced};
use ferrokube_resource::native::{KindBody, NativeKind};

const EACH: Verbs = Verbs::ALL.without(Verbs::DELETE_COLLECTION);
const ADMISSION: &str = "admissionregistration.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";
const FLOW_CONTROL: &str = "flowcontrol.apiserver.k8s.io";

/// The generic profile.
#[rustfmt::skip]
pub(crate) const GENERIC: &[NativeKind] = &[
    row("", ["configmaps", "configmap", "ConfigMap"], Namespaced, &["cm"], Verbs::ALL, configmap::body),
    row("", ["events", "event", "Event"], Namespaced, &["ev"], Verbs::ALL, event::core),
    row("", ["namespaces", "namespace", "Namespace"], Cluster, &["ns"], EACH, namespace::body),
    row("", ["resourcequotas", "resourcequota", "ResourceQuota"], Namespaced, &["quota"], Verbs::ALL, resourcequota::body),
    row("", ["secrets", "secret", "Secret"], Namespaced, &[], Verbs::ALL, secret::body),
    row("", ["serviceaccounts", "serviceaccount", "ServiceAccount"], Namespaced, &["sa"], Verbs::ALL, serviceaccount::body),
    row("apiregistration.k8s.io", ["apiservices", "apiservice", "APIService"], Cluster, &[], Verbs::ALL, apiservice::body),
    row("events.k8s.io", ["events", "event", "Event"], Namespaced, &["ev"], Verbs::ALL, event::events),
    row(AUTHENTICATION, ["selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview"], Cluster, &[], Verbs::CREATE, review::body),
    row(AUTHENTICATION, ["tokenreviews", "tokenreview", "TokenReview"], Cluster, &[], Verbs::CREATE, review::body),
    row(AUTHORIZATION, ["localsubjectaccessreviews", "localsubjectaccessreview", "LocalSubjectAccessReview"], Namespaced, &[], Verbs::CREATE, review::body),
    row(AUTHORIZATION, ["selfsubjectaccessreviews", "selfsubjectaccessreview", "SelfSubjectAccessReview"], Cluster, &[], Verbs::CREATE, review::body),
    row(AUTHORIZATION, ["selfsubjectrulesreviews", "selfsubjectrulesreview", "SelfSubjectRulesReview"], Cluster, &[], Verbs::CREATE, review::body),
    row(AUTHORIZATION, ["subjectaccessreviews", "subjectaccessreview", "SubjectAccessReview"], Cluster, &[], Verbs::CREATE, review::body),
    row("certificates.k8s.io", ["certificatesigningrequests", "certificatesigningrequest", "CertificateSigningRequest"], Cluster, &["csr"], Verbs::ALL, csr::body),
    row(RBAC, ["clusterrolebindings", "clusterrolebinding", "ClusterRoleBinding"], Cluster, &[], Verbs::ALL, rolebinding::cluster_role_binding),
    row(RBAC, ["clusterroles", "clusterrole", "ClusterRole"], Cluster, &[], Verbs::ALL, role::cluster_role),
    row(RBAC, ["rolebindings", "rolebinding", "RoleBinding"], Namespaced, &[], Verbs::ALL, rolebinding::role_binding),
    row(RBAC, ["roles", "role", "Role"], Namespaced, &[], Verbs::ALL, role::role),
    row(ADMISSION, ["mutatingadmissionpolicies", "mutatingadmissionpolicy", "MutatingAdmissionPolicy"], Cluster, &[], Verbs::ALL, policy::mutating),
    row(ADMISSION, ["mutatingadmissionpolicybindings", "mutatingadmissionpolicybinding", "MutatingAdmissionPolicyBinding"], Cluster, &[], Verbs::ALL, policybinding::mutating),
    row(ADMISSION, ["mutatingwebhookconfigurations", "mutatingwebhookconfiguration", "MutatingWebhookConfiguration"], Cluster, &[], Verbs::ALL, webhookconfiguration::mutating),
    row(ADMISSION, ["validatingadmissionpolicies", "validatingadmissionpolicy", "ValidatingAdmissionPolicy"], Cluster, &[], Verbs::ALL, policy::validating),
    row(ADMISSION, ["validatingadmissionpolicybindings", "validatingadmissionpolicybinding", "ValidatingAdmissionPolicyBinding"], Cluster, &[], Verbs::ALL, policybinding::validating),
    row(ADMISSION, ["validatingwebhookconfigurations", "validatingwebhookconfiguration", "ValidatingWebhookConfiguration"], Cluster, &[], Verbs::ALL, webhookconfiguration::validating),
    row("apiextensions.k8s.io", ["customresourcedefinitions", "customresourcedefinition", "CustomResourceDefinition"], Cluster, &["crd", "crds"], Verbs::ALL, crd::body),
    row("coordination.k8s.io", ["leases", "lease", "Lease"], Namespaced, &[], Verbs::ALL, lease::body),
    row(FLOW_CONTROL, ["flowschemas", "flowschema", "FlowSchema"], Cluster, &[], Verbs::ALL, flowschema::body),
    row(FLOW_CONTROL, ["prioritylevelconfigurations", "prioritylevelconfiguration", "PriorityLevelConfiguration"], Cluster, &[], Verbs::ALL, prioritylevel::body),
];

/// Kinds in versions that kube-apiserver does not enable by default.
#[rustfmt::skip]
pub(crate) const ON_REQUEST: &[NativeKind] = &[
    NativeKind { version: "v1beta1", ..row("coordination.k8s.io", ["leasecandidates", "leasecandidate", "LeaseCandidate"], Namespaced, &[], Verbs::ALL, leasecandidate::body) },
    NativeKind { version: "v1beta1", ..row("storagemigration.k8s.io", ["storageversionmigrations", "storageversionmigration", "StorageVersionMigration"], Cluster, &[], Verbs::ALL, storageversionmigration::body) },
    NativeKind { version: "v1alpha1", ..row("internal.apiserver.k8s.io", ["storageversions", "storageversion", "StorageVersion"], Cluster, &[], Verbs::ALL, storageversion::body) },
    NativeKind { version: "v1alpha1", ..row("features.k8s.io", ["features", "feature", "Feature"], Namespaced, &["feat"], Verbs::ALL, feature::body) },
];

/// A row in version v1; `names` are plural, singular and kind.
#[allow(clippy::too_many_arguments, reason = "a row of a table")]
const fn row(
    group: &'static str,
    names: [&'static str; 3],
    scope: Scope,
    short_names: &'static [&'static str],
    verbs: Verbs,
    body: fn() -> KindBody,
) -> NativeKind {
    NativeKind { short_names, verbs, ..NativeKind::new(group, names, scope, body) }
}
