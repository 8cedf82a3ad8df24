//! A product's calls for browsers, and a page that has a token.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::http::{client, path_segment, send};
use super::{Engine, HttpResponse, Product};

/// The fields of a token.
pub(crate) const TOKEN: &str = "token_id:text engine_id:engine scopes:array task_id:text|null issued_at:time \
                                expires_at:time revoked_at:time|null";

/// A page with a token: it talks to an engine through the orchestrator or directly.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) base: String,
    pub(crate) token: String,
    pub(crate) token_id: String,
}

fn tokens_path(user: &str) -> String {
    format!("/engines/{}/tokens", path_segment(user))
}

impl Product {
    /// Mints a token.
    pub(crate) async fn mint(&self, user: &str, request: Value) -> HttpResponse {
        self.call(Method::POST, &tokens_path(user), Some(request)).await
    }

    /// A page at the orchestrator whose token has these scopes, for one task or for all.
    pub(crate) async fn page(&self, user: &str, scopes: &[&str], task: Option<&str>) -> Page {
        let minted = self.mint(user, json!({"scopes": scopes, "task_id": task})).await;
        let minted = minted.assert_ok(&format!("token:text {TOKEN}"));
        let text = |name: &str| minted[name].as_str().unwrap().to_owned();
        let base = format!("{}{}", self.base, Self::proxy_path(user, ""));
        Page { base, token: text("token"), token_id: text("token_id") }
    }

    /// The tokens of a user's engine.
    pub(crate) async fn tokens(&self, user: &str, query: &str) -> Vec<Value> {
        let path = format!("{}{query}", tokens_path(user));
        let list = self.call(Method::GET, &path, None).await.assert_ok("tokens:array");
        list["tokens"].as_array().unwrap().clone()
    }

    pub(crate) async fn revoke_token(&self, user: &str, token_id: &str) -> HttpResponse {
        self.call(Method::DELETE, &format!("{}/{token_id}", tokens_path(user)), None).await
    }

    /// Revokes a page's token; returns whether the engine refuses it already.
    pub(crate) async fn revoke(&self, user: &str, page: &Page) -> bool {
        let revoked =
            self.revoke_token(user, &page.token_id).await.assert_ok(&format!("in_force:bool {TOKEN}"));
        assert!(revoked["revoked_at"].is_string(), "{revoked}");
        revoked["in_force"].as_bool().unwrap()
    }

    pub(crate) async fn set_origins(&self, origins: Value) -> HttpResponse {
        self.call(Method::PUT, "/origins", Some(json!({"origins": origins}))).await
    }
}

impl Page {
    /// The same page, which talks to the engine directly.
    pub(crate) fn directly_to(&self, engine: &Engine) -> Self {
        Self { base: engine.url.clone(), ..self.clone() }
    }

    /// The same page with another token.
    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { token: token.to_owned(), ..self.clone() }
    }

    /// A request with the token.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        client().request(method, format!("{}{path}", self.base)).bearer_auth(&self.token)
    }

    pub(crate) async fn get(&self, path: &str) -> HttpResponse {
        send(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> HttpResponse {
        send(self.request(Method::POST, path).json(body)).await
    }
}
