//! Story 10: quotas, rate limits, and the isolation of products from each other.

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::{Value, json};

use crate::support::schema::{ENGINE_SUMMARY, PROVISIONED};
use crate::support::{Fleet, assert_fields};

#[tokio::test]
async fn a_quota_of_two_lets_two_of_twenty_pass() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.register("two", json!({"max_engines": 2})).await;
    let answers = join_all((0..20).map(|number| {
        let product = product.clone();
        async move { product.provision(&format!("user-{number}")).await }
    }))
    .await;
    let mut provisioned = Vec::new();
    for answer in answers {
        if answer.status == 200 {
            provisioned.push(answer.assert_ok(PROVISIONED)["user_id"].as_str().unwrap().to_owned());
        } else {
            answer.assert_error(429, "QUOTA_EXCEEDED");
            assert_eq!(answer.header("retry-after"), None, "waiting does not help");
        }
    }
    assert_eq!(provisioned.len(), 2, "{provisioned:?}");
    assert_eq!(product.list("").await.1, 2);
    assert_eq!(fleet.engine_processes().len(), 2);

    // An admit of a user with an engine provisions nothing; an admit of another user does.
    product.engine(&provisioned[0]).await;
    product.admit("another").await.assert_error(429, "QUOTA_EXCEEDED");
    let denied = product.call(reqwest::Method::POST, "/engines/another/admit", None).await;
    assert_eq!(denied.assert_ok("admitted:bool engine:null reason:text")["reason"], "engine_not_found");
    // A stopped engine counts, a deleted one does not.
    product.stop(&provisioned[0]).await.assert_ok("status:text");
    product.provision("another").await.assert_error(429, "QUOTA_EXCEEDED");
    product.delete(&provisioned[0]).await.assert_ok("status:text engine_id:engine");
    product.provision("another").await.assert_ok(PROVISIONED);
}

#[tokio::test]
async fn a_quota_of_nothing_refuses_all() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.register("none", json!({"max_engines": 0})).await;
    product.provision("ada").await.assert_error(429, "QUOTA_EXCEEDED");
    product.admit("ada").await.assert_error(429, "QUOTA_EXCEEDED");
    assert_eq!(product.list("").await.1, 0);
    assert_eq!(fleet.engine_processes(), []);
}

#[tokio::test]
async fn the_fourth_admit_of_three_per_minute_is_told_when_to_come_back() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.register("three", json!({"rate_limit_rpm": 3})).await;
    for _ in 0..3 {
        product.engine("ada").await;
    }
    for _ in 0..3 {
        let answer = product.admit("ada").await;
        answer.assert_error(429, "RATE_LIMITED");
        let seconds: u64 =
            answer.header("retry-after").expect("a Retry-After").parse().expect("whole seconds");
        assert!((1..=60).contains(&seconds), "{seconds}");
    }
    // The rate is checked before the engine is looked up, and applies to admits only.
    product.admit("nobody").await.assert_error(429, "RATE_LIMITED");
    assert_eq!(product.status("ada").await, "running");
    product.provision("bob").await.assert_ok(PROVISIONED);
    product.stop("bob").await.assert_ok("status:text");
    product.start("bob").await.assert_ok("status:text url:url");
    // Another product has its own window.
    up.product().engine("ada").await;
}

#[tokio::test]
async fn of_many_admits_at_once_exactly_the_rate_passes() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.register("seven", json!({"rate_limit_rpm": 7})).await;
    let answers = join_all((0..30).map(|_| product.admit("ada"))).await;
    let passed = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(passed, 7);
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        answer.assert_error(429, "RATE_LIMITED");
    }
}

#[tokio::test]
async fn a_rate_of_nothing_refuses_without_a_time_to_come_back() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.register("never", json!({"rate_limit_rpm": 0})).await;
    let answer = product.admit("ada").await;
    answer.assert_error(429, "RATE_LIMITED");
    assert_eq!(answer.header("retry-after"), None);
    product.provision("ada").await.assert_ok(PROVISIONED);
}

#[tokio::test]
async fn products_never_see_each_others_engines() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let products = [up.product(), up.register("other", json!({})).await];
    let users = ["ada", "only-first"];
    let first = products[0].engine("ada").await;
    products[0].engine("only-first").await;
    let second = products[1].engine("ada").await;
    assert_ne!((&first.id, &first.url, &first.key), (&second.id, &second.url, &second.key));

    let listed = |engines: Vec<Value>| -> BTreeSet<String> {
        engines.iter().map(|engine| engine["user_id"].as_str().unwrap().to_owned()).collect()
    };
    let (engines, total) = products[0].list("").await;
    assert_eq!((listed(engines), total), (users.iter().map(|user| (*user).to_owned()).collect(), 2));
    let (engines, total) = products[1].list("").await;
    assert_eq!((engines[0]["engine_id"].as_str(), total), (Some(second.id.as_str()), 1));

    products[1].get("only-first").await.assert_error(404, "ENGINE_NOT_FOUND");
    products[1].stop("only-first").await.assert_error(404, "ENGINE_NOT_FOUND");
    products[1].start("only-first").await.assert_error(404, "ENGINE_NOT_FOUND");
    products[1].delete("only-first").await.assert_error(404, "ENGINE_NOT_FOUND");
    products[1].delete("ada").await.assert_ok("status:text engine_id:engine");
    assert_eq!(products[0].status("ada").await, "running");
    first.health().await;

    // One engine's key does not open another's.
    let other = products[0].engine("only-first").await;
    let mut wrong = first.clone();
    wrong.key = other.key;
    let answer = crate::support::http::send(wrong.request(reqwest::Method::GET, "/openapi.json")).await;
    answer.assert_error(401, "INVALID_ENGINE_KEY");
}

#[tokio::test]
async fn the_listing_is_paged_sorted_and_filtered() {
    let fleet = Fleet::new();
    let up = fleet.start_up().await;
    let product = up.product();
    for number in 0..5 {
        product.engine(&format!("user-{number}")).await;
    }
    product.stop("user-1").await.assert_ok("status:text");
    let (all, total) = product.list("").await;
    assert_eq!(total, 5);
    for (number, engine) in all.iter().enumerate() {
        assert_fields(engine, ENGINE_SUMMARY);
        assert_eq!(engine["user_id"], format!("user-{number}"), "oldest first");
    }
    assert_eq!(product.list("?limit=2").await, (all[..2].to_vec(), 5));
    assert_eq!(product.list("?limit=2&offset=3").await, (all[3..].to_vec(), 5));
    assert_eq!(product.list("?offset=9").await, (Vec::new(), 5));
    assert_eq!(product.list("?status=stopped").await, (vec![all[1].clone()], 1));
    assert_eq!(product.list("?status=running&limit=1&offset=1").await, (vec![all[2].clone()], 4));
    assert_eq!(product.list("?status=failed").await, (Vec::new(), 0));
}
