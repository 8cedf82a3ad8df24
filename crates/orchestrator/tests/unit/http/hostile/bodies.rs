//! Strategies for request bodies: valid ones, with unknown members where these must be ignored, and broken ones.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::Value;

use super::paths::USERS;

/// The members of an object: name, and value as JSON text.
type Members = Vec<(String, String)>;

/// A body that the route accepts if `valid`; otherwise one that is broken, though perhaps not for this route.
pub(super) fn body(path: &str, valid: bool) -> BoxedStrategy<Vec<u8>> {
    let members = match path {
        "/products/register" => registration(),
        "/products/{product_id}/policy" => policy().prop_map(|policy| vec![policy]).boxed(),
        "/products/{product_id}/keys" => {
            Just(vec![("old_keys_expire_in_s".to_owned(), "31536000".to_owned())]).boxed()
        }
        "/engines/provision" => provision(),
        "/engines/{user_id}/admit" => admit(),
        "/engines/{user_id}/tokens" => Just(vec![("scopes".to_owned(), r#"["chat"]"#.to_owned())]).boxed(),
        "/origins" => Just(vec![("origins".to_owned(), r#"["https://app.example"]"#.to_owned())]).boxed(),
        "/engines/{user_id}/version" => select(&["default", "svc-engine:0.99.0"][..])
            .prop_map(|to| vec![member("engine_version", to)])
            .boxed(),
        "/webhooks" => Just(vec![
            member("url", "https://product.invalid/x"),
            ("events".to_owned(), r#"["start"]"#.to_owned()),
        ])
        .boxed(),
        "/webhooks/{webhook_id}" => Just(vec![("paused".to_owned(), "true".to_owned())]).boxed(),
        "/webhooks/{webhook_id}/replay" => Just(vec![("after".to_owned(), "0".to_owned())]).boxed(),
        "/webhooks/{webhook_id}/dead-letters/retry" | "/webhooks/{webhook_id}/dead-letters/discard" => {
            Just(vec![("rows".to_owned(), "[1, 2]".to_owned())]).boxed()
        }
        "/fleet/log-filter" | "/engines/{user_id}/log-filter" => {
            Just(vec![member("filter", "info"), member("for_s", 1)]).boxed()
        }
        "/fleet/rollouts" => {
            Just(vec![member("engine_version", "svc-engine:0.99.0"), member("bake_s", 0)]).boxed()
        }
        "/fleet/rollouts/{rollout_id}/rollback" => Just(vec![member("discard_new_turns", true)]).boxed(),
        "/fleet/start-failed" => Just(vec![("limit".to_owned(), "3".to_owned())]).boxed(),
        "/fleet/drift/repair" => Just(vec![("dry_run".to_owned(), "false".to_owned())]).boxed(),
        "/fleet/backups" => Just(vec![member("action", "verify")]).boxed(),
        "/admin/versions/move" => {
            let (from, to) = (member("from", "svc-engine:0.0.1"), member("engine_version", "default"));
            Just(vec![from, to]).boxed()
        }
        // The other routes do not read it.
        _ => return prop_oneof![9 => any::<Vec<u8>>(), 1 => Just(oversized())].boxed(),
    };
    let contract = [
        "/products/register",
        "/products/{product_id}/policy",
        "/engines/provision",
        "/engines/{user_id}/admit",
    ];
    if valid && contract.contains(&path) {
        members.prop_flat_map(with_unknown_members).boxed()
    } else if valid {
        members.prop_map(|members| object_text(&members).into_bytes()).boxed()
    } else {
        members.prop_flat_map(|members| broken(&members)).boxed()
    }
}

fn member(name: &str, value: impl Into<Value>) -> (String, String) {
    (name.to_owned(), value.into().to_string())
}

fn registration() -> BoxedStrategy<Members> {
    let name = prop::collection::vec(any::<char>(), 1..200)
        .prop_map(String::from_iter)
        .prop_filter("not blank", |name: &String| !name.trim().is_empty() && !name.contains('\0'));
    ("[a-z0-9][a-z0-9-]{8,40}[a-z0-9]", name, policy())
        .prop_map(|(slug, name, policy)| vec![member("slug", slug), member("display_name", name), policy])
        .boxed()
}

fn policy() -> impl Strategy<Value = (String, String)> {
    let fields = [
        r#""max_engines":0"#,
        r#""rate_limit_rpm":18446744073709551615"#,
        r#""suspended":true"#,
        r#""allowed_engine_versions":[]"#,
        r#""idle_sleep_threshold_s":0.001"#,
        r#""oauth_redirect_base_url":null"#,
        r#""engine_memory_mb":9223372036854775807"#,
        r#""engine_cpus":0.01"#,
        r#""engine_pids":16"#,
    ];
    let fields = prop::sample::subsequence(fields.to_vec(), 0..=9).prop_shuffle();
    fields.prop_map(|fields| ("policy".to_owned(), format!("{{{}}}", fields.join(","))))
}

fn provision() -> BoxedStrategy<Members> {
    (select(&USERS), any::<bool>())
        .prop_map(|(user, pinned)| {
            let mut members = vec![member("user_id", user)];
            if pinned {
                members.push(("engine_version".to_owned(), "null".to_owned()));
            }
            members
        })
        .boxed()
}

fn admit() -> BoxedStrategy<Members> {
    let flag = |name| prop::option::of(any::<bool>()).prop_map(move |flag| member(name, flag));
    let flags = (flag("auto_provision"), flag("auto_wake"));
    flags.prop_map(|(provision, wake)| vec![provision, wake]).boxed()
}

fn object_text(members: &Members) -> String {
    let members = members.iter().map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

/// The members mixed with unknown ones, in any order, as an object with whitespace around it.
fn with_unknown_members(members: Members) -> impl Strategy<Value = Vec<u8>> {
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let unknown = [
        ("colour", "\"red\""),
        ("colour", "1e400"),
        ("colour", "-99999999999999999999999999"),
        ("", r#""\ud800""#),
        ("a\0b", r#"{"":{"":[null,{}]}}"#),
        ("🦀", "\"\u{7f}\u{202e}\""),
        ("deep", &deep),
    ];
    let unknown: Members = unknown.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let members = prop::sample::subsequence(unknown, 0..=3)
        .prop_map(move |unknown| [members.clone(), unknown].concat())
        .prop_shuffle();
    (members, select(&["", " ", "\r\n\t", "          "][..]))
        .prop_map(|(members, space)| format!("{space}{}{space}", object_text(&members)).into_bytes())
}

/// A JSON or non-JSON value that is wrong for most members.
fn junk() -> impl Strategy<Value = String> {
    let fixed = [
        "NaN",
        "-Infinity",
        "nul",
        "null",
        "true",
        "-1",
        "1.5",
        "1e999",
        "01",
        "0x10",
        "99999999999999999999",
        "18446744073709551616",
        "\"\"",
        r#""\u0000""#,
        r#""\ud800""#,
        r#""\udc00\ud800""#,
        "\"a\nb\"",
        "'a'",
        "\"svc-engine:latest\"",
        "\"../../etc/passwd\"",
        "[]",
        "{}",
        r#"{"max_engine":1}"#,
        r#"{"max_engines":1,"max_engines":2}"#,
        r#"{"suspended":"yes","engine_cpus":-0.0}"#,
        r#"{"allowed_engine_versions":["^1.2",7,"latest"]}"#,
    ];
    prop_oneof![
        12 => select(fixed.to_vec()).prop_map(str::to_owned),
        2 => any::<String>().prop_map(|text| Value::from(text).to_string()),
        1 => Just(format!("{}{}", "[".repeat(1_000), "]".repeat(1_000))),
        1 => Just(r#"{"a":"#.repeat(1_000)),
        1 => Just(format!("\"{}\"", "x".repeat(65_536))),
    ]
}

/// A body above the size limit.
fn oversized() -> Vec<u8> {
    format!("{{\"colour\":\"{}\"}}", "x".repeat(1024 * 1024)).into_bytes()
}

/// Bytes that are invalid anywhere in JSON, or at most positions.
const STRAY_BYTES: [&[u8]; 8] =
    [b"\xff", b"\0", b"\xc0\xaf", b"\xed\xa0\x80", b"\"", b"{", b"\\u", b"\xef\xbb\xbf"];

fn broken(members: &Members) -> impl Strategy<Value = Vec<u8>> + use<> {
    let (to_replace, to_shorten, to_repeat) = (members.clone(), members.clone(), members.clone());
    let complete = object_text(members).into_bytes();
    let (to_truncate, to_corrupt, to_wrap) = (complete.clone(), complete.clone(), complete);
    prop_oneof![
        6 => (any::<Index>(), junk()).prop_map(move |(at, junk)| {
            let mut members = to_replace.clone();
            let at = at.index(members.len());
            members[at].1 = junk;
            object_text(&members).into_bytes()
        }),
        1 => any::<Index>().prop_map(move |at| {
            let mut members = to_shorten.clone();
            members.remove(at.index(members.len()));
            object_text(&members).into_bytes()
        }),
        2 => (any::<Index>(), junk()).prop_map(move |(at, junk)| {
            let mut members = to_repeat.clone();
            let name = members[at.index(members.len())].0.clone();
            members.push((name, junk));
            object_text(&members).into_bytes()
        }),
        2 => any::<Index>().prop_map(move |at| to_truncate[..at.index(to_truncate.len())].to_vec()),
        2 => (any::<Index>(), select(&STRAY_BYTES[..])).prop_map(move |(at, bytes)| {
            let at = at.index(to_corrupt.len());
            [&to_corrupt[..at], bytes, &to_corrupt[at..]].concat()
        }),
        1 => Just([&b"["[..], &to_wrap, b"]"].concat()),
        1 => Just([&to_wrap[..], &to_wrap].concat()),
        1 => Just("[".repeat(100_000).into_bytes()),
        1 => Just(oversized()),
        2 => any::<Vec<u8>>(),
    ]
}
