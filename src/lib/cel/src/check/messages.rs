//! Message literals: the results of a mutating policy.

use super::{Checked, Checker};
use crate::code::Code;
use crate::estimate::Estimate;
use crate::syntax::LiteralField;
use crate::types::Type;

/// Type of an operation of a JSON patch.
pub(crate) const JSON_PATCH: &str = "JSONPatch";
/// Type of an apply configuration; that of a field is `Object.FIELD`.
pub(crate) const OBJECT: &str = "Object";

impl Checker<'_> {
    pub(super) fn message(&mut self, name: &str, at: usize, fields: &[LiteralField]) -> Checked {
        let is_object = name == OBJECT || name.starts_with("Object.");
        if !(self.patches && (is_object || name == JSON_PATCH)) {
            return self.undeclared(name, at);
        }
        let mut codes = Vec::with_capacity(fields.len());
        let mut estimates = Vec::with_capacity(fields.len());
        for field in fields {
            let value = self.part(&field.value, field.optional);
            let wanted = match (is_object, field.name.as_str()) {
                (true, _) | (false, "value") => Type::Dyn,
                (false, "op" | "path" | "from") => Type::String,
                (false, other) => {
                    // kube-apiserver's patch has every field; others have no type.
                    let shown = value.answer.shown();
                    let why = format!(
                        "expected type of field '{other}' is '' but provided type is '{shown}'"
                    );
                    self.fault(field.at, why);
                    continue;
                }
            };
            if !wanted.fits(&value.answer) {
                let why = format!(
                    "expected type of field '{}' is '{}' but provided type is '{}'",
                    field.name,
                    wanted.shown(),
                    value.answer.shown()
                );
                self.fault(field.at, why);
            }
            codes.push((field.name.as_str().into(), value.code, field.optional));
            estimates.push(value.estimate);
        }
        Checked {
            code: Code::Message(name.into(), codes),
            answer: Type::Message(name.into()),
            estimate: Estimate::message(estimates.iter()),
        }
    }
}
