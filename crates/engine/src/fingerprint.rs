//! Hashes by which it is known again what something was.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

/// A hash of a list of parts: no two lists have the same.
pub(crate) fn hash(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // With their lengths no two lists of parts read alike.
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    URL_SAFE_NO_PAD.encode(hash.finalize())
}
