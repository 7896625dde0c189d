//! Tests of patches.

use super::*;
use crate::document::json;
use crate::json::MAX_DEPTH;
use crate::json::tests::any_value;
use crate::work;
use proptest::prelude::*;

fn apply(target: &Value, patch: Value) -> Result<Value, PatchError> {
    let mut target = target.clone();
    json_patch(&mut target, &patch)?;
    Ok(target)
}

#[test]
fn operations_apply_in_order() {
    let object = json!({"data": {"k": "v", "x": "y"}});
    let patch = json!([
        {"op": "test", "path": "/data/k", "value": "v"},
        {"op": "add", "path": "/data/n", "value": "new"},
        {"op": "replace", "path": "/data/k", "value": "w"},
        {"op": "remove", "path": "/data/x"},
        {"op": "copy", "from": "/data/k", "path": "/data/c"},
        {"op": "move", "from": "/data/n", "path": "/data/m"},
    ]);
    assert_eq!(
        apply(&object, patch).expect("applies"),
        json!({"data": {"c": "w", "k": "w", "m": "new"}})
    );
    assert_eq!(apply(&object, json!([])).expect("applies"), object);
    assert_eq!(apply(&object, json!(null)).expect("applies"), object);
}

#[test]
fn json_patches_are_lenient_like_kube_apiserver() {
    let object = json!({"data": {"k": "v"}, "list": [1, 2]});
    for (operation, path, expected) in [
        (json!({"op": "replace", "path": "/data/none", "value": "x"}), "/data/none", json!("x")),
        (json!({"op": "copy", "from": "/data/none", "path": "/data/z"}), "/data/z", json!(null)),
        (json!({"op": "add", "path": "/data/q"}), "/data/q", json!(null)),
        (json!({"op": "add", "path": "data/k", "value": "x"}), "/k", json!("x")),
        (json!({"op": "remove", "path": "/list/-1"}), "/list", json!([1])),
        (json!({"op": "add", "path": "/list/-1", "value": 3}), "/list", json!([1, 2, 3])),
        (json!({"op": "add", "path": "/list/-2", "value": 3}), "/list", json!([1, 3, 2])),
        (json!({"op": "add", "path": "/list/-", "value": 3}), "/list", json!([1, 2, 3])),
        (json!({"op": "add", "path": "/list/2", "value": 3}), "/list", json!([1, 2, 3])),
        (json!({"op": "add", "path": "/list/0", "value": 3}), "/list", json!([3, 1, 2])),
        (json!({"op": "replace", "path": "/list/01", "value": 3}), "/list", json!([1, 3])),
        (json!({"op": "test", "path": "/none"}), "/list/0", json!(1)),
        (json!({"op": "test", "path": "/list", "value": [1, 2]}), "/list/0", json!(1)),
        (json!({"op": "add", "path": "/a~1b~0c~2", "value": 3}), "/a~1b~0c~02", json!(3)),
        (json!({"op": "add", "path": "/", "value": 3}), "/", json!(3)),
    ] {
        let result = apply(&object, json!([operation]))
            .unwrap_or_else(|error| panic!("{operation}: {error}"));
        assert_eq!(result.pointer(path), Some(&expected), "{operation}");
    }
}

#[test]
fn patches_that_do_not_apply_are_refused() {
    let object = json!({"data": {"k": "v"}, "list": [1, 2], "null": null});
    for operation in [
        json!({"op": "remove", "path": "/data/none"}),
        json!({"op": "add", "path": "/no/such", "value": 1}),
        json!({"op": "add", "path": "/data/k/x", "value": 1}),
        json!({"op": "add", "path": "/null/x", "value": 1}),
        json!({"op": "add", "path": "", "value": {}}),
        json!({"op": "add", "path": "data", "value": {}}),
        json!({"op": "add", "value": 1}),
        json!({"op": "add", "path": 1}),
        json!({"op": "add", "path": "/list/3", "value": 1}),
        json!({"op": "test", "path": "/list", "value": [1.0, 2]}),
        json!({"op": "add", "path": "/list/-4", "value": 1}),
        json!({"op": "add", "path": "/list/x", "value": 1}),
        json!({"op": "remove", "path": "/list/2"}),
        json!({"op": "remove", "path": "/list/-3"}),
        json!({"op": "remove", "path": "/list/-"}),
        json!({"op": "replace", "path": "/list/-", "value": 1}),
        json!({"op": "replace", "path": "/list/x", "value": 1}),
        json!({"op": "replace", "path": "", "value": 1}),
        json!({"op": "move", "from": "/none", "path": "/x"}),
        json!({"op": "move", "path": "/x"}),
        json!({"op": "copy", "from": "/list/9", "path": "/x"}),
        json!({"op": "test", "path": "/data/k", "value": "w"}),
        json!({"op": "test", "path": "/data/k"}),
        json!({"op": "test", "path": "/data/none", "value": "w"}),
        json!({"op": "jump", "path": "/data"}),
        json!({"op": 1}),
        json!({}),
        json!(null),
    ] {
        let result = apply(&object, json!([operation]));
        assert!(
            matches!(result, Err(PatchError::DoesNotApply(_) | PatchError::TestFailed(_))),
            "{operation}: {result:?}"
        );
    }
    let why = apply(&object, json!([1])).expect_err("no operation").to_string();
    assert!(why.contains("cannot unmarshal number into Go value of type jsonpatch.Operation"));
    for patch in [json!({}), json!("x"), json!([1]), json!([[]]), json!(1)] {
        assert!(matches!(apply(&object, patch.clone()), Err(PatchError::Malformed(_))), "{patch}");
    }
}

#[test]
fn fault_36_patches_are_bounded() {
    let object = json!({"data": {"k": "0123456789"}});
    let many = |count: usize| {
        Value::from(vec![json!({"op": "add", "path": "/data/k", "value": "1"}); count])
    };
    assert!(apply(&object, many(10_000)).is_ok());
    assert!(matches!(apply(&object, many(10_001)), Err(PatchError::TooLarge(_))));
    let doubling: Vec<Value> = (0..40)
        .map(|i| json!({"op": "copy", "from": "/data", "path": format!("/data/x{i}")}))
        .collect();
    assert!(matches!(apply(&object, Value::from(doubling)), Err(PatchError::DoesNotApply(_))));
}

#[test]
fn fault_36_patches_cannot_nest_or_grind() {
    let nest: Vec<Value> =
        (0..2_000).map(|_| json!({"op": "move", "from": "/a", "path": "/b/c"})).collect();
    let wrap: Vec<Value> = nest
        .iter()
        .flat_map(|_| {
            [
                json!({"op": "add", "path": "/b", "value": {}}),
                json!({"op": "move", "from": "/a", "path": "/b/c"}),
                json!({"op": "move", "from": "/b", "path": "/a"}),
            ]
        })
        .collect();
    assert!(matches!(
        apply(&json!({"a": {}}), Value::from(wrap)),
        Err(PatchError::DoesNotApply(_))
    ));
    let deep = (0..MAX_DEPTH - 1).fold(json!(1), |inner, _| json!({ "a": inner }));
    assert!(apply(&json!({}), json!([{"op": "add", "path": "/x", "value": deep}])).is_ok());
    assert!(matches!(
        apply(&json!({"y": {}}), json!([{"op": "add", "path": "/y/x", "value": deep}])),
        Err(PatchError::DoesNotApply(_))
    ));
    let big = json!({ "l": vec![0; 500_000] });
    let grind = Value::from(vec![json!({"op": "add", "path": "/l/0", "value": 1}); 10_000]);
    let (ground, steps) = work::counted(|| apply(&big, grind));
    assert!(matches!(ground, Err(PatchError::TooLarge(_))));
    assert!(steps <= 25_000_000, "{steps}");
}

#[test]
fn fault_34_the_work_of_a_json_patch_is_bounded() {
    let many = |operation: Value| Value::from(vec![operation; 10_000]);
    let big =
        json!({"list": vec![0; 100_000], "object": {"deep": vec![json!({"a": "b"}); 50_000]}});
    let shapes = [
        ("inserts at the front", json!({"op": "add", "path": "/list/0", "value": 1})),
        ("removes at the front", json!({"op": "remove", "path": "/list/0"})),
        ("moves of a tree", json!({"op": "move", "from": "/object", "path": "/object"})),
        ("copies of a tree", json!({"op": "copy", "from": "/object", "path": "/object/copy"})),
        ("copies into lists", json!({"op": "copy", "from": "/object/deep", "path": "/list/0"})),
        (
            "tests of a tree",
            json!({"op": "test", "path": "/object", "value": {"deep": [{"a": "b"}]}}),
        ),
    ];
    for (name, operation) in shapes {
        let ((), steps) = work::counted(|| _ = apply(&big, many(operation)));
        assert!(steps <= 25_000_000, "{name}: {steps}");
    }
    let too_many = Value::from(vec![json!({}); MAX_JSON_PATCH_OPERATIONS + 1]);
    assert!(matches!(apply(&big, too_many), Err(PatchError::TooLarge(_))));
}

#[test]
fn merge_patches_as_the_rfc_says() {
    for (target, patch, expected) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": {"b": "c"}}), json!({"a": [1]}), json!({"a": [1]})),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        (json!({}), json!({"none": null}), json!({})),
        (json!({"a": [1, 2]}), json!({"a": {"b": null, "c": 1}}), json!({"a": {"c": 1}})),
    ] {
        let mut result = target.clone();
        merge_patch(&mut result, &patch);
        assert_eq!(result, expected, "{target} {patch}");
    }
}

proptest! {
    #[test]
    fn merging_twice_is_merging_once(mut target in any_value(), patch in any_value()) {
        merge_patch(&mut target, &patch);
        let once = target.clone();
        merge_patch(&mut target, &patch);
        // A list with nulls in objects may lose them in the second application, if a list replaced
        // an object.
        if !crate::json::to_vec(&patch).windows(4).any(|window| window == b"null") {
            prop_assert_eq!(target, once);
        }
    }

    #[test]
    fn an_empty_merge_changes_no_object(target in any_value()) {
        prop_assume!(target.is_object());
        let mut merged = target.clone();
        merge_patch(&mut merged, &json!({}));
        prop_assert_eq!(merged, target);
    }

    #[test]
    fn merging_into_nothing_leaves_no_nulls(patch in any_value()) {
        let mut merged = json!({});
        merge_patch(&mut merged, &patch);
        if let Value::Object(fields) = &merged {
            prop_assert!(fields.values().all(|value| !value.is_null()));
        }
    }

    #[test]
    fn fuzz_json_patches_never_panic(target in any_value(), patch in any_value(), kinds in proptest::collection::vec(("(add|remove|replace|move|copy|test)", "(/[a0-]{0,2}){0,3}", "(/[a0-]{0,2}){0,3}", any_value()), 0..6)) {
        let _ = apply(&target, patch);
        let operations = kinds.into_iter().map(|(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value})).collect();
        let _ = apply(&json!({"a": [{"a": 1}, [2]], "0": target}), Value::Array(operations));
    }
}
