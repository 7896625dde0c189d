//! Policies for custom objects in another version than the request's, and for their scale.

use super::policies::GROUP;
use super::{TestPipeline, UserClient, document};
use bytes::Bytes;
use ferrokube_apimachinery::document::{Document, Value, json};
use ferrokube_apimachinery::gvk::GroupVersionKind;
use ferrokube_apimachinery::json as codec;
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::catalog::{ComputedCall, ComputedFuture};
use ferrokube_registry::{ComputedResource, Target};
use ferrokube_resource::conversion::{Conversion, ConversionFuture, Converter};
use ferrokube_resource::{
    Definition, DefinitionVersion, Dialect, Hooks, Policy, Scope, Subresource, Verbs,
};
use ferrokube_schema::apply::ResetFields;
use ferrokube_schema::custom::{SchemaContext, from_json_schema};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const CUSTOM: &str = "example.com";

/// `spec.size` of v1 is `spec.amount` of v2.
#[derive(Debug, Default)]
pub(super) struct SizeConverter {
    calls: AtomicUsize,
    fails: AtomicBool,
}

#[derive(Debug)]
struct ThingHooks(Arc<SizeConverter>);

impl Hooks for ThingHooks {
    fn converter(&self) -> Option<&dyn Converter> {
        Some(self)
    }
}

impl Converter for ThingHooks {
    fn convert(&self, api_version: String, objects: Vec<Bytes>) -> ConversionFuture<'_> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        let fields = match api_version.ends_with("v2") {
            true => ("size", "amount"),
            false => ("amount", "size"),
        };
        let convert = |bytes: Bytes| {
            let mut object = codec::read(&bytes).unwrap().document;
            object.set(&["apiVersion"], api_version.as_str());
            if let Some(value) = object.remove(&["spec", fields.0]) {
                object.set(&["spec", fields.1], value);
            }
            object
        };
        let objects = objects.into_iter().map(convert).collect();
        let result = match self.0.fails.load(Ordering::Relaxed) {
            true => Err(Failure::internal("the converter is broken")),
            false => Ok(Conversion { objects, room: None }),
        };
        Box::pin(std::future::ready(result))
    }
}

/// `spec.size` as a scale.
struct SizeScale;

impl ComputedResource for SizeScale {
    fn create<'a>(&'a self, _call: ComputedCall<'a>, _object: Document) -> ComputedFuture<'a> {
        unreachable!("a projection")
    }

    fn is_projection(&self) -> bool {
        true
    }

    fn project(&self, _target: &Target, object: &Document) -> Result<Document, Failure> {
        let replicas = object.get(&["spec", "size"]).cloned().unwrap_or_default();
        Ok(document(json!({"kind": "Scale", "apiVersion": "autoscaling/v1",
            "metadata": {"name": object.name(), "namespace": object.namespace()},
            "spec": {"replicas": replicas}})))
    }

    fn inject(
        &self,
        _target: &Target,
        projection: &Document,
        object: &mut Document,
    ) -> Result<(), Failure> {
        object.set(&["spec", "size"], projection.get(&["spec", "replicas"]).cloned().unwrap());
        Ok(())
    }
}

fn version(name: &str, field: &str) -> DefinitionVersion {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {(field): {"type": "integer"}, "items": {"type": "array",
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"],
            "items": {"type": "object", "required": ["key"], "properties": {
                "key": {"type": "string"}, "value": {"type": "integer"}}}}}}}});
    let scale = Subresource {
        name: "scale",
        kind: GroupVersionKind::new("autoscaling", "v1", "Scale"),
        verbs: Verbs::GET_PATCH_UPDATE,
        reset: ResetFields::default(),
        columns: None,
    };
    DefinitionVersion {
        name: name.to_owned(),
        served: true,
        deprecation: None,
        priority: None,
        schema: Arc::new(from_json_schema(&schema, &SchemaContext::default()).unwrap()),
        subresources: vec![scale],
        reset: ResetFields::default(),
        columns: ferrokube_resource::Columns::default(),
        selectable: Vec::new(),
        message: None,
    }
}

/// Serves Things, stored in v1.
pub(super) async fn start() -> (TestPipeline, Arc<SizeConverter>) {
    let (server, converter) = (TestPipeline::with_namespace().await, Arc::default());
    let catalog = server.registry.catalog();
    catalog.put_computed(CUSTOM, "things", "scale", Arc::new(SizeScale));
    catalog.put(Arc::new(Definition {
        group: CUSTOM.to_owned(),
        plural: "things".to_owned(),
        singular: "thing".to_owned(),
        kind: "Thing".to_owned(),
        list_kind: "ThingList".to_owned(),
        short_names: Vec::new(),
        categories: Vec::new(),
        scope: Scope::Namespaced,
        verbs: Verbs::ALL,
        versions: vec![version("v1", "size"), version("v2", "amount")],
        storage_version: 0,
        guards: Vec::new(),
        storage_prefix: Some(format!("{CUSTOM}/things")),
        dialect: Dialect::Custom,
        policy: Policy::DEFAULT,
        epoch: 1,
        since: 0,
        hooks: Arc::new(ThingHooks(Arc::clone(&converter))),
    }));
    (server, converter)
}

pub(super) fn things(server: &TestPipeline) -> UserClient<'_> {
    server.as_user(CUSTOM, "things")
}

pub(super) fn thing(size: i64) -> Document {
    document(json!({"kind": "Thing", "apiVersion": "example.com/v1",
        "metadata": {"name": "a", "namespace": "n"}, "spec": {"size": size}}))
}

/// A policy for v2 of Things, and its binding.
async fn bind(server: &TestPipeline, prefix: &str, resource: &str, spec: Value) {
    bind_to(server, "v2", prefix, resource, spec).await;
}

/// A policy for this version of Things, and its binding.
pub(super) async fn bind_to(
    server: &TestPipeline,
    version: &str,
    prefix: &str,
    resource: &str,
    spec: Value,
) {
    let (name, policies) = (resource.replace('/', "-"), format!("{prefix}admissionpolicies"));
    let mut policy = document(json!({"metadata": {"name": name.as_str()}, "spec": spec}));
    policy.set(
        &["spec", "matchConstraints"],
        json!({"resourceRules": [{"apiGroups": [CUSTOM], "apiVersions": [version],
            "operations": ["*"], "resources": [resource]}]}),
    );
    let mut binding = document(
        json!({"metadata": {"name": name.as_str()}, "spec": {"policyName": name.as_str()}}),
    );
    if prefix == "validating" {
        binding.set(&["spec", "validationActions"], json!(["Deny"]));
    }
    server.kind(GROUP, &policies).create("", policy).await.unwrap();
    let bindings = format!("{prefix}admissionpolicybindings");
    server.kind(GROUP, &bindings).create("", binding).await.unwrap();
}

#[tokio::test]
async fn policies_see_the_version_that_a_webhook_converts_to() {
    let (server, converter) = start().await;
    let check = json!({"validations": [{"expression": "object.spec.amount < 10",
        "messageExpression": "object.apiVersion + ' ' + request.kind.version"}]});
    bind(&server, "validating", "things", check).await;
    let refused = things(&server).create("n", thing(10)).await.unwrap_err();
    assert!(refused.message.ends_with("denied request: example.com/v2 v2"), "{}", refused.message);
    things(&server).create("n", thing(9)).await.unwrap();
    assert_eq!(converter.calls.load(Ordering::Relaxed), 2, "once for each write");
    converter.fails.store(true, Ordering::Relaxed);
    let refused = things(&server).update(thing(8), "").await.unwrap_err();
    let want = "failed to configure binding: failed to convert object version: ";
    assert!(refused.message.contains(want), "{}", refused.message);
}

#[tokio::test]
async fn mutations_work_in_the_version_of_the_policy() {
    let (server, converter) = start().await;
    let add = |by: u8| {
        let expression =
            format!("Object{{spec: Object.spec{{amount: object.spec.amount + {by}}}}}");
        json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
    };
    let policy = json!({"reinvocationPolicy": "Never", "mutations": [add(1), add(2)]});
    bind(&server, "mutating", "things", policy).await;
    let made = things(&server).create("n", thing(1)).await.unwrap();
    assert_eq!(made.get(&["spec"]), Some(&json!({"size": 4})));
    assert_eq!(made.api_version(), "example.com/v1");
    assert_eq!(converter.calls.load(Ordering::Relaxed), 2, "there and back");
}

#[tokio::test]
async fn a_scale_is_seen_as_a_scale_in_every_version() {
    let (server, converter) = start().await;
    let check = json!({"validations": [{"expression":
        "object.kind == 'Scale' && oldObject.spec.replicas == 1 && object.spec.replicas < 10"}]});
    bind(&server, "validating", "things/scale", check).await;
    let double = json!({"reinvocationPolicy": "Never", "mutations": [{"patchType": "JSONPatch",
        "jsonPatch": {"expression": "[JSONPatch{op: 'replace', path: '/spec/replicas', \
            value: object.spec.replicas * 2}]"}}]});
    bind(&server, "mutating", "things/scale", double).await;
    things(&server).create("n", thing(1)).await.unwrap();
    let scale = |replicas: i64| {
        document(json!({"kind": "Scale", "apiVersion": "autoscaling/v1",
            "metadata": {"name": "a", "namespace": "n"}, "spec": {"replicas": replicas}}))
    };
    let refused = things(&server).update(scale(5), "scale").await.unwrap_err();
    assert_eq!(refused.code, 422, "{}", refused.message);
    things(&server).update(scale(4), "scale").await.unwrap();
    let stored = server.kind(CUSTOM, "things").get("n", "a").await.unwrap().unwrap();
    assert_eq!(stored.get(&["spec", "size"]), Some(&json!(8)));
    assert_eq!(converter.calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn parameters_are_converted_too() {
    let (server, _) = start().await;
    things(&server).create("n", thing(7)).await.unwrap();
    let spec = json!({"paramKind": {"apiVersion": "example.com/v2", "kind": "Thing"},
        "validations": [{"expression": "params.spec.amount == 7"}]});
    let param = json!({"paramRef": {"name": "a", "parameterNotFoundAction": "Deny"}});
    super::policies::bind(&server, spec, param).await;
    super::policies::create(&server, "c", json!({})).await.unwrap();
}

#[tokio::test]
async fn a_json_patch_that_leaves_a_malformed_object_fails_the_write() {
    let server = TestPipeline::with_namespace().await;
    let breaks = json!([{"patchType": "JSONPatch", "jsonPatch": {"expression":
        "[JSONPatch{op: 'add', path: '/data', value: 'text'}]"}}]);
    super::policies::bind_mutation(&server, "breaks", breaks, false).await;
    let refused = super::policies::create(&server, "c", json!({})).await.unwrap_err();
    let want = "Internal error occurred: json: cannot unmarshal string into Go struct field ConfigMap.data of type map[string]string";
    assert_eq!((refused.code, refused.message.as_str()), (500, want));
}
