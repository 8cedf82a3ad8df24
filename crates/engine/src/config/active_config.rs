//! The active gateway configuration: the one stored by `set_config`, which the brain keeps; else the catalog's
//! `gateway.json`; else the one from the environment.

use std::sync::Arc;

use llm::Gateway;
use llm::NotConfigured;
use llm::config::{CatalogConfig, CatalogKeyPolicy, ConfigSources, ValidatedConfig};
use resources::threads::run_blocking;
use serde_json::Value;
use store::{Brain, Setting, WriteError};
use tokio::sync::Mutex;

/// Why the configuration was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The new configuration is invalid.
    #[error(transparent)]
    Invalid(#[from] NotConfigured),
    /// The new configuration could not be stored.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The active gateway configuration, and the gateway that uses it.
pub struct ActiveConfig {
    gateway: Arc<Gateway>,
    sources: Arc<ConfigSources>,
    brain: Brain,
    /// Held while the configuration is replaced, so that the stored and the active one agree.
    state: Mutex<State>,
}

struct State {
    /// Null if no model can be used.
    document: Value,
    /// The key policy of the last valid `gateway.json`.
    key_policy: CatalogKeyPolicy,
}

impl ActiveConfig {
    /// Activates the first configuration that works. Others are logged; if none works, the gateway reports what to
    /// set.
    ///
    /// # Errors
    /// The brain cannot be read.
    pub fn open(sources: ConfigSources, brain: &Brain) -> Result<Self, store::StoreError> {
        let (CatalogConfig { config: from_catalog, key_policy }, fault) = match sources.load_catalog() {
            Ok(catalog) => (catalog, None),
            Err(reason) => {
                tracing::warn!(%reason, "The catalog's gateway.json is ignored.");
                (CatalogConfig::default(), Some(reason))
            }
        };
        let stored =
            brain.setting(Setting::Gateway)?.and_then(|text| load_stored(&sources, &key_policy, &text));
        let selected = stored.or(from_catalog).map_or_else(|| sources.load_env(), Ok);
        let (document, routes) = match selected {
            Ok(ValidatedConfig { document, routes }) => (document, Ok(routes)),
            Err(reason) => (Value::Null, Err(fault.map_or(reason.clone(), |fault| fault.merge(&reason)))),
        };
        Ok(Self {
            gateway: Arc::new(Gateway::new(routes)),
            sources: Arc::new(sources),
            brain: brain.clone(),
            state: Mutex::new(State { document, key_policy }),
        })
    }

    /// Returns the gateway.
    pub const fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// Returns the active configuration in the form of `gateway.json`; null if no model can be used. It contains
    /// no keys.
    pub async fn document(&self) -> Value {
        self.state.lock().await.document.clone()
    }

    /// Validates, stores and activates a configuration.
    ///
    /// # Errors
    /// Nothing was changed.
    pub async fn set(self: &Arc<Self>, document: Value) -> Result<(), ConfigError> {
        let this = Arc::clone(self);
        run_to_completion(async move {
            let mut state = this.state.lock().await;
            let validated = this.sources.validate(document, &state.key_policy)?;
            let text = validated.document.to_string();
            this.brain.write(move |rows| rows.set_setting(Setting::Gateway, Some(&text))).await?;
            this.activate(&mut state, validated);
            Ok(())
        })
        .await
    }

    /// Discards the stored configuration and reads the catalog's `gateway.json` again.
    ///
    /// # Errors
    /// Nothing was changed.
    pub async fn reload(self: &Arc<Self>) -> Result<(), ConfigError> {
        let this = Arc::clone(self);
        run_to_completion(async move {
            let mut state = this.state.lock().await;
            let sources = Arc::clone(&this.sources);
            let read = run_blocking(move || sources.load()).await;
            let (validated, key_policy) = read.ok_or_else(stopping_error)??;
            this.brain.write(|rows| rows.set_setting(Setting::Gateway, None)).await?;
            this.activate(&mut state, validated);
            state.key_policy = key_policy;
            Ok(())
        })
        .await
    }

    fn activate(&self, state: &mut State, ValidatedConfig { document, routes }: ValidatedConfig) {
        tracing::info!(model = routes.model_name(), "A new gateway configuration is active.");
        self.gateway.replace(routes);
        state.document = document;
    }
}

/// Returns the configuration stored by `set_config`, unless it no longer works.
fn load_stored(
    sources: &ConfigSources,
    key_policy: &CatalogKeyPolicy,
    text: &str,
) -> Option<ValidatedConfig> {
    let validated = match serde_json::from_str(text) {
        Ok(document) => sources.validate(document, key_policy).map_err(|reason| reason.to_string()),
        Err(error) => Err(error.to_string()),
    };
    validated
        .inspect_err(|reason| tracing::warn!(reason, "The configuration stored by set_config is ignored."))
        .ok()
}

/// Runs `work` to completion, even if the caller goes away: what is stored must become active.
async fn run_to_completion(
    work: impl Future<Output = Result<(), ConfigError>> + Send + 'static,
) -> Result<(), ConfigError> {
    tokio::spawn(work).await.unwrap_or_else(|_| Err(stopping_error().into()))
}

fn stopping_error() -> WriteError {
    WriteError { reason: "the engine is stopping".into() }
}

#[cfg(test)]
#[path = "../../tests/unit/config/active_config.rs"]
mod tests;
