//! Tests of loading tools: which are loaded, which are left out, and with which warnings.

use proptest::prelude::*;

use super::*;

fn environment() -> Environment {
    Environment::from_env(&std::collections::BTreeMap::from([
        ("API_HOST".to_owned(), "api.example.com".to_owned()),
        ("API_KEY".to_owned(), "k-1".to_owned()),
    ]))
}

fn catalog(tools: &[(&str, &str)]) -> (Vec<Arc<CatalogTool>>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("tools/bin")).unwrap();
    std::fs::write(folder.path().join("tools/bin/run.py"), "print(1)").unwrap();
    for (name, text) in tools {
        std::fs::write(folder.path().join("tools").join(name), text).unwrap();
    }
    let mut warnings = Vec::new();
    let tools = load(folder.path(), &environment(), &[], &mut warnings);
    for tool in &tools {
        if let ToolImplementation::Command(command) = &tool.implementation {
            for part in command.iter().filter(|part| part.contains("run.py")) {
                assert!(Path::new(part).starts_with(folder.path()), "{part}");
            }
        }
    }
    (tools, warnings)
}

#[test]
fn a_tool_is_read_with_all_it_says() {
    let (tools, warnings) = catalog(&[
        (
            "weather.json",
            r#"{"name": "weather", "description": " Tells the weather. ", "permission": "allow",
                "idempotent": true, "network": false, "command": ["python3", "tools/bin/run.py", "a/b"],
                "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}"#,
        ),
        ("plain_2.json", r#"{"description": "Plain.", "command": ["./tools/bin/run.py"]}"#),
        (
            "send.json",
            r#"{"description": "Sends.", "http": {"url": "https://a.test/x?y=1", "method": "PUT",
                "headers": {"Authorization": "Bearer s3cret"}}}"#,
        ),
        ("notes.txt", "no tool"),
    ]);
    assert_eq!(warnings, [""; 0]);
    let [plain, send, weather] = tools.as_slice() else { panic!("{tools:?}") };
    assert_eq!((weather.name.as_str(), weather.description.as_str()), ("weather", "Tells the weather."));
    assert_eq!((weather.permission, weather.idempotent, weather.network), (Permission::Allow, true, false));
    let ToolImplementation::Command(command) = &weather.implementation else { panic!("{weather:?}") };
    assert_eq!((command[0].as_str(), command[2].as_str(), command.len()), ("python3", "a/b", 3));
    assert_eq!((plain.permission, plain.idempotent, plain.network), (Permission::Ask, false, true));
    assert_eq!(plain.input_schema, json!({"type": "object", "properties": {}}));
    let ToolImplementation::Http(call) = &send.implementation else { panic!("{send:?}") };
    assert_eq!(format!("{call:?}"), "PUT https://a.test");
    assert!(!format!("{send:?}").contains("s3cret"));
}

#[test]
fn a_faulty_tool_is_left_out_and_named() {
    let description = "x".repeat(5_000);
    let long = format!(r#"{{"description": "{description}", "command": ["a"]}}"#);
    let large = format!(r#"{{"description": "x", "command": ["a"]}}{}"#, " ".repeat(300_000));
    let name = format!("{}.json", "n".repeat(65));
    let invalid_field = [
        ("a.json", "{", "not JSON"),
        ("b.json", r#"{"description": "x", "command": "s3cret"}"#, "the wrong type"),
        ("c.json", r#"{"command": ["a"]}"#, "missing field `description`"),
        ("d.json", r#"{"description": " ", "command": ["a"]}"#, "`description`"),
        ("e.json", &long, "`description`"),
        ("f.json", &large, "bytes"),
        ("g.json", r#"{"description": "x"}"#, "either"),
        ("h.json", r#"{"description": "x", "command": ["a"], "http": {"url": "http://a"}}"#, "either"),
        ("i.json", r#"{"description": "x", "command": []}"#, "is empty"),
        ("j.json", r#"{"description": "x", "command": ["tools/bin/none"]}"#, "no file `tools/bin/none`"),
        ("k.json", r#"{"description": "x", "command": ["a"], "netwrok": false}"#, "`netwrok`"),
        ("l.json", r#"{"description": "x", "command": ["a"], "permission": "yes"}"#, "`permission`"),
        ("m.json", r#"{"description": "x", "command": ["a"], "name": "other"}"#, "that of its file"),
        ("n o.json", r#"{"description": "x", "command": ["a"]}"#, "its name"),
        ("shell.json", r#"{"description": "x", "command": ["a"]}"#, "built-in"),
        ("memory_search.json", r#"{"description": "x", "command": ["a"]}"#, "built-in"),
        ("o.json", r#"{"description": "x", "command": ["a"], "input_schema": {"type": "string"}}"#, "object"),
        (
            "p.json",
            r#"{"description": "x", "command": ["a"],
                "input_schema": {"type": "object", "properties": {"a": {"type": "text"}}}}"#,
            "cannot be used",
        ),
        (
            "q.json",
            r#"{"description": "x", "command": ["a"],
                "input_schema": {"type": "object", "$ref": "http://169.254.169.254/x"}}"#,
            "cannot be used",
        ),
        ("r.json", r#"{"description": "x", "http": {"url": "file:///etc/passwd"}}"#, "http://"),
        ("s.json", r#"{"description": "x", "http": {"url": "http://u:s3cret@a"}}"#, "no user"),
        ("t.json", r#"{"description": "x", "http": {"url": "http://a", "method": "TRACE"}}"#, "`method`"),
        (
            "u.json",
            r#"{"description": "x", "http": {"url": "http://a", "headers": {"A": "s3cret\r\nB: c"}}}"#,
            "`A`",
        ),
        (name.as_str(), r#"{"description": "x", "command": ["a"]}"#, "its name"),
    ];
    let mut files: Vec<_> = invalid_field.iter().map(|(name, text, _)| (*name, *text)).collect();
    files.push(("whole.json", r#"{"description": "x", "command": ["a"]}"#));
    let (tools, warnings) = catalog(&files);
    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["whole"]);
    assert_eq!(warnings.len(), invalid_field.len(), "{warnings:#?}");
    for (name, _, why) in invalid_field {
        let warning =
            warnings.iter().find(|warning| warning.starts_with(&format!("tools/{name}: "))).unwrap();
        assert!(warning.contains(why) && !warning.contains("s3cret"), "{warning}");
    }
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("tools/folder.json")).unwrap();
    let pipe = folder.path().join("tools/pipe.json");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let mut warnings = Vec::new();
    assert!(load(folder.path(), &environment(), &[], &mut warnings).is_empty());
    let expected = ["folder", "pipe"]
        .map(|name| format!("tools/{name}.json: it cannot be read: it is not a file; it is left out"));
    assert_eq!(warnings, expected);
}

proptest! {
    #[test]
    fn any_text_is_a_tool_or_a_reason(text in r#"[\[\]{}":,a-z0 \\]{0,80}"#) {
        let _ = parse("a", &text, Path::new("/nowhere"), &Environment::default());
    }

    #[test]
    fn any_values_are_a_tool_or_a_reason(
        description in any::<String>(),
        command in prop::collection::vec(any::<String>(), 0..4),
        url in any::<String>(),
        http in any::<bool>(),
        header in any::<(String, String)>(),
    ) {
        let mut written = json!({"description": description});
        if http {
            written["http"] = json!({"url": url, "headers": {header.0: header.1}});
        } else {
            written["command"] = json!(command);
        }
        if let Ok(tool) = parse("a", &written.to_string(), Path::new("/nowhere"), &Environment::default()) {
            prop_assert!(!tool.description.is_empty());
            if let ToolImplementation::Command(command) = tool.implementation {
                prop_assert!(command.iter().all(|part| !part.contains('\0')));
            }
        }
    }
}

#[test]
fn variables_of_the_environment_are_put_into_addresses_and_headers_as_in_mcp_json() {
    let tool = |url: &str, header: &str| {
        let http = json!({"url": url, "headers": {"authorization": header}});
        parse(
            "a",
            &json!({"description": "A.", "http": http}).to_string(),
            Path::new("/nowhere"),
            &environment(),
        )
    };
    let ToolImplementation::Http(call) =
        tool("https://${API_HOST}/v1", "Bearer ${API_KEY}").unwrap().implementation
    else {
        panic!()
    };
    let expected = BTreeMap::from([("authorization".to_owned(), "Bearer k-1".to_owned())]);
    assert_eq!(call, HttpCall::parse("POST", "https://api.example.com/v1", &expected).unwrap());
    let ToolImplementation::Http(call) = tool("https://${NOWHERE:-localhost}/", "x").unwrap().implementation
    else {
        panic!()
    };
    let expected = BTreeMap::from([("authorization".to_owned(), "x".to_owned())]);
    assert_eq!(call, HttpCall::parse("POST", "https://localhost/", &expected).unwrap());
    let refused = tool("https://localhost/", "Bearer ${OTHER_KEY}").unwrap_err();
    assert!(refused.contains("OTHER_KEY"), "{refused}");
}
