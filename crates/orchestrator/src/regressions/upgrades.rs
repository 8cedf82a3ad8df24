//! A new version takes over what the one before it left running, and drives it. What earlier versions put on command
//! lines and on the wire is kept in `fixtures`; see also the tests beside `label` and `probe`.

use serde_json::json;

use super::wait_for_status;
use crate::testing::{BackendCall, ProductClient, TestApp, summarize};

/// The images of the last launches, by user.
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
async fn lesson_o19_engines_of_an_earlier_version_are_taken_over_and_follow_as_they_may() {
    let app = TestApp::new().await;
    let own = app.config_image();
    let free = app.register_product("free", json!({})).await.key;
    let tied = app.register_product("tied", json!({"allowed_engine_versions": [own]})).await.key;
    let (key_of_free, key_of_tied) = (free.clone(), tied.clone());
    let product = ProductClient { app: &app, key: free.clone() };
    product.provision("follows").await;
    let pin = json!({"user_id": "pinned", "engine_version": own});
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
    assert_eq!(launched_images(&app, &users).await, ["svc-engine:0.99.0", &own, &own]);
    assert_eq!(free.get("follows").await.1["engine_version"], "svc-engine:0.99.0");
    // A crash is no reason to follow either.
    app.backend.crash(super::engine_id(&free.get("pinned").await));
    wait_for_status(&free, "pinned", "failed").await;
    wait_for_status(&free, "pinned", "running").await;
    assert_eq!(launched_images(&app, &users).await, ["svc-engine:0.99.0", &own, &own]);
    // Into another major nobody is taken without being asked.
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
    assert_eq!(launched_images(&app, &users).await, ["svc-engine:0.99.0", &own, &own]);
    // Where there is but one image, staying with another would be the end of an engine.
    app.backend.add_image("svc-engine:1.0.0".parse().unwrap());
    app.backend.use_single_image();
    stop_and_start().await;
    assert_eq!(launched_images(&app, &users).await, ["svc-engine:1.0.0"; 3]);
}
