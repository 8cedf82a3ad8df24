//! Schedules while the wall clock is set, and over the changes to and from summer time: on the real program, with a
//! clock that the story sets, and with kills in between.

use api::Timestamp;
use mock_llm::Reply;
use reqwest::Method;
use serde_json::{Value, json};
use testkit::wall_clock::WallClock;

use crate::schedules::{create, read, schedule};
use crate::support::engine_calls::with_fields;
use crate::support::http::send;
use crate::support::{EngineFixture, StandaloneEngine, eventually};

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

/// An engine whose clock begins at this time.
async fn fixture(begin: &str) -> (EngineFixture, WallClock) {
    let mut clock = None;
    let configure = |setup: StandaloneEngine| {
        let set = WallClock::new(setup.test_env.path());
        set.set(at(begin));
        let setup = setup.with_env("LD_PRELOAD", set.library());
        clock = Some(set);
        setup
    };
    let replies = (0..8).map(|_| Reply::from_text("Done."));
    let fixture = EngineFixture::with_setup("anthropic", replies, configure).await;
    (fixture, clock.unwrap())
}

/// Sets the clock, which the engine notices at once because its schedules change.
async fn set_clock(fixture: &EngineFixture, clock: &WallClock, now: &str, ids: &[&str]) {
    clock.set(at(now));
    for id in ids {
        let request = fixture.engine.request(Method::PATCH, &format!("/schedules/{id}"));
        assert_eq!(send(request.json(&json!({"name": format!("As of {now}")}))).await.status, 200);
    }
}

/// Waits until a schedule has run for this due time.
async fn wait_run(fixture: &EngineFixture, id: &str, due_at: &str) {
    let due_at = json!(at(due_at));
    eventually("it has run", async || {
        let runs = read(&fixture.engine, id).await["runs"].as_array().unwrap().clone();
        runs.iter().any(|run| run["due_at"] == due_at && run["turn_state"] == "completed").then_some(())
    })
    .await;
}

/// The due times of a schedule with what became of them, the oldest first.
async fn outcomes(fixture: &EngineFixture, id: &str) -> Vec<(String, String)> {
    let runs = read(&fixture.engine, id).await["runs"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    runs.iter().rev().map(|run| (text(&run["outcome"]), text(&run["due_at"])[..16].to_owned())).collect()
}

fn expected(outcomes: &[(&str, &str)]) -> Vec<(String, String)> {
    outcomes.iter().map(|(outcome, due)| ((*outcome).to_owned(), (*due).to_owned())).collect()
}

/// The number of turns of a schedule's task.
async fn turns(fixture: &EngineFixture, id: &str) -> usize {
    let turns = fixture.engine.get(&format!("/tasks/of-{id}/turns")).await.assert_ok("turns:array");
    turns["turns"].as_array().unwrap().len()
}

/// Creates a schedule in Berlin, in a task of its own.
async fn create_cron(fixture: &EngineFixture, id: &str, cron: &str, fields: Value) -> Value {
    let when = json!({"cron": cron, "time_zone": "Europe/Berlin"});
    let task = json!({"task_id": format!("of-{id}")});
    let fields = with_fields(task, fields);
    create(&fixture.engine, &schedule(id, &when, fields)).await
}

#[tokio::test]
async fn in_spring_a_time_that_does_not_exist_runs_after_the_gap() {
    let (fixture, clock) = fixture("2027-03-28T00:58:00Z").await;
    let created = create_cron(&fixture, "night", "30 2 * * *", json!({})).await;
    assert_eq!(created["next_due_at"], json!(at("2027-03-28T01:00:00Z")), "03:00 in Berlin");
    let fixture = fixture.kill_and_start().await;
    set_clock(&fixture, &clock, "2027-03-28T00:59:58Z", &["night"]).await;
    wait_run(&fixture, "night", "2027-03-28T01:00:00Z").await;
    let fixture = fixture.kill_and_start().await;
    set_clock(&fixture, &clock, "2027-03-29T00:29:58Z", &["night"]).await;
    wait_run(&fixture, "night", "2027-03-29T00:30:00Z").await;
    let runs = expected(&[("run", "2027-03-28T01:00"), ("run", "2027-03-29T00:30")]);
    assert_eq!((outcomes(&fixture, "night").await, turns(&fixture, "night").await), (runs, 2));
}

#[tokio::test]
async fn in_autumn_a_time_that_comes_twice_runs_once_and_an_hour_is_an_hour() {
    let (fixture, clock) = fixture("2026-10-25T00:28:00Z").await;
    create_cron(&fixture, "night", "30 2 * * *", json!({})).await;
    create_cron(&fixture, "hourly", "30 * * * *", json!({})).await;
    let both = ["night", "hourly"];
    set_clock(&fixture, &clock, "2026-10-25T00:29:58Z", &both).await;
    for id in both {
        wait_run(&fixture, id, "2026-10-25T00:30:00Z").await;
    }
    let fixture = fixture.kill_and_start().await;
    set_clock(&fixture, &clock, "2026-10-25T01:29:58Z", &both).await;
    wait_run(&fixture, "hourly", "2026-10-25T01:30:00Z").await;
    let night = read(&fixture.engine, "night").await;
    assert_eq!(night["next_due_at"], json!(at("2026-10-26T01:30:00Z")));
    assert_eq!(outcomes(&fixture, "night").await, expected(&[("run", "2026-10-25T00:30")]));
    assert_eq!((turns(&fixture, "night").await, turns(&fixture, "hourly").await), (1, 2));
}

#[tokio::test]
async fn a_clock_that_is_set_back_repeats_nothing_and_one_that_is_set_forward_misses_as_the_schedule_says() {
    let (fixture, clock) = fixture("2027-01-10T11:58:00Z").await;
    create_cron(&fixture, "once", "0 * * * *", json!({"missed": "run_once"})).await;
    create_cron(&fixture, "skip", "0 * * * *", json!({"missed": "skip"})).await;
    let both = ["once", "skip"];
    set_clock(&fixture, &clock, "2027-01-10T11:59:58Z", &both).await;
    for id in both {
        wait_run(&fixture, id, "2027-01-10T12:00:00Z").await;
    }

    // Back by half an hour, and once more to the same minute.
    set_clock(&fixture, &clock, "2027-01-10T11:30:00Z", &both).await;
    let fixture = fixture.kill_and_start().await;
    set_clock(&fixture, &clock, "2027-01-10T11:59:59Z", &both).await;
    let later = at("2027-01-10T12:00:02Z");
    eventually("the minute comes again", async || (clock.now() >= later).then_some(())).await;
    set_clock(&fixture, &clock, "2027-01-10T12:00:03Z", &both).await;
    for id in both {
        assert_eq!(outcomes(&fixture, id).await, expected(&[("run", "2027-01-10T12:00")]));
        assert_eq!(read(&fixture.engine, id).await["next_due_at"], json!(at("2027-01-10T13:00:00Z")));
    }

    // Forward by three hours.
    set_clock(&fixture, &clock, "2027-01-10T15:10:00Z", &both).await;
    wait_run(&fixture, "once", "2027-01-10T15:00:00Z").await;
    let fixture = fixture.kill_and_start().await;
    set_clock(&fixture, &clock, "2027-01-10T15:59:58Z", &both).await;
    for id in both {
        wait_run(&fixture, id, "2027-01-10T16:00:00Z").await;
    }
    let first = ("run", "2027-01-10T12:00");
    let last = ("run", "2027-01-10T16:00");
    let once = [first, ("missed", "2027-01-10T13:00"), ("run", "2027-01-10T15:00"), last];
    let skip = [first, ("missed", "2027-01-10T13:00"), last];
    assert_eq!(outcomes(&fixture, "once").await, expected(&once));
    assert_eq!(outcomes(&fixture, "skip").await, expected(&skip));
    assert_eq!((turns(&fixture, "once").await, turns(&fixture, "skip").await), (3, 2));
}
