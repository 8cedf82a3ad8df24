//! A new version adopts and manages the engines that the previous version left running. The command lines and
//! wire formats of earlier versions are kept in `crates/backend/fixtures`; see also the tests of `label` and `probe` there.

use serde_json::json;

use super::wait_for_status;
use crate::testing::{BackendCall, ProductClient, TestApp, summarize};

/// Returns the image of the last launch of each user's engine.
async fn launched_images(app: &TestApp, users: &[(&str, &ProductClient<'_>)]) -> Vec<String> {
    let mut images = Vec::new();
    for (user, product) in users {
        let engine_id = super::engine_id(&product.get(user).await);
        let launches = app.backend.launches();
        let launch = launches.iter().rfind(|launch| launch.engine_id == engine_id).unwrap();
        images.push(launch.image.as_str().to_owned());
    }
    images
}

#[tokio::test]
async fn regression_o19_engines_of_an_earlier_version_are_taken_over_and_follow_as_they_may() {
    let app = TestApp::new().await;
    let first_image = app.config_image();
    let free = app.register_product("free", json!({})).await.key;
    let tied = app.register_product("tied", json!({"allowed_engine_versions": [first_image]})).await.key;
    let (key_of_free, key_of_tied) = (free.clone(), tied.clone());
    let product = ProductClient { app: &app, key: free.clone() };
    product.provision("follows").await;
    let pin = json!({"user_id": "pinned", "engine_version": first_image});
    product.call("POST", "/engines/provision", &pin).await;
    ProductClient { app: &app, key: tied.clone() }.provision("tied").await;
    let (running, launches) = (app.backend.running(), app.backend.count(BackendCall::Launch));
    // The next version of the same major.
    let app = app.kill_and_upgrade("svc-engine:0.99.0").await;
    app.start().await;
    let (free, tied) = (ProductClient { app: &app, key: free }, ProductClient { app: &app, key: tied });
    let users = [("follows", &free), ("pinned", &free), ("tied", &tied)];
    assert_eq!((app.backend.running(), app.backend.count(BackendCall::Launch)), (running, launches));
    for (user, product) in users {
        assert_eq!(summarize(product.admit(user, json!({})).await), "200 running");
        assert_eq!(summarize(product.stop(user).await), "200 stopped");
        assert_eq!(summarize(product.start(user).await), "200 running");
    }
    assert_eq!(launched_images(&app, &users).await, ["svc-engine:0.99.0", &first_image, &first_image]);
    assert_eq!(free.get("follows").await.1["engine_version"], "svc-engine:0.99.0");
    // A restart after a crash does not change the image of a pinned engine either.
    app.backend.crash(super::engine_id(&free.get("pinned").await));
    wait_for_status(&free, "pinned", "failed").await;
    wait_for_status(&free, "pinned", "running").await;
    assert_eq!(launched_images(&app, &users).await, ["svc-engine:0.99.0", &first_image, &first_image]);
    // No engine moves to another major version without a request.
    let app = app.kill_and_upgrade("svc-engine:1.0.0").await;
    app.start().await;
    let (free, tied) =
        (ProductClient { app: &app, key: key_of_free }, ProductClient { app: &app, key: key_of_tied });
    let users = [("follows", &free), ("pinned", &free), ("tied", &tied)];
    let stop_and_start = async || {
        for (user, product) in &users {
            product.stop(user).await;
            assert_eq!(summarize(product.start(user).await), "200 running");
        }
    };
    stop_and_start().await;
    assert_eq!(launched_images(&app, &users).await, ["svc-engine:0.99.0", &first_image, &first_image]);
    // With a single image, an engine that stayed on another one could not be launched any more.
    app.backend.add_image("svc-engine:1.0.0".parse().unwrap());
    app.backend.use_single_image();
    stop_and_start().await;
    assert_eq!(launched_images(&app, &users).await, ["svc-engine:1.0.0"; 3]);
}
