//! Tests of the tools for schedules: what a person is asked, what is set, and what is refused.

use api::schedules::ScheduleTime;
use pretty_assertions::assert_eq;
use testkit::with_deadline;

use super::*;
use crate::fixture::{MemoryFixture, run_tool};

/// 2026-11-27T04:00:00Z.
const NOW: i64 = 1_795_752_000_000;

async fn run_at(tool: &dyn Tool, input: Value) -> Result<ToolOutput, ToolError> {
    let at = Timestamp::from_unix_ms(NOW);
    let invocation = Invocation { call_id: CallId::new(), at, task: None, input, answers: Vec::new() };
    match with_deadline(tool.run(invocation)).await? {
        ToolStep::Done(output) => Ok(output),
        ToolStep::Ask(question) => panic!("asks {question:?}"),
    }
}

fn set(output: ToolOutput) -> (Schedule, bool) {
    match output.schedule {
        Some(ScheduleChange::Set { schedule, in_task }) => (*schedule, in_task),
        other => panic!("sets nothing: {other:?}"),
    }
}

#[tokio::test]
async fn a_schedule_is_set_with_its_first_due_time() {
    let fixture = MemoryFixture::new();
    let tool = ScheduleCreate(fixture.brain.clone());
    let input = json!({
        "name": "Morning", "message": "Say good morning.", "cron": "0 8 * * *", "time_zone": "Europe/Berlin",
    });
    let output = run_at(&tool, input).await.unwrap();
    assert!(output.text.contains("due first at 2026-11-27T07:00:00.000Z"), "{}", output.text);
    let (schedule, in_task) = set(output);
    assert!(in_task && schedule.id.as_str().starts_with("sched_"), "{schedule:?}");
    let input = json!({"name": "x", "message": "y", "every_seconds": 90, "in_new_task": true});
    let (schedule, in_task) = set(run_at(&tool, input).await.unwrap());
    let next = Timestamp::from_unix_ms(NOW + 90_000);
    assert_eq!(
        (in_task, schedule.next_due_at, schedule.definition.when.start),
        (false, Some(next), Some(next))
    );
    let input = json!({"name": "x", "message": "y", "at": "2026-11-27T06:00:00+01:00"});
    let (schedule, _) = set(run_at(&tool, input).await.unwrap());
    assert_eq!(schedule.next_due_at, Some(Timestamp::from_unix_ms(NOW + 3_600_000)));
}

#[tokio::test]
async fn what_is_no_schedule_is_refused_with_the_field() {
    let fixture = MemoryFixture::new();
    let tool = ScheduleCreate(fixture.brain.clone());
    for (field, value, words) in [
        ("cron", json!("0 8 * *"), "`cron`"),
        ("cron", json!("0 8 30 2 *"), "`cron`"),
        ("at", json!("tomorrow"), "`at`"),
        ("at", json!("2026-11-27T04:00:00Z"), "it is 2026-11-27T04:00:00.000Z now"),
        ("every_seconds", json!(59), "`every_seconds`"),
        ("time_zone", json!("UTC"), "`time_zone`"),
        ("name", json!(""), "exactly one of"),
    ] {
        let mut input = json!({"name": "x", "message": "y"});
        input[field] = value.clone();
        let error = run_at(&tool, input.clone()).await.unwrap_err().to_string();
        assert!(error.contains(words), "{field} {value}: {error}");
        let is_checked_early = words.starts_with('`') || words.starts_with("exactly");
        assert_eq!(tool.check_input(&input).is_err(), is_checked_early, "{field} {value}");
    }
    for input in [
        json!({"name": " ", "message": "y", "every_seconds": 60}),
        json!({"name": "x", "message": " ", "every_seconds": 60}),
    ] {
        assert!(run_at(&tool, input.clone()).await.is_err(), "{input}");
    }
}

#[tokio::test]
async fn a_person_is_shown_the_whole_message_and_its_times() {
    let fixture = MemoryFixture::new();
    let tool = ScheduleCreate(fixture.brain.clone());
    let prompt = tool.approval_prompt(&json!({
        "name": "Nachrichten", "message": "Fasse sie zusammen.\u{202e}", "cron": "0 8 * * mon", "in_new_task": true,
    }));
    assert_eq!(
        prompt,
        "Schedule “Nachrichten”, at the times `0 8 * * mon` (UTC), each time in a new conversation? The agent then \
         gets this message as if you had sent it:\n\n> Fasse sie zusammen.\\u{202e}"
    );
    assert!(tool.approval_prompt(&json!({"name": "x"})).starts_with("Allow `schedule_create`"));
    let invalid = tool.approval_prompt(&json!({"name": "x", "message": "y", "cron": "0"}));
    assert!(invalid.starts_with("Allow `schedule_create`") && invalid.contains("`cron`"), "{invalid}");
    assert_eq!(
        (tool.permission(), tool.needs_turn(), tool.asks_after_untrusted_content()),
        (Permission::Ask, true, true)
    );
}

#[tokio::test]
async fn a_message_that_would_not_be_shown_whole_is_refused_and_one_that_is_deleted_is_said_to_be_cut() {
    let fixture = MemoryFixture::new();
    let create = ScheduleCreate(fixture.brain.clone());
    let with = |length| json!({"name": "x", "message": "ä".repeat(length), "every_seconds": 60});
    create.check_input(&with(8_000)).unwrap();
    let shown = create.approval_preview(&with(8_000));
    assert!(matches!(shown, ApprovalPreview::Text { truncated: false, .. }), "{shown:?}");
    let error = create.check_input(&with(8_001)).unwrap_err().to_string();
    assert!(error.contains("`message`") && error.contains("8000"), "{error}");

    let delete = ScheduleDelete(fixture.brain.clone());
    for (id, length) in [("whole", 8_000), ("cut", 8_001)] {
        let mut schedule = set(run_at(&create, with(1)).await.unwrap()).0;
        schedule.id = ScheduleId::new(id).unwrap();
        schedule.definition.message = ScheduledMessage::new("ä".repeat(length)).unwrap();
        fixture.brain.write(move |tx| tx.insert_schedule(&schedule)).await.unwrap();
        let shown = delete.approval_preview(&json!({"id": id}));
        let is_cut = matches!(shown, ApprovalPreview::Text { truncated: true, .. });
        assert_eq!(is_cut, id == "cut", "{shown:?}");
    }
}

#[tokio::test]
async fn schedules_are_listed_and_deleted_by_their_ids() {
    let fixture = MemoryFixture::new();
    let brain = fixture.brain.clone();
    let (list, delete) = (ScheduleList(brain.clone()), ScheduleDelete(brain.clone()));
    assert_eq!(run_tool(&list, json!({})).await.unwrap(), "There are no schedules.");
    let schedule = Schedule {
        id: ScheduleId::new("news").unwrap(),
        definition: ScheduleDefinition {
            name: ScheduleName::new("News").unwrap(),
            message: ScheduledMessage::new("Sum up\nthe news.").unwrap(),
            when: ScheduleTime { cron: Some("0 8 * * *".into()), ..ScheduleTime::default() },
            task_id: None,
            missed: MissedPolicy::default(),
            options: ScheduleOptions::default(),
        },
        state: ScheduleState::Active,
        next_due_at: Some(Timestamp::from_unix_ms(NOW)),
        last_due_at: None,
        created_at: Timestamp::from_unix_ms(NOW),
        updated_at: Timestamp::from_unix_ms(NOW),
        runs: None,
    };
    let head = "`news` “News”, at the times `0 8 * * *` (UTC), due next at 2026-11-27T04:00:00.000Z";
    brain.write(move |tx| tx.insert_schedule(&schedule)).await.unwrap();
    assert_eq!(run_tool(&list, json!({})).await.unwrap(), format!("- {head}: Sum up the news."));
    assert_eq!(
        delete.approval_prompt(&json!({"id": "news"})),
        format!("Delete this schedule?\n\n{head}\n> Sum up\n> the news.")
    );
    let output = run_at(&delete, json!({"id": "news"})).await.unwrap();
    assert_eq!(output.schedule, Some(ScheduleChange::Delete(ScheduleId::new("news").unwrap())));
    for id in ["", "none", "a b"] {
        let error = run_at(&delete, json!({"id": id})).await.unwrap_err().to_string();
        assert!(error.contains("schedule_list"), "{id}: {error}");
    }
}
