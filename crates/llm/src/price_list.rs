//! The price list that ships with the engine: `prices.json`. A model's `prices` in `gateway.json` replace it.
//!
//! A model that is not in the list has no price, which is not the same as costing nothing.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::Prices;
use super::provider::Provider;

static PRICE_LIST: LazyLock<PriceList> =
    // A test parses the file; without it, no model would have a price.
    LazyLock::new(|| serde_json::from_str(include_str!("prices.json")).unwrap_or_default());

#[derive(Default, Deserialize)]
struct PriceList {
    /// The lists by the name of the provider.
    providers: BTreeMap<String, ProviderPrices>,
}

#[derive(Deserialize)]
struct ProviderPrices {
    /// The prices by the name of the model without the date of its snapshot.
    models: BTreeMap<String, ListedPrices>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedPrices {
    input: f64,
    output: f64,
    /// As `input` if it is absent.
    cache_read: Option<f64>,
    /// As `input` if it is absent.
    cache_write: Option<f64>,
}

impl From<ListedPrices> for Prices {
    fn from(listed: ListedPrices) -> Self {
        let ListedPrices { input, output, cache_read, cache_write } = listed;
        let (cache_read, cache_write) = (cache_read.unwrap_or(input), cache_write.unwrap_or(input));
        Self { input, output, cache_read, cache_write }
    }
}

/// The prices of a provider's model, if the list has it. A snapshot of a model costs as much as the model.
pub(super) fn find(provider: Provider, model: &str) -> Option<Prices> {
    let model = model.strip_prefix("models/").unwrap_or(model);
    let listed = &PRICE_LIST.providers.get(provider.name())?.models;
    listed.get(model).or_else(|| listed.get(without_snapshot(model)?)).copied().map(Prices::from)
}

/// The name of a model without the date of its snapshot (`-20250929`, `-2025-08-07`) or `-latest`; `None` if it has
/// neither.
fn without_snapshot(model: &str) -> Option<&str> {
    if let Some(name) = model.strip_suffix("-latest") {
        return Some(name);
    }
    let is_date = |text: &str, form: &[usize]| {
        let mut parts = text.split('-');
        let fits = |digits: &usize| {
            parts
                .next()
                .is_some_and(|part| part.len() == *digits && part.bytes().all(|byte| byte.is_ascii_digit()))
        };
        form.iter().all(fits)
    };
    for (length, form) in [(8, &[8][..]), (10, &[4, 2, 2][..])] {
        let split = model.len().checked_sub(length)?;
        if let Some((name, date)) = model.split_at_checked(split)
            && let Some(name) = name.strip_suffix('-')
            && is_date(date, form)
        {
            return Some(name);
        }
    }
    None
}

#[cfg(test)]
#[path = "../tests/unit/price_list.rs"]
mod tests;
