//! Match conditions of a webhook.

use ferrokube_apimachinery::document::{Array, Value};
use ferrokube_cel::admission::{
    AdmissionCompiler, AdmissionInput, MATCH_BUDGET, OptionalVariables,
};
use ferrokube_cel::{Meter, Program, Type, Value as CelValue};
use std::sync::OnceLock;

/// The conditions; compiled when they are first needed.
#[derive(Debug)]
pub(super) struct MatchConditions {
    sources: Vec<String>,
    fails_closed: bool,
    programs: OnceLock<Vec<Result<Program, String>>>,
}

impl MatchConditions {
    pub(super) fn of(webhook: &Value, fails_closed: bool) -> Self {
        let listed = webhook.get("matchConditions").and_then(Value::as_array);
        let source = |condition: &Value| {
            let text = condition.get("expression").and_then(Value::as_str);
            text.unwrap_or_default().trim().to_owned()
        };
        let sources = listed.map_or(&[][..], Array::as_slice).iter().map(source).collect();
        Self { sources, fails_closed, programs: OnceLock::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    fn programs(&self) -> &[Result<Program, String>] {
        self.programs.get_or_init(|| {
            let compiler = AdmissionCompiler::default();
            let variables = OptionalVariables { authorizer: true, ..OptionalVariables::default() };
            let compile = |source: &String| compiler.compile(source, variables, &[Type::Bool]);
            self.sources.iter().map(compile).collect()
        })
    }

    /// Whether all conditions hold. One that does not decides, whatever others fail with.
    ///
    /// # Errors
    /// Why they cannot be evaluated, if the webhook fails closed; otherwise it is not called.
    pub(super) fn hold(&self, input: &AdmissionInput<'_>) -> Result<bool, String> {
        let compiler = AdmissionCompiler::default();
        let scope = compiler.scope(input);
        let mut meter = Meter::with_budget(MATCH_BUDGET);
        let mut wrong = Vec::new();
        for (source, program) in self.sources.iter().zip(self.programs()) {
            let value = match program {
                Ok(program) => program
                    .evaluate_in(&scope, &mut meter)
                    .map_err(|why| format!("expression '{source}' resulted in error: {why}")),
                Err(why) => Err(format!("compilation error: {why}")),
            };
            match value {
                Ok(CelValue::Bool(false)) => return Ok(false),
                Ok(_) => {}
                Err(_) if meter.is_spent() => {
                    wrong = vec![
                        "validation failed due to running out of cost budget, no further validation rules will be run".to_owned(),
                    ];
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
