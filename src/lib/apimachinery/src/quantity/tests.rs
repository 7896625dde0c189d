//! Tests of quantities.

use super::*;
use crate::document::json;
use proptest::prelude::*;

fn parse(text: &str) -> Quantity {
    Quantity::parse(text).expect(text)
}

#[test]
fn canonical_forms() {
    for (text, canonical) in [
        ("0", "0"),
        ("0.0", "0"),
        ("-0", "0"),
        ("0Ki", "0"),
        ("Ki", "0"),
        ("+", "0"),
        (".", "0"),
        ("1", "1"),
        ("100m", "100m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        ("0.001", "1m"),
        ("0.0001", "100u"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("0.9n", "1n"),
        ("-0.1n", "-1n"),
        ("1.0000000001", "1000000001n"),
        ("1k", "1k"),
        ("1000", "1k"),
        ("1000k", "1M"),
        ("1500k", "1500k"),
        ("1E", "1E"),
        ("1000E", "1e21"),
        ("1Ki", "1Ki"),
        ("1024Ki", "1Mi"),
        ("1024", "1024"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("8Ki", "8Ki"),
        ("0.5Mi", "512Ki"),
        ("1.1Ki", "1126400m"),
        ("1Ei", "1Ei"),
        ("8Ei", "9223372036854775807"),
        ("-1Gi", "-1Gi"),
        ("1e3", "1e3"),
        ("1E3", "1E3"),
        ("1000e0", "1e3"),
        ("1e-3", "1e-3"),
        ("12e6", "12e6"),
        ("1.2e3", "1200"),
        ("100e1", "1e3"),
        ("1e1", "10"),
        ("1.", "1."),
        (".5", "500m"),
        ("007", "007"),
        ("010", "010"),
        ("1.500", "1.500"),
        ("1.5000", "1500m"),
        ("9999999999999999999Ki", "9223372036854775807"),
        ("18446744073709551616", "18446744073709551616"),
        ("0.0000000000000000000000000000000000000000000001", "1n"),
        ("1e-100", "1e-9"),
        ("5.12e1", "51200e-3"),
        ("123.456", "123.456"),
    ] {
        assert_eq!(parse(text).canonical(), canonical, "{text}");
        assert_eq!(parse(&parse(text).canonical()), parse(text), "{text}");
    }
}

#[test]
fn amounts_out_of_range_keep_their_text() {
    for (text, canonical) in [
        ("1e30", "1e30"),
        ("1E30", "1E30"),
        ("1e31", "10e30"),
        ("-1e31", "-10e30"),
        ("12345e40", "123450e39"),
        ("1.5e30", "1500e27"),
        ("1.0e40", "1.0e40"),
        ("0.0000001e40", "1e33"),
        ("1000e28", "10e30"),
        ("1e2000", "100e1998"),
        ("123456789012345678901234567890123456789", "123456789012345678901234567890123456789"),
        ("123456789012345678901234567890123456789000", "123456789012345678901234567890123456789k"),
        ("9999999999999999999999999E", "9999999999999999999999999E"),
        ("170141183460469231731687303716", "170141183460469231731687303716"),
        ("170141183460469231731687303716.5", "170141183460469231731687303716500m"),
        ("999999999999999999999999999999.9999999999", "1e30"),
    ] {
        let quantity = parse(text);
        assert_eq!(quantity.canonical(), canonical, "{text}");
        assert_eq!(parse(canonical).canonical(), canonical);
        assert_eq!(
            (quantity.value(), quantity.is_negative()),
            match text.strip_prefix('-') {
                Some(_) => (i64::MIN, true),
                None => (i64::MAX, false),
            }
        );
        assert!(quantity.sub(&quantity).is_zero());
    }
}

#[test]
fn refuses_malformed_quantities() {
    for text in [
        "",
        " ",
        "1 ",
        "a",
        "1a",
        "1KiB",
        "1ki",
        "1kk",
        "1e",
        "1e3Mi",
        "1e1.5",
        "--1",
        "1-",
        "1m3",
        "1.2.3",
        "1,5",
        "0x1",
        "NaN",
        "1e99999999999",
        "1e10001",
        "\u{661}",
        "1i",
        "1Ki3",
        "1 Gi",
    ] {
        assert!(Quantity::parse(text).is_err(), "{text:?}");
    }
    assert!(Quantity::from_value(&json!([])).is_err());
    assert!(Quantity::parse(&"9".repeat(1_000_000)).is_err());
    assert_eq!(parse(&format!("0.{}", "3".repeat(1_000_000))).canonical(), "333333334n");
}

#[test]
fn values_of_fields() {
    assert_eq!(
        Quantity::from_value(&json!(" 5 ")).expect("a string"),
        Quantity::new(5, Format::DecimalSi)
    );
    assert_eq!(Quantity::from_value(&json!(2000)).expect("a number").canonical(), "2k");
    assert_eq!(Quantity::from_value(&json!(0.1)).expect("a number").canonical(), "100m");
    assert!(Quantity::from_value(&json!(null)).expect("null").is_zero());
}

#[test]
fn arithmetic_and_order() {
    assert_eq!(parse("1").add(&parse("500m")).canonical(), "1500m");
    assert_eq!(parse("1Gi").add(&parse("1Gi")).canonical(), "2Gi");
    assert_eq!(parse("0").add(&parse("1Gi")).canonical(), "1Gi");
    assert_eq!(parse("1Gi").sub(&parse("1Mi")).canonical(), "1023Mi");
    assert_eq!(parse("1").sub(&parse("2")).canonical(), "-1");
    assert_eq!(parse("1Gi").sub(&parse("1Gi")).canonical(), "0");
    assert!(parse("1Gi") > parse("1G") && parse("999m") < parse("1") && parse("-1") < parse("0"));
    assert_eq!(parse("1024Mi"), parse("1Gi"));
    assert_eq!(
        (parse("1.1").value(), parse("-1.1").value(), parse("1.0001").milli_value()),
        (2, -2, 1001)
    );
    assert_eq!(
        (parse("100E").value(), Quantity::from_milli(1500, Format::DecimalSi).canonical()),
        (i64::MAX, "1500m".to_owned())
    );
    assert!(parse("-1").is_negative() && !parse("0").is_negative());
}

proptest! {
    #[test]
    fn canonical_keeps_the_amount(number in "[+-]?[0-9]{0,10}(\\.[0-9]{0,8})?", suffix in "(n|u|m||k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e[+-]?[0-9]|E[0-9])") {
        let text = number + &suffix;
        prop_assume!(!text.is_empty());
        let quantity = Quantity::parse(&text).map_err(TestCaseError::fail)?;
        let canonical = Quantity { text: None, ..quantity.clone() }.canonical();
        let again = Quantity::parse(&canonical).map_err(TestCaseError::fail)?;
        prop_assert_eq!(&again, &quantity, "{} {}", text, canonical);
        prop_assert_eq!(Quantity { text: None, ..again }.canonical(), canonical);
    }

    #[test]
    fn addition_undoes_subtraction(one in any::<i64>(), other in any::<i64>()) {
        let (one, other) = (Quantity::from_milli(one, Format::DecimalSi), Quantity::new(other, Format::BinarySi));
        prop_assert_eq!(one.add(&other).sub(&other), one);
    }

    #[test]
    fn fuzz_quantities_never_panic(text in any::<String>(), grammar in "[-+0-9.eEinumkKMGTP]{0,24}") {
        let _ = Quantity::parse(&text).map(|quantity| (quantity.canonical(), quantity.value(), quantity.milli_value()));
        let _ = Quantity::parse(&grammar).map(|quantity| (quantity.canonical(), quantity.value(), quantity.milli_value()));
    }
}
