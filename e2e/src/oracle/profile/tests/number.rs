//! Tables of durations, weights and authorities.

use super::{
    super::{duration, quantity, service_profile::with_port},
    *,
};

#[test]
fn durations_are_parsed_as_in_go() {
    for (text, nanoseconds) in [
        ("200ms", 200_000_000),
        ("1.5s", 1_500_000_000),
        ("-1.5s", -1_500_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("+1s", 1_000_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1m1h", 3_660_000_000_000),
        ("1ns", 1),
        ("7us", 7_000),
        ("7µs", 7_000),
        ("7μs", 7_000),
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("0s", 0),
        ("0.5ns", 0),
        ("0.000000001h", 3_600),
        ("1.0000000000000000000000001s", 1_000_000_000),
        ("9223372036.854775807s", i64::MAX),
        ("-9223372036.854775808s", i64::MIN),
        ("9223372036854775807ns", i64::MAX),
        ("010s", 10_000_000_000),
    ] {
        assert_eq!(duration::parse(text), Some(nanoseconds), "{text}");
    }
    for text in [
        "",
        "-",
        "+",
        "5",
        "00",
        "1d",
        "1S",
        "1e3s",
        " 1s",
        "1s ",
        "1 s",
        "s",
        ".s",
        ".",
        "1s5",
        "--1s",
        "1..5s",
        "-+1s",
        "0x1s",
        "one-second",
        "9223372036.854775808s",
        "-9223372036.854775809s",
        "9223372037s",
        "1s1",
        "9223372036854775809ns",
        "99999999999999999999s",
        "9223372036s1s",
    ] {
        assert_eq!(duration::parse(text), None, "{text}");
    }
}

#[test]
fn a_zero_duration_is_omitted_and_a_negative_one_has_two_negative_fields() {
    let wire = |text: &str| duration::parse(text).and_then(duration::wire);
    assert_eq!(wire("0.5ns"), None);
    for (text, seconds, nanos) in [
        ("200ms", 0, 200_000_000),
        ("1.5s", 1, 500_000_000),
        ("-1.5s", -1, -500_000_000),
        ("-1ns", 0, -1),
        ("-9223372036.854775808s", -9_223_372_036, -854_775_808),
    ] {
        assert_eq!(wire(text), Some(Duration { seconds, nanos }), "{text}");
    }
}

#[test]
fn a_weight_is_ten_thousand_times_the_quantity() {
    for (quantity, weight) in [
        (json!(1), 10_000),
        (json!("1"), 10_000),
        (json!("500m"), 5_000),
        (json!("900m"), 9_000),
        (json!(0), 0),
        (json!("0"), 0),
        (json!("1500m"), 15_000),
        (json!("0.5"), 5_000),
        (json!(0.5), 5_000),
        (json!("1k"), 10_000_000),
        (json!("1e3"), 10_000_000),
        (json!("1E3"), 10_000_000),
        (json!("5e-1"), 5_000),
        (json!("1Ki"), 10_240_000),
        (json!("100u"), 10),
        (json!("1n"), 10),
        (json!("0.00015"), 10),
        (json!("1e-30"), 10),
        (json!("1.23456"), 12_350),
        (json!(1.23456), 12_350),
        (json!("+1"), 10_000),
        (json!("1."), 10_000),
        (json!(".5"), 5_000),
        (json!(" 1 "), 10_000),
        (json!("429496"), 4_294_960_000),
        (json!("429497"), u32::MAX),
        (json!("1E"), u32::MAX),
        (json!("1e100"), u32::MAX),
        (json!("8Ei"), u32::MAX),
        (json!("123456789012345678901234567890123456789012345678901234567890"), u32::MAX),
        (json!(-1), 0),
        (json!("-500m"), 0),
    ] {
        assert_eq!(quantity::weight(&quantity), Some(weight), "{quantity}");
    }
    for quantity in [
        json!(""),
        json!("heavy"),
        json!("1 k"),
        json!("1K"),
        json!("1ki"),
        json!("1e"),
        json!("1mm"),
        json!("1.5.1"),
        json!("."),
        json!("--1"),
        json!("e3"),
        json!("0x10"),
        json!(true),
        json!({}),
        json!([1]),
    ] {
        assert_eq!(quantity::weight(&quantity), None, "{quantity}");
    }
}

#[test]
fn an_override_without_a_port_gets_the_requested_port() {
    for (authority, expected) in [
        ("foo", "foo:80"),
        ("foo:8080", "foo:8080"),
        ("foo:bar", "foo:bar"),
        ("foo:", "foo:"),
        (":80", ":80"),
        ("", ":80"),
        ("::1", "[::1]:80"),
        ("a:b:c", "[a:b:c]:80"),
        ("[::1]", "[[::1]]:80"),
        ("[::1]:8080", "[::1]:8080"),
        ("[foo]", "[foo]:80"),
    ] {
        assert_eq!(with_port(authority, 80), expected, "{authority}");
    }
}
