//! A person connects tool servers at the terminal: `roundhouse connection`.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;

use crate::support::home::BINARY;
use crate::support::http::client;
use crate::support::peer::{Peer, connection, refusal, server};
use crate::support::programs::write_into;
use crate::support::{Ended, Fleet, Home, Program, eventually, has, in_time, processes};

/// A person at a terminal, and what stands in for both services.
struct Desk {
    home: Home,
    peer: Peer,
}

impl Desk {
    async fn with(servers: &[(&str, &str)]) -> Self {
        let servers = servers.iter().map(|(name, auth)| server(name, auth)).collect();
        Self { home: Home::new(), peer: Peer::with(servers).await }
    }

    /// Gives a command, with an open standard input.
    fn talk(&self, words: &[&str]) -> (Program, ChildStdin) {
        let line = [&["connection"], words, &self.peer.options()].concat();
        self.home.talk(&line, &Peer::variables())
    }

    /// Gives a command with `input`, and waits for its end.
    async fn told(&self, words: &[&str], input: &str) -> Ended {
        let (program, mut stdin) = self.talk(words);
        // What is not read need not be written.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        program.ended().await
    }

    /// Where the authorization server sends the browser back to.
    fn back(&self) -> String {
        format!("http://127.0.0.1:{}/assets/oauth/callback", self.home.ports.first())
    }

    /// From here on the server needs leave, after which the browser is sent back to `back`.
    fn authorizes(&self, back: &str) {
        let mut address = reqwest::Url::parse("https://as.example.com/authorize?state=the-state").unwrap();
        address.query_pairs_mut().append_pair("redirect_uri", back);
        self.peer.world().connect = (
            200,
            json!({"status": "authorization_required", "authorization_url": address.as_str(), "state": "the-state"}),
        );
    }
}

/// What a browser shows.
async fn browse(address: String) -> (u16, String) {
    let answer = in_time(&address, client().get(&address).send()).await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// A deployment whose catalog names these servers.
fn fleet(servers: &serde_json::Value) -> Fleet {
    let fleet = Fleet::new();
    let catalog = fleet.folder().join("catalog");
    fs::create_dir_all(&catalog).unwrap();
    write_into(&catalog, "mcp.json", &json!({"mcpServers": servers}).to_string());
    fleet
}

/// Gives a command to a running deployment, with an empty standard input.
async fn at(fleet: &Fleet, words: &[&str]) -> Ended {
    let folder: &Path = fleet.folder();
    let line = [&["connection"], words, &["--user", "ada", "--dir", folder.to_str().unwrap()]].concat();
    let (program, input) = fleet.home.talk(&line, &fleet.variables);
    drop(input);
    program.ended().await
}

#[tokio::test]
async fn the_servers_of_the_catalog_are_listed_and_what_cannot_be_is_told() {
    // A port on which nobody listens.
    let nowhere = Home::new();
    let address = format!("http://127.0.0.1:{}/mcp", nowhere.ports.first());
    let fleet = fleet(&json!({
        "clock": {"type": "http", "url": address, "description": "What time it is"},
        "mail": {"type": "http", "url": address, "auth": "api_key"},
        "notes": {"type": "http", "url": address, "auth": "oauth"},
    }));
    let up = fleet.up().await;
    let said = at(&fleet, &["list"]).await.well();
    let cells = |line: &str| -> Vec<String> {
        line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
    };
    let rows: Vec<_> = said.lines().map(cells).collect();
    let expected = [
        &["SERVER", "NEEDS", "STATUS", "TOOLS", "WHAT IT IS FOR"][..],
        &["clock", "nothing", "not connected", "-", "What time it is"],
        &["mail", "a key", "not connected", "-"],
        &["notes", "your leave", "not connected", "-"],
    ];
    assert_eq!(rows, expected, "{said}");

    at(&fleet, &["connect", "nobody"]).await.refused(2, &["`nobody`", "clock, mail, notes"]);
    at(&fleet, &["connect", "mail"]).await.refused(2, &["`mail` needs a key", "standard input"]);
    at(&fleet, &["connect", "clock"]).await.refused(1, &["`clock` cannot be connected"]);
    at(&fleet, &["remove", "mail"]).await.refused(2, &["no connection `mail`, nor any other"]);
    up.end(Signal::TERM).await.well();
    at(&fleet, &["list"]).await.refused(1, &["is `roundhouse up` running?"]);
}

#[tokio::test]
async fn a_catalog_without_servers_says_where_they_would_be_named() {
    let desk = Desk::with(&[]).await;
    let said = desk.told(&["list"], "").await.well();
    assert!(said.contains("names no tool servers") && said.contains("mcp.json"), "{said}");
    desk.told(&["connect", "x"], "").await.refused(2, &["no server `x`", "mcp.json"]);
    let home = Home::new();
    let nowhere = home.run(&["connection", "list"], &BTreeMap::new());
    nowhere.ended().await.refused(2, &["run `roundhouse up` first", "--dir"]);
}

#[tokio::test]
async fn a_server_that_needs_nothing_is_connected_listed_and_removed() {
    let desk = Desk::with(&[("clock", "none"), ("mail", "api_key")]).await;
    let made = connection("clock", "connected", &["now", "convert"]);
    let id = made["connection"].as_str().unwrap().to_owned();
    desk.peer.world().connect = (200, json!({"status": "connected", "connection": id}));
    desk.peer.world().connections = vec![
        made,
        json!({"connection": format!("conn_{:032x}", 9), "server": "gone", "status": "error", "tools": [],
            "created_at": "2026-01-01T00:00:00.000Z", "error": "the catalog names it no more\u{1b}[2J"}),
    ];
    let said = desk.told(&["connect", "clock"], "not a key\n").await.well();
    assert!(said.contains("`clock` is connected. It offers 2 tools: now, convert"), "{said}");
    assert_eq!(desk.peer.world().connects, [json!({"server": "clock"})]);

    let said = desk.told(&["list"], "").await.well();
    for part in ["All about clock", "now, convert", "gone", "the catalog names it no more\\u{1b}[2J"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    desk.told(&["remove", "mail"], "").await.refused(2, &["no connection `mail`", "clock, gone"]);
    desk.told(&["remove", "gone"], "").await.well();
    let said = desk.told(&["remove", &id], "").await.well();
    assert!(said.contains("`clock` is removed"), "{said}");
    assert!(desk.peer.world().connections.is_empty());
}

#[tokio::test]
async fn a_key_is_read_from_standard_input_and_shown_nowhere() {
    let desk = Desk::with(&[("mail", "api_key")]).await;
    let made = connection("mail", "connected", &["send"]);
    desk.peer.world().connect = (200, json!({"status": "connected", "connection": made["connection"]}));
    desk.peer.world().connections.push(made);
    let said = desk.told(&["connect", "mail"], "hunter-2\n").await.well();
    assert!(said.contains("one tool: send") && !said.contains("hunter"), "{said}");
    // Without one, what the engine keeps may do.
    desk.told(&["connect", "mail"], "\n").await.well();
    let sent = [json!({"server": "mail", "credentials": {"api_key": "hunter-2"}}), json!({"server": "mail"})];
    assert_eq!(desk.peer.world().connects, sent);

    desk.peer.world().connect = refusal(503, "ASSETS_NOT_CONFIGURED", "AD_ENCRYPTION_KEY is not set. Set it");
    desk.told(&["connect", "mail"], "hunter-2").await.refused(2, &["AD_ENCRYPTION_KEY is not set. Set it"]);
    desk.peer.world().connect =
        refusal(502, "SERVER_FAILED", "`mail` cannot be connected: it refuses the key");
    desk.told(&["connect", "mail"], "hunter-3").await.refused(1, &["it refuses the key"]);
}

#[tokio::test]
async fn a_key_that_is_typed_is_not_shown_and_the_terminal_is_left_as_it_was() {
    if !has("script") {
        return;
    }
    let desk = Desk::with(&[("mail", "api_key")]).await;
    let made = connection("mail", "connected", &["send"]);
    desk.peer.world().connect = (200, json!({"status": "connected", "connection": made["connection"]}));
    desk.peer.world().connections.push(made);
    let command = [&[BINARY, "connection", "connect", "mail"], &desk.peer.options()[..]].concat().join(" ");
    // The shell outlives Ctrl-C, which every program at the terminal gets.
    let line = format!("trap : INT; {command}; echo code $?; stty -a; sleep 1");
    for (typed, end) in [("hunter-2\n", "code 0"), ("hunter-2\u{3}", "code 1")] {
        let line = ["script", "--quiet", "--command", &line, "/dev/null"];
        let (mut terminal, mut keys) = desk.home.talk_to(&line, &Peer::variables());
        terminal.says("given before): ").await.unwrap();
        keys.write_all(typed.as_bytes()).await.unwrap();
        terminal.says(" echok ").await.unwrap_or_else(|ended| panic!("{}", ended.output));
        let said = terminal.output();
        assert!(said.contains(end) && !said.contains("hunter"), "{said}");
        assert!(said.contains(" echo ") && !said.contains("-echo "), "{said}");
        drop(keys);
        terminal.ended().await;
    }
    assert_eq!(
        desk.peer.world().connects,
        [json!({"server": "mail", "credentials": {"api_key": "hunter-2"}})]
    );
}

#[tokio::test]
async fn leave_is_given_in_a_browser_that_comes_back_to_the_command() {
    let desk = Desk::with(&[("notes", "oauth")]).await;
    desk.authorizes(&desk.back());
    let made = connection("notes", "connected", &["read", "write"]);
    desk.peer.world().callback = (200, json!({"status": "connected", "connection": made["connection"]}));
    let (mut program, _input) = desk.talk(&["connect", "notes"]);
    let said = program.says("Waiting for your leave").await.unwrap();
    assert!(said.contains("\nhttps://as.example.com/authorize?state=the-state&redirect_uri=http"), "{said}");

    let back = desk.back();
    assert_eq!(browse(back.replace("/oauth", "")).await.0, 404);
    assert_eq!(browse(format!("{back}?code=stolen&state=another")).await.0, 400);
    assert!(desk.peer.world().callbacks.is_empty() && program.runs());
    desk.peer.world().connections.push(made);
    let (status, page) =
        browse(format!("{back}?code=the-code&state=the-state&iss=https%3A%2F%2Fas.example.com")).await;
    assert_eq!((status, page.as_str()), (200, "Connected. You can close this page.\n"));
    let said = program.ended().await.well();
    assert!(said.contains("`notes` is connected. It offers 2 tools: read, write"), "{said}");
    let brought = json!({"code": "the-code", "state": "the-state", "iss": "https://as.example.com"});
    assert_eq!(desk.peer.world().callbacks, [brought]);
}

#[tokio::test]
async fn leave_that_is_refused_is_told_at_the_terminal_and_in_the_browser() {
    let desk = Desk::with(&[("notes", "oauth")]).await;
    desk.authorizes(&desk.back());
    desk.peer.world().callback =
        refusal(400, "OAUTH_DENIED", "the authorization server gave no leave: access_denied");
    let (mut program, _input) = desk.talk(&["connect", "notes"]);
    program.says("Waiting for your leave").await.unwrap();
    let (status, page) = browse(format!("{}?error=access_denied&state=the-state", desk.back())).await;
    assert_eq!(status, 502);
    let words = ["gave no leave: access_denied", "`roundhouse connection connect notes` asks again"];
    assert!(words.iter().all(|words| page.contains(words)), "{page}");
    program.ended().await.refused(1, &words);
    assert_eq!(desk.peer.world().callbacks, [json!({"error": "access_denied", "state": "the-state"})]);
}

#[tokio::test]
async fn where_the_product_takes_the_callback_the_command_waits_for_the_connection() {
    let desk = Desk::with(&[("notes", "oauth")]).await;
    // The product's backend: on the internet, or on this machine, where its port is taken.
    let backend = TcpListener::bind(("127.0.0.1", desk.home.ports.first())).unwrap();
    for back in ["https://app.example.com/assets/oauth/callback", &desk.back()] {
        desk.authorizes(back);
        desk.peer.world().connections = vec![connection("notes", "pending", &[])];
        let looks = desk.peer.world().looks;
        let (mut program, _input) = desk.talk(&["connect", "notes"]);
        let said = program.says("Waiting for your leave").await.unwrap();
        assert_eq!(said.contains("must forward the callback"), back.starts_with("http:"), "{said}");
        eventually("it has looked", async || (desk.peer.world().looks > looks).then_some(())).await;
        desk.peer.world().connections = vec![connection("notes", "connected", &["read"])];
        let said = program.ended().await.well();
        assert!(said.contains("`notes` is connected. It offers one tool: read"), "{said}");
    }
    drop(backend);
    assert!(desk.peer.world().callbacks.is_empty());
}

#[tokio::test]
async fn ctrl_c_ends_the_wait_and_frees_the_port() {
    let desk = Desk::with(&[("notes", "oauth")]).await;
    desk.authorizes(&desk.back());
    let (mut program, _input) = desk.talk(&["connect", "notes"]);
    program.says("Waiting for your leave").await.unwrap();
    processes::signal(program.pid(), Signal::INT);
    program.ended().await.refused(1, &["ended before it was done"]);
    TcpListener::bind(("127.0.0.1", desk.home.ports.first())).unwrap();
}

#[tokio::test]
async fn what_is_no_web_address_is_not_shown_to_be_opened() {
    let desk = Desk::with(&[("notes", "oauth")]).await;
    desk.peer.world().connect =
        (200, json!({"status": "authorization_required", "authorization_url": "file:///etc", "state": "s"}));
    let said = desk.told(&["connect", "notes"], "").await.refused(1, &["no web address"]);
    assert!(!said.contains("file:"), "{said}");
}
