//! Servers that do what none must do: the turn goes on, and the engine is as before.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use futures::future::{join, join_all};
use futures::stream::{self, StreamExt as _};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use super::{connection, tools_of, turn};
use crate::support::calls::message;
use crate::support::peers::{Peer, Sdk, has_python, misbehaving_http, misbehaving_stdio};
use crate::support::programs::{call, done, results};
use crate::support::turn::completed;
use crate::support::{Event, LoneEngine, Peers, Program, Rig, eventually, processes};

/// What a request to a server that misbehaves may take, in seconds.
const TIMEOUT_S: u64 = 3;
/// How many engines are tried at once.
const AT_ONCE: usize = 4;
/// The most memory that an engine may ever have had, in KiB. The largest message that is sent to it is 300 MiB long.
const MEMORY_KIB: u64 = 250 * 1024;

/// An engine with a server that misbehaves over stdio (`near`) and over HTTP (`far`), and neither connected.
async fn rig(fault: &str) -> (Peer, Rig) {
    let far = misbehaving_http(fault).await;
    let servers = |place: &LoneEngine| {
        let (mut near, mut far) = (misbehaving_stdio(place, fault), far.entry("none"));
        near["timeout"] = json!(TIMEOUT_S);
        far["timeout"] = json!(TIMEOUT_S);
        json!({"near": near, "far": far})
    };
    let rig = Rig::with_servers_of(servers, |place| place).await;
    (far, rig)
}

/// The most memory that a program ever had, in KiB.
fn peak_kib(program: &Program) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid().as_raw_nonzero())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Asserts that the engine is well and takes turns.
async fn is_well(rig: &Rig, task: &str) {
    assert_eq!(rig.engine.get("/health").await.body["status"], "ok");
    rig.provider.enqueue(done());
    rig.engine.tell(task, "Are you there?").await;
    let peak = peak_kib(&rig.program);
    assert!(peak < MEMORY_KIB, "the engine took {peak} KiB");
}

/// The processes of an engine's stdio servers.
fn children(rig: &Rig) -> Vec<Pid> {
    processes::called_with(rig.place.home.path().join("catalog/peers").as_os_str())
}

/// Tries to connect a server that does not begin.
async fn does_not_begin(fault: &str) {
    let (_far, rig) = rig(fault).await;
    let start = Instant::now();
    let refused = async |server: &str| {
        let answer = rig.engine.connect(&json!({"server": server})).await;
        assert_eq!(answer.status, 502, "{fault} {server}: {}", answer.body);
        let message = answer.refused(502, "SERVER_FAILED");
        assert!(message.contains(server), "{fault}: {message}");
    };
    join(refused("near"), refused("far")).await;
    assert!(start.elapsed() < Duration::from_secs(45), "{fault}: it took {:?}", start.elapsed());
    assert!(rig.engine.servers().await.iter().all(|server| server["connected"] == false), "{fault}");
    is_well(&rig, fault).await;
    eventually("its processes end", async || children(&rig).is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_server_that_does_not_begin_is_not_connected() {
    if !has_python() {
        return;
    }
    join_all(["silent-start", "silent-list", "too-deep", "wrong-version"].map(does_not_begin)).await;
}

#[tokio::test]
async fn a_program_that_ends_or_is_none_is_not_connected() {
    if !has_python() {
        return;
    }
    let servers = |place: &LoneEngine| {
        json!({
            "ends": misbehaving_stdio(place, "dies-at-start"),
            "mute": {"command": "true"},
            "missing": {"command": "no-such-program-anywhere"},
            "nowhere": {"type": "http", "url": "http://127.0.0.1:9/mcp"},
        })
    };
    let rig = Rig::with_servers_of(servers, |place| place).await;
    for server in ["ends", "mute", "missing", "nowhere"] {
        let answer = rig.engine.connect(&json!({"server": server})).await;
        let message = answer.refused(502, "SERVER_FAILED");
        assert!(message.contains(server), "{message}");
    }
    is_well(&rig, "task").await;
}

#[tokio::test]
async fn tools_that_are_no_list_are_no_tools() {
    if !has_python() {
        return;
    }
    let (_far, rig) = rig("not-a-list").await;
    for server in ["near", "far"] {
        rig.engine.connect(&json!({"server": server})).await;
        rig.engine.tool(&format!("{server}__good"), json!({})).await.refused_flat(404, "METHOD_NOT_FOUND");
    }
    is_well(&rig, "task").await;
}

/// Connects a server with odd tools; gives what went wrong.
async fn with_odd_tools(fault: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let (_far, rig) = rig(fault).await;
    for server in ["near", "far"] {
        let answer = rig.engine.connect(&json!({"server": server})).await;
        if answer.status != 200 {
            wrong.push(format!("{fault} {server}: {}", answer.body));
            continue;
        }
        let answer = rig.engine.tool(&format!("{server}__good"), json!({"text": "x"})).await;
        if answer.body["result"]["output"] != "the good tool answers" {
            wrong.push(format!("{fault} {server}: {}", answer.body));
        }
    }
    for connection in rig.engine.connections().await {
        let tools = tools_of(&connection);
        let different: BTreeSet<&str> = tools.iter().copied().collect();
        if tools.len() > 512 || different.len() < tools.len() {
            wrong.push(format!("{fault}: too many tools, or names twice: {connection}"));
        }
    }
    is_well(&rig, fault).await;
    wrong
}

#[tokio::test]
async fn odd_tools_are_left_out_and_the_others_work() {
    if !has_python() {
        return;
    }
    let faults = ["many-tools", "huge-tool", "bad-schemas", "bad-names", "flood-pages"];
    let wrong: Vec<String> = join_all(faults.map(with_odd_tools)).await.concat();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// How a server answers badly, and whether a call then must fail; none where it may also go well.
const CALLS: [(&str, Option<bool>); 11] = [
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

/// Calls both tools of a server that misbehaves; gives what went wrong.
async fn both_called(fault: &str, fails: Option<bool>) -> Vec<String> {
    let mut wrong = Vec::new();
    let (_far, rig) = rig(fault).await;
    for server in ["near", "far"] {
        rig.engine.connected(server).await;
        let (bad, good) = (format!("{server}__bad"), format!("{server}__good"));
        let start = Instant::now();
        let result = turn(&rig, server, &bad, json!({"text": "x"})).await;
        let took = start.elapsed();
        let as_meant = fails.is_none_or(|fails| result.is_err() == fails);
        let length = result.as_ref().map_or_else(String::len, String::len);
        if !as_meant || length > 100 * 1024 || took > Duration::from_secs(30) {
            let shown: String = format!("{result:?}").chars().take(300).collect();
            wrong.push(format!("{fault} {server}: {shown} after {took:?}"));
        }
        let said = turn(&rig, &good, &good, json!({"text": "x"})).await;
        if said.as_deref() != Ok("the good tool answers") {
            wrong.push(format!("{fault} {server}: it does not work again: {said:?}"));
        }
    }
    is_well(&rig, fault).await;
    wrong
}

#[tokio::test]
async fn a_call_that_is_not_answered_well_ends_and_the_next_one_works() {
    if !has_python() {
        return;
    }
    let tries = stream::iter(CALLS).map(|(fault, fails)| both_called(fault, fails));
    let wrong: Vec<String> = tries.buffer_unordered(AT_ONCE).concat().await;
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_server_that_ends_in_a_call_is_started_again() {
    let Some(peers) = Peers::found() else { return };
    let servers = |place: &LoneEngine| json!({"peer": peers.stdio(place, Sdk::Newest, &["server.py"])});
    let rig = Rig::with_servers_of(servers, |place| place).await;
    rig.engine.connected("peer").await;
    let works = async || {
        assert_eq!(rig.engine.tool_gives("peer__add", json!({"a": 2, "b": 3})).await.trim(), "5");
        assert_eq!(connection(&rig.engine).await["status"], "connected");
        assert_eq!(children(&rig).len(), 1);
    };
    turn(&rig, "task", "peer__die", json!({})).await.expect_err("nobody answers");
    works().await;
    // Killed from outside, between two calls. One that is made before the engine knows is not made again.
    for pid in children(&rig) {
        processes::kill(pid);
    }
    eventually("it works again", async || {
        let answer = rig.engine.tool("peer__add", json!({"a": 2, "b": 3})).await;
        (answer.status == 200).then_some(())
    })
    .await;
    works().await;
    // Who ends again and again is left alone for a while, unless it is asked for.
    turn(&rig, "again", "peer__die", json!({})).await.expect_err("nobody answers");
    rig.engine.connected("peer").await;
    works().await;
}

#[tokio::test]
async fn a_server_over_http_that_was_away_is_used_again() {
    let Some(peers) = Peers::found() else { return };
    let server = peers.http(&[]).await;
    let port = server.url.rsplit_once(':').unwrap().1.split('/').next().unwrap().to_owned();
    let rig = Rig::with_servers(json!({"peer": server.entry("none")})).await;
    rig.engine.connected("peer").await;
    rig.engine.tool_gives("peer__add", json!({"a": 1, "b": 1})).await;
    drop(server);
    turn(&rig, "task", "peer__add", json!({"a": 2, "b": 3})).await.expect_err("nobody answers");
    let _server = peers.http(&["--port", &port]).await;
    eventually("it works again", async || {
        let answer = rig.engine.tool("peer__add", json!({"a": 2, "b": 3})).await;
        (answer.status == 200).then_some(())
    })
    .await;
    let status = async || connection(&rig.engine).await["status"].clone();
    eventually("the connection is as before", async || (status().await == "connected").then_some(())).await;
}

#[tokio::test]
async fn nothing_of_a_server_outlives_the_engine() {
    let Some(peers) = Peers::found() else { return };
    for signal in [Signal::KILL, Signal::TERM] {
        let servers = |place: &LoneEngine| {
            json!({
                "new": peers.stdio(place, Sdk::Newest, &["server.py"]),
                "stubborn": misbehaving_stdio(place, "silent-call"),
            })
        };
        let rig = Rig::with_servers_of(servers, |place| {
            place.with_file("permissions.json", r#"{"default": "allow"}"#)
        })
        .await;
        rig.engine.connected("new").await;
        rig.engine.connected("stubborn").await;
        rig.provider.enqueue(call("stubborn__bad", json!({"text": "x"})));
        let mut stream = rig.engine.execute_with(&message("task", "Call it.")).await;
        stream.until("the call", |event: &Event| event.kind == "tool_call").await;
        rig.engine.tool_gives("new__add", json!({"a": 2, "b": 3})).await;
        assert_eq!(children(&rig).len(), 2);
        let Rig { place, program, provider, .. } = rig;
        program.end(signal).await;
        let left = || processes::called_with(place.home.path().join("catalog/peers").as_os_str());
        eventually("all of them end", async || left().is_empty().then_some(())).await;
        drop(provider);
    }
}

#[tokio::test]
async fn a_call_that_a_kill_cut_off_is_not_made_again() {
    let Some(peers) = Peers::found() else { return };
    let server = peers.http(&[]).await;
    let servers = json!({"peer": server.entry("none")});
    let allow = |place: LoneEngine| place.with_file("permissions.json", r#"{"default": "allow"}"#);
    let rig = Rig::with_servers_of(|_| servers, allow).await;
    rig.engine.connected("peer").await;
    rig.provider.enqueue(call("peer__wait", json!({"seconds": 2})));
    let mut stream = rig.engine.execute_with(&message("task", "Wait.")).await;
    stream.until("the call", |event: &Event| event.kind == "tool_call").await;
    drop(stream);
    rig.provider.enqueue(done());
    let rig = rig.kill_and_start().await;
    let events = rig.engine.replay("task", 0).await.rest().await;
    assert_eq!(completed(&events), "Done.");
    results(&events)[0].expect_err("its outcome is unknown");
    let tally: Value = serde_json::from_str(&rig.engine.tool_gives("peer__tally", json!({})).await).unwrap();
    assert!(tally["finished"].as_u64().unwrap() + tally["cancelled"].as_u64().unwrap() <= 1, "{tally}");
}
