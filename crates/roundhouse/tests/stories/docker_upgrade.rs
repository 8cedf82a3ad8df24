//! Story 39 (lesson o19): images are rolled forward and back within a major version, and containers that an
//! earlier version started are adopted and operated.

use std::collections::BTreeMap;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::image::RetaggedImage;
use crate::support::{Deployment, Engine, Orchestrator, Product, ProgramExit, eventually, image};

async fn stop_and_start(product: &Product, user: &str) {
    product.stop(user).await.assert_ok("status:text");
    product.start(user).await.assert_ok("status:text url:url");
}

#[tokio::test]
async fn regression_o19_images_are_followed_forward_and_back_within_a_major_version() {
    let Some(deployment) = Deployment::docker() else { return };
    let now = image::reference(env!("CARGO_PKG_VERSION"));
    let next = RetaggedImage::new(deployment.docker_daemon(), "0.77.0").await;
    let major = RetaggedImage::new(deployment.docker_daemon(), "77.0.0").await;
    let (mut orchestrator, product) = deployment.start_with_product().await;
    product.engine("ada").await.run_turn("task", "Hello!").await;
    let messages = product.engine("ada").await.messages("task").await;
    let pinned = json!({"user_id": "bob", "engine_version": now});
    assert_eq!(product.call(Method::POST, "/engines/provision", Some(pinned)).await.status, 200);

    // Forward, not across the major version, and back.
    for (image, followed) in
        [(&next.reference, &next.reference), (&major.reference, &next.reference), (&now, &now)]
    {
        let before = image::of_engine(&deployment, &product, "ada").await;
        orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
        orchestrator = deployment.launch_with("ORCH_ENGINE_IMAGE", image);
        orchestrator.wait_ready().await;
        assert_eq!(
            image::of_engine(&deployment, &product, "ada").await,
            before,
            "a running engine keeps its image"
        );
        for user in ["ada", "bob"] {
            stop_and_start(&product, user).await;
        }
        assert_eq!(&image::of_engine(&deployment, &product, "ada").await, followed, "with {image}");
        assert_eq!(
            image::of_engine(&deployment, &product, "bob").await,
            now,
            "a pinned engine keeps its image"
        );
        assert_eq!(product.engine("ada").await.messages("task").await, messages);
        product.engine(image).await;
        assert_eq!(
            &image::of_engine(&deployment, &product, image).await,
            image,
            "a new engine gets the configured image"
        );
        product.delete(image).await.assert_ok("status:text engine_id:engine");
    }
    drop(orchestrator);
}

/// Runs `roundhouse engines` as the operator.
async fn engines(deployment: &Deployment, orchestrator: &Orchestrator, line: &[&str]) -> ProgramExit {
    let variables = BTreeMap::from([("ORCH_ADMIN_KEY".to_owned(), deployment.admin_key.clone())]);
    let line: Vec<_> =
        ["engines"].iter().chain(line).chain(&["--url", &orchestrator.base]).copied().collect();
    deployment.fleet.test_env.run(&line, &variables).wait().await
}

#[tokio::test]
async fn an_operator_takes_a_fleet_across_a_major_version_and_what_fails_is_taken_back() {
    let Some(deployment) = Deployment::docker() else { return };
    let now = image::reference(env!("CARGO_PKG_VERSION"));
    let major = RetaggedImage::new(deployment.docker_daemon(), "78.0.0").await;
    let (orchestrator, product) = deployment.start_with_product().await;
    for user in ["ada", "bob"] {
        product.engine(user).await.run_turn("task", "Hello!").await;
    }
    product.stop("bob").await.assert_ok("status:text");
    let messages = product.engine("ada").await.messages("task").await;

    let broken = RetaggedImage::broken(deployment.docker_daemon(), "79.0.0").await;
    let version = |version: &str| Some(json!({"engine_version": version}));
    let answer = product.call(Method::PUT, "/engines/ada/version", version(&broken.reference)).await;
    assert!(answer.assert_error(502, "BACKEND_ERROR").contains("with its brain as it was"));
    assert_eq!(image::of_engine(&deployment, &product, "ada").await, now);
    assert_eq!(product.engine("ada").await.messages("task").await, messages);

    let moved = engines(&deployment, &orchestrator, &["move", "--from", &now, "--to", &major.reference])
        .await
        .assert_success();
    assert!(moved.contains("2 moved, 0 not moved."), "{moved}");
    assert_eq!(image::of_engine(&deployment, &product, "ada").await, major.reference);
    assert_eq!(product.engine("ada").await.messages("task").await, messages);
    assert_eq!(product.status("bob").await, "stopped");
    let versions = engines(&deployment, &orchestrator, &["versions"]).await.assert_success();
    assert!(versions.contains(&format!("2 on {}, pinned", major.reference)), "{versions}");
    // The copy of the brain exists, and is deleted with the engine.
    let folder = deployment.fleet.engine_folder(&product.engine("ada").await.id);
    assert!(folder.join("brain.before/brain.sqlite").exists());
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    assert!(!folder.exists());
    // Back to the deployment's version.
    let answer = product.call(Method::PUT, "/engines/bob/version", version("default")).await;
    let changed = answer.assert_ok(
        "engine_id:engine status:text url:url engine_version:text pinned:bool \
                             previous_version:text crosses_major:bool copied_brain_format:int",
    );
    assert_eq!((&changed["engine_version"], &changed["pinned"]), (&json!(now), &json!(false)));
    drop(orchestrator);
}

/// The request with which version 0.1 created containers, with the labels by which later versions find them. It
/// must not be changed.
const CONTAINER_0_1: &str = include_str!("fixtures/docker-0.1/container.json");

/// Replaces the container `like` of an engine by the one that version 0.1 would have created.
async fn create_version_0_1_container(deployment: &Deployment, engine: &Engine, like: &str) -> String {
    let inspected = deployment.docker_daemon().inspect(like).await;
    let label = |name: &str| inspected["Config"]["Labels"][name].as_str().unwrap().to_owned();
    let variables = inspected["Config"]["Env"].as_array().unwrap();
    let variable = |name: &str| {
        let prefix = format!("{name}=");
        let found = variables.iter().find_map(|variable| variable.as_str()?.strip_prefix(&prefix));
        found.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    let values = [
        ("IMAGE", deployment.fleet.variables["ORCH_ENGINE_IMAGE"].clone()),
        ("USER", inspected["Config"]["User"].as_str().unwrap().to_owned()),
        ("DEPLOYMENT", label("roundhouse.deployment")),
        ("PRODUCT", label("roundhouse.product")),
        ("GENERATION", label("roundhouse.generation")),
        ("ENGINE", engine.id.clone()),
        ("KEY_HASH", variable("ENGINE_KEY_HASH")),
        ("SECRETS_KEY", variable("AD_ENCRYPTION_KEY")),
        ("DATA", deployment.fleet.engine_folder(&engine.id).to_str().unwrap().to_owned()),
        ("CATALOG", deployment.catalog().to_str().unwrap().to_owned()),
        ("NETWORK", deployment.network().to_owned()),
        ("PORT", engine.url.rsplit(':').next().unwrap().to_owned()),
    ];
    let filled = values
        .iter()
        .fold(CONTAINER_0_1.to_owned(), |text, (name, value)| text.replace(&format!("<{name}>"), value));
    let mut filled: Value = serde_json::from_str(&filled).unwrap();
    let name = filled["name"].take().as_str().unwrap().to_owned();
    assert_eq!(inspected["Name"], format!("/{name}"), "later versions use the same name");
    deployment.docker_daemon().run(&["rm", "--force", like]).await;
    let (status, created) = deployment
        .docker_daemon()
        .api_post(&format!("/containers/create?name={name}"), &filled["body"])
        .await;
    assert_eq!(status, 201, "{created}");
    let container = created["Id"].as_str().unwrap().to_owned();
    deployment.docker_daemon().run(&["start", &container]).await;
    container
}

#[tokio::test]
async fn regression_o19_a_container_that_an_earlier_version_started_is_adopted_and_driven() {
    let Some(deployment) =
        Deployment::with_combination(crate::support::Backend::Docker, crate::support::Database::Sqlite)
    else {
        return;
    };
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    let like = deployment.container_of(&engine).await.unwrap();
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    let kept = create_version_0_1_container(&deployment, &engine, &like).await;
    {
        // The earlier version's registry refers to the container that it started.
        let registry = rusqlite::Connection::open(deployment.fleet.folder().join("registry.sqlite")).unwrap();
        let known =
            registry.execute("UPDATE engines SET instance = ?1 WHERE instance = ?2", [&kept, &like]).unwrap();
        assert_eq!(known, 1);
    }
    eventually("it answers", async || {
        let response = engine.request(Method::GET, "/tasks").send().await;
        response.is_ok_and(|answer| answer.status() == 200).then_some(())
    })
    .await;

    let _orchestrator = deployment.start().await;
    let again = product.engine("ada").await;
    assert_eq!((&again.key, &again.url), (&engine.key, &engine.url));
    assert_eq!(deployment.containers().await, std::slice::from_ref(&kept), "it was adopted");
    assert_eq!(again.messages("task").await, messages);
    // It is operated: its key is rotated, it runs a turn, its log is read, it is stopped.
    let key = product.rotate_key("ada").await.assert_ok("new_api_key:engine-key")["new_api_key"].take();
    let rotated = product.engine("ada").await;
    assert_eq!(json!(rotated.key), key);
    rotated.run_turn("other", "Still there?").await;
    engine.get("/tasks").await.assert_error(401, "INVALID_ENGINE_KEY");
    assert_eq!(product.call(Method::GET, "/engines/ada/logs", None).await.status, 200);
    assert_eq!(deployment.container_of(&engine).await.as_ref(), Some(&kept), "none of this restarts it");
    for event in ["crash", "restart", "start"] {
        assert!(product.audit_rows(event).await.is_empty(), "{event}: nothing happened to the engine");
    }
    product.stop("ada").await.assert_ok("status:text");
    assert_eq!(deployment.docker_daemon().state(&kept).await, None);
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(product.engine("ada").await.messages("task").await, messages);
    // An exit would have been noticed, too.
    assert_eq!(product.status("ada").await, "running");
}
