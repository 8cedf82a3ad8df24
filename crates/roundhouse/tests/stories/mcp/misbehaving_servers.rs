//! MCP servers that violate the protocol, hang, flood or crash: the turn continues, and the engine stays healthy.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use futures::future::{join, join_all};
use futures::stream::{self, StreamExt as _};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use super::{call_tool_in_turn, only_connection, tool_names};
use crate::support::engine_calls::direct_message;
use crate::support::peers::{
    PeerServer, SdkVersion, has_python, misbehaving_stdio_entry, start_misbehaving_http,
};
use crate::support::tool_programs::{done_reply, tool_reply, tool_results};
use crate::support::turn::assert_completed;
use crate::support::{EngineFixture, Event, Peers, Program, StandaloneEngine, eventually, processes};

/// The request timeout that the catalog sets for the misbehaving servers, in seconds.
const TIMEOUT_S: u64 = 3;
/// How many engines run at the same time.
const CONCURRENT_ENGINES: usize = 4;
/// The highest peak memory of an engine, in KiB. The largest message that a server sends is 300 MiB long.
const MAX_MEMORY_KIB: u64 = 250 * 1024;

/// An engine with a server that misbehaves over stdio (`near`) and over HTTP (`far`), neither of them connected.
async fn misbehaving_fixture(fault: &str) -> (PeerServer, EngineFixture) {
    let far = start_misbehaving_http(fault).await;
    let servers = |setup: &StandaloneEngine| {
        let (mut near, mut far) = (misbehaving_stdio_entry(setup, fault), far.mcp_entry("none"));
        near["timeout"] = json!(TIMEOUT_S);
        far["timeout"] = json!(TIMEOUT_S);
        json!({"near": near, "far": far})
    };
    let fixture = EngineFixture::with_servers_and_setup(servers, |setup| setup).await;
    (far, fixture)
}

/// The peak resident memory of a program, in KiB.
fn peak_kib(program: &Program) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid().as_raw_nonzero())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Asserts that the engine is healthy, runs turns and stayed within its memory limit.
async fn assert_healthy(fixture: &EngineFixture, task: &str) {
    assert_eq!(fixture.engine.get("/health").await.body["status"], "ok");
    fixture.provider.enqueue(done_reply());
    fixture.engine.run_turn(task, "Are you there?").await;
    let peak = peak_kib(&fixture.program);
    assert!(peak < MAX_MEMORY_KIB, "the peak memory of the engine is {peak} KiB");
}

/// The processes of an engine's stdio servers.
fn children(fixture: &EngineFixture) -> Vec<Pid> {
    processes::with_command_line_text(fixture.setup.test_env.path().join("catalog/peers").as_os_str())
}

/// Asserts that connecting a server that fails at its start is refused, over both transports.
async fn assert_connect_fails(fault: &str) {
    let (_far, fixture) = misbehaving_fixture(fault).await;
    let start = Instant::now();
    let refused = async |server: &str| {
        let answer = fixture.engine.connect(&json!({"server": server})).await;
        assert_eq!(answer.status, 502, "{fault} {server}: {}", answer.body);
        let message = answer.assert_error(502, "SERVER_FAILED");
        assert!(message.contains(server), "{fault}: {message}");
    };
    join(refused("near"), refused("far")).await;
    assert!(start.elapsed() < Duration::from_secs(45), "{fault}: it took {:?}", start.elapsed());
    assert!(fixture.engine.servers().await.iter().all(|server| server["connected"] == false), "{fault}");
    assert_healthy(&fixture, fault).await;
    eventually("its processes end", async || children(&fixture).is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_server_that_does_not_begin_is_not_connected() {
    if !has_python() {
        return;
    }
    join_all(["silent-start", "silent-list", "too-deep", "wrong-version"].map(assert_connect_fails)).await;
}

#[tokio::test]
async fn a_program_that_ends_or_is_none_is_not_connected() {
    if !has_python() {
        return;
    }
    let servers = |setup: &StandaloneEngine| {
        json!({
            "ends": misbehaving_stdio_entry(setup, "dies-at-start"),
            "mute": {"command": "true"},
            "missing": {"command": "no-such-program-anywhere"},
            "nowhere": {"type": "http", "url": "http://127.0.0.1:9/mcp"},
        })
    };
    let fixture = EngineFixture::with_servers_and_setup(servers, |setup| setup).await;
    for server in ["ends", "mute", "missing", "nowhere"] {
        let answer = fixture.engine.connect(&json!({"server": server})).await;
        let message = answer.assert_error(502, "SERVER_FAILED");
        assert!(message.contains(server), "{message}");
    }
    assert_healthy(&fixture, "task").await;
}

#[tokio::test]
async fn tools_that_are_no_list_are_no_tools() {
    if !has_python() {
        return;
    }
    let (_far, fixture) = misbehaving_fixture("not-a-list").await;
    for server in ["near", "far"] {
        fixture.engine.connect(&json!({"server": server})).await;
        fixture
            .engine
            .call_tool(&format!("{server}__good"), json!({}))
            .await
            .assert_flat_error(404, "METHOD_NOT_FOUND");
    }
    assert_healthy(&fixture, "task").await;
}

/// Connects a server with odd tools; returns a description of each failure.
async fn connect_with_odd_tools(fault: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let (_far, fixture) = misbehaving_fixture(fault).await;
    for server in ["near", "far"] {
        let answer = fixture.engine.connect(&json!({"server": server})).await;
        if answer.status != 200 {
            wrong.push(format!("{fault} {server}: {}", answer.body));
            continue;
        }
        let answer = fixture.engine.call_tool(&format!("{server}__good"), json!({"text": "x"})).await;
        if answer.body["result"]["output"] != "the good tool answers" {
            wrong.push(format!("{fault} {server}: {}", answer.body));
        }
    }
    for connection in fixture.engine.connections().await {
        let tools = tool_names(&connection);
        let different: BTreeSet<&str> = tools.iter().copied().collect();
        if tools.len() > 512 || different.len() < tools.len() {
            wrong.push(format!("{fault}: too many tools, or duplicate names: {connection}"));
        }
    }
    assert_healthy(&fixture, fault).await;
    wrong
}

#[tokio::test]
async fn odd_tools_are_left_out_and_the_others_work() {
    if !has_python() {
        return;
    }
    let faults = ["many-tools", "huge-tool", "bad-schemas", "bad-names", "flood-pages"];
    let wrong: Vec<String> = join_all(faults.map(connect_with_odd_tools)).await.concat();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Faults in a server's answer to a call, and whether the call must fail (`None`: it may also succeed).
const FAULTY_CALLS: [(&str, Option<bool>); 11] = [
    ("silent-call", Some(true)),
    ("flood-message", Some(true)),
    ("flood-line", Some(true)),
    ("flood-notices", Some(true)),
    ("flood-errors", Some(false)),
    ("dies-in-call", Some(true)),
    ("garbage", None),
    ("wrong-id", Some(true)),
    ("twice", Some(false)),
    ("wrong-result", None),
    ("asks-much", Some(false)),
];

/// Calls both tools of a misbehaving server; returns a description of each failure.
async fn call_both_tools(fault: &str, fails: Option<bool>) -> Vec<String> {
    let mut wrong = Vec::new();
    let (_far, fixture) = misbehaving_fixture(fault).await;
    for server in ["near", "far"] {
        fixture.engine.connect_server(server).await;
        let (bad, good) = (format!("{server}__bad"), format!("{server}__good"));
        let start = Instant::now();
        let result = call_tool_in_turn(&fixture, server, &bad, json!({"text": "x"})).await;
        let elapsed = start.elapsed();
        let as_expected = fails.is_none_or(|fails| result.is_err() == fails);
        let length = result.as_ref().map_or_else(String::len, String::len);
        if !as_expected || length > 100 * 1024 || elapsed > Duration::from_secs(30) {
            let shown: String = format!("{result:?}").chars().take(300).collect();
            wrong.push(format!("{fault} {server}: {shown} after {elapsed:?}"));
        }
        let output = call_tool_in_turn(&fixture, &good, &good, json!({"text": "x"})).await;
        if output.as_deref() != Ok("the good tool answers") {
            wrong.push(format!("{fault} {server}: the next call fails: {output:?}"));
        }
    }
    assert_healthy(&fixture, fault).await;
    wrong
}

#[tokio::test]
async fn a_call_that_is_not_answered_well_ends_and_the_next_one_works() {
    if !has_python() {
        return;
    }
    let calls = stream::iter(FAULTY_CALLS).map(|(fault, fails)| call_both_tools(fault, fails));
    let wrong: Vec<String> = calls.buffer_unordered(CONCURRENT_ENGINES).concat().await;
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_server_that_ends_in_a_call_is_started_again() {
    let Some(peers) = Peers::installed() else { return };
    let servers = |setup: &StandaloneEngine| json!({"peer": peers.stdio_entry(setup, SdkVersion::Newest, &["server.py"])});
    let fixture = EngineFixture::with_servers_and_setup(servers, |setup| setup).await;
    fixture.engine.connect_server("peer").await;
    let works = async || {
        assert_eq!(fixture.engine.tool_output("peer__add", json!({"a": 2, "b": 3})).await.trim(), "5");
        assert_eq!(only_connection(&fixture.engine).await["status"], "connected");
        assert_eq!(children(&fixture).len(), 1);
    };
    call_tool_in_turn(&fixture, "task", "peer__die", json!({})).await.expect_err("the server is gone");
    works().await;
    // Killed from outside, between two calls. A call that is sent before the engine notices is not retried.
    for pid in children(&fixture) {
        processes::kill(pid);
    }
    eventually("it works again", async || {
        let answer = fixture.engine.call_tool("peer__add", json!({"a": 2, "b": 3})).await;
        (answer.status == 200).then_some(())
    })
    .await;
    works().await;
    // A server that crashes repeatedly is not restarted for a while, unless the user connects it.
    call_tool_in_turn(&fixture, "again", "peer__die", json!({})).await.expect_err("the server is gone");
    fixture.engine.connect_server("peer").await;
    works().await;
}

#[tokio::test]
async fn a_server_over_http_that_was_away_is_used_again() {
    let Some(peers) = Peers::installed() else { return };
    let server = peers.start_http(&[]).await;
    let port = server.url.rsplit_once(':').unwrap().1.split('/').next().unwrap().to_owned();
    let fixture = EngineFixture::with_servers(json!({"peer": server.mcp_entry("none")})).await;
    fixture.engine.connect_server("peer").await;
    fixture.engine.tool_output("peer__add", json!({"a": 1, "b": 1})).await;
    drop(server);
    call_tool_in_turn(&fixture, "task", "peer__add", json!({"a": 2, "b": 3}))
        .await
        .expect_err("the server is gone");
    let _server = peers.start_http(&["--port", &port]).await;
    eventually("it works again", async || {
        let answer = fixture.engine.call_tool("peer__add", json!({"a": 2, "b": 3})).await;
        (answer.status == 200).then_some(())
    })
    .await;
    let status = async || only_connection(&fixture.engine).await["status"].clone();
    eventually("the connection is restored", async || (status().await == "connected").then_some(())).await;
}

#[tokio::test]
async fn nothing_of_a_server_outlives_the_engine() {
    let Some(peers) = Peers::installed() else { return };
    for signal in [Signal::KILL, Signal::TERM] {
        let servers = |setup: &StandaloneEngine| {
            json!({
                "new": peers.stdio_entry(setup, SdkVersion::Newest, &["server.py"]),
                "stubborn": misbehaving_stdio_entry(setup, "silent-call"),
            })
        };
        let fixture = EngineFixture::with_servers_and_setup(servers, |setup| {
            setup.with_catalog_file("permissions.json", r#"{"default": "allow"}"#)
        })
        .await;
        fixture.engine.connect_server("new").await;
        fixture.engine.connect_server("stubborn").await;
        fixture.provider.enqueue(tool_reply("stubborn__bad", json!({"text": "x"})));
        let mut stream = fixture.engine.execute_with(&direct_message("task", "Call it.")).await;
        stream.read_until("the call", |event: &Event| event.kind == "tool_call").await;
        fixture.engine.tool_output("new__add", json!({"a": 2, "b": 3})).await;
        assert_eq!(children(&fixture).len(), 2);
        let EngineFixture { setup, program, provider, .. } = fixture;
        program.signal_and_wait(signal).await;
        let remaining =
            || processes::with_command_line_text(setup.test_env.path().join("catalog/peers").as_os_str());
        eventually("all of them end", async || remaining().is_empty().then_some(())).await;
        drop(provider);
    }
}

#[tokio::test]
async fn a_call_that_a_kill_cut_off_is_not_made_again() {
    let Some(peers) = Peers::installed() else { return };
    let server = peers.start_http(&[]).await;
    let servers = json!({"peer": server.mcp_entry("none")});
    let allow =
        |setup: StandaloneEngine| setup.with_catalog_file("permissions.json", r#"{"default": "allow"}"#);
    let fixture = EngineFixture::with_servers_and_setup(|_| servers, allow).await;
    fixture.engine.connect_server("peer").await;
    fixture.provider.enqueue(tool_reply("peer__wait", json!({"seconds": 2})));
    let mut stream = fixture.engine.execute_with(&direct_message("task", "Wait.")).await;
    stream.read_until("the call", |event: &Event| event.kind == "tool_call").await;
    drop(stream);
    fixture.provider.enqueue(done_reply());
    let fixture = fixture.kill_and_start().await;
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), "Done.");
    tool_results(&events)[0].expect_err("its outcome is unknown");
    let tally: Value =
        serde_json::from_str(&fixture.engine.tool_output("peer__tally", json!({})).await).unwrap();
    assert!(tally["finished"].as_u64().unwrap() + tally["cancelled"].as_u64().unwrap() <= 1, "{tally}");
}
