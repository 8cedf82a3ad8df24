//! Clients and servers that are programs: good ones, and bad ones of every kind.

use std::sync::Arc;
use std::time::Duration;

use contract::assets::ConnectionStatus;
use secrecy::SecretString;
use serde_json::json;
use service::clock::{Clock as _, SystemClock};

use super::rig::{Rig, asked, call, done, failed, program_at};
use super::{CONNECTING, ClientError, IDLE, Times};
use crate::assets::access::Access;
use crate::catalog::{Auth, KeyPlace, Secret, ServerSpec, Transport};
use crate::testing::{can_serve, within};

/// A server that answers each call with its name.
const ECHO: &str = "serve(lambda call: answer(call, text(call['params']['name'])))";

/// A server that may take three seconds for each request.
fn hasty(spec: &Arc<ServerSpec>) -> Arc<ServerSpec> {
    Arc::new(ServerSpec { timeout: Duration::from_secs(3), ..ServerSpec::clone(spec) })
}

/// A server that does `harm` at its first call, and answers all others.
fn harmful(harm: &str) -> String {
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
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program("serve(lambda call: answer(call, text(json.dumps(call['params']['arguments']))))");
    assert_eq!(rig.connect(&spec).await, ["echo"]);
    let called = rig.call_with(&spec, &call("echo", json!({"a": [1, "ü"]}))).await;
    assert_eq!(done(called), r#"{"a": [1, "\u00fc"]}"#);
}

#[tokio::test]
async fn a_program_gets_the_key_in_its_variable_and_nothing_of_the_engines_environment() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let mut spec = ServerSpec::clone(
        &rig.program("serve(lambda call: answer(call, text(json.dumps(sorted(os.environ.items())))))"),
    );
    spec.auth = Auth::ApiKey(KeyPlace::Variable("KEY".into()));
    if let Transport::Stdio { env, .. } = &mut spec.transport {
        env.insert("MODE".into(), Secret::new("read".into()));
    }
    let access = Access::Key(SecretString::from("k-1"));
    let called = within(rig.clients.call(&Arc::new(spec), access, call("echo", json!({})))).await;
    let environment: Vec<(String, String)> = serde_json::from_str(&done(called)).unwrap();
    let value =
        |name: &str| environment.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
    assert_eq!((value("KEY"), value("MODE"), value("CARGO_MANIFEST_DIR")), (Some("k-1"), Some("read"), None));
}

#[tokio::test]
async fn a_server_that_went_silent_is_connected_anew() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = hasty(&rig.program(
        "def tools():\n    if os.path.exists('silent'):\n        os.remove('silent')\n        time.sleep(600)\n    \
         return [tool('echo')]\n\
         serve(lambda call: (open('silent', 'w').close(), answer(call, text('well'))), tools=tools)",
    ));
    rig.connect(&spec).await;
    assert_eq!(rig.done(&spec, "echo").await, "well");
    assert_eq!(rig.connect(&spec).await, ["echo"]);
    assert_eq!(rig.starts(), 2);
}

#[tokio::test]
async fn calls_at_once_share_one_client() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(ECHO);
    let calls = (0..8).map(|_| rig.done(&spec, "echo"));
    assert_eq!(futures::future::join_all(calls).await, ["echo"; 8]);
    assert_eq!(rig.starts(), 1);
}

#[tokio::test]
async fn what_a_tool_says_of_its_failure_is_the_error() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(
        "serve(lambda call: answer(call, text('no such city', isError=True)) if call['params']['name'] == 'a' \
         else refuse(call, 'bad input', -32602))",
    );
    let called = rig.call(&spec, "a").await;
    assert_eq!(called.unwrap_err(), ClientError::Tool("no such city".into()));
    let reason = failed(rig.call(&spec, "b").await);
    assert_eq!(reason, "the tool server `server` failed: it refuses: bad input (-32602)");
}

#[tokio::test]
async fn a_program_that_cannot_be_run_says_why() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = Arc::new(program_at(&["no-such-program"]));
    let reason = failed(rig.call(&spec, "echo").await);
    assert!(reason.contains("`no-such-program` cannot be run"), "{reason}");
}

#[tokio::test]
async fn a_program_that_ends_at_once_is_left_alone_after_three_times() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(ECHO);
    rig.connect(&spec).await;
    rig.clients.forget("server");
    let spec = rig.program("note('tried'); sys.exit(3)");
    for _ in 0..3 {
        let reason = failed(rig.call(&spec, "echo").await);
        assert!(reason.contains("the server ended (exit code 3)"), "{reason}");
    }
    assert_eq!(rig.status(), ConnectionStatus::Error);
    let tried = rig.notes().len();
    let reason = failed(rig.call(&spec, "echo").await);
    assert!(reason.contains("left alone") && reason.contains("exit code 3"), "{reason}");
    assert_eq!(rig.notes().len(), tried);
    // Somebody who connects it insists.
    let spec = rig.program(ECHO);
    rig.connect(&spec).await;
    assert_eq!(rig.done(&spec, "echo").await, "echo");
}

#[tokio::test]
async fn a_program_that_ends_at_a_word_it_does_not_know_gets_the_handshake() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(&format!(
        "first = receive()\nif first['method'] != 'initialize':\n    sys.exit(1)\n\
         answer(first, {{'protocolVersion': '2024-11-05', **INFO}})\n{ECHO}"
    ));
    assert_eq!(rig.connect(&spec).await, ["echo"]);
}

#[tokio::test]
async fn a_program_that_never_answers_is_given_up() {
    if !can_serve() {
        return;
    }
    let rig = Rig::with(Times { connecting: Duration::from_secs(1), idle: IDLE });
    let spec = rig.program("time.sleep(600)");
    let error = within(rig.clients.list_tools(&spec, Access::Nothing)).await.unwrap_err();
    assert_eq!(error.to_string(), "it did not answer within 1 seconds");
}

#[tokio::test]
async fn a_connection_that_failed_recovers() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(ECHO);
    rig.connect(&spec).await;
    rig.clients.forget("server");
    rig.program("sys.exit(1)");
    failed(rig.call(&spec, "echo").await);
    assert_eq!(rig.status(), ConnectionStatus::Error);
    rig.program(ECHO);
    assert_eq!(rig.done(&spec, "echo").await, "echo");
    assert_eq!(rig.status(), ConnectionStatus::Connected);
}

/// Asserts that a call that is done harm ends in time with a reason that says `why`, and that the next one works.
async fn survives(harm: &str, why: &str) {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = hasty(&rig.program(&harmful(harm)));
    rig.connect(&spec).await;
    let reason = failed(rig.call(&spec, "echo").await);
    assert!(reason.contains(why), "{reason}");
    assert!(reason.contains("Whether `echo` took effect is not known"), "{reason}");
    assert_eq!(rig.notes().iter().filter(|note| *note == "call").count(), 1, "it is not called again");
    assert_eq!(rig.done(&spec, "echo").await, "well");
}

#[tokio::test]
async fn a_call_survives_a_server_that_hangs() {
    survives("time.sleep(600)", "it did not answer within 3 seconds").await;
}

#[tokio::test]
async fn a_call_survives_a_server_that_dies() {
    survives("os._exit(3)", "the server ended (exit code 3)").await;
}

#[tokio::test]
async fn a_call_survives_a_server_that_closes_its_output() {
    survives("os.close(1); time.sleep(600)", "the server closed its output").await;
}

#[tokio::test]
async fn a_call_survives_a_flood_in_one_line() {
    survives("sys.stdout.write('x' * (9 << 20)); sys.stdout.flush(); time.sleep(600)", "over 8 MiB").await;
}

#[tokio::test]
async fn a_call_survives_an_answer_that_is_too_large() {
    survives("answer(request, text('x' * (9 << 20))); return", "over 8 MiB").await;
}

#[tokio::test]
async fn a_call_survives_endless_notifications() {
    let flood = "while True: send({'method': 'notifications/tools/list_changed'})";
    survives(flood, "the tool server `server` failed").await;
}

#[tokio::test]
async fn a_call_survives_endless_requests() {
    let flood = "while True: send({'id': 1, 'method': 'ping'})";
    survives(flood, "the tool server `server` failed").await;
}

/// One that does not read what it is sent, so that nothing can be sent any more, is ended all the same.
#[tokio::test]
async fn a_program_that_reads_nothing_is_ended() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let deaf = "note('pid %d' % os.getpid())\n        while True: send({'id': 1, 'method': 'ping'})";
    let spec = hasty(&rig.program(&harmful(deaf)));
    rig.connect(&spec).await;
    failed(rig.call(&spec, "echo").await);
    let notes = rig.notes();
    let pid = notes.iter().find_map(|note| note.strip_prefix("pid ")).unwrap();
    let process = std::path::Path::new("/proc").join(pid);
    within(async {
        while process.exists() {
            SystemClock::new().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(rig.done(&spec, "echo").await, "well");
}

#[tokio::test]
async fn a_call_survives_endless_garbage() {
    survives("while True: print('garbage ' * 100)", "did not answer within 3 seconds").await;
}

#[tokio::test]
async fn a_call_survives_answers_to_what_was_not_asked() {
    survives("send({'id': 4711, 'result': text('!')}); return", "did not answer within 3 seconds").await;
}

#[tokio::test]
async fn garbage_among_the_answers_is_passed_over() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(
        "serve(lambda call: (print('a banner'), print('{\"jsonrpc\": 7}'), print('\\x00\\xff'), \
         answer(call, text('well'))))",
    );
    rig.connect(&spec).await;
    assert_eq!(rig.done(&spec, "echo").await, "well");
}

#[tokio::test]
async fn what_is_the_same_twice_is_called_again() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(&harmful("os._exit(3)"));
    rig.connect(&spec).await;
    let mut again = call("echo", json!({}));
    again.idempotent = true;
    assert_eq!(done(rig.call_with(&spec, &again).await), "well");
    assert_eq!(rig.starts(), 2);
}

#[tokio::test]
async fn a_program_that_went_away_between_calls_is_started_again() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program("serve(lambda call: (answer(call, text('last')), os._exit(0)))");
    assert_eq!(rig.done(&spec, "echo").await, "last");
    rig.ended().await;
    assert_eq!(rig.done(&spec, "echo").await, "last");
    assert_eq!(rig.starts(), 2);
}

#[tokio::test]
async fn a_dropped_call_is_cancelled_at_the_server() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(
        "serve(lambda call: note('called') if call['params']['name'] == 'slow' else answer(call, text('well')), \
         other=lambda message: note(message['method']) if 'id' not in message else refuse(message))",
    );
    rig.connect(&spec).await;
    tokio::select! {
        called = rig.call(&spec, "slow") => panic!("{called:?}"),
        () = rig.noted("called") => {}
    }
    rig.noted("notifications/cancelled").await;
    assert_eq!(rig.done(&spec, "echo").await, "well");
    assert_eq!(rig.starts(), 1);
}

#[tokio::test]
async fn an_idle_program_ends_and_is_started_again() {
    if !can_serve() {
        return;
    }
    let rig = Rig::with(Times { idle: Duration::from_millis(300), connecting: CONNECTING });
    let spec = rig.program(&format!("import atexit\natexit.register(lambda: note('ended'))\n{ECHO}"));
    assert_eq!(rig.done(&spec, "echo").await, "echo");
    rig.noted("ended").await;
    assert_eq!(rig.done(&spec, "echo").await, "echo");
    assert_eq!(rig.starts(), 2);
}

#[tokio::test]
async fn a_forgotten_program_ends_and_its_calls_fail() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program("serve(lambda call: note('called'))");
    rig.connect(&spec).await;
    let forget = async {
        rig.noted("called").await;
        rig.clients.forget("server");
    };
    let (called, ()) = tokio::join!(rig.call(&spec, "echo"), forget);
    assert!(failed(called).contains("the connection was ended"));
}

#[tokio::test]
async fn tools_that_change_are_taken_down() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(
        "names = ['one']\n\
         def rename(call):\n    names[0] = 'two'\n    send({'method': 'notifications/tools/list_changed'})\n    \
         answer(call, text('renamed'))\n\
         serve(rename, tools=lambda: [tool(names[0])])",
    );
    assert_eq!(rig.connect(&spec).await, ["one"]);
    assert_eq!(rig.done(&spec, "one").await, "renamed");
    within(async {
        while rig.connection().tools != ["two"] {
            SystemClock::new().sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn of_absurd_tools_only_those_that_can_be_used_are_taken() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(
        "absurd = [tool(''), tool('a b'), tool('x' * 200), tool('\\u202e'), tool('good'), tool('good'), \
         {'name': 'lies', 'inputSchema': {'type': 'string'}}, {'name': 7}, 'tool', {}, \
         tool('large', description='d' * 9000), {'name': 'huge', 'inputSchema': {'type': 'object', 'x': 'x' * 70000}}]\n\
         serve(None, tools=lambda: absurd + [tool('t%d' % n) for n in range(10000)])",
    );
    let names = rig.connect(&spec).await;
    assert_eq!(names.len(), 512);
    assert_eq!(&names[..4], ["good", "lies", "large", "t0"]);
    let tools = rig.connections.tools(&spec);
    assert_eq!(tools[1].input_schema, json!({"type": "object", "properties": {}}));
    assert_eq!(tools[2].description.len(), 4096);
}

/// A server that asks in the middle of a call, and gives what it was answered.
fn asking(schema: &str) -> String {
    format!(
        r#"
def call(request):
    send({{"id": "ask", "method": "elicitation/create", "params": {{"message": "Which?", "requestedSchema": {schema}}}}})
    calls = []
    while True:
        message = receive()
        if message.get("id") == "ask":
            answer(request, text(json.dumps(message["result"])))
            return [call(waiting) for waiting in calls]
        if message.get("method") == "tools/call":
            calls.append(message)
        note(message.get("method", "?"))

serve(call)
"#
    )
}

const COLOUR: &str = r#"{"type": "object", "properties": {"colour": {"type": "string", "enum": ["red", "green"]}}, "required": ["colour"]}"#;

#[tokio::test]
async fn what_a_server_asks_is_answered_by_a_person() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = hasty(&rig.program(&asking(COLOUR)));
    rig.connect(&spec).await;
    let mut asks = call("echo", json!({}));
    let question = asked(rig.call_with(&spec, &asks).await);
    assert!(question.text.contains("`server` asks this: Which?"), "{}", question.text);
    assert_eq!(question.options, Some(["red", "green", "decline"].map(str::to_owned).to_vec()));
    // A person may take longer than a server.
    SystemClock::new().sleep(Duration::from_millis(3100)).await;
    asks.answer = Some("blue");
    let question = asked(rig.call_with(&spec, &asks).await);
    assert!(question.text.starts_with("That cannot be taken: `colour` must be of"), "{}", question.text);
    asks.answer = Some("Green");
    let given = done(rig.call_with(&spec, &asks).await);
    assert_eq!(given, r#"{"action": "accept", "content": {"colour": "green"}}"#);
}

#[tokio::test]
async fn a_call_that_is_given_up_while_it_waits_holds_up_nothing() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = hasty(&rig.program(&asking(COLOUR)));
    rig.connect(&spec).await;
    let mut asks = call("echo", json!({}));
    asked(rig.call_with(&spec, &asks).await);
    rig.clients.give_up(asks.id);
    // The server waits for the answer no more: it takes the next call, and asks again.
    asked(rig.call(&spec, "echo").await);
    assert_eq!(rig.starts(), 1);
    asks.answer = Some("red");
    let reason = failed(rig.call_with(&spec, &asks).await);
    assert!(reason.contains("it waits for the answer no more"), "{reason}");
}

#[tokio::test]
async fn a_client_is_kept_while_a_call_waits_for_a_person() {
    if !can_serve() {
        return;
    }
    let idle = Duration::from_millis(300);
    let rig = Rig::with(Times { idle, connecting: CONNECTING });
    let spec = rig.program(&asking(COLOUR));
    let mut asks = call("echo", json!({}));
    asked(rig.call_with(&spec, &asks).await);
    SystemClock::new().sleep(3 * idle).await;
    asks.answer = Some("red");
    assert!(done(rig.call_with(&spec, &asks).await).contains("red"));
    rig.ended().await;
    assert_eq!(rig.starts(), 1);
}

#[tokio::test]
async fn where_nobody_may_be_asked_all_is_declined() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(&asking(COLOUR));
    rig.connect(&spec).await;
    let mut direct = call("echo", json!({}));
    direct.may_ask = false;
    assert_eq!(done(rig.call_with(&spec, &direct).await), r#"{"action": "decline"}"#);
}

#[tokio::test]
async fn an_answer_that_cannot_be_taken_is_asked_for_three_times_again() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(&asking(COLOUR));
    rig.connect(&spec).await;
    let mut asks = call("echo", json!({}));
    asked(rig.call_with(&spec, &asks).await);
    asks.answer = Some("blue");
    for _ in 0..3 {
        asked(rig.call_with(&spec, &asks).await);
    }
    assert_eq!(done(rig.call_with(&spec, &asks).await), r#"{"action": "decline"}"#);
}

#[tokio::test]
async fn a_call_that_waits_no_more_is_not_made_again() {
    if !can_serve() {
        return;
    }
    let rig = Rig::new();
    let spec = rig.program(&asking(COLOUR));
    rig.connect(&spec).await;
    let mut asks = call("echo", json!({}));
    asked(rig.call_with(&spec, &asks).await);
    rig.clients.forget("server");
    asks.answer = Some("red");
    let reason = failed(rig.call_with(&spec, &asks).await);
    assert!(reason.contains("Whether `echo` took effect is not known"), "{reason}");
    assert_eq!(rig.starts(), 1);
}
