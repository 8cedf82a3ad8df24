//! `webhook.json`: where the engine reports that a turn has ended or waits for a person.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use api::webhooks::{WebhookEvent, WebhookSecret};
use serde::Deserialize;

use super::environment::{Environment, expand_variables};
use super::tools::http_call;
use super::{HttpCall, is_absent, read_text, redacted_json_error};

/// The maximum size of the file, in bytes.
const MAX_FILE_BYTES: u64 = 16 * 1024;
/// The most secrets: a new one and the one that it replaces.
const MAX_SECRETS: usize = 2;

/// Where the engine reports what happens.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum WebhookSetting {
    /// Nowhere.
    #[default]
    None,
    /// The file has never been read: what happens is recorded as before, and sent once it is known where to.
    Unknown,
    /// To this receiver.
    Receiver(Arc<WebhookSpec>),
}

/// A receiver.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookSpec {
    /// The address and headers.
    pub call: HttpCall,
    /// The secrets that each request is signed with: one, or two while a receiver learns a new one.
    pub secrets: Vec<WebhookSecret>,
    /// What is reported.
    pub events: BTreeSet<WebhookEvent>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WebhookFile {
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    secrets: Vec<String>,
    events: Option<BTreeSet<WebhookEvent>>,
}

/// Loads the receiver of the catalog in `catalog`. If the file cannot be read, the previous one applies.
pub(super) fn load(
    catalog: &Path,
    environment: &Environment,
    before: &WebhookSetting,
    warnings: &mut Vec<String>,
) -> WebhookSetting {
    let file = catalog.join("webhook.json");
    if is_absent(&file) {
        return WebhookSetting::None;
    }
    let parsed = read_text(&file, MAX_FILE_BYTES).and_then(|text| parse(&text, environment));
    match parsed {
        Ok(spec) => match before {
            WebhookSetting::Receiver(before) if **before == spec => {
                WebhookSetting::Receiver(Arc::clone(before))
            }
            _ => WebhookSetting::Receiver(Arc::new(spec)),
        },
        Err(reason) => {
            let outcome = match before {
                WebhookSetting::Receiver(_) => "its last good version stays in use",
                WebhookSetting::None | WebhookSetting::Unknown => "nothing is reported until this is fixed",
            };
            warnings.push(format!("webhook.json: {reason}; {outcome}"));
            before.clone()
        }
    }
}

fn parse(text: &str, environment: &Environment) -> Result<WebhookSpec, String> {
    // The text may hold secrets, and a message of serde may quote them: only the position is reported.
    let written: WebhookFile = serde_json::from_str(text).map_err(|error| redacted_json_error(&error))?;
    let WebhookFile { url, headers, secrets, events } = written;
    let call = http_call("POST", &url, &headers, environment)?;
    if call.url.fragment().is_some() {
        return Err("`url` must have no fragment".into());
    }
    if !(1..=MAX_SECRETS).contains(&secrets.len()) {
        return Err(format!("`secrets` has {} entries; it must have 1 or 2", secrets.len()));
    }
    let secrets = secrets.iter().zip(1..).map(|(secret, n)| {
        let secret =
            expand_variables(secret, environment).map_err(|reason| format!("secret {n}: {reason}"))?;
        WebhookSecret::parse(&secret).ok_or_else(|| format!("secret {n} must be {}", WebhookSecret::EXPECTED))
    });
    let events = events.unwrap_or_else(|| WebhookEvent::ALL.into());
    if events.is_empty() {
        return Err("`events` must name at least one event".into());
    }
    Ok(WebhookSpec { call, secrets: secrets.collect::<Result<_, _>>()?, events })
}

#[cfg(test)]
#[path = "../tests/unit/webhook.rs"]
mod tests;
