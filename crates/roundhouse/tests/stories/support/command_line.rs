//! The command line of operators, as a story runs it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use super::{Fleet, Program, ProgramExit, TestEnv};

/// Starts a command against a fleet.
pub(crate) fn start_command(fleet: &Fleet, words: &[&str]) -> Program {
    let line = [words, &["--dir", fleet.folder().to_str().unwrap()]].concat();
    fleet.test_env.run(&line, &fleet.variables)
}

/// Runs a command against a fleet, with nothing to read.
pub(crate) async fn command(fleet: &Fleet, words: &[&str]) -> ProgramExit {
    let line = [words, &["--dir", fleet.folder().to_str().unwrap()]].concat();
    let (program, input) = fleet.test_env.run_interactive(&line, &fleet.variables);
    drop(input);
    program.wait().await
}

/// Runs a command with these variables instead of a fleet's folder.
pub(crate) async fn command_with(home: &TestEnv, words: &[&str], variables: &[(&str, &str)]) -> ProgramExit {
    let variables: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    home.run(words, &variables).wait().await
}

/// The one document of JSON in an output.
#[track_caller]
pub(crate) fn document(output: &str) -> Value {
    assert_eq!(output.lines().count(), 1, "{output}");
    serde_json::from_str(output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// The cells of a table, with what differs from run to run named instead.
pub(crate) fn cells(output: &str) -> String {
    let cell = |text: &str| match text.trim() {
        "now" => "AGO".to_owned(),
        text if text.ends_with(" ago") => "AGO".to_owned(),
        text if text.starts_with("http://127.0.0.1:") => "ADDRESS".to_owned(),
        text if text.starts_with("svc-engine:") => "IMAGE".to_owned(),
        text if text.starts_with("prod_") => "PRODUCT".to_owned(),
        text if text.ends_with(" ms") => "TIME".to_owned(),
        text => text.to_owned(),
    };
    let line = |line: &str| {
        line.split("  ").filter(|text| !text.is_empty()).map(cell).collect::<Vec<_>>().join(" | ")
    };
    output.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A service that gives every request the same answer.
pub(crate) struct FixedService {
    pub(crate) base: String,
    /// The requests: method, path, and the headers of keys.
    requests: Arc<Mutex<Vec<String>>>,
    task: AbortHandle,
}

impl FixedService {
    pub(crate) async fn start(status: u16, body: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let (status, body) = (StatusCode::from_u16(status).unwrap(), body.to_owned());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&requests);
        let answer = move |request: Request| {
            let header = |name: &str| {
                let value = request.headers().get(name)?;
                Some(format!(" {name}={}", value.to_str().unwrap()))
            };
            let keys = ["x-platform-key", "x-admin-key", "x-product-id"].into_iter().filter_map(header);
            let keys: String = keys.collect();
            record.lock().push(format!("{} {}{keys}", request.method(), request.uri()));
            let answer = (status, body.clone());
            async move { answer }
        };
        let router = Router::new().fallback(answer);
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { base, requests, task: task.abort_handle() }
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }
}

impl Drop for FixedService {
    fn drop(&mut self) {
        self.task.abort();
    }
}
