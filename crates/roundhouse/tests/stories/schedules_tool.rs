//! The agent sets and deletes schedules with the user's leave.

use mock_llm::Reply;
use serde_json::{Value, json};

use crate::schedules::{in_seconds, wait_completed};
use crate::support::engine_calls::direct_message;
use crate::support::tool_programs::{done_reply, tool_reply, tool_results};
use crate::support::turn::assert_completed;
use crate::support::{EngineFixture, eventually};

async fn schedules(fixture: &EngineFixture) -> Vec<Value> {
    let listed = fixture.engine.get("/schedules").await.assert_ok("schedules:array limit:int");
    listed["schedules"].as_array().unwrap().clone()
}

/// A call that schedules the message `Sag guten Morgen!` in two seconds, in a new task or in that of the call.
fn create(in_new_task: bool) -> Reply {
    let input = json!({
        "name": "Morgen", "message": "Sag guten Morgen!", "at": in_seconds(2), "in_new_task": in_new_task,
    });
    tool_reply("schedule_create", input)
}

#[tokio::test]
async fn what_the_agent_schedules_with_leave_comes_back_as_a_message() {
    let fixture = EngineFixture::new([]).await;
    for (answer, in_new_task, count) in [("no", false, 0), ("yes", false, 1), ("yes", true, 2)] {
        let task = format!("{answer}-{in_new_task}");
        fixture.provider.enqueue_all([create(in_new_task), done_reply()]);
        let message = direct_message(&task, "Wake me.");
        let (stream, request) = fixture.engine.run_until_hitl_request(&message).await;
        let question = request.data["question"].as_str().unwrap();
        assert!(question.contains("> Sag guten Morgen!") && question.contains("once, at 20"), "{question}");
        let before = schedules(&fixture).await.len();
        fixture.engine.respond(&task, answer).await;
        assert_completed(&stream.collect().await);
        let found = schedules(&fixture).await;
        assert_eq!((before, found.len()), (count - usize::from(answer == "yes"), count), "{task}");
        let Some(schedule) = found.last() else { continue };
        fixture.provider.enqueue(Reply::from_text("Guten Morgen!"));
        let done = wait_completed(&fixture.engine, schedule["id"].as_str().unwrap()).await;
        let runs = done["runs"].as_array().unwrap();
        assert_eq!((runs.len(), runs[0]["task_id"] == json!(task)), (1, !in_new_task), "{done}");
        let messages = fixture.engine.messages(runs[0]["task_id"].as_str().unwrap()).await;
        assert!(messages.iter().any(|message| message["content"] == "Sag guten Morgen!"), "{messages:?}");
    }
}

#[tokio::test]
async fn a_kill_around_the_call_sets_one_schedule() {
    let fixture = EngineFixture::new([tool_reply("schedule_create", yearly()), done_reply()]).await;
    let (stream, _) = fixture.engine.run_until_hitl_request(&direct_message("task", "Each year.")).await;
    drop(stream);
    let fixture = fixture.kill_and_start().await;
    assert_eq!(schedules(&fixture).await, Vec::<Value>::new());
    fixture.engine.respond("task", "yes").await;
    // Right after the answer: the call may have run, or not, or its result may be stored.
    let fixture = fixture.kill_and_start().await;
    fixture.provider.enqueue(done_reply());
    let set = eventually("it is set", async || {
        let found = schedules(&fixture).await;
        (!found.is_empty()).then_some(found)
    })
    .await;
    assert_eq!((set.len(), &set[0]["task_id"]), (1, &json!("task")));
    eventually("the turn ends", async || {
        let turns = fixture.engine.get("/tasks/task/turns").await.body;
        (turns["turns"][0]["state"] == "completed").then_some(())
    })
    .await;
    assert_eq!(schedules(&fixture).await.len(), 1);
}

fn yearly() -> Value {
    json!({"name": "New year", "message": "Happy new year!", "cron": "0 0 1 1 *", "time_zone": "Asia/Tokyo"})
}

#[tokio::test]
async fn the_agent_lists_schedules_and_deletes_one_with_leave() {
    let fixture = EngineFixture::new([]).await;
    let body =
        json!({"id": "news", "name": "News", "when": {"cron": "0 8 * * *"}, "message": "Read the news."});
    assert_eq!(fixture.engine.post("/schedules", &body).await.status, 201);
    let delete = tool_reply("schedule_delete", json!({"id": "news"}));
    fixture.provider.enqueue_all([tool_reply("schedule_list", json!({})), delete, done_reply()]);
    let message = direct_message("task", "No more news.");
    let (stream, request) = fixture.engine.run_until_hitl_request(&message).await;
    let question = request.data["question"].as_str().unwrap();
    assert!(
        question.contains("Delete this schedule?") && question.contains("> Read the news."),
        "{question}"
    );
    fixture.engine.respond("task", "yes").await;
    let events = stream.collect().await;
    assert_completed(&events);
    let list = events.iter().find(|event| event.kind == "tool_result").unwrap();
    assert!(list.data["output"].as_str().unwrap().contains("`news` “News”"), "{list:?}");
    assert_eq!(schedules(&fixture).await, Vec::<Value>::new());
}

#[tokio::test]
async fn calls_at_once_set_no_more_schedules_than_an_engine_may_have() {
    let permissions = json!({"tools": {"schedule_create": "allow"}});
    let fixture = crate::user_servers::fixture_with(&permissions, &json!({})).await;
    for n in 0..97 {
        let body = json!({"id": format!("s{n}"), "name": "x", "message": "y", "when": {"cron": "0 0 1 1 *"}});
        assert_eq!(fixture.engine.post("/schedules", &body).await.status, 201);
    }
    let calls =
        (0..8).fold(Reply::from_text("Many."), |reply, _| reply.tool_use("schedule_create", yearly()));
    fixture.provider.enqueue_all([calls, done_reply()]);
    let stream = fixture.engine.execute_with(&direct_message("task", "Each year.")).await;
    let events = stream.collect().await;
    assert_completed(&events);
    let results = tool_results(&events);
    let refused = results.iter().filter(|result| result.is_err_and(|error| error.contains("100 schedules")));
    assert_eq!((results.len(), refused.count(), schedules(&fixture).await.len()), (8, 5, 100));
    let export = fixture.engine.get("/memory/export").await.body;
    assert_eq!(export["schedules"].as_array().unwrap().len(), 100);
}
