//! Story 1: the first start of `roundhouse up`, the commands that it prints, and its end by each signal.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use mock_llm::MockProvider;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::http::{client, send};
use crate::support::schema::ENGINE_RECORD;
use crate::support::turn::{assert_completed, visible_text};
use crate::support::{Fleet, assert_fields, eventually, is_installed, processes};

/// The commands that `up` prints: each is indented by two spaces, after a line that ends with a colon, and goes on
/// after a backslash.
fn printed_commands(output: &str) -> Vec<String> {
    let lines: Vec<&str> = output.lines().collect();
    let starts = (1..lines.len()).filter(|at| lines[at - 1].ends_with(':') && lines[*at].starts_with("  "));
    let command = |start: usize| {
        let size = lines[start..].iter().position(|line| !line.ends_with('\\')).unwrap();
        lines[start..=start + size].join("\n").trim_start().to_owned()
    };
    starts.map(command).collect()
}

/// The text of the events `kind` (`text_delta` or `thinking_delta`) of a raw stream.
fn delta_text(stream: &str, kind: &str) -> String {
    let mut lines = stream.lines();
    let mut text = String::new();
    while let Some(line) = lines.next() {
        if line == format!("event: {kind}") {
            let data = lines.next().and_then(|line| line.strip_prefix("data: ")).unwrap();
            text += serde_json::from_str::<Value>(data).unwrap()["text"].as_str().unwrap();
        }
    }
    text
}

/// Runs the three printed commands and asserts that each does what its heading says.
async fn assert_printed_commands_work(fleet: &Fleet, output: &str) {
    let commands = printed_commands(output);
    let [chat, admit, execute] = commands.as_slice() else { panic!("no three commands in: {output}") };

    let admission = fleet.test_env.run_shell(admit).wait().await.assert_success();
    let admission: Value =
        serde_json::from_str(&admission).unwrap_or_else(|_| panic!("no JSON: {admission}"));
    assert_fields(&admission, "admitted:bool engine:object");
    assert_fields(&admission["engine"], ENGINE_RECORD);

    let stream = fleet.test_env.run_shell(execute).wait().await.assert_success();
    assert!(!delta_text(&stream, "thinking_delta").is_empty(), "{stream}");
    assert!(!delta_text(&stream, "text_delta").is_empty(), "{stream}");
    assert!(stream.contains(r#""phase":"completed""#), "{stream}");

    let input = "Hello!\nremember that my colour is green\n";
    let talk = fleet.test_env.run_shell_with_input(chat, input).wait().await.assert_success();
    assert!(talk.contains("working_memory_set") && talk.contains("green"), "{talk}");
}

#[tokio::test]
async fn the_printed_commands_work_as_they_are_and_again_after_a_restart() {
    if !is_installed("curl") {
        return;
    }
    let fleet = Fleet::new();
    let up = fleet.start_up_by_output().await;
    assert_printed_commands_work(&fleet, &up.program.output()).await;
    assert_eq!(fleet.audit_rows("provision").len(), 1, "the three commands share one engine");

    let output = up.signal_and_wait(Signal::TERM).await.assert_success();
    assert!(output.contains("sleep"), "{output}");

    let up = fleet.start_up_by_output().await;
    assert_printed_commands_work(&fleet, &up.program.output()).await;
    assert_eq!(fleet.audit_rows("provision").len(), 1, "the existing engine is used again");
    assert_eq!(fleet.audit_rows("wake").len(), 1);
}

/// Every user of the machine can read the arguments of commands.
#[tokio::test]
async fn no_printed_command_gives_a_key_to_a_program_as_an_argument() {
    if !is_installed("curl") {
        return;
    }
    let fleet = Fleet::new();
    let up = fleet.start_up_by_output().await;
    let log = fleet.test_env.path().join("arguments");
    let logging_curl = format!("curl() {{ echo \"$@\" >> {}; command curl \"$@\"; }}", log.display());
    for command in printed_commands(&up.program.output()).iter().skip(1) {
        fleet.test_env.run_shell(&format!("{logging_curl}; {command}")).wait().await.assert_success();
    }
    let arguments = fs::read_to_string(log).unwrap();
    assert_eq!(arguments.lines().count(), 2, "{arguments}");
    assert!(!arguments.contains("pk-svc-") && !arguments.contains("sk-svc-"), "{arguments}");
}

#[tokio::test]
async fn the_printed_commands_work_in_a_folder_with_an_odd_name() {
    if !is_installed("curl") {
        return;
    }
    let fleet = Fleet::in_folder("my fleet's $HOME & \"more\"");
    let up = fleet.start_up_by_output().await;
    assert_printed_commands_work(&fleet, &up.program.output()).await;
}

#[tokio::test]
async fn the_port_and_the_address_can_be_chosen_and_others_are_warned_of() {
    let fleet = Fleet::new();
    let (folder, port) = (fleet.folder().to_str().unwrap(), fleet.test_env.ports.last().to_string());
    for (host, is_open_to_others) in [("127.0.0.1", false), ("0.0.0.0", true), ("::1", false)] {
        let arguments = ["up", "--dir", folder, "--port", &port, "--host", host];
        let mut up = fleet.test_env.run(&arguments, &fleet.variables);
        let output = match up.wait_for_output("Ctrl-C").await {
            Ok(output) => output,
            // A machine without IPv6.
            Err(exit) if host == "::1" => {
                exit.assert_failure(2, &["--host"]);
                continue;
            }
            Err(exit) => panic!("{}", exit.output),
        };
        assert_eq!(output.contains("WARNING: others can reach port"), is_open_to_others, "{output}");
        let base = fs::read_to_string(fleet.folder().join("address")).unwrap().trim().to_owned();
        let local = if host == "::1" { "[::1]" } else { "127.0.0.1" };
        assert_eq!(base, format!("http://{local}:{port}"));
        send(client().get(format!("{base}/health"))).await.assert_ok("status:text");
        let chat = printed_commands(&output)[0].clone();
        let talk = fleet.test_env.run_shell_with_input(&chat, "Hello!\n").wait().await.assert_success();
        assert!(talk.contains("conversation `chat`"), "{talk}");
        up.signal_and_wait(Signal::TERM).await.assert_success();
    }
    let arguments = ["up", "--dir", folder, "--port", &port, "--host", "192.0.2.1"];
    let exit = fleet.test_env.run(&arguments, &fleet.variables).wait().await;
    exit.assert_failure(2, &["this machine has no address 192.0.2.1", "0.0.0.0"]);
    for wrong in [["--port", "70000"], ["--host", "somewhere"]] {
        let arguments = [&["up", "--dir", folder][..], &wrong].concat();
        fleet.test_env.run(&arguments, &fleet.variables).wait().await.assert_failure(2, &[wrong[1]]);
    }
}

#[tokio::test]
async fn the_browser_is_opened_and_one_that_is_missing_is_no_failure() {
    let fleet = Fleet::new();
    let (log, browser) = (fleet.test_env.path().join("opened"), fleet.test_env.path().join("browser"));
    fs::write(&browser, format!("#!/bin/sh\necho \"$1\" > {}\n", log.display())).unwrap();
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).unwrap();
    let fleet = fleet.with_env("BROWSER", browser.to_str().unwrap());
    let folder = fleet.folder().to_str().unwrap().to_owned();
    let arguments = ["up", "--open", "--dir", &folder];
    let up = fleet.test_env.run(&arguments, &fleet.variables);
    let opened = eventually("the browser is started", async || {
        fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n'))
    })
    .await;
    let page = client().get(opened.trim()).send().await.unwrap();
    assert_eq!((page.status().as_u16(), page.url().path()), (200, "/console"), "{opened}");
    let page = page.text().await.unwrap();
    assert!(page.contains("<div id=\"app\">"), "{page}");
    up.signal_and_wait(Signal::TERM).await.assert_success();

    let fleet = fleet.with_env("BROWSER", "/no/such/browser");
    let mut up = fleet.test_env.run(&arguments, &fleet.variables);
    up.wait_for_output("No browser could be opened with /no/such/browser").await.unwrap();
    up.signal_and_wait(Signal::TERM).await.assert_success();
}

#[tokio::test]
async fn a_first_answer_streams_thinking_text_and_tools() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let engine = up.product().engine("ada").await;
    assert_eq!(engine.health().await["status"], "ok");

    let events = engine.execute("first", "remember that my colour is green").await.collect().await;
    assert!(!visible_text(&events, "thinking_delta").is_empty(), "{events:#?}");
    assert!(assert_completed(&events).contains("green"), "{events:#?}");
    let call = events.iter().find(|event| event.kind == "tool_call").expect("a tool is called");
    assert_eq!(call.data["tool"], "working_memory_set");
    let result = events.iter().find(|event| event.kind == "tool_result").expect("the tool answers");
    assert_eq!(result.data["error"], Value::Null, "{result:?}");
    let update = events.iter().find(|event| event.kind == "working_memory_update").expect("it is announced");
    assert_eq!((&update.data["key"], &update.data["value"]), (&"colour".into(), &"green".into()));
    assert!(events.iter().any(|event| event.kind == "usage"), "{events:#?}");
}

/// Ends `up` with `signal` and asserts that its engines sleep, that the output says so, and that no process is
/// left.
async fn assert_engines_put_to_sleep(signal: Signal) {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    let before = product.engine("ada").await;
    product.engine("bob").await;
    product.stop("bob").await.assert_ok("status:text");
    assert_completed(&before.execute("task", "Hello!").await.collect().await);
    let orchestrator = up.program.pid();

    let output = up.signal_and_wait(signal).await.assert_success();
    assert!(output.contains("sleep"), "{output}");
    assert!(!processes::is_alive(orchestrator));
    assert_eq!(fleet.engine_processes(), []);
    let sleeps = fleet.audit_rows("sleep");
    assert_eq!(sleeps.len(), 1, "{sleeps:?}");
    assert_eq!(sleeps[0].0, "ada");
    assert_eq!(sleeps[0].1["reason"], "up_ended");

    let up = fleet.start_up().await;
    let product = up.product();
    assert_eq!(product.status("ada").await, "sleeping");
    assert_eq!(product.status("bob").await, "stopped", "an explicit stop stays one");
    assert_eq!(fleet.engine_processes(), [], "nothing wakes an engine but an admit or a start");
    let after = product.engine("ada").await;
    assert_eq!((&after.id, &after.key), (&before.id, &before.key));
    let replayed = after.replay("task", 0).await.collect().await;
    assert_completed(&replayed);
}

#[tokio::test]
async fn sigterm_puts_the_engines_to_sleep() {
    assert_engines_put_to_sleep(Signal::TERM).await;
}

#[tokio::test]
async fn sigint_puts_the_engines_to_sleep() {
    assert_engines_put_to_sleep(Signal::INT).await;
}

#[tokio::test]
async fn sighup_puts_the_engines_to_sleep() {
    assert_engines_put_to_sleep(Signal::HUP).await;
}

#[tokio::test]
async fn what_is_said_to_be_up_is_up() {
    let fleets: Vec<Fleet> = (0..8).map(|_| Fleet::new()).collect();
    futures::future::join_all(fleets.iter().map(async |fleet| {
        let up = fleet.start_up_by_output().await;
        let health = send(client().get(format!("{}/health", up.base))).await;
        health.assert_ok("status:text");
    }))
    .await;
}

#[tokio::test]
async fn chat_without_a_running_fleet_says_so() {
    let fleet = Fleet::new();
    let chat = ["chat", "--user", "ada", "--dir", fleet.folder().to_str().unwrap()];
    let before_first_start = fleet.test_env.run(&chat, &fleet.variables).wait().await;
    assert!(before_first_start.code.is_some_and(|code| code != 0), "{before_first_start:?}");
    assert!(before_first_start.output.contains("roundhouse up"), "{}", before_first_start.output);
    fleet.start_up().await.signal_and_wait(Signal::TERM).await.assert_success();
    let after_end = fleet.test_env.run(&chat, &fleet.variables).wait().await;
    assert!(after_end.code.is_some_and(|code| code != 0), "{after_end:?}");
    assert!(after_end.output.contains("roundhouse up"), "{}", after_end.output);
}

#[tokio::test]
async fn an_edited_catalog_is_kept_and_used() {
    let provider = MockProvider::start().await.unwrap();
    let fleet = Fleet::new().with_provider_and_shipped_catalog(&provider);
    fleet.start_up().await.signal_and_wait(Signal::TERM).await.assert_success();
    let soul = fleet.folder().join("catalog/soul.md");
    assert!(!fs::read_to_string(&soul).unwrap().is_empty(), "the shipped one is unpacked");
    fs::write(&soul, "You are a lighthouse keeper.").unwrap();

    let up = fleet.start_up().await;
    assert_eq!(fs::read_to_string(&soul).unwrap(), "You are a lighthouse keeper.");
    assert_completed(&up.product().engine("ada").await.execute("task", "Hello!").await.collect().await);
    // The only request: the shipped catalog has agents, but a greeting is not planned.
    let requests = provider.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].body["system"].to_string().contains("lighthouse keeper"), "{}", requests[0].body);
}

#[tokio::test]
async fn without_a_folder_the_users_data_folder_is_taken() {
    let fleet = Fleet::in_folder("data/roundhouse");
    let data = fleet.test_env.path().join("data");
    let fleet = fleet.with_env("XDG_DATA_HOME", data.to_str().unwrap());
    let mut program = fleet.test_env.run(&["up"], &fleet.variables);
    program.wait_for_output("Ctrl-C").await.expect("it comes up");
    assert!(fleet.folder().join("platform.key").exists());
    program.signal_and_wait(Signal::TERM).await.assert_success();
}
