//! Story 39 (lesson o19): images are rolled forward and back within a major version, and what an earlier version
//! started is adopted and driven.

use std::collections::BTreeMap;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::schema::ENGINE_RECORD;
use crate::support::{Deployment, Docker, Engine, Orchestrator, Product, ProgramExit, eventually, image};

/// Another version of the engines' image, the same but for its name. At its end it goes.
struct RetaggedImage {
    docker: Docker,
    reference: String,
}

impl RetaggedImage {
    async fn new(docker: &Docker, version: &str) -> Self {
        let reference = image::reference(version);
        docker.run(&["tag", &image::reference(env!("CARGO_PKG_VERSION")), &reference]).await;
        Self { docker: docker.clone(), reference }
    }
}

impl Drop for RetaggedImage {
    fn drop(&mut self) {
        // It may be that a container is just going.
        let _ = self.docker.run_blocking(&["image", "rm", "--force", &self.reference]);
    }
}

/// The image that a user's engine runs, by the orchestrator's word and by the daemon's.
async fn image_of(place: &Deployment, product: &Product, user: &str) -> String {
    let record = product.get(user).await.assert_ok(ENGINE_RECORD);
    let container = place.docker_daemon().container_of(record["engine_id"].as_str().unwrap()).await.unwrap();
    let told = place.docker_daemon().inspect(&container).await;
    assert_eq!(record["engine_version"], told["Config"]["Image"], "{user}");
    record["engine_version"].as_str().unwrap().to_owned()
}

async fn stop_and_start(product: &Product, user: &str) {
    product.stop(user).await.assert_ok("status:text");
    product.start(user).await.assert_ok("status:text url:url");
}

#[tokio::test]
async fn lesson_o19_images_are_followed_forward_and_back_within_a_major_version() {
    let Some(place) = Deployment::docker() else { return };
    let now = image::reference(env!("CARGO_PKG_VERSION"));
    let next = RetaggedImage::new(place.docker_daemon(), "0.77.0").await;
    let major = RetaggedImage::new(place.docker_daemon(), "77.0.0").await;
    let (mut orchestrator, product) = place.start_with_product().await;
    product.engine("ada").await.run_turn("task", "Hello!").await;
    let messages = product.engine("ada").await.messages("task").await;
    let pinned = json!({"user_id": "bob", "engine_version": now});
    assert_eq!(product.call(Method::POST, "/engines/provision", Some(pinned)).await.status, 200);

    // Forward, no further than the major version, and back.
    for (image, followed) in
        [(&next.reference, &next.reference), (&major.reference, &next.reference), (&now, &now)]
    {
        let before = image_of(&place, &product, "ada").await;
        orchestrator.signal_and_wait(Signal::TERM).await.assert_success();
        orchestrator = place.launch_with("ORCH_ENGINE_IMAGE", image);
        orchestrator.wait_ready().await;
        assert_eq!(image_of(&place, &product, "ada").await, before, "what runs runs on");
        for user in ["ada", "bob"] {
            stop_and_start(&product, user).await;
        }
        assert_eq!(&image_of(&place, &product, "ada").await, followed, "with {image}");
        assert_eq!(image_of(&place, &product, "bob").await, now, "what is pinned stays");
        assert_eq!(product.engine("ada").await.messages("task").await, messages);
        product.engine(image).await;
        assert_eq!(&image_of(&place, &product, image).await, image, "who comes new gets what is set");
        product.delete(image).await.assert_ok("status:text engine_id:engine");
    }
    drop(orchestrator);
}

/// What the operator's command says.
async fn engines(place: &Deployment, orchestrator: &Orchestrator, line: &[&str]) -> ProgramExit {
    let variables = BTreeMap::from([("ORCH_ADMIN_KEY".to_owned(), place.admin_key.clone())]);
    let line: Vec<_> =
        ["engines"].iter().chain(line).chain(&["--url", &orchestrator.base]).copied().collect();
    place.fleet.test_env.run(&line, &variables).wait().await
}

#[tokio::test]
async fn an_operator_takes_a_fleet_across_a_major_version_and_what_fails_is_taken_back() {
    let Some(place) = Deployment::docker() else { return };
    let now = image::reference(env!("CARGO_PKG_VERSION"));
    let major = RetaggedImage::new(place.docker_daemon(), "78.0.0").await;
    let (orchestrator, product) = place.start_with_product().await;
    for user in ["ada", "bob"] {
        product.engine(user).await.run_turn("task", "Hello!").await;
    }
    product.stop("bob").await.assert_ok("status:text");
    let messages = product.engine("ada").await.messages("task").await;

    // An image that is no engine.
    let broken =
        RetaggedImage { docker: place.docker_daemon().clone(), reference: image::reference("79.0.0") };
    place.docker_daemon().run(&["tag", &image::base_image(), &broken.reference]).await;
    let version = |version: &str| Some(json!({"engine_version": version}));
    let answer = product.call(Method::PUT, "/engines/ada/version", version(&broken.reference)).await;
    assert!(answer.assert_error(502, "BACKEND_ERROR").contains("with its brain as it was"));
    assert_eq!(image_of(&place, &product, "ada").await, now);
    assert_eq!(product.engine("ada").await.messages("task").await, messages);

    let moved = engines(&place, &orchestrator, &["move", "--from", &now, "--to", &major.reference])
        .await
        .assert_success();
    assert!(moved.contains("2 moved, 0 not."), "{moved}");
    assert_eq!(image_of(&place, &product, "ada").await, major.reference);
    assert_eq!(product.engine("ada").await.messages("task").await, messages);
    assert_eq!(product.status("bob").await, "stopped");
    let told = engines(&place, &orchestrator, &["versions"]).await.assert_success();
    assert!(told.contains(&format!("2 on {}, pinned", major.reference)), "{told}");
    // The copy of each brain is there, and goes with the engine.
    let folder = place.fleet.engine_folder(&product.engine("ada").await.id);
    assert!(folder.join("brain.before/brain.sqlite").exists());
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    assert!(!folder.exists());
    // Back to what the deployment has.
    let answer = product.call(Method::PUT, "/engines/bob/version", version("default")).await;
    let changed = answer.assert_ok(
        "engine_id:engine status:text url:url engine_version:text pinned:bool \
                             previous_version:text crosses_major:bool copied_brain_format:int",
    );
    assert_eq!((&changed["engine_version"], &changed["pinned"]), (&json!(now), &json!(false)));
    drop(orchestrator);
}

/// What version 0.1 asked a daemon for, and the labels by which later versions find it again. It is kept as it was.
const CONTAINER_0_1: &str = include_str!("fixtures/docker-0.1/container.json");

/// Makes the container that version 0.1 would have made for an engine which runs in `like`, in that one's place.
async fn create_version_0_1_container(place: &Deployment, engine: &Engine, like: &str) -> String {
    let told = place.docker_daemon().inspect(like).await;
    let label = |name: &str| told["Config"]["Labels"][name].as_str().unwrap().to_owned();
    let variables = told["Config"]["Env"].as_array().unwrap();
    let variable = |name: &str| {
        let prefix = format!("{name}=");
        let found = variables.iter().find_map(|variable| variable.as_str()?.strip_prefix(&prefix));
        found.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    let values = [
        ("IMAGE", place.fleet.variables["ORCH_ENGINE_IMAGE"].clone()),
        ("USER", told["Config"]["User"].as_str().unwrap().to_owned()),
        ("DEPLOYMENT", label("roundhouse.deployment")),
        ("PRODUCT", label("roundhouse.product")),
        ("GENERATION", label("roundhouse.generation")),
        ("ENGINE", engine.id.clone()),
        ("KEY_HASH", variable("ENGINE_KEY_HASH")),
        ("SECRETS_KEY", variable("AD_ENCRYPTION_KEY")),
        ("DATA", place.fleet.engine_folder(&engine.id).to_str().unwrap().to_owned()),
        ("CATALOG", place.catalog().to_str().unwrap().to_owned()),
        ("NETWORK", place.network().to_owned()),
        ("PORT", engine.url.rsplit(':').next().unwrap().to_owned()),
    ];
    let filled = values
        .iter()
        .fold(CONTAINER_0_1.to_owned(), |text, (name, value)| text.replace(&format!("<{name}>"), value));
    let mut filled: Value = serde_json::from_str(&filled).unwrap();
    let name = filled["name"].take().as_str().unwrap().to_owned();
    assert_eq!(told["Name"], format!("/{name}"), "later versions give the same name");
    place.docker_daemon().run(&["rm", "--force", like]).await;
    let (status, created) =
        place.docker_daemon().api_post(&format!("/containers/create?name={name}"), &filled["body"]).await;
    assert_eq!(status, 201, "{created}");
    let container = created["Id"].as_str().unwrap().to_owned();
    place.docker_daemon().run(&["start", &container]).await;
    container
}

#[tokio::test]
async fn lesson_o19_a_container_that_an_earlier_version_started_is_adopted_and_driven() {
    let Some(place) =
        Deployment::with_combination(crate::support::Backend::Docker, crate::support::Database::Sqlite)
    else {
        return;
    };
    let (orchestrator, product) = place.start_with_product().await;
    let engine = product.engine("ada").await;
    engine.run_turn("task", "Hello!").await;
    let messages = engine.messages("task").await;
    let like = place.container_of(&engine).await.unwrap();
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    let kept = create_version_0_1_container(&place, &engine, &like).await;
    {
        // The registry of the earlier version knows the container that it started.
        let registry = rusqlite::Connection::open(place.fleet.folder().join("registry.sqlite")).unwrap();
        let known =
            registry.execute("UPDATE engines SET instance = ?1 WHERE instance = ?2", [&kept, &like]).unwrap();
        assert_eq!(known, 1);
    }
    eventually("it answers", async || {
        let asked = engine.request(Method::GET, "/tasks").send().await;
        asked.is_ok_and(|answer| answer.status() == 200).then_some(())
    })
    .await;

    let _orchestrator = place.start().await;
    let again = product.engine("ada").await;
    assert_eq!((&again.key, &again.url), (&engine.key, &engine.url));
    assert_eq!(place.containers().await, std::slice::from_ref(&kept), "it was adopted");
    assert_eq!(again.messages("task").await, messages);
    // It is driven: asked, given another key, listened to, ended.
    let key = product.rotate_key("ada").await.assert_ok("new_api_key:engine-key")["new_api_key"].take();
    let commit_rotation = product.engine("ada").await;
    assert_eq!(json!(commit_rotation.key), key);
    commit_rotation.run_turn("other", "Still there?").await;
    engine.get("/tasks").await.assert_error(401, "INVALID_ENGINE_KEY");
    assert_eq!(product.call(Method::GET, "/engines/ada/logs", None).await.status, 200);
    assert_eq!(place.container_of(&engine).await.as_ref(), Some(&kept), "all of it without a restart");
    for event in ["crash", "restart", "start"] {
        assert!(product.audit_rows(event).await.is_empty(), "{event}: nothing happened to the engine");
    }
    product.stop("ada").await.assert_ok("status:text");
    assert_eq!(place.docker_daemon().state(&kept).await, None);
    product.start("ada").await.assert_ok("status:text url:url");
    assert_eq!(product.engine("ada").await.messages("task").await, messages);
    // Its end would have been noticed, too.
    assert_eq!(product.status("ada").await, "running");
}
