//! The parameters of a policy.

use super::PolicyInputs;
use super::compiled::{CompiledBinding, CompiledPolicy, ParamRef};
use crate::matching::namespace_of;
use ferrokube_apimachinery::document::Document;
use ferrokube_registry::{Attributes, Served, view};
use ferrokube_resource::Scope;
use ferrokube_storage::{Entry, Prefix};
use std::sync::Arc;

/// Max parameters that a selector may select.
const MAX_PARAMS: usize = 1000;

/// The parameters of a policy by a binding: one `None` if it has none. Empty: the binding does not
/// apply.
///
/// # Errors
/// Why the binding is misconfigured.
pub(super) fn collect_params(
    policy: &CompiledPolicy,
    binding: &CompiledBinding,
    attributes: &Attributes<'_>,
    inputs: &PolicyInputs,
) -> Result<Vec<Option<Arc<Document>>>, String> {
    let (Some(kind), Some(param)) = (&policy.param_kind, &binding.param) else {
        return Ok(vec![None]);
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
    Ok(found.into_iter().map(|param| Some(Arc::new(param))).collect())
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

    fn read(&self, entry: &Entry) -> Document {
        let mut object = view(entry, self.served);
        let gvk = self.served.definition.gvk(self.served.version);
        object.set(&["apiVersion"], gvk.api_version());
        object.set(&["kind"], gvk.kind);
        object
    }

    fn named(&self, name: &str) -> Option<Document> {
        let key = self.prefix()?.key(self.namespace, name).ok()?;
        self.inputs.store.get(&key).map(|entry| self.read(&entry))
    }

    fn selected(&self, param: &ParamRef) -> Result<Vec<Document>, String> {
        let selector = param.selector.as_ref().map_err(Clone::clone)?;
        let Some(prefix) = self.prefix() else { return Ok(Vec::new()) };
        let snapshot = self.inputs.store.snapshot(&prefix);
        if snapshot.count(self.namespace, None) > MAX_PARAMS {
            return Err(format!("paramRef.selector would read more than {MAX_PARAMS} objects"));
        }
        let objects = snapshot.range(self.namespace, None).map(|entry| self.read(entry));
        Ok(objects
            .filter(|object| selector.matches_value(object.get(&["metadata", "labels"])))
            .collect())
    }
}
