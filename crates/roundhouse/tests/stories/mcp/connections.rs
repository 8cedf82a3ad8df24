//! Which servers there are, and what it takes to connect them.

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
    let rig = EngineFixture::with_servers(servers).await;
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
    assert_eq!(rig.engine.servers().await, expected, "faulty ones are left out");
    assert_eq!(rig.engine.connections().await, [Value::Null; 0]);
    let log = rig.program.output();
    assert!(log.contains("NOT_SET_ANYWHERE") && log.contains("with__two"), "the log says why: {log}");
    let answer = rig.engine.connect(&json!({"server": "unfilled"})).await;
    answer.assert_error(404, "SERVER_NOT_FOUND");
}

#[tokio::test]
async fn a_program_is_connected_and_its_tools_are_the_agents() {
    let Some(peers) = Peers::installed() else { return };
    let servers = |place: &StandaloneEngine| json!({"peer": peers.stdio_entry(place, SdkVersion::Newest, &["server.py"])});
    let rig = EngineFixture::with_servers_and_setup(servers, |place| place).await;
    rig.engine
        .call_tool("peer__add", json!({"a": 2, "b": 3}))
        .await
        .assert_flat_error(404, "METHOD_NOT_FOUND");
    let started = || {
        processes::with_command_line_text("server.py".as_ref())
            .into_iter()
            .filter(|pid| is_running_in(&rig, *pid))
    };
    assert_eq!(started().count(), 0, "nothing runs before it is used");

    let id = rig.engine.connect_server("peer").await;
    let listed = only_connection(&rig.engine).await;
    assert_eq!((&listed["connection"], &listed["server"]), (&json!(id), &json!("peer")));
    assert_eq!((&listed["status"], listed.get("error")), (&json!("connected"), None));
    assert!(listed["created_at"].as_str().unwrap().parse::<Timestamp>().is_ok());
    for tool in ["add", "echo", "look_up"] {
        assert!(tool_names(&listed).contains(&tool), "no {tool} in {listed}");
    }
    assert_eq!(rig.engine.servers().await[0]["connected"], true);
    assert_eq!(
        call_tool_in_turn(&rig, "task", "peer__add", json!({"a": 2, "b": 3})).await.unwrap().trim(),
        "5"
    );
    assert_eq!(started().count(), 1, "one child for all calls");

    // Once more: the same connection, and one child.
    assert_eq!(rig.engine.connect_server("peer").await, id);
    assert_eq!(only_connection(&rig.engine).await["created_at"], listed["created_at"]);
    assert_eq!(rig.engine.tool_output("peer__echo", json!({"text": "hello"})).await, "hello");
    assert_eq!(started().count(), 1);

    rig.engine.disconnect(&id).await.assert_ok("status:text");
    rig.engine.disconnect(&id).await.assert_error(404, "CONNECTION_NOT_FOUND");
    assert_eq!(rig.engine.connections().await, [Value::Null; 0]);
    assert_eq!(rig.engine.servers().await[0]["connected"], false);
    rig.engine
        .call_tool("peer__echo", json!({"text": "hello"}))
        .await
        .assert_flat_error(404, "METHOD_NOT_FOUND");
    eventually("the child ends with its connection", async || (started().count() == 0).then_some(())).await;
}

/// Whether a process runs in an engine's catalog.
fn is_running_in(rig: &EngineFixture, pid: rustix::process::Pid) -> bool {
    processes::with_command_line_text(rig.setup.test_env.path().as_os_str()).contains(&pid)
}

#[tokio::test]
async fn a_program_runs_in_the_workspace_with_a_clean_environment() {
    let Some(peers) = Peers::installed() else { return };
    let servers = |place: &StandaloneEngine| {
        let mut entry = peers.stdio_entry(place, SdkVersion::Newest, &["server.py"]);
        entry["env"]["GREETING"] = json!("${FROM_OUTSIDE:-hello}");
        json!({"peer": entry})
    };
    let rig =
        EngineFixture::with_servers_and_setup(servers, |place| place.with_env("UNRELATED_SECRET", "x")).await;
    rig.engine.connect_server("peer").await;
    let told = rig.engine.tool_output("peer__surroundings", json!({})).await;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["folder"], rig.setup.workspace().to_str().unwrap());
    assert_eq!(told["environment"]["GREETING"], hash("hello"));
    for name in ["UNRELATED_SECRET", "LLM_API_KEY", "AD_ENCRYPTION_KEY", "ENGINE_KEY_HASH"] {
        assert_eq!(told["environment"].get(name), None, "{name} is in its environment");
    }
}

#[tokio::test]
async fn a_program_reaches_what_others_on_the_leash_reach() {
    let Some(peers) = Peers::installed() else { return };
    let servers = |place: &StandaloneEngine| {
        let open = peers.stdio_entry(place, SdkVersion::Newest, &["server.py"]);
        let mut measure_shutdown = open.clone();
        measure_shutdown["network"] = json!(false);
        json!({"open": open, "shut": measure_shutdown})
    };
    let rig = EngineFixture::with_servers_and_setup(servers, |place| place).await;
    if !is_confined(&rig).await {
        return;
    }
    rig.engine.connect_server("open").await;
    rig.engine.connect_server("shut").await;
    let brain = rig.setup.brain();
    for path in [brain.to_str().unwrap(), "/etc/shadow", "/proc/1/environ"] {
        let said = rig.engine.tool_output("open__read", json!({"path": path})).await;
        assert!(said.starts_with("no: "), "{path}: {said}");
    }
    rig.engine.tool_output("write_file", json!({"path": "notes.txt", "content": "Kept."})).await;
    let said = rig.engine.tool_output("open__read", json!({"path": "notes.txt"})).await;
    assert_eq!(said, "5 bytes");
    let engine = json!({"host": "127.0.0.1", "port": rig.setup.test_env.ports.first()});
    assert_eq!(rig.engine.tool_output("open__visit", engine.clone()).await, "connected");
    let said = rig.engine.tool_output("shut__visit", engine).await;
    assert!(said.starts_with("no: "), "{said}");
}

fn hash(text: &str) -> String {
    KeyHash::of(text).to_hex()
}

#[tokio::test]
async fn a_key_goes_where_the_catalog_says_and_is_kept_sealed() {
    let Some(peers) = Peers::installed() else { return };
    let server = peers.start_http(&["--key", KEY]).await;
    let servers = |place: &StandaloneEngine| {
        let mut named = server.mcp_entry("api_key");
        named["api_key_header"] = json!("X-Api-Key");
        let mut program = peers.stdio_entry(place, SdkVersion::Newest, &["server.py"]);
        program["auth"] = json!("api_key");
        program["api_key_env"] = json!("SERVICE_KEY");
        json!({"bearer": server.mcp_entry("api_key"), "named": named, "program": program})
    };
    let rig =
        EngineFixture::with_servers_and_setup(servers, |place| place.with_env("ENGINE_LOG_LEVEL", "debug"))
            .await;
    let credentials = json!({"api_key": KEY});
    for name in ["bearer", "named", "program"] {
        rig.engine.connect_server_with(&json!({"server": name, "credentials": credentials})).await;
    }
    let sent_as =
        [("bearer", "authorization", format!("Bearer {KEY}")), ("named", "x-api-key", KEY.to_owned())];
    for (name, header, value) in sent_as {
        let shown = rig.engine.tool_output(&format!("{name}__credential"), json!({})).await;
        assert_eq!(shown, format!("{header} {}", hash(&value)));
    }
    let told = rig.engine.tool_output("program__surroundings", json!({})).await;
    assert!(told.contains(&format!("\"SERVICE_KEY\": \"{}\"", hash(KEY))), "{told}");
    assert_eq!(
        call_tool_in_turn(&rig, "task", "bearer__add", json!({"a": 1, "b": 1})).await.unwrap().trim(),
        "2"
    );
    assert_stored_nowhere(&rig, "the key", KEY, &[]);

    // It is known after a restart too, and stands nowhere then.
    let rig = rig.stop_and_start().await;
    assert_eq!(rig.engine.connections().await.len(), 3);
    for name in ["bearer", "named"] {
        rig.engine.tool_output(&format!("{name}__add"), json!({"a": 1, "b": 1})).await;
    }
    assert_stored_nowhere(&rig, "the key", KEY, &[]);
}

#[tokio::test]
async fn a_key_that_is_missing_or_wrong_connects_nothing() {
    let Some(peers) = Peers::installed() else { return };
    let server = peers.start_http(&["--key", KEY]).await;
    let plain = peers.start_http(&[]).await;
    let servers = json!({"keyed": server.mcp_entry("api_key"), "plain": plain.mcp_entry("none")});
    let rig = EngineFixture::with_servers(servers).await;
    let connect = async |body: Value| rig.engine.connect(&body).await;
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
    assert!(rig.engine.servers().await.iter().all(|server| server["connected"] == false));
    assert_stored_nowhere(&rig, "the wrong key", "Qy77", &[]);
    rig.engine.disconnect("conn_0").await.assert_error(404, "CONNECTION_NOT_FOUND");
    let stranger = rig.engine.with_key("sk-svc-a-stranger");
    for answer in [
        stranger.get("/assets/servers").await,
        stranger.get("/assets/connections").await,
        stranger.connect(&json!({"server": "plain"})).await,
        stranger.post("/assets/callback", &json!({})).await,
        stranger.get("/assets/oauth/callback?code=x&state=y").await,
        stranger.disconnect("conn_0").await,
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
    let without = |place: StandaloneEngine| place.with_env("AD_ENCRYPTION_KEY", "");
    let rig = EngineFixture::with_servers_and_setup(|_| servers, without).await;
    let health = rig.engine.get("/health").await.body;
    assert_eq!((&health["status"], &health["subsystems"]["asset_directory"]), (&json!("ok"), &json!("ok")));
    let body = json!({"server": "keyed", "credentials": {"api_key": KEY}});
    let answer = rig.engine.connect(&body).await;
    let message = answer.assert_error(503, "ASSETS_NOT_CONFIGURED");
    assert!(message.contains("AD_ENCRYPTION_KEY"), "it says what to set: {message}");
    rig.engine.connect(&json!({"server": "leave"})).await.assert_error(503, "ASSETS_NOT_CONFIGURED");
    assert_eq!(rig.engine.connections().await, [Value::Null; 0]);
    // What needs no credentials is connected all the same.
    rig.engine.connect_server("plain").await;
    assert_eq!(rig.engine.tool_output("plain__echo", json!({"text": "hello"})).await, "hello");
}

#[tokio::test]
async fn connections_outlive_the_engine() {
    let Some(peers) = Peers::installed() else { return };
    let server = peers.start_http(&[]).await;
    let servers = |place: &StandaloneEngine| json!({"far": server.mcp_entry("none"), "near": peers.stdio_entry(place, SdkVersion::Newest, &["server.py"])});
    let rig = EngineFixture::with_servers_and_setup(servers, |place| place).await;
    rig.engine.connect_server("far").await;
    rig.engine.connect_server("near").await;
    let before = rig.engine.connections().await;
    let mut rig = rig.kill_and_start().await;
    for _ in 0..2 {
        assert_eq!(rig.engine.connections().await, before);
        let children = || {
            processes::with_command_line_text("server.py".as_ref())
                .into_iter()
                .filter(|pid| is_running_in(&rig, *pid))
        };
        assert_eq!(children().count(), 0, "a connection costs nothing until it is used");
        assert_eq!(
            call_tool_in_turn(&rig, "task", "near__add", json!({"a": 2, "b": 3})).await.unwrap().trim(),
            "5"
        );
        assert_eq!(rig.engine.tool_output("far__add", json!({"a": 2, "b": 3})).await.trim(), "5");
        rig = rig.stop_and_start().await;
    }
}
