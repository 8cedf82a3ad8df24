//! `roundhouse connection`: a person connects tool servers in the terminal.

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

/// A person's home for the command, and fake services in place of the orchestrator and the engine.
struct CliFixture {
    home: TestEnv,
    services: FakeServices,
}

impl CliFixture {
    async fn start(servers: &[(&str, &str)]) -> Self {
        let servers = servers.iter().map(|(name, auth)| server_entry(name, auth)).collect();
        Self { home: TestEnv::new(), services: FakeServices::start(servers).await }
    }

    /// Runs a subcommand with an open standard input.
    fn run_interactive(&self, words: &[&str]) -> (Program, ChildStdin) {
        let line = [&["connection"], words, &self.services.cli_options()].concat();
        self.home.run_interactive(&line, &FakeServices::env())
    }

    /// Runs a subcommand with `input` and waits for its end.
    async fn run_with_input(&self, words: &[&str], input: &str) -> ProgramExit {
        let (program, mut stdin) = self.run_interactive(words);
        // The command need not read its input.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        program.wait().await
    }

    /// The URL to which the authorization server redirects the browser.
    fn redirect_url(&self) -> String {
        format!("http://127.0.0.1:{}/assets/oauth/callback", self.home.ports.first())
    }

    /// From now on connecting needs authorization, after which the browser is redirected to `redirect_url`.
    fn require_authorization(&self, redirect_url: &str) {
        let mut address = reqwest::Url::parse("https://as.example.com/authorize?state=the-state").unwrap();
        address.query_pairs_mut().append_pair("redirect_uri", redirect_url);
        self.services.state().connect = (
            200,
            json!({"status": "authorization_required", "authorization_url": address.as_str(), "state": "the-state"}),
        );
    }
}

/// Opens an address as a browser does; returns the status and the page.
async fn browse(address: String) -> (u16, String) {
    let answer = with_deadline(&address, client().get(&address).send()).await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// A fleet whose catalog names these servers.
fn fleet(servers: &serde_json::Value) -> Fleet {
    let fleet = Fleet::new();
    let catalog = fleet.folder().join("catalog");
    fs::create_dir_all(&catalog).unwrap();
    write_catalog_file(&catalog, "mcp.json", &json!({"mcpServers": servers}).to_string());
    fleet
}

/// Runs a subcommand against a running fleet, with an empty standard input.
async fn run_command(fleet: &Fleet, words: &[&str]) -> ProgramExit {
    let folder: &Path = fleet.folder();
    let line = [&["connection"], words, &["--user", "ada", "--dir", folder.to_str().unwrap()]].concat();
    let (program, input) = fleet.test_env.run_interactive(&line, &fleet.variables);
    drop(input);
    program.wait().await
}

#[tokio::test]
async fn the_servers_of_the_catalog_are_listed_and_what_cannot_be_is_told() {
    // A port on which nothing listens.
    let nowhere = TestEnv::new();
    let address = format!("http://127.0.0.1:{}/mcp", nowhere.ports.first());
    let fleet = fleet(&json!({
        "clock": {"type": "http", "url": address, "description": "What time it is"},
        "mail": {"type": "http", "url": address, "auth": "api_key"},
        "notes": {"type": "http", "url": address, "auth": "oauth"},
    }));
    let up = fleet.start_up().await;
    let output = run_command(&fleet, &["list"]).await.assert_success();
    let cells = |line: &str| -> Vec<String> {
        line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
    };
    let rows: Vec<_> = output.lines().map(cells).collect();
    let expected = [
        &["SERVER", "NEEDS", "STATUS", "TOOLS", "PURPOSE"][..],
        &["clock", "nothing", "not connected", "-", "What time it is"],
        &["mail", "a key", "not connected", "-"],
        &["notes", "sign-in", "not connected", "-"],
    ];
    assert_eq!(rows, expected, "{output}");

    run_command(&fleet, &["connect", "nobody"]).await.assert_failure(2, &["`nobody`", "clock, mail, notes"]);
    run_command(&fleet, &["connect", "mail"])
        .await
        .assert_failure(2, &["`mail` needs a key", "standard input"]);
    run_command(&fleet, &["connect", "clock"]).await.assert_failure(1, &["`clock` cannot be connected"]);
    run_command(&fleet, &["remove", "mail"])
        .await
        .assert_failure(2, &["no connection `mail`; there are none"]);
    up.signal_and_wait(Signal::TERM).await.assert_success();
    run_command(&fleet, &["list"]).await.assert_failure(1, &["is `roundhouse up` running?"]);
}

#[tokio::test]
async fn a_catalog_without_servers_says_where_they_would_be_named() {
    let fixture = CliFixture::start(&[]).await;
    let output = fixture.run_with_input(&["list"], "").await.assert_success();
    assert!(output.contains("names no tool servers") && output.contains("mcp.json"), "{output}");
    fixture.run_with_input(&["connect", "x"], "").await.assert_failure(2, &["no server `x`", "mcp.json"]);
    let home = TestEnv::new();
    let nowhere = home.run(&["connection", "list"], &BTreeMap::new());
    nowhere.wait().await.assert_failure(2, &["run `roundhouse up` first", "--dir"]);
}

#[tokio::test]
async fn a_server_that_needs_nothing_is_connected_listed_and_removed() {
    let fixture = CliFixture::start(&[("clock", "none"), ("mail", "api_key")]).await;
    let connection = connection_entry("clock", "connected", &["now", "convert"]);
    let id = connection["connection"].as_str().unwrap().to_owned();
    fixture.services.state().connect = (200, json!({"status": "connected", "connection": id}));
    fixture.services.state().connections = vec![
        connection,
        json!({"connection": format!("conn_{:032x}", 9), "server": "gone", "status": "error", "tools": [],
            "created_at": "2026-01-01T00:00:00.000Z", "error": "the catalog names it no more\u{1b}[2J"}),
    ];
    let output = fixture.run_with_input(&["connect", "clock"], "not a key\n").await.assert_success();
    assert!(output.contains("`clock` is connected. It offers 2 tools: now, convert"), "{output}");
    assert_eq!(fixture.services.state().connects, [json!({"server": "clock"})]);

    let output = fixture.run_with_input(&["list"], "").await.assert_success();
    for part in ["All about clock", "now, convert", "gone", "the catalog names it no more\\u{1b}[2J"] {
        assert!(output.contains(part), "no {part:?} in {output}");
    }
    fixture
        .run_with_input(&["remove", "mail"], "")
        .await
        .assert_failure(2, &["no connection `mail`", "clock, gone"]);
    fixture.run_with_input(&["remove", "gone"], "").await.assert_success();
    let output = fixture.run_with_input(&["remove", &id], "").await.assert_success();
    assert!(output.contains("`clock` was removed"), "{output}");
    assert!(fixture.services.state().connections.is_empty());
}

#[tokio::test]
async fn a_key_is_read_from_standard_input_and_shown_nowhere() {
    let fixture = CliFixture::start(&[("mail", "api_key")]).await;
    let connection = connection_entry("mail", "connected", &["send"]);
    fixture.services.state().connect =
        (200, json!({"status": "connected", "connection": connection["connection"]}));
    fixture.services.state().connections.push(connection);
    let output = fixture.run_with_input(&["connect", "mail"], "hunter-2\n").await.assert_success();
    assert!(output.contains("one tool: send") && !output.contains("hunter"), "{output}");
    // Without a key, the one that the engine has stored may suffice.
    fixture.run_with_input(&["connect", "mail"], "\n").await.assert_success();
    let sent = [json!({"server": "mail", "credentials": {"api_key": "hunter-2"}}), json!({"server": "mail"})];
    assert_eq!(fixture.services.state().connects, sent);

    fixture.services.state().connect =
        error_response(503, "ASSETS_NOT_CONFIGURED", "AD_ENCRYPTION_KEY is not set. Set it");
    fixture
        .run_with_input(&["connect", "mail"], "hunter-2")
        .await
        .assert_failure(2, &["AD_ENCRYPTION_KEY is not set. Set it"]);
    fixture.services.state().connect =
        error_response(502, "SERVER_FAILED", "`mail` cannot be connected: it refuses the key");
    fixture.run_with_input(&["connect", "mail"], "hunter-3").await.assert_failure(1, &["it refuses the key"]);
}

#[tokio::test]
async fn a_key_that_is_typed_is_not_shown_and_the_terminal_is_left_as_it_was() {
    if !is_installed("script") {
        return;
    }
    let fixture = CliFixture::start(&[("mail", "api_key")]).await;
    let connection = connection_entry("mail", "connected", &["send"]);
    fixture.services.state().connect =
        (200, json!({"status": "connected", "connection": connection["connection"]}));
    fixture.services.state().connections.push(connection);
    let command =
        [&[BINARY, "connection", "connect", "mail"], &fixture.services.cli_options()[..]].concat().join(" ");
    // The shell survives Ctrl-C, which reaches every program of the terminal.
    let line = format!("trap : INT; {command}; echo code $?; stty -a; sleep 1");
    for (typed, end) in [("hunter-2\n", "code 0"), ("hunter-2\u{3}", "code 1")] {
        let line = ["script", "--quiet", "--command", &line, "/dev/null"];
        let (mut terminal, mut keys) = fixture.home.run_program_interactive(&line, &FakeServices::env());
        terminal.wait_for_output("given before): ").await.unwrap();
        keys.write_all(typed.as_bytes()).await.unwrap();
        terminal.wait_for_output(" echok ").await.unwrap_or_else(|ended| panic!("{}", ended.output));
        let output = terminal.output();
        assert!(output.contains(end) && !output.contains("hunter"), "{output}");
        assert!(output.contains(" echo ") && !output.contains("-echo "), "{output}");
        drop(keys);
        terminal.wait().await;
    }
    assert_eq!(
        fixture.services.state().connects,
        [json!({"server": "mail", "credentials": {"api_key": "hunter-2"}})]
    );
}

#[tokio::test]
async fn leave_is_given_in_a_browser_that_comes_back_to_the_command() {
    let fixture = CliFixture::start(&[("notes", "oauth")]).await;
    fixture.require_authorization(&fixture.redirect_url());
    let connection = connection_entry("notes", "connected", &["read", "write"]);
    fixture.services.state().callback =
        (200, json!({"status": "connected", "connection": connection["connection"]}));
    let (mut program, _input) = fixture.run_interactive(&["connect", "notes"]);
    let output = program.wait_for_output("Waiting for your authorization").await.unwrap();
    assert!(
        output.contains("\nhttps://as.example.com/authorize?state=the-state&redirect_uri=http"),
        "{output}"
    );

    let redirect_url = fixture.redirect_url();
    assert_eq!(browse(redirect_url.replace("/oauth", "")).await.0, 404);
    assert_eq!(browse(format!("{redirect_url}?code=stolen&state=another")).await.0, 400);
    assert!(fixture.services.state().callbacks.is_empty() && program.is_running());
    fixture.services.state().connections.push(connection);
    let (status, page) =
        browse(format!("{redirect_url}?code=the-code&state=the-state&iss=https%3A%2F%2Fas.example.com"))
            .await;
    assert_eq!((status, page.as_str()), (200, "Connected. You can close this page.\n"));
    let output = program.wait().await.assert_success();
    assert!(output.contains("`notes` is connected. It offers 2 tools: read, write"), "{output}");
    let forwarded = json!({"code": "the-code", "state": "the-state", "iss": "https://as.example.com"});
    assert_eq!(fixture.services.state().callbacks, [forwarded]);
}

#[tokio::test]
async fn leave_that_is_refused_is_told_at_the_terminal_and_in_the_browser() {
    let fixture = CliFixture::start(&[("notes", "oauth")]).await;
    fixture.require_authorization(&fixture.redirect_url());
    fixture.services.state().callback =
        error_response(400, "OAUTH_DENIED", "the authorization server denied access: access_denied");
    let (mut program, _input) = fixture.run_interactive(&["connect", "notes"]);
    program.wait_for_output("Waiting for your authorization").await.unwrap();
    let (status, page) =
        browse(format!("{}?error=access_denied&state=the-state", fixture.redirect_url())).await;
    assert_eq!(status, 502);
    let words = ["denied access: access_denied", "`roundhouse connection connect notes` asks again"];
    assert!(words.iter().all(|words| page.contains(words)), "{page}");
    program.wait().await.assert_failure(1, &words);
    assert_eq!(fixture.services.state().callbacks, [json!({"error": "access_denied", "state": "the-state"})]);
}

#[tokio::test]
async fn where_the_product_takes_the_callback_the_command_waits_for_the_connection() {
    let fixture = CliFixture::start(&[("notes", "oauth")]).await;
    // The product's backend receives the callback: on the internet, or on this machine, where it holds the port.
    let backend = TcpListener::bind(("127.0.0.1", fixture.home.ports.first())).unwrap();
    for redirect_url in ["https://app.example.com/assets/oauth/callback", &fixture.redirect_url()] {
        fixture.require_authorization(redirect_url);
        fixture.services.state().connections = vec![connection_entry("notes", "pending", &[])];
        let list_count = fixture.services.state().connection_list_count;
        let (mut program, _input) = fixture.run_interactive(&["connect", "notes"]);
        let output = program.wait_for_output("Waiting for your authorization").await.unwrap();
        assert_eq!(
            output.contains("must forward the callback"),
            redirect_url.starts_with("http:"),
            "{output}"
        );
        eventually("it has polled", async || {
            (fixture.services.state().connection_list_count > list_count).then_some(())
        })
        .await;
        fixture.services.state().connections = vec![connection_entry("notes", "connected", &["read"])];
        let output = program.wait().await.assert_success();
        assert!(output.contains("`notes` is connected. It offers one tool: read"), "{output}");
    }
    drop(backend);
    assert!(fixture.services.state().callbacks.is_empty());
}

#[tokio::test]
async fn ctrl_c_ends_the_wait_and_frees_the_port() {
    let fixture = CliFixture::start(&[("notes", "oauth")]).await;
    fixture.require_authorization(&fixture.redirect_url());
    let (mut program, _input) = fixture.run_interactive(&["connect", "notes"]);
    program.wait_for_output("Waiting for your authorization").await.unwrap();
    processes::signal(program.pid(), Signal::INT);
    program.wait().await.assert_failure(1, &["interrupted before it was done"]);
    TcpListener::bind(("127.0.0.1", fixture.home.ports.first())).unwrap();
}

#[tokio::test]
async fn what_is_no_web_address_is_not_shown_to_be_opened() {
    let fixture = CliFixture::start(&[("notes", "oauth")]).await;
    fixture.services.state().connect =
        (200, json!({"status": "authorization_required", "authorization_url": "file:///etc", "state": "s"}));
    let output =
        fixture.run_with_input(&["connect", "notes"], "").await.assert_failure(1, &["no web address"]);
    assert!(!output.contains("file:"), "{output}");
}
