//! The envelope of every object: `RHBK ‖ version ‖ kind ‖ nonce ‖ ciphertext`.
//!
//! The cipher is AES-256-GCM-SIV, as for the registry's secrets: a repeated nonce would reveal only that two objects are
//! equal. The associated data are the header and the object's name, so an object that was moved to another name, or to
//! another owner, cannot be opened.

use std::io::{Read as _, Write as _};

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use zeroize::Zeroizing;

use crate::BackupError;
use crate::keys::KEY_BYTES;

/// The first bytes of every object.
const MAGIC: &[u8; 4] = b"RHBK";
/// The version of the objects' format that is written, and the latest that is read.
pub(crate) const FORMAT_VERSION: u8 = 1;
/// The length of the header: magic, version and kind.
const HEADER_BYTES: usize = 6;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The root key.
    Root = 1,
    /// An owner's data key.
    DataKey = 2,
    /// The list of a backup's pieces.
    Manifest = 3,
    /// A piece of content.
    Piece = 4,
}

/// Seals and opens objects under one key.
pub(crate) struct Cipher(LessSafeKey);

impl Cipher {
    pub(crate) fn new(key: &Zeroizing<[u8; KEY_BYTES]>) -> Result<Self, BackupError> {
        let key = UnboundKey::new(&AES_256_GCM_SIV, key.as_slice()).map_err(|_| BackupError::NoRandomness)?;
        Ok(Self(LessSafeKey::new(key)))
    }

    /// Seals `plain` as the object `name`. `prefix` stands unencrypted before the nonce, and is authenticated too.
    pub(crate) fn seal(
        &self,
        kind: Kind,
        name: &str,
        prefix: &[u8],
        plain: &[u8],
    ) -> Result<Vec<u8>, BackupError> {
        let mut nonce = [0; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|_| BackupError::NoRandomness)?;
        let mut object = Vec::with_capacity(
            HEADER_BYTES + prefix.len() + NONCE_LEN + plain.len() + AES_256_GCM_SIV.tag_len(),
        );
        object.extend_from_slice(MAGIC);
        object.extend_from_slice(&[FORMAT_VERSION, kind as u8]);
        object.extend_from_slice(prefix);
        let aad = associated_data(&object, name);
        object.extend_from_slice(&nonce);
        let mut text = plain.to_vec();
        self.0
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(aad), &mut text)
            .map_err(|_| BackupError::NoRandomness)?;
        object.append(&mut text);
        Ok(object)
    }

    /// Opens the object `name`, which was sealed with a prefix of `prefix_bytes`.
    pub(crate) fn open(
        &self,
        kind: Kind,
        name: &str,
        prefix_bytes: usize,
        object: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, BackupError> {
        check_header(kind, name, object)?;
        let damaged = || BackupError::damaged(name, "is not what was stored");
        let (head, rest) = object.split_at_checked(HEADER_BYTES + prefix_bytes).ok_or_else(damaged)?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>().ok_or_else(damaged)?;
        let mut text = Zeroizing::new(sealed.to_vec());
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plain = self.0.open_in_place(nonce, Aad::from(associated_data(head, name)), &mut text);
        let length = plain.map_err(|_| damaged())?.len();
        text.truncate(length);
        Ok(text)
    }
}

/// Returns the prefix of an object: `bytes` bytes after its header.
pub(crate) fn prefix<'a>(
    kind: Kind,
    name: &str,
    object: &'a [u8],
    bytes: usize,
) -> Result<&'a [u8], BackupError> {
    check_header(kind, name, object)?;
    let prefix = object.get(HEADER_BYTES..HEADER_BYTES + bytes);
    prefix.ok_or_else(|| BackupError::damaged(name, "is cut off"))
}

fn check_header(kind: Kind, name: &str, object: &[u8]) -> Result<(), BackupError> {
    let Some((header, _)) = object.split_first_chunk::<HEADER_BYTES>() else {
        return Err(BackupError::damaged(name, "is cut off"));
    };
    let [magic @ .., version, found] = header;
    if magic != MAGIC {
        return Err(BackupError::damaged(name, "is no object of a backup"));
    }
    if *version > FORMAT_VERSION {
        return Err(BackupError::NewerFormat { found: u32::from(*version) });
    }
    if *version == 0 || *found != kind as u8 {
        return Err(BackupError::damaged(name, "is an object of another kind"));
    }
    Ok(())
}

fn associated_data(head: &[u8], name: &str) -> Vec<u8> {
    [head, b"\0", name.as_bytes()].concat()
}

/// How content is stored before it is sealed: the first byte says which.
const RAW: u8 = 0;
const DEFLATED: u8 = 1;

/// Compresses `content`, unless that does not make it smaller.
pub(crate) fn compress(content: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(vec![DEFLATED], Compression::fast());
    // Writing to memory does not fail.
    let deflated = encoder.write_all(content).and_then(|()| encoder.finish()).unwrap_or_default();
    if !deflated.is_empty() && deflated.len() <= content.len() {
        return deflated;
    }
    [&[RAW], content].concat()
}

/// Restores what [`compress`] was given, which has `limit` bytes at most.
pub(crate) fn decompress(name: &str, stored: &[u8], limit: usize) -> Result<Vec<u8>, BackupError> {
    match stored.split_first() {
        Some((&RAW, content)) if content.len() <= limit => Ok(content.to_vec()),
        Some((&DEFLATED, deflated)) => {
            let mut content = Vec::new();
            let bound = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
            let read = DeflateDecoder::new(deflated).take(bound).read_to_end(&mut content);
            match read {
                Ok(_) if content.len() <= limit => Ok(content),
                Ok(_) => Err(BackupError::damaged(name, "is larger than anything that is stored")),
                Err(_) => Err(BackupError::damaged(name, "cannot be decompressed")),
            }
        }
        Some(_) | None => Err(BackupError::damaged(name, "is stored in an unknown way")),
    }
}
