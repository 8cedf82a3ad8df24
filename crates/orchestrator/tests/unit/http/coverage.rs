//! The coverage gate: the scenarios make every route return every response that the document lists, including a
//! success and the refusals of an invalid key and an invalid request. The document lists what the contract
//! requires.

mod scenarios;

use std::collections::{BTreeMap, BTreeSet};

use api::ErrorCode;
use pretty_assertions::assert_eq;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::super::proxy::ProxyClient;
use super::super::{AppState, router_without_middleware};
use crate::testing::{ADMIN_KEY, ApiOperation, RecordedResponse, TestApp, api_operations};

/// Returns a message for each response that an operation must have returned but did not, or that is not
/// documented.
fn missing_answers(recorded: &BTreeSet<RecordedResponse>) -> Vec<String> {
    let mut messages = Vec::new();
    for operation in api_operations() {
        let ApiOperation { method, path, .. } = operation;
        let answers: BTreeSet<_> = recorded
            .iter()
            .filter(|response| response.path == *path && response.method == *method)
            .map(|response| (response.status, response.code.clone()))
            .collect();
        let mut required = operation.responses.clone();
        required.extend(operation.invalid_key_code.map(|code| (401, Some(name(code)))));
        if operation.has_input {
            required.insert((400, Some(name(ErrorCode::InvalidRequest))));
        }
        // It takes half a minute of silence, and is the same for all bodies: `http_service` tests it.
        required.remove(&(408, Some(name(ErrorCode::RequestTimeout))));
        messages.extend(required.difference(&answers).map(|(status, code)| {
            format!("{method} {path} never gave {status} {}", code.as_deref().unwrap_or_default())
        }));
        if !answers.iter().any(|(status, _)| (200..300).contains(status)) {
            messages.push(format!("{method} {path} never succeeded"));
        }
        messages.extend(answers.difference(&operation.responses).map(|(status, code)| {
            format!("{method} {path} gave {status} {code:?}, which the document does not have")
        }));
    }
    messages
}

fn name(code: ErrorCode) -> String {
    serde_json::to_value(code).unwrap().as_str().unwrap().to_owned()
}

/// Formats the recorded responses, a line per operation.
fn table(recorded: &BTreeSet<RecordedResponse>) -> String {
    let mut lines = BTreeMap::<_, Vec<String>>::new();
    for RecordedResponse { path, method, status, code } in recorded {
        let answer = format!("{status} {}", code.as_deref().unwrap_or("-"));
        lines.entry(format!("{path} {method}")).or_default().push(answer);
    }
    let lines = lines.iter().map(|(operation, answers)| format!("{operation}: {}", answers.join(", ")));
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn every_route_has_given_every_answer_of_the_document() {
    let recorded = scenarios::all().await;
    let missing = missing_answers(&recorded);
    assert!(missing.is_empty(), "{}\n\nRecorded:\n{}", missing.join("\n"), table(&recorded));
    // The gate itself must fail if any one of these responses is missing, and if there is one more.
    for response in recorded.iter().filter(|response| response.code.as_deref() != Some("METHOD_NOT_ALLOWED"))
    {
        let mut fewer = recorded.clone();
        fewer.remove(response);
        assert!(!missing_answers(&fewer).is_empty(), "the gate does not require {response:?}");
        let mut more = recorded.clone();
        more.insert(RecordedResponse { status: 418, code: Some("TEAPOT".to_owned()), ..response.clone() });
        assert!(
            !missing_answers(&more).is_empty(),
            "the gate accepts an undocumented response beside {response:?}"
        );
    }
}

/// Returns the paths of the router, parsed from its `Debug` output.
fn paths(router: &axum::Router) -> BTreeSet<String> {
    let debug = format!("{router:?}");
    let listed = debug.split("paths: {").nth(1).expect("the Debug output has changed");
    let listed = listed.split("RouteId(").skip(1);
    // Entries look like `0): "/health", `; other text follows the last path.
    listed.map_while(|entry| Some(entry.split_once("): \"")?.1.split_once('"')?.0.to_owned())).collect()
}

#[tokio::test]
async fn the_router_and_the_document_have_the_same_routes() {
    let app = TestApp::new().await;
    let admin_key = api::AdminKey::from_text(ADMIN_KEY.to_owned());
    let fleet = std::sync::Arc::clone(app.orchestrator.fleet());
    let router = router_without_middleware(AppState { fleet, admin_key, proxy_client: ProxyClient::new() });
    let mut served = BTreeSet::new();
    for path in paths(&router) {
        let request = axum::http::Request::builder().method("BREW").uri(path.replace(['{', '}', '*'], ""));
        let refused = router.clone().oneshot(request.body(axum::body::Body::empty()).unwrap()).await.unwrap();
        if path.contains("/proxy/") {
            // The proxy forwards every method, but authenticates first.
            assert_eq!(refused.status(), 401, "{path}");
            let documented = api_operations().iter().filter(|operation| operation.path == path);
            served.extend(documented.map(|operation| (path.clone(), operation.method.clone())));
            continue;
        }
        assert_eq!(refused.status(), 405, "{path}");
        let allowed = refused.headers()["allow"].to_str().unwrap();
        // HEAD comes with GET.
        let methods = allowed.split(',').filter(|method| *method != "HEAD");
        served.extend(methods.map(|method| (path.clone(), method.to_owned())));
    }
    for beside in ["/", "/openapi.json"].map(str::to_owned).into_iter().chain(pages::paths()) {
        assert!(served.remove(&(beside, "GET".to_owned())), "{served:?}");
    }
    let documented =
        api_operations().iter().map(|operation| (operation.path.clone(), operation.method.clone()));
    assert_eq!(served, documented.collect());
}

#[test]
fn an_operation_without_input_promises_no_refusal_of_it() {
    for ApiOperation { method, path, has_input, has_body, takes_key, responses: answers, .. } in
        api_operations()
    {
        let has = |status| answers.iter().any(|(answer, _)| *answer == status);
        assert_eq!(has(400), *has_input, "{method} {path}");
        // Whoever sends a key has the whole request compared, with a body that is not read otherwise.
        assert_eq!(has(413), *has_body || *takes_key, "{method} {path}");
    }
}

const KEY: &str = "INVALID_PLATFORM_KEY";
const ADMIN: &str = "INVALID_ADMIN_KEY";
const TOKEN: &str = "INVALID_TOKEN";
const EXPIRED: &str = "TOKEN_EXPIRED";
const REVOKED: &str = "TOKEN_REVOKED";
const DENIED: &str = "POLICY_DENIED";
const NOT_FOUND: &str = "ENGINE_NOT_FOUND";
const NOT_RUNNING: &str = "ENGINE_NOT_RUNNING";
const BACKEND: &str = "BACKEND_ERROR";
const NO_WEBHOOK: &str = "WEBHOOK_NOT_FOUND";
const NO_ROLLOUT: &str = "ROLLOUT_NOT_FOUND";

/// Every endpoint, including the extensions, with the codes that the contract lists for it or that its general
/// rules imply.
const CONTRACT: [(&str, &str, &[&str]); 82] = [
    ("GET", "/health", &[]),
    ("POST", "/products/register", &[ADMIN, "PRODUCT_SLUG_EXISTS"]),
    ("PUT", "/products/{product_id}/policy", &[ADMIN, "PRODUCT_NOT_FOUND"]),
    ("GET", "/products/{product_id}", &[ADMIN, "PRODUCT_NOT_FOUND"]),
    ("POST", "/products/{product_id}/disable", &[ADMIN, "PRODUCT_NOT_FOUND", "PRODUCT_DELETING"]),
    ("POST", "/products/{product_id}/enable", &[ADMIN, "PRODUCT_NOT_FOUND", "PRODUCT_DELETING"]),
    (
        "GET",
        "/products/{product_id}/deletion",
        &[ADMIN, "PRODUCT_NOT_FOUND", "PRODUCT_NOT_DISABLED", "PRODUCT_DELETING"],
    ),
    (
        "DELETE",
        "/products/{product_id}",
        &[ADMIN, "PRODUCT_NOT_FOUND", "PRODUCT_NOT_DISABLED", "CONFIRMATION_INVALID"],
    ),
    ("GET", "/products/{product_id}/keys", &[ADMIN, "PRODUCT_NOT_FOUND"]),
    ("POST", "/products/{product_id}/keys", &[ADMIN, "PRODUCT_NOT_FOUND", "KEY_LIMIT"]),
    ("DELETE", "/products/{product_id}/keys/{key_id}", &[ADMIN, "PRODUCT_NOT_FOUND", "KEY_NOT_FOUND"]),
    (
        "POST",
        "/engines/provision",
        &[KEY, DENIED, "ENGINE_ALREADY_EXISTS", "QUOTA_EXCEEDED", BACKEND, "PORT_EXHAUSTION", "BOOT_TIMEOUT"],
    ),
    ("DELETE", "/engines/{user_id}", &[KEY, DENIED, NOT_FOUND, BACKEND]),
    (
        "POST",
        "/engines/{user_id}/start",
        &[KEY, DENIED, NOT_FOUND, "ENGINE_ALREADY_RUNNING", BACKEND, "PORT_EXHAUSTION", "BOOT_TIMEOUT"],
    ),
    ("POST", "/engines/{user_id}/stop", &[KEY, DENIED, NOT_FOUND, NOT_RUNNING, BACKEND]),
    ("POST", "/engines/{user_id}/rotate-key", &[KEY, DENIED, NOT_FOUND, NOT_RUNNING, BACKEND]),
    ("GET", "/engines/{user_id}", &[KEY, NOT_FOUND]),
    (
        "POST",
        "/engines/{user_id}/admit",
        &[KEY, DENIED, "RATE_LIMITED", "QUOTA_EXCEEDED", BACKEND, "PORT_EXHAUSTION", "BOOT_TIMEOUT"],
    ),
    ("GET", "/engines", &[KEY]),
    ("GET", "/status", &[KEY]),
    ("GET", "/metrics", &[KEY]),
    // Extensions.
    ("GET", "/products", &[ADMIN]),
    ("GET", "/metrics/prometheus", &[ADMIN]),
    ("GET", "/admin/versions", &[ADMIN]),
    ("POST", "/admin/versions/move", &[ADMIN]),
    (
        "PUT",
        "/engines/{user_id}/version",
        &[KEY, DENIED, NOT_FOUND, BACKEND, "PORT_EXHAUSTION", "BOOT_TIMEOUT"],
    ),
    ("GET", "/fleet/engines", &[ADMIN]),
    ("GET", "/fleet/status", &[ADMIN]),
    ("GET", "/fleet/audit", &[ADMIN]),
    ("GET", "/fleet/events", &[ADMIN]),
    ("POST", "/fleet/start-failed", &[ADMIN]),
    ("POST", "/fleet/drain", &[ADMIN]),
    ("GET", "/fleet/drain", &[ADMIN]),
    ("DELETE", "/fleet/drain", &[ADMIN]),
    ("GET", "/fleet/drift", &[ADMIN, BACKEND]),
    ("POST", "/fleet/drift/repair", &[ADMIN, BACKEND]),
    ("GET", "/fleet/log-filter", &[ADMIN]),
    ("PUT", "/fleet/log-filter", &[ADMIN]),
    ("DELETE", "/fleet/log-filter", &[ADMIN]),
    ("GET", "/engines/{user_id}/log-filter", &[KEY, NOT_FOUND, NOT_RUNNING, BACKEND]),
    ("PUT", "/engines/{user_id}/log-filter", &[KEY, DENIED, NOT_FOUND, NOT_RUNNING, BACKEND]),
    ("DELETE", "/engines/{user_id}/log-filter", &[KEY, DENIED, NOT_FOUND, NOT_RUNNING, BACKEND]),
    ("GET", "/fleet/maintenance", &[ADMIN]),
    ("PUT", "/fleet/maintenance", &[ADMIN]),
    ("DELETE", "/fleet/maintenance", &[ADMIN]),
    ("GET", "/fleet/rollouts", &[ADMIN]),
    ("POST", "/fleet/rollouts", &[ADMIN, "ROLLOUT_UNDER_WAY", BACKEND]),
    ("GET", "/fleet/rollouts/{rollout_id}", &[ADMIN, NO_ROLLOUT]),
    ("GET", "/fleet/rollouts/{rollout_id}/engines", &[ADMIN, NO_ROLLOUT]),
    ("POST", "/fleet/rollouts/{rollout_id}/pause", &[ADMIN, NO_ROLLOUT, "ROLLOUT_OVER"]),
    ("POST", "/fleet/rollouts/{rollout_id}/resume", &[ADMIN, NO_ROLLOUT, "ROLLOUT_OVER"]),
    ("POST", "/fleet/rollouts/{rollout_id}/rollback", &[ADMIN, NO_ROLLOUT, "ROLLOUT_OVER"]),
    ("POST", "/fleet/backups", &[ADMIN, NOT_FOUND, BACKEND, "CAPACITY_EXHAUSTED"]),
    ("GET", "/fleet/backups", &[ADMIN]),
    ("GET", "/fleet/backups/list", &[ADMIN, NOT_FOUND, BACKEND]),
    ("GET", "/audit", &[KEY]),
    ("GET", "/events", &[KEY]),
    ("GET", "/webhooks", &[KEY]),
    ("POST", "/webhooks", &[KEY, DENIED, "WEBHOOK_LIMIT"]),
    ("GET", "/webhooks/{webhook_id}", &[KEY, NO_WEBHOOK]),
    ("PATCH", "/webhooks/{webhook_id}", &[KEY, DENIED, NO_WEBHOOK]),
    ("DELETE", "/webhooks/{webhook_id}", &[KEY, DENIED, NO_WEBHOOK]),
    ("POST", "/webhooks/{webhook_id}/secret", &[KEY, DENIED, NO_WEBHOOK]),
    ("POST", "/webhooks/{webhook_id}/replay", &[KEY, DENIED, NO_WEBHOOK]),
    ("GET", "/webhooks/{webhook_id}/dead-letters", &[KEY, NO_WEBHOOK]),
    ("POST", "/webhooks/{webhook_id}/dead-letters/retry", &[KEY, DENIED, NO_WEBHOOK]),
    ("POST", "/webhooks/{webhook_id}/dead-letters/discard", &[KEY, DENIED, NO_WEBHOOK]),
    ("GET", "/engines/{user_id}/explain", &[KEY, NOT_FOUND]),
    ("GET", "/engines/{user_id}/logs", &[KEY, NOT_FOUND, BACKEND]),
    ("POST", "/engines/{user_id}/tokens", &[KEY, DENIED, NOT_FOUND, "TOKEN_LIMIT"]),
    ("GET", "/engines/{user_id}/tokens", &[KEY, NOT_FOUND]),
    ("DELETE", "/engines/{user_id}/tokens/{token_id}", &[KEY, DENIED, NOT_FOUND, "TOKEN_NOT_FOUND"]),
    ("GET", "/origins", &[KEY]),
    ("GET", "/inbox", &[KEY]),
    ("GET", "/usage", &[KEY]),
    ("GET", "/fleet/usage", &[ADMIN]),
    ("PUT", "/origins", &[KEY, DENIED]),
    (
        "GET",
        "/engines/{user_id}/proxy/{*path}",
        &[KEY, TOKEN, EXPIRED, REVOKED, NOT_FOUND, NOT_RUNNING, BACKEND],
    ),
    (
        "POST",
        "/engines/{user_id}/proxy/{*path}",
        &[KEY, TOKEN, EXPIRED, REVOKED, DENIED, NOT_FOUND, NOT_RUNNING, BACKEND],
    ),
    (
        "PUT",
        "/engines/{user_id}/proxy/{*path}",
        &[KEY, TOKEN, EXPIRED, REVOKED, DENIED, NOT_FOUND, NOT_RUNNING, BACKEND],
    ),
    (
        "PATCH",
        "/engines/{user_id}/proxy/{*path}",
        &[KEY, TOKEN, EXPIRED, REVOKED, DENIED, NOT_FOUND, NOT_RUNNING, BACKEND],
    ),
    (
        "DELETE",
        "/engines/{user_id}/proxy/{*path}",
        &[KEY, TOKEN, EXPIRED, REVOKED, DENIED, NOT_FOUND, NOT_RUNNING, BACKEND],
    ),
];

/// The endpoints that a maintenance refuses.
const CHANGING: [(&str, &str); 6] = [
    ("POST", "/engines/provision"),
    ("POST", "/engines/{user_id}/admit"),
    ("POST", "/engines/{user_id}/start"),
    ("POST", "/engines/{user_id}/rotate-key"),
    ("PUT", "/engines/{user_id}/version"),
    ("DELETE", "/engines/{user_id}"),
];

/// The contract's codes with their status.
const CODES: [(&str, u16); 15] = [
    ("INVALID_PLATFORM_KEY", 401),
    ("INVALID_ADMIN_KEY", 401),
    ("PRODUCT_NOT_FOUND", 404),
    ("PRODUCT_SLUG_EXISTS", 409),
    ("ENGINE_NOT_FOUND", 404),
    ("ENGINE_ALREADY_EXISTS", 409),
    ("ENGINE_NOT_RUNNING", 409),
    ("ENGINE_ALREADY_RUNNING", 409),
    ("QUOTA_EXCEEDED", 429),
    ("RATE_LIMITED", 429),
    ("POLICY_DENIED", 403),
    ("PORT_EXHAUSTION", 503),
    ("BACKEND_ERROR", 502),
    ("BOOT_TIMEOUT", 504),
    ("INTERNAL_ERROR", 500),
];

#[test]
fn the_document_has_what_the_contract_lists() {
    let mut documented = BTreeSet::new();
    for (method, path, codes) in CONTRACT {
        let operation =
            api_operations().iter().find(|operation| operation.method == method && operation.path == path);
        let operation = operation.unwrap_or_else(|| panic!("{method} {path} is not in the document"));
        assert!(operation.responses.contains(&(200, None)), "{method} {path}");
        // Every endpoint may be called during the start, and those that read the registry may fail.
        let reads = !["/health", "/metrics/prometheus", "/fleet/log-filter"].contains(&path)
            && ![("GET", "/fleet/maintenance"), ("GET", "/fleet/backups")].contains(&(method, path));
        let general: &[&str] = if reads { &["STARTING_UP", "INTERNAL_ERROR"] } else { &["STARTING_UP"] };
        let operators: &[&str] = if operation.takes_operator { &[ADMIN, "PRODUCT_NOT_FOUND"] } else { &[] };
        let changes: &[&str] = if CHANGING.contains(&(method, path)) { &["MAINTENANCE"] } else { &[] };
        let disabled: &[&str] = if codes.contains(&KEY) { &["PRODUCT_DISABLED"] } else { &[] };
        // Every mutation can be repeated but an admit, which is one each time, and what goes to an engine.
        let repeatable = method != "GET" && !path.ends_with("/admit") && !path.ends_with("/proxy/{*path}");
        let repeated: &[&str] =
            if repeatable { &["IDEMPOTENCY_KEY_IN_USE", "IDEMPOTENCY_KEY_REUSED"] } else { &[] };
        assert_eq!(operation.takes_key, repeatable, "{method} {path}");
        let required = codes.iter().chain(general).chain(operators).chain(disabled).chain(changes);
        for code in required.chain(repeated) {
            let has = operation.responses.iter().any(|(_, answer)| answer.as_deref() == Some(*code));
            assert!(has, "{method} {path} does not have {code}");
            documented.insert(*code);
        }
    }
    assert_eq!(api_operations().len(), CONTRACT.len(), "the table lacks an operation");
    for (code, status) in CODES {
        let known: ErrorCode = serde_json::from_value(Value::from(code)).unwrap();
        assert_eq!((known.status(), json!(known)), (status, json!(code)));
        assert!(documented.contains(code), "no endpoint has {code}");
    }
}
