//! A person connects tool servers at the terminal: `roundhouse connection`.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;

use rustix::process::Signal;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::process::ChildStdin;

use crate::support::fake_services::{FakeServices, connection_entry, error_response, server_entry};
use crate::support::http::client;
use crate::support::test_env::BINARY;
use crate::support::tool_programs::write_catalog_file;
use crate::support::{
    Fleet, Program, ProgramExit, TestEnv, eventually, is_installed, processes, with_deadline,
};

/// A person at a terminal, and what stands in for both services.
struct CliFixture {
    home: TestEnv,
    services: FakeServices,
}

impl CliFixture {
    async fn start(servers: &[(&str, &str)]) -> Self {
        let servers = servers.iter().map(|(name, auth)| server_entry(name, auth)).collect();
        Self { home: TestEnv::new(), services: FakeServices::start(servers).await }
    }

    /// Gives a command, with an open standard input.
    fn run_interactive(&self, words: &[&str]) -> (Program, ChildStdin) {
        let line = [&["connection"], words, &self.services.cli_options()].concat();
        self.home.run_interactive(&line, &FakeServices::env())
    }

    /// Gives a command with `input`, and waits for its end.
    async fn run_with_input(&self, words: &[&str], input: &str) -> ProgramExit {
        let (program, mut stdin) = self.run_interactive(words);
        // What is not read need not be written.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        program.wait().await
    }

    /// Where the authorization server sends the browser back to.
    fn redirect_url(&self) -> String {
        format!("http://127.0.0.1:{}/assets/oauth/callback", self.home.ports.first())
    }

    /// From here on the server needs leave, after which the browser is sent back to `back`.
    fn require_authorization(&self, back: &str) {
        let mut address = reqwest::Url::parse("https://as.example.com/authorize?state=the-state").unwrap();
        address.query_pairs_mut().append_pair("redirect_uri", back);
        self.services.state().connect = (
            200,
            json!({"status": "authorization_required", "authorization_url": address.as_str(), "state": "the-state"}),
        );
    }
}

/// What a browser shows.
async fn browse(address: String) -> (u16, String) {
    let answer = with_deadline(&address, client().get(&address).send()).await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// A deployment whose catalog names these servers.
fn fleet(servers: &serde_json::Value) -> Fleet {
    let fleet = Fleet::new();
    let catalog = fleet.folder().join("catalog");
    fs::create_dir_all(&catalog).unwrap();
    write_catalog_file(&catalog, "mcp.json", &json!({"mcpServers": servers}).to_string());
    fleet
}

/// Gives a command to a running deployment, with an empty standard input.
async fn run_command(fleet: &Fleet, words: &[&str]) -> ProgramExit {
    let folder: &Path = fleet.folder();
    let line = [&["connection"], words, &["--user", "ada", "--dir", folder.to_str().unwrap()]].concat();
    let (program, input) = fleet.test_env.run_interactive(&line, &fleet.variables);
    drop(input);
    program.wait().await
}

#[tokio::test]
async fn the_servers_of_the_catalog_are_listed_and_what_cannot_be_is_told() {
    // A port on which nobody listens.
    let nowhere = TestEnv::new();
    let address = format!("http://127.0.0.1:{}/mcp", nowhere.ports.first());
    let fleet = fleet(&json!({
        "clock": {"type": "http", "url": address, "description": "What time it is"},
        "mail": {"type": "http", "url": address, "auth": "api_key"},
        "notes": {"type": "http", "url": address, "auth": "oauth"},
    }));
    let up = fleet.start_up().await;
    let said = run_command(&fleet, &["list"]).await.assert_success();
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

    run_command(&fleet, &["connect", "nobody"]).await.assert_failure(2, &["`nobody`", "clock, mail, notes"]);
    run_command(&fleet, &["connect", "mail"])
        .await
        .assert_failure(2, &["`mail` needs a key", "standard input"]);
    run_command(&fleet, &["connect", "clock"]).await.assert_failure(1, &["`clock` cannot be connected"]);
    run_command(&fleet, &["remove", "mail"])
        .await
        .assert_failure(2, &["no connection `mail`, nor any other"]);
    up.signal_and_wait(Signal::TERM).await.assert_success();
    run_command(&fleet, &["list"]).await.assert_failure(1, &["is `roundhouse up` running?"]);
}

#[tokio::test]
async fn a_catalog_without_servers_says_where_they_would_be_named() {
    let desk = CliFixture::start(&[]).await;
    let said = desk.run_with_input(&["list"], "").await.assert_success();
    assert!(said.contains("names no tool servers") && said.contains("mcp.json"), "{said}");
    desk.run_with_input(&["connect", "x"], "").await.assert_failure(2, &["no server `x`", "mcp.json"]);
    let home = TestEnv::new();
    let nowhere = home.run(&["connection", "list"], &BTreeMap::new());
    nowhere.wait().await.assert_failure(2, &["run `roundhouse up` first", "--dir"]);
}

#[tokio::test]
async fn a_server_that_needs_nothing_is_connected_listed_and_removed() {
    let desk = CliFixture::start(&[("clock", "none"), ("mail", "api_key")]).await;
    let made = connection_entry("clock", "connected", &["now", "convert"]);
    let id = made["connection"].as_str().unwrap().to_owned();
    desk.services.state().connect = (200, json!({"status": "connected", "connection": id}));
    desk.services.state().connections = vec![
        made,
        json!({"connection": format!("conn_{:032x}", 9), "server": "gone", "status": "error", "tools": [],
            "created_at": "2026-01-01T00:00:00.000Z", "error": "the catalog names it no more\u{1b}[2J"}),
    ];
    let said = desk.run_with_input(&["connect", "clock"], "not a key\n").await.assert_success();
    assert!(said.contains("`clock` is connected. It offers 2 tools: now, convert"), "{said}");
    assert_eq!(desk.services.state().connects, [json!({"server": "clock"})]);

    let said = desk.run_with_input(&["list"], "").await.assert_success();
    for part in ["All about clock", "now, convert", "gone", "the catalog names it no more\\u{1b}[2J"] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    desk.run_with_input(&["remove", "mail"], "")
        .await
        .assert_failure(2, &["no connection `mail`", "clock, gone"]);
    desk.run_with_input(&["remove", "gone"], "").await.assert_success();
    let said = desk.run_with_input(&["remove", &id], "").await.assert_success();
    assert!(said.contains("`clock` is removed"), "{said}");
    assert!(desk.services.state().connections.is_empty());
}

#[tokio::test]
async fn a_key_is_read_from_standard_input_and_shown_nowhere() {
    let desk = CliFixture::start(&[("mail", "api_key")]).await;
    let made = connection_entry("mail", "connected", &["send"]);
    desk.services.state().connect = (200, json!({"status": "connected", "connection": made["connection"]}));
    desk.services.state().connections.push(made);
    let said = desk.run_with_input(&["connect", "mail"], "hunter-2\n").await.assert_success();
    assert!(said.contains("one tool: send") && !said.contains("hunter"), "{said}");
    // Without one, what the engine keeps may do.
    desk.run_with_input(&["connect", "mail"], "\n").await.assert_success();
    let sent = [json!({"server": "mail", "credentials": {"api_key": "hunter-2"}}), json!({"server": "mail"})];
    assert_eq!(desk.services.state().connects, sent);

    desk.services.state().connect =
        error_response(503, "ASSETS_NOT_CONFIGURED", "AD_ENCRYPTION_KEY is not set. Set it");
    desk.run_with_input(&["connect", "mail"], "hunter-2")
        .await
        .assert_failure(2, &["AD_ENCRYPTION_KEY is not set. Set it"]);
    desk.services.state().connect =
        error_response(502, "SERVER_FAILED", "`mail` cannot be connected: it refuses the key");
    desk.run_with_input(&["connect", "mail"], "hunter-3").await.assert_failure(1, &["it refuses the key"]);
}

#[tokio::test]
async fn a_key_that_is_typed_is_not_shown_and_the_terminal_is_left_as_it_was() {
    if !is_installed("script") {
        return;
    }
    let desk = CliFixture::start(&[("mail", "api_key")]).await;
    let made = connection_entry("mail", "connected", &["send"]);
    desk.services.state().connect = (200, json!({"status": "connected", "connection": made["connection"]}));
    desk.services.state().connections.push(made);
    let command =
        [&[BINARY, "connection", "connect", "mail"], &desk.services.cli_options()[..]].concat().join(" ");
    // The shell outlives Ctrl-C, which every program at the terminal gets.
    let line = format!("trap : INT; {command}; echo code $?; stty -a; sleep 1");
    for (typed, end) in [("hunter-2\n", "code 0"), ("hunter-2\u{3}", "code 1")] {
        let line = ["script", "--quiet", "--command", &line, "/dev/null"];
        let (mut terminal, mut keys) = desk.home.run_program_interactive(&line, &FakeServices::env());
        terminal.wait_for_output("given before): ").await.unwrap();
        keys.write_all(typed.as_bytes()).await.unwrap();
        terminal.wait_for_output(" echok ").await.unwrap_or_else(|ended| panic!("{}", ended.output));
        let said = terminal.output();
        assert!(said.contains(end) && !said.contains("hunter"), "{said}");
        assert!(said.contains(" echo ") && !said.contains("-echo "), "{said}");
        drop(keys);
        terminal.wait().await;
    }
    assert_eq!(
        desk.services.state().connects,
        [json!({"server": "mail", "credentials": {"api_key": "hunter-2"}})]
    );
}

#[tokio::test]
async fn leave_is_given_in_a_browser_that_comes_back_to_the_command() {
    let desk = CliFixture::start(&[("notes", "oauth")]).await;
    desk.require_authorization(&desk.redirect_url());
    let made = connection_entry("notes", "connected", &["read", "write"]);
    desk.services.state().callback = (200, json!({"status": "connected", "connection": made["connection"]}));
    let (mut program, _input) = desk.run_interactive(&["connect", "notes"]);
    let said = program.wait_for_output("Waiting for your leave").await.unwrap();
    assert!(said.contains("\nhttps://as.example.com/authorize?state=the-state&redirect_uri=http"), "{said}");

    let back = desk.redirect_url();
    assert_eq!(browse(back.replace("/oauth", "")).await.0, 404);
    assert_eq!(browse(format!("{back}?code=stolen&state=another")).await.0, 400);
    assert!(desk.services.state().callbacks.is_empty() && program.is_running());
    desk.services.state().connections.push(made);
    let (status, page) =
        browse(format!("{back}?code=the-code&state=the-state&iss=https%3A%2F%2Fas.example.com")).await;
    assert_eq!((status, page.as_str()), (200, "Connected. You can close this page.\n"));
    let said = program.wait().await.assert_success();
    assert!(said.contains("`notes` is connected. It offers 2 tools: read, write"), "{said}");
    let brought = json!({"code": "the-code", "state": "the-state", "iss": "https://as.example.com"});
    assert_eq!(desk.services.state().callbacks, [brought]);
}

#[tokio::test]
async fn leave_that_is_refused_is_told_at_the_terminal_and_in_the_browser() {
    let desk = CliFixture::start(&[("notes", "oauth")]).await;
    desk.require_authorization(&desk.redirect_url());
    desk.services.state().callback =
        error_response(400, "OAUTH_DENIED", "the authorization server gave no leave: access_denied");
    let (mut program, _input) = desk.run_interactive(&["connect", "notes"]);
    program.wait_for_output("Waiting for your leave").await.unwrap();
    let (status, page) = browse(format!("{}?error=access_denied&state=the-state", desk.redirect_url())).await;
    assert_eq!(status, 502);
    let words = ["gave no leave: access_denied", "`roundhouse connection connect notes` asks again"];
    assert!(words.iter().all(|words| page.contains(words)), "{page}");
    program.wait().await.assert_failure(1, &words);
    assert_eq!(desk.services.state().callbacks, [json!({"error": "access_denied", "state": "the-state"})]);
}

#[tokio::test]
async fn where_the_product_takes_the_callback_the_command_waits_for_the_connection() {
    let desk = CliFixture::start(&[("notes", "oauth")]).await;
    // The product's backend: on the internet, or on this machine, where its port is taken.
    let backend = TcpListener::bind(("127.0.0.1", desk.home.ports.first())).unwrap();
    for back in ["https://app.example.com/assets/oauth/callback", &desk.redirect_url()] {
        desk.require_authorization(back);
        desk.services.state().connections = vec![connection_entry("notes", "pending", &[])];
        let looks = desk.services.state().connection_list_count;
        let (mut program, _input) = desk.run_interactive(&["connect", "notes"]);
        let said = program.wait_for_output("Waiting for your leave").await.unwrap();
        assert_eq!(said.contains("must forward the callback"), back.starts_with("http:"), "{said}");
        eventually("it has looked", async || {
            (desk.services.state().connection_list_count > looks).then_some(())
        })
        .await;
        desk.services.state().connections = vec![connection_entry("notes", "connected", &["read"])];
        let said = program.wait().await.assert_success();
        assert!(said.contains("`notes` is connected. It offers one tool: read"), "{said}");
    }
    drop(backend);
    assert!(desk.services.state().callbacks.is_empty());
}

#[tokio::test]
async fn ctrl_c_ends_the_wait_and_frees_the_port() {
    let desk = CliFixture::start(&[("notes", "oauth")]).await;
    desk.require_authorization(&desk.redirect_url());
    let (mut program, _input) = desk.run_interactive(&["connect", "notes"]);
    program.wait_for_output("Waiting for your leave").await.unwrap();
    processes::signal(program.pid(), Signal::INT);
    program.wait().await.assert_failure(1, &["ended before it was done"]);
    TcpListener::bind(("127.0.0.1", desk.home.ports.first())).unwrap();
}

#[tokio::test]
async fn what_is_no_web_address_is_not_shown_to_be_opened() {
    let desk = CliFixture::start(&[("notes", "oauth")]).await;
    desk.services.state().connect =
        (200, json!({"status": "authorization_required", "authorization_url": "file:///etc", "state": "s"}));
    let said = desk.run_with_input(&["connect", "notes"], "").await.assert_failure(1, &["no web address"]);
    assert!(!said.contains("file:"), "{said}");
}
