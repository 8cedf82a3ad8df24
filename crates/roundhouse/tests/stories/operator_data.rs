//! The commands about what a user's engine keeps: memory, skills, tasks; and what a shell gets.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use mock_llm::Reply;
use reqwest::Method;
use serde_json::json;

use crate::support::command_line::{cells, command, document};
use crate::support::heard::fleet_that_answers;
use crate::support::http::send;
use crate::support::{Engine, Fleet, TestEnv};

async fn remember(engine: &Engine, content: &str) -> String {
    let request = engine.request(Method::POST, "/memory/knowledge").json(&json!({"content": content}));
    send(request).await.body["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn facts_are_listed_found_erased_and_moved() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let (ada, bob) = (up.product().engine("ada").await, up.product().engine("bob").await);
    let tea = remember(&ada, "Likes tea\u{1b}[2J\u{202e} green").await;
    remember(&ada, "Lives in Zürich").await;
    let run = async |words: &[&str], user: &str| {
        command(&fleet, &[&["memory"], words, &["--user", user]].concat()).await
    };
    let list = cells(&run(&["list"], "ada").await.assert_success());
    assert!(list.contains("user | Likes tea\\u{1b}[2J\\u{202e} green"), "{list}");
    let json = run(&["list", "--json"], "ada").await.assert_success();
    assert_eq!(document(&json)["total"], 2);
    assert!(!json.contains('\u{202e}'), "{json}");
    let found = run(&["search", "where does she live: Zürich"], "ada").await.assert_success();
    assert!(found.contains("Lives in Zürich"), "{found}");
    let shown = run(&["show", &tea], "ada").await.assert_success();
    assert!(shown.contains("Likes tea\\u{1b}"), "{shown}");

    let file = fleet.test_env.path().join("ada.json");
    let file = file.to_str().unwrap();
    run(&["export", file], "ada").await.assert_success();
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    run(&["export", file], "ada").await.assert_failure(2, &["cannot be written"]);
    let imported = run(&["import", file], "bob").await.assert_success();
    assert!(cells(&imported).contains("knowledge | 2"), "{imported}");
    let again = run(&["import", file], "bob").await.assert_success();
    assert!(again.contains("has all of it already"), "{again}");
    run(&["import", file, "--mode", "replace"], "bob").await.assert_failure(2, &["--yes"]);
    assert_eq!(document(&run(&["list", "--json"], "bob").await.assert_success())["total"], 2);

    run(&["delete", &tea], "ada").await.assert_failure(2, &["Likes tea", "--yes"]);
    run(&["delete", &tea, "--yes"], "ada").await.assert_success();
    run(&["show", &tea], "ada").await.assert_failure(3, &["NOT_FOUND"]);
    drop(bob);

    // An engine that rests is neither woken nor made.
    up.product().stop("ada").await.assert_ok("status:text");
    run(&["list"], "ada").await.assert_failure(4, &["ENGINE_NOT_RUNNING", "roundhouse engine start"]);
    run(&["list", "--wake"], "eve").await.assert_failure(3, &["ENGINE_NOT_FOUND"]);
}

#[tokio::test]
async fn skills_and_tasks_are_listed_shown_and_deleted() {
    let (fleet, up, _provider) = fleet_that_answers(Reply::from_text("I note\u{9b}2J it.")).await;
    let engine = up.product().engine("ada").await;
    engine.run_turn("task", "My colour is green.").await;
    let run = async |words: &[&str]| command(&fleet, &[words, &["--user", "ada"]].concat()).await;

    let tasks = cells(&run(&["task", "list"]).await.assert_success());
    assert_eq!(tasks, "TASK | STATUS | MESSAGES | CHANGED\ntask | idle | 2 | AGO");
    let shown = run(&["task", "show", "task"]).await.assert_success();
    assert!(shown.contains("My colour is green.") && shown.contains("I note\\u{9b}2J it."), "{shown}");
    run(&["task", "delete", "task"]).await.assert_failure(2, &["--yes"]);
    run(&["task", "delete", "task", "--yes"]).await.assert_success();
    run(&["task", "show", "task"]).await.assert_failure(3, &["TASK_NOT_FOUND"]);

    let file = fleet.test_env.path().join("skill.json");
    fs::write(
        &file,
        json!({"name": "greet", "description": "Says hello", "prompt": "Say hello."}).to_string(),
    )
    .unwrap();
    let file = file.to_str().unwrap();
    run(&["skill", "create", file]).await.assert_success();
    run(&["skill", "create", file]).await.assert_failure(4, &["SKILL_EXISTS"]);
    let list = run(&["skill", "list"]).await.assert_success();
    assert!(cells(&list).contains("greet | custom | - | Says hello"), "{list}");
    let skill = run(&["skill", "show", "greet", "--json"]).await.assert_success();
    assert_eq!(document(&skill)["prompt"], "Say hello.");
    let archive = fleet.test_env.path().join("greet.tar");
    run(&["skill", "export", "greet", archive.to_str().unwrap()]).await.assert_success();
    assert!(fs::metadata(&archive).unwrap().len() > 512);
    run(&["skill", "delete", "greet", "--yes"]).await.assert_success();
    // What was shown as JSON can be created again.
    fs::write(file, skill).unwrap();
    run(&["skill", "create", file]).await.assert_success();
}

#[tokio::test]
async fn shells_get_completions_and_people_a_manual() {
    let home = TestEnv::new();
    let run = async |words: &[&str]| home.run(words, &[].into()).wait().await;
    for (shell, word) in
        [("bash", "complete -F"), ("zsh", "#compdef roundhouse"), ("fish", "complete -c roundhouse")]
    {
        let script = run(&["completions", shell]).await.assert_success();
        assert!(script.contains(word) && script.contains("exec-turn"), "{shell}: {}", script.len());
        let file = home.path().join(shell);
        fs::write(&file, script).unwrap();
        if shell == "bash" {
            home.run_program(&[shell, "-n", file.to_str().unwrap()], &[].into())
                .wait()
                .await
                .assert_success();
        }
    }
    let folder = home.path().join("new/man");
    run(&["man", folder.to_str().unwrap()]).await.assert_success();
    let page = fs::read_to_string(folder.join("roundhouse-engine-destroy.1")).unwrap();
    assert!(page.starts_with(".ie") && page.contains("Exit codes"), "{page}");
}
