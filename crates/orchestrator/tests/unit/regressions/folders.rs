//! No user gets the data of another user, whatever their ids, nor the data of a destroyed engine of their own.

use std::collections::HashSet;

use serde_json::json;

use super::engine_id;
use crate::testing::{TestApp, summarize};

/// User ids, percent-encoded for paths and as they are.
const USERS: [(&str, &str); 8] = [
    ("..%2F..%2Fetc", "../../etc"),
    ("%2E%2E", ".."),
    ("%2Fetc%2Fpasswd", "/etc/passwd"),
    ("%F0%9F%A6%8A", "🦊"),
    ("Ann", "Ann"),
    ("ann", "ann"),
    ("ANN", "ANN"),
    ("%C3%84nn", "Änn"),
];

#[tokio::test]
async fn regression_o14_users_are_kept_apart_whatever_they_are_called() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let mut engines = Vec::new();
    for (_, user) in USERS {
        let provisioned = product.provision(user).await;
        assert_eq!(summarize(provisioned.clone()), "200 running", "{user}");
        engines.push(engine_id(&provisioned));
    }
    // Folders are named only after the engine's id, which the orchestrator generates.
    assert_eq!(app.backend.folders(), engines.iter().copied().collect::<HashSet<_>>());
    for ((path, user), engine) in USERS.iter().zip(&engines) {
        let got = product.get(path).await;
        assert_eq!((engine_id(&got), got.1["user_id"].as_str()), (*engine, Some(*user)));
    }
    assert_eq!(product.provision("a\0b").await.0, 400);
    assert_eq!(product.get("a%00b").await.0, 400);
    assert_eq!(summarize(product.delete("ann").await), "200 destroyed");
    assert_eq!(summarize(product.get("Ann").await), "200 running");
    let remaining: HashSet<_> = engines.iter().copied().filter(|engine| *engine != engines[5]).collect();
    assert_eq!(app.backend.folders(), remaining);
    // A new engine for the same user starts from nothing.
    let again = engine_id(&product.provision("ann").await);
    assert!(!engines.contains(&again));
    assert!(app.backend.folders().contains(&again));
    app.assert_consistent().await;
}
