//! How webhooks send.

use fetch::WebAllowlist;
use http_service::env::{EnvReader, parse_seconds};

use crate::domain::WebhookRules;

/// Reads the rules of webhooks.
pub(super) fn read(reader: &mut EnvReader<'_>) -> WebhookRules {
    const SECONDS: &str = "seconds above 0, decimals allowed";
    let defaults = WebhookRules::default();
    let above_zero = |text: &str| parse_seconds(text).filter(|time| !time.is_zero());
    let allow =
        reader.parse_or("ORCH_WEBHOOK_ALLOW", WebAllowlist::EXPECTED, defaults.allow, WebAllowlist::parse);
    let timeout = reader.parse_or("ORCH_WEBHOOK_TIMEOUT_S", SECONDS, defaults.timeout, above_zero);
    let backoff_base =
        reader.parse_or("ORCH_WEBHOOK_BACKOFF_BASE_S", SECONDS, defaults.backoff_base, above_zero);
    let backoff_max =
        reader.parse_or("ORCH_WEBHOOK_BACKOFF_MAX_S", SECONDS, defaults.backoff_max, above_zero);
    let give_up_after =
        reader.parse_or("ORCH_WEBHOOK_GIVE_UP_S", SECONDS, defaults.give_up_after, above_zero);
    WebhookRules { allow, timeout, backoff_base, backoff_max, give_up_after }
}
