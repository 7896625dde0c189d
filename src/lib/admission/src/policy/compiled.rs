//! Compiled policies and bindings.

use super::stats::PolicyStats;
use crate::candidate::CandidateWrite;
use crate::condition::MatchConditions;
use crate::matching::{RequestMatcher, items, text};
use ferrokube_apimachinery::document::{Document, Value};
use ferrokube_apimachinery::selector::{CompiledLabels, LabelSelector};
use ferrokube_apimachinery::status::Reason;
use ferrokube_apimachinery::work::SharedOnce;
use ferrokube_cel::admission::{AdmissionCompiler, OptionalVariables};
use ferrokube_cel::{Program, Type};
use ferrokube_registry::offload::leave_worker;
use ferrokube_registry::{Catalog, Served};
use parking_lot::Mutex;
use std::time::Instant;

/// An expression, or why it does not compile (it was valid when it was stored).
pub(super) type Compiled = Result<Program, String>;

/// A policy whose expressions are compiled on first use.
pub(super) struct CompiledPolicy {
    pub(super) name: String,
    /// Whether errors refuse the write.
    pub(super) fails: bool,
    matcher: Result<RequestMatcher, String>,
    pub(super) param_kind: Option<ParamKind>,
    pub(super) conditions: MatchConditions,
    /// Whether the mutations run again after a later change.
    pub(super) repeats: bool,
    spec: Value,
    programs: SharedOnce<PolicyPrograms>,
}

/// The expressions of a policy.
pub(super) struct PolicyPrograms {
    /// With the variables.
    pub(super) compiler: AdmissionCompiler,
    pub(super) validations: Vec<Validation>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) mutations: Vec<CompiledMutation>,
}

pub(super) struct CompiledMutation {
    pub(super) source: String,
    /// A list of JSON patch operations; else an apply configuration.
    pub(super) is_json_patch: bool,
    pub(super) program: Compiled,
}

pub(super) struct Validation {
    pub(super) source: String,
    pub(super) program: Compiled,
    pub(super) message: String,
    pub(super) message_program: Option<Compiled>,
    pub(super) reason: Reason,
}

/// An audit annotation.
pub(super) struct Annotation {
    pub(super) key: String,
    pub(super) source: String,
    pub(super) program: Compiled,
}

/// The kind of a policy's parameters.
pub(super) struct ParamKind {
    pub(super) api_version: String,
    pub(super) kind: String,
    /// The target resource, found at a state of the catalog.
    found: Mutex<Option<(u64, Option<Served>)>>,
}

impl ParamKind {
    pub(super) fn new(api_version: &str, kind: &str) -> Self {
        Self { api_version: api_version.to_owned(), kind: kind.to_owned(), found: Mutex::new(None) }
    }

    pub(super) fn group_version(&self) -> (&str, &str) {
        self.api_version.split_once('/').unwrap_or(("", &self.api_version))
    }

    /// The resource, if it is served.
    pub(super) fn resolve(&self, catalog: &Catalog) -> Option<Served> {
        let number = catalog.change_number();
        let mut found = self.found.lock();
        if let Some((known, served)) = &*found
            && *known == number
        {
            return served.clone();
        }
        let (number, definitions) = catalog.all();
        let (group, version) = self.group_version();
        let served = definitions.into_iter().find_map(|definition| {
            let is_kind = definition.group == group
                && definition.kind == self.kind
                && definition.storage_prefix.is_some();
            let place = definition
                .versions
                .iter()
                .position(|known| known.served && known.name == version)?;
            is_kind.then_some(Served { definition, version: place })
        });
        *found = Some((number, served.clone()));
        served
    }
}

impl PolicyPrograms {
    fn compile(spec: &Value) -> Self {
        let params = spec.get("paramKind").is_some_and(|kind| !kind.is_null());
        let variables = OptionalVariables { params, authorizer: true, patches: false };
        let mut compiler = AdmissionCompiler::composing();
        for variable in items(spec, "variables") {
            // Its uses fail.
            let _ =
                compiler.define(text(variable, "name"), text(variable, "expression"), variables);
        }
        let validations = items(spec, "validations")
            .iter()
            .map(|validation| Validation::compile(validation, &compiler, variables));
        let annotations = items(spec, "auditAnnotations").iter().map(|annotation| {
            let source = text(annotation, "valueExpression").trim().to_owned();
            let wanted = [Type::String, Type::Null];
            let program = compiler.compile(&source, variables, &wanted);
            Annotation { key: text(annotation, "key").to_owned(), source, program }
        });
        let mutations = items(spec, "mutations")
            .iter()
            .map(|mutation| CompiledMutation::compile(mutation, &compiler, variables));
        Self {
            validations: validations.collect(),
            annotations: annotations.collect(),
            mutations: mutations.collect(),
            compiler,
        }
    }
}

impl CompiledPolicy {
    /// Compiles all but the expressions.
    pub(super) fn of(policy: &Document) -> Self {
        let spec = policy.get(&["spec"]).unwrap_or(&Value::Null);
        let constraints = spec.get("matchConstraints").unwrap_or(&Value::Null);
        let param_kind = spec.get("paramKind").filter(|kind| !kind.is_null());
        let fails = text(spec, "failurePolicy") != "Ignore";
        Self {
            repeats: text(spec, "reinvocationPolicy") == "IfNeeded",
            name: policy.name().to_owned(),
            fails,
            matcher: RequestMatcher::of_policy(constraints),
            param_kind: param_kind
                .map(|kind| ParamKind::new(text(kind, "apiVersion"), text(kind, "kind"))),
            conditions: MatchConditions::of(spec, fails, param_kind.is_some()),
            spec: spec.clone(),
            programs: SharedOnce::new(),
        }
    }

    /// The policy's expressions, compiled on first use, which may take long.
    pub(super) fn programs(&self) -> &PolicyPrograms {
        self.programs.get_or_init(|| PolicyPrograms::compile(&self.spec))
    }

    /// Compiles the expressions off the worker, once.
    pub(super) async fn prepare(&self, stats: &PolicyStats) {
        if self.programs.get().is_none() || !self.conditions.are_compiled() {
            leave_worker().await;
            let began = Instant::now();
            self.programs();
            self.conditions.compile();
            stats.compiled(began.elapsed());
        }
    }

    /// Whether a write may match, judging by resource and operation alone.
    pub(super) fn may_match(&self, write: &CandidateWrite<'_>) -> bool {
        // One whose selectors cannot be read fails for whatever it might match.
        self.matcher.as_ref().map_or(true, |matcher| matcher.may_match(write))
    }

    /// Why the parameters cannot be found at all.
    pub(super) fn missing_param_kind(&self, catalog: &Catalog) -> Option<String> {
        let kind = self.param_kind.as_ref()?;
        let is_served = kind.resolve(catalog).is_some();
        let (group, version) = kind.group_version();
        (!is_served).then(|| {
            format!(
                "failed to find resource referenced by paramKind: '{group}/{version}, Kind={}'",
                kind.kind
            )
        })
    }

    /// The version in which the write matches.
    pub(super) fn matches(
        &self,
        write: &CandidateWrite<'_>,
        object: Option<&Document>,
    ) -> Result<Option<Served>, String> {
        let matcher = self.matcher.as_ref().map_err(Clone::clone)?;
        matcher.matches(write, object).map_err(|failure| failure.message)
    }
}

impl CompiledMutation {
    fn compile(
        mutation: &Value,
        compiler: &AdmissionCompiler,
        variables: OptionalVariables,
    ) -> Self {
        let is_json_patch = text(mutation, "patchType") == "JSONPatch";
        let (field, wanted) = match is_json_patch {
            true => ("jsonPatch", Type::json_patches()),
            false => ("applyConfiguration", Type::apply_configuration()),
        };
        let source = mutation.get(field).map_or("", |given| text(given, "expression")).trim();
        let variables = OptionalVariables { patches: true, ..variables };
        let program = compiler.compile(source, variables, &[wanted]);
        Self { source: source.to_owned(), is_json_patch, program }
    }
}

impl Validation {
    fn compile(
        validation: &Value,
        compiler: &AdmissionCompiler,
        variables: OptionalVariables,
    ) -> Self {
        let source = text(validation, "expression").to_owned();
        let program = compiler.compile(&source, variables, &[Type::Bool]);
        let unauthorized = OptionalVariables { authorizer: false, ..variables };
        let message_source = text(validation, "messageExpression");
        let message_program = (!message_source.is_empty())
            .then(|| compiler.compile(message_source, unauthorized, &[Type::String]));
        let reason = match text(validation, "reason") {
            "Forbidden" => Reason::Forbidden,
            "RequestEntityTooLarge" => Reason::RequestEntityTooLarge,
            "Unauthorized" => Reason::Unauthorized,
            _ => Reason::Invalid,
        };
        let message = text(validation, "message").trim().to_owned();
        Self { source, program, message, message_program, reason }
    }
}

/// Action on a failed validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BindingAction {
    Deny,
    Warn,
    Audit,
}

impl BindingAction {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Deny => "Deny",
            Self::Warn => "Warn",
            Self::Audit => "Audit",
        }
    }
}

pub(super) struct CompiledBinding {
    pub(super) name: String,
    pub(super) policy: String,
    /// `None`: whatever the policy matches.
    matcher: Option<Result<RequestMatcher, String>>,
    pub(super) actions: Vec<BindingAction>,
    pub(super) param: Option<ParamRef>,
}

/// Which parameters.
pub(super) struct ParamRef {
    /// Empty: by selector.
    pub(super) name: String,
    /// Empty: that of the request.
    pub(super) namespace: String,
    pub(super) selector: Result<CompiledLabels, String>,
    /// Whether a missing parameter refuses the write.
    pub(super) denies: bool,
}

impl CompiledBinding {
    pub(super) fn compile(binding: &Document) -> Self {
        let spec = binding.get(&["spec"]).unwrap_or(&Value::Null);
        let given = |field: &str| spec.get(field).filter(|value| !value.is_null());
        let actions = items(spec, "validationActions").iter().filter_map(|action| {
            [BindingAction::Deny, BindingAction::Warn, BindingAction::Audit]
                .into_iter()
                .find(|known| action.as_str() == Some(known.name()))
        });
        Self {
            name: binding.name().to_owned(),
            policy: text(spec, "policyName").to_owned(),
            matcher: given("matchResources").map(RequestMatcher::of_policy),
            actions: actions.collect(),
            param: given("paramRef").map(|param| ParamRef {
                name: text(param, "name").to_owned(),
                namespace: text(param, "namespace").to_owned(),
                selector: match param.get("selector").filter(|selector| !selector.is_null()) {
                    None => Ok(CompiledLabels::new(&LabelSelector::default())),
                    Some(selector) => LabelSelector::from_document(selector)
                        .map(|selector| CompiledLabels::new(&selector))
                        .map_err(|why| why.to_string()),
                },
                denies: text(param, "parameterNotFoundAction") == "Deny",
            }),
        }
    }

    pub(super) fn matches(
        &self,
        write: &CandidateWrite<'_>,
        object: Option<&Document>,
    ) -> Result<bool, String> {
        let Some(matcher) = &self.matcher else { return Ok(true) };
        let matcher = matcher.as_ref().map_err(Clone::clone)?;
        let matched = matcher.matches(write, object).map_err(|failure| failure.message)?;
        Ok(matched.is_some())
    }
}
