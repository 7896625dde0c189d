//! Taints that a node registers with.

use ferrokube_apimachinery::document::Value;
use ferrokube_apimachinery::name::{label_value, qualified_name};
use std::str::FromStr;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// A taint that a node registers with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTaint {
    /// Qualified name.
    pub key: String,
    /// Value of a label; may be empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

impl FromStr for NodeTaint {
    type Err = String;

    /// Reads `KEY=VALUE:EFFECT` or `KEY:EFFECT`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, effect) = text.trim().rsplit_once(':').ok_or("must be KEY=VALUE:EFFECT")?;
        let (key, value) = name.split_once('=').unwrap_or((name, ""));
        let [key, value, effect] = [key, value, effect].map(str::to_owned);
        Self { key, value, effect }.checked()
    }
}

impl NodeTaint {
    /// Reads `registerWithTaints`, whose items are objects.
    pub(super) fn read_all(value: &Value) -> Result<Vec<Self>, String> {
        let items = value.as_array().into_iter().flat_map(|all| all.as_slice().iter());
        items.map(Self::read).collect()
    }

    fn read(item: &Value) -> Result<Self, String> {
        let [key, value, effect] = [String::new(), String::new(), String::new()];
        let mut taint = Self { key, value, effect };
        let fields = item.as_object().into_iter().flat_map(|fields| fields.iter());
        for (name, given) in fields.filter(|(_, given)| !given.is_null()) {
            let name: &str = name.as_ref();
            let field = match name {
                "key" => &mut taint.key,
                "value" => &mut taint.value,
                "effect" => &mut taint.effect,
                _ => continue,
            };
            let text = given.as_str();
            let wrong = || format!("registerWithTaints.{name} must be a string");
            text.ok_or_else(wrong)?.clone_into(field);
        }
        taint.checked()
    }

    fn checked(self) -> Result<Self, String> {
        let Self { key, value, effect } = &self;
        let is_named = qualified_name(key).is_empty() && label_value(value).is_empty();
        if !is_named || !EFFECTS.contains(&effect.as_str()) {
            return Err(format!("invalid taint: {key}={value}:{effect}"));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taints_are_read_as_kubelet_reads_the_flag() {
        let read = |text: &str| text.parse::<NodeTaint>().map(|it| (it.key, it.value, it.effect));
        let taint = |key: &str, value: &str, effect: &str| {
            Ok((key.to_owned(), value.to_owned(), effect.to_owned()))
        };
        assert_eq!(read("a.io/b=c:NoSchedule"), taint("a.io/b", "c", "NoSchedule"));
        assert_eq!(read("a:NoExecute"), taint("a", "", "NoExecute"));
        for wrong in ["a", "a=b", ":NoSchedule", "a=b:Never", "a b:NoExecute", "a=b=c:NoExecute"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
