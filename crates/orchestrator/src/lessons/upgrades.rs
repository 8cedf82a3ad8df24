//! A new version takes over what the one before it left running, and drives it. What earlier versions put on command
//! lines and on the wire is kept in `fixtures`; see also the tests beside `label` and `probe`.

use serde_json::json;

use super::until_it_is;
use crate::testing::{Call, Caller, TestApp, short};

/// The images of the last launches, by user.
async fn launched(app: &TestApp, users: &[(&str, &Caller<'_>)]) -> Vec<String> {
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
    let free = app.product("free", json!({})).await.key;
    let tied = app.product("tied", json!({"allowed_engine_versions": [own]})).await.key;
    let (key_of_free, key_of_tied) = (free.clone(), tied.clone());
    let product = Caller { app: &app, key: free.clone() };
    product.provision("follows").await;
    let pin = json!({"user_id": "pinned", "engine_version": own});
    product.call("POST", "/engines/provision", &pin).await;
    Caller { app: &app, key: tied.clone() }.provision("tied").await;
    let (running, launches) = (app.backend.running(), app.backend.count(Call::Launch));
    // The next version of the same major.
    let app = app.upgraded("svc-engine:0.99.0").await;
    app.begin().await;
    let (free, tied) = (Caller { app: &app, key: free }, Caller { app: &app, key: tied });
    let users = [("follows", &free), ("pinned", &free), ("tied", &tied)];
    assert_eq!((app.backend.running(), app.backend.count(Call::Launch)), (running, launches));
    for (user, product) in users {
        assert_eq!(short(product.admit(user, json!({})).await), "200 running");
        assert_eq!(short(product.stop(user).await), "200 stopped");
        assert_eq!(short(product.start(user).await), "200 running");
    }
    assert_eq!(launched(&app, &users).await, ["svc-engine:0.99.0", &own, &own]);
    assert_eq!(free.get("follows").await.1["engine_version"], "svc-engine:0.99.0");
    // A crash is no reason to follow either.
    app.backend.crash(super::engine_id(&free.get("pinned").await));
    until_it_is(&free, "pinned", "failed").await;
    until_it_is(&free, "pinned", "running").await;
    assert_eq!(launched(&app, &users).await, ["svc-engine:0.99.0", &own, &own]);
    // Into another major nobody is taken without being asked.
    let app = app.upgraded("svc-engine:1.0.0").await;
    app.begin().await;
    let (free, tied) = (Caller { app: &app, key: key_of_free }, Caller { app: &app, key: key_of_tied });
    let users = [("follows", &free), ("pinned", &free), ("tied", &tied)];
    let stop_and_start = async || {
        for (user, product) in &users {
            product.stop(user).await;
            assert_eq!(short(product.start(user).await), "200 running");
        }
    };
    stop_and_start().await;
    assert_eq!(launched(&app, &users).await, ["svc-engine:0.99.0", &own, &own]);
    // Where there is but one image, staying with another would be the end of an engine.
    app.backend.add_image("svc-engine:1.0.0".parse().unwrap());
    app.backend.keep_one_image();
    stop_and_start().await;
    assert_eq!(launched(&app, &users).await, ["svc-engine:1.0.0"; 3]);
}
