//! Fuzz targets: strategic merge, apply, tracking, the passes over native objects, custom resource
//! schemas.

use crate::apply::{ApplyError, Manager, ManagerOperation, ResetFields, apply, track_update};
use crate::custom::{SchemaContext, from_json_schema};
use crate::schema::Schema;
use crate::strategic::strategic_merge;
use crate::testing::{core, schema};
use crate::validate::{check_types, default, prune, validate};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::work::counted;
use ferrokube_fuzz::{Verdict, run};
use std::sync::Arc;

/// Kinds with all sorts of fields; an input's first byte selects one.
fn kinds() -> Vec<Arc<Schema>> {
    vec![
        schema("io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration"),
        core("ServiceAccount"),
        core("ConfigMap"),
        core("ResourceQuota"),
        schema("io.k8s.api.flowcontrol.v1.FlowSchema"),
        schema("io.k8s.api.rbac.v1.ClusterRole"),
        schema("io.k8s.api.certificates.v1.CertificateSigningRequest"),
    ]
}

/// Splits an input into a schema (one byte) and JSON objects, one per line.
fn read<'a>(kinds: &'a [Arc<Schema>], input: &[u8]) -> Option<(&'a Schema, Vec<Document>)> {
    let (kind, rest) = input.split_first()?;
    let objects = rest
        .split(|byte| *byte == b'\n')
        .map(|line| Some(json::read(line).ok()?.document))
        .collect::<Option<_>>()?;
    Some((&kinds[usize::from(*kind) % kinds.len()], objects))
}

fn bounded(object: &Document, input: &[u8]) {
    let value = object.clone().into_value();
    assert!(
        json::depth(&value) <= 2 * json::MAX_DEPTH
            && json::to_vec(&value).len() <= 16 * input.len() + 64 * 1024
    );
}

const STORED: &str = r#"{"kind":"ValidatingWebhookConfiguration","apiVersion":"v1","metadata":{"name":"p","labels":{"a":"b"},"finalizers":["x/y"],"managedFields":[{"manager":"m","operation":"Apply","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{"f:a":{}},"f:finalizers":{".":{},"v:\"x/y\"":{}}},"f:webhooks":{"k:{\"name\":\"c\"}":{".":{},"f:name":{},"f:rules":{}}}}}]},"webhooks":[{"name":"c","sideEffects":"None","admissionReviewVersions":["v1"],"clientConfig":{"service":{"name":"s","namespace":"n"}},"rules":[{"operations":["*"],"resources":["pods"]}],"matchConditions":[{"name":"m","expression":"true"}],"namespaceSelector":{"matchLabels":{"k":"v"}}}]}"#;
const PATCH: &str = r#"{"metadata":{"labels":{"a":null,"$patch":"replace"},"$deleteFromPrimitiveList/finalizers":["x/y"],"$setElementOrder/finalizers":["z"]},"$setElementOrder/webhooks":[{"name":"d"},{"name":"c"}],"webhooks":[{"name":"d","timeoutSeconds":5,"$retainKeys":["name"]},{"name":"c","$patch":"delete"}]}"#;
const APPLIED: &str = r#"{"kind":"ValidatingWebhookConfiguration","apiVersion":"v1","metadata":{"name":"p","labels":{"q":"r"}},"webhooks":[{"name":"c","matchConditions":[{"name":"n","expression":"x"}],"objectSelector":{}}]}"#;
const ACCOUNT: &str = r#"{"kind":"ServiceAccount","apiVersion":"v1","metadata":{"name":"s"},"secrets":[{"name":"a"}],"imagePullSecrets":[{"name":"b"}],"automountServiceAccountToken":true}"#;
const QUOTA: &str = r#"{"kind":"ResourceQuota","apiVersion":"v1","metadata":{"name":"q"},"spec":{"hard":{"pods":"5","cpu":0.5},"scopes":["BestEffort"],"scopeSelector":{"matchExpressions":[{"operator":"In","scopeName":"PriorityClass","values":["a"]}]}}}"#;
const DATA: &str = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","creationTimestamp":null},"data":{"k":"v"},"binaryData":{"b":"AA=="},"immutable":true}"#;

fn pairs() -> Vec<String> {
    let all = [STORED, PATCH, APPLIED];
    let mut pairs: Vec<String> = all
        .iter()
        .flat_map(|one| all.iter().map(move |other| format!("\0{one}\n{other}")))
        .collect();
    let conditions = r#"{"name":"c","matchConditions":[{"name":"m"}],"$retainKeys":["name","matchConditions"]},"#.repeat(30);
    let again = format!(
        r#"{{"webhooks":[{}{{"name":"c"}}],"metadata":{{"$retainKeys":["labels","labels"]}}}}"#,
        conditions
    );
    pairs.push(format!("\0{STORED}\n{again}"));
    pairs.extend([
        format!("\x01{ACCOUNT}\n{ACCOUNT}"),
        format!("\x02{DATA}\n{DATA}"),
        format!("\x03{QUOTA}\n{QUOTA}"),
    ]);
    pairs
}

fn manager(operation: ManagerOperation) -> Manager {
    let text = str::to_owned;
    Manager {
        name: text("m"),
        operation,
        api_version: text("v1"),
        subresource: String::new(),
        time: text("2026-01-02T00:00:00Z"),
        ids_are_servers: true,
        other_versions: None,
    }
}

#[test]
fn strategic_merges_stay_bounded() {
    let kinds = kinds();
    run("strategic merge", &pairs(), |input| {
        let Some((schema, objects)) = read(&kinds, input) else { return Verdict::Refused };
        let [target, patch, ..] = objects.as_slice() else { return Verdict::Refused };
        let mut target = target.clone();
        let (merged, steps) = counted(|| strategic_merge(schema, &mut target, patch));
        assert!(steps <= 1_100_000, "{steps} steps");
        bounded(&target, input);
        Verdict::from(merged.is_ok())
    });
}

#[test]
fn applies_take_any_managed_fields() {
    let kinds = kinds();
    run("apply", &pairs(), |input| {
        let Some((schema, objects)) = read(&kinds, input) else { return Verdict::Refused };
        let [live, applied, ..] = objects.as_slice() else { return Verdict::Refused };
        let (reset, manager) =
            (ResetFields::of_paths(&["status"]), manager(ManagerOperation::Apply));
        let _ = apply(schema, &reset, Some(live), applied, &manager, false);
        let Ok(created) = apply(schema, &reset, None, applied, &manager, true) else {
            return Verdict::Refused;
        };
        bounded(&created, input);
        match apply(schema, &reset, Some(live), applied, &manager, true) {
            Ok(forced) => bounded(&forced, input),
            Err(ApplyError::Untracked(_)) => {}
            Err(error) => panic!("what can be created can be forced: {error:?}"),
        }
        Verdict::Accepted
    });
}

#[test]
fn updates_take_any_managed_fields() {
    let kinds = kinds();
    run("track update", &pairs(), |input| {
        let Some((schema, objects)) = read(&kinds, input) else { return Verdict::Refused };
        let [old, new, ..] = objects.as_slice() else { return Verdict::Refused };
        let (mut updated, mut created) = (new.clone(), new.clone());
        track_update(
            schema,
            &ResetFields::default(),
            Some(old),
            &mut updated,
            &manager(ManagerOperation::Update),
        );
        bounded(&updated, input);
        track_update(
            schema,
            &ResetFields::default(),
            None,
            &mut created,
            &manager(ManagerOperation::Update),
        );
        bounded(&created, input);
        Verdict::Accepted
    });
}

#[test]
fn passes_take_any_object_and_repeat() {
    let kinds = kinds();
    let seeds = [
        format!("\0{STORED}"),
        format!("\x01{ACCOUNT}"),
        format!("\x02{DATA}"),
        format!("\x03{QUOTA}"),
    ];
    run("passes", &seeds, |input| {
        let Some((schema, objects)) = read(&kinds, input) else { return Verdict::Refused };
        let Some(object) = objects.first() else { return Verdict::Refused };
        let fits = check_types(schema, &object.clone().into_value()).is_ok();
        let mut pruned = object.clone();
        let unknown = prune(schema, &mut pruned);
        assert!(unknown.len() <= 100);
        assert_eq!(prune(schema, &mut pruned.clone()), Vec::<String>::new());
        let mut defaulted = pruned.clone();
        default(schema, &mut defaulted);
        bounded(&defaulted, input);
        let once = defaulted.clone();
        default(schema, &mut defaulted);
        assert_eq!(defaulted, once);
        if fits {
            assert_eq!(check_types(schema, &once.clone().into_value()), Ok(()), "defaults fit");
        }
        let _ = validate(schema, &once);
        Verdict::from(fits)
    });
}

const CUSTOM: &str = r#"{"type":"object","properties":{"spec":{"type":"object","required":["n"],"properties":{"n":{"type":"integer","minimum":1,"maximum":9,"default":3},"s":{"type":"string","pattern":"^a+$","maxLength":5,"enum":["a","aa"],"format":"date-time"},"l":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],"items":{"type":"object","required":["k"],"properties":{"k":{"type":"string"}}}},"o":{"type":"object","additionalProperties":{"x-kubernetes-int-or-string":true}},"x":{"x-kubernetes-preserve-unknown-fields":true,"type":"object","nullable":true},"e":{"type":"object","x-kubernetes-embedded-resource":true,"x-kubernetes-preserve-unknown-fields":true}},"anyOf":[{"required":["s"]},{"not":{"required":["l"]}}]}}}"#;

#[test]
fn custom_schemas_load_or_return_errors() {
    let seeds = [format!(
        "{CUSTOM}\n{{\"spec\":{{\"n\":12,\"s\":\"b\",\"l\":[{{\"k\":\"a\"}},{{\"k\":\"a\"}}],\"o\":{{\"p\":1}},\"x\":null,\"e\":{{}}}}}}"
    )];
    run("custom schema", &seeds, |input| {
        let lines: Option<Vec<Value>> =
            input.split(|byte| *byte == b'\n').map(|line| json::read_value(line).ok()).collect();
        let Some([text, object, ..]) = lines.as_deref() else { return Verdict::Refused };
        let loaded = match from_json_schema(
            text,
            &SchemaContext { path: "schema", ..SchemaContext::default() },
        ) {
            Ok(loaded) => loaded,
            Err(errors) => {
                assert!(!errors.is_empty() && errors.len() <= 100);
                return Verdict::Refused;
            }
        };
        let Ok(mut object) = Document::from_value(object.clone()) else { return Verdict::Refused };
        let _ = (prune(&loaded, &mut object), check_types(&loaded, &object.clone().into_value()));
        default(&loaded, &mut object);
        let _ = validate(&loaded, &object);
        bounded(&object, input);
        Verdict::Accepted
    });
}
