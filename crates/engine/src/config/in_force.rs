//! Which configuration of the gateway is in force: what `set_config` was given, which the brain keeps; else the catalog's
//! `gateway.json`; else what the environment says.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Mutex;

use crate::brain::{Brain, Setting, WriteError};
use crate::models::Gateway;
use crate::models::config::{Catalog, CatalogTrust, Checked, NotConfigured, Sources};

/// Why the configuration stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The other one is faulty.
    #[error(transparent)]
    Faulty(#[from] NotConfigured),
    /// It could not be stored.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// See the module.
pub struct InForce {
    gateway: Arc<Gateway>,
    sources: Arc<Sources>,
    brain: Brain,
    /// Held while one configuration takes the place of another, so that what is stored is what is in force.
    state: Mutex<State>,
}

struct State {
    /// Null where no model can be used.
    document: Value,
    /// Of the `gateway.json` that was read last and found good.
    trust: CatalogTrust,
}

impl InForce {
    /// Puts the first configuration in force that works. What does not is logged; where none does, the gateway says
    /// what to set.
    ///
    /// # Errors
    /// The brain cannot be read.
    pub fn open(sources: Sources, brain: &Brain) -> Result<Self, rusqlite::Error> {
        let (Catalog { checked, trust }, fault) = match sources.catalog() {
            Ok(catalog) => (catalog, None),
            Err(reason) => {
                tracing::warn!(%reason, "The catalog's gateway.json is not used.");
                (Catalog::default(), Some(reason))
            }
        };
        let stored = brain.setting(Setting::Gateway)?.and_then(|text| stored(&sources, &trust, &text));
        let chosen = stored.or(checked).map_or_else(|| sources.environment(), Ok);
        let (document, routes) = match chosen {
            Ok(Checked { document, routes }) => (document, Ok(routes)),
            Err(reason) => (Value::Null, Err(fault.map_or(reason.clone(), |fault| fault.and(&reason)))),
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
        to_the_end(async move {
            let mut state = this.state.lock().await;
            let checked = this.sources.given(document, &state.trust)?;
            let text = checked.document.to_string();
            this.brain.write(move |rows| rows.set(Setting::Gateway, Some(&text))).await?;
            this.put_in_force(&mut state, checked);
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
        to_the_end(async move {
            let mut state = this.state.lock().await;
            let sources = Arc::clone(&this.sources);
            let read = tokio::task::spawn_blocking(move || sources.first());
            let (checked, trust) = read.await.map_err(|_| stopping())??;
            this.brain.write(|rows| rows.set(Setting::Gateway, None)).await?;
            this.put_in_force(&mut state, checked);
            state.trust = trust;
            Ok(())
        })
        .await
    }

    fn put_in_force(&self, state: &mut State, Checked { document, routes }: Checked) {
        tracing::info!(model = routes.model_name(), "Another configuration of the gateway is in force.");
        self.gateway.replace(routes);
        state.document = document;
    }
}

/// What `set_config` was once given, unless it does not work any more.
fn stored(sources: &Sources, trust: &CatalogTrust, text: &str) -> Option<Checked> {
    let checked = match serde_json::from_str(text) {
        Ok(document) => sources.given(document, trust).map_err(|reason| reason.to_string()),
        Err(error) => Err(error.to_string()),
    };
    checked.inspect_err(|reason| tracing::warn!(reason, "What set_config was given is not used.")).ok()
}

/// Does `work` to its end, also if the caller goes away in the middle: what is stored must come into force.
async fn to_the_end(
    work: impl Future<Output = Result<(), ConfigError>> + Send + 'static,
) -> Result<(), ConfigError> {
    tokio::spawn(work).await.unwrap_or_else(|_| Err(stopping().into()))
}

fn stopping() -> WriteError {
    WriteError { reason: "the engine stops".into() }
}

#[cfg(test)]
#[path = "in_force_tests.rs"]
mod tests;
