//! Story 42: the catalog is changed while engines run. A faulty entry keeps its last good version and is reported,
//! a running turn keeps the catalog that it started with, and the shipped catalog has no faults.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mock_llm::Reply;
use serde_json::{Value, json};

use crate::support::engine_calls::direct_message;
use crate::support::tool_programs::{done_reply, tool_reply, tool_results, write_catalog_file};
use crate::support::turn::{assert_completed, memory_values, of_kind};
use crate::support::{EngineFixture, StandaloneEngine, assert_fields, skip};

/// A tool that needs approval.
const BOOK_TOOL: &str = r#"{"description": "Books a table.", "command": ["sh", "-c", "echo booked"]}"#;

fn agent_file(description: &str) -> String {
    format!("---\ndescription: {description}\n---\nYou are an agent.")
}

/// The `SKILL.md` of the skill `knots`.
fn knots_skill() -> String {
    "---\nname: knots\ndescription: Ties knots.\n---\nOver and under.".to_owned()
}

fn tool_file(description: &str) -> String {
    json!({"description": description, "command": ["true"], "permission": "allow"}).to_string()
}

impl EngineFixture {
    fn catalog(&self) -> PathBuf {
        PathBuf::from(&self.setup.variables["CATALOG_DIR"])
    }

    fn write(&self, name: &str, text: &str) {
        write_catalog_file(&self.catalog(), name, text);
    }

    fn remove(&self, name: &str) {
        let path = self.catalog().join(name);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    /// Reloads the catalog; returns the numbers of its agents, skills and tools, and the warnings.
    async fn reload(&self) -> ([u64; 3], Vec<String>) {
        let answer = self.engine.post("/admin/reload-catalog", &json!({})).await;
        let answer = answer.assert_ok("status:text counts:object warnings:array");
        assert_eq!(answer["status"], "reloaded");
        assert_fields(&answer["counts"], "agents:int skills:int tools:int");
        let counts = ["agents", "skills", "tools"].map(|kind| answer["counts"][kind].as_u64().unwrap());
        let warnings = answer["warnings"].as_array().unwrap().iter();
        (counts, warnings.map(|warning| warning.as_str().unwrap().to_owned()).collect())
    }

    /// Reloads the soul; returns its version.
    async fn reload_soul(&self) -> String {
        let answer = self.engine.post("/admin/reload-core-soul", &json!({})).await;
        let answer = answer.assert_ok("status:text version:text");
        assert_eq!(answer["status"], "reloaded");
        answer["version"].as_str().unwrap().to_owned()
    }

    /// Runs a new turn; returns the system prompt and the tools that the model was sent, as JSON text.
    async fn prompt_of_new_turn(&self) -> (String, String) {
        self.provider.enqueue_all([done_reply()]);
        self.engine.run_turn("another", "Hello!").await;
        self.last_prompt()
    }

    fn last_prompt(&self) -> (String, String) {
        let body = self.provider.requests().pop().expect("the model was asked").body;
        (body["system"].to_string(), body["tools"].to_string())
    }
}

/// Asserts that there is one warning for each of `names`, and that it contains `why`.
#[track_caller]
fn assert_warnings(warnings: &[String], names: &[&str], why: &str) {
    assert_eq!(warnings.len(), names.len(), "{warnings:#?}");
    for name in names {
        let found = warnings.iter().any(|warning| warning.starts_with(name) && warning.contains(why));
        assert!(found, "{name} ({why}) is not in {warnings:#?}");
    }
}

#[tokio::test]
async fn what_is_added_changed_and_taken_away_is_in_use_after_a_reload() {
    let fixture = EngineFixture::with_setup("anthropic", [], StandaloneEngine::allowing_unconfined).await;
    assert_eq!(fixture.reload().await, ([0, 0, 0], vec![]));
    fixture.write("agents/finder.md", &agent_file("Finds lost keys."));
    fixture.write("skills/knots/SKILL.md", &knots_skill());
    fixture.write("tools/weather.json", &tool_file("Tells the weather."));
    let all = ["Finds lost keys.", "Ties knots.", "Tells the weather."];
    let (_, tools) = fixture.prompt_of_new_turn().await;
    assert!(all.iter().all(|words| !tools.contains(words)), "nothing changes without a reload: {tools}");
    assert_eq!(fixture.reload().await, ([1, 1, 1], vec![]));
    let (_, tools) = fixture.prompt_of_new_turn().await;
    assert!(all.iter().all(|words| tools.contains(words)), "{tools}");

    fixture.write("agents/finder.md", &agent_file("Finds lost time."));
    fixture.remove("skills/knots");
    fixture.remove("tools/weather.json");
    assert_eq!(fixture.reload().await, ([1, 0, 0], vec![]));
    let (_, tools) = fixture.prompt_of_new_turn().await;
    assert!(tools.contains("Finds lost time.") && all.iter().all(|words| !tools.contains(words)), "{tools}");
}

#[tokio::test]
async fn what_is_faulty_keeps_its_last_good_version_and_what_is_gone_is_gone() {
    let names = ["agents/finder.md", "skills/knots", "tools/weather.json", "permissions.json"];
    let configure = |setup: StandaloneEngine| {
        let setup = setup
            .allowing_unconfined()
            .with_catalog_file("agents/finder.md", &agent_file("Finds lost keys."));
        let setup = setup.with_catalog_file("skills/knots/SKILL.md", &knots_skill());
        let setup = setup.with_catalog_file("tools/weather.json", &tool_file("Tells the weather."));
        setup.with_catalog_file("permissions.json", r#"{"tools": {"write_file": "deny"}}"#)
    };
    let fixture = EngineFixture::with_setup("anthropic", [], configure).await;
    let all = ["Finds lost keys.", "Ties knots.", "Tells the weather."];
    let assert_unchanged = async |fixture: &EngineFixture| {
        let (_, tools) = fixture.prompt_of_new_turn().await;
        let denied = !tools.contains("\"write_file\"") && tools.contains("\"edit_file\"");
        assert!(denied && all.iter().all(|words| tools.contains(words)), "{tools}");
    };
    for name in ["agents/finder.md", "skills/knots/SKILL.md", "tools/weather.json", "permissions.json"] {
        fixture.write(name, "{ faulty");
    }
    // An entry that was never valid is left out.
    fixture.write("agents/never.md", "faulty");
    fixture.write("tools/never.json", "{}");
    for _ in 0..2 {
        let (counts, warnings) = fixture.reload().await;
        assert_eq!(counts, [1, 1, 1]);
        let (kept, left_out): (Vec<_>, Vec<_>) =
            warnings.into_iter().partition(|warning| warning.contains("last good version"));
        assert_warnings(&kept, &names, "");
        assert_warnings(&left_out, &["agents/never.md", "tools/never.json"], "left out");
        assert_unchanged(&fixture).await;
    }
    fixture.remove("agents");
    fixture.remove("skills");
    fixture.remove("tools");
    fixture.remove("permissions.json");
    assert_eq!(fixture.reload().await, ([0, 0, 0], vec![]));
    let (_, tools) = fixture.prompt_of_new_turn().await;
    assert!(tools.contains("\"write_file\"") && all.iter().all(|words| !tools.contains(words)), "{tools}");

    // The engine does not know good versions from before its start.
    fixture.write("agents/finder.md", "faulty");
    let fixture = fixture.stop_and_start().await;
    let (counts, warnings) = fixture.reload().await;
    assert_eq!(counts, [0, 0, 0]);
    assert_warnings(&warnings, &["agents/finder.md"], "left out");
}

#[tokio::test]
async fn a_large_catalog_reloads_at_once_and_ten_faulty_entries_stop_none_of_the_good_ones() {
    let fixture = EngineFixture::new([]).await;
    let body = "Take one step after the other, and look at what came of it before the next.\n".repeat(60);
    for number in 0..200 {
        let name = format!("skill-{number}");
        // One in twenty is faulty, in one of five ways.
        let text = match number {
            7 | 77 => "no front matter".to_owned(),
            17 | 87 => format!("---\nname: {name}\n---\n{body}"),
            27 | 97 => format!("---\nname: {name}\ndescription: x\n---\n"),
            37 | 107 => format!("---\nname: [\n---\n{body}"),
            47 | 117 => format!("---\nname: {name}\ndescription: x\n"),
            _ => format!("---\nname: {name}\ndescription: Does the thing number {number}.\n---\n{body}"),
        };
        fixture.write(&format!("skills/{name}/SKILL.md"), &text);
        fixture.write(&format!("skills/{name}/scripts/run.sh"), "echo");
        fixture.write(&format!("skills/{name}/references/more.md"), &body);
    }
    for number in 0..50 {
        fixture.write(
            &format!("agents/agent-{number}.md"),
            &agent_file(&format!("Knows the subject {number}.")),
        );
    }
    let faulty_prefixes =
        [7, 77, 17, 87, 27, 97, 37, 107, 47, 117].map(|number| format!("skills/skill-{number}: "));
    let faulty_prefixes: Vec<&str> = faulty_prefixes.iter().map(String::as_str).collect();
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let started = Instant::now();
        let (counts, warnings) = fixture.reload().await;
        fastest = fastest.min(started.elapsed());
        assert_eq!(counts, [50, 190, 0]);
        assert_warnings(&warnings, &faulty_prefixes, "left out");
    }
    // A release build takes a fraction of this; a debug build is several times slower.
    assert!(fastest < Duration::from_secs(1), "{fastest:?}");
    let (_, tools) = fixture.prompt_of_new_turn().await;
    for number in 0..200 {
        let is_faulty = faulty_prefixes.contains(&format!("skills/skill-{number}: ").as_str());
        let words = format!("Does the thing number {number}.");
        assert_eq!(tools.contains(&words), !is_faulty, "{words}");
    }
}

#[tokio::test]
async fn a_turn_under_way_keeps_what_it_began_with_and_the_next_one_has_what_is_new() {
    let configure = |setup: StandaloneEngine| {
        let setup = setup.allowing_unconfined().with_catalog_file("tools/book.json", BOOK_TOOL);
        setup.with_catalog_file("soul.md", "You are the old one.")
    };
    let fixture = EngineFixture::with_setup(
        "anthropic",
        [tool_reply("book", json!({})), tool_reply("book", json!({}))],
        configure,
    )
    .await;
    let (mut stream, _) =
        fixture.engine.run_until_hitl_request(&direct_message("task", "Book a table.")).await;
    fixture.remove("tools/book.json");
    fixture.write("soul.md", "You are the new one.");
    fixture.write("permissions.json", r#"{"default": "deny"}"#);
    fixture.reload().await;
    fixture.reload_soul().await;
    // The waiting call is made, and so is a later one; the model is sent the same prompt and tools as before.
    fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    stream.next_hitl_request().await;
    fixture.provider.enqueue_all([done_reply()]);
    fixture.engine.respond("task", "yes").await.assert_ok("status:text request_id:hitl");
    let events = stream.collect().await;
    assert_completed(&events);
    assert_eq!(tool_results(&events), [Ok("booked\n"), Ok("booked\n")]);
    let prompts: Vec<(Value, Value)> = fixture
        .provider
        .requests()
        .into_iter()
        .map(|request| (request.body["system"].clone(), request.body["tools"].clone()))
        .collect();
    assert_eq!(prompts.len(), 3);
    assert!(prompts.iter().all(|each| each.1 == prompts[0].1), "{prompts:?}");
    assert!(prompts.iter().all(|each| each.0.to_string().contains("the old one")), "{prompts:?}");

    fixture.provider.enqueue_all([done_reply()]);
    fixture.engine.run_turn("task", "And now?").await;
    let (soul, tools) = fixture.last_prompt();
    assert!(soul.contains("the new one") && !tools.contains("Books a table."), "{soul} {tools}");
}

#[tokio::test]
async fn the_soul_is_a_template_with_a_version() {
    let text = "---\nversion: 1.10\n---\nSoul {{version}}. Agents:\n{{agents}}\nSkills: {{skills}}\n\
                In {{ workspace }}, \\{{version}}.";
    let configure = |setup: StandaloneEngine| {
        setup
            .with_catalog_file("soul.md", text)
            .with_catalog_file("agents/finder.md", &agent_file("Finds lost keys."))
    };
    let fixture = EngineFixture::with_setup("anthropic", [], configure).await;
    let workspace = fixture.setup.workspace();
    let expected = |version: &str, agent: &str| {
        let workspace = workspace.display();
        let soul = format!(
            "Soul {version}. Agents:\n- finder: {agent}\nSkills: (none)\nIn {workspace}, {{{{version}}}}."
        );
        serde_json::to_string(&soul).unwrap().trim_matches('"').to_owned()
    };
    let (soul, _) = fixture.prompt_of_new_turn().await;
    assert!(soul.contains(&expected("1.10", "Finds lost keys.")), "{soul}");
    // Reloading the catalog fills in the template again, but does not read the file again.
    fixture.write("agents/finder.md", &agent_file("Finds lost time."));
    fixture.write("soul.md", &text.replace("version: 1.10", "version: two"));
    fixture.reload().await;
    let (soul, _) = fixture.prompt_of_new_turn().await;
    assert!(soul.contains(&expected("1.10", "Finds lost time.")), "{soul}");
    assert_eq!(fixture.reload_soul().await, "two");
    let (soul, _) = fixture.prompt_of_new_turn().await;
    assert!(soul.contains(&expected("two", "Finds lost time.")), "{soul}");

    // A soul without a version gets one that is derived from its content.
    fixture.write("soul.md", "You are Ada.");
    let ada = fixture.reload_soul().await;
    assert_eq!(fixture.reload_soul().await, ada);
    fixture.write("soul.md", "You are Bob.");
    assert_ne!(fixture.reload_soul().await, ada);
    fixture.remove("soul.md");
    fixture.reload_soul().await;
    let (soul, _) = fixture.prompt_of_new_turn().await;
    assert!(soul.contains("You are a person's own assistant."), "{soul}");
}

#[tokio::test]
async fn a_faulty_soul_is_refused_with_its_reason_and_never_stops_an_engine() {
    let fixture = EngineFixture::with_setup("anthropic", [], |setup| {
        setup.with_catalog_file("soul.md", "You are Ada.")
    })
    .await;
    let large = "x".repeat(70_000);
    let faults = [
        ("", "empty"),
        ("---\nversion: 1\n", "front matter"),
        ("Use {{date}}.", "`date`"),
        ("Use {{agents.", "line 1"),
        (large.as_str(), "70000 bytes"),
    ];
    for (text, why) in faults {
        fixture.write("soul.md", text);
        let answer = fixture.engine.post("/admin/reload-core-soul", &json!({})).await;
        let reason = answer.assert_error(400, "INVALID_REQUEST");
        assert!(reason.starts_with("soul.md: ") && reason.contains(why), "{reason}");
        let (soul, _) = fixture.prompt_of_new_turn().await;
        assert!(soul.contains("You are Ada."), "{soul}");
    }
    fixture.write("soul.md", "Use {{date}}.");
    let fixture = fixture.stop_and_start().await;
    let (soul, _) = fixture.prompt_of_new_turn().await;
    assert!(soul.contains("You are a person's own assistant."), "{soul}");
    assert!(fixture.program.output().contains("`date`"), "the log says why: {}", fixture.program.output());
    fixture.write("soul.md", "You are Ada.");
    fixture.reload_soul().await;
    assert!(fixture.prompt_of_new_turn().await.0.contains("You are Ada."));
}

#[tokio::test]
async fn an_admin_call_needs_the_engines_key() {
    let fixture = EngineFixture::new([]).await;
    for path in ["/admin/reload-core-soul", "/admin/reload-catalog"] {
        let url = format!("{}{path}", fixture.engine.url);
        assert_eq!(reqwest::Client::new().post(url).send().await.unwrap().status(), 401);
    }
}

/// The folder of the shipped catalog.
fn shipped_catalog() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../catalog")
}

/// An engine with the shipped catalog, which runs programs only in the sandbox.
async fn fixture_with_shipped_catalog(
    configure: impl FnOnce(StandaloneEngine) -> StandaloneEngine,
) -> EngineFixture {
    EngineFixture::with_setup("anthropic", [], |setup| {
        let to = &setup.variables["CATALOG_DIR"];
        let copied = Command::new("cp").arg("--recursive").arg(shipped_catalog().join(".")).arg(to).status();
        assert!(copied.is_ok_and(|status| status.success()), "the shipped catalog is copied");
        configure(setup)
    })
    .await
}

#[tokio::test]
async fn the_catalog_that_ships_has_no_fault() {
    let fixture = fixture_with_shipped_catalog(|setup| setup).await;
    assert_eq!(fixture.reload().await, ([3, 6, 0], vec![]));
    assert_eq!(fixture.reload_soul().await, "1");
    assert!(!fixture.program.output().contains("contains an error"), "{}", fixture.program.output());
    let (soul, tools) = fixture.prompt_of_new_turn().await;
    assert!(
        soul.contains(&fixture.setup.workspace().display().to_string()) && !soul.contains("{{"),
        "{soul}"
    );
    for folder in ["skills", "agents"] {
        for entry in fs::read_dir(shipped_catalog().join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(tools.contains(name.trim_end_matches(".md")), "the model is not sent {name}");
        }
    }
}

#[tokio::test]
async fn its_script_does_what_it_says_on_the_leash_without_asking() {
    let fixture = fixture_with_shipped_catalog(|setup| setup).await;
    let level = fixture.engine.activity().await["confinement"].as_str().unwrap().to_owned();
    if !level.contains("landlock") {
        return skip(&format!("a kernel that confines programs: {level}"));
    }
    let table = "name;age;city\n\"Doe; \"\"J\"\"\";30;Oslo\nAnn;4.5;\n\nBob;19;\"New\nYork\"\r\nshort;1\n";
    fs::create_dir_all(fixture.setup.workspace()).unwrap();
    fs::write(fixture.setup.workspace().join("people.csv"), table).unwrap();
    let script = |args: Value, input: &str| {
        let script =
            json!({"skill": "summarize-table", "script": "summary.sh", "args": args, "input": input});
        tool_reply("run_skill_script", script)
    };
    fixture.provider.enqueue_all([
        script(json!(["people.csv"]), ""),
        script(json!([]), "a,b\n1,x|y\n2,\n"),
        script(json!([]), ""),
        done_reply(),
    ]);
    let events = fixture.engine.run_turn("task", "What is in the table?").await;
    assert_eq!(of_kind(&events, "hitl_request").len(), 0);
    let results = tool_results(&events);
    let expected = "4 rows, 3 columns

| column | filled | different | kind | smallest | largest | mean |
|---|---|---|---|---|---|---|
| name | 4 | 4 | text | Ann | short |  |
| age | 4 | 4 | number | 1 | 30 | 13.625 |
| city | 2 | 2 | text | New York | Oslo |  |

Warning: 1 rows have more or fewer values than the first line.
";
    assert_eq!(results[0], Ok(expected));
    let piped = results[1].unwrap();
    assert!(
        piped.contains("2 rows, 2 columns") && piped.contains(r"| b | 1 | 1 | text | x\|y | x\|y |"),
        "{piped}"
    );
    assert!(results[2].is_err_and(|error| error.contains("the table is empty")), "{results:?}");
}

#[tokio::test]
async fn a_plan_names_skills_of_the_catalog_and_no_others() {
    let always = json!({"plan": "always"}).to_string();
    let fixture =
        fixture_with_shipped_catalog(|setup| setup.with_catalog_file("planning.json", &always)).await;
    let plan = json!({"skills": ["meeting-notes", "flying"], "steps": ["Sort what was said."]});
    fixture.provider.enqueue_all([Reply::from_text(plan.to_string()), done_reply()]);
    let events =
        fixture.engine.run_turn_with(&json!({"task_id": "task", "message": "Minutes, please."})).await;
    let kept = json!({"agent": null, "skills": ["meeting-notes"], "steps": ["Sort what was said."]});
    assert_eq!(memory_values(&events, "plan"), [&kept]);
    fixture
        .last_messages()
        .assert_contains(&["load_skill", "`meeting-notes`", "Sort what was said."])
        .assert_lacks(&["flying"]);
    let planner = fixture.provider.requests()[0].body["system"].to_string();
    for name in ["meeting-notes", "summarize-table", "researcher", "reviewer"] {
        assert!(planner.contains(&format!("- {name}: ")), "{planner}");
    }
}

#[tokio::test]
async fn a_script_of_answers_is_asked_for_plans_only_if_it_is_made_the_planner() {
    let rules = "rules: [{when: '^Hello', answers: [{text: Good day.}]},
                         {answers: [{text: '{\"agent\": \"finder\"}'}]}]";
    for is_planner in [false, true] {
        let model = json!({"provider": "scripted", "model": "m", "context_window": 100_000});
        let mut gateway = json!({"models": {"one": model}, "default": "one"});
        if is_planner {
            gateway["planner"] = "one".into();
        }
        let setup = StandaloneEngine::new().with_catalog_file("gateway.json", &gateway.to_string());
        let setup = setup.with_catalog_file("agents/finder.md", &agent_file("Finds."));
        let file = setup.test_env.path().join("script.yaml");
        fs::write(&file, rules).unwrap();
        let setup = setup.with_env("LLM_SCRIPT_PATH", file.to_str().unwrap());
        let (_program, engine) = setup.start().await;
        let events = engine.run_turn_with(&json!({"task_id": "task", "message": "Hello!"})).await;
        assert_eq!(assert_completed(&events), "Good day.");
        let plan = json!({"agent": "finder", "steps": []});
        assert_eq!(memory_values(&events, "plan"), if is_planner { vec![&plan] } else { vec![] });
    }
}
