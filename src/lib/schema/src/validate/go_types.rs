//! Go type names in kube-apiserver's decoding errors that the schema does not have: named strings,
//! lists and maps.

use crate::schema::{Kind, Schema};

/// Definition without `io.k8s.`, field, Go type; read when an error names one.
const NAMED: &str = include_str!("../../data/go_types.tsv");

/// Definition without `io.k8s.api.`, a struct that its Go type embeds, and fields: those of the
/// struct, or those that are not (`!`).
const EMBEDDED: [(&str, &str, &str); 19] = [
    ("admissionregistration.v1.NamedRuleWithOperations", "RuleWithOperations", "! resourceNames"),
    ("admissionregistration.v1.NamedRuleWithOperations", "Rule", "! resourceNames operations"),
    ("admissionregistration.v1.RuleWithOperations", "Rule", "! operations"),
    ("core.v1.ConfigMapEnvSource", "LocalObjectReference", "name"),
    ("core.v1.ConfigMapKeySelector", "LocalObjectReference", "name"),
    ("core.v1.ConfigMapProjection", "LocalObjectReference", "name"),
    ("core.v1.ConfigMapVolumeSource", "LocalObjectReference", "name"),
    ("core.v1.SecretEnvSource", "LocalObjectReference", "name"),
    ("core.v1.SecretKeySelector", "LocalObjectReference", "name"),
    ("core.v1.SecretProjection", "LocalObjectReference", "name"),
    ("core.v1.EphemeralContainer", "EphemeralContainerCommon", "! targetContainerName"),
    ("core.v1.PersistentVolumeClaim", "TypeMeta", "kind apiVersion"),
    (
        "core.v1.PersistentVolumeSpec",
        "PersistentVolumeSource",
        "! capacity accessModes claimRef persistentVolumeReclaimPolicy storageClassName mountOptions volumeMode nodeAffinity volumeAttributesClassName",
    ),
    (
        "core.v1.Probe",
        "ProbeHandler",
        "! initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold terminationGracePeriodSeconds",
    ),
    ("core.v1.Volume", "VolumeSource", "! name"),
    ("networking.v1.IngressRule", "IngressRuleValue", "! host"),
    ("resource.v1.DeviceAllocationConfiguration", "DeviceConfiguration", "! source requests"),
    ("resource.v1.DeviceClaimConfiguration", "DeviceConfiguration", "! requests"),
    ("resource.v1.DeviceClassConfiguration", "DeviceConfiguration", "!"),
];

/// Structs that the Go type embeds around the field, the outermost first: errors name them.
pub(super) fn embedded(owner: &Schema, field: &str) -> Vec<&'static str> {
    let definition =
        owner.name.as_deref().and_then(|name| name.strip_prefix("io.k8s.api.")).unwrap_or_default();
    let has = |fields: &str| match fields.strip_prefix('!') {
        Some(others) => !others.split(' ').any(|name| name == field),
        None => fields.split(' ').any(|name| name == field),
    };
    let of_owner = EMBEDDED.iter().filter(|(of, _, fields)| *of == definition && has(fields));
    of_owner.map(|(_, name, _)| *name).collect()
}

/// The Go type of a definition's field.
pub(super) fn of_field(owner: &Schema, field: &str, node: &Schema) -> String {
    let definition =
        owner.name.as_deref().and_then(|name| name.strip_prefix("io.k8s.")).unwrap_or_default();
    let named = |line: &'static str| {
        line.strip_prefix(definition)?.strip_prefix('\t')?.strip_prefix(field)?.strip_prefix('\t')
    };
    NAMED.lines().find_map(named).map_or_else(|| of(node), str::to_owned)
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
    let of_map = || Some(whole.strip_prefix("map[")?.split_once(']')?.1);
    match whole.strip_prefix("[]").or_else(of_map) {
        Some(name) if !name.starts_with("interface") => name.to_owned(),
        _ => of(element),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_have_the_type_that_the_whole_names() {
        let text = Schema { kind: Kind::String, ..Schema::default() };
        for (whole, expected) in [
            ("[]v1.FinalizerName", "v1.FinalizerName"),
            ("map[string]resource.Quantity", "resource.Quantity"),
            ("map[v1.ResourceName]v1.ClaimResourceStatus", "v1.ClaimResourceStatus"),
            ("map[string]interface {}", "string"),
            ("v1.Other", "string"),
        ] {
            assert_eq!(of_element(whole, &text), expected, "{whole}");
        }
    }
}
