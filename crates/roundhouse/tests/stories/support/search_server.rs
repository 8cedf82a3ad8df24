//! A fake of the search providers, which is as strict as they are: another method, parameter or key than theirs fails
//! the story. The story defines what it finds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::StandaloneEngine;

/// The key that the providers accept.
pub(crate) const SEARCH_KEY: &str = "search-k3y";
/// The providers that it can be.
pub(crate) const PROVIDERS: [&str; 4] = ["brave", "tavily", "searxng", "http"];

/// A fake search provider, which runs until this is dropped.
pub(crate) struct SearchServer {
    base: String,
    state: Arc<Mutex<SearchState>>,
    task: AbortHandle,
}

#[derive(Default)]
pub(crate) struct SearchState {
    /// What every search finds: `title`, `url`, `text` and `date`.
    pub(crate) results: Vec<Value>,
    /// The statuses with which the next searches fail.
    pub(crate) failures: VecDeque<u16>,
    /// Whether searches are not answered.
    pub(crate) holds: bool,
    /// What was searched for.
    pub(crate) searches: Vec<String>,
    /// What no provider would accept.
    pub(crate) violations: Vec<String>,
}

/// What a search finds.
pub(crate) fn result(title: &str, url: &str, text: &str) -> Value {
    json!({"title": title, "url": url, "text": text, "date": "2026-03-04"})
}

impl SearchServer {
    pub(crate) async fn start(results: Vec<Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(SearchState { results, ..SearchState::default() }));
        let router = Router::new().fallback(handle).with_state(Arc::clone(&state));
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { base, state, task: task.abort_handle() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, SearchState> {
        self.state.lock().unwrap()
    }

    /// What was searched for, without violations.
    #[track_caller]
    pub(crate) fn searches(&self) -> Vec<String> {
        let state = self.state();
        assert_eq!(state.violations, [""; 0]);
        state.searches.clone()
    }

    /// The entry of `web-search.json`.
    pub(crate) fn entry(&self, provider: &str) -> Value {
        let base = &self.base;
        match provider {
            "searxng" => json!({"provider": provider, "url": base}),
            "http" => json!({
                "provider": provider,
                "url": format!("{base}/own"),
                "method": "POST",
                "headers": {"X-Own-Key": "${OWN_SEARCH_KEY}"},
                "parameters": {"find": {"words": "{query}", "at_most": "{count}"}},
                "response": {"results": "/found/pages", "title": "/name", "url": "/at", "snippet": "/about",
                             "date": "/on"},
            }),
            vendor => {
                json!({"provider": vendor, "key": "${OWN_SEARCH_KEY}", "url": format!("{base}/{vendor}")})
            }
        }
    }

    /// Lets an engine search with it.
    pub(crate) fn configure(&self, setup: StandaloneEngine, provider: &str) -> StandaloneEngine {
        let file = json!({"providers": [self.entry(provider)]}).to_string();
        setup.with_env("OWN_SEARCH_KEY", SEARCH_KEY).with_catalog_file("web-search.json", &file)
    }
}

impl Drop for SearchServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn handle(State(state): State<Arc<Mutex<SearchState>>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let url = reqwest::Url::parse(&format!("http://host{}", head.uri)).unwrap();
    let query: BTreeMap<String, String> = url.query_pairs().into_owned().collect();
    let header =
        |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let found = match (&head.method, url.path()) {
        (&Method::GET, "/brave") if header("x-subscription-token") == SEARCH_KEY => {
            only(query.keys(), &["q", "count", "text_decorations", "freshness"]).map(|()| query["q"].clone())
        }
        (&Method::POST, "/tavily") if header("authorization") == format!("Bearer {SEARCH_KEY}") => {
            only(names(&body).iter(), &["query", "max_results", "time_range", "include_domains"])
                .map(|()| body["query"].as_str().unwrap_or_default().to_owned())
        }
        (&Method::GET, "/search") if query.get("format").is_some_and(|f| f == "json") => {
            only(query.keys(), &["q", "format", "time_range"]).map(|()| query["q"].clone())
        }
        (&Method::POST, "/own") if header("x-own-key") == SEARCH_KEY => only(names(&body).iter(), &["find"])
            .map(|()| body["find"]["words"].as_str().unwrap_or_default().to_owned()),
        (method, path) => Err(format!("{method} {path} with the headers {:?}", head.headers)),
    };
    let (failure, holds) = {
        let mut state = state.lock().unwrap();
        match found {
            Ok(words) => state.searches.push(words),
            Err(violation) => {
                state.violations.push(violation);
                return StatusCode::BAD_REQUEST.into_response();
            }
        }
        (state.failures.pop_front(), state.holds)
    };
    if holds {
        std::future::pending::<()>().await;
    }
    if let Some(status) = failure {
        return (StatusCode::from_u16(status).unwrap(), format!("no {SEARCH_KEY}")).into_response();
    }
    let results = state.lock().unwrap().results.clone();
    axum::Json(answer(url.path(), &results)).into_response()
}

/// The answer in the form of the provider at this path.
fn answer(path: &str, results: &[Value]) -> Value {
    let renamed = |names: [&str; 4]| -> Vec<Value> {
        let fields = ["title", "url", "text", "date"];
        let rename = |result: &Value| {
            fields.iter().zip(names).map(|(field, name)| (name.to_owned(), result[*field].clone())).collect()
        };
        results.iter().map(|result| Value::Object(rename(result))).collect()
    };
    match path {
        "/brave" if results.is_empty() => json!({"type": "search", "query": {}}),
        "/brave" => {
            let results = renamed(["title", "url", "description", "page_age"]);
            json!({"type": "search", "query": {}, "web": {"type": "search", "results": results}})
        }
        "/tavily" => json!({"query": "", "results": renamed(["title", "url", "content", "published_date"])}),
        "/own" => json!({"found": {"pages": renamed(["name", "at", "about", "on"])}}),
        _ => json!({"query": "", "results": renamed(["title", "url", "content", "publishedDate"])}),
    }
}

fn names(body: &Value) -> BTreeSet<String> {
    body.as_object().map(|fields| fields.keys().cloned().collect()).unwrap_or_default()
}

/// Whether all of these parameters are known.
fn only<'a>(mut parameters: impl Iterator<Item = &'a String>, known: &[&str]) -> Result<(), String> {
    match parameters.find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => Err(format!("the parameter `{unknown}` is unknown")),
        None => Ok(()),
    }
}
