//! Fills a brain through the API: many turns on many tasks.

use anyhow::Context as _;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::client::Client;
use crate::engine::Engine;
use crate::streamed;

/// The number of tasks that run turns concurrently.
const CONCURRENT_TASKS: usize = 8;

/// Runs `turns` turns on each of `tasks` new tasks, and checks each of them.
pub(crate) async fn run_turns(engine: &Engine, tasks: u32, turns: u32) -> anyhow::Result<()> {
    stream::iter(0..tasks)
        .map(async |task| {
            let mut client = engine.connect().await?;
            for number in 1..=turns {
                run_turn(engine, &mut client, &format!("filled-{task}"))
                    .await
                    .with_context(|| format!("turn {number} of task {task}"))?;
            }
            anyhow::Ok(())
        })
        .buffer_unordered(CONCURRENT_TASKS)
        .try_collect()
        .await
}

/// Runs and checks one turn, and returns the `ts` of its last event.
pub(crate) async fn run_turn(engine: &Engine, client: &mut Client, task: &str) -> anyhow::Result<i64> {
    let execute = engine.execute(client, task)?;
    Ok(streamed::send_sse(client, execute).await?.turn_text()?.last_ts)
}
