//! The operations of `POST /rpc` that are about the gateway.

use std::time::Duration;

use contract::rpc::{BudgetState, BudgetStates, GatewayConfig, ModelSpending, QuotaState, RpcOutcome};
use contract::{ErrorCode, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value};
use service::http::{ApiError, fields};

use super::Shared;
use crate::agent::AgentError;
use crate::brain::{Brain, SPENDING_KEPT};
use crate::config::ConfigError;
use crate::models::Budgets;

/// What `set_config` takes.
#[derive(Deserialize)]
struct SetConfig {
    config: Value,
}

/// Puts another configuration in force.
pub(super) async fn set_config(
    shared: &Shared,
    parameters: Map<String, Value>,
) -> Result<RpcOutcome, ApiError> {
    let SetConfig { config } = fields(parameters)?;
    shared.in_force.set(config).await.map_err(refusal)?;
    Ok(RpcOutcome::Done {})
}

/// Goes back to the catalog's configuration.
pub(super) async fn reload(shared: &Shared) -> Result<RpcOutcome, ApiError> {
    shared.in_force.reload().await.map_err(refusal)?;
    Ok(RpcOutcome::Done {})
}

/// Tells the configuration in force.
pub(super) async fn get_config(shared: &Shared) -> RpcOutcome {
    RpcOutcome::Config(GatewayConfig { config: shared.in_force.document().await })
}

fn refusal(error: ConfigError) -> ApiError {
    match error {
        ConfigError::Faulty(reason) => ApiError::new(ErrorCode::InvalidRequest, reason.to_string()),
        ConfigError::Write(error) => AgentError::Write(error).into(),
    }
}

/// Tells what is left of the budgets, and how the models are doing.
pub(super) async fn quota_state(shared: &Shared) -> Result<RpcOutcome, ApiError> {
    let now = shared.clock.now();
    let gateway = shared.in_force.gateway();
    let routes = gateway.routes().ok();
    let Budgets { tokens_per_turn, tokens_per_hour, tokens_per_day } =
        routes.as_ref().map(|routes| routes.budgets).unwrap_or_default();
    let read = move |brain: &Brain| {
        let budget = |limit: Option<u64>, window: Duration| {
            let since = back(now, window);
            let used = brain.tokens_since(since)?;
            let oldest = brain.first_spent(since)?;
            Ok::<_, rusqlite::Error>(BudgetState {
                limit,
                used,
                remaining: limit.map(|limit| limit.saturating_sub(used)),
                frees_at: oldest.map(|oldest| forward(oldest, window)),
            })
        };
        let budgets = BudgetStates {
            tokens_per_turn,
            tokens_per_hour: budget(tokens_per_hour, Duration::from_hours(1))?,
            tokens_per_day: budget(tokens_per_day, SPENDING_KEPT)?,
        };
        Ok::<_, rusqlite::Error>((budgets, brain.spending_since(back(now, SPENDING_KEPT))?))
    };
    let read = shared.brain.blocking(read).await.ok_or_else(ApiError::internal)?;
    let (budgets, spending) = read.map_err(AgentError::from)?;
    let prices = |model: &str| {
        let named = routes.iter().flat_map(|routes| &routes.named);
        named.filter(|route| route.model.name() == model).find_map(|route| route.prices)
    };
    let spent = spending.into_iter().map(|spending| ModelSpending {
        cost_usd: prices(&spending.model).map(|prices| prices.cost(&spending.tokens)),
        model: spending.model,
        calls: spending.calls,
        input_tokens: spending.tokens.input,
        output_tokens: spending.tokens.output,
    });
    let models = gateway.models(shared.clock.monotonic());
    Ok(RpcOutcome::Quota(QuotaState { budgets, models, spent: spent.collect() }))
}

fn back(now: Timestamp, window: Duration) -> Timestamp {
    Timestamp::from_unix_ms(now.unix_ms().saturating_sub(millis(window)))
}

fn forward(at: Timestamp, window: Duration) -> Timestamp {
    Timestamp::from_unix_ms(at.unix_ms().saturating_add(millis(window)))
}

fn millis(window: Duration) -> i64 {
    i64::try_from(window.as_millis()).unwrap_or(i64::MAX)
}
