//! Hostile requests: whatever is wrong with a request, the response is no server error and uses the error
//! envelope.

mod bodies;
mod paths;
mod raw;
mod requests;

use std::collections::BTreeMap;

use api::ErrorCode;
use api::audit::AuditList;
use api::audit_webhooks::{AuditWebhook, AuditWebhookList, CreatedAuditWebhook};
use api::backup::{BackupList, BackupStatus};
use api::browser::{AllowedOrigins, MintedToken, RevokedToken, TokenList};
use api::drift::{Drift, DriftRepairs};
use api::fleet::{
    DrainProgress, DrainStatus, FleetAuditList, FleetEngineList, FleetOverview, StartedEngines,
};
use api::inbox::Inbox;
use api::log_filter::LogFilter;
use api::maintenance::MaintenanceStatus;
use api::metrics::{FleetStatus, Metrics};
use api::orchestrator::{
    Admission, DestroyedEngine, EngineList, EngineLogs, EngineRecord, Explanation, Health, ProductList,
    ProvisionedEngine, RegisteredProduct, ReplacedPolicy, RotatedKey, StartedEngine, StoppedEngine,
};
use api::product_keys::{CreatedPlatformKey, PlatformKeyList, RevokedPlatformKey};
use api::product_state::{DeletionPlan, ProductDetails};
use api::rollout::{Rollout, RolloutList};
use api::usage_days::{FleetUsage, ProductUsage};
use api::version::{ChangedVersion, MovedEngines, VersionList};
use axum::body::to_bytes;
use axum::extract::MatchedPath;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use self::paths::escaped;
use self::requests::{Deployment, HostileRequest, REFUSES_OTHERS, request_for};
use crate::testing::{ADMIN_KEY, ProductClient, TestApp, api_operations};

/// The maximum length of an error message, because people read it, however long the request was.
const MAX_MESSAGE_CHARS: usize = 1_000;

/// The number of engines of the test's product above which all are removed, so that others can be provisioned.
const MAX_ENGINES: i64 = 40;

/// Counts of the requests for one operation, by how far they got.
#[derive(Clone, Copy, Default)]
struct RequestCounts {
    sent: usize,
    /// Requests that matched the route and passed authentication, if it requires any.
    authenticated: usize,
    /// Requests that were also well-formed, so that the handler ran.
    handled: usize,
    succeeded: usize,
}

/// Parses an error response, and checks the envelope, the headers and the message.
fn parse_error_response(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Result<ErrorCode, String> {
    let body: Value = serde_json::from_slice(body).map_err(|_| "not JSON")?;
    let error = body["error"].as_object().ok_or("no error envelope")?;
    if body.as_object().map(serde_json::Map::len) != Some(1) || error.len() != 2 {
        return Err("missing or additional fields in the envelope".to_owned());
    }
    let code: ErrorCode = serde_json::from_value(error["code"].clone()).map_err(|_| "an unknown code")?;
    if code.status() != status.as_u16() {
        return Err(format!("{code:?} with {status}"));
    }
    if headers.get("content-type").is_none_or(|kind| kind != "application/json") {
        return Err("another content type".to_owned());
    }
    if (code == ErrorCode::MethodNotAllowed) != headers.contains_key("allow") {
        return Err("`Allow` without 405, or 405 without `Allow`".to_owned());
    }
    let message = error["message"].as_str().ok_or("the message is not a string")?;
    if message.is_empty() || message.len() > MAX_MESSAGE_CHARS {
        return Err(format!("a message of {} bytes", message.len()));
    }
    if ["pk-svc-", "sk-svc-", ADMIN_KEY, "provider secret"].iter().any(|secret| message.contains(secret)) {
        return Err("a key in the message".to_owned());
    }
    Ok(code)
}

/// Whether `body` has the type that the contract defines for `method` on `route`.
fn matches_contract_type(method: &str, route: &str, body: &[u8]) -> bool {
    fn parses_as<T: DeserializeOwned>(body: &[u8]) -> bool {
        serde_json::from_slice::<T>(body).is_ok()
    }
    match (method, route) {
        ("GET", "/health") => parses_as::<Health>(body),
        ("GET", "/products") => parses_as::<ProductList>(body),
        ("POST", "/products/register") => parses_as::<RegisteredProduct>(body),
        ("PUT", "/products/{product_id}/policy") => parses_as::<ReplacedPolicy>(body),
        ("GET", "/products/{product_id}/keys") => parses_as::<PlatformKeyList>(body),
        ("POST", "/products/{product_id}/keys") => parses_as::<CreatedPlatformKey>(body),
        ("DELETE", "/products/{product_id}/keys/{key_id}") => parses_as::<RevokedPlatformKey>(body),
        ("GET" | "DELETE", "/products/{product_id}")
        | ("POST", "/products/{product_id}/disable" | "/products/{product_id}/enable") => {
            parses_as::<ProductDetails>(body)
        }
        ("GET", "/products/{product_id}/deletion") => parses_as::<DeletionPlan>(body),
        ("GET", "/admin/versions") => parses_as::<VersionList>(body),
        ("POST", "/admin/versions/move") => parses_as::<MovedEngines>(body),
        ("GET", "/engines") => parses_as::<EngineList>(body),
        ("PUT", "/engines/{user_id}/version") => parses_as::<ChangedVersion>(body),
        ("POST", "/engines/provision") => parses_as::<ProvisionedEngine>(body),
        ("GET", "/engines/{user_id}") => parses_as::<EngineRecord>(body),
        ("DELETE", "/engines/{user_id}") => parses_as::<DestroyedEngine>(body),
        ("POST", "/engines/{user_id}/admit") => parses_as::<Admission>(body),
        ("POST", "/engines/{user_id}/start") => parses_as::<StartedEngine>(body),
        ("POST", "/engines/{user_id}/stop") => parses_as::<StoppedEngine>(body),
        ("POST", "/engines/{user_id}/rotate-key") => parses_as::<RotatedKey>(body),
        ("GET", "/engines/{user_id}/explain") => parses_as::<Explanation>(body),
        ("GET", "/engines/{user_id}/logs") => parses_as::<EngineLogs>(body),
        ("POST", "/engines/{user_id}/tokens") => parses_as::<MintedToken>(body),
        ("GET", "/engines/{user_id}/tokens") => parses_as::<TokenList>(body),
        ("DELETE", "/engines/{user_id}/tokens/{token_id}") => parses_as::<RevokedToken>(body),
        ("GET", "/inbox") => parses_as::<Inbox>(body),
        ("GET", "/usage") => parses_as::<ProductUsage>(body),
        ("GET", "/fleet/usage") => parses_as::<FleetUsage>(body),
        ("GET" | "PUT", "/origins") => parses_as::<AllowedOrigins>(body),
        ("GET", "/webhooks") => parses_as::<AuditWebhookList>(body),
        ("POST", "/webhooks") => parses_as::<CreatedAuditWebhook>(body),
        ("GET" | "PATCH", "/webhooks/{webhook_id}") | ("POST", "/webhooks/{webhook_id}/replay") => {
            parses_as::<AuditWebhook>(body)
        }
        ("GET", "/audit") => parses_as::<AuditList>(body),
        ("GET", "/status") => parses_as::<FleetStatus>(body),
        ("GET", "/fleet/engines") => parses_as::<FleetEngineList>(body),
        ("POST", "/fleet/start-failed") => parses_as::<StartedEngines>(body),
        ("GET", "/fleet/drift") => parses_as::<Drift>(body),
        ("POST", "/fleet/drift/repair") => parses_as::<DriftRepairs>(body),
        ("GET", "/fleet/drain") => parses_as::<DrainProgress>(body),
        ("GET" | "DELETE", "/fleet/maintenance") => parses_as::<MaintenanceStatus>(body),
        ("DELETE", "/fleet/drain") => parses_as::<DrainStatus>(body),
        ("GET", "/fleet/rollouts") => parses_as::<RolloutList>(body),
        ("POST", "/fleet/rollouts") => parses_as::<Rollout>(body),
        ("GET" | "PUT" | "DELETE", "/fleet/log-filter" | "/engines/{user_id}/log-filter") => {
            parses_as::<LogFilter>(body)
        }
        ("GET" | "POST", "/fleet/backups") => parses_as::<BackupStatus>(body),
        ("GET", "/fleet/backups/list") => parses_as::<BackupList>(body),
        ("GET", "/fleet/audit") => parses_as::<FleetAuditList>(body),
        ("GET", "/fleet/status") => parses_as::<FleetOverview>(body),
        ("GET", "/metrics") => parses_as::<Metrics>(body),
        // Neither is JSON: a page, and lines of text.
        ("GET", "/") => body.starts_with(b"<!doctype html>"),
        ("GET", "/metrics/prometheus") => body.ends_with(b"# EOF\n"),
        _ => false,
    }
}

/// Checks a response, and counts it.
async fn check_response(
    request: &HostileRequest,
    response: Response,
    counts: &mut RequestCounts,
) -> Result<(), String> {
    let route = response.extensions().get::<MatchedPath>().map(|route| route.as_str().to_owned());
    let (parts, body) = response.into_parts();
    let (status, headers) = (parts.status, parts.headers);
    counts.sent += 1;
    if headers.get("x-request-id").is_none_or(|id| id.is_empty() || !id.as_bytes().is_ascii())
        || headers.get("traceparent").is_none_or(|trace| trace.len() != 55)
    {
        return Err("no request id or trace context".to_owned());
    }
    let reached_route =
        request.operation.method == request.method && route.as_deref() == Some(&request.operation.path);
    // The simulated engines do not answer proxied requests.
    let proxied = status == StatusCode::BAD_GATEWAY && request.operation.path.contains("/proxy/");
    // There is one backup job at a time.
    let occupied =
        status == StatusCode::SERVICE_UNAVAILABLE && request.operation.path.starts_with("/fleet/backups");
    if status.as_u16() >= 500 && !proxied && !occupied {
        return Err(format!("a server error: {status}"));
    }
    let code = match (status.is_success(), request.method) {
        // It has no body.
        (_, "HEAD") => return Ok(()),
        (true, "GET") if matches!(route.as_deref(), Some("/events" | "/fleet/events")) => {
            // It does not end.
            assert_eq!(headers["content-type"], "text/event-stream");
            None
        }
        (success, method) => {
            let body = to_bytes(body, usize::MAX).await.map_err(|error| error.to_string())?;
            let message = |problem: &str| format!("{problem}: {status} with {}", body.escape_ascii());
            if success && !matches_contract_type(method, route.as_deref().unwrap_or_default(), &body) {
                return Err(message("not the documented type"));
            }
            let refusal = (!success).then(|| parse_error_response(status, &headers, &body)).transpose();
            refusal.map_err(|problem| message(&problem))?
        }
    };
    let unauthenticated =
        [Some(ErrorCode::InvalidPlatformKey), Some(ErrorCode::InvalidAdminKey)].contains(&code);
    let malformed = [Some(ErrorCode::InvalidRequest), Some(ErrorCode::PayloadTooLarge)].contains(&code);
    counts.authenticated += usize::from(reached_route && !unauthenticated);
    counts.handled += usize::from(reached_route && !unauthenticated && !malformed);
    counts.succeeded += usize::from(reached_route && code.is_none());
    Ok(())
}

/// Removes all engines if there are more than [`MAX_ENGINES`].
async fn prune_engines(product: &ProductClient<'_>) {
    let (_, list) = product.get_path("/engines?limit=1000").await;
    if list["total"].as_i64().unwrap() <= MAX_ENGINES {
        return;
    }
    for engine in list["engines"].as_array().unwrap() {
        let user = escaped(engine["user_id"].as_str().unwrap().as_bytes());
        assert_eq!(product.delete(&user).await.0, 200, "{engine}");
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "the shares are printed for runs with --nocapture")]
fn no_request_brings_the_service_to_fail_or_leaves_the_envelope() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let app = runtime.block_on(TestApp::with_backups());
    // By default a quick run with a fixed seed; PROPTEST_CASES makes it longer and random.
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let config = ProptestConfig {
        cases: cases.unwrap_or(1_500),
        rng_seed: if cases.is_some() { RngSeed::Random } else { RngSeed::Fixed(4) },
        max_shrink_iters: 300,
        max_flat_map_regens: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let (product, deployment) = runtime.block_on(async {
        let target = app.register_product("target", json!({})).await;
        let product = app.register_product("demo", json!({})).await;
        let product_id = target.product_id().await;
        let deployment = Deployment { platform_key: product.key.clone(), admin_key: ADMIN_KEY, product_id };
        (product, deployment)
    });
    let counts = std::cell::RefCell::new(BTreeMap::<String, RequestCounts>::new());
    let requests = prop::strategy::Union::new(
        // A drain or a maintenance would refuse what the other requests are for.
        api_operations()
            .iter()
            .filter(|operation| {
                !REFUSES_OTHERS.contains(&operation.path.as_str()) || operation.method == "GET"
            })
            .map(request_for),
    );
    proptest!(config, |(request in requests)| {
        let operation = format!("{} {}", request.operation.method, request.operation.path);
        let mut counts = counts.borrow_mut();
        let counts = counts.entry(operation).or_default();
        let checked = runtime.block_on(async {
            if counts.sent.is_multiple_of(20) {
                prune_engines(&product).await;
            }
            let response = app.router().oneshot(request.request(&deployment)).await.unwrap();
            check_response(&request, response, counts).await
        });
        checked.map_err(TestCaseError::fail)?;
    });
    let mut rarely_handled = Vec::new();
    for (operation, RequestCounts { sent, authenticated, handled, succeeded }) in counts.into_inner() {
        let share = |count: usize| 100 * count / sent;
        println!(
            "{operation:50} {sent:5} sent, {:3} % authenticated, {:3} % handled, {:3} % succeeded",
            share(authenticated),
            share(handled),
            share(succeeded)
        );
        // The ids of tokens are random, and the simulated engines do not answer proxied requests.
        let can_succeed = !operation.contains("/proxy/")
            && !operation.contains("{token_id}")
            && !operation.contains("{key_id}")
            && !operation.contains("{webhook_id}")
            && !operation.contains("{rollout_id}");
        // Most have no confirmation, and none the right one.
        let is_confirmed = operation == "DELETE /products/{product_id}";
        if !is_confirmed && (share(handled) < 50 || (succeeded == 0 && can_succeed)) {
            rarely_handled.push(operation);
        }
    }
    assert!(rarely_handled.is_empty(), "too few requests reach the handlers of {rarely_handled:?}");
    runtime.block_on(async {
        app.assert_consistent().await;
        app.assert_hash_chain().await;
    });
}
