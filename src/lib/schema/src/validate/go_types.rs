//! Go type names in kube-apiserver's decoding errors that the schema does not have: named strings,
//! lists and maps.

use crate::schema::{Kind, Schema};

/// Definition without `io.k8s.`, field, Go type.
const NAMED: [(&str, &str, &str); 75] = [
    ("api.admissionregistration.v1.MatchResources", "matchPolicy", "v1.MatchPolicyType"),
    (
        "api.admissionregistration.v1.MutatingAdmissionPolicySpec",
        "failurePolicy",
        "v1.FailurePolicyType",
    ),
    (
        "api.admissionregistration.v1.MutatingAdmissionPolicySpec",
        "reinvocationPolicy",
        "v1.ReinvocationPolicyType",
    ),
    ("api.admissionregistration.v1.MutatingWebhook", "failurePolicy", "v1.FailurePolicyType"),
    ("api.admissionregistration.v1.MutatingWebhook", "matchPolicy", "v1.MatchPolicyType"),
    (
        "api.admissionregistration.v1.MutatingWebhook",
        "reinvocationPolicy",
        "v1.ReinvocationPolicyType",
    ),
    ("api.admissionregistration.v1.MutatingWebhook", "sideEffects", "v1.SideEffectClass"),
    ("api.admissionregistration.v1.Mutation", "patchType", "v1.PatchType"),
    (
        "api.admissionregistration.v1.ParamRef",
        "parameterNotFoundAction",
        "v1.ParameterNotFoundActionType",
    ),
    ("api.admissionregistration.v1.RuleWithOperations", "operations", "[]v1.OperationType"),
    (
        "api.admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec",
        "validationActions",
        "[]v1.ValidationAction",
    ),
    (
        "api.admissionregistration.v1.ValidatingAdmissionPolicySpec",
        "failurePolicy",
        "v1.FailurePolicyType",
    ),
    ("api.admissionregistration.v1.ValidatingWebhook", "failurePolicy", "v1.FailurePolicyType"),
    ("api.admissionregistration.v1.ValidatingWebhook", "matchPolicy", "v1.MatchPolicyType"),
    ("api.admissionregistration.v1.ValidatingWebhook", "sideEffects", "v1.SideEffectClass"),
    (
        "api.admissionregistration.v1alpha1.MatchResources",
        "matchPolicy",
        "v1alpha1.MatchPolicyType",
    ),
    (
        "api.admissionregistration.v1alpha1.MutatingAdmissionPolicySpec",
        "failurePolicy",
        "v1alpha1.FailurePolicyType",
    ),
    ("api.admissionregistration.v1alpha1.Mutation", "patchType", "v1alpha1.PatchType"),
    (
        "api.admissionregistration.v1alpha1.ParamRef",
        "parameterNotFoundAction",
        "v1alpha1.ParameterNotFoundActionType",
    ),
    ("api.admissionregistration.v1beta1.MatchResources", "matchPolicy", "v1beta1.MatchPolicyType"),
    (
        "api.admissionregistration.v1beta1.MutatingAdmissionPolicySpec",
        "failurePolicy",
        "v1beta1.FailurePolicyType",
    ),
    ("api.admissionregistration.v1beta1.Mutation", "patchType", "v1beta1.PatchType"),
    (
        "api.admissionregistration.v1beta1.ParamRef",
        "parameterNotFoundAction",
        "v1beta1.ParameterNotFoundActionType",
    ),
    (
        "api.apiserverinternal.v1alpha1.StorageVersionCondition",
        "status",
        "v1alpha1.ConditionStatus",
    ),
    (
        "api.apiserverinternal.v1alpha1.StorageVersionCondition",
        "type",
        "v1alpha1.StorageVersionConditionType",
    ),
    ("api.authentication.v1.BoundObjectReference", "uid", "types.UID"),
    ("api.authentication.v1.UserInfo", "extra", "map[string]v1.ExtraValue"),
    ("api.authorization.v1.SubjectAccessReviewSpec", "extra", "map[string]v1.ExtraValue"),
    ("api.certificates.v1.CertificateSigningRequestCondition", "status", "v1.ConditionStatus"),
    ("api.certificates.v1.CertificateSigningRequestCondition", "type", "v1.RequestConditionType"),
    ("api.certificates.v1.CertificateSigningRequestSpec", "extra", "map[string]v1.ExtraValue"),
    ("api.certificates.v1.CertificateSigningRequestSpec", "usages", "[]v1.KeyUsage"),
    ("api.coordination.v1.LeaseSpec", "strategy", "v1.CoordinatedLeaseStrategy"),
    ("api.core.v1.NamespaceCondition", "status", "v1.ConditionStatus"),
    ("api.core.v1.NamespaceCondition", "type", "v1.NamespaceConditionType"),
    ("api.core.v1.NamespaceSpec", "finalizers", "[]v1.FinalizerName"),
    ("api.core.v1.NamespaceStatus", "phase", "v1.NamespacePhase"),
    ("api.core.v1.ObjectReference", "uid", "types.UID"),
    ("api.core.v1.ResourceQuotaSpec", "hard", "v1.ResourceList"),
    ("api.core.v1.ResourceQuotaSpec", "scopes", "[]v1.ResourceQuotaScope"),
    ("api.core.v1.ResourceQuotaStatus", "hard", "v1.ResourceList"),
    ("api.core.v1.ResourceQuotaStatus", "used", "v1.ResourceList"),
    ("api.core.v1.ScopedResourceSelectorRequirement", "operator", "v1.ScopeSelectorOperator"),
    ("api.core.v1.ScopedResourceSelectorRequirement", "scopeName", "v1.ResourceQuotaScope"),
    ("api.core.v1.Secret", "type", "v1.SecretType"),
    ("api.flowcontrol.v1.FlowDistinguisherMethod", "type", "v1.FlowDistinguisherMethodType"),
    ("api.flowcontrol.v1.FlowSchemaCondition", "status", "v1.ConditionStatus"),
    ("api.flowcontrol.v1.FlowSchemaCondition", "type", "v1.FlowSchemaConditionType"),
    ("api.flowcontrol.v1.LimitResponse", "type", "v1.LimitResponseType"),
    ("api.flowcontrol.v1.PriorityLevelConfigurationCondition", "status", "v1.ConditionStatus"),
    (
        "api.flowcontrol.v1.PriorityLevelConfigurationCondition",
        "type",
        "v1.PriorityLevelConfigurationConditionType",
    ),
    ("api.flowcontrol.v1.PriorityLevelConfigurationSpec", "type", "v1.PriorityLevelEnablement"),
    ("api.flowcontrol.v1.Subject", "kind", "v1.SubjectKind"),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceConversion",
        "strategy",
        "v1.ConversionStrategyType",
    ),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionCondition",
        "status",
        "v1.ConditionStatus",
    ),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionCondition",
        "type",
        "v1.CustomResourceDefinitionConditionType",
    ),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionSpec",
        "scope",
        "v1.ResourceScope",
    ),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps",
        "$schema",
        "v1.JSONSchemaURL",
    ),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps",
        "definitions",
        "v1.JSONSchemaDefinitions",
    ),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps",
        "dependencies",
        "v1.JSONSchemaDependencies",
    ),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps",
        "x-kubernetes-validations",
        "v1.ValidationRules",
    ),
    (
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.ValidationRule",
        "reason",
        "v1.FieldValueErrorReason",
    ),
    ("apimachinery.pkg.apis.meta.v1.APIResource", "verbs", "v1.Verbs"),
    ("apimachinery.pkg.apis.meta.v1.Condition", "status", "v1.ConditionStatus"),
    ("apimachinery.pkg.apis.meta.v1.DeleteOptions", "propagationPolicy", "v1.DeletionPropagation"),
    (
        "apimachinery.pkg.apis.meta.v1.FieldSelectorRequirement",
        "operator",
        "v1.FieldSelectorOperator",
    ),
    (
        "apimachinery.pkg.apis.meta.v1.LabelSelectorRequirement",
        "operator",
        "v1.LabelSelectorOperator",
    ),
    (
        "apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry",
        "operation",
        "v1.ManagedFieldsOperationType",
    ),
    ("apimachinery.pkg.apis.meta.v1.ObjectMeta", "uid", "types.UID"),
    ("apimachinery.pkg.apis.meta.v1.OwnerReference", "uid", "types.UID"),
    ("apimachinery.pkg.apis.meta.v1.Preconditions", "uid", "types.UID"),
    ("apimachinery.pkg.apis.meta.v1.Status", "reason", "v1.StatusReason"),
    ("apimachinery.pkg.apis.meta.v1.StatusCause", "reason", "v1.CauseType"),
    ("apimachinery.pkg.apis.meta.v1.StatusDetails", "uid", "types.UID"),
    ("apimachinery.pkg.apis.meta.v1.WatchEvent", "object", "runtime.RawExtension"),
];

/// The Go type of a definition's field.
pub(super) fn of_field(owner: &Schema, field: &str, node: &Schema) -> String {
    let definition =
        owner.name.as_deref().and_then(|name| name.strip_prefix("io.k8s.")).unwrap_or_default();
    match NAMED.binary_search_by(|(known, name, _)| (*known, *name).cmp(&(definition, field))) {
        Ok(at) => NAMED[at].2.to_owned(),
        Err(_) => of(node),
    }
}

/// The Go type that follows from the schema.
pub(super) fn of(node: &Schema) -> String {
    let format = node.format.as_deref().unwrap_or_default();
    match (node.kind, node.name.as_deref()) {
        (Kind::IntOrString, _) if format == "quantity" => "resource.Quantity".to_owned(),
        (Kind::IntOrString, _) => "intstr.IntOrString".to_owned(),
        (_, Some(name)) => {
            let mut parts = name.rsplit('.');
            let short = parts.next().unwrap_or_default();
            format!("{}.{short}", parts.next().unwrap_or_default())
        }
        (Kind::Object, None) => format!(
            "map[string]{}",
            node.additional.as_deref().map_or("interface {}".to_owned(), of)
        ),
        (Kind::Array, None) => {
            format!("[]{}", node.items.as_deref().map_or("interface {}".to_owned(), of))
        }
        (Kind::String, None) if format == "byte" => "[]uint8".to_owned(),
        (Kind::String, None) => "string".to_owned(),
        (Kind::Integer, None) => if format == "int32" { "int32" } else { "int64" }.to_owned(),
        (Kind::Number, None) => "float64".to_owned(),
        (Kind::Boolean, None) => "bool".to_owned(),
        (Kind::Any, None) => "interface {}".to_owned(),
    }
}

/// The type of the elements of a list or map type.
pub(super) fn of_element(whole: &str, element: &Schema) -> String {
    match whole.strip_prefix("[]").or_else(|| whole.strip_prefix("map[string]")) {
        Some(name) if !name.starts_with("interface") => name.to_owned(),
        _ => of(element),
    }
}
