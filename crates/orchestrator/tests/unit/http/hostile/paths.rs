//! Strategies for paths and queries: valid ones in unusual encodings, and broken ones.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

/// Users whose engines are created and destroyed. Any string is a valid user id.
pub(super) const USERS: [&str; 8] = ["ann", "bob", "..", "provision", "a/b", "🦀 ü", "%70", "?#&=+;"];

/// The placeholder in paths for the id of the product whose policy is replaced.
pub(super) const PRODUCT: &str = "prod_of_the_test";

/// The route's path with its parameters replaced by valid values, or by broken ones unless `valid`.
pub(super) fn path(route: &str, valid: bool) -> BoxedStrategy<String> {
    let segments: Vec<BoxedStrategy<String>> = route
        .split('/')
        .map(|segment| match segment {
            _ if segment.starts_with('{') && !valid => broken_segment().boxed(),
            "{user_id}" => randomly_escaped(select(&USERS[..])).boxed(),
            "{token_id}" => Just("tok_00000000000070008000000000000001".to_owned()).boxed(),
            "{key_id}" => Just("key_00000000000070008000000000000001".to_owned()).boxed(),
            "{webhook_id}" => Just("whk_00000000000070008000000000000001".to_owned()).boxed(),
            "{rollout_id}" => Just("roll_00000000000070008000000000000001".to_owned()).boxed(),
            "{product_id}" => Just(PRODUCT.to_owned()).boxed(),
            "{*path}" => "[a-z/]{0,9}[a-z.~]|%2e%2e/%2E%2e/health|//health//|x%00|:80@host/\\\\\"".boxed(),
            fixed => Just(fixed.to_owned()).boxed(),
        })
        .collect();
    segments.prop_map(|segments| segments.join("/")).boxed()
}

/// Percent-encodes the bytes that require it, and a random choice of the others.
fn randomly_escaped(text: impl Strategy<Value = &'static str>) -> impl Strategy<Value = String> {
    (text, any::<u64>(), any::<bool>()).prop_map(|(text, mask, upper)| {
        let escape = |byte: u8| if upper { format!("%{byte:02X}") } else { format!("%{byte:02x}") };
        let byte = |(at, byte): (usize, u8)| {
            let plain = byte.is_ascii_alphanumeric() || byte == b'.';
            if plain && mask >> (at % 64) & 1 == 0 { char::from(byte).to_string() } else { escape(byte) }
        };
        text.bytes().enumerate().map(byte).collect()
    })
}

/// Percent-encodes every byte.
pub(super) fn escaped(bytes: &[u8]) -> String {
    bytes.iter().flat_map(|byte| ['%', hex_digit(byte >> 4), hex_digit(byte & 15)]).collect()
}

fn hex_digit(value: u8) -> char {
    char::from_digit(u32::from(value), 16).unwrap()
}

fn broken_segment() -> impl Strategy<Value = String> {
    let fixed = [
        "",
        ".",
        "..",
        "%",
        "%2",
        "%zz",
        "%00",
        "%ff",
        "%C0%AF",
        "%ED%A0%80",
        "%0d%0aX-A:b",
        "%2F",
        "%2e%2e%2f",
        "a/b",
        "a//b",
        "ü",
        "\u{1f980}",
        "{user_id}",
        "\"",
        "a;b",
        "a\\b",
        "%25zz",
        "%u0041",
    ];
    prop_oneof![
        4 => select(fixed.to_vec()).prop_map(str::to_owned),
        2 => prop::collection::vec(any::<u8>(), 1..40)
            .prop_map(|bytes| escaped(&bytes)),
        1 => (256..300_usize).prop_map(|length| "x".repeat(length)),
        1 => Just("%F0%9F%A6%80".repeat(1_500)),
    ]
}

/// The query parameters of `route`, with valid values.
fn known_parameters(route: &str) -> &'static [(&'static str, &'static str)] {
    match route {
        "/products/{product_id}" => &[("confirmation", "x")],
        "/fleet/rollouts/{rollout_id}/engines" => &[("state", "moved"), ("limit", "1")],
        "/products" => &[("limit", "1"), ("offset", "9223372036854775807")],
        "/engines" => &[("limit", "1000"), ("offset", "0"), ("status", "running")],
        "/fleet/engines" => &[("limit", "1"), ("status", "running,failed"), ("user_prefix", "a")],
        "/fleet/audit" => &[("limit", "1"), ("event", "stop"), ("user_id", "ann")],
        "/audit" => &[
            ("limit", "%31"),
            ("before", "9223372036854775807"),
            ("event", "rotate_key"),
            ("user_id", "%61nn"),
        ],
        "/events" | "/fleet/events" => &[("after", "0")],
        "/engines/{user_id}/logs" => &[("tail", "10000")],
        _ => &[],
    }
}

/// A query that `route` accepts if `valid`, otherwise one with a broken parameter. Unknown parameters are ignored.
pub(super) fn query(route: &str, valid: bool) -> BoxedStrategy<String> {
    let known = known_parameters(route);
    let ignored = ["x=%zz", "x=%ff&x=%00", "&&", "=", "%6cimi=0", "LIMIT=0", "x[]=1;y={}", "ü=\u{1f980}"];
    let ignored = [&ignored.map(str::to_owned)[..], &[format!("x={}", "y".repeat(20_000))]].concat();
    let mut pairs: Vec<_> = known.iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.extend(ignored);
    let length = pairs.len();
    let valid_query = subsequence(pairs, 0..=length.min(5)).prop_shuffle().prop_map(|pairs| pairs.join("&"));
    if valid || known.is_empty() {
        return valid_query.boxed();
    }
    let values = [
        "",
        "0",
        "-1",
        "NaN",
        "1e3",
        "0x10",
        "99999999999999999999",
        "%00",
        "%ff",
        "%zz",
        "Running",
        "1%201",
        "[]",
        "true",
        "null",
        "9223372036854775808",
        "%F0%9F%A6%80",
    ];
    let broken = (select(known.to_vec()), select(values.to_vec()), any::<bool>());
    let broken = broken.prop_map(|((name, valid), value, twice)| {
        if twice { format!("{name}={valid}&{name}={value}") } else { format!("{name}={value}") }
    });
    let long = select(known.to_vec()).prop_map(|(name, _)| format!("{name}={}", "7".repeat(30_000)));
    prop_oneof![6 => broken, 1 => long].boxed()
}
