//! A real OpenTelemetry Collector, and the spans that it has received.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::Value;

use super::{Program, TestEnv, eventually, skip};

/// A running collector.
pub(crate) struct Collector {
    _program: Program,
    /// What `OTEL_EXPORTER_OTLP_ENDPOINT` is set to.
    pub(crate) endpoint: String,
    file: PathBuf,
}

/// A span, as the collector wrote it.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedSpan {
    /// The name of the service that made it.
    pub(crate) service: String,
    pub(crate) name: String,
    /// `SPAN_KIND_…` as its number: 1 internal, 2 server, 3 client.
    pub(crate) kind: u64,
    pub(crate) trace_id: String,
    pub(crate) id: String,
    pub(crate) parent_id: String,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) resource: BTreeMap<String, String>,
    /// Whether it has the status of a failure.
    pub(crate) is_failed: bool,
}

/// The collector's program; skips the story and returns `None` if there is none.
pub(crate) fn installed() -> Option<PathBuf> {
    let path = env::var_os("ROUNDHOUSE_TEST_OTEL_COLLECTOR").filter(|path| !path.is_empty());
    if path.is_none() {
        skip(
            "an OpenTelemetry Collector: `export ROUNDHOUSE_TEST_OTEL_COLLECTOR=\"$(.ci/otel-collector DIR)\"` \
             builds one",
        );
    }
    path.map(PathBuf::from)
}

impl Collector {
    /// Starts `program`, listening on `port`.
    pub(crate) async fn start(test_env: &TestEnv, program: &Path, port: u16) -> Self {
        let file = test_env.path().join("received-spans");
        let config = test_env.path().join("collector.yaml");
        let text = format!(
            "receivers: {{otlp: {{protocols: {{http: {{endpoint: '127.0.0.1:{port}'}}}}}}}}\n\
             exporters: {{file: {{path: '{}'}}}}\n\
             service:\n  telemetry: {{metrics: {{level: none}}}}\n  \
             pipelines: {{traces: {{receivers: [otlp], exporters: [file]}}}}\n",
            file.display()
        );
        fs::write(&config, text).unwrap();
        let line = [program.to_str().unwrap(), "--config", &format!("file:{}", config.display())];
        let mut program = test_env.run_program(&line, &BTreeMap::new());
        eventually("the collector listens", async || {
            assert!(program.is_running(), "the collector ended: {}", program.output());
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()
        })
        .await;
        Self { _program: program, endpoint: format!("http://127.0.0.1:{port}"), file }
    }

    /// All that it has received.
    pub(crate) fn text(&self) -> String {
        fs::read_to_string(&self.file).unwrap_or_default()
    }

    /// The spans of a trace so far.
    pub(crate) fn spans(&self, trace_id: &str) -> Vec<ReceivedSpan> {
        let text = self.text();
        // The last line may be incomplete.
        let documents = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        documents.flat_map(|document| spans_of(&document)).filter(|span| span.trace_id == trace_id).collect()
    }

    /// The spans of a trace, once they fulfil `condition`.
    pub(crate) async fn wait_for_spans(
        &self,
        trace_id: &str,
        condition: impl Fn(&[ReceivedSpan]) -> bool,
    ) -> Vec<ReceivedSpan> {
        let mut seen = Vec::new();
        let found = tokio::time::timeout(super::DEADLINE, async {
            loop {
                seen = self.spans(trace_id);
                if condition(&seen) {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        })
        .await;
        assert!(found.is_ok(), "the spans did not come; these did: {seen:#?}");
        seen
    }
}

fn items<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

fn spans_of(document: &Value) -> Vec<ReceivedSpan> {
    let mut spans = Vec::new();
    for group in items(document, "resourceSpans") {
        let resource = attributes(&group["resource"]);
        for span in items(group, "scopeSpans").flat_map(|scope| items(scope, "spans")) {
            let text = |name: &str| span[name].as_str().unwrap_or_default().to_owned();
            spans.push(ReceivedSpan {
                service: resource.get("service.name").cloned().unwrap_or_default(),
                name: text("name"),
                kind: span["kind"].as_u64().unwrap_or_default(),
                trace_id: text("traceId"),
                id: text("spanId"),
                parent_id: text("parentSpanId"),
                attributes: attributes(span),
                resource: resource.clone(),
                is_failed: span["status"]["code"] == 2,
            });
        }
    }
    spans
}

/// Attributes by name, each value as text.
fn attributes(holder: &Value) -> BTreeMap<String, String> {
    let pair = |attribute: &Value| {
        let value = attribute["value"].as_object()?.values().next()?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Some((attribute["key"].as_str()?.to_owned(), text))
    };
    items(holder, "attributes").filter_map(pair).collect()
}
