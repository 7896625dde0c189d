//! Sets of field paths in the form that managedFields stores, so that entries unaffected by a write
//! are never parsed or rebuilt.
//!
//! A node maps path elements (`f:name`, `k:{"name":"a"}`, `v:"x"`, `i:0`) to nodes. A node without
//! children is a member; one with children is a member if it also has the key `.`. The root is not
//! a member.

use ferrokube_apimachinery::document::{Map, Text, Value};
use std::sync::LazyLock;

/// A node of a set; the root stands for the set.
pub(super) type Fields = Map;

/// Marks a node with children as a member.
const MEMBER: &str = ".";

static NO_FIELDS: LazyLock<Fields> = LazyLock::new(Fields::new);

/// The node in a value. Anything but an object counts as a member without children.
pub(super) fn node(value: &Value) -> &Fields {
    value.as_object().unwrap_or_else(|| &NO_FIELDS)
}

pub(super) fn is_member(node: &Fields) -> bool {
    node.is_empty() || node.contains_key(MEMBER)
}

/// The children of a node, by path element.
pub(super) fn children(node: &Fields) -> impl Iterator<Item = (&Text, &Fields)> {
    node.iter()
        .filter(|(element, _)| *element != MEMBER)
        .map(|(element, value)| (element, self::node(value)))
}

/// Builds a node; `None` if it would be empty.
pub(super) fn assemble(member: bool, mut children: Fields) -> Option<Fields> {
    children.remove(MEMBER);
    if member && !children.is_empty() {
        children.insert(MEMBER, Value::Object(Fields::new()));
    }
    (member || !children.is_empty()).then_some(children)
}

pub(super) fn insert(into: &mut Fields, element: impl Into<Text>, node: Option<Fields>) {
    if let Some(node) = node {
        into.insert(element, Value::Object(node));
    }
}

fn node_mut(value: &mut Value) -> &mut Fields {
    if !value.is_object() {
        *value = Value::Object(Fields::new());
    }
    value.as_object_mut().expect("made an object just above")
}

/// Adds every member of `other`.
pub(super) fn unite(set: &mut Fields, other: &Fields) {
    for (element, node) in children(other) {
        match set.get_mut(element) {
            None => {
                set.insert(element.clone(), Value::Object(node.clone()));
            }
            Some(value) => {
                let own = node_mut(value);
                let member = is_member(own) || is_member(node);
                unite(own, node);
                *own = assemble(member, std::mem::take(own)).unwrap_or_default();
            }
        }
    }
}

/// Removes every member of `other`; members below a removed one stay.
pub(super) fn subtract(set: &mut Fields, other: &Fields) {
    set.retain(|element, value| {
        let Some(taken) = other.get(element).filter(|_| element != MEMBER) else {
            return true;
        };
        let (own, taken) = (node_mut(value), node(taken));
        let member = is_member(own) && !is_member(taken);
        own.remove(MEMBER);
        subtract(own, taken);
        match assemble(member, std::mem::take(own)) {
            Some(left) => {
                *own = left;
                true
            }
            None => false,
        }
    });
}

/// The members of both.
pub(super) fn intersect(one: &Fields, other: &Fields) -> Fields {
    let mut out = Fields::new();
    for (element, own) in children(one) {
        if let Some(theirs) = other.get(element).map(node) {
            insert(
                &mut out,
                element.clone(),
                assemble(is_member(own) && is_member(theirs), intersect(own, theirs)),
            );
        }
    }
    out
}

/// Whether they share a member.
pub(super) fn intersects(one: &Fields, other: &Fields) -> bool {
    let (small, large) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    children(small).any(|(element, own)| {
        large
            .get(element)
            .map(node)
            .is_some_and(|theirs| (is_member(own) && is_member(theirs)) || intersects(own, theirs))
    })
}

/// Whether every member of `one` is in `other`.
pub(super) fn is_subset(one: &Fields, other: &Fields) -> bool {
    children(one).all(|(element, own)| match other.get(element).map(node) {
        None => false,
        Some(theirs) => (!is_member(own) || is_member(theirs)) && is_subset(own, theirs),
    })
}

/// Calls `visit` with the path of every member, each level before those below it, as in
/// kube-apiserver.
pub(super) fn for_each<'a>(
    set: &'a Fields,
    path: &mut Vec<&'a str>,
    visit: &mut impl FnMut(&[&'a str]),
) {
    for (element, _) in children(set).filter(|(_, node)| is_member(node)) {
        path.push(element);
        visit(path);
        path.pop();
    }
    for (element, node) in children(set) {
        path.push(element);
        for_each(node, path, visit);
        path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrokube_apimachinery::document::json;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    type Paths = BTreeSet<Vec<String>>;

    fn paths() -> impl Strategy<Value = Paths> {
        let element =
            prop_oneof![Just("f:a"), Just("f:b"), Just("k:{\"name\":\"x\"}"), Just("v:1")]
                .prop_map(str::to_owned);
        proptest::collection::btree_set(proptest::collection::vec(element, 1..4), 0..8)
    }

    fn set(paths: &Paths) -> Fields {
        let mut out = Fields::new();
        for path in paths {
            let mut one = Fields::new();
            for (depth, element) in path.iter().rev().enumerate() {
                let inner = std::mem::take(&mut one);
                insert(&mut one, element.clone(), assemble(depth == 0, inner));
            }
            unite(&mut out, &one);
        }
        out
    }

    fn members(set: &Fields) -> Paths {
        let mut out = Paths::new();
        for_each(set, &mut Vec::new(), &mut |path| {
            out.insert(path.iter().map(|element| (*element).to_owned()).collect());
        });
        out
    }

    #[test]
    fn members_of_a_level_come_before_those_below() {
        let paths = [&["f:a", "f:b"][..], &["f:c"], &["f:d"], &["f:d", "f:e"]]
            .map(|path| path.iter().map(|element| (*element).to_owned()).collect());
        let (set, mut order) = (set(&Paths::from(paths)), Vec::new());
        for_each(&set, &mut Vec::new(), &mut |path| order.push(path.join(" ")));
        assert_eq!(order, ["f:c", "f:d", "f:a f:b", "f:d f:e"]);
    }

    #[test]
    fn serialized_as_by_kube_apiserver() {
        let of = |paths: &[&[&str]]| {
            Value::Object(set(&paths
                .iter()
                .map(|path| path.iter().map(|element| (*element).to_owned()).collect())
                .collect()))
        };
        assert_eq!(of(&[&["f:data"], &["f:data", "f:k"]]), json!({"f:data": {".": {}, "f:k": {}}}));
        assert_eq!(of(&[&["f:data", "f:k"]]), json!({"f:data": {"f:k": {}}}));
        assert_eq!(of(&[&["f:data"]]), json!({"f:data": {}}));
    }

    proptest! {
        #[test]
        fn set_algebra(one in paths(), other in paths()) {
            let (left, right) = (set(&one), set(&other));
            prop_assert_eq!(&members(&left), &one);
            let mut union = left.clone();
            unite(&mut union, &right);
            prop_assert_eq!(members(&union), one.union(&other).cloned().collect::<Paths>());
            prop_assert_eq!(&union, &set(&members(&union)));
            let mut difference = left.clone();
            subtract(&mut difference, &right);
            prop_assert_eq!(members(&difference), one.difference(&other).cloned().collect::<Paths>());
            prop_assert_eq!(&difference, &set(&members(&difference)));
            let both = intersect(&left, &right);
            prop_assert_eq!(members(&both), one.intersection(&other).cloned().collect::<Paths>());
            prop_assert_eq!(&both, &set(&members(&both)));
            prop_assert_eq!(intersects(&left, &right), !both.is_empty());
            prop_assert_eq!(is_subset(&left, &right), one.is_subset(&other));
        }
    }
}
