//! The master key and the admin key, and the warning if one can be guessed.

use std::collections::HashSet;

use api::AdminKey;
use http_service::env::EnvReader;

use crate::keys::MasterKey;

/// The minimum length, and number of distinct characters, of an admin key that is hard to guess.
const ADMIN_KEY_MIN_LENGTH: usize = 16;
const ADMIN_KEY_MIN_DISTINCT: usize = 6;
/// A master key with fewer distinct characters is a pattern: 43 random ones contain about thirty.
const MASTER_KEY_MIN_DISTINCT: usize = 12;

/// A key that was read.
pub(super) struct ReadKey<K> {
    pub(super) key: K,
    /// Whether it is hard to guess.
    is_strong: bool,
}

/// Reads the key that encrypts the engines' stored keys.
pub(super) fn read_master_key(reader: &mut EnvReader<'_>) -> Option<ReadKey<MasterKey>> {
    reader.required_secret(
        "ORCH_MASTER_KEY",
        "32 random bytes in URL-safe base64 without padding (43 characters), such as the output of \
         `openssl rand -base64 32 | tr '+/' '-_' | tr -d =`",
        |text| Some(ReadKey { key: MasterKey::parse(text)?, is_strong: is_random_master_key(text) }),
    )
}

/// Reads the key for the admin endpoints.
pub(super) fn read_admin_key(reader: &mut EnvReader<'_>) -> Option<ReadKey<AdminKey>> {
    let key = |text: &str| ReadKey {
        key: AdminKey::from_text(text.to_owned()),
        is_strong: is_strong_admin_key(text),
    };
    reader.required_secret(
        "ORCH_ADMIN_KEY",
        "a secret of your choice that a header can carry: printable ASCII, without leading or trailing spaces",
        |text| is_valid_header_value(text).then(|| key(text)),
    )
}

/// Whether `text` arrives unchanged when it is sent as a header value.
fn is_valid_header_value(text: &str) -> bool {
    text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) && text.trim() == text
}

/// Whether an admin key is hard to guess.
fn is_strong_admin_key(text: &str) -> bool {
    text.chars().count() >= ADMIN_KEY_MIN_LENGTH && distinct_bytes(text) >= ADMIN_KEY_MIN_DISTINCT
}

/// Whether a base64 key looks random, rather than like a placeholder pattern.
fn is_random_master_key(text: &str) -> bool {
    distinct_bytes(text) >= MASTER_KEY_MIN_DISTINCT
}

/// Warns of weak keys, which still work: a deployment that has one must start after an upgrade too.
pub(super) fn weak_key_warnings(
    master_key: &ReadKey<MasterKey>,
    admin_key: &ReadKey<AdminKey>,
) -> Vec<&'static str> {
    let master = "ORCH_MASTER_KEY is a pattern instead of random bytes: anyone who guesses it can decrypt every \
                  engine's key. Change it with `roundhouse rekey`.";
    let admin = "ORCH_ADMIN_KEY can be guessed: make it at least 16 characters, chosen at random.";
    let weak = [(master_key.is_strong, master), (admin_key.is_strong, admin)];
    weak.into_iter().filter(|(is_strong, _)| !is_strong).map(|(_, warning)| warning).collect()
}

/// The number of distinct bytes in `text`.
fn distinct_bytes(text: &str) -> usize {
    text.bytes().collect::<HashSet<_>>().len()
}
