//! The Docker network that the engines join, through which they reach the internet but not each other.
//!
//! The network is checked before every launch, because anyone with access to the daemon may replace it.

use std::collections::HashMap;

use bollard::errors::Error;
use bollard::models::{Network, NetworkCreateRequest};
use bollard::query_parameters::{InspectNetworkOptions, ListNetworksOptionsBuilder};
use parking_lot::Mutex;

use super::daemon::{Daemon, REQUEST_TIMEOUT};
use super::error::{docker_backend_error, is_status};
use crate::BackendError;

/// The bridge driver's option that allows containers on the network to reach each other:
/// <https://docs.docker.com/engine/network/drivers/bridge/#options>.
const ICC_OPTION: &str = "com.docker.network.bridge.enable_icc";

/// How often the network is looked up before its creation counts as failed.
const MAX_LOOKUPS: usize = 8;

/// The engines' network.
pub(super) struct EngineNetwork {
    name: String,
    /// The network's id at the last check.
    cached_id: Mutex<Option<String>>,
}

/// Why the network cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NetworkFault {
    /// The network lets engines reach each other.
    #[error(
        "the network {name} does not isolate engines from each other ({why}): remove it with `docker network rm \
         {name}`, and the orchestrator creates it again; or name another network in ORCH_ENGINE_NETWORK"
    )]
    NotIsolated {
        /// The network's name.
        name: String,
        /// The setting that permits it.
        why: String,
    },
    /// The network could not be inspected or created.
    #[error(transparent)]
    Backend(BackendError),
}

impl EngineNetwork {
    pub(super) fn new(name: String) -> Self {
        Self { name, cached_id: Mutex::new(None) }
    }

    /// Forgets the network's id, so that the next check looks it up by name.
    pub(super) fn clear_cached_id(&self) {
        self.set_cached_id(None);
    }

    fn set_cached_id(&self, id: Option<String>) {
        *self.cached_id.lock() = id;
    }

    /// Creates the network if it is missing, checks that it isolates engines, and returns its id. Containers
    /// join the network by id, because another network may receive its name later.
    pub(super) async fn ensure(&self, daemon: &Daemon) -> Result<String, NetworkFault> {
        let failed = |error: Error| NetworkFault::Backend(docker_backend_error(&error));
        let cached_id = self.cached_id.lock().clone();
        let found = match cached_id {
            Some(id) => self.inspect(daemon, &id).await.map_err(failed)?,
            None => None,
        };
        let found = match found {
            Some(found) => Some(found),
            None => self.find_or_create(daemon).await.map_err(failed)?,
        };
        let Some((found, id)) = found.and_then(|found| found.id.clone().map(|id| (found, id))) else {
            let why =
                format!("the network {} could not be created, or there are several of that name", self.name);
            return Err(NetworkFault::Backend(BackendError::Failed(why)));
        };
        if let Some(why) = isolation_fault(&found) {
            return Err(NetworkFault::NotIsolated { name: self.name.clone(), why });
        }
        self.set_cached_id(Some(id.clone()));
        Ok(id)
    }

    /// Returns the network with this id; `None` if there is none.
    async fn inspect(&self, daemon: &Daemon, id: &str) -> Result<Option<Network>, Error> {
        let inspected = daemon.request(REQUEST_TIMEOUT, |docker| async move {
            docker.inspect_network(id, None::<InspectNetworkOptions>).await
        });
        match inspected.await {
            Ok(found) => Ok(Some(Network {
                id: found.id,
                name: found.name,
                driver: found.driver,
                options: found.options,
                ..Network::default()
            })),
            Err(error) if is_status(&error, 404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the only network of this name, and creates it if there is none. The daemon accepts several
    /// networks of one name, so orchestrators may create several at the same time. An orchestrator that sees
    /// more than one removes all but the oldest; the last one to look sees them all. Returns `None` if
    /// [`MAX_LOOKUPS`] are not enough.
    async fn find_or_create(&self, daemon: &Daemon) -> Result<Option<Network>, Error> {
        for _ in 0..MAX_LOOKUPS {
            let mut found = self.find(daemon).await?;
            found.sort_by(|one, other| (&one.created, &one.id).cmp(&(&other.created, &other.id)));
            let mut found = found.into_iter();
            let Some(first) = found.next() else {
                self.create(daemon).await?;
                continue;
            };
            let mut is_unique = true;
            for other in found.filter_map(|other| other.id) {
                is_unique = false;
                match daemon
                    .request(REQUEST_TIMEOUT, |docker| async move { docker.remove_network(&other).await })
                    .await
                {
                    // Another orchestrator has removed it.
                    Err(error) if is_status(&error, 404) => {}
                    removed => removed?,
                }
            }
            if is_unique {
                return Ok(Some(first));
            }
        }
        Ok(None)
    }

    async fn find(&self, daemon: &Daemon) -> Result<Vec<Network>, Error> {
        let filters = HashMap::from([("name", vec![self.name.as_str()])]);
        let options = ListNetworksOptionsBuilder::new().filters(&filters).build();
        let mut listed = daemon
            .request(REQUEST_TIMEOUT, |docker| async move { docker.list_networks(Some(options)).await })
            .await?;
        // The daemon's filter also matches names that merely contain this one.
        listed.retain(|network| network.name.as_ref() == Some(&self.name));
        Ok(listed)
    }

    async fn create(&self, daemon: &Daemon) -> Result<(), Error> {
        let request = NetworkCreateRequest {
            name: self.name.clone(),
            driver: Some("bridge".to_owned()),
            options: Some(HashMap::from([(ICC_OPTION.to_owned(), "false".to_owned())])),
            ..NetworkCreateRequest::default()
        };
        match daemon
            .request(REQUEST_TIMEOUT, |docker| async move { docker.create_network(request).await })
            .await
        {
            // Another orchestrator has created it.
            Err(error) if is_status(&error, 409) => Ok(()),
            created => created.map(drop),
        }
    }
}

/// Returns the setting that lets engines on this network reach each other; `None` if it isolates them.
fn isolation_fault(network: &Network) -> Option<String> {
    match network.driver.as_deref() {
        Some("bridge") => {}
        driver => return Some(format!("its driver is {}, not bridge", driver.unwrap_or("unknown"))),
    }
    let icc = network.options.as_ref().and_then(|options| options.get(ICC_OPTION));
    (icc.map(String::as_str) != Some("false")).then(|| format!("its option {ICC_OPTION} is not false"))
}
