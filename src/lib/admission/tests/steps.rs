//! The steps alone and in their chain, over an in-memory store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use ferrokube_admission::{Chain, PermitQuery, Permits};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::json;
use ferrokube_apimachinery::user::UserInfo;
use ferrokube_cel::{CheckDecision, Right};
use ferrokube_features::{GateSettings, Gates, KubernetesVersion};
use ferrokube_registry::{
    Admission, AdmissionOptions, Attributes, Effects, Operation, RequestContext, Served, Target,
    WriteOptions,
};
use ferrokube_resource::{
    DefaultHooks, Definition, DefinitionVersion, Dialect, Policy, Scope, Verbs,
};
use ferrokube_schema::Schema;
use ferrokube_storage::{Config, Key, Prefix, Put, Sidecar, Store, Txn, Write};
use ferrokube_trace::TraceContext;
use std::sync::Arc;
use std::time::SystemTime;

#[path = "steps/certificates.rs"]
mod certificates;
#[path = "steps/event_rate.rs"]
mod event_rate;
#[path = "steps/namespace.rs"]
mod namespace;
#[path = "steps/order.rs"]
mod order;
#[path = "steps/quota.rs"]
mod quota;
#[path = "steps/readers.rs"]
mod readers;
#[path = "steps/times.rs"]
mod times;
#[path = "steps/trace_stamp.rs"]
mod trace_stamp;

/// Grants the listed rights, as `verb name`.
struct GrantedRights(Vec<String>);

impl Permits for GrantedRights {
    fn decide(&self, _: &UserInfo, _: &Right) -> CheckDecision {
        CheckDecision::default()
    }

    fn permits(&self, _user: &UserInfo, question: &PermitQuery<'_>) -> bool {
        assert_eq!((question.group, question.resource), ("certificates.k8s.io", "signers"));
        self.0.contains(&format!("{} {}", question.verb, question.name))
    }
}

fn store() -> Store {
    Store::open(Config::memory()).expect("memory opens")
}

fn gates(setting: &str) -> Gates {
    let settings: GateSettings = setting.parse().expect("a setting");
    Gates::new(KubernetesVersion::new(1, 36), &settings).expect("known gates").0
}

fn chain(store: &Store) -> Chain {
    Chain::new(store, gates(""), Arc::new(GrantedRights(Vec::new())))
}

/// Without a schema: steps read only names.
fn definition(group: &str, plural: &str, scope: Scope) -> Arc<Definition> {
    let version = DefinitionVersion {
        name: "v1".to_owned(),
        served: true,
        deprecation: None,
        priority: None,
        schema: Arc::new(Schema::default()),
        subresources: Vec::new(),
        reset: Default::default(),
        columns: ferrokube_resource::Columns::default(),
        selectable: Vec::new(),
        message: None,
    };
    Arc::new(Definition {
        group: group.to_owned(),
        plural: plural.to_owned(),
        singular: plural.to_owned(),
        kind: plural.to_owned(),
        list_kind: plural.to_owned(),
        short_names: Vec::new(),
        categories: Vec::new(),
        scope,
        verbs: Verbs::ALL,
        versions: vec![version],
        storage_version: 0,
        guards: Vec::new(),
        storage_prefix: Some(plural.to_owned()),
        dialect: Dialect::Native,
        policy: Policy::DEFAULT,
        epoch: 1,
        since: 0,
        hooks: Arc::new(DefaultHooks),
    })
}

fn target(definition: &Arc<Definition>, namespace: Option<&str>, name: &str) -> Target {
    let served = Served { definition: definition.clone(), version: 0 };
    Target {
        served,
        namespace: namespace.map(str::to_owned),
        name: Some(name.to_owned()),
        subresource: String::new(),
    }
}

fn document(value: Value) -> Document {
    Document::from_value(value).expect("a fixture is an object")
}

fn context() -> RequestContext {
    RequestContext::new(
        UserInfo::default(),
        TraceContext::root(),
        "test".to_owned(),
        SystemTime::UNIX_EPOCH,
    )
}

static OPTIONS: WriteOptions = WriteOptions {
    dry_run: false,
    unshown: false,
    field_validation: None,
    field_manager: String::new(),
    force: false,
    forbid_create: None,
};

/// A write.
struct StepRequest {
    context: RequestContext,
    target: Target,
    operation: Operation,
    old: Option<Document>,
}

impl StepRequest {
    fn create(target: Target) -> Self {
        Self { context: context(), target, operation: Operation::Create, old: None }
    }

    fn attributes(&self) -> Attributes<'_> {
        Attributes {
            context: &self.context,
            target: &self.target,
            operation: self.operation,
            old: self.old.as_ref(),
            options: AdmissionOptions::Create(&OPTIONS),
            dry_run: false,
        }
    }

    /// Runs the whole chain, as the pipeline does.
    fn pass(
        &self,
        chain: &Chain,
        object: &mut Document,
    ) -> Result<Effects, ferrokube_apimachinery::status::Failure> {
        let attributes = self.attributes();
        let mut effects = Effects::default();
        if self.operation == Operation::Delete {
            chain.validate(&attributes, None, &mut effects)?;
            return Ok(effects);
        }
        chain.mutate(&attributes, object)?;
        let _ids = chain.stamp(&attributes, object);
        chain.validate(&attributes, Some(object), &mut effects)?;
        Ok(effects)
    }
}

/// A put with selectable fields.
fn put(key: &Key, object: &Value, fields: &[&str]) -> Write {
    let (value, layout) = json::write(&document(object.clone()));
    let fields = fields.iter().map(|text| Box::from(*text)).collect();
    let sidecar = Sidecar {
        marks: layout.marks(),
        revision_at: layout.revision_at,
        comma: layout.comma(),
        fields,
        ..Sidecar::default()
    };
    Write::Put(Put { key: key.clone(), value: value.into(), sidecar, ttl: None })
}

/// Writes a namespace in this phase.
async fn write_namespace(store: &Store, name: &str, phase: &str) {
    let key = Prefix::new("namespaces").unwrap().key(None, name).unwrap();
    let object =
        value(&format!(r#"{{"metadata":{{"name":"{name}"}},"status":{{"phase":"{phase}"}}}}"#));
    let txn = Txn { guards: Vec::new(), writes: vec![put(&key, &object, &[phase])] };
    store.submit(txn).unwrap().committed().await.unwrap();
}

fn value(text: &str) -> Value {
    json::read_value(text.as_bytes()).expect("a fixture is JSON")
}
