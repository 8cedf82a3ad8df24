//! Hashes that identify a definition, to detect whether it has changed.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

/// Returns a hash of a list of parts: different lists have different hashes.
pub fn hash(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // The lengths make the encoding of a list unambiguous.
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    URL_SAFE_NO_PAD.encode(hash.finalize())
}
