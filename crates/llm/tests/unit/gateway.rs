//! The health of the models, as health checks, new turns and `quota_state` see it.

use std::collections::BTreeMap;

use api::rpc::CacheUse;
use pretty_assertions::assert_eq;
use serde_json::json;

use super::super::config::{CatalogKeyPolicy, ConfigSources, routes_from_env};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn error(kind: ModelErrorKind) -> ModelError {
    ModelError::new(kind, format!("{kind:?}"))
}

/// Three models: `a` is the primary model, `b` and `c` are its fallbacks.
fn three_models() -> Routes {
    let model = |name: &str| json!({"provider": "scripted", "model": format!("vendor-{name}"), "context_window": 1_000});
    let document = json!({
        "models": {"a": model("a"), "b": model("b"), "c": model("c")},
        "default": "a",
        "fallbacks": ["b", "c"],
    });
    let sources = ConfigSources::new(&BTreeMap::new(), None);
    sources
        .validate(document, &CatalogKeyPolicy::default())
        .unwrap_or_else(|reason| panic!("{reason}"))
        .routes
}

fn route(gateway: &Gateway, name: &str) -> Arc<Route> {
    gateway.routes().unwrap().named.iter().find(|route| route.name == name).unwrap().clone()
}

fn chain_names(gateway: &Gateway, name: Option<&str>, now: Duration) -> String {
    gateway.chain(name, now).unwrap().iter().map(|route| route.name.as_str()).collect()
}

#[test]
fn three_failures_in_a_row_are_unwell_and_one_success_mends() {
    let gateway = Gateway::new(Err(routes_from_env(&BTreeMap::new()).err().unwrap()));
    assert!(gateway.status().contains("LLM_PROVIDER"));
    let gateway = Gateway::new(Ok(three_models()));
    let (first, other) = (route(&gateway, "a"), route(&gateway, "b"));
    for _ in 0..3 {
        assert_eq!(gateway.status(), HEALTHY);
        gateway.record_outcome(&first, Err(&error(ModelErrorKind::Busy)), SECOND);
        gateway.record_outcome(&first, Err(&error(ModelErrorKind::Refused)), SECOND);
        // A fallback's success says nothing about the primary model.
        gateway.record_outcome(&other, Ok(&TokenUsage::default()), SECOND);
    }
    assert_eq!(gateway.status(), "the last 3 calls failed: Busy");
    gateway.record_outcome(&first, Ok(&TokenUsage::default()), SECOND);
    assert_eq!(gateway.status(), HEALTHY);
    for _ in 0..3 {
        gateway.record_outcome(&other, Err(&error(ModelErrorKind::Busy)), SECOND);
    }
    assert_eq!(gateway.status(), HEALTHY);
}

#[test]
fn a_model_that_failed_for_good_is_asked_last_for_a_minute() {
    let minute = Duration::from_mins(1);
    for kind in [ModelErrorKind::Auth, ModelErrorKind::Quota, ModelErrorKind::NoSuchModel] {
        let gateway = Gateway::new(Ok(three_models()));
        gateway.record_outcome(&route(&gateway, "a"), Err(&error(kind)), SECOND);
        assert_eq!(chain_names(&gateway, None, SECOND), "bca", "{kind:?}");
        assert_eq!(chain_names(&gateway, None, minute), "bca");
        assert_eq!(chain_names(&gateway, None, minute + SECOND), "abc");
        gateway.record_outcome(&route(&gateway, "a"), Ok(&TokenUsage::default()), SECOND);
        assert_eq!(chain_names(&gateway, None, SECOND), "abc");
    }
    let gateway = Gateway::new(Ok(three_models()));
    for kind in
        [ModelErrorKind::Busy, ModelErrorKind::Broken, ModelErrorKind::Refused, ModelErrorKind::TooLong]
    {
        gateway.record_outcome(&route(&gateway, "a"), Err(&error(kind)), SECOND);
        assert_eq!(chain_names(&gateway, None, SECOND), "abc");
    }
    gateway.open_circuit(&route(&gateway, "a"), SECOND);
    gateway.open_circuit(&route(&gateway, "b"), SECOND);
    assert_eq!(chain_names(&gateway, None, SECOND), "cab");
    assert_eq!(chain_names(&gateway, Some("b"), SECOND), "cba");
    // It is still tried if there is no other model.
    gateway.open_circuit(&route(&gateway, "c"), SECOND);
    assert_eq!(chain_names(&gateway, None, SECOND), "abc");
}

#[test]
fn another_configuration_begins_anew_and_steps_under_way_keep_theirs() {
    let gateway = Gateway::new(Ok(three_models()));
    let (old_routes, old_route) = (gateway.routes().unwrap(), route(&gateway, "a"));
    gateway.open_circuit(&old_route, SECOND);
    gateway.replace(three_models());
    assert_eq!(chain_names(&gateway, None, SECOND), "abc");
    assert!(
        !Arc::ptr_eq(&old_routes, &gateway.routes().unwrap())
            && Arc::ptr_eq(&old_routes.chain[0], &old_route)
    );
    // Failures of the replaced model do not count for the new one.
    for _ in 0..3 {
        gateway.record_outcome(&old_route, Err(&error(ModelErrorKind::Auth)), SECOND);
        gateway.open_circuit(&old_route, SECOND);
    }
    assert_eq!((gateway.status().as_str(), chain_names(&gateway, None, SECOND).as_str()), (HEALTHY, "abc"));
}

#[test]
fn the_state_of_each_model_is_told() {
    let gateway = Gateway::new(Ok(three_models()));
    let quota = ModelError { retry_after: Some(40 * SECOND), ..error(ModelErrorKind::Quota) };
    gateway.record_outcome(&route(&gateway, "b"), Err(&quota), 10 * SECOND);
    let states = serde_json::to_value(gateway.model_states(20 * SECOND)).unwrap();
    let healthy = |name: &str| {
        json!({"name": name, "model": format!("vendor-{name}"), "cool_down_seconds": 0.0,
               "retry_after_seconds": null, "failures_in_a_row": 0, "last_failure": null})
    };
    let unhealthy = json!({"name": "b", "model": "vendor-b", "cool_down_seconds": 50.0, "retry_after_seconds": 30.0,
                        "failures_in_a_row": 1,
                        "last_failure": {"kind": "quota", "message": "Quota", "seconds_ago": 10.0}});
    assert_eq!(states, json!([healthy("a"), unhealthy, healthy("c")]));
}

#[test]
fn what_the_caches_served_is_counted_by_model() {
    let gateway = Gateway::new(Ok(three_models()));
    assert_eq!(gateway.cache().total, CacheUse::default());
    let tokens = |input, cache_read, cache_write| TokenUsage {
        input,
        cache_read,
        cache_write,
        ..TokenUsage::default()
    };
    gateway.record_outcome(&route(&gateway, "a"), Ok(&tokens(100, 0, 90)), SECOND);
    gateway.record_outcome(&route(&gateway, "a"), Ok(&tokens(100, 90, 10)), SECOND);
    gateway.record_outcome(&route(&gateway, "b"), Ok(&tokens(0, 0, 0)), SECOND);
    gateway.record_outcome(&route(&gateway, "b"), Err(&error(ModelErrorKind::Busy)), SECOND);
    let counts = |calls, input_tokens, cache_read_tokens, cache_write_tokens, share| CacheUse {
        calls,
        input_tokens,
        cache_read_tokens,
        cache_write_tokens,
        share,
    };
    let state = gateway.cache();
    assert_eq!(state.total, counts(3, 200, 90, 100, Some(0.45)));
    assert_eq!(state.models["vendor-a"], counts(2, 200, 90, 100, Some(0.45)));
    assert_eq!(state.models["vendor-b"], counts(1, 0, 0, 0, None));
}
