//! The operations of `POST /rpc` on the gateway.

use std::time::Duration;

use api::rpc::{BudgetState, BudgetStates, GatewayConfig, ModelSpending, QuotaState, RpcOutcome};
use api::{ErrorCode, Timestamp};
use http_service::http::{ApiError, parse_fields};
use llm::Budgets;
use serde::Deserialize;
use serde_json::{Map, Value};
use store::{Brain, USAGE_RETENTION};

use super::Shared;
use crate::agent::AgentError;
use crate::config::ConfigError;

/// The parameters of `set_config`.
#[derive(Deserialize)]
struct SetConfig {
    config: Value,
}

/// Activates another configuration.
pub(super) async fn set_config(
    shared: &Shared,
    parameters: Map<String, Value>,
) -> Result<RpcOutcome, ApiError> {
    let SetConfig { config } = parse_fields(parameters)?;
    shared.active_config.set(config).await.map_err(config_error)?;
    Ok(RpcOutcome::Done {})
}

/// Returns to the catalog's configuration.
pub(super) async fn reload(shared: &Shared) -> Result<RpcOutcome, ApiError> {
    shared.active_config.reload().await.map_err(config_error)?;
    Ok(RpcOutcome::Done {})
}

/// Returns the active configuration.
pub(super) async fn get_config(shared: &Shared) -> RpcOutcome {
    RpcOutcome::Config(GatewayConfig { config: shared.active_config.document().await })
}

fn config_error(error: ConfigError) -> ApiError {
    match error {
        ConfigError::Invalid(reason) => ApiError::new(ErrorCode::InvalidRequest, reason.to_string()),
        ConfigError::Write(error) => AgentError::Write(error).into(),
    }
}

/// Returns the remaining budgets and the health of the models.
pub(super) async fn quota_state(shared: &Shared) -> Result<RpcOutcome, ApiError> {
    let now = shared.clock.now();
    let gateway = shared.active_config.gateway();
    let routes = gateway.routes().ok();
    let Budgets { tokens_per_turn, tokens_per_hour, tokens_per_day } =
        routes.as_ref().map(|routes| routes.budgets).unwrap_or_default();
    let read = move |brain: &Brain| {
        let budget = |limit: Option<u64>, window: Duration| {
            let since = subtract(now, window);
            let used = brain.tokens_since(since)?;
            let oldest = brain.first_usage_at(since)?;
            Ok::<_, store::StoreError>(BudgetState {
                limit,
                used,
                remaining: limit.map(|limit| limit.saturating_sub(used)),
                frees_at: oldest.map(|oldest| add(oldest, window)),
            })
        };
        let budgets = BudgetStates {
            tokens_per_turn,
            tokens_per_hour: budget(tokens_per_hour, Duration::from_hours(1))?,
            tokens_per_day: budget(tokens_per_day, USAGE_RETENTION)?,
        };
        Ok::<_, store::StoreError>((budgets, brain.usage_since(subtract(now, USAGE_RETENTION))?))
    };
    let read = shared.brain.run_blocking(read).await.ok_or_else(ApiError::internal)?;
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
    let models = gateway.model_states(shared.clock.monotonic());
    Ok(RpcOutcome::Quota(QuotaState { budgets, models, spent: spent.collect() }))
}

fn subtract(now: Timestamp, window: Duration) -> Timestamp {
    Timestamp::from_unix_ms(now.unix_ms().saturating_sub(millis(window)))
}

fn add(at: Timestamp, window: Duration) -> Timestamp {
    Timestamp::from_unix_ms(at.unix_ms().saturating_add(millis(window)))
}

fn millis(window: Duration) -> i64 {
    i64::try_from(window.as_millis()).unwrap_or(i64::MAX)
}
