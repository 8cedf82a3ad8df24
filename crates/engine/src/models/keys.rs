//! Which key may be sent where.
//!
//! Who may change the configuration of an engine need not know the keys in its environment. So a key goes only to
//! where those who set it, or who wrote the catalog, want it to go.

use super::address::Address;
use super::document::{Document, Key};
use super::provider::Provider;

/// The variable of the key that belongs to whichever provider `LLM_PROVIDER` names.
pub(super) const ANY_KEY: &str = "LLM_API_KEY";

/// Whether a variable can hold a provider's key, by its name: no other one is ever sent anywhere.
pub(super) fn is_key_name(variable: &str) -> bool {
    let stem = variable.strip_suffix("_API_KEY").unwrap_or_default();
    let of_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    !stem.is_empty() && stem.bytes().all(of_name)
}

/// Where keys may go.
#[derive(Clone, Debug, Default)]
pub(super) struct Trust {
    /// `LLM_PROVIDER`, which owns `LLM_API_KEY`; any provider does where it names none.
    pub(super) owner: Option<Provider>,
    /// `LLM_BASE_URL`.
    pub(super) base: Option<Address>,
    /// The base addresses in the catalog's `gateway.json`.
    pub(super) catalog: Vec<Address>,
    /// The keys that the catalog's `gateway.json` names, each with the provider whose own address it is for.
    pub(super) pairs: Vec<(String, Provider)>,
}

impl Trust {
    /// Whether the key in `variable` may be sent to `address`.
    pub(super) fn allows(&self, variable: &str, address: &Address) -> bool {
        if self.base.as_ref() == Some(address) {
            return true;
        }
        match vendor_at(address) {
            // Also where the catalog names the address: a vendor's key is no other vendor's business.
            Some(vendor) => self.belongs_to(variable, vendor),
            None => self.catalog.contains(address),
        }
    }

    /// Whether a model of `provider` uses the key in `variable` unless it names another one.
    pub(super) fn is_usual_for(&self, variable: &str, provider: Provider) -> bool {
        let any = variable == ANY_KEY && self.owner.is_none_or(|owner| owner == provider);
        any || provider.key_variable() == Some(variable)
    }

    /// Whether the server at `address` answers a model of `provider` only with a key.
    pub(super) fn must_have_key(&self, provider: Provider, address: &Address) -> bool {
        let stands_in = self.base.as_ref() == Some(address);
        provider.wants_key() && !stands_in && vendor_at(address) == Some(provider)
    }

    /// Adds what the catalog's `gateway.json` trusts.
    pub(super) fn with_catalog(mut self, catalog: &Document) -> Self {
        for entry in catalog.models.values() {
            self.catalog.extend(entry.base.clone());
            let vendor = match &entry.base {
                Some(base) => vendor_at(base),
                None => Some(entry.provider),
            };
            if let (Key::In(variable), Some(vendor)) = (&entry.key, vendor) {
                self.pairs.push((variable.clone(), vendor));
            }
        }
        self
    }

    fn belongs_to(&self, variable: &str, vendor: Provider) -> bool {
        let named = || self.pairs.iter().any(|(name, provider)| name == variable && *provider == vendor);
        match Provider::of_key(variable) {
            Some(owner) => owner == vendor,
            None => self.is_usual_for(variable, vendor) || (variable != ANY_KEY && named()),
        }
    }
}

/// The vendor whose own server `address` is on.
fn vendor_at(address: &Address) -> Option<Provider> {
    // Ollama's models can also be hosted by its maker.
    const SERVERS: [(&str, Provider); 5] = [
        ("https://api.anthropic.com", Provider::Anthropic),
        ("https://api.openai.com", Provider::OpenAi),
        ("https://generativelanguage.googleapis.com", Provider::Gemini),
        ("http://localhost:11434", Provider::Ollama),
        ("https://ollama.com", Provider::Ollama),
    ];
    let on = |server: &str| Address::parse(server).is_some_and(|server| server.is_on_server_of(address));
    SERVERS.into_iter().find(|(server, _)| on(server)).map(|(_, vendor)| vendor)
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
