//! Decides which key may be sent to which server.
//!
//! A caller that may change an engine's configuration need not know the keys in its environment. So a key is sent
//! only to servers that the environment (where the key is set) or the catalog names.

use super::base_url::BaseUrl;
use super::gateway_file::{GatewayFile, KeySource};
use super::provider::Provider;

/// The variable of the key that belongs to the provider named by `LLM_PROVIDER`.
pub(super) const GENERIC_KEY_VARIABLE: &str = "LLM_API_KEY";

/// The servers to which keys may be sent.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyPolicy {
    /// `LLM_PROVIDER`, which owns `LLM_API_KEY`; if it is not set, any provider does.
    pub(super) owner: Option<Provider>,
    /// `LLM_BASE_URL`.
    pub(super) base_url: Option<BaseUrl>,
    /// The base URLs in the catalog's `gateway.json`.
    pub(super) catalog_urls: Vec<BaseUrl>,
    /// The keys that the catalog's `gateway.json` names, each with the provider whose own server it is for.
    pub(super) catalog_keys: Vec<(String, Provider)>,
}

impl KeyPolicy {
    /// Whether the key in `variable` may be sent to `address`.
    pub(super) fn allows(&self, variable: &str, address: &BaseUrl) -> bool {
        if self.base_url.as_ref() == Some(address) {
            return true;
        }
        match vendor_at(address) {
            // Even if the catalog names the address: a vendor's key must not be sent to another vendor.
            Some(vendor) => self.belongs_to(variable, vendor),
            None => self.catalog_urls.contains(address),
        }
    }

    /// Whether a model of `provider` uses the key in `variable` unless its entry names another one.
    pub(super) fn is_default_key_for(&self, variable: &str, provider: Provider) -> bool {
        let is_generic = variable == GENERIC_KEY_VARIABLE && self.owner.is_none_or(|owner| owner == provider);
        is_generic || provider.key_variable() == Some(variable)
    }

    /// Whether the server at `address` answers requests for a model of `provider` only with a key.
    pub(super) fn requires_key(&self, provider: Provider, address: &BaseUrl) -> bool {
        let is_proxy = self.base_url.as_ref() == Some(address);
        provider.requires_key() && !is_proxy && vendor_at(address) == Some(provider)
    }

    /// Adds the addresses and keys that the catalog's `gateway.json` trusts.
    pub(super) fn with_catalog(mut self, catalog: &GatewayFile) -> Self {
        for entry in catalog.models.values() {
            self.catalog_urls.extend(entry.base_url.clone());
            let vendor = match &entry.base_url {
                Some(base) => vendor_at(base),
                None => Some(entry.provider),
            };
            if let (KeySource::Variable(variable), Some(vendor)) = (&entry.key, vendor) {
                self.catalog_keys.push((variable.clone(), vendor));
            }
        }
        self
    }

    fn belongs_to(&self, variable: &str, vendor: Provider) -> bool {
        let is_named =
            || self.catalog_keys.iter().any(|(name, provider)| name == variable && *provider == vendor);
        match Provider::from_key_variable(variable) {
            Some(owner) => owner == vendor,
            None => {
                self.is_default_key_for(variable, vendor) || (variable != GENERIC_KEY_VARIABLE && is_named())
            }
        }
    }
}

/// The vendor to whose own server `address` points.
fn vendor_at(address: &BaseUrl) -> Option<Provider> {
    let is_at = |server: &str| BaseUrl::parse(server).is_some_and(|server| server.has_same_origin(address));
    Provider::ALL.into_iter().find(|vendor| vendor.own_servers().any(is_at))
}

#[cfg(test)]
#[path = "../tests/unit/key_policy.rs"]
mod tests;
