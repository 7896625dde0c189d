//! The value tree against a model.

use super::{Array, Map, Number, Text, Value};
use crate::document::json;
use std::collections::BTreeMap;

#[test]
fn a_value_is_three_words() {
    assert_eq!(size_of::<Value>(), 24);
    assert_eq!(size_of::<Option<Value>>(), 24);
    assert_eq!(size_of::<(Text, Value)>(), 48);
    assert_eq!((size_of::<Array>(), size_of::<Map>(), size_of::<Number>()), (16, 16, 16));
}

/// A step of a small generator.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Maps behave like a B-tree, whatever their size and representation.
#[test]
fn maps_agree_with_the_standard_librarys() {
    let mut state = 1;
    for range in [4, 16, 70, 300] {
        let (mut map, mut model) = (Map::new(), BTreeMap::new());
        for step in 0..4_000 {
            let key = format!("{:x}", next(&mut state) % range);
            let value = Value::from(step);
            match next(&mut state) % 12 {
                0..5 => {
                    assert_eq!(map.insert(key.as_str(), value.clone()), model.insert(key, value))
                }
                5..8 => assert_eq!(map.remove(&key), model.remove(&key)),
                8 => assert_eq!(
                    map.entry(key.as_str()).or_insert(value.clone()),
                    model.entry(key).or_insert(value)
                ),
                9 => map = map.clone(),
                10 => {
                    let odd = step % 2 == 1;
                    map.retain(|key, _| !(odd && key.starts_with('3')));
                    model.retain(|key, _| !(odd && key.starts_with('3')));
                }
                _ if step % 7 == 0 => map = map.into_iter().rev().collect(),
                _ => map.shrink_to_fit(),
            }
            let probe = format!("{:x}", next(&mut state) % range);
            assert_eq!(map.get(&probe), model.get(&probe));
            assert_eq!(map.len(), model.len());
            if step % 50 == 0 {
                assert!(
                    map.iter()
                        .map(|(key, value)| (key.as_str(), value))
                        .eq(model.iter().map(|(key, value)| (key.as_str(), value)))
                );
                assert!(map.keys().rev().eq(model.keys().rev()));
            }
        }
    }
}

#[test]
fn the_last_of_equal_keys_wins() {
    let fields = [("b", 1), ("a", 2), ("b", 3), ("a", 4), ("c", 5)];
    let map: Map = fields.into_iter().map(|(key, value)| (key, Value::from(value))).collect();
    assert_eq!(Value::Object(map), json!({"a": 4, "b": 3, "c": 5}));
}

/// Ascending or in random order: inserting 100,000 fields takes as many tree operations, not shifts
/// of a slice.
#[test]
fn a_large_map_is_a_tree_from_the_first_change_on() {
    let mut map: Map = (0..100_000).map(|number| (format!("{number:06}"), Value::Null)).collect();
    assert_eq!(map.heap_bytes(), 100_000 * 48, "what was not changed is a slice");
    map.insert("050000x", Value::Null);
    assert!(matches!(map.fields(), super::map::MapFields::Tree(_)));
    for number in 0..100_000 {
        map.insert(format!("{:06}y", (number * 7_919) % 100_000), Value::Null);
    }
    (0..100_000).for_each(|number| assert!(map.remove(&format!("{number:06}")).is_some()));
    assert_eq!(map.len(), 100_001);
}

#[test]
fn json_is_written_in_rust() {
    let (name, list, none) = ("n".to_owned(), vec![1, 2], None::<&str>);
    let value = json!({"a": null, "b": [true, false, null, [], {}, -1, 1.5, "x", name], "c": {"d": list, (name.clone()): none}, name.as_str(): {"e": [1, {"f": 2}],},});
    let text = r#"{"a":null,"b":[true,false,null,[],{},-1,1.5,"x","n"],"c":{"d":[1,2],"n":null},"n":{"e":[1,{"f":2}]}}"#;
    assert_eq!(value.to_string(), text);
    assert_eq!(value["b"][5], -1);
    assert_eq!(value["absent"]["too"], Value::Null);
    assert_eq!(value.pointer("/c/d/1"), Some(&json!(2)));
    assert_eq!(value.pointer("c"), None);
}

#[test]
fn lists_grow_and_stay_equal() {
    let mut list: Array = (0..3).map(Value::from).collect();
    assert_eq!(list.heap_bytes(), 72);
    list.push(json!(3));
    list.insert(0, json!("first"));
    assert_eq!(list.remove(1), 0);
    assert_eq!(list, vec![json!("first"), json!(1), json!(2), json!(3)]);
    assert_eq!(list.clone(), list);
    assert_eq!(list.clone().heap_bytes(), 4 * 24);
}

#[test]
fn floats_with_exponents_keep_their_notation() {
    for (text, written) in [
        ("1e3", "1e3"),
        ("1E3", "1E3"),
        ("1e+30", "1e+30"),
        ("1e30", "1e30"),
        ("-12.50e-3", "-12.50e-3"),
        ("0.5e3", "0.5e3"),
        ("1.0e3", "1.0e3"),
        ("0e0", "0e0"),
        ("1e03", "1000"),
        ("123456789012345678e3", "123456789012345680000"),
        ("1.5", "1.5"),
        ("1.0", "1"),
        ("0.00000015", "1.5e-7"),
        ("1500000000000000000000.0", "1.5e+21"),
    ] {
        let value = crate::json::read_value(text.as_bytes()).expect(text);
        let Value::Number(mut number) = value else { panic!("{text}: a number") };
        assert_eq!(number.as_written(), written, "{text}");
        let float = number.as_f64().expect(text);
        assert_eq!(Some(number), Number::from_f64(float), "{text}: the same number");
        number.forget_text();
        assert_eq!(number.as_written(), Number::from_f64(float).unwrap().as_written());
    }
}
