//! The cases of parity area `patch`, and further ones.

use super::*;
use crate::testing::{core, document, schema};
use ferrokube_apimachinery::document::json;
use proptest::prelude::*;

fn merged(kind: &str, target: Value, patch: Value) -> Result<Value, PatchError> {
    let mut target = document(target);
    strategic_merge(&core(kind), &mut target, &document(patch))?;
    Ok(target.into_value())
}

fn account() -> Value {
    json!({"metadata": {"name": "s"}, "secrets": [{"name": "a"}, {"name": "b"}], "imagePullSecrets": [{"name": "x"}, {"name": "y"}]})
}

fn secrets(patch: Value) -> Value {
    merged("ServiceAccount", account(), patch).unwrap()["secrets"].clone()
}

#[test]
fn root_directives() {
    let target = json!({"metadata": {"name": "a", "labels": {"l": "1"}}, "data": {"k": "v"}});
    let replaced = json!({"metadata": {"name": "a"}, "data": {"only": "1"}});
    let patch = json!({"$patch": "replace", "metadata": {"name": "a"}, "data": {"only": "1"}});
    assert_eq!(merged("ConfigMap", target.clone(), patch).unwrap(), replaced);
    assert_eq!(
        merged("ConfigMap", target.clone(), json!({"$patch": "delete"})).unwrap(),
        json!({})
    );
    assert!(matches!(
        merged("ConfigMap", target, json!({"$patch": "explode"})),
        Err(PatchError::Directive(_))
    ));
}

#[test]
fn maps_merge_and_null_removes() {
    let target = json!({"data": {"k": "v", "x": "y"}});
    let patch = json!({"data": {"k": null, "new": "1", "none": null}, "binaryData": {"b": null}});
    assert_eq!(
        merged("ConfigMap", target.clone(), patch).unwrap(),
        json!({"data": {"x": "y", "new": "1"}, "binaryData": {}})
    );
    assert_eq!(
        merged("ConfigMap", target.clone(), json!({"data": {"$patch": "replace", "z": "1"}}))
            .unwrap(),
        json!({"data": {"z": "1"}})
    );
    assert_eq!(
        merged("ConfigMap", target, json!({"data": {"$patch": "delete"}})).unwrap(),
        json!({"data": {}})
    );
}

#[test]
fn element_order() {
    let order = json!([{"name": "c"}, {"name": "b"}, {"name": "a"}]);
    assert_eq!(
        secrets(json!({"$setElementOrder/secrets": order, "secrets": [{"name": "c"}]})),
        order
    );
    assert_eq!(
        secrets(json!({"$setElementOrder/secrets": [{"name": "b"}, {"name": "a"}]})),
        json!([{"name": "b"}, {"name": "a"}])
    );
    let wrong = merged(
        "ServiceAccount",
        account(),
        json!({"$setElementOrder/secrets": [{"name": "b"}], "secrets": [{"name": "zz"}]}),
    );
    assert!(matches!(wrong, Err(PatchError::Directive(_))));
    // The order ends before the item without a key is reached.
    let nameless = merged(
        "ServiceAccount",
        account(),
        json!({"$setElementOrder/secrets": [{"name": "b"}], "secrets": [{"name": "b"}, {}]}),
    );
    let Err(PatchError::Directive(why)) = nameless else { panic!("{nameless:?}") };
    assert!(why.starts_with("The order in patch list:"), "{why}");
}

#[test]
fn element_order_of_an_atomic_list_does_not_crash() {
    let patch = json!({"$setElementOrder/imagePullSecrets": [{"name": "y"}], "imagePullSecrets": [{"name": "y"}]});
    assert_eq!(
        merged("ServiceAccount", account(), patch).unwrap()["imagePullSecrets"],
        json!([{"name": "y"}])
    );
    let only_order = json!({"$setElementOrder/imagePullSecrets": [{"name": "y"}]});
    assert_eq!(merged("ServiceAccount", account(), only_order).unwrap(), account());
}

#[test]
fn lists_merge_by_key_or_are_replaced() {
    assert_eq!(
        secrets(json!({"secrets": [{"name": "b", "kind": "K"}]})),
        json!([{"name": "a"}, {"name": "b", "kind": "K"}])
    );
    assert_eq!(
        secrets(json!({"secrets": [{"name": "c"}]})),
        json!([{"name": "c"}, {"name": "a"}, {"name": "b"}])
    );
    assert_eq!(
        secrets(json!({"secrets": [{"name": "a", "$patch": "delete"}]})),
        json!([{"name": "b"}])
    );
    assert_eq!(
        secrets(json!({"secrets": [{"$patch": "replace"}, {"name": "z"}]})),
        json!([{"name": "z"}])
    );
    assert_eq!(secrets(json!({"secrets": null})), Value::Null);
    let replaced =
        merged("ServiceAccount", account(), json!({"imagePullSecrets": [{"name": "z"}]})).unwrap();
    assert_eq!(replaced["imagePullSecrets"], json!([{"name": "z"}]));
}

#[test]
fn malformed_directives_have_distinct_errors() {
    let error = |patch: Value| merged("ServiceAccount", account(), patch).unwrap_err();
    for patch in [
        json!({"secrets": [{"$patch": "delete"}]}),
        json!({"secrets": [{"noname": 1}]}),
        json!({"secrets": [{"name": "a", "$patch": "merge"}]}),
        json!({"$setElementOrder/secrets": "x"}),
        json!({"secrets": ["x"]}),
    ] {
        assert!(matches!(error(patch), PatchError::Directive(_)));
    }
    assert!(matches!(error(json!({"secrets": [["x"]]})), PatchError::Directive(_)));
    assert!(matches!(
        error(json!({"$retainKeys": ["a"], "secrets": []})),
        PatchError::Malformed(_)
    ));
    // The decoder refuses a list that became a string.
    assert_eq!(secrets(json!({"secrets": "x"})), json!("x"));
    assert_eq!(
        secrets(json!({"metadata": {"$deleteFromPrimitiveList/finalizers": "x"}})),
        json!([{"name": "a"}, {"name": "b"}])
    );
}

#[test]
fn malformed_directives_are_worded_as_kube_apiservers() {
    for (patch, why) in [
        (
            json!({"secrets": [{"name": "a", "$patch": "x"}]}),
            "unknown patch type: x in map: map[$patch:x name:a]",
        ),
        (
            json!({"secrets": [{"name": "a", "$patch": 1}]}),
            "unknown patch type: %!s(int64=1) in map: map[$patch:1 name:a]",
        ),
        (json!({"metadata": {"$patch": "x"}}), "unknown patch type: x in map: map[$patch:x]"),
        (
            json!({"secrets": [{"name": "a", "$patch": "merge"}]}),
            "merging lists cannot yet be specified in the patch",
        ),
        (
            json!({"secrets": [{"name": "a"}, "x"]}),
            "list element types are not identical: [[map[name:a] map[name:b]] [map[name:a] x]]",
        ),
        (
            json!({"$setElementOrder/secrets": [{"name": "b"}], "secrets": [{"name": "z"}]}),
            "The order in patch list:\n[map[name:z]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
        ),
        (
            json!({"$setElementOrder/secrets": [{}], "secrets": [{"name": "z"}]}),
            "map: map[] does not contain declared merge key: name",
        ),
        (
            json!({"$setElementOrder/secrets": [{}], "secrets": [{"uid": "z"}, "x"]}),
            "expected a map[string]interface {}, but received a string",
        ),
        (
            json!({"$setElementOrder/secrets": "x"}),
            "expected a []interface {}, but received a string",
        ),
        (
            json!({"$setElementOrder/secrets": [], "secrets": {}}),
            "expected a []interface {}, but received a map[string]interface {}",
        ),
    ] {
        match merged("ServiceAccount", account(), patch.clone()) {
            Err(PatchError::Directive(found)) => assert_eq!(found, why, "{patch}"),
            other => panic!("{patch}: {other:?}"),
        }
    }
}

#[test]
fn a_patch_without_keys_is_refused_before_a_list_without_them() {
    for patch in [
        json!({"secrets": [{"uid": "x"}]}),
        json!({"$setElementOrder/secrets": [], "secrets": [{"uid": "x"}]}),
    ] {
        match merged("ServiceAccount", json!({"secrets": [{}]}), patch) {
            Err(PatchError::Directive(why)) => {
                assert_eq!(why, "map: map[uid:x] does not contain declared merge key: name");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_order_is_checked_even_if_no_element_is_left() {
    for (patch, why) in [
        (
            json!({"$setElementOrder/secrets": [{}], "secrets": [{"$patch": "x"}]}),
            "map: map[] does not contain declared merge key: name",
        ),
        (
            json!({"$setElementOrder/secrets": [{"name": "a"}], "secrets": []}),
            "no elements in any of the given slices",
        ),
    ] {
        match merged("ServiceAccount", json!({}), patch) {
            Err(PatchError::Directive(found)) => assert_eq!(found, why),
            other => panic!("{other:?}"),
        }
    }
    let patch = json!({"$setElementOrder/secrets": [{"name": "a"}], "secrets": [{"$patch": "x"}]});
    assert_eq!(merged("ServiceAccount", json!({}), patch).unwrap()["secrets"], json!([]));
}

#[test]
fn a_map_with_a_directive_is_dropped_where_there_is_none() {
    for directive in ["replace", "delete", "merge", "x"] {
        let map = json!({"$patch": directive, "k": "v"});
        let patch = json!({"data": map, "metadata": {"labels": map, "ownerReferences": [map]}});
        let expected = json!({"metadata": {"name": "a", "ownerReferences": []}});
        let target = json!({"metadata": {"name": "a"}});
        assert_eq!(merged("ConfigMap", target, patch).unwrap(), expected, "{directive}");
    }
    // Nulls go first.
    let patch = json!({"data": {"$patch": null, "k": "v"}});
    assert_eq!(merged("ConfigMap", json!({}), patch).unwrap(), json!({"data": {"k": "v"}}));
}

#[test]
fn primitive_lists_are_sets() {
    let target = json!({"metadata": {"finalizers": ["a", "b"]}});
    let finalizers = |patch: Value| {
        merged("ConfigMap", target.clone(), json!({"metadata": patch})).unwrap()["metadata"]["finalizers"].clone()
    };
    assert_eq!(finalizers(json!({"finalizers": ["c"]})), json!(["c", "a", "b"]));
    assert_eq!(finalizers(json!({"$deleteFromPrimitiveList/finalizers": ["a"]})), json!(["b"]));
    assert_eq!(finalizers(json!({"$setElementOrder/finalizers": ["b", "a"]})), json!(["b", "a"]));
    assert_eq!(
        finalizers(
            json!({"$setElementOrder/finalizers": ["b", "c", "a"], "finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["b"]})
        ),
        json!(["c", "a"])
    );
    assert_eq!(finalizers(json!({"finalizers": null})), Value::Null);
}

#[test]
fn retain_keys_drops_the_rest() {
    let target = json!({"data": {"k": "v", "x": "y"}});
    assert_eq!(
        merged("ConfigMap", target.clone(), json!({"data": {"$retainKeys": ["k", "n"], "n": "1"}}))
            .unwrap(),
        json!({"data": {"k": "v", "n": "1"}})
    );
    assert!(matches!(
        merged("ConfigMap", target, json!({"data": {"$retainKeys": ["k"], "n": "1"}})),
        Err(PatchError::Malformed(_))
    ));
    // Without an original the directive stays, and the decoder refuses it, as recorded.
    let fresh =
        merged("ConfigMap", json!({}), json!({"data": {"$retainKeys": ["k"], "k": "v"}})).unwrap();
    assert_eq!(fresh, json!({"data": {"$retainKeys": ["k"], "k": "v"}}));
}

#[test]
fn webhooks_merge_by_name() {
    let definition = schema("io.k8s.api.admissionregistration.v1.ValidatingWebhookConfiguration");
    let mut target = document(
        json!({"webhooks": [{"name": "a", "rules": [{"resources": ["x"]}]}, {"name": "b", "timeoutSeconds": 10}]}),
    );
    let patch = document(json!({"webhooks": [{"name": "b", "timeoutSeconds": 3}]}));
    strategic_merge(&definition, &mut target, &patch).unwrap();
    assert_eq!(
        target.into_value(),
        json!({"webhooks": [{"name": "a", "rules": [{"resources": ["x"]}]}, {"name": "b", "timeoutSeconds": 3}]})
    );
}

#[test]
fn huge_lists_merge_in_linear_time() {
    let steps = |count: usize| {
        let items: Vec<Value> =
            (0..count).map(|number| json!({"name": format!("s{number}")})).collect();
        let reversed: Vec<Value> = items.iter().rev().cloned().collect();
        let target = json!({"secrets": items});
        let patch = json!({"$setElementOrder/secrets": reversed, "secrets": reversed});
        let (merged, steps) =
            work::counted(|| merged("ServiceAccount", target, patch).expect("it applies"));
        assert_eq!(merged["secrets"][0]["name"], format!("s{}", count - 1));
        steps
    };
    let (some, twice) = (steps(25_000), steps(50_000));
    assert!(some > 0 && twice < 2 * some + some / 10, "{some}, {twice}");
}

/// The patch between two accounts, as kubectl computes it.
fn diff(from: &[u8], to: &[u8]) -> Value {
    let name = |id: &u8| json!({"name": format!("s{id}")});
    let order: Vec<Value> = to.iter().map(name).collect();
    let mut patch: Vec<Value> = to.iter().filter(|id| !from.contains(id)).map(name).collect();
    patch.extend(
        from.iter()
            .filter(|id| !to.contains(id))
            .map(|id| json!({"name": format!("s{id}"), "$patch": "delete"})),
    );
    json!({"$setElementOrder/secrets": order, "secrets": patch})
}

fn ids() -> impl Strategy<Value = Vec<u8>> {
    proptest::sample::subsequence((0_u8..12).collect::<Vec<_>>(), 1..12).prop_shuffle()
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from)
    ];
    let keys = prop_oneof![
        Just("$patch"),
        Just("$retainKeys"),
        Just("$setElementOrder/secrets"),
        Just("$deleteFromPrimitiveList/finalizers"),
        Just("secrets"),
        Just("metadata"),
        Just("finalizers"),
        Just("name"),
        Just("imagePullSecrets"),
        Just("$setElementOrder/finalizers"),
        Just("ownerReferences"),
        Just("labels"),
        Just("uid")
    ];
    leaf.prop_recursive(5, 48, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((keys.clone(), inner), 0..5).prop_map(
                |fields| Value::Object(
                    fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
                )
            ),
        ]
    })
}

proptest! {
    #[test]
    fn applying_a_diff_yields_the_target(from in ids(), to in ids()) {
        let list = |ids: &[u8]| json!(ids.iter().map(|id| json!({"name": format!("s{id}")})).collect::<Vec<_>>());
        let out = merged("ServiceAccount", json!({"secrets": list(&from)}), diff(&from, &to)).unwrap();
        prop_assert_eq!(&out["secrets"], &list(&to));
    }

    #[test]
    fn nothing_panics(target in any_value(), patch in any_value()) {
        if let (Value::Object(target), Value::Object(patch)) = (target, patch) {
            let _ = strategic_merge(&core("ServiceAccount"), &mut Document::from(target), &Document::from(patch));
        }
    }
}
