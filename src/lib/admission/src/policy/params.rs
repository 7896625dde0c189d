//! The parameters of a policy.

use super::PolicyInputs;
use super::compiled::{CompiledBinding, CompiledPolicy, ParamRef};
use crate::candidate::namespace_of;
use ferrokube_apimachinery::document::Document;
use ferrokube_apimachinery::json::{Layout, forms};
use ferrokube_apimachinery::status::Failure;
use ferrokube_registry::offload::{is_costly, leave_worker};
use ferrokube_registry::{Attributes, Served, convert, view};
use ferrokube_resource::Scope;
use ferrokube_storage::{Entry, Prefix};
use std::sync::Arc;

/// Max objects among which a selector may select, and bytes of those that it selects: each write
/// reads them.
const MAX_PARAMS: usize = 1000;
const MAX_PARAM_BYTES: usize = 4 << 20;

/// A parameter. Read when it is needed: one is in memory at a time.
pub(super) struct PolicyParam(Option<(Arc<Entry>, Served)>);

impl PolicyParam {
    /// Namespace and name; empty without a parameter.
    pub(super) fn id(&self) -> String {
        let Some((entry, _)) = &self.0 else { return String::new() };
        format!("{}/{}", entry.key.namespace().unwrap_or_default(), entry.key.name())
    }

    /// The object; `None` for a policy without parameters.
    ///
    /// # Errors
    /// The conversion webhook failed.
    pub(super) async fn read(&self) -> Result<Option<Document>, Failure> {
        let Some((entry, served)) = &self.0 else { return Ok(None) };
        if is_costly(&entry.bytes) {
            leave_worker().await;
        }
        let mut object = view(entry, served);
        let gvk = served.definition.gvk(served.version);
        if served.needs_converter(entry) {
            let version = |version: &usize| {
                served.definition.gvk(*version).api_version() == object.api_version()
            };
            let stored = (0..served.definition.versions.len()).find(version);
            let version = stored.unwrap_or(served.definition.storage_version);
            let stored = Served { definition: Arc::clone(&served.definition), version };
            object = convert(&stored, served, &object).await?.object;
        }
        object.set(&["apiVersion"], gvk.api_version());
        object.set(&["kind"], gvk.kind);
        Ok(Some(object))
    }
}

/// The parameters of a policy by a binding; one without an object if it has none. Empty: the
/// binding does not apply.
///
/// # Errors
/// Why the binding is misconfigured.
pub(super) fn collect_params(
    policy: &CompiledPolicy,
    binding: &CompiledBinding,
    attributes: &Attributes<'_>,
    inputs: &PolicyInputs,
) -> Result<Vec<PolicyParam>, String> {
    let (Some(kind), Some(param)) = (&policy.param_kind, &binding.param) else {
        return Ok(vec![PolicyParam(None)]);
    };
    let Some(served) = kind.resolve(&inputs.catalog) else {
        return Err(format!("paramKind kind `{}` not known", kind.kind));
    };
    let namespace = params_namespace(&served, param, attributes)?;
    let params = ParamStore { inputs, served: &served, namespace };
    let found = match param.name.as_str() {
        "" => params.selected(param)?,
        name => params.named(name).into_iter().collect(),
    };
    if found.is_empty() && param.denies {
        return Err(
            "no params found for policy binding with `Deny` parameterNotFoundAction".to_owned()
        );
    }
    let params = found.into_iter().map(|entry| PolicyParam(Some((entry, served.clone()))));
    Ok(params.collect())
}

/// The namespace of the parameters; `None` for a cluster-scoped kind.
fn params_namespace<'a>(
    served: &Served,
    param: &'a ParamRef,
    attributes: &Attributes<'a>,
) -> Result<Option<&'a str>, String> {
    match (served.definition.scope, param.namespace.as_str(), namespace_of(attributes)) {
        (Scope::Cluster, "", _) => Ok(None),
        (Scope::Cluster, ..) => {
            Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
                .to_owned())
        }
        (Scope::Namespaced, "", "") => Err(
            "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                .to_owned(),
        ),
        (Scope::Namespaced, "", own) => Ok(Some(own)),
        (Scope::Namespaced, given, _) => Ok(Some(given)),
    }
}

/// The objects of the parameters' kind in the store.
struct ParamStore<'a> {
    inputs: &'a PolicyInputs,
    served: &'a Served,
    namespace: Option<&'a str>,
}

impl ParamStore<'_> {
    fn prefix(&self) -> Option<Prefix> {
        Prefix::new(self.served.definition.storage_prefix.as_deref()?).ok()
    }

    fn named(&self, name: &str) -> Option<Arc<Entry>> {
        let key = self.prefix()?.key(self.namespace, name).ok()?;
        self.inputs.store.get(&key)
    }

    fn selected(&self, param: &ParamRef) -> Result<Vec<Arc<Entry>>, String> {
        let selector = param.selector.as_ref().map_err(Clone::clone)?;
        let Some(prefix) = self.prefix() else { return Ok(Vec::new()) };
        let snapshot = self.inputs.store.snapshot(&prefix);
        if snapshot.count(self.namespace, None) > MAX_PARAMS {
            return Err(format!("paramRef.selector would read more than {MAX_PARAMS} objects"));
        }
        let is_selected = |entry: &&Arc<Entry>| {
            let layout = Layout::from_marks(entry.sidecar.marks, entry.sidecar.revision_at);
            selector.matches(forms::labels(&entry.bytes, &layout)).0
        };
        let entries = snapshot.range(self.namespace, None).filter(is_selected);
        let entries: Vec<Arc<Entry>> = entries.cloned().collect();
        if entries.iter().map(|entry| entry.bytes.len()).sum::<usize>() > MAX_PARAM_BYTES {
            return Err(format!("paramRef.selector would read more than {MAX_PARAM_BYTES} bytes"));
        }
        Ok(entries)
    }
}
