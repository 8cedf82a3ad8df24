//! Tests of running skill scripts, and of their approval prompts.

use insta::assert_snapshot;
use testkit::wait_for_exit;
use testkit::{replace_with_fifo, with_deadline, with_deadline_blocking};

use super::*;
use crate::fixture::{WorkspaceFixture, run_tool};

fn tool(fixture: &WorkspaceFixture, scripts: &[(&str, &str)]) -> RunSkillScript {
    let folder = fixture.catalog_folder().join("skills/forms");
    std::fs::create_dir_all(folder.join("scripts/lib")).unwrap();
    std::fs::write(folder.join("SKILL.md"), "---\nname: forms\ndescription: x\n---\nDo.").unwrap();
    for (name, text) in scripts {
        std::fs::write(folder.join(name), text).unwrap();
    }
    RunSkillScript::new(fixture.skills(), fixture.skill_dirs(), fixture.runner(), false)
}

async fn runs(tool: &RunSkillScript, input: Value) -> Result<String, ToolError> {
    with_deadline(run_tool(tool, input)).await
}

#[tokio::test]
async fn a_script_is_run_as_it_says() {
    let fixture = WorkspaceFixture::new();
    let tool = tool(
        &fixture,
        &[
            ("scripts/line", "#!/bin/sh -e\necho \"line $1 $#\"; cat\nfalse\necho not reached\n"),
            ("scripts/lib/name.sh", "echo \"name $0\"; pwd; echo $SKILL_DIR"),
            ("scripts/odd.sh", "#!\n echo odd"),
        ],
    );
    let input =
        json!({"skill": "forms", "script": "scripts/line", "args": ["a b", "$(id)"], "input": "given"});
    let result = runs(&tool, input).await.unwrap_err();
    assert_eq!(result.0, "it failed with exit code 1.\n\nIts output:\nline a b 2\ngiven");
    let skill = fixture.catalog_folder().join("skills/forms");
    let result = runs(&tool, json!({"skill": "forms", "script": "lib/name.sh"})).await.unwrap();
    let workspace = std::fs::canonicalize(fixture.path("")).unwrap();
    let script = skill.join("scripts/lib/name.sh");
    let expected = format!("name {}\n{}\n{}\n", script.display(), workspace.display(), skill.display());
    assert_eq!(result, expected);
    assert_eq!(
        runs(&tool, json!({"skill": "forms", "script": "./scripts/odd.sh"})).await,
        Ok("odd\n".into())
    );
}

#[test]
fn first_lines_are_read_as_the_kernel_reads_them() {
    let shebang = |start: &str| parse_shebang(start.as_bytes()).map(|argv| argv.join("|"));
    assert_eq!(shebang("#!/bin/sh\nx").as_deref(), Some("/bin/sh"));
    assert_eq!(shebang("#! /usr/bin/env -S python3 -u \nx").as_deref(), Some("/usr/bin/env|-S python3 -u"));
    assert_eq!(shebang("#!/bin/sh\r\n").as_deref(), Some("/bin/sh"));
    assert_eq!(
        [shebang("#!"), shebang("#! \nx"), shebang(""), shebang("echo"), shebang(" #!/bin/sh")],
        [const { None }; 5]
    );
}

#[tokio::test]
async fn only_scripts_of_skills_are_run() {
    let fixture = WorkspaceFixture::new();
    let tool =
        tool(&fixture, &[("scripts/a.sh", "echo a"), ("notes.sh", "echo notes"), ("scripts/data", "x")]);
    for (skill, script, why) in [
        ("forms", "notes.sh", "there are: scripts/a.sh"),
        ("forms", "../notes.sh", "there are: scripts/a.sh"),
        ("forms", "scripts/../notes.sh", "there are: scripts/a.sh"),
        ("forms", "/bin/sh", "there are: scripts/a.sh"),
        ("forms", "", "there are: scripts/a.sh"),
        ("forms", "scripts/data", "how to run"),
        ("other", "scripts/a.sh", "there is no skill called `other`; there are: forms"),
        ("../forms", "scripts/a.sh", "there is no skill"),
    ] {
        let refused = runs(&tool, json!({"skill": skill, "script": script})).await.unwrap_err();
        assert!(refused.0.contains(why), "{skill} {script}: {refused}");
    }
    for (field, value) in [
        ("args", json!(vec!["a"; 65])),
        ("args", json!(["a".repeat(8_001)])),
        ("args", json!(["a\0"])),
        ("input", json!("a".repeat(1_048_577))),
    ] {
        let mut input = json!({"skill": "forms", "script": "a.sh"});
        input[field] = value;
        let refused = runs(&tool, input).await.unwrap_err();
        assert!(refused.0.contains(&format!("`{field}`")), "{refused}");
    }
}

#[tokio::test]
async fn a_script_that_goes_wrong_is_told() {
    let fixture = WorkspaceFixture::new();
    let tool = tool(
        &fixture,
        &[
            ("scripts/crash.sh", "kill -SEGV $$"),
            ("scripts/flood.sh", "head -c 3000000 /dev/zero | tr '\\0' x"),
            ("scripts/lie.sh", "printf '{\"ok\": \\377'"),
            ("scripts/none.sh", "#!/no/such/interpreter\n"),
            ("scripts/hang.sh", "echo $$ > pid; while :; do sleep 0.05; done"),
        ],
    );
    let script = |name: &str| json!({"skill": "forms", "script": name});
    let crashed = runs(&tool, script("crash.sh")).await.unwrap_err();
    assert!(crashed.0.starts_with("it was ended by signal"), "{crashed}");
    let flooded = runs(&tool, script("flood.sh")).await.unwrap();
    assert!(flooded.len() < 20_000 && flooded.contains("3000000 bytes came; all of it is in"), "{flooded}");
    assert_eq!(runs(&tool, script("lie.sh")).await, Ok("{\"ok\": \u{fffd}".into()));
    assert!(runs(&tool, script("none.sh")).await.is_err());
    tokio::select! {
        result = run_tool(&tool, script("hang.sh")) => panic!("{result:?}"),
        _ = fixture.wait_for_file("pid") => {}
    }
    wait_for_exit(&fixture.wait_for_file("pid").await).await;
}

#[test]
fn a_person_sees_what_is_run() {
    let fixture = WorkspaceFixture::new();
    let tool = tool(&fixture, &[("scripts/a.sh", "")]);
    let prompt = tool.approval_prompt(
        &json!({"skill": "forms", "script": "a.sh", "args": ["-x", "a\nb\u{202e}"], "input": "one\u{1b}"}),
    );
    assert_snapshot!(prompt, @r#"
    Run the script "a.sh" of the skill "forms", without the network?

    Arguments:
    [
      "-x",
      "a\nb\u{202e}"
    ]

    Input:
    one\u{1b}
    "#);
    assert_eq!((tool.permission(), tool.idempotent()), (Permission::Ask, false));
}

#[tokio::test]
async fn a_script_of_the_users_own_is_run_as_it_is_now_and_changes_nothing() {
    let fixture = WorkspaceFixture::new();
    let tool = tool(&fixture, &[]);
    let script = "echo \"one $1\"; cat \"$SKILL_DIR/SKILL.md\" | head -2; cat; \
                  echo forged > \"$0\" || echo kept; touch \"$SKILL_DIR/more\" || echo kept";
    fixture.create_skill(&tool.skills, "own", json!({"scripts": {"run.sh": script, "data": "x"}})).await;
    let input = json!({"skill": "own", "script": "run.sh", "args": ["a b"], "input": "given\n"});
    let result = runs(&tool, input).await.unwrap();
    assert!(result.starts_with("one a b\n---\nname: own\ngiven\n"), "{result}");
    if testkit::can_confine() {
        assert!(result.contains("kept\nkept\n"), "{result}");
    }
    for (script, why) in [
        ("../own/scripts/run.sh", "there are: scripts/data, scripts/run.sh"),
        ("SKILL.md", "there are: "),
        ("data", "how to run"),
    ] {
        let refused = runs(&tool, json!({"skill": "own", "script": script})).await.unwrap_err();
        assert!(refused.0.contains(why), "{refused}");
    }
    fixture.delete_skill(&tool.skills, "own").await;
    fixture.create_skill(&tool.skills, "own", json!({"scripts": {"run.sh": "#!/bin/sh\necho two"}})).await;
    assert_eq!(runs(&tool, json!({"skill": "own", "script": "scripts/run.sh"})).await, Ok("two\n".into()));
    fixture.delete_skill(&tool.skills, "own").await;
    let error = runs(&tool, json!({"skill": "own", "script": "run.sh"})).await.unwrap_err();
    assert!(error.0.contains("there is no skill"), "{error}");
}

#[test]
fn what_is_no_file_any_more_is_not_waited_for() {
    let fixture = WorkspaceFixture::new();
    let RunSkillScript { skills, skill_dirs, .. } = tool(&fixture, &[("scripts/a.sh", "echo a")]);
    replace_with_fifo(&fixture.catalog_folder().join("skills/forms/scripts/a.sh"));
    let result =
        with_deadline_blocking(move || prepare_script(&skills, &skill_dirs, "forms", "a.sh").map(|_| ()));
    assert_eq!(result.unwrap_err().0, "the script cannot be read: it is not a file");
}

async fn wait_for_single_entry(folder: &Path) {
    with_deadline(async {
        while std::fs::read_dir(folder).unwrap().count() > 1 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_script_has_its_skill_until_it_ends() {
    let fixture = WorkspaceFixture::new();
    let tool = tool(&fixture, &[]);
    let waiting_script =
        "echo > started; until [ -e told ]; do sleep 0.02; done; cat \"$SKILL_DIR/scripts/data\"";
    fixture
        .create_skill(&tool.skills, "own", json!({"scripts": {"run.sh": waiting_script, "data": "one\n"}}))
        .await;
    let changes = async {
        fixture.wait_for_file("started").await;
        fixture.delete_skill(&tool.skills, "own").await;
        tool.skill_dirs.invalidate("own");
        let error = runs(&tool, json!({"skill": "own", "script": "run.sh"})).await.unwrap_err();
        assert!(error.0.contains("there is no skill"), "{error}");
        fixture.create_skill(&tool.skills, "own", json!({"scripts": {"run.sh": "echo two"}})).await;
        let second = runs(&tool, json!({"skill": "own", "script": "run.sh"})).await;
        assert_eq!(second, Ok("two\n".into()));
        assert_eq!(std::fs::read_dir(tool.skill_dirs.root()).unwrap().count(), 2);
        fixture.write_file("told", "");
    };
    let (first, ()) = tokio::join!(runs(&tool, json!({"skill": "own", "script": "run.sh"})), changes);
    assert_eq!(first, Ok("one\n".into()));
    wait_for_single_entry(tool.skill_dirs.root()).await;
    // A script whose caller has gone leaves nothing behind either.
    fixture
        .create_skill(&tool.skills, "hangs", json!({"scripts": {"run.sh": "echo $$ > pid; sleep 600"}}))
        .await;
    tokio::select! {
        result = run_tool(&tool, json!({"skill": "hangs", "script": "run.sh"})) => panic!("{result:?}"),
        _ = fixture.wait_for_file("pid") => {}
    }
    tool.skill_dirs.invalidate("hangs");
    wait_for_single_entry(tool.skill_dirs.root()).await;
    wait_for_exit(&fixture.wait_for_file("pid").await).await;
}
