//! Which servers there are, and what it takes to connect them.

use contract::{KeyHash, Timestamp};
use serde_json::{Value, json};

use super::{connection, stands_nowhere, tools_of, turn};
use crate::support::peers::Sdk;
use crate::support::{LoneEngine, Peers, Rig, eventually, processes};
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
    let rig = Rig::with_servers(servers).await;
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
    answer.refused(404, "SERVER_NOT_FOUND");
}

#[tokio::test]
async fn a_program_is_connected_and_its_tools_are_the_agents() {
    let Some(peers) = Peers::found() else { return };
    let servers = |place: &LoneEngine| json!({"peer": peers.stdio(place, Sdk::Newest, &["server.py"])});
    let rig = Rig::with_servers_of(servers, |place| place).await;
    rig.engine.tool("peer__add", json!({"a": 2, "b": 3})).await.refused_flat(404, "METHOD_NOT_FOUND");
    let started =
        || processes::called_with("server.py".as_ref()).into_iter().filter(|pid| runs_in(&rig, *pid));
    assert_eq!(started().count(), 0, "nothing runs before it is used");

    let id = rig.engine.connected("peer").await;
    let listed = connection(&rig.engine).await;
    assert_eq!((&listed["connection"], &listed["server"]), (&json!(id), &json!("peer")));
    assert_eq!((&listed["status"], listed.get("error")), (&json!("connected"), None));
    assert!(listed["created_at"].as_str().unwrap().parse::<Timestamp>().is_ok());
    for tool in ["add", "echo", "look_up"] {
        assert!(tools_of(&listed).contains(&tool), "no {tool} in {listed}");
    }
    assert_eq!(rig.engine.servers().await[0]["connected"], true);
    assert_eq!(turn(&rig, "task", "peer__add", json!({"a": 2, "b": 3})).await.unwrap().trim(), "5");
    assert_eq!(started().count(), 1, "one child for all calls");

    // Once more: the same connection, and one child.
    assert_eq!(rig.engine.connected("peer").await, id);
    assert_eq!(connection(&rig.engine).await["created_at"], listed["created_at"]);
    assert_eq!(rig.engine.tool_gives("peer__echo", json!({"text": "hello"})).await, "hello");
    assert_eq!(started().count(), 1);

    rig.engine.disconnect(&id).await.ok("status:text");
    rig.engine.disconnect(&id).await.refused(404, "CONNECTION_NOT_FOUND");
    assert_eq!(rig.engine.connections().await, [Value::Null; 0]);
    assert_eq!(rig.engine.servers().await[0]["connected"], false);
    rig.engine.tool("peer__echo", json!({"text": "hello"})).await.refused_flat(404, "METHOD_NOT_FOUND");
    eventually("the child ends with its connection", async || (started().count() == 0).then_some(())).await;
}

/// Whether a process runs in an engine's catalog.
fn runs_in(rig: &Rig, pid: rustix::process::Pid) -> bool {
    processes::called_with(rig.place.home.path().as_os_str()).contains(&pid)
}

#[tokio::test]
async fn a_program_runs_in_the_workspace_with_a_clean_environment() {
    let Some(peers) = Peers::found() else { return };
    let servers = |place: &LoneEngine| {
        let mut entry = peers.stdio(place, Sdk::Newest, &["server.py"]);
        entry["env"]["GREETING"] = json!("${FROM_OUTSIDE:-hello}");
        json!({"peer": entry})
    };
    let rig = Rig::with_servers_of(servers, |place| place.with("UNRELATED_SECRET", "x")).await;
    rig.engine.connected("peer").await;
    let told = rig.engine.tool_gives("peer__surroundings", json!({})).await;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["folder"], rig.place.workspace().to_str().unwrap());
    assert_eq!(told["environment"]["GREETING"], hash("hello"));
    for name in ["UNRELATED_SECRET", "LLM_API_KEY", "AD_ENCRYPTION_KEY", "ENGINE_KEY_HASH"] {
        assert_eq!(told["environment"].get(name), None, "{name} is in its environment");
    }
}

#[tokio::test]
async fn a_program_reaches_what_others_on_the_leash_reach() {
    let Some(peers) = Peers::found() else { return };
    let servers = |place: &LoneEngine| {
        let open = peers.stdio(place, Sdk::Newest, &["server.py"]);
        let mut shut = open.clone();
        shut["network"] = json!(false);
        json!({"open": open, "shut": shut})
    };
    let rig = Rig::with_servers_of(servers, |place| place).await;
    if !is_confined(&rig).await {
        return;
    }
    rig.engine.connected("open").await;
    rig.engine.connected("shut").await;
    let brain = rig.place.brain();
    for path in [brain.to_str().unwrap(), "/etc/shadow", "/proc/1/environ"] {
        let said = rig.engine.tool_gives("open__read", json!({"path": path})).await;
        assert!(said.starts_with("no: "), "{path}: {said}");
    }
    rig.engine.tool_gives("write_file", json!({"path": "notes.txt", "content": "Kept."})).await;
    let said = rig.engine.tool_gives("open__read", json!({"path": "notes.txt"})).await;
    assert_eq!(said, "5 bytes");
    let engine = json!({"host": "127.0.0.1", "port": rig.place.home.ports.first()});
    assert_eq!(rig.engine.tool_gives("open__visit", engine.clone()).await, "connected");
    let said = rig.engine.tool_gives("shut__visit", engine).await;
    assert!(said.starts_with("no: "), "{said}");
}

fn hash(text: &str) -> String {
    KeyHash::of(text).to_hex()
}

#[tokio::test]
async fn a_key_goes_where_the_catalog_says_and_is_kept_sealed() {
    let Some(peers) = Peers::found() else { return };
    let server = peers.http(&["--key", KEY]).await;
    let servers = |place: &LoneEngine| {
        let mut named = server.entry("api_key");
        named["api_key_header"] = json!("X-Api-Key");
        let mut program = peers.stdio(place, Sdk::Newest, &["server.py"]);
        program["auth"] = json!("api_key");
        program["api_key_env"] = json!("SERVICE_KEY");
        json!({"bearer": server.entry("api_key"), "named": named, "program": program})
    };
    let rig = Rig::with_servers_of(servers, |place| place.with("ENGINE_LOG_LEVEL", "debug")).await;
    let credentials = json!({"api_key": KEY});
    for name in ["bearer", "named", "program"] {
        rig.engine.connected_with(&json!({"server": name, "credentials": credentials})).await;
    }
    let sent_as =
        [("bearer", "authorization", format!("Bearer {KEY}")), ("named", "x-api-key", KEY.to_owned())];
    for (name, header, value) in sent_as {
        let shown = rig.engine.tool_gives(&format!("{name}__credential"), json!({})).await;
        assert_eq!(shown, format!("{header} {}", hash(&value)));
    }
    let told = rig.engine.tool_gives("program__surroundings", json!({})).await;
    assert!(told.contains(&format!("\"SERVICE_KEY\": \"{}\"", hash(KEY))), "{told}");
    assert_eq!(turn(&rig, "task", "bearer__add", json!({"a": 1, "b": 1})).await.unwrap().trim(), "2");
    stands_nowhere(&rig, "the key", KEY, &[]);

    // It is known after a restart too, and stands nowhere then.
    let rig = rig.stop_and_start().await;
    assert_eq!(rig.engine.connections().await.len(), 3);
    for name in ["bearer", "named"] {
        rig.engine.tool_gives(&format!("{name}__add"), json!({"a": 1, "b": 1})).await;
    }
    stands_nowhere(&rig, "the key", KEY, &[]);
}

#[tokio::test]
async fn a_key_that_is_missing_or_wrong_connects_nothing() {
    let Some(peers) = Peers::found() else { return };
    let server = peers.http(&["--key", KEY]).await;
    let plain = peers.http(&[]).await;
    let servers = json!({"keyed": server.entry("api_key"), "plain": plain.entry("none")});
    let rig = Rig::with_servers(servers).await;
    let connect = async |body: Value| rig.engine.connect(&body).await;
    connect(json!({"server": "keyed"})).await.refused(400, "INVALID_REQUEST");
    connect(json!({"server": "keyed", "credentials": {}})).await.refused(400, "INVALID_REQUEST");
    connect(json!({"server": "keyed", "credentials": {"api_key": ""}})).await.refused(400, "INVALID_REQUEST");
    let wrong = json!({"server": "keyed", "credentials": {"api_key": "another-key-Qy77-that-is-wrong"}});
    let answer = connect(wrong).await;
    let message = answer.refused(502, "SERVER_FAILED");
    assert!(message.contains("keyed"), "it names the server: {message}");
    assert!(!message.contains("Qy77"), "{message}");
    connect(json!({"server": "nobody"})).await.refused(404, "SERVER_NOT_FOUND");
    connect(json!({})).await.refused(400, "INVALID_REQUEST");
    connect(json!({"server": 7})).await.refused(400, "INVALID_REQUEST");
    assert!(rig.engine.servers().await.iter().all(|server| server["connected"] == false));
    stands_nowhere(&rig, "the wrong key", "Qy77", &[]);
    rig.engine.disconnect("conn_0").await.refused(404, "CONNECTION_NOT_FOUND");
    let stranger = rig.engine.with_key("sk-svc-a-stranger");
    for answer in [
        stranger.get("/assets/servers").await,
        stranger.get("/assets/connections").await,
        stranger.connect(&json!({"server": "plain"})).await,
        stranger.post("/assets/callback", &json!({})).await,
        stranger.get("/assets/oauth/callback?code=x&state=y").await,
        stranger.disconnect("conn_0").await,
    ] {
        answer.refused(401, "INVALID_ENGINE_KEY");
    }
}

#[tokio::test]
async fn without_a_key_to_seal_under_no_credentials_are_taken_and_all_is_well() {
    let Some(peers) = Peers::found() else { return };
    let (keyed, plain) = (peers.http(&["--key", KEY]).await, peers.http(&[]).await);
    let servers = json!({
        "keyed": keyed.entry("api_key"), "leave": keyed.entry("oauth"), "plain": plain.entry("none"),
    });
    let without = |place: LoneEngine| place.with("AD_ENCRYPTION_KEY", "");
    let rig = Rig::with_servers_of(|_| servers, without).await;
    let health = rig.engine.get("/health").await.body;
    assert_eq!((&health["status"], &health["subsystems"]["asset_directory"]), (&json!("ok"), &json!("ok")));
    let body = json!({"server": "keyed", "credentials": {"api_key": KEY}});
    let answer = rig.engine.connect(&body).await;
    let message = answer.refused(503, "ASSETS_NOT_CONFIGURED");
    assert!(message.contains("AD_ENCRYPTION_KEY"), "it says what to set: {message}");
    rig.engine.connect(&json!({"server": "leave"})).await.refused(503, "ASSETS_NOT_CONFIGURED");
    assert_eq!(rig.engine.connections().await, [Value::Null; 0]);
    // What needs no credentials is connected all the same.
    rig.engine.connected("plain").await;
    assert_eq!(rig.engine.tool_gives("plain__echo", json!({"text": "hello"})).await, "hello");
}

#[tokio::test]
async fn connections_outlive_the_engine() {
    let Some(peers) = Peers::found() else { return };
    let server = peers.http(&[]).await;
    let servers = |place: &LoneEngine| json!({"far": server.entry("none"), "near": peers.stdio(place, Sdk::Newest, &["server.py"])});
    let rig = Rig::with_servers_of(servers, |place| place).await;
    rig.engine.connected("far").await;
    rig.engine.connected("near").await;
    let before = rig.engine.connections().await;
    let mut rig = rig.kill_and_start().await;
    for _ in 0..2 {
        assert_eq!(rig.engine.connections().await, before);
        let children =
            || processes::called_with("server.py".as_ref()).into_iter().filter(|pid| runs_in(&rig, *pid));
        assert_eq!(children().count(), 0, "a connection costs nothing until it is used");
        assert_eq!(turn(&rig, "task", "near__add", json!({"a": 2, "b": 3})).await.unwrap().trim(), "5");
        assert_eq!(rig.engine.tool_gives("far__add", json!({"a": 2, "b": 3})).await.trim(), "5");
        rig = rig.stop_and_start().await;
    }
}
