//! Which key may be sent where.
//!
//! Who may change the configuration of an engine need not know the keys in its environment. So a key goes only to
//! where those who set it, or who wrote the catalog, want it to go.

use super::base_url::BaseUrl;
use super::gateway_file::{GatewayFile, KeySource};
use super::provider::Provider;

/// The variable of the key that belongs to whichever provider `LLM_PROVIDER` names.
pub(super) const GENERIC_KEY_VARIABLE: &str = "LLM_API_KEY";

/// Whether a variable can hold a provider's key, by its name: no other one is ever sent anywhere.
pub(super) fn is_key_variable(variable: &str) -> bool {
    let stem = variable.strip_suffix("_API_KEY").unwrap_or_default();
    let of_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    !stem.is_empty() && stem.bytes().all(of_name)
}

/// Where keys may go.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyPolicy {
    /// `LLM_PROVIDER`, which owns `LLM_API_KEY`; any provider does where it names none.
    pub(super) owner: Option<Provider>,
    /// `LLM_BASE_URL`.
    pub(super) base_url: Option<BaseUrl>,
    /// The base addresses in the catalog's `gateway.json`.
    pub(super) catalog_urls: Vec<BaseUrl>,
    /// The keys that the catalog's `gateway.json` names, each with the provider whose own address it is for.
    pub(super) catalog_keys: Vec<(String, Provider)>,
}

impl KeyPolicy {
    /// Whether the key in `variable` may be sent to `address`.
    pub(super) fn allows(&self, variable: &str, address: &BaseUrl) -> bool {
        if self.base_url.as_ref() == Some(address) {
            return true;
        }
        match vendor_at(address) {
            // Also where the catalog names the address: a vendor's key is no other vendor's business.
            Some(vendor) => self.belongs_to(variable, vendor),
            None => self.catalog_urls.contains(address),
        }
    }

    /// Whether a model of `provider` uses the key in `variable` unless it names another one.
    pub(super) fn is_default_key_for(&self, variable: &str, provider: Provider) -> bool {
        let any = variable == GENERIC_KEY_VARIABLE && self.owner.is_none_or(|owner| owner == provider);
        any || provider.key_variable() == Some(variable)
    }

    /// Whether the server at `address` answers a model of `provider` only with a key.
    pub(super) fn requires_key(&self, provider: Provider, address: &BaseUrl) -> bool {
        let stands_in = self.base_url.as_ref() == Some(address);
        provider.requires_key() && !stands_in && vendor_at(address) == Some(provider)
    }

    /// Adds what the catalog's `gateway.json` trusts.
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
        let named =
            || self.catalog_keys.iter().any(|(name, provider)| name == variable && *provider == vendor);
        match Provider::from_key_variable(variable) {
            Some(owner) => owner == vendor,
            None => {
                self.is_default_key_for(variable, vendor) || (variable != GENERIC_KEY_VARIABLE && named())
            }
        }
    }
}

/// The vendor whose own server `address` is on.
fn vendor_at(address: &BaseUrl) -> Option<Provider> {
    // Ollama's models can also be hosted by its maker.
    const SERVERS: [(&str, Provider); 5] = [
        ("https://api.anthropic.com", Provider::Anthropic),
        ("https://api.openai.com", Provider::OpenAi),
        ("https://generativelanguage.googleapis.com", Provider::Gemini),
        ("http://localhost:11434", Provider::Ollama),
        ("https://ollama.com", Provider::Ollama),
    ];
    let on = |server: &str| BaseUrl::parse(server).is_some_and(|server| server.has_same_origin(address));
    SERVERS.into_iter().find(|(server, _)| on(server)).map(|(_, vendor)| vendor)
}

#[cfg(test)]
#[path = "key_policy_tests.rs"]
mod tests;
