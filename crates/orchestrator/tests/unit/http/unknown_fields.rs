//! Unknown fields of every JSON body: the contract's endpoints ignore and name them, all others refuse them.

use serde_json::json;
use testkit::unknown_fields::{UNKNOWN, bodies};

use super::document;
use crate::testing::{ADMIN_KEY, TestApp};

/// The operations that ignore unknown fields, except within a policy: those that the contract describes. This list does
/// not grow: other operations refuse them.
const IGNORING: [&str; 4] = ["admit_user", "provision_engine", "register_product", "replace_product_policy"];

#[tokio::test]
async fn an_unknown_field_of_any_body_is_named_or_refused() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    let document = serde_json::to_value(document()).unwrap();
    let bodies = bodies(&document, &[], &[], &[]);
    assert!(bodies.len() > 9, "{} bodies", bodies.len());
    for body in &bodies {
        let keys = [("X-Platform-Key", product.key.as_str()), ("X-Admin-Key", ADMIN_KEY)];
        let (status, headers, answer) =
            app.send(&body.method, &body.path, &keys, &body.body.to_string()).await;
        let warning = headers.get("roundhouse-warning").map(|value| value.to_str().unwrap());
        if IGNORING.contains(&body.operation.as_str()) && !body.place.ends_with(".policy") {
            assert_eq!(
                warning,
                Some(format!("unknown fields: {}", body.field).as_str()),
                "{body:?}: {answer}"
            );
        } else {
            assert_eq!((status, &answer["error"]["code"], warning), (400, &json!("INVALID_REQUEST"), None));
            let message = answer["error"]["message"].as_str().unwrap();
            let named = format!("there is no field `{UNKNOWN}`; it must be ");
            assert!(message.contains(&named), "{body:?}: {message}");
        }
    }
}

#[tokio::test]
async fn a_token_is_not_minted_with_a_misspelled_restriction() {
    let app = TestApp::new().await;
    let product = app.register_product("demo", json!({})).await;
    product.provision("ann").await;
    for (body, named) in [
        (json!({"scopes": ["chat"], "taskId": "x"}), "taskId"),
        (json!({"scopes": ["chat"], "task_id": "x", "lifetime": 60}), "lifetime"),
    ] {
        let (status, answer) = product.call("POST", "/engines/ann/tokens", &body).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("INVALID_REQUEST")));
        let known = "it must be one of `scopes`, `task_id`, `lifetime_s`";
        assert_eq!(answer["error"]["message"], format!("there is no field `{named}`; {known}"));
    }
    assert_eq!(product.get_path("/engines/ann/tokens").await.1["tokens"], json!([]));
}
