//! Tests of clients with servers that are programs: good ones, and faulty ones of every kind.

#[path = "clients/questions.rs"]
mod questions;

use std::sync::Arc;
use std::time::Duration;

use api::assets::ConnectionStatus;
use catalog::{ApiKeyLocation, Auth, McpServerSpec, Secret, ServerOrigin, Transport};
use http_service::clock::{Clock as _, SystemClock};
use secrecy::SecretString;
use serde_json::json;
use testkit::{can_run_python_servers, with_deadline};

use super::fixture::{
    ClientFixture, command_spec, expect_done, expect_failure, expect_output, expect_question, tool_call,
};
use super::{IDLE_TIMEOUT, SERVER_CONNECT_TIMEOUT, Timeouts};
use crate::request_auth::RequestAuth;

/// A server that answers each call with the tool's name.
const ECHO_SERVER: &str = "serve(lambda call: answer(call, text(call['params']['name'])))";

/// Limits each request to three seconds.
fn with_short_timeout(spec: &Arc<McpServerSpec>) -> Arc<McpServerSpec> {
    Arc::new(McpServerSpec { timeout: Duration::from_secs(3), ..McpServerSpec::clone(spec) })
}

/// Returns a server that does `harm` at its first call, and answers all others.
fn misbehaving_server(harm: &str) -> String {
    format!(
        r#"
def first():
    try:
        os.mkdir("harm")
        return True
    except FileExistsError:
        return False

def call(request):
    note("call")
    if first():
        {harm}
    answer(request, text("well"))

serve(call)
"#
    )
}

#[tokio::test]
async fn a_programs_tools_are_listed_and_called() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture
        .program_spec("serve(lambda call: answer(call, text(json.dumps(call['params']['arguments']))))");
    assert_eq!(fixture.connect(&spec).await, ["echo"]);
    let called = fixture.call_with(&spec, &tool_call("echo", json!({"a": [1, "ü"]}))).await;
    assert_eq!(expect_done(called), r#"{"a": [1, "\u00fc"]}"#);
}

#[tokio::test]
async fn a_program_gets_the_key_in_its_variable_and_nothing_of_the_engines_environment() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let mut spec = McpServerSpec::clone(
        &fixture
            .program_spec("serve(lambda call: answer(call, text(json.dumps(sorted(os.environ.items())))))"),
    );
    spec.auth = Auth::ApiKey(ApiKeyLocation::EnvVar("KEY".into()));
    if let Transport::Stdio { env, .. } = &mut spec.transport {
        env.insert("MODE".into(), Secret::new("read".into()));
    }
    let access = RequestAuth::ApiKey(SecretString::from("k-1"));
    let called =
        with_deadline(fixture.clients.call(&Arc::new(spec), access, tool_call("echo", json!({})))).await;
    let environment: Vec<(String, String)> = serde_json::from_str(&expect_done(called)).unwrap();
    let value =
        |name: &str| environment.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
    assert_eq!((value("KEY"), value("MODE"), value("CARGO_MANIFEST_DIR")), (Some("k-1"), Some("read"), None));
}

#[tokio::test]
async fn a_server_that_went_silent_is_connected_anew() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = with_short_timeout(&fixture.program_spec(
        "def tools():\n    if os.path.exists('silent'):\n        os.remove('silent')\n        time.sleep(600)\n    \
         return [tool('echo')]\n\
         serve(lambda call: (open('silent', 'w').close(), answer(call, text('well'))), tools=tools)",
    ));
    fixture.connect(&spec).await;
    assert_eq!(fixture.call_text(&spec, "echo").await, "well");
    assert_eq!(fixture.connect(&spec).await, ["echo"]);
    assert_eq!(fixture.start_count(), 2);
}

#[tokio::test]
async fn calls_at_once_share_one_client() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(ECHO_SERVER);
    let calls = (0..8).map(|_| fixture.call_text(&spec, "echo"));
    assert_eq!(futures::future::join_all(calls).await, ["echo"; 8]);
    assert_eq!(fixture.start_count(), 1);
}

#[tokio::test]
async fn what_a_tool_says_of_its_failure_is_the_error() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(
        "serve(lambda call: answer(call, text('no such city', isError=True)) if call['params']['name'] == 'a' \
         else refuse(call, 'bad input', -32602))",
    );
    let output = expect_output(fixture.call(&spec, "a").await);
    assert_eq!((output.text.as_str(), output.is_error), ("no such city", true));
    let reason = expect_failure(fixture.call(&spec, "b").await);
    assert_eq!(reason, "the tool server `server` failed: it refused the request: bad input (-32602)");
}

#[tokio::test]
async fn a_tool_may_show_why_it_failed() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let gif = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7";
    let spec = fixture.program_spec(&format!(
        "serve(lambda call: answer(call, {{'isError': True, 'content': [{{'type': 'image', 'data': '{gif}', \
         'mimeType': 'image/gif'}}]}}))"
    ));
    let output = expect_output(fixture.call(&spec, "a").await);
    assert_eq!((output.text.as_str(), output.media.len()), ("[picture 1, shown with this result]", 1));
    assert!(output.is_error);
}

#[tokio::test]
async fn a_program_that_cannot_be_run_says_why() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = Arc::new(command_spec(&["no-such-program"]));
    let reason = expect_failure(fixture.call(&spec, "echo").await);
    assert!(reason.contains("`no-such-program` cannot be run"), "{reason}");
}

#[tokio::test]
async fn a_program_that_ends_at_once_is_left_alone_after_three_times() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(ECHO_SERVER);
    fixture.connect(&spec).await;
    fixture.clients.drop_client("server");
    let spec = fixture.program_spec("note('tried'); sys.exit(3)");
    for _ in 0..3 {
        let reason = expect_failure(fixture.call(&spec, "echo").await);
        assert!(reason.contains("the server ended (exit code 3)"), "{reason}");
    }
    assert_eq!(fixture.status(), ConnectionStatus::Error);
    let tried = fixture.notes().len();
    let reason = expect_failure(fixture.call(&spec, "echo").await);
    assert!(reason.contains("times in a row") && reason.contains("exit code 3"), "{reason}");
    assert_eq!(fixture.notes().len(), tried);
    // A user who connects the server overrides the circuit breaker.
    let spec = fixture.program_spec(ECHO_SERVER);
    fixture.connect(&spec).await;
    assert_eq!(fixture.call_text(&spec, "echo").await, "echo");
}

#[tokio::test]
async fn a_program_that_ends_at_a_word_it_does_not_know_gets_the_handshake() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(&format!(
        "first = receive()\nif first['method'] != 'initialize':\n    sys.exit(1)\n\
         answer(first, {{'protocolVersion': '2024-11-05', **INFO}})\n{ECHO_SERVER}"
    ));
    assert_eq!(fixture.connect(&spec).await, ["echo"]);
}

#[tokio::test]
async fn a_program_that_never_answers_is_given_up() {
    if !can_run_python_servers() {
        return;
    }
    let fixture =
        ClientFixture::with_timeouts(Timeouts { connect: Duration::from_secs(1), idle: IDLE_TIMEOUT });
    let spec = fixture.program_spec("time.sleep(600)");
    let error = with_deadline(fixture.clients.list_tools(&spec, RequestAuth::None)).await.unwrap_err();
    assert_eq!(error.to_string(), "it did not answer within 1 seconds");
}

#[tokio::test]
async fn a_connection_that_failed_recovers() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(ECHO_SERVER);
    fixture.connect(&spec).await;
    fixture.clients.drop_client("server");
    fixture.program_spec("sys.exit(1)");
    expect_failure(fixture.call(&spec, "echo").await);
    assert_eq!(fixture.status(), ConnectionStatus::Error);
    fixture.program_spec(ECHO_SERVER);
    assert_eq!(fixture.call_text(&spec, "echo").await, "echo");
    assert_eq!(fixture.status(), ConnectionStatus::Connected);
}

/// Asserts that a call to such a server ends in time with a reason that contains `why`, and that the next call
/// works.
async fn assert_survives(harm: &str, why: &str) {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = with_short_timeout(&fixture.program_spec(&misbehaving_server(harm)));
    fixture.connect(&spec).await;
    let reason = expect_failure(fixture.call(&spec, "echo").await);
    assert!(reason.contains(why), "{reason}");
    assert!(reason.contains("It is not known whether `echo` took effect"), "{reason}");
    assert_eq!(fixture.notes().iter().filter(|note| *note == "call").count(), 1, "it is not called again");
    assert_eq!(fixture.call_text(&spec, "echo").await, "well");
}

#[tokio::test]
async fn a_call_survives_a_server_that_hangs() {
    assert_survives("time.sleep(600)", "it did not answer within 3 seconds").await;
}

#[tokio::test]
async fn a_call_survives_a_server_that_dies() {
    assert_survives("os._exit(3)", "the server ended (exit code 3)").await;
}

#[tokio::test]
async fn a_call_survives_a_server_that_closes_its_output() {
    assert_survives("os.close(1); time.sleep(600)", "the server closed its output").await;
}

#[tokio::test]
async fn a_call_survives_a_flood_in_one_line() {
    assert_survives("sys.stdout.write('x' * (9 << 20)); sys.stdout.flush(); time.sleep(600)", "over 8 MiB")
        .await;
}

#[tokio::test]
async fn a_call_survives_an_answer_that_is_too_large() {
    assert_survives("answer(request, text('x' * (9 << 20))); return", "over 8 MiB").await;
}

#[tokio::test]
async fn a_call_survives_endless_notifications() {
    let flood = "while True: send({'method': 'notifications/tools/list_changed'})";
    assert_survives(flood, "the tool server `server` failed").await;
}

#[tokio::test]
async fn a_call_survives_endless_requests() {
    let flood = "while True: send({'id': 1, 'method': 'ping'})";
    assert_survives(flood, "the tool server `server` failed").await;
}

/// A server that does not read its input, so that nothing can be sent any more, is ended nevertheless.
#[tokio::test]
async fn a_program_that_reads_nothing_is_ended() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let flood = "note('pid %d' % os.getpid())\n        while True: send({'id': 1, 'method': 'ping'})";
    let spec = with_short_timeout(&fixture.program_spec(&misbehaving_server(flood)));
    fixture.connect(&spec).await;
    expect_failure(fixture.call(&spec, "echo").await);
    let notes = fixture.notes();
    let pid = notes.iter().find_map(|note| note.strip_prefix("pid ")).unwrap();
    let process = std::path::Path::new("/proc").join(pid);
    with_deadline(async {
        while process.exists() {
            SystemClock::new().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(fixture.call_text(&spec, "echo").await, "well");
}

#[tokio::test]
async fn a_call_survives_endless_garbage() {
    assert_survives("while True: print('garbage ' * 100)", "did not answer within 3 seconds").await;
}

#[tokio::test]
async fn a_call_survives_answers_to_what_was_not_asked() {
    assert_survives("send({'id': 4711, 'result': text('!')}); return", "did not answer within 3 seconds")
        .await;
}

#[tokio::test]
async fn garbage_among_the_answers_is_passed_over() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(
        "serve(lambda call: (print('a banner'), print('{\"jsonrpc\": 7}'), print('\\x00\\xff'), \
         answer(call, text('well'))))",
    );
    fixture.connect(&spec).await;
    assert_eq!(fixture.call_text(&spec, "echo").await, "well");
}

#[tokio::test]
async fn what_is_the_same_twice_is_called_again() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(&misbehaving_server("os._exit(3)"));
    fixture.connect(&spec).await;
    let mut call = tool_call("echo", json!({}));
    call.idempotent = true;
    assert_eq!(expect_done(fixture.call_with(&spec, &call).await), "well");
    assert_eq!(fixture.start_count(), 2);
}

#[tokio::test]
async fn a_program_that_went_away_between_calls_is_started_again() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec("serve(lambda call: (answer(call, text('last')), os._exit(0)))");
    assert_eq!(fixture.call_text(&spec, "echo").await, "last");
    fixture.wait_session_ended().await;
    assert_eq!(fixture.call_text(&spec, "echo").await, "last");
    assert_eq!(fixture.start_count(), 2);
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_at_the_server() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(
        "serve(lambda call: note('called') if call['params']['name'] == 'slow' else answer(call, text('well')), \
         other=lambda message: note(message['method']) if 'id' not in message else refuse(message))",
    );
    fixture.connect(&spec).await;
    tokio::select! {
        called = fixture.call(&spec, "slow") => panic!("{called:?}"),
        () = fixture.wait_for_note("called") => {}
    }
    fixture.wait_for_note("notifications/cancelled").await;
    assert_eq!(fixture.call_text(&spec, "echo").await, "well");
    assert_eq!(fixture.start_count(), 1);
}

#[tokio::test]
async fn an_idle_program_ends_and_is_started_again() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::with_timeouts(Timeouts {
        idle: Duration::from_millis(300),
        connect: SERVER_CONNECT_TIMEOUT,
    });
    let spec = fixture
        .program_spec(&format!("import atexit\natexit.register(lambda: note('ended'))\n{ECHO_SERVER}"));
    assert_eq!(fixture.call_text(&spec, "echo").await, "echo");
    fixture.wait_for_note("ended").await;
    assert_eq!(fixture.call_text(&spec, "echo").await, "echo");
    assert_eq!(fixture.start_count(), 2);
}

#[tokio::test]
async fn a_forgotten_program_ends_and_its_calls_fail() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec("serve(lambda call: note('called'))");
    fixture.connect(&spec).await;
    let forget = async {
        fixture.wait_for_note("called").await;
        fixture.clients.drop_client("server");
    };
    let (called, ()) = tokio::join!(fixture.call(&spec, "echo"), forget);
    assert!(expect_failure(called).contains("the connection was ended"));
}

#[tokio::test]
async fn tools_that_change_are_taken_down() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(
        "names = ['one']\n\
         def rename(call):\n    names[0] = 'two'\n    send({'method': 'notifications/tools/list_changed'})\n    \
         answer(call, text('renamed'))\n\
         serve(rename, tools=lambda: [tool(names[0])])",
    );
    assert_eq!(fixture.connect(&spec).await, ["one"]);
    assert_eq!(fixture.call_text(&spec, "one").await, "renamed");
    with_deadline(async {
        while fixture.connection().tools != ["two"] {
            SystemClock::new().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn of_absurd_tools_only_those_that_can_be_used_are_taken() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(
        "absurd = [tool(''), tool('a b'), tool('x' * 200), tool('\\u202e'), tool('good'), tool('good'), \
         {'name': 'lies', 'inputSchema': {'type': 'string'}}, {'name': 7}, 'tool', {}, \
         tool('large', description='d' * 9000), {'name': 'huge', 'inputSchema': {'type': 'object', 'x': 'x' * 70000}}]\n\
         serve(None, tools=lambda: absurd + [tool('t%d' % n) for n in range(10000)])",
    );
    let names = fixture.connect(&spec).await;
    assert_eq!(names.len(), 512);
    assert_eq!(&names[..4], ["good", "lies", "large", "t0"]);
    let tools = fixture.connections.tools(&spec);
    assert_eq!(tools[1].input_schema, json!({"type": "object", "properties": {}}));
    assert_eq!(tools[2].description.len(), 4096);
}

/// Returns the server as one that the user has added.
fn of_user(spec: &Arc<McpServerSpec>) -> Arc<McpServerSpec> {
    Arc::new(McpServerSpec { origin: ServerOrigin::User, ..McpServerSpec::clone(spec) })
}

#[tokio::test]
async fn a_call_waits_no_longer_than_a_request_for_tools_to_be_stored() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = with_short_timeout(&of_user(&fixture.program_spec(ECHO_SERVER)));
    with_deadline(fixture.clients.list_tools(&spec, RequestAuth::None)).await.unwrap();
    let reason = expect_failure(fixture.call(&spec, "echo").await);
    assert!(reason.contains("its tools could not be stored in time"), "{reason}");
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_tools_are_stored_keeps_no_other_waiting() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = with_short_timeout(&of_user(&fixture.program_spec(ECHO_SERVER)));
    fixture.connect(&spec).await;
    fixture.clients.drop_client(&spec.name);
    fixture.connections.record_failure(&spec.name, ConnectionStatus::Error, "it was down").await;

    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let (brain, blocked) = (fixture.brain.clone(), parking_lot::Mutex::new(blocked));
    let blocking = tokio::spawn(async move {
        let write = move |_: &store::WriteTx<'_>| {
            let _ = blocked.lock().recv();
            Ok(())
        };
        brain.write(write).await
    });
    let (clients, called) = (fixture.clients.clone(), Arc::clone(&spec));
    let call =
        tokio::spawn(
            async move { clients.call(&called, RequestAuth::None, tool_call("echo", json!({}))).await },
        );
    let has_session =
        || fixture.clients.0.slots.lock().get("server").is_some_and(|slot| slot.session.lock().is_some());
    with_deadline(async {
        while !has_session() {
            SystemClock::new().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    call.abort();
    let _ = call.await;
    release.send(()).unwrap();
    blocking.await.unwrap().unwrap();
    let reason = expect_failure(fixture.call(&spec, "echo").await);
    assert!(reason.contains("is not as the user approved it"), "{reason}");
}
