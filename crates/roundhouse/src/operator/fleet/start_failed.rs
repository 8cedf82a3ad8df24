//! `roundhouse fleet start-failed`: starts engines that have failed, some at a time, and says what became of each.

use api::fleet::{StartFailed, StartedEngines};
use api::version::MoveLimit;
use api::{EngineId, ProductId};
use reqwest::Method;

use crate::client::Call;
use crate::engine_access::AccessOptions;
use crate::error::Failure;
use crate::operator::output::{self, OutputOptions};
use crate::operator::session::Session;
use crate::terminal::single_line;

/// How many engines are started in one call. Each may take as long as the longest boot, and few boot at the same time.
const STARTS_PER_CALL: i64 = 4;

/// How much is shown of the reason of a failure, in characters.
const MAX_REASON_CHARS: usize = 500;

/// Arguments of `roundhouse fleet start-failed`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Only engines of this product.
    #[arg(long, value_name = "ID")]
    product: Option<ProductId>,
    /// Stop after this number of engines.
    #[arg(long, value_name = "COUNT")]
    at_most: Option<u32>,
    /// Only engines after this one.
    #[arg(long, value_name = "ENGINE")]
    after: Option<EngineId>,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    access: AccessOptions,
}

pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let Args { product, at_most, mut after, output, access } = args;
    let session = Session::operator(access)?;
    let mut remaining = at_most.map_or(i64::MAX, i64::from);
    let (mut started, mut failed) = (0_u64, 0_u64);
    while remaining > 0 {
        let limit = MoveLimit::try_from(remaining.min(STARTS_PER_CALL)).ok();
        let body = serde_json::to_value(StartFailed { product_id: product, after, limit })?;
        let call = Call::new(Method::POST, &["fleet", "start-failed"]).json(&body);
        let document = session.call(&call).await?;
        let StartedEngines { engines, next } = document.parse()?;
        remaining = remaining.saturating_sub(i64::try_from(engines.len()).unwrap_or(i64::MAX));
        if output.json {
            output::print_line(&output::json_of(&document))?;
        }
        for engine in engines {
            let user = single_line(engine.user_id.as_str(), usize::MAX);
            let result = match engine.error {
                None => {
                    started += 1;
                    "started".to_owned()
                }
                Some(error) => {
                    failed += 1;
                    format!("not started: {} ({})", single_line(&error.message, MAX_REASON_CHARS), error.code)
                }
            };
            if !output.json {
                output::print_line(&format!("{user} of {}: {result}", engine.product_id))?;
            }
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    if !output.json {
        output::print_line(&format!("{started} started, {failed} not started."))?;
    }
    if failed > 0 { Err(anyhow::anyhow!("{failed} engines were not started").into()) } else { Ok(()) }
}
