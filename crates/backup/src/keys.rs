//! The keys of a store of backups: a root key, sealed under the deployment's master key, and one data key per owner,
//! sealed under the root key.
//!
//! Only the root key depends on the master key, so another master key changes one object. Only the data key opens an
//! owner's pieces, and it is in the store alone: to delete its object is to erase all backups of that owner.

use std::fmt;

use api::EngineId;
use aws_lc_rs::hmac;
use http_service::vault::MasterKey;
use zeroize::Zeroizing;

use crate::BackupError;
use crate::seal::Cipher;

/// The length of keys, in bytes.
pub(crate) const KEY_BYTES: usize = 32;
/// The purpose for which the key of root objects is derived from the master key.
const MASTER_PURPOSE: &str = "roundhouse backup root 1";
/// How many bytes of an owner's keyed hash are its tag: too many to collide.
const TAG_BYTES: usize = 16;

/// Whose data a backup holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// The deployment: its registry.
    Registry,
    /// An engine.
    Engine(EngineId),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registry => f.write_str("registry"),
            Self::Engine(engine_id) => engine_id.fmt(f),
        }
    }
}

/// An owner's name in the store: a keyed hash, which says nothing to those who do not have the root key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tag(String);

impl Tag {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// What seals and opens the root object: derived from the master key.
pub(crate) struct RootSeal {
    pub(crate) cipher: Cipher,
    /// Tells this master key from others, and nothing else about it.
    pub(crate) id: [u8; 8],
}

impl RootSeal {
    pub(crate) fn new(master: &MasterKey) -> Result<Self, BackupError> {
        let key = master.derive(MASTER_PURPOSE);
        let mut id = [0; 8];
        for (to, from) in id.iter_mut().zip(mac(&key, &[b"id"]).iter()) {
            *to = *from;
        }
        Ok(Self { cipher: Cipher::new(&key)?, id })
    }
}

/// The key from which owners' tags derive, and which seals their data keys.
pub(crate) struct RootKey {
    key: Zeroizing<[u8; KEY_BYTES]>,
}

impl RootKey {
    pub(crate) const fn new(key: Zeroizing<[u8; KEY_BYTES]>) -> Self {
        Self { key }
    }

    pub(crate) fn tag(&self, owner: Owner) -> Tag {
        let hash = mac(&self.key, &[b"owner\0", owner.to_string().as_bytes()]);
        Tag(hex::encode(hash.iter().take(TAG_BYTES).copied().collect::<Vec<_>>()))
    }

    /// The cipher that seals data keys.
    pub(crate) fn cipher(&self) -> Result<Cipher, BackupError> {
        Cipher::new(&mac(&self.key, &[b"data keys"]))
    }
}

/// The key of one owner's manifests and pieces.
pub(crate) struct DataKey {
    pub(crate) cipher: Cipher,
    names: hmac::Key,
    cuts: hmac::Key,
}

impl DataKey {
    pub(crate) fn new(key: &Zeroizing<[u8; KEY_BYTES]>) -> Result<Self, BackupError> {
        let hmac_key = |purpose: &[u8]| hmac::Key::new(hmac::HMAC_SHA256, mac(key, &[purpose]).as_slice());
        Ok(Self {
            cipher: Cipher::new(&mac(key, &[b"seal"]))?,
            names: hmac_key(b"names"),
            cuts: hmac_key(b"cuts"),
        })
    }

    /// The name of a piece with this content.
    pub(crate) fn piece_id(&self, content: &[u8]) -> PieceId {
        let mut id = [0; KEY_BYTES];
        for (to, from) in id.iter_mut().zip(hmac::sign(&self.names, content).as_ref()) {
            *to = *from;
        }
        PieceId(id)
    }

    /// A number that the content determines, and that nobody without the key can predict: where pieces are cut says
    /// nothing about what is in them.
    pub(crate) fn cut_hash(&self, content: &[u8]) -> u8 {
        hmac::sign(&self.cuts, content).as_ref().first().copied().unwrap_or_default()
    }
}

/// The name of a piece: the keyed hash of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PieceId(pub(crate) [u8; KEY_BYTES]);

impl PieceId {
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        let mut id = [0; KEY_BYTES];
        hex::decode_to_slice(text, &mut id).ok()?;
        // Only what `to_hex` writes.
        (hex::encode(id) == text).then_some(Self(id))
    }

    pub(crate) fn to_hex(self) -> String {
        hex::encode(self.0)
    }
}

/// Generates a key.
pub(crate) fn generate() -> Result<Zeroizing<[u8; KEY_BYTES]>, BackupError> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    getrandom::fill(key.as_mut_slice()).map_err(|_| BackupError::NoRandomness)?;
    Ok(key)
}

/// HMAC-SHA-256 of the parts under `key`, which derives keys from keys.
fn mac(key: &Zeroizing<[u8; KEY_BYTES]>, parts: &[&[u8]]) -> Zeroizing<[u8; KEY_BYTES]> {
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key.as_slice()));
    for part in parts {
        context.update(part);
    }
    let mut derived = Zeroizing::new([0; KEY_BYTES]);
    for (to, from) in derived.iter_mut().zip(context.sign().as_ref()) {
        *to = *from;
    }
    derived
}
