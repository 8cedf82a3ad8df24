use std::fs;

use super::*;

fn load_text(text: &str, before: &Hooks) -> (Hooks, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("hooks")).unwrap();
    fs::write(folder.path().join("hooks/check.py"), "").unwrap();
    fs::write(folder.path().join("hooks.json"), text).unwrap();
    let mut warnings = Vec::new();
    let hooks = load(folder.path(), &Environment::default(), before, &mut warnings);
    (hooks, warnings)
}

#[test]
fn hooks_are_read_in_their_order_with_their_defaults() {
    let (hooks, warnings) = load_text(
        r#"{"hooks": [
            {"name": "guard", "on": "before", "tools": ["write_*", "shell"], "command": ["python3", "hooks/check.py"]},
            {"name": "audit", "on": "after", "tools": ["*"], "url": "https://a.example/${X:-y}",
             "headers": {"X-Key": "k"}, "timeout": "2s", "on_failure": "ignore"},
            {"name": "late", "on": "before", "tools": ["*"], "command": ["true"], "network": false, "timeout": 1.5}
        ]}"#,
        &Hooks::unknown(),
    );
    assert_eq!((warnings, hooks.unreadable), (vec![], false));
    let names = |phase, tool| hooks.for_tool(phase, tool).map(|hook| hook.name.as_str()).collect::<Vec<_>>();
    assert_eq!(names(HookPhase::Before, "write_file"), ["guard", "late"]);
    assert_eq!(names(HookPhase::Before, "read_file"), ["late"]);
    assert_eq!(names(HookPhase::After, "server__tool"), ["audit"]);
    let [guard, audit, late] = hooks.list.as_slice() else { panic!("{hooks:?}") };
    assert_eq!((guard.timeout, guard.refuses_on_failure), (DEFAULT_TIMEOUT, true));
    let HookAction::Command { command, network: true } = &guard.action else { panic!("{guard:?}") };
    assert!(command[1].starts_with('/') && command[1].ends_with("hooks/check.py"), "{command:?}");
    assert_eq!((audit.timeout, audit.refuses_on_failure), (Duration::from_secs(2), false));
    let HookAction::Http(call) = &audit.action else { panic!("{audit:?}") };
    assert_eq!((call.url.as_str(), call.headers.len()), ("https://a.example/y", 1));
    assert_eq!(late.timeout, Duration::from_millis(1_500));
    assert!(!format!("{hooks:?}").contains("\"k\""), "{hooks:?}");
}

#[test]
fn a_faulty_file_leaves_what_was_there_and_is_reported_with_its_reason() {
    let hook =
        |fields: &str| format!(r#"{{"hooks": [{{"name": "a", "on": "before", "tools": ["*"]{fields}}}]}}"#);
    let (good, _) = load_text(&hook(r#", "command": ["true"]"#), &Hooks::unknown());
    assert_eq!(good.list.len(), 1);
    let many = format!(
        r#"{{"hooks": [{}]}}"#,
        (0..65)
            .map(|n| format!(r#"{{"name": "h{n}", "on": "after", "tools": ["*"], "command": ["true"]}}"#))
            .collect::<Vec<_>>()
            .join(",")
    );
    let twice = r#"{"name": "a", "on": "after", "tools": ["*"], "command": ["true"]}"#;
    let cases = [
        (String::new(), "not JSON"),
        ("[]".into(), "wrong type"),
        ("{}".into(), "missing field `hooks`"),
        (hook(""), "either"),
        (hook(r#", "command": ["python3", "hooks/missing.py"]"#), "no file `hooks/missing.py`"),
        (hook(r#", "command": ["true"], "url": "https://a.example""#), "either"),
        (hook(r#", "command": []"#), "empty"),
        (hook(r#", "command": ["hooks/none.py"]"#), "no file"),
        (hook(r#", "command": ["true"], "headers": {"a": "b"}"#), "`headers`"),
        (hook(r#", "url": "https://a.example", "network": true"#), "`network`"),
        (hook(r#", "url": "ftp://a.example""#), "http://"),
        (hook(r#", "url": "https://a.example/${MISSING}""#), "MISSING"),
        (hook(r#", "command": ["true"], "timeout": 0"#), "timeout"),
        (hook(r#", "command": ["true"], "timeout": "61s""#), "timeout"),
        (hook(r#", "command": ["true"], "timeout": "soon""#), "timeout"),
        (hook(r#", "command": ["true"], "on_failure": "shrug""#), "wrong type"),
        (hook(r#", "command": ["true"], "on_fail": "refuse""#), "unknown field"),
        (hook(r#", "command": ["true"]"#).replace("\"*\"", ""), "globs"),
        (hook(r#", "command": ["true"]"#).replace("\"*\"", "\"\""), "bytes"),
        (hook(r#", "command": ["true"]"#).replace("\"a\"", "\"A b\""), "name"),
        (hook(r#", "command": ["true"]"#).replace("before", "during"), "wrong type"),
        (format!("{{\"hooks\": [{twice}, {twice}]}}"), "two hooks"),
        (many, "at most 64"),
    ];
    for (text, why) in cases {
        let (kept, warnings) = load_text(&text, &good);
        // The path of the command is not compared.
        assert_eq!((kept.list.len(), kept.unreadable), (1, false), "{text}");
        assert!(warnings.len() == 1 && warnings[0].contains(why), "{why}: {warnings:?}");
        assert!(warnings[0].ends_with("its last good version stays in use"), "{warnings:?}");
        let (unknown, warnings) = load_text(&text, &Hooks::unknown());
        assert!(unknown.unreadable && unknown.list.is_empty(), "{text}");
        assert!(warnings[0].ends_with("no tool is run until this is fixed"), "{warnings:?}");
    }
}

#[test]
fn without_the_file_there_are_no_hooks() {
    let folder = tempfile::tempdir().unwrap();
    let mut warnings = Vec::new();
    let hooks = load(folder.path(), &Environment::default(), &Hooks::unknown(), &mut warnings);
    assert_eq!((hooks, warnings), (Hooks::default(), vec![]));
}
