//! Measures a turn in which the model calls a tool a hundred times in sequence. The baseline is a client that
//! sends as many requests to the provider and starts as many programs.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use http_body_util::Full;
use hyper::Method;
use mock_llm::Reply;
use serde_json::{Value, json};

use crate::client::{Client, parse_address};
use crate::context::BenchContext;
use crate::engine::{DEFAULT_MESSAGE, EngineSetup, ModelConfig};
use crate::provider::{FixedReplyProvider, Wire};
use crate::report::{Quantity, Subject, Unit};
use crate::streamed;

const CALLS_PER_TURN: u32 = 100;
const TEXT: &str = "Done.";
const WIRE: Wire = Wire::Anthropic;

/// A measured tool, and the program that the baseline starts instead.
struct ToolCase {
    tool: &'static str,
    /// The input of each call. It differs each time, because the loop detector stops repetitions.
    input: fn(u32) -> Value,
    program: Option<&'static str>,
}

const CASES: [ToolCase; 2] = [
    ToolCase {
        tool: "working_memory_set",
        input: |number| json!({"key": "n", "value": number}),
        program: None,
    },
    ToolCase {
        tool: "shell",
        input: |number| json!({"command": format!("echo {number}")}),
        program: Some("echo"),
    },
];

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let mut quantities = Vec::new();
    for case in CASES {
        quantities.push(measure_case(bench, &case).await?);
    }
    Ok(quantities)
}

async fn measure_case(bench: &BenchContext, case: &ToolCase) -> anyhow::Result<Quantity> {
    let mut quantity = Quantity {
        name: format!("a call of `{}` in a turn of {CALLS_PER_TURN}", case.tool),
        unit: Unit::Milliseconds,
        subject: Subject::new("engine"),
        baselines: vec![Subject::new("client to provider, fork+exec")],
        budget: None,
    };
    for round in 0..bench.rounds {
        bench.report_round(&format!("tool calls, {}", case.tool), round);
        let provider = FixedReplyProvider::start(Reply::from_text(TEXT)).await?;
        let model = ModelConfig::new(WIRE.provider_name(), provider.llm_base_url(WIRE));
        let setup = EngineSetup::new(&bench.binary, bench.new_folder()?, model)?;
        setup.write_catalog_file("permissions.json", r#"{"default": "allow"}"#)?;
        let (engine, _) = setup.start()?;
        let mut client = engine.connect().await?;
        let calls = (0..CALLS_PER_TURN).map(|number| Reply::new().tool_use(case.tool, (case.input)(number)));
        provider.enqueue_all(calls.collect::<Vec<_>>());
        let execute =
            engine.execute_with(&client, "calls", DEFAULT_MESSAGE, i64::from(CALLS_PER_TURN) + 1)?;
        let began = Instant::now();
        let response = streamed::send_sse(&mut client, execute).await?;
        let took = began.elapsed();
        ensure!(response.turn_text().context("the turn")?.text == TEXT, "the turn did not end as expected");
        let results =
            response.events().iter().filter(|(_, event)| event.event.as_deref() == Some("tool_result"));
        ensure!(results.count() == CALLS_PER_TURN as usize, "not all tool calls were made");
        let ours = took.as_secs_f64() * 1_000.0 / f64::from(CALLS_PER_TURN);
        let baseline = measure_baseline(&provider, case).await? / f64::from(CALLS_PER_TURN);
        quantity.add(ours, baseline);
        provider.check_and_clear()?;
    }
    Ok(quantity)
}

/// Repeats the last and longest request from a client alone and runs the programs; returns the total in
/// milliseconds.
async fn measure_baseline(provider: &FixedReplyProvider, case: &ToolCase) -> anyhow::Result<f64> {
    let request = provider.last_request()?;
    let mut client = Client::connect(parse_address(&provider.base_url())?).await?;
    let began = Instant::now();
    for number in 0..=CALLS_PER_TURN {
        let mut direct = client.request(Method::POST, WIRE.path());
        for name in ["x-api-key", "anthropic-version"] {
            if let Some(value) = request.header(name) {
                direct = direct.header(name, value);
            }
        }
        let direct = direct.body(Full::new(request.raw.clone()))?;
        ensure!(
            streamed::send_sse(&mut client, direct).await?.provider_text(WIRE)?.text == TEXT,
            "the provider sent a different text"
        );
        if let Some(program) = case.program {
            let output = std::process::Command::new(program).arg(number.to_string()).output()?;
            ensure!(output.status.success(), "{program} failed");
        }
    }
    Ok(began.elapsed().as_secs_f64() * 1_000.0)
}
