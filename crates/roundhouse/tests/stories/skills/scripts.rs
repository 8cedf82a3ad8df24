//! The scripts of skills: run in a task, by name, and confined.

use std::path::Path;
use std::time::Duration;

use mock_llm::Reply;
use serde_json::json;

use super::{SKILL, wait_for_skill_folders, with_platform_skill};
use crate::support::tool_programs::{done_reply, tool_reply, tool_results};
use crate::support::{EngineFixture, StandaloneEngine, eventually, skip};

#[tokio::test]
async fn a_skill_that_is_made_in_the_middle_of_a_task_is_told_loaded_and_run() {
    let fixture = EngineFixture::with_setup("anthropic", [done_reply()], |setup| {
        with_platform_skill(setup.allowing_all_tools())
    })
    .await;
    fixture.engine.run_turn("task", "Hello!").await;
    let skill = json!({
        "name": "greeting", "description": "Greets people.", "prompt": "Run scripts/greet.sh with the name.",
        "scripts": {"greet.sh": "echo \"Hello, $1!\"; basename \"$SKILL_DIR\"; ls \"$SKILL_DIR\""},
    });
    fixture.engine.create_skill(skill).await;
    let script = json!({"skill": "greeting", "script": "greet.sh", "args": ["Ada"]});
    fixture.provider.enqueue_all([
        tool_reply("load_skill", json!({"skill": "greeting"})),
        tool_reply("run_skill_script", script.clone()),
        done_reply(),
    ]);
    let events = fixture.engine.run_turn("task", "Greet Ada.").await;
    let [loaded, output] = tool_results(&events).try_into().unwrap();
    assert!(loaded.unwrap().contains("Run scripts/greet.sh"), "{loaded:?}");
    assert_eq!(output, Ok("Hello, Ada!\ngreeting\nSKILL.md\nscripts\n"));
    fixture.last_messages().assert_contains(&[
        "- greeting: Greets people.",
        "Greet Ada.",
        "Run scripts/greet.sh",
        "Hello, Ada!",
    ]);
    let requests = fixture.provider.requests();
    let tools: Vec<_> = requests.iter().map(|request| request.body["tools"].to_string()).collect();
    assert!(
        tools.iter().all(|declared| *declared == tools[0]),
        "the prompt keeps its prefix, so that it stays cached"
    );
    assert!(tools[0].contains("counting") && !tools[0].contains("greeting"));

    // The current version is run, also after a kill.
    fixture
        .engine
        .put_skill("greeting", json!({"scripts": {"greet.sh": "echo Welcome."}}))
        .await
        .assert_ok(SKILL);
    let fixture = fixture.kill_and_start().await;
    fixture.provider.enqueue_all([tool_reply("run_skill_script", script.clone()), done_reply()]);
    assert_eq!(tool_results(&fixture.engine.run_turn("task", "Again.").await), [Ok("Welcome.\n")]);
    fixture.engine.delete("/skills/greeting").await.assert_ok("status:text");
    fixture.provider.enqueue_all([tool_reply("run_skill_script", script), done_reply()]);
    let events = fixture.engine.run_turn("task", "Again.").await;
    assert!(tool_results(&events)[0].unwrap_err().contains("there is no skill called `greeting`"));
    fixture
        .last_messages()
        .assert_contains(&["- greeting: Greets people.", "no skills of their own any more"]);
    wait_for_skill_folders(&fixture.setup, 0).await;
}

#[tokio::test]
async fn a_script_has_its_skill_until_it_ends_whatever_becomes_of_it() {
    let fixture = EngineFixture::with_setup("anthropic", [], StandaloneEngine::allowing_unconfined).await;
    let engine = &fixture.engine;
    let files = |word: &str| {
        let waits = format!("echo > started-{word}\nuntil [ -e go ]; do sleep 0.02; done\n");
        json!({"run.sh": format!("{waits}. \"$SKILL_DIR/scripts/rest\""), "rest": format!("echo {word}\n")})
    };
    let workspace = fixture.setup.workspace();
    let started = async |word: &str| {
        let file = workspace.join(format!("started-{word}"));
        eventually("the script's start", async || file.exists().then_some(())).await;
    };
    engine.create_skill(json!({"name": "waits", "scripts": files("one")})).await;
    let run = || engine.run_skill("waits", json!({"script": "run.sh"}));
    let changes = async {
        started("one").await;
        engine.put_skill("waits", json!({"scripts": files("two")})).await.assert_ok(SKILL);
        let second_and_end = async {
            started("two").await;
            wait_for_skill_folders(&fixture.setup, 2).await;
            engine.delete("/skills/waits").await.assert_ok("status:text");
            run().await.assert_flat_error(404, "METHOD_NOT_FOUND");
            wait_for_skill_folders(&fixture.setup, 2).await;
            std::fs::write(workspace.join("go"), "").unwrap();
        };
        tokio::join!(run(), second_and_end).0
    };
    let (first, second) = tokio::join!(run(), changes);
    for (answer, output) in [(first, "one\n"), (second, "two\n")] {
        assert_eq!(answer.assert_ok("result:object"), json!({"result": {"output": output}}));
    }
    wait_for_skill_folders(&fixture.setup, 0).await;
}

#[tokio::test]
async fn scripts_of_the_users_own_are_confined() {
    let escapes = "
        cat \"$BRAIN\" > /dev/null && echo read the brain
        echo forged >> \"$0\" && echo changed itself
        touch \"$SKILL_DIR/../other\" && echo made a neighbour
        touch here && cat \"$SKILL_DIR/SKILL.md\" | head -1";
    let fixture = EngineFixture::with_setup("anthropic", [], StandaloneEngine::allowing_all_tools).await;
    let level = fixture.engine.activity().await["confinement"].as_str().unwrap().to_owned();
    if !level.contains("landlock") {
        return skip(&format!("a kernel that confines programs: {level}"));
    }
    let brain = fixture.setup.brain();
    let script = escapes.replace("$BRAIN", brain.to_str().unwrap());
    fixture.engine.create_skill(json!({"name": "escape", "scripts": {"out.sh": script}})).await;
    let answer =
        fixture.engine.run_skill("escape", json!({"script": "out.sh"})).await.assert_ok("result:object");
    assert_eq!(answer, json!({"result": {"output": "---\n"}}));
    assert!(fixture.setup.workspace().join("here").exists());
}

#[tokio::test]
async fn scripts_of_the_users_own_have_no_network_unless_it_is_granted() {
    if !Path::new("/bin/bash").exists() {
        return skip("bash, which opens connections");
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect =
        format!("#!/bin/bash\n(exec 3<>/dev/tcp/127.0.0.1/{port}) && echo connected || echo refused");
    let without = r#"{"default": "allow"}"#;
    let granted = r#"{"default": "allow", "network": ["run_skill_script"]}"#;
    for (permissions, outcome) in [(granted, "connected\n"), (without, "refused\n")] {
        let fixture = EngineFixture::with_setup("anthropic", [], |setup| {
            setup.allowing_all_tools().with_catalog_file("permissions.json", permissions)
        })
        .await;
        let level = fixture.engine.activity().await["confinement"].as_str().unwrap().to_owned();
        if !level.contains("landlock") {
            return skip(&format!("a kernel that confines programs: {level}"));
        }
        fixture.engine.create_skill(json!({"name": "connect", "scripts": {"out": connect}})).await;
        let answer =
            fixture.engine.run_skill("connect", json!({"script": "out"})).await.assert_ok("result:object");
        assert_eq!(answer, json!({"result": {"output": outcome}}), "{permissions}");
        let connection = tokio::time::timeout(Duration::ZERO, listener.accept()).await;
        assert_eq!(connection.is_ok(), outcome == "connected\n", "{permissions}");
    }
}

#[tokio::test]
async fn skills_are_run_by_their_names() {
    let fixture = EngineFixture::with_setup("anthropic", [Reply::from_text("Mat.")], |setup| {
        with_platform_skill(setup.allowing_unconfined())
    })
    .await;
    fixture.engine.create_skill(json!({"name": "rhyme", "prompt": "Rhyme on what you are given."})).await;
    let answer = fixture.engine.run_skill("rhyme", json!({"input": "cat"})).await.assert_ok("result:object");
    assert_eq!(answer, json!({"result": {"output": "Mat."}}));
    fixture.last_messages().assert_contains(&["cat"]);
    let count = json!({"script": "scripts/count.sh", "input": "one two three"});
    let answer = fixture.engine.run_skill("counting", count.clone()).await.assert_ok("result:object");
    assert_eq!(answer["result"]["output"].as_str().unwrap().trim(), "3");
    let wrong = fixture.engine.run_skill("counting", json!({"script": "../../count.sh"})).await;
    assert!(wrong.assert_flat_error(400, "TOOL_FAILED").contains("scripts/count.sh"));
    fixture.engine.run_skill("none", json!({})).await.assert_flat_error(404, "METHOD_NOT_FOUND");
    let methods = fixture
        .engine
        .post("/rpc", &json!({"method": "rpc.methods", "params": {}}))
        .await
        .assert_ok("result:object");
    let methods: Vec<_> = methods["result"]["methods"]
        .as_array()
        .unwrap()
        .iter()
        .map(|method| method["method"].clone())
        .collect();
    assert!(methods.contains(&json!("skill.rhyme")) && methods.contains(&json!("skill.counting")));

    let denied = r#"{"tools": {"run_skill_script": "deny"}}"#;
    let fixture = EngineFixture::with_setup("anthropic", [], |setup| {
        with_platform_skill(setup.allowing_unconfined()).with_catalog_file("permissions.json", denied)
    })
    .await;
    fixture.engine.run_skill("counting", count).await.assert_flat_error(400, "TOOL_DENIED");
}
