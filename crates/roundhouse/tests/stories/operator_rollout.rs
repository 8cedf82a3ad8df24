//! `roundhouse rollout` on terminals and in pipes, with an orchestrator that is away or refuses, and on a fleet of
//! processes, which has no images.

use serde_json::{Value, json};

use crate::support::command_line::{FixedService, cells, command, command_with};
use crate::support::test_env::BINARY;
use crate::support::{Fleet, Terminal, TestEnv};

const ROLLOUT: &str = "roll_00000000000000000000000000000009";

/// The commands, each with an answer that it understands.
fn commands() -> Vec<(&'static [&'static str], Value)> {
    let time = "2026-01-01T00:00:00.000Z";
    let rollout = json!({
        "rollout_id": format!("roll_{:032x}", 9), "engine_version": "svc-engine:0.2.0",
        "previous_version": "svc-engine:0.1.0",
        "plan": {
            "canaries": 2, "bake_s": 600, "window_s": 0, "max_failures": 0, "max_error_percent": 5, "concurrency": 4,
            "on_failure": "roll_back",
        },
        "phase": "rolling_back", "phase_since": time, "paused": true,
        "reason": "1 engine has failed on the new version, and at most 0 may", "started_at": time, "ended_at": null,
        "engines": {
            "waiting": 0, "moving": 0, "moved": 3, "failed": 1, "unhealthy": 0, "skipped": 0, "rolled_back": 4,
            "stuck": 0,
        },
    });
    let engines = json!({"next": format!("eng_{:032x}", 8), "engines": [{
        "engine_id": format!("eng_{:032x}", 8), "product_id": format!("prod_{:032x}", 7), "user_id": "ada\u{202e}",
        "previous_version": "svc-engine:0.1.0", "state": "failed", "since": time,
        "error": {"code": "BOOT_TIMEOUT", "message": "it did not come up"},
    }]});
    vec![
        (&["rollout", "status", ROLLOUT][..], rollout.clone()),
        (&["rollout", "list"], json!({"rollouts": [rollout]})),
        (&["rollout", "engines", ROLLOUT], engines),
        (&["rollout", "pause", ROLLOUT], rollout.clone()),
        (&["rollout", "resume", ROLLOUT], rollout.clone()),
        (&["rollout", "rollback", ROLLOUT, "--yes"], rollout.clone()),
        (&["rollout", "start", "svc-engine:0.2.0", "--canary", "0", "--yes"], rollout),
    ]
}

#[tokio::test]
async fn answers_are_shown_in_pipes_and_fit_the_terminal() {
    let home = TestEnv::new();
    for (words, answer) in commands() {
        let service = FixedService::start(200, &answer.to_string()).await;
        let variables = [("ROUNDHOUSE_URL", service.base.as_str()), ("ROUNDHOUSE_ADMIN_KEY", "sesame")];
        let shown = cells(&command_with(&home, words, &variables).await.assert_success());
        let expected = match words[1] {
            "list" => {
                "roll_00000000000000000000000000000009 | svc-engine:0.2.0 | rolling back, paused | 3 | 1 | AGO"
            }
            "engines" => {
                "PRODUCT | ada\\u{202e} | failed | AGO | it did not come up (BOOT_TIMEOUT)\n--after eng_"
            }
            _ => "Why | 1 engine has failed on the new version, and at most 0 may\nWaiting | 0",
        };
        assert!(shown.contains(&expected.replace("svc-engine:0.2.0", "IMAGE")), "no {expected:?} in {shown}");
        let variables = [
            ("ROUNDHOUSE_URL", service.base.as_str()),
            ("ROUNDHOUSE_ADMIN_KEY", "sesame"),
            ("NO_COLOR", "1"),
        ];
        for columns in [80, 40] {
            let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            let mut terminal = Terminal::start(&home, &[&[BINARY], words].concat(), &variables, columns);
            assert!(terminal.wait_for_exit().await.success(), "{words:?}");
            let shown = terminal.raw().replace("\r\n", "\n");
            // What is to be copied is not broken.
            let is_prose = |line: &&str| !line.contains('`') && !line.contains("--after");
            let widest = shown.lines().filter(is_prose).map(|line| line.chars().count()).max();
            assert!(widest <= Some(usize::from(columns)), "{words:?} in {columns}:\n{shown}");
        }
    }
}

#[tokio::test]
async fn an_orchestrator_that_is_away_or_refuses_is_named_by_the_exit_code() {
    let home = TestEnv::new();
    let nowhere = format!("http://127.0.0.1:{}", home.ports.first());
    let error = |code: &str| json!({"error": {"code": code, "message": "because of this"}}).to_string();
    let wrong_key = FixedService::start(401, &error("INVALID_ADMIN_KEY")).await;
    let standby = FixedService::start(503, &error("STARTING_UP")).await;
    let over = FixedService::start(409, &error("ROLLOUT_OVER")).await;
    let admin = ("ROUNDHOUSE_ADMIN_KEY", "sesame");
    for (words, _) in commands() {
        for (base, code, expected) in [
            (&nowhere, 5, "does not answer"),
            (&wrong_key.base, 4, "INVALID_ADMIN_KEY"),
            (&standby.base, 5, "because of this"),
            (&over.base, 4, "ROLLOUT_OVER"),
        ] {
            let exit = command_with(&home, words, &[("ROUNDHOUSE_URL", base), admin]).await;
            let output = exit.assert_failure(code, &[expected]);
            assert!(!output.contains("sesame"), "{output}");
        }
        let product = ("ROUNDHOUSE_PLATFORM_KEY", "pk-svc-x");
        command_with(&home, words, &[("ROUNDHOUSE_URL", &nowhere), product])
            .await
            .assert_failure(2, &["ROUNDHOUSE_ADMIN_KEY"]);
    }
}

#[tokio::test]
async fn engines_that_are_processes_are_updated_with_their_binary() {
    let fleet = Fleet::new();
    let _up = fleet.start_up().await;
    command(&fleet, &["rollout", "start", "svc-engine:9.0.0", "--yes"])
        .await
        .assert_failure(2, &["update its binary instead", "INVALID_REQUEST"]);
    assert_eq!(
        command(&fleet, &["rollout", "list"]).await.assert_success(),
        "There was no rollout so far.\n"
    );
}
