//! The network that the engines join: they reach the world through it, and never one another.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bollard::errors::Error;
use bollard::models::{Network, NetworkCreateRequest};
use bollard::query_parameters::{InspectNetworkOptions, ListNetworksOptionsBuilder};

use super::daemon::{Daemon, REQUEST_TIMEOUT};
use super::error::{docker_backend_error, is_status};
use crate::backend::BackendError;

/// The option of bridges that lets containers on them reach one another.
const ICC_OPTION: &str = "com.docker.network.bridge.enable_icc";

/// How often the network is looked for before it counts as one that cannot be made.
const MAX_LOOKUPS: usize = 8;

/// The engines' network.
pub(super) struct EngineNetwork {
    name: String,
    /// Its id when it was last looked for.
    cached_id: Mutex<Option<String>>,
}

/// Why the network cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkFault {
    /// Engines could reach one another.
    #[error(
        "the network {name} does not keep engines apart ({why}): remove it with `docker network rm {name}`, and \
         it is made as it must be; or name another one in ORCH_ENGINE_NETWORK"
    )]
    NotIsolated {
        /// Its name.
        name: String,
        /// What it is like.
        why: String,
    },
    /// It could not be looked at, or not be made.
    #[error(transparent)]
    Backend(BackendError),
}

impl EngineNetwork {
    pub(super) fn new(name: String) -> Self {
        Self { name, cached_id: Mutex::new(None) }
    }

    /// Looks for it by its name the next time.
    pub(super) fn clear_cached_id(&self) {
        self.set_cached_id(None);
    }

    fn set_cached_id(&self, id: Option<String>) {
        *self.cached_id.lock().unwrap_or_else(PoisonError::into_inner) = id;
    }

    /// Makes the network if it is missing, makes sure that it keeps engines apart, and returns its id: whatever gets its
    /// name later is another one.
    pub(super) async fn ensure(&self, daemon: &Daemon) -> Result<String, NetworkFault> {
        let failed = |error: Error| NetworkFault::Backend(docker_backend_error(&error));
        let seen = self.cached_id.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let found = match seen {
            Some(id) => self.inspect(daemon, &id).await.map_err(failed)?,
            None => None,
        };
        let found = match found {
            Some(found) => Some(found),
            None => self.find_or_create(daemon).await.map_err(failed)?,
        };
        let Some((found, id)) = found.and_then(|found| found.id.clone().map(|id| (found, id))) else {
            let why =
                format!("the network {} could not be made: it is not there, or there are several", self.name);
            return Err(NetworkFault::Backend(BackendError::Failed(why)));
        };
        if let Some(why) = isolation_fault(&found) {
            return Err(NetworkFault::NotIsolated { name: self.name.clone(), why });
        }
        self.set_cached_id(Some(id.clone()));
        Ok(id)
    }

    /// The network with this id; none if it is not there.
    async fn inspect(&self, daemon: &Daemon, id: &str) -> Result<Option<Network>, Error> {
        let asked = daemon.request(REQUEST_TIMEOUT, |docker| async move {
            docker.inspect_network(id, None::<InspectNetworkOptions>).await
        });
        match asked.await {
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

    /// The one network of this name. The daemon takes several: of those that orchestrators make at the same time,
    /// whoever sees more than one takes back all but the first. The last to look sees all of them. None if that does
    /// not come to an end.
    async fn find_or_create(&self, daemon: &Daemon) -> Result<Option<Network>, Error> {
        for _ in 0..MAX_LOOKUPS {
            let mut found = self.find(daemon).await?;
            found.sort_by(|one, other| (&one.created, &one.id).cmp(&(&other.created, &other.id)));
            let mut found = found.into_iter();
            let Some(first) = found.next() else {
                self.create(daemon).await?;
                continue;
            };
            let mut alone = true;
            for other in found.filter_map(|other| other.id) {
                alone = false;
                match daemon
                    .request(REQUEST_TIMEOUT, |docker| async move { docker.remove_network(&other).await })
                    .await
                {
                    // Somebody else was faster.
                    Err(error) if is_status(&error, 404) => {}
                    removed => removed?,
                }
            }
            if alone {
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
        // The daemon looks for names that merely hold this one.
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
            // Somebody else was faster.
            Err(error) if is_status(&error, 409) => Ok(()),
            made => made.map(drop),
        }
    }
}

/// How engines on this network could reach one another; none if they cannot.
fn isolation_fault(network: &Network) -> Option<String> {
    match network.driver.as_deref() {
        Some("bridge") => {}
        driver => return Some(format!("its driver is {}, not bridge", driver.unwrap_or("not known"))),
    }
    let icc = network.options.as_ref().and_then(|options| options.get(ICC_OPTION));
    (icc.map(String::as_str) != Some("false")).then(|| format!("its option {ICC_OPTION} is not false"))
}
