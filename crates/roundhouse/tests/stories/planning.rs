//! `planning.json` of the catalog says which messages are planned: all, those that are worth a model call, or none.

use std::fs;
use std::path::Path;
use std::time::Duration;

use mock_llm::{Fault, Gate, Reply};
use serde_json::{Value, json};

use crate::support::engine_fixture::wait_gate_reached;
use crate::support::tool_programs::{done_reply, write_catalog_file};
use crate::support::turn::{assert_completed, memory_values, of_kind};
use crate::support::{EngineFixture, Event, StandaloneEngine};

const FINDER: &str = "---\ndescription: Finds things.\n---\nYou find things.";
/// A request of several parts.
const WORK: &str = "Research solar panel prices in Spain, compare the three largest suppliers, and write a report \
                    with a recommendation.";
/// Messages as users write them, and whether `auto` plans them.
const MESSAGES: [(&str, bool); 16] = [
    ("Hello!", false),
    ("Guten Morgen! Wie geht es dir heute?", false),
    ("Merci beaucoup, c'était parfait !", false),
    ("¿Qué hora es en Lima?", false),
    ("Привет! Как дела? Спасибо, что помог вчера.", false),
    ("صباح الخير، كيف حالك اليوم؟", false),
    ("नमस्ते! आप कैसे हैं?", false),
    ("你好！今天天气怎么样？", false),
    ("おはようございます。元気ですか？", false),
    ("안녕하세요! 오늘 기분이 어때요?", false),
    ("สวัสดีครับ วันนี้เป็นอย่างไรบ้าง", false),
    ("What is the capital of Australia?", false),
    (WORK, true),
    ("Please:\n- book a table\n- invite Ann\n- remind me on Friday", true),
    ("请先研究西班牙太阳能电池板的价格，然后比较三家最大的供应商，最后写一份两页的报告。", true),
    (
        "Изучи цены на солнечные панели в Испании, сравни трёх крупнейших поставщиков, а затем напиши отчёт на две \
         страницы с рекомендацией.",
        true,
    ),
];

fn plan() -> Value {
    json!({"agent": "finder", "steps": ["Look."]})
}

fn message(task: &str, text: &str) -> Value {
    json!({"task_id": task, "message": text})
}

fn planning_file(mode: &str) -> String {
    json!({"plan": mode}).to_string()
}

/// An engine whose catalog has an agent, and this mode of planning.
async fn fixture(mode: Option<&str>) -> EngineFixture {
    EngineFixture::with_setup("anthropic", [], |setup: StandaloneEngine| {
        let setup = setup.with_catalog_file("agents/finder.md", FINDER);
        match mode {
            Some(mode) => setup.with_catalog_file("planning.json", &planning_file(mode)),
            None => setup,
        }
    })
    .await
}

fn write_mode(fixture: &EngineFixture, mode: &str) {
    let catalog = Path::new(&fixture.setup.variables["CATALOG_DIR"]);
    write_catalog_file(catalog, "planning.json", &planning_file(mode));
}

/// Runs a turn that is planned or not, with a planner that takes 300 ms. Returns its events and its model calls.
async fn run(fixture: &EngineFixture, task: &str, text: &str, planned: bool) -> (Vec<Event>, usize) {
    if planned {
        let slow = Reply::from_text(plan().to_string()).deltas(11).delay(Duration::from_millis(30));
        fixture.provider.enqueue(slow);
    }
    fixture.provider.enqueue(done_reply());
    let before = fixture.model_calls();
    let events = fixture.engine.run_turn_with(&message(task, text)).await;
    assert_eq!(assert_completed(&events), "Done.", "{text}");
    assert_eq!(memory_values(&events, "plan").len(), usize::from(planned), "{text}");
    (events, fixture.model_calls() - before)
}

/// The time until the first text of an answer, in milliseconds.
fn delay_ms(events: &[Event]) -> i64 {
    of_kind(events, "text_delta")[0].ts() - events[0].ts()
}

#[tokio::test]
async fn small_talk_costs_one_model_call_and_work_of_several_parts_two() {
    let mut totals = Vec::new();
    for mode in [None, Some("auto"), Some("never")] {
        let fixture = fixture(mode).await;
        let (mut calls, mut delay) = (0, 0);
        for (number, (text, worth)) in MESSAGES.into_iter().enumerate() {
            let planned = mode.is_none() || (mode == Some("auto") && worth);
            let (events, made) = run(&fixture, &format!("task-{number}"), text, planned).await;
            assert_eq!(made, 1 + usize::from(planned), "{mode:?}: {text}");
            calls += made;
            delay += delay_ms(&events);
        }
        eprintln!(
            "planning {}: {calls} model calls for {} messages, {} ms until the first text on average",
            mode.unwrap_or("always"),
            MESSAGES.len(),
            delay / i64::try_from(MESSAGES.len()).unwrap()
        );
        totals.push(calls);
    }
    assert_eq!(totals, [32, 20, 16]);
}

#[tokio::test]
async fn a_later_message_is_planned_only_if_there_is_more_to_it() {
    let fixture = fixture(Some("auto")).await;
    run(&fixture, "task", WORK, true).await;
    let remark = "That is good, but use a friendlier tone in the greeting, and leave out the last sentence.";
    run(&fixture, "task", remark, false).await;
    run(&fixture, "task", "1. Translate it.\n2. Send it to Ann.", true).await;
    // A request that asks for no plan gets none.
    fixture.provider.enqueue(done_reply());
    let before = fixture.model_calls();
    fixture.engine.run_turn("task", WORK).await;
    assert_eq!(fixture.model_calls() - before, 1);
}

#[tokio::test]
async fn the_mode_is_read_again_and_a_faulty_one_changes_nothing() {
    let fixture = fixture(Some("never")).await;
    run(&fixture, "one", WORK, false).await;
    let catalog = Path::new(&fixture.setup.variables["CATALOG_DIR"]).to_owned();
    let file = catalog.join("planning.json");
    for (text, planned, warnings) in [
        (r#"{"plan": "sometimes"}"#, false, 1),
        (r#"{"plan": "auto"}"#, true, 0),
        ("{", true, 1),
        (r#"{"plan": "never"}"#, false, 0),
    ] {
        fs::write(&file, text).unwrap();
        let answer = fixture.engine.post("/admin/reload-catalog", &json!({})).await;
        let answer = answer.assert_ok("status:text counts:object warnings:array");
        assert_eq!(answer["warnings"].as_array().unwrap().len(), warnings, "{answer}");
        run(&fixture, "one", &format!("{WORK} {WORK}"), planned).await;
    }
    fs::remove_file(&file).unwrap();
    fixture
        .engine
        .post("/admin/reload-catalog", &json!({}))
        .await
        .assert_ok("status:text counts:object warnings:array");
    run(&fixture, "one", "Hello!", true).await;
}

#[tokio::test]
async fn a_turn_that_is_resumed_after_a_kill_does_not_decide_anew() {
    // It was not worth a plan, and is not planned by the engine that would plan everything.
    let gate = Gate::new();
    let fixture = fixture(Some("auto")).await;
    fixture.provider.enqueue(done_reply().hold(0, &gate));
    let stream = fixture.engine.execute_with(&message("talk", "Hello!")).await;
    wait_gate_reached(&gate).await;
    drop(stream);
    write_mode(&fixture, "always");
    fixture.provider.enqueue(done_reply());
    let fixture = fixture.kill_and_start().await;
    let events = fixture.engine.replay("talk", 0).await.collect().await;
    assert_eq!((assert_completed(&events), fixture.model_calls()), ("Done.", 2));

    // It was worth one, and is planned by the engine that plans nothing.
    write_mode(&fixture, "auto");
    let fixture = fixture.stop_and_start().await;
    let gate = Gate::new();
    fixture.provider.enqueue(Reply::from_text(plan().to_string()).hold(0, &gate));
    let stream = fixture.engine.execute_with(&message("work", WORK)).await;
    wait_gate_reached(&gate).await;
    drop(stream);
    write_mode(&fixture, "never");
    fixture.provider.enqueue_all([Reply::from_text(plan().to_string()), done_reply()]);
    let fixture = fixture.kill_and_start().await;
    let events = fixture.engine.replay("work", 0).await.collect().await;
    assert_eq!((assert_completed(&events), fixture.model_calls()), ("Done.", 5));
    assert_eq!(memory_values(&events, "plan").len(), 1);
}

#[tokio::test]
async fn the_steps_of_a_plan_are_shown_as_they_arrive_also_after_a_kill() {
    let begun = |count: usize| json!({"agent": "finder", "steps": &["Look.", "Compare.", "Write."][..count]});
    let whole = begun(3).to_string();
    // Held in the middle of the third step.
    let held = |gate: &Gate| Reply::from_text(whole.clone()).chars_per_delta(1).hold(whole.len() - 8, gate);
    let fixture = fixture(None).await;
    let gate = Gate::new();
    fixture.provider.enqueue(held(&gate));
    let mut stream = fixture.engine.execute_with(&message("task", WORK)).await;
    let two_steps = |event: &Event| event.data["value"] == begun(2);
    let seen = stream.read_until("two steps of the plan", two_steps).await;
    assert_eq!((seen.kind.as_str(), &seen.data["key"]), ("working_memory_update", &json!("planning")));
    let memory = fixture.engine.get("/tasks/task/memory").await.assert_ok("memory:object");
    assert_eq!(memory["memory"], json!({}), "there is no plan yet");
    drop(stream);

    // The engine that resumes the turn plans it anew.
    fixture.provider.enqueue_all([Reply::from_text(whole.clone()).chars_per_delta(1), done_reply()]);
    let fixture = fixture.kill_and_start().await;
    let events = fixture.engine.replay("task", 0).await.collect().await;
    assert_completed(&events);
    // What arrives at once is shown at once.
    let counts: Vec<usize> = memory_values(&events, "planning")
        .into_iter()
        .map(|plan| (1..=3).find(|count| *plan == begun(*count)).expect("it is a part of the plan"))
        .collect();
    let before = counts.iter().position(|count| *count == 2).unwrap();
    let (before, after) = counts.split_at(before + 1);
    assert!([before, after].iter().all(|counts| counts.is_sorted_by(|one, other| one < other)), "{counts:?}");
    assert_eq!(memory_values(&events, "plan"), [&begun(3)]);
    let memory = fixture.engine.get("/tasks/task/memory").await.assert_ok("memory:object");
    assert_eq!(memory["memory"], json!({"plan": begun(3)}), "what was shown meanwhile is not kept");
}

#[tokio::test]
async fn of_a_plan_that_breaks_off_nothing_is_left() {
    let fixture = fixture(None).await;
    let text = plan().to_string();
    let broken =
        Reply::from_text(text.clone()).chars_per_delta(1).fault(Fault::CutAfter { deltas: text.len() - 1 });
    fixture.provider.enqueue_all([broken, done_reply()]);
    let events = fixture.engine.run_turn_with(&message("task", WORK)).await;
    assert_eq!(assert_completed(&events), "Done.");
    assert_eq!((memory_values(&events, "planning").len(), memory_values(&events, "plan").len()), (1, 0));
    let memory = fixture.engine.get("/tasks/task/memory").await.assert_ok("memory:object");
    assert_eq!(memory["memory"], json!({}));
    fixture.last_messages().assert_lacks(&["Look."]);
}
