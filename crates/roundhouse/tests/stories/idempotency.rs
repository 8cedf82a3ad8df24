//! A call that is sent again with its `Idempotency-Key` is executed once, and answered as the first time.

use futures::future::join_all;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::support::http::{client, send, send_raw};
use crate::support::{Deployment, HttpResponse, Orchestrator, Product, eventually};

/// Who makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Product,
    Operator,
}
use Caller::{Operator, Product as OfProduct};

/// A call that changes something.
#[derive(Clone, Debug)]
pub(crate) struct Mutation {
    pub(crate) caller: Caller,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Value,
}

impl Mutation {
    pub(crate) fn new(caller: Caller, method: Method, path: impl Into<String>, body: Value) -> Self {
        Self { caller, method, path: path.into(), body }
    }

    /// The request with this key.
    pub(crate) fn request(
        &self,
        orchestrator: &Orchestrator,
        product: &Product,
        key: &str,
    ) -> RequestBuilder {
        let request = client().request(self.method.clone(), format!("{}{}", orchestrator.base, self.path));
        let request = match self.caller {
            OfProduct => request.header("x-platform-key", &product.key),
            Operator => request.header("x-admin-key", &orchestrator.admin_key),
        };
        let request = request.header("idempotency-key", key);
        if self.body.is_null() { request } else { request.json(&self.body) }
    }
}

/// Whether an answer was given before.
pub(crate) fn is_replayed(answer: &HttpResponse) -> bool {
    answer.header("idempotency-replayed") == Some("true")
}

pub(crate) async fn product_id(product: &Product) -> String {
    let audit = product.call(Method::GET, "/audit?limit=1", None).await.body;
    audit["rows"][0]["product_id"].as_str().unwrap().to_owned()
}

/// The number of rows of the product's audit log.
async fn rows(product: &Product) -> u64 {
    product.call(Method::GET, "/audit?limit=1", None).await.body["rows"][0]["id"].as_u64().unwrap()
}

/// Sends a call three times at once and once more, checks that it was executed once, and returns the answer.
async fn send_often(
    orchestrator: &Orchestrator,
    product: &Product,
    mutation: &Mutation,
    rows_written: u64,
) -> Value {
    let (what, key) = (format!("{} {}", mutation.method, mutation.path), uuid::Uuid::now_v7().to_string());
    let before = rows(product).await;
    let request = || send(mutation.request(orchestrator, product, &key));
    let mut answers = join_all([(); 3].map(|()| request())).await;
    answers.push(request().await);
    for answer in &answers {
        assert_eq!((answer.status, &answer.body), (200, &answers[0].body), "{what}");
    }
    assert_eq!(answers.iter().filter(|answer| !is_replayed(answer)).count(), 1, "{what}");
    assert!(is_replayed(&answers[3]), "{what}");
    assert_eq!(rows(product).await - before, rows_written, "{what}");
    answers.swap_remove(0).body
}

#[tokio::test]
async fn every_kind_of_call_is_executed_once_however_often_it_is_sent() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let id = product_id(&product).await;
    let often = async |caller, method: Method, path: String, body: Value, rows: u64| {
        send_often(&orchestrator, &product, &Mutation::new(caller, method, path, body), rows).await
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();

    let other = json!({"slug": "other", "display_name": "Other"});
    let other = often(Operator, Method::POST, "/products/register".into(), other, 0).await;
    let other = Product::new(&orchestrator.base, &text(&other["platform_api_key"]));
    assert_eq!(other.list("").await.1, 0);
    let policy = json!({"policy": {"max_engines": 2}});
    often(Operator, Method::PUT, format!("/products/{id}/policy"), policy, 1).await;
    let created = often(Operator, Method::POST, format!("/products/{id}/keys"), json!({}), 1).await;
    assert_eq!(Product::new(&orchestrator.base, &text(&created["platform_api_key"])).list("").await.1, 0);
    let path = format!("/products/{id}/keys/{}", text(&created["key_id"]));
    often(Operator, Method::DELETE, path, Value::Null, 1).await;

    let user = json!({"user_id": "ada"});
    let engine = often(OfProduct, Method::POST, "/engines/provision".into(), user, 1).await;
    assert_eq!(product.list("").await.1, 1);
    often(OfProduct, Method::POST, "/engines/ada/stop".into(), Value::Null, 1).await;
    assert_eq!(product.status("ada").await, "stopped");
    often(OfProduct, Method::POST, "/engines/ada/start".into(), Value::Null, 1).await;
    let rotated = often(OfProduct, Method::POST, "/engines/ada/rotate-key".into(), Value::Null, 1).await;
    assert_ne!(rotated["new_api_key"], engine["api_key"]);
    assert_eq!(product.get("ada").await.body["api_key"], rotated["new_api_key"]);
    product.engine("ada").await.health().await;
    let scopes = json!({"scopes": ["chat"]});
    let token = often(OfProduct, Method::POST, "/engines/ada/tokens".into(), scopes, 1).await;
    let path = format!("/engines/ada/tokens/{}", text(&token["token_id"]));
    often(OfProduct, Method::DELETE, path, Value::Null, 1).await;
    let origins = json!({"origins": ["https://app.example"]});
    often(OfProduct, Method::PUT, "/origins".into(), origins, 1).await;

    let url = json!({"url": "https://product.invalid/rows"});
    let webhook = often(OfProduct, Method::POST, "/webhooks".into(), url, 1).await;
    let path = format!("/webhooks/{}", text(&webhook["webhook_id"]));
    often(OfProduct, Method::PATCH, path.clone(), json!({"paused": true}), 1).await;
    often(OfProduct, Method::POST, format!("{path}/secret"), Value::Null, 1).await;
    often(OfProduct, Method::DELETE, path, Value::Null, 1).await;

    often(Operator, Method::PUT, "/fleet/maintenance".into(), json!({"message": "Back at noon."}), 0).await;
    often(Operator, Method::DELETE, "/fleet/maintenance".into(), Value::Null, 0).await;
    often(OfProduct, Method::DELETE, "/engines/ada".into(), Value::Null, 1).await;
    assert_eq!(product.list("").await.1, 0);
}

#[tokio::test]
async fn a_key_belongs_to_one_request_and_to_one_caller() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let other = orchestrator.register("bank", json!({})).await;
    let provision =
        |user: &str| Mutation::new(OfProduct, Method::POST, "/engines/provision", json!({"user_id": user}));
    let ada = send(provision("ada").request(&orchestrator, &product, "key")).await;
    assert_eq!((ada.status, is_replayed(&ada)), (200, false), "{ada:?}");
    let eve = send(provision("eve").request(&orchestrator, &product, "key")).await;
    eve.assert_error(422, "IDEMPOTENCY_KEY_REUSED");
    let of_other = send(provision("ada").request(&orchestrator, &other, "key")).await;
    assert_eq!((of_other.status, is_replayed(&of_other)), (200, false), "{of_other:?}");
    assert_ne!(of_other.body["api_key"], ada.body["api_key"]);
    let again = send(provision("ada").request(&orchestrator, &product, "key")).await;
    assert_eq!((is_replayed(&again), again.body), (true, ada.body));

    // What is no key, byte by byte.
    let (platform_key, long) = (product.key.as_str(), "k".repeat(256));
    for key in ["", "a b", "\u{7f}", "ü", "a\tb", &long] {
        let headers = [("x-platform-key", platform_key), ("idempotency-key", key)];
        let refused =
            send_raw(&orchestrator.base, "POST /engines/provision", &headers, br#"{"user_id":"eve"}"#).await;
        refused.assert_error(400, "INVALID_REQUEST");
    }
    assert_eq!((product.list("").await.1, other.list("").await.1), (1, 1));
}

#[tokio::test]
async fn a_caller_who_hangs_up_finds_the_answer_later() {
    let deployment = Deployment::new();
    let (orchestrator, product) = deployment.start_with_product().await;
    let provision = Mutation::new(OfProduct, Method::POST, "/engines/provision", json!({"user_id": "ada"}));
    let request = provision.request(&orchestrator, &product, "key");
    let hung_up = tokio::spawn(request.send());
    eventually("the engine is being provisioned", async || {
        (product.get("ada").await.status == 200).then_some(())
    })
    .await;
    hung_up.abort();
    let answer = send(provision.request(&orchestrator, &product, "key")).await;
    assert_eq!((answer.status, is_replayed(&answer)), (200, true), "{answer:?}");
    assert_eq!(answer.body["api_key"], product.get("ada").await.body["api_key"]);
    assert_eq!(product.audit_rows("provision").await.len(), 1);
}
