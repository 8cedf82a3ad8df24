//! An operator rolls another image out to a fleet of containers, and back.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::command_line::{cells, document};
use crate::support::image::{self, RetaggedImage};
use crate::support::{Deployment, Orchestrator, ProgramExit, eventually};

/// Runs `roundhouse rollout` as the operator.
async fn rollout(deployment: &Deployment, orchestrator: &Orchestrator, words: &[&str]) -> ProgramExit {
    let variables = [
        ("ROUNDHOUSE_ADMIN_KEY".to_owned(), deployment.admin_key.clone()),
        ("ROUNDHOUSE_URL".to_owned(), orchestrator.base.clone()),
    ];
    let (program, input) =
        deployment.fleet.test_env.run_interactive(&[&["rollout"], words].concat(), &variables.into());
    drop(input);
    program.wait().await
}

async fn status(deployment: &Deployment, orchestrator: &Orchestrator) -> Value {
    document(&rollout(deployment, orchestrator, &["status", "--json"]).await.assert_success())
}

async fn wait_for(deployment: &Deployment, orchestrator: &Orchestrator, phase: &str) -> Value {
    eventually(&format!("the rollout is {phase}"), async || {
        let status = status(deployment, orchestrator).await;
        (status["phase"] == phase).then_some(status)
    })
    .await
}

#[tokio::test]
async fn an_operator_rolls_an_image_out_over_a_kill_and_back() {
    let Some(deployment) = Deployment::docker() else { return };
    let now = image::reference(env!("CARGO_PKG_VERSION"));
    let next = RetaggedImage::new(deployment.docker_daemon(), "0.80.0").await;
    let (orchestrator, product) = deployment.start_with_product().await;
    rollout(&deployment, &orchestrator, &["status"]).await.assert_failure(3, &["no rollout so far"]);
    let none = rollout(&deployment, &orchestrator, &["list"]).await.assert_success();
    assert_eq!(none, "There was no rollout so far.\n");
    for user in ["ada", "bob", "eve"] {
        product.engine(user).await.run_turn("task", "Hello!").await;
    }
    product.stop("bob").await.assert_ok("status:text");
    let messages = product.engine("ada").await.messages("task").await;

    // One goes first, at rest; the orchestrator is killed while others follow.
    let words =
        ["start", &next.reference, "--canary", "1", "--bake", "0", "--window", "0", "--concurrency", "1"];
    rollout(&deployment, &orchestrator, &words).await.assert_failure(2, &["of all products", "--yes"]);
    let begun =
        rollout(&deployment, &orchestrator, &[&words[..], &["--yes"]].concat()).await.assert_success();
    assert!(cells(&begun).contains("Waiting | 3"), "{begun}");
    eventually("an engine is moved", async || {
        let moved = status(&deployment, &orchestrator).await["engines"]["moved"].as_u64();
        (moved >= Some(1)).then_some(())
    })
    .await;
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    let orchestrator = deployment.start().await;
    let done = wait_for(&deployment, &orchestrator, "completed").await;
    assert_eq!((&done["engines"]["moved"], &done["engines"]["failed"]), (&json!(3), &json!(0)), "{done}");
    for user in ["ada", "eve"] {
        product.wait_for_status(user, "running").await;
        assert_eq!(image::of_engine(&deployment, &product, user).await, next.reference);
    }
    assert_eq!(product.status("bob").await, "stopped");
    assert_eq!(product.engine("ada").await.messages("task").await, messages);
    product.engine("ada").await.run_turn("task", "Still there?").await;
    let messages = product.engine("ada").await.messages("task").await;
    product.engine("newcomer").await;
    assert_eq!(image::of_engine(&deployment, &product, "newcomer").await, next.reference);
    let listed = rollout(&deployment, &orchestrator, &["engines", "--state", "moved"]).await.assert_success();
    assert!(cells(&listed).contains("PRODUCT | bob | moved | AGO"), "{listed}");

    // Back. The data has the same format, so what was said since is kept.
    rollout(&deployment, &orchestrator, &["rollback"]).await.assert_failure(2, &["3 engines back", "--yes"]);
    rollout(&deployment, &orchestrator, &["rollback", "--yes"]).await.assert_success();
    let over = wait_for(&deployment, &orchestrator, "rolled_back").await;
    assert_eq!(
        (&over["engines"]["rolled_back"], &over["engines"]["stuck"]),
        (&json!(3), &json!(1)),
        "{over}"
    );
    for user in ["ada", "eve"] {
        assert_eq!(image::of_engine(&deployment, &product, user).await, now);
    }
    assert_eq!(image::of_engine(&deployment, &product, "newcomer").await, next.reference);
    assert_eq!(product.engine("ada").await.messages("task").await, messages);
    rollout(&deployment, &orchestrator, &["rollback", "--yes"]).await.assert_success();
}

#[tokio::test]
async fn an_image_that_is_no_engine_stops_at_its_first_engine() {
    let Some(deployment) = Deployment::docker() else { return };
    let broken = RetaggedImage::broken(deployment.docker_daemon(), "81.0.0").await;
    let (orchestrator, product) = deployment.start_with_product().await;
    let mut messages = Vec::new();
    for user in ["ada", "bob"] {
        let engine = product.engine(user).await;
        engine.run_turn("task", "Hello!").await;
        messages.push((user, engine.messages("task").await));
    }
    let words = ["start", &broken.reference, "--window", "0", "--yes"];
    rollout(&deployment, &orchestrator, &words).await.assert_success();
    let over = wait_for(&deployment, &orchestrator, "rolled_back").await;
    assert_eq!((&over["engines"]["failed"], &over["engines"]["moved"]), (&json!(1), &json!(0)), "{over}");
    let shown = rollout(&deployment, &orchestrator, &["engines", "--state", "failed"]).await.assert_success();
    assert!(shown.contains("with its brain as it was"), "{shown}");
    let now = image::reference(env!("CARGO_PKG_VERSION"));
    for (user, messages) in messages {
        assert_eq!(image::of_engine(&deployment, &product, user).await, now);
        assert_eq!(product.engine(user).await.messages("task").await, messages);
    }
    let missing = image::reference("82.0.0");
    let answer = rollout(&deployment, &orchestrator, &["start", &missing, "--yes"]).await;
    answer.assert_failure(1, &[&missing, "BACKEND_ERROR"]);
    let answer = product.call(Method::GET, "/fleet/rollouts", None).await;
    answer.assert_error(401, "INVALID_ADMIN_KEY");
}
