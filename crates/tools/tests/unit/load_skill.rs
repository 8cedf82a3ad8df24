//! Tests of loading skills.

use testkit::{replace_with_fifo, with_deadline_blocking};

use super::*;
use crate::fixture::{WorkspaceFixture, run_tool};

fn tool(fixture: &WorkspaceFixture) -> LoadSkill {
    let put = |path: &str, text: &[u8]| {
        let path = fixture.catalog_folder().join("skills").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put("forms/SKILL.md", b"---\nname: forms\ndescription: Fills in forms.\n---\nDo this.");
    put("forms/references/more.md", "Größer.".as_bytes());
    put("forms/assets/logo.png", b"\x89PNG\xff");
    put("forms/references/large.md", "x".repeat(1_048_577).as_bytes());
    put("plain/SKILL.md", b"---\nname: plain\ndescription: Is plain.\n---\nDo that.");
    put("secret.md", b"outside");
    LoadSkill(fixture.skills())
}

#[tokio::test]
async fn names_are_told_first_then_the_text_then_a_file() {
    let fixture = WorkspaceFixture::new();
    let tool = tool(&fixture);
    let schema = tool.spec().input_schema;
    let description = schema["properties"]["skill"]["description"].as_str().unwrap();
    assert!(
        description.ends_with("There are:\n- forms: Fills in forms.\n- plain: Is plain."),
        "{description}"
    );
    assert_eq!(run_tool(&tool, json!({"skill": "plain"})).await, Ok("Do that.".into()));
    let result = run_tool(&tool, json!({"skill": "forms"})).await.unwrap();
    let folder = fixture.catalog_folder().join("skills/forms");
    let files = "- assets/logo.png\n- references/large.md\n- references/more.md";
    assert_eq!(result, format!("Do this.\n\nFiles of this skill, in {}:\n{files}", folder.display()));
    for file in ["references/more.md", "./references/more.md"] {
        assert_eq!(run_tool(&tool, json!({"skill": "forms", "file": file})).await, Ok("Größer.".into()));
    }
}

#[tokio::test]
async fn what_is_not_there_is_told() {
    let fixture = WorkspaceFixture::new();
    let tool = tool(&fixture);
    for (input, why) in [
        (json!({"skill": "none"}), "there is no skill called `none`; there are: forms, plain"),
        (json!({"skill": "../forms"}), "there is no skill"),
        (json!({"skill": "forms", "file": "none.md"}), "has no file `none.md`"),
        (json!({"skill": "forms", "file": "../secret.md"}), "has no file"),
        (json!({"skill": "forms", "file": "references/../../secret.md"}), "has no file"),
        (json!({"skill": "forms", "file": "/etc/passwd"}), "has no file"),
        (json!({"skill": "forms", "file": ""}), "has no file"),
        (
            json!({"skill": "forms", "file": "assets/logo.png"}),
            "is not UTF-8 text; programs can read it at /",
        ),
        (json!({"skill": "forms", "file": "references/large.md"}), "is over 1048576 bytes"),
        (json!({"file": "a"}), "missing field `skill`"),
    ] {
        let refused = run_tool(&tool, input.clone()).await.unwrap_err();
        assert!(refused.0.contains(why), "{input}: {refused}");
    }
    assert_eq!((tool.permission(), tool.idempotent()), (Permission::Allow, true));
}

#[test]
fn what_is_no_file_any_more_is_not_waited_for() {
    let fixture = WorkspaceFixture::new();
    let skills = tool(&fixture).0;
    replace_with_fifo(&fixture.catalog_folder().join("skills/forms/references/more.md"));
    let result = with_deadline_blocking(move || {
        read_skill_file(&find_skill(&skills, "forms").unwrap(), "references/more.md")
    });
    assert_eq!(result.unwrap_err().0, "`references/more.md` cannot be read: it is not a file");
}

#[tokio::test]
async fn the_users_own_are_read_when_they_are_wanted() {
    let fixture = WorkspaceFixture::new();
    let tool = tool(&fixture);
    let before = tool.spec();
    let none = run_tool(&tool, json!({"skill": "greeting"})).await.unwrap_err();
    assert!(none.0.contains("there are: forms, plain"), "{none}");
    fixture
        .create_skill(
            &tool.0,
            "greeting",
            json!({"prompt": "Say hello.", "scripts": {"hello.sh": "echo hello"}}),
        )
        .await;
    fixture.create_skill(&tool.0, "scripted", json!({"scripts": {"a.sh": "echo a"}})).await;
    let result = run_tool(&tool, json!({"skill": "greeting"})).await.unwrap();
    assert_eq!(result, "Say hello.\n\nFiles of this skill:\n- scripts/hello.sh");
    for file in ["scripts/hello.sh", "./scripts/hello.sh"] {
        assert_eq!(
            run_tool(&tool, json!({"skill": "greeting", "file": file})).await,
            Ok("echo hello".into())
        );
    }
    for file in ["hello.sh", "scripts/none.sh", "SKILL.md", "../plain/SKILL.md"] {
        let refused = run_tool(&tool, json!({"skill": "greeting", "file": file})).await.unwrap_err();
        assert!(refused.0.contains("has no file"), "{refused}");
    }
    assert!(
        run_tool(&tool, json!({"skill": "scripted"})).await.unwrap().starts_with("This skill is its scripts")
    );
    let none = run_tool(&tool, json!({"skill": "none"})).await.unwrap_err();
    assert!(none.0.contains("there are: forms, greeting, plain, scripted"), "{none}");
    // A catalog skill that was added later is shadowed by the user's own.
    fixture.create_skill(&tool.0, "plain", json!({"prompt": "Do it my way."})).await;
    assert_eq!(run_tool(&tool, json!({"skill": "plain"})).await, Ok("Do it my way.".into()));
    assert_eq!(tool.spec(), before, "what the model is told of the tool stays as it is");
}
