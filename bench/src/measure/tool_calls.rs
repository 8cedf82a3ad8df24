//! A turn in which the model calls tools a hundred times, one after the other: what the engine adds to a client that
//! asks the provider as often and starts as many programs.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use http_body_util::Full;
use hyper::Method;
use serde_json::{Value, json};
use strict_provider::Reply;

use crate::bench::Bench;
use crate::client::{Client, address_of};
use crate::engine::{Home, MESSAGE, Model};
use crate::provider::{Provider, Wire};
use crate::report::{Quantity, Subject, Unit};
use crate::told;

const CALLS: u32 = 100;
const TEXT: &str = "Done.";
const WIRE: Wire = Wire::Anthropic;

/// What is called, and what program the floor starts for it.
struct Called {
    tool: &'static str,
    /// The input, another one each time: a repetition would be a loop.
    input: fn(u32) -> Value,
    program: Option<&'static str>,
}

const ALL: [Called; 2] = [
    Called {
        tool: "working_memory_set",
        input: |number| json!({"key": "n", "value": number}),
        program: None,
    },
    Called {
        tool: "shell",
        input: |number| json!({"command": format!("echo {number}")}),
        program: Some("echo"),
    },
];

pub(super) async fn measure(bench: &Bench) -> anyhow::Result<Vec<Quantity>> {
    let mut quantities = Vec::new();
    for called in ALL {
        quantities.push(of(bench, &called).await?);
    }
    Ok(quantities)
}

async fn of(bench: &Bench, called: &Called) -> anyhow::Result<Quantity> {
    let mut quantity = Quantity {
        what: format!("a call of `{}` in a turn of {CALLS}", called.tool),
        unit: Unit::Milliseconds,
        ours: Subject::new("engine"),
        floors: vec![Subject::new("client to provider, fork+exec")],
        budget: None,
    };
    for round in 0..bench.rounds {
        bench.progress(&format!("tool calls, {}", called.tool), round);
        let provider = Provider::start(Reply::of_text(TEXT)).await?;
        let model = Model::of(WIRE.provider(), provider.llm_base_url(WIRE));
        let home = Home::new(&bench.binary, bench.folder()?, model)?;
        home.put("permissions.json", r#"{"default": "allow"}"#)?;
        let (engine, _) = home.start()?;
        let mut client = engine.connect().await?;
        let calls = (0..CALLS).map(|number| Reply::new().tool_use(called.tool, (called.input)(number)));
        provider.enqueue_all(calls.collect::<Vec<_>>());
        let execute = engine.execute_with(&client, "calls", MESSAGE, i64::from(CALLS) + 1)?;
        let began = Instant::now();
        let told = told::stream(&mut client, execute).await?;
        let took = began.elapsed();
        ensure!(told.turn().context("the turn")?.text == TEXT, "the turn did not come to its end");
        let results = told.events().iter().filter(|(_, event)| event.event.as_deref() == Some("tool_result"));
        ensure!(results.count() == CALLS as usize, "not all calls were made");
        let ours = took.as_secs_f64() * 1_000.0 / f64::from(CALLS);
        let floor = floor(&provider, called).await? / f64::from(CALLS);
        quantity.add(ours, floor);
        provider.settle()?;
    }
    Ok(quantity)
}

/// The same from a client alone, in milliseconds: the last and longest of the requests as often, and the programs.
async fn floor(provider: &Provider, called: &Called) -> anyhow::Result<f64> {
    let request = provider.last_request()?;
    let mut client = Client::connect(address_of(&provider.base_url())?).await?;
    let began = Instant::now();
    for number in 0..=CALLS {
        let mut direct = client.request(Method::POST, WIRE.path());
        for name in ["x-api-key", "anthropic-version"] {
            if let Some(value) = request.header(name) {
                direct = direct.header(name, value);
            }
        }
        let direct = direct.body(Full::new(request.raw.clone()))?;
        ensure!(
            told::stream(&mut client, direct).await?.answer(WIRE)?.text == TEXT,
            "the provider said another thing"
        );
        if let Some(program) = called.program {
            let output = std::process::Command::new(program).arg(number.to_string()).output()?;
            ensure!(output.status.success(), "{program} failed");
        }
    }
    Ok(began.elapsed().as_secs_f64() * 1_000.0)
}
