//! Tests of reloads by an operator. The rules of the catalog itself are tested beside it.

use std::sync::Arc;

use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use testkit::with_deadline;

use super::app::{TestApp, expect_error};

const AGENT: &str = "---\ndescription: Finds things.\n---\nYou find things.";

async fn reload(app: &TestApp, what: &str) -> Value {
    let response = with_deadline(app.request("POST", &format!("/admin/reload-{what}")).send()).await.unwrap();
    assert_eq!(response.status(), 200);
    with_deadline(response.json()).await.unwrap()
}

#[tokio::test]
async fn nothing_of_what_was_reloaded_away_is_kept() {
    let app = TestApp::start().await;
    let first = Arc::downgrade(&app.agent.snapshot());
    for number in 0..20 {
        app.write_catalog_file(&format!("agents/agent-{number}.md"), AGENT);
        assert_eq!(reload(&app, "catalog").await["counts"]["agents"], number + 1);
        reload(&app, "core-soul").await;
    }
    assert_eq!(first.strong_count(), 0);
    assert_eq!(
        Arc::strong_count(&app.agent.snapshot()),
        3,
        "its own two, while no server is connected, and this one"
    );
    app.stop().await;
}

#[tokio::test]
async fn reloads_at_once_come_one_after_the_other_and_none_is_lost() {
    let app = TestApp::start().await;
    app.write_catalog_file("agents/finder.md", AGENT);
    app.write_catalog_file("soul.md", "---\nversion: 2\n---\nYou are Ada.\n{{agents}}");
    let all = (0..40).map(|number| reload(&app, if number % 2 == 0 { "catalog" } else { "core-soul" }));
    let answers = futures::future::join_all(all).await;
    let counts = json!({"agents": 1, "skills": 0, "tools": 0});
    let catalog = json!({"status": "reloaded", "counts": counts, "warnings": []});
    for pair in answers.chunks(2) {
        assert_eq!(pair, [catalog.clone(), json!({"status": "reloaded", "version": "2"})]);
    }
    assert_eq!(app.agent.snapshot().soul, "You are Ada.\n- finder: Finds things.");
    app.stop().await;
}

#[tokio::test]
async fn a_faulty_soul_is_refused_and_the_old_one_stays() {
    let app = TestApp::start().await;
    app.write_catalog_file("soul.md", "You are Ada.");
    reload(&app, "core-soul").await;
    app.write_catalog_file("soul.md", "You are {{name}}.");
    let response = with_deadline(app.request("POST", "/admin/reload-core-soul").send()).await.unwrap();
    let message = expect_error(response, 400, "INVALID_REQUEST").await;
    assert!(message.starts_with("soul.md: line 1") && message.contains("`name`"), "{message}");
    reload(&app, "catalog").await;
    assert_eq!(app.agent.snapshot().soul, "You are Ada.");
    app.stop().await;
}

#[tokio::test]
async fn a_skill_in_whose_place_the_users_own_stands_is_named() {
    let app = TestApp::start().await;
    let skill = json!({"name": "brew-tea", "prompt": "Three minutes."}).to_string();
    let created = with_deadline(app.request("POST", "/skills/create").body(skill).send()).await.unwrap();
    assert_eq!(created.status(), 200);
    let platform = "---\nname: brew-tea\ndescription: Brews.\n---\nFour minutes.";
    app.write_catalog_file("skills/brew-tea/SKILL.md", platform);
    let reloaded = reload(&app, "catalog").await;
    assert_eq!(reloaded["counts"]["skills"], 1);
    let warnings = reloaded["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].as_str().unwrap().starts_with("skills/brew-tea: the user has a skill"),
        "{warnings:?}"
    );
    app.stop().await;
}
