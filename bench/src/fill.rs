//! Fills a brain through the API: many turns on many tasks.

use anyhow::Context as _;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use crate::client::Client;
use crate::engine::Engine;
use crate::told;

/// How many tasks have a turn at the same time.
const AT_ONCE: usize = 8;

/// Runs `turns` turns on each of `tasks` new tasks. Every one of them is checked.
pub(crate) async fn fill(engine: &Engine, tasks: u32, turns: u32) -> anyhow::Result<()> {
    stream::iter(0..tasks)
        .map(async |task| {
            let mut client = engine.connect().await?;
            for number in 1..=turns {
                turn(engine, &mut client, &format!("filled-{task}"))
                    .await
                    .with_context(|| format!("turn {number} of task {task}"))?;
            }
            anyhow::Ok(())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// One turn, which is checked, and the time of its last event.
pub(crate) async fn turn(engine: &Engine, client: &mut Client, task: &str) -> anyhow::Result<i64> {
    let execute = engine.execute(client, task)?;
    Ok(told::stream(client, execute).await?.turn()?.last_ts)
}
