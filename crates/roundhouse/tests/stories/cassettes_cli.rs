//! `roundhouse replay`: turns, files and sets of cassettes in the terminal.

use std::fs;

use mock_llm::{MockProvider, Reply};
use serde_json::{Value, json};

use crate::support::cassettes::{turn_of, with_rules};
use crate::support::engine_fixture::memory_set_reply;
use crate::support::{Fleet, ProgramExit, RunningUp};

struct CliFixture {
    provider: MockProvider,
    fleet: Fleet,
    _up: RunningUp,
    turn: String,
}

fn answers(text: &str) -> [Reply; 2] {
    [memory_set_reply("city", "Köln"), Reply::from_text(text)]
}

impl CliFixture {
    async fn start() -> Self {
        let provider = MockProvider::start().await.unwrap();
        provider.enqueue_all(answers("Köln ist schön."));
        let fleet = Fleet::new().with_provider(&provider);
        let up = fleet.start_up().await;
        let engine = up.product().engine("ada").await;
        let turn = turn_of(&engine.run_turn("task", "Where?").await).to_owned();
        Self { provider, fleet, _up: up, turn }
    }

    async fn replay(&self, arguments: &[&str]) -> ProgramExit {
        let folder = self.fleet.folder().to_str().unwrap();
        let line = [&["replay", "--user", "ada", "--dir", folder], arguments].concat();
        self.fleet.test_env.run(&line, &self.fleet.variables).wait().await
    }

    fn path(&self, name: &str) -> String {
        self.fleet.test_env.path().join(name).to_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn a_person_replays_a_turn_and_a_file() {
    let cli = CliFixture::start().await;
    cli.provider.enqueue_all(answers("Köln ist groß."));
    let output = cli.replay(&[&cli.turn, "--with", "instructions=Be brief."]).await.assert_success();
    for text in
        ["1 same, 0 changed, 0 missing, 0 extra", "Köln ist [-schön-]{+groß+}.", "tools 1", "2 model calls"]
    {
        assert!(output.contains(text), "{text} is not in:\n{output}");
    }
    let sent = cli.provider.requests().pop().unwrap().body.to_string();
    assert!(sent.contains("Be brief."), "{sent}");

    let file = cli.path("a.json");
    cli.replay(&[&cli.turn, "--task", "task", "--save", &file]).await.assert_success();
    cli.replay(&[&cli.turn, "--save", &file]).await.assert_failure(2, &["--save"]);
    let soul = cli.path("soul.md");
    fs::write(&soul, "Du bist kurz.").unwrap();
    cli.provider.enqueue_all([Reply::from_text("Köln ist schön.")]);
    let soul = format!("soul=@{soul}");
    let output = cli.replay(&[&file, "--with", &soul, "--json", "--min-score", "0.4"]).await.assert_success();
    let report: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&report["scores"]["total"], &report["calls"]["missing"]), (&json!(0.5), &json!(1)));
    assert!(cli.provider.requests().pop().unwrap().body.to_string().contains("Du bist kurz."));
    cli.provider.enqueue_all([Reply::from_text("Köln ist schön.")]);
    cli.replay(&[&file, "--min-score", "0.6"]).await.assert_failure(1, &["missing   working_memory_set"]);
}

#[tokio::test]
async fn a_set_is_an_evaluation_in_a_fixed_order() {
    let cli = CliFixture::start().await;
    let folder = cli.path("evals");
    fs::create_dir(&folder).unwrap();
    let file = format!("{folder}/b.json");
    cli.replay(&[&cli.turn, "--save", &file]).await.assert_success();
    let cassette: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let rules = json!([{"rule": "contains", "text": "Köln"}, {"rule": "never_calls", "tool": "shell"}]);
    fs::write(format!("{folder}/a.json"), with_rules(cassette, rules).to_string()).unwrap();
    fs::write(format!("{folder}/readme.md"), "no cassette").unwrap();
    let run = || {
        cli.provider.enqueue_all(answers("Das ist Köln."));
        cli.provider.enqueue_all(answers("Köln ist schön."));
    };
    run();
    let output = cli.replay(&[&folder, "--min-score", "1"]).await.assert_success();
    let lines: Vec<&str> = output.lines().filter(|line| !line.starts_with(' ')).collect();
    assert!(lines[0].starts_with("a.json  total 1") && lines[1].starts_with("b.json  total 1"), "{output}");
    assert!(lines[2].starts_with("total 1") && lines[2].contains("2 cassettes"), "{output}");
    run();
    let first = cli.replay(&[&folder, "--json"]).await.assert_success();
    run();
    assert_eq!(cli.replay(&[&folder, "--json"]).await.assert_success(), first, "the same output again");

    // One that is broken is told, counts 0 and fails the evaluation, and the others are run.
    fs::write(format!("{folder}/0.json"), "{\"format\": \"roundhouse.cassette\", \"version\": 9}").unwrap();
    fs::write(format!("{folder}/1.json"), "{").unwrap();
    run();
    let output = cli
        .replay(&[&folder])
        .await
        .assert_failure(1, &["0.json  not run", "1.json  not run", "its `version` is 9"]);
    assert!(output.contains("total 0.5  (4 cassettes, 2 not run)"), "{output}");

    // What is asked for concerns all of them; what is known by then is printed.
    let output = cli.replay(&[&folder, "--with", "model=nope"]).await;
    let output = output.assert_failure(2, &["0.json  not run", "1.json  not run", "`nope` is not permitted"]);
    assert!(!output.contains("b.json"), "{output}");
}

#[tokio::test]
async fn what_cannot_be_replayed_is_refused() {
    let cli = CliFixture::start().await;
    let folder = cli.path("empty");
    fs::create_dir(&folder).unwrap();
    let unknown = api::TurnId::new().to_string();
    for (arguments, words) in [
        (vec!["nothing"], vec!["neither a file"]),
        (vec![&unknown], vec!["no such turn"]),
        (vec![&folder], vec!["there are 0"]),
        (vec![&cli.turn, "--with", "modle=x"], vec!["no `modle`", "max_turns"]),
        (vec![&cli.turn, "--with", "model"], vec!["NAME=VALUE"]),
        (vec![&cli.turn, "--with", "max_turns=many"], vec!["--with"]),
        (vec![&cli.turn, "--with", "soul=@/no/such/file"], vec!["/no/such/file"]),
        (vec![&cli.turn, "--with", "model=nope"], vec!["`nope` is not permitted"]),
        (vec![&cli.turn, "--min-score", "2"], vec!["from 0 to 1"]),
        (vec![&cli.turn, "--task", "other"], vec!["no such task"]),
    ] {
        cli.replay(&arguments).await.assert_failure(2, &words);
    }
}
