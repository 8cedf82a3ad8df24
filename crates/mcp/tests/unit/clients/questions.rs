//! Questions of servers that are programs: who answers them, and what becomes of the call meanwhile.

use super::*;

/// Returns a server that elicits an answer during a call, and returns it.
fn eliciting_server(schema: &str) -> String {
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

const COLOUR_SCHEMA: &str = r#"{"type": "object", "properties": {"colour": {"type": "string", "enum": ["red", "green"]}}, "required": ["colour"]}"#;

#[tokio::test]
async fn what_a_server_asks_is_answered_by_a_person() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = with_short_timeout(&fixture.program_spec(&eliciting_server(COLOUR_SCHEMA)));
    fixture.connect(&spec).await;
    let mut call = tool_call("echo", json!({}));
    let question = expect_question(fixture.call_with(&spec, &call).await);
    assert!(question.text.contains("`server` asks this: Which?"), "{}", question.text);
    assert_eq!(question.options, Some(["red", "green", "decline"].map(str::to_owned).to_vec()));
    // A person may take longer than the server's time limit, which runs in real time.
    SystemClock::new().sleep(Duration::from_millis(3100)).await;
    call.answer = Some("blue");
    let question = expect_question(fixture.call_with(&spec, &call).await);
    assert!(
        question.text.starts_with("That answer is not valid: `colour` must be one of"),
        "{}",
        question.text
    );
    call.answer = Some("Green");
    let given = expect_done(fixture.call_with(&spec, &call).await);
    assert_eq!(given, r#"{"action": "accept", "content": {"colour": "green"}}"#);
}

#[tokio::test]
async fn a_call_that_is_given_up_while_it_waits_holds_up_nothing() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = with_short_timeout(&fixture.program_spec(&eliciting_server(COLOUR_SCHEMA)));
    fixture.connect(&spec).await;
    let mut call = tool_call("echo", json!({}));
    expect_question(fixture.call_with(&spec, &call).await);
    fixture.clients.cancel_suspended(call.id);
    // The server no longer waits for the answer: it accepts the next call, and asks again.
    expect_question(fixture.call(&spec, "echo").await);
    assert_eq!(fixture.start_count(), 1);
    call.answer = Some("red");
    let reason = expect_failure(fixture.call_with(&spec, &call).await);
    assert!(reason.contains("it no longer waits for the answer"), "{reason}");
}

#[tokio::test]
async fn a_client_is_kept_while_a_call_waits_for_a_person() {
    if !can_run_python_servers() {
        return;
    }
    let idle = Duration::from_millis(300);
    let fixture = ClientFixture::with_timeouts(Timeouts { idle, connect: SERVER_CONNECT_TIMEOUT });
    let spec = fixture.program_spec(&eliciting_server(COLOUR_SCHEMA));
    let mut call = tool_call("echo", json!({}));
    expect_question(fixture.call_with(&spec, &call).await);
    SystemClock::new().sleep(3 * idle).await;
    call.answer = Some("red");
    assert!(expect_done(fixture.call_with(&spec, &call).await).contains("red"));
    fixture.wait_session_ended().await;
    assert_eq!(fixture.start_count(), 1);
}

#[tokio::test]
async fn where_nobody_may_be_asked_all_is_declined() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(&eliciting_server(COLOUR_SCHEMA));
    fixture.connect(&spec).await;
    let mut direct = tool_call("echo", json!({}));
    direct.may_elicit = false;
    assert_eq!(expect_done(fixture.call_with(&spec, &direct).await), r#"{"action": "decline"}"#);
}

#[tokio::test]
async fn an_answer_that_cannot_be_taken_is_asked_for_three_times_again() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(&eliciting_server(COLOUR_SCHEMA));
    fixture.connect(&spec).await;
    let mut call = tool_call("echo", json!({}));
    expect_question(fixture.call_with(&spec, &call).await);
    call.answer = Some("blue");
    for _ in 0..3 {
        expect_question(fixture.call_with(&spec, &call).await);
    }
    assert_eq!(expect_done(fixture.call_with(&spec, &call).await), r#"{"action": "decline"}"#);
}

#[tokio::test]
async fn a_call_that_waits_no_more_is_not_made_again() {
    if !can_run_python_servers() {
        return;
    }
    let fixture = ClientFixture::new();
    let spec = fixture.program_spec(&eliciting_server(COLOUR_SCHEMA));
    fixture.connect(&spec).await;
    let mut call = tool_call("echo", json!({}));
    expect_question(fixture.call_with(&spec, &call).await);
    fixture.clients.drop_client("server");
    call.answer = Some("red");
    let reason = expect_failure(fixture.call_with(&spec, &call).await);
    assert!(reason.contains("It is not known whether `echo` took effect"), "{reason}");
    assert_eq!(fixture.start_count(), 1);
}
