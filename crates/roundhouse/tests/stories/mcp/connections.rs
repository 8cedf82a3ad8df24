//! The MCP servers of a catalog, and how they are connected: stdio and HTTP, with API keys and without.

use api::{KeyHash, Timestamp};
use serde_json::{Value, json};

use super::{assert_stored_nowhere, call_tool_in_turn, only_connection, tool_names};
use crate::support::peers::SdkVersion;
use crate::support::{EngineFixture, Peers, StandaloneEngine, eventually, processes};
use crate::tools::is_confined;

const KEY: &str = "a-key-of-the-user-Zx81-that-nobody-else-may-see";

#[tokio::test]
async fn the_servers_of_the_catalog_are_listed() {
    let servers = json!({
        "plain": {"command": "python3", "args": ["server.py"], "description": "Adds numbers."},
        "keyed": {"type": "http", "url": "http://127.0.0.1:9/mcp", "auth": "api_key"},
        "leave": {"type": "http", "url": "https://tools.example/mcp", "auth": "oauth", "description": "Needs leave."},
        "filled": {"type": "http", "url": "${NOT_SET_ANYWHERE:-http://127.0.0.1:9}/mcp"},
        "unfilled": {"type": "http", "url": "${NOT_SET_ANYWHERE}/mcp"},
        "with__two": {"command": "true"},
        "neither": {"description": "Cannot be spoken to."},
    });
    let fixture = EngineFixture::with_servers(servers).await;
    let server = |name: &str, description: &str, transport: &str, auth: &str| {
        json!({
            "name": name, "description": description, "transport": transport, "auth": auth, "connected": false,
        })
    };
    let expected = [
        server("filled", "", "http", "none"),
        server("keyed", "", "http", "api_key"),
        server("leave", "Needs leave.", "http", "oauth"),
        server("plain", "Adds numbers.", "stdio", "none"),
    ];
    assert_eq!(fixture.engine.servers().await, expected, "faulty entries are left out");
    assert_eq!(fixture.engine.connections().await, [Value::Null; 0]);
    let log = fixture.program.output();
    assert!(log.contains("NOT_SET_ANYWHERE") && log.contains("with__two"), "the log says why: {log}");
    let answer = fixture.engine.connect(&json!({"server": "unfilled"})).await;
    answer.assert_error(404, "SERVER_NOT_FOUND");
}

#[tokio::test]
async fn a_program_is_connected_and_its_tools_are_the_agents() {
    let Some(peers) = Peers::installed() else { return };
    let servers = |setup: &StandaloneEngine| json!({"peer": peers.stdio_entry(setup, SdkVersion::Newest, &["server.py"])});
    let fixture = EngineFixture::with_servers_and_setup(servers, |setup| setup).await;
    fixture
        .engine
        .call_tool("peer__add", json!({"a": 2, "b": 3}))
        .await
        .assert_flat_error(404, "METHOD_NOT_FOUND");
    let started = || {
        processes::with_command_line_text("server.py".as_ref())
            .into_iter()
            .filter(|pid| is_running_in(&fixture, *pid))
    };
    assert_eq!(started().count(), 0, "nothing runs before it is used");

    let id = fixture.engine.connect_server("peer").await;
    let listed = only_connection(&fixture.engine).await;
    assert_eq!((&listed["connection"], &listed["server"]), (&json!(id), &json!("peer")));
    assert_eq!((&listed["status"], listed.get("error")), (&json!("connected"), None));
    assert!(listed["created_at"].as_str().unwrap().parse::<Timestamp>().is_ok());
    for tool in ["add", "echo", "look_up"] {
        assert!(tool_names(&listed).contains(&tool), "no {tool} in {listed}");
    }
    assert_eq!(fixture.engine.servers().await[0]["connected"], true);
    assert_eq!(
        call_tool_in_turn(&fixture, "task", "peer__add", json!({"a": 2, "b": 3})).await.unwrap().trim(),
        "5"
    );
    assert_eq!(started().count(), 1, "one child for all calls");

    // Connecting again returns the same connection and starts no second child.
    assert_eq!(fixture.engine.connect_server("peer").await, id);
    assert_eq!(only_connection(&fixture.engine).await["created_at"], listed["created_at"]);
    assert_eq!(fixture.engine.tool_output("peer__echo", json!({"text": "hello"})).await, "hello");
    assert_eq!(started().count(), 1);

    fixture.engine.disconnect(&id).await.assert_ok("status:text");
    fixture.engine.disconnect(&id).await.assert_error(404, "CONNECTION_NOT_FOUND");
    assert_eq!(fixture.engine.connections().await, [Value::Null; 0]);
    assert_eq!(fixture.engine.servers().await[0]["connected"], false);
    fixture
        .engine
        .call_tool("peer__echo", json!({"text": "hello"}))
        .await
        .assert_flat_error(404, "METHOD_NOT_FOUND");
    eventually("the child process ends with its connection", async || (started().count() == 0).then_some(()))
        .await;
}

/// Whether a process was started from the test folder of an engine.
fn is_running_in(fixture: &EngineFixture, pid: rustix::process::Pid) -> bool {
    processes::with_command_line_text(fixture.setup.test_env.path().as_os_str()).contains(&pid)
}

#[tokio::test]
async fn a_program_runs_in_the_workspace_with_a_clean_environment() {
    let Some(peers) = Peers::installed() else { return };
    let servers = |setup: &StandaloneEngine| {
        let mut entry = peers.stdio_entry(setup, SdkVersion::Newest, &["server.py"]);
        entry["env"]["GREETING"] = json!("${FROM_OUTSIDE:-hello}");
        json!({"peer": entry})
    };
    let fixture =
        EngineFixture::with_servers_and_setup(servers, |setup| setup.with_env("UNRELATED_SECRET", "x")).await;
    fixture.engine.connect_server("peer").await;
    let surroundings = fixture.engine.tool_output("peer__surroundings", json!({})).await;
    let surroundings: Value = serde_json::from_str(&surroundings).unwrap();
    assert_eq!(surroundings["folder"], fixture.setup.workspace().to_str().unwrap());
    assert_eq!(surroundings["environment"]["GREETING"], hash("hello"));
    for name in ["UNRELATED_SECRET", "LLM_API_KEY", "AD_ENCRYPTION_KEY", "ENGINE_KEY_HASH"] {
        assert_eq!(surroundings["environment"].get(name), None, "{name} is in its environment");
    }
}

#[tokio::test]
async fn a_program_reaches_what_others_on_the_leash_reach() {
    let Some(peers) = Peers::installed() else { return };
    let servers = |setup: &StandaloneEngine| {
        let with_network = peers.stdio_entry(setup, SdkVersion::Newest, &["server.py"]);
        let mut without_network = with_network.clone();
        without_network["network"] = json!(false);
        json!({"open": with_network, "shut": without_network})
    };
    let fixture = EngineFixture::with_servers_and_setup(servers, |setup| setup).await;
    if !is_confined(&fixture).await {
        return;
    }
    fixture.engine.connect_server("open").await;
    fixture.engine.connect_server("shut").await;
    let brain = fixture.setup.brain();
    for path in [brain.to_str().unwrap(), "/etc/shadow", "/proc/1/environ"] {
        let output = fixture.engine.tool_output("open__read", json!({"path": path})).await;
        assert!(output.starts_with("no: "), "{path}: {output}");
    }
    fixture.engine.tool_output("write_file", json!({"path": "notes.txt", "content": "Kept."})).await;
    let output = fixture.engine.tool_output("open__read", json!({"path": "notes.txt"})).await;
    assert_eq!(output, "5 bytes");
    let engine = json!({"host": "127.0.0.1", "port": fixture.setup.test_env.ports.first()});
    assert_eq!(fixture.engine.tool_output("open__visit", engine.clone()).await, "connected");
    let output = fixture.engine.tool_output("shut__visit", engine).await;
    assert!(output.starts_with("no: "), "{output}");
}

fn hash(text: &str) -> String {
    KeyHash::of(text).to_hex()
}

#[tokio::test]
async fn a_key_goes_where_the_catalog_says_and_is_kept_sealed() {
    let Some(peers) = Peers::installed() else { return };
    let server = peers.start_http(&["--key", KEY]).await;
    let servers = |setup: &StandaloneEngine| {
        let mut named = server.mcp_entry("api_key");
        named["api_key_header"] = json!("X-Api-Key");
        let mut program = peers.stdio_entry(setup, SdkVersion::Newest, &["server.py"]);
        program["auth"] = json!("api_key");
        program["api_key_env"] = json!("SERVICE_KEY");
        json!({"bearer": server.mcp_entry("api_key"), "named": named, "program": program})
    };
    let fixture =
        EngineFixture::with_servers_and_setup(servers, |setup| setup.with_env("ENGINE_LOG_LEVEL", "debug"))
            .await;
    let credentials = json!({"api_key": KEY});
    for name in ["bearer", "named", "program"] {
        fixture.engine.connect_server_with(&json!({"server": name, "credentials": credentials})).await;
    }
    let sent_as =
        [("bearer", "authorization", format!("Bearer {KEY}")), ("named", "x-api-key", KEY.to_owned())];
    for (name, header, value) in sent_as {
        let output = fixture.engine.tool_output(&format!("{name}__credential"), json!({})).await;
        assert_eq!(output, format!("{header} {}", hash(&value)));
    }
    let surroundings = fixture.engine.tool_output("program__surroundings", json!({})).await;
    assert!(surroundings.contains(&format!("\"SERVICE_KEY\": \"{}\"", hash(KEY))), "{surroundings}");
    assert_eq!(
        call_tool_in_turn(&fixture, "task", "bearer__add", json!({"a": 1, "b": 1})).await.unwrap().trim(),
        "2"
    );
    assert_stored_nowhere(&fixture, "the key", KEY, &[]);

    // After a restart the key is still known, and still stored nowhere in plain text.
    let fixture = fixture.stop_and_start().await;
    assert_eq!(fixture.engine.connections().await.len(), 3);
    for name in ["bearer", "named"] {
        fixture.engine.tool_output(&format!("{name}__add"), json!({"a": 1, "b": 1})).await;
    }
    assert_stored_nowhere(&fixture, "the key", KEY, &[]);
}

#[tokio::test]
async fn a_key_that_is_missing_or_wrong_connects_nothing() {
    let Some(peers) = Peers::installed() else { return };
    let server = peers.start_http(&["--key", KEY]).await;
    let plain = peers.start_http(&[]).await;
    let servers = json!({"keyed": server.mcp_entry("api_key"), "plain": plain.mcp_entry("none")});
    let fixture = EngineFixture::with_servers(servers).await;
    let connect = async |body: Value| fixture.engine.connect(&body).await;
    connect(json!({"server": "keyed"})).await.assert_error(400, "INVALID_REQUEST");
    connect(json!({"server": "keyed", "credentials": {}})).await.assert_error(400, "INVALID_REQUEST");
    connect(json!({"server": "keyed", "credentials": {"api_key": ""}}))
        .await
        .assert_error(400, "INVALID_REQUEST");
    let wrong = json!({"server": "keyed", "credentials": {"api_key": "another-key-Qy77-that-is-wrong"}});
    let answer = connect(wrong).await;
    let message = answer.assert_error(502, "SERVER_FAILED");
    assert!(message.contains("keyed"), "it names the server: {message}");
    assert!(!message.contains("Qy77"), "{message}");
    connect(json!({"server": "nobody"})).await.assert_error(404, "SERVER_NOT_FOUND");
    connect(json!({})).await.assert_error(400, "INVALID_REQUEST");
    connect(json!({"server": 7})).await.assert_error(400, "INVALID_REQUEST");
    assert!(fixture.engine.servers().await.iter().all(|server| server["connected"] == false));
    assert_stored_nowhere(&fixture, "the wrong key", "Qy77", &[]);
    fixture.engine.disconnect("conn_0").await.assert_error(404, "CONNECTION_NOT_FOUND");
    let unauthorized = fixture.engine.with_key("sk-svc-a-stranger");
    for answer in [
        unauthorized.get("/assets/servers").await,
        unauthorized.get("/assets/connections").await,
        unauthorized.connect(&json!({"server": "plain"})).await,
        unauthorized.post("/assets/callback", &json!({})).await,
        unauthorized.get("/assets/oauth/callback?code=x&state=y").await,
        unauthorized.disconnect("conn_0").await,
    ] {
        answer.assert_error(401, "INVALID_ENGINE_KEY");
    }
}

#[tokio::test]
async fn without_a_key_to_seal_under_no_credentials_are_taken_and_all_is_well() {
    let Some(peers) = Peers::installed() else { return };
    let (keyed, plain) = (peers.start_http(&["--key", KEY]).await, peers.start_http(&[]).await);
    let servers = json!({
        "keyed": keyed.mcp_entry("api_key"), "leave": keyed.mcp_entry("oauth"), "plain": plain.mcp_entry("none"),
    });
    let without_encryption_key = |setup: StandaloneEngine| setup.with_env("AD_ENCRYPTION_KEY", "");
    let fixture = EngineFixture::with_servers_and_setup(|_| servers, without_encryption_key).await;
    let health = fixture.engine.get("/health").await.body;
    assert_eq!((&health["status"], &health["subsystems"]["asset_directory"]), (&json!("ok"), &json!("ok")));
    let body = json!({"server": "keyed", "credentials": {"api_key": KEY}});
    let answer = fixture.engine.connect(&body).await;
    let message = answer.assert_error(503, "ASSETS_NOT_CONFIGURED");
    assert!(message.contains("AD_ENCRYPTION_KEY"), "it says what to set: {message}");
    fixture.engine.connect(&json!({"server": "leave"})).await.assert_error(503, "ASSETS_NOT_CONFIGURED");
    assert_eq!(fixture.engine.connections().await, [Value::Null; 0]);
    // A server that needs no credentials can still be connected.
    fixture.engine.connect_server("plain").await;
    assert_eq!(fixture.engine.tool_output("plain__echo", json!({"text": "hello"})).await, "hello");
}

#[tokio::test]
async fn connections_outlive_the_engine() {
    let Some(peers) = Peers::installed() else { return };
    let server = peers.start_http(&[]).await;
    let servers = |setup: &StandaloneEngine| json!({"far": server.mcp_entry("none"), "near": peers.stdio_entry(setup, SdkVersion::Newest, &["server.py"])});
    let fixture = EngineFixture::with_servers_and_setup(servers, |setup| setup).await;
    fixture.engine.connect_server("far").await;
    fixture.engine.connect_server("near").await;
    let before = fixture.engine.connections().await;
    let mut fixture = fixture.kill_and_start().await;
    for _ in 0..2 {
        assert_eq!(fixture.engine.connections().await, before);
        let children = || {
            processes::with_command_line_text("server.py".as_ref())
                .into_iter()
                .filter(|pid| is_running_in(&fixture, *pid))
        };
        assert_eq!(children().count(), 0, "a connection costs nothing until it is used");
        assert_eq!(
            call_tool_in_turn(&fixture, "task", "near__add", json!({"a": 2, "b": 3})).await.unwrap().trim(),
            "5"
        );
        assert_eq!(fixture.engine.tool_output("far__add", json!({"a": 2, "b": 3})).await.trim(), "5");
        fixture = fixture.stop_and_start().await;
    }
}
