//! Tests of expressions.

use super::program::PatternProgram;
use super::{compile, compile_within, translate};
use ferrokube_apimachinery::work::counted;
use proptest::prelude::*;
use std::ops::Range;

/// A pattern of OpenShift's definition of `ingresses.config.openshift.io`: as an automaton over
/// bytes it takes 10 MiB.
const DOMAIN: &str = r"^([a-zA-Z0-9\p{S}\p{L}]((-?[a-zA-Z0-9\p{S}\p{L}]{0,62})?)|([a-zA-Z0-9\p{S}\p{L}](([a-zA-Z0-9-\p{S}\p{L}]{0,61}[a-zA-Z0-9\p{S}\p{L}])?)(\.)){1,}([a-zA-Z\p{L}]){2,63})$|^(([a-z0-9][-a-z0-9]{0,61}[a-z0-9]|[a-z0-9]{1,63})[\.]){0,}([a-z0-9][-a-z0-9]{0,61}[a-z0-9]|[a-z0-9]{1,63})$";

fn program(pattern: &str) -> PatternProgram {
    let hir = regex_syntax::parse(&translate(pattern)).unwrap();
    PatternProgram::compile(&hir, &mut (64 << 20)).unwrap()
}

/// The matches of a program.
fn found(pattern: &str, text: &str) -> (bool, Option<Range<usize>>) {
    let program = program(pattern);
    let mut steps = u64::MAX;
    let is_match = program.find(text, 0, true, &mut steps).unwrap().is_some();
    (is_match, program.find(text, 0, false, &mut steps).unwrap())
}

/// The same of an automaton, as expressions ask it.
fn wanted(pattern: &str, text: &str) -> (bool, Option<Range<usize>>) {
    let expression = compile(pattern).unwrap();
    let regex = regex::Regex::new(&translate(pattern)).unwrap();
    let is_match = expression.is_match(text, &mut u64::MAX.clone()).unwrap();
    (is_match, regex.find(text).map(|found| found.range()))
}

#[test]
fn patterns_match_as_in_re2() {
    let found = |pattern: &str, text: &str| {
        compile(pattern)
            .unwrap_or_else(|error| panic!("{pattern}: {error}"))
            .is_match(text, &mut 0)
            .unwrap()
    };
    let yes = [
        (r"^\d+$", "12"),
        (r"^[\d.]+$", "1.2"),
        (r"^[^\s]+$", "ab"),
        (r"^[[:alpha:]]+$", "ab"),
        (r"^[a[b]+$", "[a"),
        (r"^[]a]+$", "]a"),
        (r"^[a&&b]+$", "&"),
        (r"(?i)^ABC$", "abc"),
        (r"^\p{Greek}+$", "\u{3b1}"),
        (r"\bfoo\b", "a foo b"),
        (r"^\Qa.b\E$", "a.b"),
        (r"^[\w-]+$", "a-b"),
        (r"^[a~~]$", "~"),
        (r"^\x41$", "A"),
    ];
    for (pattern, text) in yes {
        assert!(found(pattern, text), "{pattern} {text}");
        assert!(self::found(pattern, text).0, "{pattern} {text}, by a program");
    }
    let no = [
        (r"^\d+$", "\u{661}"),
        (r"^\w+$", "\u{e9}"),
        (r"^\D$", "1"),
        (r"^[\W]$", "a"),
        (r"^\Qa.b\E$", "axb"),
        (r"^\s$", "\u{a0}"),
    ];
    for (pattern, text) in no {
        assert!(!found(pattern, text), "{pattern} {text}");
        assert!(!self::found(pattern, text).0, "{pattern} {text}, by a program");
    }
    for bad in
        ["(", "[", "a{2,1}", r"\p{None}", "(?=a)", r"(a)\1", "((((a{1000}){1000}){1000}){1000})"]
    {
        assert!(compile(bad).is_err(), "{bad}");
    }
}

#[test]
fn an_empty_match_within_a_character_hides_no_other() {
    for (pattern, text, want) in [
        (r"(\B|\pL)", "1\u{e9}_", Some(1..3)),
        (r"\B|\pL_", "1\u{e9}_", Some(1..4)),
        (r"\B|\pL1", "1\u{e9}_", None),
        (r"\B", "1\u{e9}\u{e9}_", Some(3..3)),
    ] {
        let expected = (want.is_some(), want);
        assert_eq!(found(pattern, text), expected, "{pattern}, by a program");
        assert_eq!(wanted(pattern, text), expected, "{pattern}");
    }
}

#[test]
fn counts_are_bounded_as_in_re2() {
    for (pattern, shown) in [
        ("a{1001}", "{1001}"),
        ("a{2,1001}", "{2,1001}"),
        ("a{1001,}", "{1001,}"),
        ("(a{100}){11}", "{11}"),
        ("(x|(a{1,200}b+)?){1,200}", "{1,200}"),
    ] {
        let why = compile(pattern).expect_err(pattern);
        assert_eq!(why, format!("error parsing regexp: invalid repeat count: `{shown}`"));
    }
    for pattern in ["a{1000}", "(a{100}){10}", "(a{100}|b{1000})", "(a{0}){1000}", "(a{500})*"] {
        compile(pattern).expect(pattern);
    }
}

#[test]
fn large_classes_are_small_programs() {
    let domain = compile(DOMAIN).unwrap();
    let mut steps = 2_000_000;
    for good in ["apps.example.com", "a", "\u{e9}t\u{e9}.fr", &"a".repeat(63)] {
        assert!(domain.is_match(good, &mut steps).unwrap(), "{good}");
    }
    for bad in ["", "-a", "a..b", "a b", &"a".repeat(65), &format!("{}.", "a.".repeat(126))] {
        assert!(!domain.is_match(bad, &mut steps).unwrap(), "{bad}");
    }
    assert!(steps > 500_000, "{steps} steps are left");
}

#[test]
fn fault_42_steps_of_a_match_are_charged_to_the_caller() {
    // Each character begins a match that ends 999 characters later, or not.
    let slow = compile("[ab]*a([ab]{3}){333}c").unwrap();
    let text = "ab".repeat(10_000);
    let mut steps = 5_000_000;
    let (matches, counted) = counted(|| slow.is_match(&text, &mut steps));
    assert!(matches.is_err(), "they do not suffice");
    assert!((4_900_000..5_100_000).contains(&counted), "{counted}");
    let begun = &text[..1_200];
    let mut steps = 5_000_000;
    assert!(!slow.is_match(begun, &mut steps).unwrap());
    assert!(slow.is_match(&format!("{begun}c"), &mut steps).unwrap());
}

#[test]
fn fault_42_trees_are_charged_before_they_are_built() {
    let refused = |pattern: &str| {
        let (compiled, steps) = counted(|| compile_within(pattern, &mut (64 << 20)));
        assert!(steps < 70 << 20, "{steps}");
        compiled.expect_err("too large")
    };
    let too_large = "the patterns of the schema are too large together";
    assert_eq!(refused(&r"\p{L}".repeat(10_000)), too_large);
    assert_eq!(refused(&format!("(?i){}", r"[\x00-\x{10ffff}]".repeat(2_000))), too_large);
    assert!(refused(&"a".repeat(100_000)).ends_with("expression too large"));
    assert!(refused(&"([ab]{1000}b)".repeat(1_000)).ends_with("expression too large"));
}

#[test]
fn matches_do_not_overlap() {
    // A text for which no automaton is taken, and a short one.
    let long = "x".repeat(1 << 20);
    for (pattern, text, want) in [
        ("a*", "baac", vec![0..0, 1..3, 4..4]),
        ("", "\u{e9}b", vec![0..0, 2..2, 3..3]),
        ("a|ab", "abab", vec![0..1, 2..3]),
        (r"\bb", "b ab b", vec![0..1, 5..6]),
        ("^a|b$", "aab", vec![0..1, 2..3]),
    ] {
        let expression = compile(pattern).unwrap();
        let all = |text: &str, most: usize| {
            expression.find_all(text, most, &mut u64::MAX.clone()).unwrap()
        };
        assert_eq!(all(text, usize::MAX), want, "{pattern}");
        let text = format!("{text}{long}");
        let first = want.iter().filter(|range| range.end < text.len() - long.len());
        let first: Vec<Range<usize>> = first.cloned().collect();
        assert_eq!(all(&text, first.len()), first, "{pattern} in a long text");
    }
}

fn patterns() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        "a", "b", "ab", "", ".", "[ab]", "[^a]", "\\d", "\\w", "\\pL", "\u{e9}", "\\b", "\\B", "^",
        "$", "(?i)a", "(?m:^)", "(?m:$)", "(?s:.)", "\\A", "\\z",
    ]);
    let quantifiers =
        vec!["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}?", "{2,}", "{0}"];
    leaf.prop_map(str::to_owned).prop_recursive(4, 24, 3, move |inner| {
        prop_oneof![
            (inner.clone(), prop::sample::select(quantifiers.clone()))
                .prop_map(|(inner, quantifier)| format!("(?:{inner}){quantifier}")),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|parts| parts.concat()),
            prop::collection::vec(inner, 2..4).prop_map(|parts| format!("({})", parts.join("|"))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn programs_find_what_automata_find(
        pattern in patterns(),
        text in "[abA1_ \u{e9}\n\r-]{0,8}",
    ) {
        prop_assert_eq!(found(&pattern, &text), wanted(&pattern, &text), "{:?}", pattern);
    }
}
