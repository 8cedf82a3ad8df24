use proptest::prelude::*;

use super::*;
use crate::fixture::WorkspaceFixture;

fn hook(name: &str, phase: HookPhase, script: &str) -> Hook {
    Hook {
        name: name.into(),
        phase,
        tools: vec!["*".into()],
        action: HookAction::Command {
            command: vec!["/bin/sh".into(), "-c".into(), script.into()],
            network: false,
        },
        timeout: Duration::from_secs(10),
        refuses_on_failure: true,
    }
}

fn call() -> HookedCall {
    let context = [("task_id".to_owned(), json!("task"))].into_iter().collect();
    HookedCall { call_id: CallId::new(), tool: "t".into(), input: json!({"a": 1}), context }
}

fn answer(text: &str, phase: HookPhase) -> Result<HookAnswer, String> {
    HookAnswer::parse(text, phase)
}

#[expect(clippy::unnecessary_wraps, reason = "a hook's new input is checked by such a function")]
fn any_input(_: &Value) -> Result<(), String> {
    Ok(())
}

#[test]
fn an_answer_is_one_object_with_a_decision_and_nothing_unknown() {
    let parsed = |text: &str| answer(text, HookPhase::Before);
    assert_eq!(parsed(" {\"decision\": \"allow\"}\n"), Ok(HookAnswer::default()));
    let input = Some(json!({"b": 2}));
    let changed = parsed(r#"{"decision": "allow", "input": {"b": 2}, "note": " "}"#);
    assert_eq!(changed, Ok(HookAnswer { input, ..HookAnswer::default() }));
    let refused = parsed(r#"{"decision": "refuse", "input": {"b": 2}, "note": "n"}"#).unwrap();
    assert_eq!(refused, HookAnswer { refusal: Some("it gave no reason".into()), ..HookAnswer::default() });
    for text in [
        "",
        "ok",
        "[]",
        "{}",
        r#"{"decision": "maybe"}"#,
        r#"{"decision": "allow", "input": [1]}"#,
        r#"{"decision": "allow", "inputs": {}}"#,
        r#"{"decision": "allow"} {"decision": "allow"}"#,
        r#"{"decision": "allow", "note": 7}"#,
        r#"{"decision": "allow", "result": "r"}"#,
    ] {
        assert!(parsed(text).is_err(), "{text}");
    }
    assert!(answer(r#"{"decision": "allow", "input": {}}"#, HookPhase::After).is_err());
    let long = "ß".repeat(100_000);
    let text = json!({"decision": "allow", "note": long, "result": long}).to_string();
    let kept = answer(&text, HookPhase::After).unwrap();
    assert!(kept.note.unwrap().chars().count() < 5_000 && kept.result.unwrap().chars().count() < 70_000);
}

#[test]
fn each_hook_builds_on_those_before_it_until_one_refuses() {
    let first = hook("first", HookPhase::Before, "");
    let second = hook("second", HookPhase::Before, "");
    let call = call();
    let mut run = BeforeRun::default();
    run.apply(
        &first,
        &call,
        answer(r#"{"decision": "allow", "input": {"b": 2}}"#, HookPhase::Before),
        any_input,
    );
    run.apply(
        &second,
        &call,
        answer(r#"{"decision": "allow", "note": "seen"}"#, HookPhase::Before),
        any_input,
    );
    run.apply(&second, &call, answer(r#"{"decision": "allow"}"#, HookPhase::Before), any_input);
    assert_eq!((&run.refusal, &run.input, run.notes.len()), (&None, &Some(json!({"b": 2})), 2));
    assert!(run.notes[0].contains("`first`") && run.notes[0].ends_with("{\"b\":2}"), "{run:?}");
    assert_eq!(run.reports.len(), 2, "the hook that did nothing is not reported");
    assert!(run.adds_text() && !BeforeRun::default().adds_text());
    run.apply(
        &first,
        &call,
        answer(r#"{"decision": "refuse", "reason": "no"}"#, HookPhase::Before),
        any_input,
    );
    assert!(run.refusal.unwrap().ends_with("refused this call: no"));
    assert_eq!(run.reports[2].decision, HookDecision::Refuse);
}

#[test]
fn a_failure_refuses_or_is_ignored_and_is_reported_either_way() {
    let strict = hook("strict", HookPhase::Before, "");
    let lenient = Hook { refuses_on_failure: false, ..hook("lenient", HookPhase::Before, "") };
    let call = call();
    let invalid = |_: &Value| Err("`/b` is not expected".to_owned());
    for (failing, refused) in [(&strict, true), (&lenient, false)] {
        let mut run = BeforeRun::default();
        run.apply(failing, &call, Err("it hangs".into()), any_input);
        assert_eq!((run.refusal.is_some(), run.reports[0].failure.as_deref()), (refused, Some("it hangs")));
        let mut run = BeforeRun::default();
        run.apply(
            failing,
            &call,
            answer(r#"{"decision": "allow", "input": {"b": 2}}"#, HookPhase::Before),
            invalid,
        );
        assert_eq!((run.refusal.is_some(), run.input.is_none()), (refused, true));
        let mut run = AfterRun::default();
        run.apply(failing, &call, Err("it hangs".into()));
        assert_eq!(run.refusal.is_some(), refused);
    }
    let mut run = AfterRun::default();
    run.apply(
        &strict,
        &call,
        answer(r#"{"decision": "allow", "result": "***", "note": "n"}"#, HookPhase::After),
    );
    assert_eq!((run.result.as_deref(), run.notes.len()), (Some("***"), 1));
}

fn hooks(fixture: &WorkspaceFixture, list: Vec<Hook>) -> ToolHooks {
    ToolHooks {
        hooks: Hooks { list, unreadable: false },
        programs: Some(fixture.runner()),
        memory_budget: MemoryBudget::default(),
    }
}

#[tokio::test]
async fn a_program_is_sent_the_call_and_one_that_misbehaves_has_failed() {
    let fixture = WorkspaceFixture::new();
    let echo =
        r#"input=$(cat); printf '{"decision": "refuse", "reason": "%s"}' "$(echo "$input" | tr '"' "'")""#;
    let run =
        hooks(&fixture, vec![hook("echo", HookPhase::Before, echo)]).run_before(&call(), any_input).await;
    let refusal = run.refusal.unwrap();
    for words in ["'task_id':'task'", "'input':{'a':1}", "'tool':'t'", "'on':'before'", "'hook':'echo'"] {
        assert!(refusal.contains(words), "{words}: {refusal}");
    }
    for (script, why) in [
        ("echo fine", "not a JSON object"),
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "signal 9"),
        ("head -c 300000 /dev/zero", "longer than 262144 bytes"),
        ("sleep 60", "did not answer within 0.3 s"),
        ("exec no-such-program", "exit code 127"),
    ] {
        let failing = Hook { timeout: Duration::from_millis(300), ..hook("bad", HookPhase::Before, script) };
        let timeout = if script.starts_with("sleep") { failing.timeout } else { Duration::from_secs(10) };
        let run = hooks(&fixture, vec![Hook { timeout, ..failing }]).run_before(&call(), any_input).await;
        let failure = run.reports[0].failure.clone().unwrap();
        assert!(run.refusal.is_some() && failure.contains(why), "{failure}");
    }
    assert!(!fixture.path("tool-output").exists(), "nothing of their output is kept");
}

#[tokio::test]
async fn unknown_hooks_refuse_every_call_and_a_machine_without_a_sandbox_runs_no_program() {
    let fixture = WorkspaceFixture::new();
    let unknown = ToolHooks { hooks: Hooks::unknown(), ..hooks(&fixture, Vec::new()) };
    assert!(unknown.apply_to(HookPhase::Before, "any") && unknown.apply_to(HookPhase::After, "any"));
    assert!(unknown.run_before(&call(), any_input).await.refusal.is_some());
    assert!(
        unknown.run_after(&call(), Ok("a secret")).await.refusal.is_some(),
        "one that ran before the restart"
    );
    let allow = hook("allow", HookPhase::Before, "echo '{\"decision\": \"allow\"}'");
    let none = ToolHooks { programs: None, ..hooks(&fixture, vec![allow]) };
    assert!(none.run_before(&call(), any_input).await.refusal.is_some());
}

#[tokio::test]
async fn files_in_the_workspace_are_not_run_before_a_hook() {
    let fixture = WorkspaceFixture::new();
    let home = hook(
        "home",
        HookPhase::Before,
        r#"printf '{"decision": "refuse", "reason": "%s"}' "$HOME $PYTHONNOUSERSITE""#,
    );
    let run = hooks(&fixture, vec![home]).run_before(&call(), any_input).await;
    assert!(run.refusal.unwrap().ends_with("/nonexistent 1"));
}

#[tokio::test]
async fn hooks_after_a_call_see_what_those_before_them_made_of_its_result() {
    let fixture = WorkspaceFixture::new();
    let mask =
        hook("mask", HookPhase::After, r#"cat > seen-1; echo '{"decision": "allow", "result": "***"}'"#);
    let check =
        hook("check", HookPhase::After, r#"cat > seen-2; echo '{"decision": "allow", "note": "masked"}'"#);
    let run = hooks(&fixture, vec![mask, check]).run_after(&call(), Ok("a secret")).await;
    assert_eq!((run.result.as_deref(), run.notes.len(), run.refusal), (Some("***"), 1, None));
    assert!(fixture.read_file("seen-1").contains(r#""result":{"cut":false,"output":"a secret"}"#));
    assert!(fixture.read_file("seen-2").contains(r#""output":"***""#));
    let long = "x".repeat(100_000);
    let check = hook("check", HookPhase::After, r#"cat > seen-3; echo '{"decision": "allow"}'"#);
    hooks(&fixture, vec![check]).run_after(&call(), Err(&long)).await;
    let seen = fixture.read_file("seen-3");
    assert!(seen.contains(r#""cut":true"#) && seen.contains(r#""error":"xxx"#) && seen.len() < 70_000);
}

proptest! {
    #[test]
    fn any_answer_is_read_or_refused(text in r#"[\[\]{}":,a-z ]{0,60}"#) {
        for phase in [HookPhase::Before, HookPhase::After] {
            if let Ok(answer) = HookAnswer::parse(&text, phase) {
                prop_assert!(text.contains("decision"), "{:?}", answer);
            }
        }
    }
}
