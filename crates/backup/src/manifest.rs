//! A backup: the list of the pieces that make up its content, in order.

use std::fmt;
use std::str::FromStr;

use api::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::BackupError;
use crate::keys::{DataKey, Owner, PieceId};
use crate::seal::{self, Kind};

/// The version of manifests that is written, and the latest that is read.
const MANIFEST_VERSION: u32 = 1;
/// The largest manifest, in bytes: that of a backup of about 100 GB.
const MAX_MANIFEST_BYTES: usize = 64 * 1024 * 1024;
/// How many hexadecimal digits of a backup's id are its time.
const TIME_DIGITS: usize = 12;

/// The id of a backup: its time in milliseconds, a random number, and whether the engine was at rest, in text that
/// sorts by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackupId {
    at_ms: u64,
    random: u32,
    at_rest: bool,
}

impl BackupId {
    /// Creates the id of a backup made at `at`.
    pub fn new(at: Timestamp, at_rest: bool) -> Result<Self, BackupError> {
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(|_| BackupError::NoRandomness)?;
        Ok(Self { at_ms: at.unix_ms().unsigned_abs(), random: u32::from_be_bytes(random), at_rest })
    }

    /// When it was begun, in Unix milliseconds.
    pub fn at_ms(self) -> i64 {
        i64::try_from(self.at_ms).unwrap_or(i64::MAX)
    }

    /// Whether the engine did nothing while it was made, so that it has everything until the engine's next start.
    pub const fn at_rest(self) -> bool {
        self.at_rest
    }
}

impl fmt::Display for BackupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = if self.at_rest { 'r' } else { 'l' };
        write!(f, "{:0width$x}-{:08x}-{rest}", self.at_ms, self.random, width = TIME_DIGITS)
    }
}

/// The text is not a backup's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a backup's id looks like `0198c5f0a1b2-01234567-r`; `roundhouse backup list` prints them")]
pub struct InvalidBackupId;

impl FromStr for BackupId {
    type Err = InvalidBackupId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.split('-');
            let (at, random, rest) = (parts.next()?, parts.next()?, parts.next()?);
            let at_rest = match rest {
                "r" => true,
                "l" => false,
                _ => return None,
            };
            let at_ms = u64::from_str_radix(at, 16).ok()?;
            Some(Self { at_ms, random: u32::from_str_radix(random, 16).ok()?, at_rest })
        };
        // There is one text per id.
        parse().filter(|id| id.to_string() == text).ok_or(InvalidBackupId)
    }
}

/// A piece of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PieceRef {
    pub(crate) id: PieceId,
    /// The length of its content in bytes.
    pub(crate) length: u32,
}

impl Serialize for PieceRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.id.to_hex(), self.length).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PieceRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (id, length) = <(String, u32)>::deserialize(deserializer)?;
        let id = PieceId::from_hex(&id).ok_or_else(|| serde::de::Error::custom("invalid piece"))?;
        Ok(Self { id, length })
    }
}

/// The list of a backup's pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    version: u32,
    /// Whose it is.
    owner: String,
    /// Its id: a manifest that was copied to another name is noticed.
    id: String,
    /// The version of the program that sent the content.
    pub(crate) program: String,
    /// Entries, and the bytes of their content.
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// Files that could not be read.
    #[serde(default)]
    pub(crate) skipped: u64,
    pub(crate) pieces: Vec<PieceRef>,
}

impl Manifest {
    pub(crate) fn new(
        owner: Owner,
        id: BackupId,
        program: String,
        summary: crate::stream::Summary,
        pieces: Vec<PieceRef>,
    ) -> Self {
        Self {
            version: MANIFEST_VERSION,
            owner: owner.to_string(),
            id: id.to_string(),
            program,
            entries: summary.entries,
            bytes: summary.bytes,
            skipped: summary.skipped,
            pieces,
        }
    }

    pub(crate) fn seal(&self, key: &DataKey, name: &str) -> Result<Vec<u8>, BackupError> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        key.cipher.seal(Kind::Manifest, name, &[], &seal::compress(&text))
    }

    pub(crate) fn open(
        key: &DataKey,
        name: &str,
        object: &[u8],
        owner: Owner,
        id: BackupId,
    ) -> Result<Self, BackupError> {
        let stored = key.cipher.open(Kind::Manifest, name, 0, object)?;
        let text = seal::decompress(name, &stored, MAX_MANIFEST_BYTES)?;
        // Of a later version, no more than its number is known.
        let Version { version } =
            serde_json::from_slice(&text).map_err(|_| BackupError::damaged(name, "cannot be read"))?;
        if version > MANIFEST_VERSION {
            return Err(BackupError::NewerFormat { found: version });
        }
        let manifest: Self =
            serde_json::from_slice(&text).map_err(|_| BackupError::damaged(name, "cannot be read"))?;
        if manifest.owner != owner.to_string() || manifest.id != id.to_string() {
            return Err(BackupError::damaged(name, "is another backup's"));
        }
        Ok(manifest)
    }
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}
