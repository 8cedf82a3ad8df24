//! The hash chain of the audit log: each row is hashed together with the hash of the product's previous row, so
//! that no row can be changed, dropped or moved without breaking all that follow.

use sha2::{Digest as _, Sha256};

/// The hash before a product's first row.
pub(super) const GENESIS_HASH: &str = "";

/// An audit row as its columns hold it, without its hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainedRow<'a> {
    pub(super) product_id: &'a str,
    pub(super) id: i64,
    pub(super) at: i64,
    pub(super) engine_id: Option<&'a str>,
    pub(super) user_id: Option<&'a str>,
    pub(super) event: &'a str,
    pub(super) duration_ms: Option<i64>,
    pub(super) detail: &'a str,
}

impl ChainedRow<'_> {
    /// Returns the row's hash, given the hash `before` of the previous row.
    pub(super) fn hash(&self, before: &str) -> String {
        let (id, at) = (self.id.to_string(), self.at.to_string());
        let duration_ms = self.duration_ms.map(|duration| duration.to_string());
        let fields = [
            Some("roundhouse audit 1"),
            Some(before),
            Some(self.product_id),
            Some(&*id),
            Some(&*at),
            self.engine_id,
            self.user_id,
            Some(self.event),
            duration_ms.as_deref(),
            Some(self.detail),
        ];
        let mut hasher = Sha256::new();
        for field in fields {
            // Each field is prefixed with its length, and null differs from every length: no two rows have the
            // same encoding.
            match field {
                Some(text) => {
                    hasher.update((text.len() as u64).to_be_bytes());
                    hasher.update(text.as_bytes());
                }
                None => hasher.update(u64::MAX.to_be_bytes()),
            }
        }
        hex::encode(hasher.finalize())
    }
}
