//! An operator sees one trace of what a caller began: through the orchestrator and the engine to the model and the tool
//! servers, in a real OpenTelemetry Collector. Without one, or with one that does not answer, everything else goes on.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mock_llm::{Gate, MockProvider, Reply};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;
use tokio::net::TcpListener;

use crate::support::collector::{self, Collector, ReceivedSpan};
use crate::support::engine_calls::direct_message;
use crate::support::fleet::write_soul;
use crate::support::process_memory::{memory_and_peak_mib, with_immediate_purge};
use crate::support::scripted_mcp::{ScriptedMcp, tool};
use crate::support::tool_programs::{done_reply, tool_reply, write_catalog_file};
use crate::support::turn::{assert_completed, visible_text};
use crate::support::{
    Deployment, EngineFixture, EventStream, Orchestrator, Product, StandaloneEngine, eventually, processes,
    with_deadline,
};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";
const COLLECTOR_KEY: &str = "the-collectors-secret-key";
const PROVIDER_KEY: &str = "provider-key";

const ORCHESTRATOR: &str = "roundhouse-orchestrator";
const ENGINE: &str = "roundhouse-engine";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{CALLER}-{flags}")
}

/// A deployment of processes that exports to a collector, whose engines may call `server`.
struct TracedFleet {
    provider: MockProvider,
    server: ScriptedMcp,
    collector: Collector,
    orchestrator: Orchestrator,
    product: Product,
    deployment: Deployment,
}

impl TracedFleet {
    async fn start(program: &Path, variables: &[(&str, &str)]) -> Self {
        let provider = MockProvider::start().await.unwrap();
        let server = ScriptedMcp::start(vec![tool("look", "Looks up.")]).await;
        let deployment = Deployment::process_and_sqlite().with_provider(&provider);
        let port = deployment.fleet.test_env.ports.last();
        let collector = Collector::start(&deployment.fleet.test_env, program, port).await;
        let catalog = deployment.fleet.test_env.path().join("traced-catalog");
        write_soul(&catalog);
        let servers = json!({"mcpServers": {"notes": {"type": "http", "url": server.url()}}});
        write_catalog_file(&catalog, "mcp.json", &servers.to_string());
        write_catalog_file(&catalog, "permissions.json", r#"{"tools": {"notes__look": "allow"}}"#);
        let passed_on =
            "LLM_PROVIDER,LLM_BASE_URL,LLM_API_KEY,ENGINE_LOG_LEVEL,ENGINE_WEB_ALLOW,AD_ENCRYPTION_KEY";
        let own = [
            ("ORCH_PORT_MAX", (port - 1).to_string()),
            ("ORCH_CATALOG_MOUNT_PATH", catalog.to_str().unwrap().to_owned()),
            ("ORCH_ENGINE_ENV_PASSTHROUGH", passed_on.to_owned()),
            ("ENGINE_WEB_ALLOW", "127.0.0.1".to_owned()),
            ("AD_ENCRYPTION_KEY", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA".to_owned()),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.clone()),
            ("OTEL_EXPORTER_OTLP_HEADERS", format!("api-key={COLLECTOR_KEY}")),
            ("OTEL_BSP_SCHEDULE_DELAY", "100".to_owned()),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test".to_owned()),
        ];
        let deployment = own.into_iter().fold(deployment, |this, (name, value)| this.with_env(name, value));
        let deployment = variables.iter().fold(deployment, |this, (name, value)| this.with_env(name, *value));
        let (orchestrator, product) = deployment.start_with_product().await;
        Self { provider, server, collector, orchestrator, product, deployment }
    }

    /// Runs a turn of ada's engine with one tool call, through the proxy, within the caller's trace.
    async fn run_turn(&self, flags: &str, message: &str) {
        self.provider
            .enqueue_all([tool_reply("notes__look", json!({"text": "by the window"})), done_reply()]);
        let request = self.product.request(Method::POST, &Product::proxy_path("ada", "/execute"));
        let request = request.header("traceparent", traceparent(flags)).header("tracestate", "shop=1");
        let events = EventStream::open(request.json(&direct_message("task", message))).await.collect().await;
        assert_eq!(assert_completed(&events), "Done.");
    }
}

/// The only span with this name of a service.
#[track_caller]
fn only<'a>(spans: &'a [ReceivedSpan], service: &str, name: &str) -> &'a ReceivedSpan {
    let found: Vec<_> = spans.iter().filter(|span| span.service == service && span.name == name).collect();
    let [one] = found[..] else { panic!("one span {name} of {service}, not {found:#?} of {spans:#?}") };
    one
}

#[track_caller]
fn assert_attributes(span: &ReceivedSpan, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        assert_eq!(span.attributes.get(*name).map(String::as_str), Some(*value), "{name} of {span:#?}");
    }
}

/// Whether all spans of a turn with one tool call are there.
fn is_complete(spans: &[ReceivedSpan]) -> bool {
    let has = |name: &str| spans.iter().any(|span| span.name == name);
    has("POST /engines/{user_id}/proxy/{*path}") && has("POST /execute") && has("invoke_agent main")
}

#[tokio::test]
async fn one_trace_leads_from_the_caller_to_the_model_and_the_tool_server() {
    let Some(program) = collector::installed() else { return };
    let traced = TracedFleet::start(&program, &[]).await;
    let admit =
        traced.product.request(Method::POST, "/engines/ada/admit").header("traceparent", traceparent("01"));
    let admit = admit.json(&json!({"auto_provision": true, "auto_wake": true})).send().await.unwrap();
    let returned = admit.headers()["traceparent"].to_str().unwrap().to_owned();
    let engine = traced.product.engine("ada").await;
    engine.connect_server("notes").await;
    traced.run_turn("01", "Where did I put my keys?").await;
    let spans = traced.collector.wait_for_spans(TRACE, is_complete).await;

    // The admit, and the operation that it began.
    let admit = only(&spans, ORCHESTRATOR, "POST /engines/{user_id}/admit");
    assert_eq!((admit.parent_id.as_str(), admit.kind), (CALLER, 2));
    assert_eq!(returned, format!("00-{TRACE}-{}-01", admit.id));
    assert_attributes(admit, &[("http.response.status_code", "200"), ("http.request.method", "POST")]);
    let provision = only(&spans, ORCHESTRATOR, "engine provision");
    assert_eq!((&provision.parent_id, provision.kind), (&admit.id, 1));
    assert_attributes(
        provision,
        &[("roundhouse.operation.outcome", "done"), ("roundhouse.engine.id", &engine.id)],
    );

    // The turn: orchestrator, engine, agent.
    let proxy = only(&spans, ORCHESTRATOR, "POST /engines/{user_id}/proxy/{*path}");
    let call = only(&spans, ORCHESTRATOR, "POST engine");
    let execute = only(&spans, ENGINE, "POST /execute");
    let agent = only(&spans, ENGINE, "invoke_agent main");
    let tool = only(&spans, ENGINE, "execute_tool notes__look");
    let server = only(&spans, ENGINE, "tools/call look");
    for (span, parent, kind) in [
        (proxy, CALLER, 2),
        (call, proxy.id.as_str(), 3),
        (execute, call.id.as_str(), 2),
        (agent, execute.id.as_str(), 1),
        (tool, agent.id.as_str(), 1),
        (server, tool.id.as_str(), 3),
    ] {
        assert_eq!((span.parent_id.as_str(), span.kind), (parent, kind), "{span:#?} of {spans:#?}");
        assert!(!span.is_failed, "{span:#?}");
    }
    assert_attributes(proxy, &[("roundhouse.engine.id", &engine.id), ("url.scheme", "http")]);
    assert_attributes(
        agent,
        &[
            ("gen_ai.operation.name", "invoke_agent"),
            ("gen_ai.agent.name", "main"),
            ("roundhouse.turn.outcome", "completed"),
        ],
    );
    assert_attributes(
        tool,
        &[("gen_ai.operation.name", "execute_tool"), ("gen_ai.tool.name", "notes__look")],
    );
    assert_attributes(server, &[("mcp.method.name", "tools/call"), ("roundhouse.mcp.server", "notes")]);
    assert_eq!(execute.resource["service.instance.id"], engine.id);
    assert_eq!(execute.resource["deployment.environment.name"], "test");

    // The model calls, and what others were sent.
    let chats: Vec<_> = spans.iter().filter(|span| span.name.starts_with("chat ")).collect();
    let reasons: Vec<_> =
        chats.iter().map(|chat| chat.attributes["gen_ai.response.finish_reasons"].as_str()).collect();
    assert!(reasons[0].contains("tool_call") && reasons[1].contains("stop"), "{reasons:?}");
    let requests = traced.provider.requests();
    assert_eq!((chats.len(), requests.len()), (2, 2));
    for (chat, request) in chats.iter().zip(&requests) {
        assert_eq!((&chat.parent_id, chat.kind), (&agent.id, 3), "{chat:#?}");
        assert_attributes(chat, &[("gen_ai.operation.name", "chat"), ("gen_ai.provider.name", "anthropic")]);
        for tokens in ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"] {
            assert!(chat.attributes[tokens].parse::<u64>().unwrap() > 0, "{chat:#?}");
        }
        assert_eq!(request.header("traceparent"), Some(format!("00-{TRACE}-{}-01", chat.id).as_str()));
        assert_eq!(request.header("tracestate"), None);
    }
    let metas = traced.server.state().call_metas.clone();
    assert_eq!(metas[0]["traceparent"], format!("00-{TRACE}-{}-01", server.id));

    // Neither secrets nor what anybody said, nor who the user is.
    let text = traced.collector.text();
    let Deployment { admin_key, master_key, .. } = &traced.deployment;
    for secret in [
        engine.key.as_str(),
        &traced.product.key,
        admin_key,
        master_key,
        PROVIDER_KEY,
        COLLECTOR_KEY,
        "my keys",
        "by the window",
        "look was called",
        "somebody's own assistant",
        "\"ada\"",
        "/ada/",
    ] {
        assert!(!text.contains(secret), "{secret} is in the spans");
    }
    // Health checks are nobody's request.
    assert!(!text.contains("GET /health"));
    traced.orchestrator.signal_and_wait(Signal::TERM).await;
}

#[tokio::test]
async fn what_a_caller_does_not_record_is_not_exported_and_told_to_nobody() {
    let Some(program) = collector::installed() else { return };
    let traced = TracedFleet::start(&program, &[]).await;
    let engine = traced.product.engine("ada").await;
    engine.connect_server("notes").await;
    traced.run_turn("00", "Say it.").await;
    assert!(traced.provider.requests().iter().all(|request| request.header("traceparent").is_none()));
    assert!(traced.server.state().call_metas[0].get("traceparent").is_none());
    // What comes later is exported, and nothing of it before.
    traced.run_turn("01", "Say it again.").await;
    let spans = traced.collector.wait_for_spans(TRACE, is_complete).await;
    only(&spans, ENGINE, "invoke_agent main");
}

#[tokio::test]
async fn what_is_said_is_exported_only_on_request() {
    let Some(program) = collector::installed() else { return };
    let capture = [("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")];
    let traced = TracedFleet::start(&program, &capture).await;
    let engine = traced.product.engine("ada").await;
    engine.connect_server("notes").await;
    traced.run_turn("01", "Where did I put my keys?").await;
    let spans = traced.collector.wait_for_spans(TRACE, is_complete).await;
    let tool = only(&spans, ENGINE, "execute_tool notes__look");
    assert_attributes(
        tool,
        &[
            ("gen_ai.tool.call.arguments", r#"{"text":"by the window"}"#),
            ("gen_ai.tool.call.result", "look was called"),
        ],
    );
    let last = spans.iter().rfind(|span| span.name.starts_with("chat ")).unwrap();
    let attribute = |name: &str| last.attributes[name].as_str();
    assert!(attribute("gen_ai.system_instructions").contains("somebody's own assistant"), "{last:#?}");
    for said in ["my keys", "by the window", "look was called"] {
        assert!(attribute("gen_ai.input.messages").contains(said), "no {said} in {last:#?}");
    }
    assert!(attribute("gen_ai.output.messages").contains("Done."), "{last:#?}");
    let text = traced.collector.text();
    for secret in [&engine.key, &traced.product.key, PROVIDER_KEY, COLLECTOR_KEY] {
        assert!(!text.contains(secret), "{secret} is in the spans");
    }
}

#[tokio::test]
async fn a_turn_that_is_resumed_stays_in_its_trace() {
    let Some(program) = collector::installed() else { return };
    let traced = TracedFleet::start(&program, &[]).await;
    let engine = traced.product.engine("ada").await;
    let gate = Gate::new();
    traced.provider.enqueue(Reply::from_text("One two three four.").chars_per_delta(4).hold(3, &gate));
    let request = engine.request(Method::POST, "/execute").header("traceparent", traceparent("01"));
    let mut stream = EventStream::open(request.json(&direct_message("task", "Count."))).await;
    with_deadline("the provider holds the answer", gate.reached()).await;
    while visible_text(&stream.received, "text_delta").is_empty() {
        stream.next().await.expect("the stream goes on");
    }
    traced.provider.enqueue(Reply::from_text("One two three four."));
    traced.deployment.kill_engine(&engine);
    drop(stream);
    let again = eventually("the engine is started again", async || {
        traced.product.status("ada").await.eq("running").then_some(())?;
        let engine = traced.product.engine("ada").await;
        engine.request(Method::GET, "/health").send().await.ok().map(|_| engine)
    })
    .await;
    let events = again.replay("task", 0).await.collect().await;
    assert_eq!(assert_completed(&events), "One two three four.");
    let has_ended = |spans: &[ReceivedSpan]| spans.iter().any(|span| span.name == "invoke_agent main");
    let spans = traced.collector.wait_for_spans(TRACE, has_ended).await;
    let agent = only(&spans, ENGINE, "invoke_agent main");
    assert_attributes(agent, &[("roundhouse.turn.outcome", "completed")]);
    let chat = spans.iter().find(|span| span.name.starts_with("chat ")).unwrap();
    assert_eq!(chat.parent_id, agent.id);
}

/// An engine that exports to this address.
async fn engine_exporting_to(address: &str) -> EngineFixture {
    let endpoint = format!("http://{address}");
    EngineFixture::with_setup("anthropic", [], |setup: StandaloneEngine| {
        with_immediate_purge(setup)
            .with_env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
            .with_env("OTEL_BSP_SCHEDULE_DELAY", "50")
    })
    .await
}

/// Makes so many requests, each of which is a span.
async fn request_often(fixture: &EngineFixture, count: usize) {
    for _ in 0..count {
        let response = fixture.engine.request(Method::GET, "/tasks").send().await.unwrap();
        assert_eq!(response.status(), 200);
    }
}

/// Ends an engine within `limit`; returns its output.
async fn end_within(fixture: EngineFixture, limit: Duration) -> String {
    let begun = Instant::now();
    let exit = fixture.program.signal_and_wait(Signal::TERM).await;
    assert!(begun.elapsed() < limit, "it took {:?}: {}", begun.elapsed(), exit.output);
    assert_eq!(exit.code, Some(0), "{}", exit.output);
    exit.output
}

#[tokio::test]
async fn without_a_collector_turns_go_on_and_one_line_says_so() {
    // It breaks off every connection.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&connections);
    let broken = tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let fixture = engine_exporting_to(&address).await;
    for number in 0..3 {
        let before = connections.load(Ordering::Relaxed);
        fixture.provider.enqueue(done_reply());
        let stream = fixture.engine.execute_with(&direct_message(&format!("task-{number}"), "Say it.")).await;
        assert_eq!(assert_completed(&stream.collect().await), "Done.");
        eventually("the spans were sent", async || {
            (connections.load(Ordering::Relaxed) > before).then_some(())
        })
        .await;
    }
    let output = end_within(fixture, Duration::from_secs(5)).await;
    assert_eq!(output.matches("Spans could not be exported").count(), 1, "{output}");
    broken.abort();
}

#[tokio::test]
async fn a_collector_that_never_answers_costs_neither_time_nor_memory() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let silent = tokio::spawn(async move {
        let mut connections = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            connections.push(connection);
        }
    });
    let fixture = engine_exporting_to(&address).await;
    // More than the queue has room for.
    request_often(&fixture, 3_000).await;
    let (before, _) = memory_and_peak_mib(&fixture.program);
    let begun = Instant::now();
    request_often(&fixture, 3_000).await;
    let took = begun.elapsed();
    let (after, _) = memory_and_peak_mib(&fixture.program);
    assert!(after <= before + 4, "{before} MiB, then {after} MiB");
    assert!(took < Duration::from_secs(30), "{took:?}");
    end_within(fixture, Duration::from_secs(5)).await;
    silent.abort();
}

/// Whether a process has the exporter's thread.
fn has_exporter_thread(process: rustix::process::Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).unwrap();
    let mut names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.any(|name| name.starts_with("OpenTelemetry"))
}

#[tokio::test]
async fn without_the_variables_nothing_of_it_runs() {
    let fixture = EngineFixture::new([]).await;
    assert!(!has_exporter_thread(fixture.program.pid()));
    let exporting = engine_exporting_to("127.0.0.1:9").await;
    assert!(has_exporter_thread(exporting.program.pid()), "the thread is found");
    for program in [fixture.program, exporting.program] {
        processes::kill(program.pid());
    }
}
