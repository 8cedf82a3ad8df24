//! Tests of the servers in `mcp.json`.

use serde_json::json;

use super::*;

fn environment() -> Environment {
    let env = [("TOKEN", "t0p"), ("EMPTY", ""), ("HOST", "tools.example")];
    Environment::from_env(&BTreeMap::from(env.map(|(name, value)| (name.to_owned(), value.to_owned()))))
}

fn read_text(text: &str, before: &[Arc<McpServerSpec>]) -> (Vec<Arc<McpServerSpec>>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mcp.json");
    std::fs::write(&file, text).unwrap();
    let mut warnings = Vec::new();
    let servers = load(&file, &environment(), before, &mut warnings);
    (servers, warnings)
}

fn one(entry: Value) -> Result<McpServerSpec, String> {
    parse_server("files", entry, &environment(), Path::new("/nowhere"))
}

#[test]
fn servers_are_programs_or_addresses() {
    let program = one(json!({
        "command": "python3", "args": ["-m", "files", "${TOKEN}"], "env": {"A": "${EMPTY:-b}"}, "network": false,
        "timeout": "90s", "trust_annotations": true, "description": " Files. ",
    }))
    .unwrap();
    let Transport::Stdio { command, env, network } = &program.transport else { panic!("{program:?}") };
    assert_eq!(command.iter().map(Secret::expose).collect::<Vec<_>>(), ["python3", "-m", "files", "t0p"]);
    assert_eq!((env["A"].expose(), *network), ("b", false));
    assert_eq!((program.timeout, program.trust_annotations), (Duration::from_secs(90), true));
    assert_eq!((program.description.as_str(), &program.auth), ("Files.", &Auth::None));
    assert!(!format!("{program:?}").contains("t0p"));

    let address = one(json!({
        "type": "http", "url": "https://${HOST}/mcp", "headers": {"X-Team": "${TOKEN}"}, "auth": "oauth",
        "scopes": ["read"], "client_id": "me", "client_secret": "${TOKEN}", "issuer": "https://a.example",
    }))
    .unwrap();
    let Transport::Http { url, headers } = &address.transport else { panic!("{address:?}") };
    assert_eq!((url.as_str(), headers["x-team"].to_str().unwrap()), ("https://tools.example/mcp", "t0p"));
    let Auth::OAuth { scopes, client: Some(client) } = &address.auth else { panic!("{address:?}") };
    assert_eq!((scopes.as_slice(), client.id.as_str()), (["read".to_owned()].as_slice(), "me"));
    assert!(!format!("{address:?}").contains("t0p"));

    let key = |settings: Value| {
        let mut entry = json!({"type": "http", "url": "http://localhost:1/", "auth": "api_key"});
        entry.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        one(entry).map(|server| server.auth)
    };
    assert_eq!(key(json!({})), Ok(Auth::ApiKey(ApiKeyLocation::Bearer)));
    let header = ApiKeyLocation::Header(HeaderName::from_static("x-api-key"));
    assert_eq!(key(json!({"api_key_header": "X-Api-Key"})), Ok(Auth::ApiKey(header)));
}

#[test]
fn what_is_wrong_is_named_and_holds_no_value() {
    for (entry, reason) in [
        (json!({"command": "x", "env": {"A": "${MISSING}"}}), "no variable `MISSING`"),
        (json!({"command": "x", "args": ["${TOKEN"]}), "has no `}`"),
        (json!({"command": "x", "args": ["${TO KEN}"]}), "names no variable"),
        (json!({"command": "x", "url": "http://a/"}), "either a `command`"),
        (json!({}), "either a `command`"),
        (json!({"type": "carrier-pigeon", "url": "http://a/"}), "`type` must be"),
        (json!({"type": "http", "url": "ftp://a/"}), "`url` must be"),
        (json!({"type": "http", "url": "http://u:t0p@a/"}), "no user and password"),
        (json!({"type": "http", "url": "http://a/", "env": {}, "network": true}), "are for programs"),
        (json!({"type": "http", "url": "http://a/", "headers": {"a b": "t0p"}}), "not a valid header name"),
        (json!({"type": "http", "url": "http://a/", "headers": {"a": "t0p\n"}}), "cannot be sent"),
        (json!({"type": "http", "url": "http://a/", "auth": "magic"}), "`auth` must be"),
        (json!({"type": "http", "url": "http://a/", "scopes": ["a"]}), "need `auth`"),
        (
            json!({"type": "http", "url": "http://a/", "auth": "api_key", "api_key_env": "K"}),
            "is for programs",
        ),
        (json!({"command": "x", "auth": "api_key"}), "needs `api_key_env`"),
        (json!({"command": "x", "auth": "oauth"}), "cannot have `auth`"),
        (json!({"command": "x", "timeout": 0}), "`timeout` must be"),
        (json!({"command": "x", "timeout": "1d"}), "`timeout` must be"),
        (json!({"command": "x", "tiemout": 1}), "unknown field `tiemout`"),
        (json!({"command": 7}), "the wrong type"),
    ] {
        let refusal = one(entry.clone()).unwrap_err();
        assert!(refusal.contains(reason), "{entry}: {refusal}");
        assert!(!refusal.contains("t0p"), "{refusal}");
    }
    for name in ["", "a__b", "a.b", "a_", &"a".repeat(33)] {
        assert!(
            parse_server(name, json!({"command": "x"}), &environment(), Path::new("/nowhere")).is_err(),
            "{name}"
        );
    }
}

#[test]
fn a_faulty_server_keeps_its_last_good_version_and_stops_no_other() {
    let (good, warnings) = read_text(
        r#"{"mcpServers": {"b": {"command": "x"}, "a": {"type": "http", "url": "http://a/"}}}"#,
        &[],
    );
    assert_eq!(good.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(warnings, [""; 0]);

    let (again, warnings) = read_text(
        r#"{"mcpServers": {"a": {"type": "http", "url": "nowhere"}, "c": {"command": ""}}}"#,
        &good,
    );
    assert_eq!(again, good[..1]);
    assert_eq!(warnings.len(), 2);
    assert!(warnings[0].contains("\"a\"") && warnings[0].contains("last good version"), "{warnings:?}");
    assert!(warnings[1].contains("\"c\"") && warnings[1].contains("left out"), "{warnings:?}");

    let (unread, warnings) = read_text("{", &good);
    assert_eq!((unread, warnings.len()), (good, 1));
}

#[test]
fn paths_of_the_catalogs_own_files_are_absolute() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("servers")).unwrap();
    std::fs::write(folder.path().join("servers/own.py"), "").unwrap();
    let entry = json!({"command": "python3", "args": ["servers/own.py", "servers/other.py", "own.py"]});
    let spec = parse_server("files", entry, &environment(), folder.path()).unwrap();
    let Transport::Stdio { command, .. } = spec.transport else { panic!("it is a program") };
    let own = folder.path().join("servers/own.py");
    let expected = ["python3", own.to_str().unwrap(), "servers/other.py", "own.py"];
    assert_eq!(command.iter().map(Secret::expose).collect::<Vec<_>>(), expected);
}
