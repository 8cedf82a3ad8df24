//! Story 43: skills of the platform (from the catalog) and the user's own.

mod scripts;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::http::{client, path_segment, send};
use crate::support::{
    Engine, EngineFixture, HttpResponse, StandaloneEngine, assert_fields, eventually, with_deadline,
};

/// The fields of a skill in a list.
const SUMMARY: &str = "name:text description:text|null category:text|null capabilities:array source:text";
/// The fields of a complete skill.
const SKILL: &str = "name:text description:text|null category:text|null prompt:text|null capabilities:array \
                     scripts:object source:text created_at:time updated_at:time";

const PLATFORM: &str = "---
name: counting
description: Counts words. Use it whenever somebody wants words counted.
metadata:
  category: text
  capabilities: words, numbers
---

Run `scripts/count.sh` with the words as its input.
";

fn with_platform_skill(setup: StandaloneEngine) -> StandaloneEngine {
    setup
        .with_catalog_file("skills/counting/SKILL.md", PLATFORM)
        .with_catalog_file("skills/counting/references/why.md", "Because.")
        .with_catalog_file("skills/counting/scripts/count.sh", "wc -w")
}

impl Engine {
    async fn create_skill(&self, skill: Value) -> Value {
        self.post("/skills/create", &skill).await.assert_ok(SKILL)
    }

    async fn put_skill(&self, name: &str, update: Value) -> HttpResponse {
        send(self.request(Method::PUT, &format!("/skills/{}", path_segment(name))).json(&update)).await
    }

    async fn skills(&self) -> Vec<Value> {
        let list = self.get("/skills").await.assert_ok("skills:array");
        let skills = list["skills"].as_array().unwrap().clone();
        for skill in &skills {
            assert_fields(skill, SUMMARY);
        }
        skills
    }

    async fn run_skill(&self, name: &str, params: Value) -> HttpResponse {
        self.post("/rpc", &json!({"method": format!("skill.{name}"), "params": params})).await
    }
}

fn baking_skill() -> Value {
    json!({
        "name": "baking", "description": "Bakes bread.", "category": "kitchen", "prompt": "Knead, wait, bake.",
        "capabilities": ["bread", "cake"], "scripts": {"weigh.sh": "wc -c"},
    })
}

#[tokio::test]
async fn a_skill_is_created_read_changed_and_deleted() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    assert_eq!(engine.skills().await, [json!(null); 0]);
    let created = engine.create_skill(baking_skill()).await;
    for (field, value) in baking_skill().as_object().unwrap() {
        assert_eq!(&created[field], value);
    }
    assert_eq!((&created["source"], &created["created_at"]), (&json!("custom"), &created["updated_at"]));
    assert_eq!(engine.get("/skills/baking").await.assert_ok(SKILL), created);
    let mut summary = created.clone();
    summary.as_object_mut().unwrap().retain(|field, _| SUMMARY.contains(&format!("{field}:")));
    assert_eq!(engine.skills().await, [summary]);

    let changed =
        engine.put_skill("baking", json!({"description": "Bakes cakes.", "capabilities": []})).await;
    let changed = changed.assert_ok(SKILL);
    let mut expected = created.clone();
    for (field, value) in [
        ("description", json!("Bakes cakes.")),
        ("capabilities", json!([])),
        ("updated_at", changed["updated_at"].clone()),
    ] {
        expected[field] = value;
    }
    assert_eq!(changed, expected);
    assert!(changed["updated_at"].as_str() >= created["updated_at"].as_str());
    // Null means unchanged, its own name is accepted, and an empty text clears the field.
    let again = engine
        .put_skill("baking", json!({"name": "baking", "prompt": null, "category": ""}))
        .await
        .assert_ok(SKILL);
    assert_eq!((&again["prompt"], &again["category"]), (&json!("Knead, wait, bake."), &json!(null)));
    assert_eq!(engine.get("/skills/baking").await.assert_ok(SKILL), again);
    let kept = engine.put_skill("baking", json!({})).await.assert_ok(SKILL);
    assert_eq!(kept["scripts"], json!({"weigh.sh": "wc -c"}));

    assert_eq!(engine.delete("/skills/baking").await.assert_ok("status:text"), json!({"status": "deleted"}));
    for method in [Method::GET, Method::DELETE, Method::PUT] {
        let request = engine.request(method, "/skills/baking").json(&json!({}));
        send(request).await.assert_error(404, "SKILL_NOT_FOUND");
    }
    engine.get("/skills/baking/export").await.assert_error(404, "SKILL_NOT_FOUND");
    engine.create_skill(json!({"name": "baking", "scripts": {"a": "b"}})).await;
}

#[tokio::test]
async fn what_is_no_skill_is_refused_and_named() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    engine.create_skill(json!({"name": "there", "prompt": "Do."})).await;
    let words = |number: usize, length: usize| json!(vec!["x".repeat(length); number]);
    let scripts = |number: usize, length: usize| {
        let scripts: BTreeMap<String, String> =
            (0..number).map(|number| (number.to_string(), "x".repeat(length))).collect();
        json!(scripts)
    };
    let script = |name: &str| json!({name: "echo"});
    let fields = [
        ("description", json!(7)),
        ("description", json!("x".repeat(1_025))),
        ("description", json!("a\u{1b}[2J")),
        ("category", json!([])),
        ("category", json!("x".repeat(129))),
        ("category", json!("a\nb")),
        ("prompt", json!({})),
        ("prompt", json!("x".repeat(256 * 1024 + 1))),
        ("prompt", json!("a\0b")),
        ("capabilities", json!("bread")),
        ("capabilities", json!([7])),
        ("capabilities", json!([""])),
        ("capabilities", words(33, 1)),
        ("capabilities", words(1, 129)),
        ("scripts", json!([])),
        ("scripts", json!({"a.sh": 7})),
        ("scripts", script("")),
        ("scripts", script(".")),
        ("scripts", script("..")),
        ("scripts", script("../a.sh")),
        ("scripts", script("a/b.sh")),
        ("scripts", script("/a.sh")),
        ("scripts", script("a\\b.sh")),
        ("scripts", script("a\0.sh")),
        ("scripts", script("a\n.sh")),
        ("scripts", script(&"x".repeat(129))),
        ("scripts", scripts(65, 1)),
        ("scripts", scripts(2, 512 * 1024 + 1)),
    ];
    for (field, value) in fields {
        let mut skill = json!({"name": "new", "prompt": "Do."});
        skill[field] = value.clone();
        let created = engine.post("/skills/create", &skill).await;
        let excerpt = value.to_string().chars().take(60).collect::<String>();
        assert!(created.assert_error(400, "INVALID_REQUEST").contains(field), "{field} {excerpt}");
        let changed = engine.put_skill("there", json!({field: value})).await;
        assert!(changed.assert_error(400, "INVALID_REQUEST").contains(field), "{field} {excerpt}");
    }
    for empty in [
        json!({"name": "new"}),
        json!({"name": "new", "prompt": "  "}),
        json!({"name": "new", "prompt": null, "scripts": {}}),
        json!({"name": "new", "description": "Is for nothing."}),
    ] {
        let refused = engine.post("/skills/create", &empty).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains("prompt"), "{empty}");
    }
    let emptied = engine.put_skill("there", json!({"prompt": ""})).await;
    assert!(emptied.assert_error(400, "INVALID_REQUEST").contains("prompt"));
    engine.put_skill("there", json!({"prompt": "", "scripts": {"a.sh": "echo"}})).await.assert_ok(SKILL);
    engine.put_skill("there", json!({"scripts": {}})).await.assert_error(400, "INVALID_REQUEST");
    for other in ["other", "There", "", "new"] {
        let renamed = engine.put_skill("there", json!({"name": other})).await;
        assert!(renamed.assert_error(400, "INVALID_REQUEST").contains("name"), "{other}");
    }
    engine.put_skill("there", json!({"name": 7})).await.assert_error(400, "INVALID_REQUEST");
    assert_eq!(engine.skills().await.len(), 1, "no invalid skill was stored");
}

#[tokio::test]
async fn a_name_is_of_its_form() {
    let setup = StandaloneEngine::new();
    let (_program, engine) = setup.start().await;
    let long = "x".repeat(64);
    for good in ["a", "0", "a-b-c", "create", &long] {
        engine.create_skill(json!({"name": good, "prompt": "Do."})).await;
        assert_eq!(engine.get(&format!("/skills/{good}")).await.assert_ok(SKILL)["name"], good);
        engine
            .post("/skills/create", &json!({"name": good, "prompt": "Do."}))
            .await
            .assert_error(409, "SKILL_EXISTS");
    }
    let longer = "x".repeat(65);
    for bad in ["", "-", "a-", "-a", "a--b", "A", "a_b", "a b", "a/b", "..", "a\n", "ä", "a.md", &longer] {
        let refused = engine.post("/skills/create", &json!({"name": bad, "prompt": "Do."})).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains("name"), "{bad:?}");
        // With these two an HTTP client requests another path.
        if !["", ".."].contains(&bad) {
            engine.get(&format!("/skills/{}", path_segment(bad))).await.assert_error(404, "SKILL_NOT_FOUND");
        }
    }
    for none in [
        json!({"prompt": "Do."}),
        json!({"name": null, "prompt": "Do."}),
        json!({"name": 7, "prompt": "Do."}),
    ] {
        let refused = engine.post("/skills/create", &none).await;
        assert!(refused.assert_error(400, "INVALID_REQUEST").contains("name"), "{none}");
    }
    // `create` is an ordinary name.
    engine.put_skill("create", json!({"prompt": "Do it well."})).await.assert_ok(SKILL);
    assert_eq!(engine.get("/skills/create").await.assert_ok(SKILL)["prompt"], "Do it well.");
    assert_eq!(export_skill(&engine, "create").await.0, 200);
    engine.delete("/skills/create").await.assert_ok("status:text");
    engine.get("/skills/create").await.assert_error(404, "SKILL_NOT_FOUND");
    let answer = send(engine.request(Method::PATCH, "/skills/create")).await;
    answer.assert_error(405, "METHOD_NOT_ALLOWED");
    let without = client().post(format!("{}/skills/create", engine.url)).json(&json!({"name": "b"}));
    send(without).await.assert_error(401, "INVALID_ENGINE_KEY");
}

#[tokio::test]
async fn a_skill_of_the_platform_is_shown_and_stays_as_it_is() {
    let fixture = EngineFixture::with_setup("anthropic", [], with_platform_skill).await;
    let engine = &fixture.engine;
    let skill = engine.get("/skills/counting").await.assert_ok(SKILL);
    for (field, value) in [
        ("description", json!("Counts words. Use it whenever somebody wants words counted.")),
        ("category", json!("text")),
        ("prompt", json!("Run `scripts/count.sh` with the words as its input.")),
        ("capabilities", json!(["words", "numbers"])),
        ("scripts", json!({"count.sh": "wc -w"})),
        ("source", json!("platform")),
    ] {
        assert_eq!(skill[field], value, "{field}");
    }
    engine.create_skill(baking_skill()).await;
    let listed = engine.skills().await;
    let listed: Vec<_> = listed.iter().map(|skill| (&skill["name"], &skill["source"])).collect();
    assert_eq!(listed, [(&json!("baking"), &json!("custom")), (&json!("counting"), &json!("platform"))]);
    for update in [json!({}), json!({"prompt": "Do."}), json!({"name": "other"}), json!({"prompt": ""})] {
        engine.put_skill("counting", update).await.assert_error(403, "PLATFORM_SKILL");
    }
    engine.delete("/skills/counting").await.assert_error(403, "PLATFORM_SKILL");
    let taken = json!({"name": "counting", "prompt": "Do."});
    engine.post("/skills/create", &taken).await.assert_error(409, "SKILL_EXISTS");
    assert_eq!(engine.get("/skills/counting").await.assert_ok(SKILL), skill);

    // A platform skill that is added later does not replace the user's own skill.
    let EngineFixture { provider, setup, program, .. } = fixture;
    program.signal_and_wait(rustix::process::Signal::TERM).await.assert_success();
    let later = PLATFORM.replace("counting", "baking");
    let setup = setup.with_catalog_file("skills/baking/SKILL.md", &later);
    let (_program, engine) = setup.start().await;
    assert_eq!(engine.get("/skills/baking").await.assert_ok(SKILL)["source"], "custom");
    assert_eq!(engine.skills().await.len(), 2);
    engine.put_skill("baking", json!({"prompt": "Mine."})).await.assert_ok(SKILL);
    engine.delete("/skills/baking").await.assert_ok("status:text");
    assert_eq!(engine.get("/skills/baking").await.assert_ok(SKILL)["source"], "platform");
    provider.assert_no_refusals();
}

#[tokio::test]
async fn what_was_answered_outlives_a_kill() {
    let mut fixture = EngineFixture::new([]).await;
    let mut created = Vec::new();
    for number in 0..3 {
        let name = format!("skill-{number}");
        created.push(fixture.engine.create_skill(json!({"name": name, "prompt": "Do."})).await);
        fixture = fixture.kill_and_start().await;
        for skill in &created {
            let name = skill["name"].as_str().unwrap();
            assert_eq!(&fixture.engine.get(&format!("/skills/{name}")).await.assert_ok(SKILL), skill);
        }
    }
    fixture.engine.delete("/skills/skill-0").await.assert_ok("status:text");
    let changed = fixture.engine.put_skill("skill-1", json!({"prompt": "Do better."})).await.assert_ok(SKILL);
    let fixture = fixture.kill_and_start().await;
    assert_eq!(fixture.engine.get("/skills/skill-1").await.assert_ok(SKILL), changed);
    assert_eq!(fixture.engine.skills().await.len(), 2);
}

#[tokio::test]
async fn a_kill_before_the_answer_leaves_a_whole_skill_or_none() {
    let fixture = EngineFixture::new([]).await;
    let script = "echo ".repeat(20_000);
    let creations = (0..40).map(|number| {
        let skill = json!({"name": format!("skill-{number}"), "prompt": "Do.", "scripts": {"a.sh": script}});
        let request = fixture.engine.request(Method::POST, "/skills/create").json(&skill);
        tokio::spawn(async move {
            let answer = request.send().await.ok()?;
            answer.bytes().await.ok().map(|_| format!("skill-{number}"))
        })
    });
    let mut creations: Vec<_> = creations.collect();
    let first = with_deadline("the first answer", creations.remove(0)).await.unwrap();
    let fixture = fixture.kill_and_start().await;
    let mut acknowledged: Vec<String> = first.into_iter().collect();
    for creation in creations {
        acknowledged.extend(with_deadline("an answer or none", creation).await.unwrap());
    }
    assert!(!acknowledged.is_empty());
    let listed: Vec<String> = fixture
        .engine
        .skills()
        .await
        .iter()
        .map(|skill| skill["name"].as_str().unwrap().to_owned())
        .collect();
    for name in &acknowledged {
        assert!(listed.contains(name), "{name} was acknowledged and is missing: {listed:?}");
    }
    for name in listed {
        assert_eq!(
            fixture.engine.get(&format!("/skills/{name}")).await.assert_ok(SKILL)["scripts"],
            json!({"a.sh": script})
        );
    }
}

#[tokio::test]
async fn a_catalog_beside_the_brain_keeps_its_skills() {
    let fixture = EngineFixture::with_setup("anthropic", [], |setup| {
        let home = setup.test_env.path().to_str().unwrap().to_owned();
        with_platform_skill(setup.with_env("CATALOG_DIR", home).allowing_unconfined())
    })
    .await;
    fixture.engine.create_skill(baking_skill()).await;
    let weighed = fixture.engine.run_skill("baking", json!({"script": "weigh.sh", "input": "flour"})).await;
    assert_eq!(weighed.assert_ok("result:object")["result"]["output"].as_str().unwrap().trim(), "5");
    fixture.engine.delete("/skills/baking").await.assert_ok("status:text");
    wait_for_skill_folders(&fixture.setup, 0).await;
    assert_eq!(
        std::fs::read_to_string(fixture.setup.test_env.path().join("skills/counting/SKILL.md")).unwrap(),
        PLATFORM
    );
    let counted = fixture.engine.run_skill("counting", json!({"script": "count.sh", "input": "a b"})).await;
    assert_eq!(counted.assert_ok("result:object")["result"]["output"].as_str().unwrap().trim(), "2");
}

/// Waits until `number` skills of the user exist as folders for programs.
async fn wait_for_skill_folders(setup: &StandaloneEngine, number: usize) {
    let folder = setup.test_env.path().join("brain.sqlite.skills");
    eventually(&format!("{number} folders in {}", folder.display()), async || {
        (std::fs::read_dir(&folder).map_or(0, Iterator::count) == number).then_some(())
    })
    .await;
}

/// An export's status, its content type and disposition, and its body.
async fn export_skill(engine: &Engine, name: &str) -> (u16, [String; 2], Vec<u8>) {
    let request = engine.request(Method::GET, &format!("/skills/{name}/export"));
    let response = with_deadline("an export", request.send()).await.unwrap();
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    let (status, headers) =
        (response.status().as_u16(), [header("content-type"), header("content-disposition")]);
    (status, headers, with_deadline("an export", response.bytes()).await.unwrap().to_vec())
}

/// Unpacks an archive into a folder, with the system's `tar`.
fn unpack(archive: &[u8], folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let file = folder.join("skill.tar");
    std::fs::write(&file, archive).unwrap();
    let status = Command::new("tar").arg("-xf").arg(&file).arg("-C").arg(folder).status().unwrap();
    assert!(status.success());
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn an_exported_skill_is_one_of_the_platform_elsewhere() {
    let fixture = EngineFixture::with_setup("anthropic", [], with_platform_skill).await;
    let created = fixture.engine.create_skill(baking_skill()).await;
    let other_setup = StandaloneEngine::new();
    let catalog = other_setup.test_env.path().join("catalog/skills");
    for name in ["baking", "counting"] {
        let (status, headers, archive) = export_skill(&fixture.engine, name).await;
        assert_eq!((status, headers[0].as_str()), (200, "application/x-tar"));
        assert_eq!(headers[1], format!("attachment; filename=\"{name}.tar\""));
        unpack(&archive, &catalog);
    }
    assert_eq!(std::fs::read_to_string(catalog.join("counting/SKILL.md")).unwrap(), PLATFORM);
    assert_eq!(std::fs::read_to_string(catalog.join("counting/references/why.md")).unwrap(), "Because.");
    let (_program, engine) = other_setup.start().await;
    let imported = engine.get("/skills/baking").await.assert_ok(SKILL);
    for field in ["name", "description", "category", "prompt", "capabilities", "scripts"] {
        assert_eq!(imported[field], created[field], "{field}");
    }
    assert_eq!(imported["source"], "platform");
}
