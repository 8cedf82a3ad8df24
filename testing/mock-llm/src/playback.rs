//! Performs the steps of an answer as an HTTP body.

use std::future;
use std::vec;

use axum::body::Body;
use bytes::Bytes;
use futures::stream;

use crate::plan::Step;
use crate::shared::RunningGuard;

/// The error that makes the server drop the connection.
#[derive(Debug, thiserror::Error)]
#[error("the script cuts the connection here")]
struct ScriptedCut;

/// Creates a body that performs the steps. The guard lives as long as the body, so that the provider notices when
/// a client disconnects.
pub(crate) fn body(steps: Vec<Step>, running: RunningGuard) -> Body {
    let start = (steps.into_iter(), running);
    Body::from_stream(stream::unfold(start, |(mut steps, running)| async move {
        let item = next_item(&mut steps).await?;
        Some((item, (steps, running)))
    }))
}

async fn next_item(steps: &mut vec::IntoIter<Step>) -> Option<Result<Bytes, ScriptedCut>> {
    loop {
        match steps.next()? {
            Step::Send(bytes) => return Some(Ok(bytes)),
            Step::Pause(duration) => tokio::time::sleep(duration).await,
            Step::Hold(gate) => gate.wait_for_release().await,
            Step::Hang => future::pending().await,
            Step::Cut => {
                // The server flushes its buffer only while the body is pending. Without this, the bytes before
                // the cut would be lost with the connection.
                tokio::task::yield_now().await;
                return Some(Err(ScriptedCut));
            }
        }
    }
}
