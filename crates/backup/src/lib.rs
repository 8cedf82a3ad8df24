//! Backups of engines and of the registry: their format, and the store that keeps them.
//!
//! A backup is a [`stream`] of frames, which is cut into pieces ([`chunker`]); pieces are named by a keyed hash of their
//! content, so what has not changed since an earlier backup is not stored again. Every object of the store is sealed
//! ([`seal`]) under a key of its owner ([`keys`]). [`Store`] has the operations: writing and reading backups, their
//! retention, their verification and their erasure. [`source`] and [`staging`] are the engine's side: they read and
//! restore its folder.

mod access;
mod chunker;
mod error;
mod keys;
mod manifest;
mod retention;
mod seal;
pub mod source;
pub mod staging;
mod store;
pub mod stream;
mod target;
mod writer;

pub use error::BackupError;
pub use keys::Owner;
pub use manifest::{BackupId, InvalidBackupId};
pub use retention::Retention;
pub use store::{BackupSummary, Collected, Content, Store, StoreKey};
pub use target::{InvalidTarget, Target};
pub use writer::{BackupWriter, Written};

#[cfg(test)]
#[path = "../tests/unit/mod.rs"]
mod tests;
