//! Which configuration of the gateway is in force: what `set_config` was given, which the brain keeps; else the catalog's
//! `gateway.json`; else what the environment says.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Mutex;

use crate::llm::Gateway;
use crate::llm::config::{CatalogConfig, CatalogKeyPolicy, ConfigSources, NotConfigured, ValidatedConfig};
use crate::store::{Brain, Setting, WriteError};

/// Why the configuration stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The other one is faulty.
    #[error(transparent)]
    Invalid(#[from] NotConfigured),
    /// It could not be stored.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// See the module.
pub struct ActiveConfig {
    gateway: Arc<Gateway>,
    sources: Arc<ConfigSources>,
    brain: Brain,
    /// Held while one configuration takes the place of another, so that what is stored is what is in force.
    state: Mutex<State>,
}

struct State {
    /// Null where no model can be used.
    document: Value,
    /// Of the `gateway.json` that was read last and found good.
    trust: CatalogKeyPolicy,
}

impl ActiveConfig {
    /// Puts the first configuration in force that works. What does not is logged; where none does, the gateway says
    /// what to set.
    ///
    /// # Errors
    /// The brain cannot be read.
    pub fn open(sources: ConfigSources, brain: &Brain) -> Result<Self, rusqlite::Error> {
        let (CatalogConfig { config: checked, key_policy: trust }, fault) = match sources.load_catalog() {
            Ok(catalog) => (catalog, None),
            Err(reason) => {
                tracing::warn!(%reason, "The catalog's gateway.json is not used.");
                (CatalogConfig::default(), Some(reason))
            }
        };
        let stored = brain.setting(Setting::Gateway)?.and_then(|text| load_stored(&sources, &trust, &text));
        let chosen = stored.or(checked).map_or_else(|| sources.load_env(), Ok);
        let (document, routes) = match chosen {
            Ok(ValidatedConfig { document, routes }) => (document, Ok(routes)),
            Err(reason) => (Value::Null, Err(fault.map_or(reason.clone(), |fault| fault.merge(&reason)))),
        };
        Ok(Self {
            gateway: Arc::new(Gateway::new(routes)),
            sources: Arc::new(sources),
            brain: brain.clone(),
            state: Mutex::new(State { document, trust }),
        })
    }

    /// The gateway that it is in force at.
    pub const fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// The configuration in force, in the form of `gateway.json`; null where no model can be used. Holds no key.
    pub async fn document(&self) -> Value {
        self.state.lock().await.document.clone()
    }

    /// Checks a configuration, keeps it, and puts it in force.
    ///
    /// # Errors
    /// All stays as it is.
    pub async fn set(self: &Arc<Self>, document: Value) -> Result<(), ConfigError> {
        let this = Arc::clone(self);
        run_to_completion(async move {
            let mut state = this.state.lock().await;
            let checked = this.sources.validate(document, &state.trust)?;
            let text = checked.document.to_string();
            this.brain.write(move |rows| rows.set_setting(Setting::Gateway, Some(&text))).await?;
            this.activate(&mut state, checked);
            Ok(())
        })
        .await
    }

    /// Reads the catalog's `gateway.json` again, and forgets what was set.
    ///
    /// # Errors
    /// All stays as it is.
    pub async fn reload(self: &Arc<Self>) -> Result<(), ConfigError> {
        let this = Arc::clone(self);
        run_to_completion(async move {
            let mut state = this.state.lock().await;
            let sources = Arc::clone(&this.sources);
            let read = tokio::task::spawn_blocking(move || sources.load());
            let (checked, trust) = read.await.map_err(|_| stopping_error())??;
            this.brain.write(|rows| rows.set_setting(Setting::Gateway, None)).await?;
            this.activate(&mut state, checked);
            state.trust = trust;
            Ok(())
        })
        .await
    }

    fn activate(&self, state: &mut State, ValidatedConfig { document, routes }: ValidatedConfig) {
        tracing::info!(model = routes.model_name(), "Another configuration of the gateway is in force.");
        self.gateway.replace(routes);
        state.document = document;
    }
}

/// What `set_config` was once given, unless it does not work any more.
fn load_stored(sources: &ConfigSources, trust: &CatalogKeyPolicy, text: &str) -> Option<ValidatedConfig> {
    let checked = match serde_json::from_str(text) {
        Ok(document) => sources.validate(document, trust).map_err(|reason| reason.to_string()),
        Err(error) => Err(error.to_string()),
    };
    checked.inspect_err(|reason| tracing::warn!(reason, "What set_config was given is not used.")).ok()
}

/// Does `work` to its end, also if the caller goes away in the middle: what is stored must come into force.
async fn run_to_completion(
    work: impl Future<Output = Result<(), ConfigError>> + Send + 'static,
) -> Result<(), ConfigError> {
    tokio::spawn(work).await.unwrap_or_else(|_| Err(stopping_error().into()))
}

fn stopping_error() -> WriteError {
    WriteError { reason: "the engine stops".into() }
}

#[cfg(test)]
#[path = "active_config_tests.rs"]
mod tests;
