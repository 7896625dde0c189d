//! Match conditions of webhooks and policies.

use crate::matching::{items, text};
use crate::spending::Spending;
use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::work::SharedOnce;
use ferrokube_cel::admission::{
    AdmissionCompiler, AdmissionInput, MATCH_BUDGET, OptionalVariables,
};
use ferrokube_cel::{Meter, Program, Type, Value as CelValue};

/// The evaluation ends: its expressions cost too much together.
pub(crate) const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The conditions; compiled when they are first needed.
#[derive(Debug)]
pub(crate) struct MatchConditions {
    sources: Vec<String>,
    fails_closed: bool,
    has_params: bool,
    programs: SharedOnce<Vec<Result<Program, String>>>,
}

impl MatchConditions {
    /// `owner`: a webhook, or the spec of a policy, which may have parameters.
    pub(crate) fn of(owner: &Value, fails_closed: bool, has_params: bool) -> Self {
        let source = |condition: &Value| text(condition, "expression").trim().to_owned();
        let sources = items(owner, "matchConditions").iter().map(source).collect();
        Self { sources, fails_closed, has_params, programs: SharedOnce::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Whether evaluating them takes no compilation, which may be long.
    pub(crate) fn are_compiled(&self) -> bool {
        self.is_empty() || self.programs.get().is_some()
    }

    /// Compiles them, once.
    pub(crate) fn compile(&self) {
        self.programs();
    }

    fn programs(&self) -> &[Result<Program, String>] {
        self.programs.get_or_init(|| {
            let compiler = AdmissionCompiler::default();
            let variables = OptionalVariables {
                params: self.has_params,
                authorizer: true,
                ..OptionalVariables::default()
            };
            let compile = |source: &String| compiler.compile(source, variables, &[Type::Bool]);
            self.sources.iter().map(compile).collect()
        })
    }

    /// Whether all conditions hold. One that does not decides, whatever others fail with.
    ///
    /// # Errors
    /// Why they cannot be evaluated, if that rejects the write; otherwise they do not hold.
    pub(crate) fn hold(
        &self,
        input: &AdmissionInput<'_>,
        spending: &mut Spending,
    ) -> Result<bool, String> {
        let budget = Meter::with_budget(MATCH_BUDGET);
        spending.metered(budget, |meter| self.hold_within(input, meter))
    }

    fn hold_within(&self, input: &AdmissionInput<'_>, meter: &mut Meter) -> Result<bool, String> {
        let compiler = AdmissionCompiler::default();
        let scope = compiler.scope(input);
        let mut wrong = Vec::new();
        for (source, program) in self.sources.iter().zip(self.programs()) {
            let value = match program {
                Ok(program) => program
                    .evaluate_in(&scope, meter)
                    .map_err(|why| format!("expression '{source}' resulted in error: {why}")),
                Err(why) => Err(format!("compilation error: {why}")),
            };
            match value {
                Ok(CelValue::Bool(false)) => return Ok(false),
                Ok(_) => {}
                Err(_) if meter.is_spent() => {
                    wrong = vec![OUT_OF_BUDGET.to_owned()];
                    break;
                }
                Err(why) => wrong.push(why),
            }
        }
        match wrong.as_slice() {
            [] => Ok(true),
            _ if !self.fails_closed => Ok(false),
            [one] => Err(one.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }
}
