//! Selectors of devices: expressions over one device of a ResourceSlice. They are only checked
//! here; schedulers evaluate them.

use crate::admission::{ExpressionEnvironment, schema};
use crate::program::{CompileError, Program};
use crate::sizes::Sizes;
use crate::types::Type;
use ferrokube_apimachinery::document::json;
use ferrokube_schema::Schema;
use std::sync::{Arc, LazyLock};

/// Fields of `device`. Types of attributes and capacities are unknown before evaluation.
static DEVICE: LazyLock<Arc<Schema>> = LazyLock::new(|| {
    let anything = json!({"x-kubernetes-preserve-unknown-fields": true});
    let of_domain = json!({"type": "object", "additionalProperties": anything});
    let by_domain = json!({"type": "object", "additionalProperties": of_domain});
    schema(&json!({"type": "object", "properties": {
        "driver": {"type": "string"}, "allowMultipleAllocations": {"type": "boolean"},
        "attributes": by_domain, "capacity": by_domain,
    }}))
});

/// Checks the syntax and the types of a selector.
///
/// # Errors
/// kube-apiserver's message.
pub fn check_selector(source: &str) -> Result<(), String> {
    let declared = [("device", Type::declared_object(&DEVICE, "kubernetes.DRADevice"))];
    let environment = ExpressionEnvironment::default();
    let answer = match Program::compile(source, &declared, &environment, &mut Sizes::default()) {
        Ok(program) => program.answer().clone(),
        Err(CompileError::Source(why)) => return Err(format!("compilation failed: {why}")),
        Err(CompileError::Program(_, answer)) => answer,
    };
    if matches!(answer, Type::Bool) || answer.is_dyn() {
        return Ok(());
    }
    let given = answer.declaration();
    Err(format!("must evaluate to bool or the unknown type, not {given}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_of_devices_are_checked() {
        let sources = [
            "true",
            "device.driver == 'gpu.example.com'",
            "device.attributes['gpu.example.com'].model == 'a100'",
            "device.capacity['gpu.example.com'].memory.compareTo(quantity('10Gi')) >= 0",
            "device.allowMultipleAllocations",
            "device.attributes['gpu.example.com'].shared",
            "cel.bind(gpu, device.attributes['gpu.example.com'], gpu.index > 0 && gpu.version.isGreaterThan(semver('1.2.3')))",
        ];
        for source in sources {
            assert_eq!(check_selector(source), Ok(()), "{source}");
        }
        let refused = [
            ("device.driver ==", "compilation failed: "),
            ("", "compilation failed: "),
            ("other.driver == 'x'", "undeclared reference to 'other'"),
            ("device.color", "undefined field 'color'"),
            ("1 + 1", "must evaluate to bool or the unknown type, not int"),
            ("device.driver", "must evaluate to bool or the unknown type, not string"),
        ];
        for (source, why) in refused {
            let error = check_selector(source).unwrap_err();
            assert!(error.contains(why), "{source}: {error}");
        }
    }
}
