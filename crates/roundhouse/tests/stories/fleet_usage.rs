//! What the users' agents of a product have used is counted once, whatever sleeps, is killed or is deleted; and nothing
//! that names a user who was deleted remains.

use std::fs;

use mock_llm::{MockProvider, Reply, Usage};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::metrics::{scrape, value};
use crate::support::engine_fixture::ReplyExt as _;
use crate::support::fleet::write_soul;
use crate::support::http::{client, send};
use crate::support::{
    Backend, Database, Deployment, Engine, Orchestrator, Product, assert_fields, eventually,
};

const REPORT: &str = "from:text to:text rows:array total:object total_admits:object next:text|null";
const SUMS: &str = "turns:number calls:number failed_calls:number input_tokens:number output_tokens:number \
                    cache_read_tokens:number cost_usd:number unpriced_calls:number tool_calls:number";

fn reply(input: u64, output: u64) -> Reply {
    let usage = Usage { input: Some(input), output: Some(output), ..Usage::default() };
    Reply::from_text("Done.").usage(usage)
}

/// A deployment whose model costs 3 dollars a million prompt tokens and 15 a million output tokens. No health check
/// collects anything: only the ends of engines do.
fn deployment(provider: &MockProvider) -> Deployment {
    let deployment = Deployment::with_combination(Backend::Process, Database::from_env());
    priced(deployment.expect("the database of ROUNDHOUSE_TEST_DATABASE is available"), provider)
}

fn priced(deployment: Deployment, provider: &MockProvider) -> Deployment {
    let deployment = deployment
        .with_provider(provider)
        .with_env("ORCH_ENGINE_ENV_PASSTHROUGH", "ANTHROPIC_API_KEY,ENGINE_LOG_LEVEL")
        .with_env("ANTHROPIC_API_KEY", "sk")
        .with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "600")
        .with_env("ORCH_RESTART_BACKOFF_BASE_S", "0.2");
    let gateway = json!({
        "models": {"main": {
            "provider": "anthropic", "model": "claude-sonnet-4-5", "base_url": provider.base_url(),
            "context_window": 200_000, "prices": {"input": 3, "output": 15, "cache_write": 3},
        }},
        "default": "main",
    });
    let catalog = deployment.catalog();
    fs::create_dir_all(&catalog).unwrap();
    write_soul(&catalog);
    fs::write(catalog.join("gateway.json"), gateway.to_string()).unwrap();
    deployment.with_env("ORCH_CATALOG_MOUNT_PATH", catalog.to_str().unwrap())
}

impl Product {
    async fn usage(&self, query: &str) -> Value {
        let path = format!("/usage{query}");
        let report = self.call(Method::GET, &path, None).await.assert_ok(REPORT);
        assert_fields(&report["total"], SUMS);
        report
    }

    /// The turns, calls, input tokens, output tokens and micro-dollars of all days.
    async fn used(&self) -> [u64; 5] {
        sums(&self.usage("").await["total"])
    }
}

fn sums(usage: &Value) -> [u64; 5] {
    let [turns, calls, input, output] =
        ["turns", "calls", "input_tokens", "output_tokens"].map(|field| usage[field].as_u64().unwrap());
    let micro_dollars = usage["cost_usd"].as_f64().unwrap() * 1e6;
    [turns, calls, input, output, format!("{micro_dollars:.0}").parse().unwrap()]
}

/// The sums of turns with 1,000 prompt tokens and 100 output tokens each: 4,500 micro-dollars.
fn of_turns(turns: u64) -> [u64; 5] {
    [turns, turns, turns * 1_000, turns * 100, turns * 4_500]
}

async fn fleet_usage(deployment: &Deployment, orchestrator: &Orchestrator, query: &str) -> Value {
    let request = client().get(format!("{}/fleet/usage{query}", orchestrator.base));
    send(request.header("x-admin-key", &deployment.admin_key)).await.assert_ok(REPORT)
}

/// Runs a turn of the user's agent whose calls together have 1,000 prompt tokens and 100 output tokens.
async fn turn(provider: &MockProvider, engine: &Engine, task: &str) {
    provider.enqueue(reply(1_000, 100));
    engine.run_turn(task, "Go.").await;
}

#[tokio::test]
async fn what_two_users_used_is_counted_once_they_sleep_and_stays_when_one_is_deleted() {
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    let deployment = deployment(&provider).with_env("ORCH_IDLE_SLEEP_THRESHOLD_S", "1");
    let (orchestrator, product) = deployment.start_with_product().await;
    let rival = orchestrator.register("rival", json!({})).await;
    let ada = product.engine("ada").await;
    turn(&provider, &ada, "one").await;
    provider.enqueue(Reply::new().memory_set("a", "1"));
    provider.enqueue(reply(1_000, 100));
    ada.run_turn("two", "Remember it.").await;
    let bob = product.engine("bob").await;
    turn(&provider, &bob, "three").await;
    for user in ["ada", "bob"] {
        product.wait_for_status(user, "sleeping").await;
    }

    let report = product.usage("").await;
    let total = &report["total"];
    assert_eq!(
        [&total["turns"], &total["calls"], &total["tool_calls"]],
        [&json!(3), &json!(4), &json!(1)],
        "{report}"
    );
    let day = &report["rows"][0];
    assert_eq!((&day["usage"], &day["active_engines"]), (total, &json!(2)), "{report}");
    assert!(total["cost_usd"].as_f64().unwrap() >= 0.0135, "{report}");
    let by_engine = product.usage("?group_by=engine").await;
    let users: Vec<_> = by_engine["rows"].as_array().unwrap().iter().map(|row| &row["user_id"]).collect();
    assert_eq!(users, ["ada", "bob"]);
    assert_eq!(sums(&by_engine["rows"][1]["usage"]), of_turns(1));
    let page = product.usage("?group_by=engine&limit=1").await;
    let next = page["next"].as_str().unwrap();
    let rest = product.usage(&format!("?group_by=engine&limit=1&after={next}")).await;
    assert_eq!((&rest["rows"][0], &rest["next"]), (&by_engine["rows"][1], &Value::Null));
    assert_eq!(rival.used().await, [0; 5]);
    let fleet = fleet_usage(&deployment, &orchestrator, "?group_by=product").await;
    assert_eq!((&fleet["total"], &fleet["rows"][0]["usage"]), (total, total));
    assert_eq!(fleet["rows"][0]["slug"], "shop");
    eventually("the admits are counted", async || {
        let report = product.usage("").await;
        (report["total_admits"]["admitted"].as_u64()? >= 2).then_some(())
    })
    .await;

    // Deleted while it runs, with a turn that nothing has reported: asked before it ends.
    turn(&provider, &product.engine("ada").await, "four").await;
    product.delete("ada").await.assert_ok("status:text engine_id:engine");
    let after = product.usage("").await;
    assert_eq!(after["total"]["turns"], 4, "{after}");
    assert_eq!(after["rows"][0]["active_engines"], 2);
    let by_engine = product.usage("?group_by=engine").await;
    let rows = by_engine["rows"].as_array().unwrap();
    assert_eq!([&rows[0]["user_id"], &rows[1]["user_id"]], [&Value::Null, &json!("bob")], "{by_engine}");
    assert_eq!((&rows[0]["engine_id"], &rows[0]["usage"]["turns"]), (&Value::Null, &json!(3)));
    for text in [&after, &by_engine, &fleet_usage(&deployment, &orchestrator, "").await] {
        assert!(!text.to_string().contains("ada") && !text.to_string().contains(&ada.id), "{text}");
    }
    // The user's next engine begins at zero.
    let ada = product.engine("ada").await;
    turn(&provider, &ada, "five").await;
    product.wait_for_status("ada", "sleeping").await;
    assert_eq!(product.usage("").await["total"]["turns"], 5);
}

#[tokio::test]
async fn turns_before_kills_of_either_are_counted_once() {
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    let deployment = deployment(&provider);
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    turn(&provider, &engine, "one").await;
    // Killed between the turn and its report.
    let process = deployment.kill_engine(&engine);
    eventually("the engine is back", async || deployment.process_of(&engine).filter(|pid| *pid != process))
        .await;
    product.wait_for_status("ada", "running").await;
    assert_eq!(product.used().await, [0; 5], "nothing was reported");
    let orchestrator = deployment.kill_and_start(orchestrator).await;
    let product = Product::new(&orchestrator.base, &product.key);
    let engine = product.engine("ada").await;
    turn(&provider, &engine, "two").await;
    let orchestrator = deployment.kill_and_start(orchestrator).await;
    let product = Product::new(&orchestrator.base, &product.key);
    product.stop("ada").await.assert_ok("status:text");
    assert_eq!(product.used().await, of_turns(2));
    // A report that comes again adds nothing.
    for task in ["three", "four"] {
        product.start("ada").await.assert_ok("status:text url:url");
        product.stop("ada").await.assert_ok("status:text");
        assert_eq!(product.used().await[0], if task == "three" { 2 } else { 3 });
        if task == "three" {
            product.start("ada").await.assert_ok("status:text url:url");
            turn(&provider, &product.engine("ada").await, task).await;
            product.stop("ada").await.assert_ok("status:text");
        }
    }
    assert_eq!(product.used().await, of_turns(3));
}

#[tokio::test]
async fn a_running_engine_is_asked_when_it_has_counted_something() {
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    let deployment = deployment(&provider).with_env("ORCH_HEALTH_CHECK_INTERVAL_S", "0.3");
    let last = deployment.fleet.test_env.ports.last();
    let address = format!("127.0.0.1:{last}");
    let deployment = deployment
        .with_env("ORCH_PORT_MAX", (last - 1).to_string())
        .with_env("ORCH_METRICS_ADDR", address.clone());
    let (_orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    for turns in 1..=2 {
        turn(&provider, &engine, "task").await;
        eventually("the turn is counted", async || (product.used().await[0] == turns).then_some(())).await;
    }
    let metrics = scrape(&address, "*/*").await;
    for (series, expected) in [
        ("roundhouse_turns_total{product=\"shop\"}", 2.0),
        ("roundhouse_tokens_total{product=\"shop\",kind=\"input\"}", 2_000.0),
        ("roundhouse_cost_usd_total{product=\"shop\"}", 0.009),
        ("roundhouse_turn_first_delta_seconds_count{product=\"shop\"}", 2.0),
    ] {
        assert_eq!(value(&metrics, series), Some(expected), "{series} in: {metrics}");
    }
    for query in ["?from=x", "?from=2026-01-02&to=2026-01-01", "?group_by=user", "?limit=0", "?after=x"] {
        product.call(Method::GET, &format!("/usage{query}"), None).await.assert_error(400, "INVALID_REQUEST");
    }
    let past = product.usage("?from=2026-01-01&to=2026-01-31").await;
    assert_eq!((past["rows"].as_array().unwrap().len(), &past["total"]["turns"]), (0, &json!(0)));
}

#[tokio::test]
async fn a_standby_that_takes_over_counts_what_nobody_has_and_nothing_twice() {
    let Some(deployment) = Deployment::postgres() else { return };
    let provider = MockProvider::builder().bind_thinking(true).start().await.unwrap();
    let deployment = priced(deployment, &provider);
    let (orchestrator, product) = deployment.start_with_product().await;
    let engine = product.engine("ada").await;
    turn(&provider, &engine, "one").await;
    product.stop("ada").await.assert_ok("status:text");
    product.start("ada").await.assert_ok("status:text url:url");
    let engine = product.engine("ada").await;
    turn(&provider, &engine, "two").await;
    assert_eq!(product.used().await, of_turns(1));
    let mut standby = deployment.launch_second();
    assert_eq!(orchestrator.signal_and_wait(Signal::KILL).await.code, None);
    standby.wait_ready().await;
    let product = Product::new(&standby.base, &product.key);
    product.stop("ada").await.assert_ok("status:text");
    assert_eq!(product.used().await, of_turns(2));
}
