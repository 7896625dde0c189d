//! Tests of selectors.

use super::*;
use crate::document::json;
use proptest::prelude::*;

fn labels(text: &str) -> LabelSelector {
    LabelSelector::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn accepts_kube_apiservers_forms() {
    for (text, canonical) in [
        ("", ""),
        ("  ", ""),
        ("x", "x"),
        ("\rx", "x"),
        ("x=a,y=b,z=c", "x=a,y=b,z=c"),
        ("y=b,x=a", "x=a,y=b"),
        ("x!=a,y==b", "x!=a,y=b"),
        ("x=", "x="),
        ("x= ", "x="),
        ("x=,z= ", "x=,z="),
        ("!x", "!x"),
        (" ! x ", "!x"),
        ("x>1,z<5", "x>1,z<5"),
        ("x in (abc,def)", "x in (abc,def)"),
        ("x in(def, abc ,abc)", "x in (abc,def)"),
        ("foo  in\t(abc)", "foo=abc"),
        ("x in (abc,)", "x in (,abc)"),
        ("x in ()", "x="),
        ("x notin ( )", "x!="),
        ("x notin (, a)", "x notin (,a)"),
        ("x notin (abc,,def),bar,z in (),w", "bar,w,x notin (,abc,def),z="),
        ("a in (x,y,notin, z,in)", "a in (in,notin,x,y,z)"),
        ("in", "in"),
        ("notin=in", "notin=in"),
        ("in in (in)", "in=in"),
        (
            "0.1.2.domain/99 notin (10.10.100.1, tick.tack.clock)",
            "0.1.2.domain/99 notin (10.10.100.1,tick.tack.clock)",
        ),
        ("a=b\0", "a=b"),
    ] {
        assert_eq!(labels(text).to_string(), canonical, "{text:?}");
        assert_eq!(labels(canonical).to_string(), canonical);
    }
}

#[test]
fn refuses_the_input_that_kube_apiserver_refuses() {
    for text in [
        "x=a||y=b",
        "x==a==b",
        "x===a",
        "!x=a",
        "x<a",
        "x>",
        "x>+1",
        "x>-1",
        "x,,y",
        ",x,y",
        ",",
        "x,",
        "x nott in (y)",
        "a in (xyz),",
        "a in (xyz)b",
        "a in (xyz abc)",
        "a notin(",
        "a (",
        "(",
        ")",
        "a in",
        "a in b",
        "a in ((b))",
        "a in (b",
        "!",
        "!!a",
        "!=a",
        "=a",
        "a!b",
        "a!",
        "a b",
        "-a=b",
        "a=-b",
        "a/b/c=d",
        "A.com/b=c",
        "\u{e9}=a",
        "a=\u{e9}",
        "a\0b",
        "a in (\u{e9})",
        "a in (-)",
        "x>9223372036854775808",
    ] {
        assert!(LabelSelector::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn labels_match() {
    let object = json!({"env": "prod", "size": "5", "empty": "", "word": "x"});
    let bytes = crate::json::to_vec(&object);
    for (text, expected) in [
        ("", true),
        ("env", true),
        ("none", false),
        ("!env", false),
        ("!none", true),
        ("env=prod", true),
        ("env=dev", false),
        ("none=dev", false),
        ("none=", false),
        ("empty=", true),
        ("env!=dev", true),
        ("env!=prod", false),
        ("none!=dev", true),
        ("env in (dev,prod)", true),
        ("env notin (dev,prod)", false),
        ("none notin (dev)", true),
        ("size>4", true),
        ("size>5", false),
        ("size<6", true),
        ("word>1", false),
        ("none<1", false),
        ("env=prod,size>9", false),
    ] {
        assert_eq!(labels(text).matches_value(Some(&object)), expected, "{text}");
        assert_eq!(CompiledLabels::new(&labels(text)).matches(Some(&bytes)).0, expected, "{text}");
    }
    assert!(labels("!a").matches_value(None) && CompiledLabels::new(&labels("!a")).matches(None).0);
    assert!(
        !LabelSelector::nothing().matches_value(Some(&object))
            && !LabelSelector::nothing().matches(|_| None)
    );
}

#[test]
fn the_object_form_is_read() {
    let selector = LabelSelector::from_document(&json!({
        "matchLabels": {"b": "1"},
        "matchExpressions": [{"key": "a", "operator": "In", "values": ["y", "x"]}, {"key": "c", "operator": "DoesNotExist"}, {"key": "d", "operator": "NotIn", "values": ["z"]},
            {"key": "e", "operator": "Exists", "values": []}],
    }));
    assert_eq!(selector.expect("well-formed").to_string(), "a in (x,y),b=1,!c,d!=z,e");
    assert!(LabelSelector::from_document(&json!({})).expect("empty").is_empty());
    assert_eq!(LabelSelector::from_document(&json!(null)).expect("null"), LabelSelector::nothing());
    for bad in [
        json!([]),
        json!({"matchLabels": []}),
        json!({"matchLabels": {"a": 1}}),
        json!({"matchLabels": {"-": "a"}}),
        json!({"matchExpressions": {}}),
        json!({"matchExpressions": [1]}),
        json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}),
        json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
        json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
        json!({"matchExpressions": [{"operator": "Exists"}]}),
    ] {
        assert!(LabelSelector::from_document(&bad).is_err(), "{bad}");
    }
}

#[test]
fn fault_41_selectors_are_bounded() {
    let terms = |count: usize| vec!["a=b"; count].join(",");
    let set = |count: usize| format!("a in ({})", vec!["b"; count].join(","));
    assert!(
        LabelSelector::parse(&terms(1_000)).is_ok() && LabelSelector::parse(&terms(1_001)).is_err()
    );
    assert!(
        LabelSelector::parse(&set(MAX_VALUES)).is_ok()
            && LabelSelector::parse(&set(500_000)).is_err()
    );
    assert!(
        FieldSelector::parse(&terms(1_000)).is_ok() && FieldSelector::parse(&terms(1_001)).is_err()
    );
    for bomb in ["(", ",", "a in (", "!", "\\", "=", "a"] {
        let bomb = bomb.repeat(200_000);
        assert!(LabelSelector::parse(&bomb).is_err());
        assert!(
            bomb.starts_with(',') || bomb.starts_with('=') || FieldSelector::parse(&bomb).is_err()
        );
    }
}

#[test]
fn field_selectors_parse_and_match() {
    let parse = |text: &str| FieldSelector::parse(text);
    let selector = parse("metadata.name=a,spec.x==b,spec.y!=c,").expect("well-formed");
    assert_eq!(selector.to_string(), "metadata.name=a,spec.x=b,spec.y!=c");
    assert_eq!(selector.exact("metadata.name"), Some("a"));
    assert_eq!(selector.exact("spec.y"), None);
    let object = |y: &'static str| {
        move |field: &str| {
            if field == "metadata.name" {
                "a"
            } else if field == "spec.x" {
                "b"
            } else {
                y
            }
        }
    };
    assert!(selector.matches(object("")));
    assert!(!selector.matches(object("c")));
    assert_eq!(parse(r"a=\,\=\\,b=c").expect("escapes").terms[0].value, r",=\");
    assert_eq!(parse(r"a=\,\=\\,b=c").expect("escapes").to_string(), r"a=\,\=\\,b=c");
    assert_eq!(
        parse("n=b,n==z,n=a,m=c").expect("sorted by their text").exact("n"),
        Some("z"),
        "as in kube-apiserver"
    );
    assert!(parse("").expect("empty").is_empty() && parse(",").expect("empty").is_empty());
    assert_eq!(parse("=a").expect("as in kube-apiserver").terms[0].field, "");
    for bad in ["a", "a=b=c", r"a=\x", r"a=\", "a!b", "a=b,c"] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

proptest! {
    #[test]
    fn fuzz_selectors_never_panic(text in any::<String>(), grammar in "[ab01,=!<>()\\\\ \0int.\u{e9}-]{0,30}") {
        for text in [text, grammar] {
            if let Ok(selector) = LabelSelector::parse(&text) {
                prop_assert_eq!(&LabelSelector::parse(&selector.to_string()).expect("its own form"), &selector);
            }
            if let Ok(selector) = FieldSelector::parse(&text) {
                let again = FieldSelector::parse(&selector.to_string()).expect("its own form");
                prop_assert_eq!(again.terms.len(), selector.terms.len());
            }
        }
    }
}
