//! Encryption of stored secrets under a master key: the orchestrator's for engine keys and the like, an engine's
//! own for its user's credentials.
//!
//! A sealed secret is bound to its owner and its purpose: moved to another row or column, it cannot be opened. Its
//! format is base64url over `version ‖ nonce ‖ ciphertext`; the version byte allows the format to change while old
//! rows can still be opened. The cipher is AES-256-GCM-SIV (RFC 8452): even a repeated nonce reveals only that two
//! secrets are equal. Every admit opens a secret, so the implementation is that of the TLS library, which uses the
//! hardware.

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;
use zeroize::Zeroizing;

/// The format version that is written.
const FORMAT_VERSION: u8 = 2;

/// The key under which all secrets are sealed: 32 bytes.
#[derive(Clone)]
pub struct MasterKey(Zeroizing<[u8; 32]>);

impl MasterKey {
    /// Parses 43 characters of URL-safe base64 without padding; returns `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(text).ok()?);
        let mut key = Zeroizing::new([0_u8; 32]);
        if bytes.len() != key.len() {
            return None;
        }
        key.copy_from_slice(&bytes);
        Some(Self(key))
    }

    /// Generates a key from the operating system's random source.
    pub fn generate() -> Result<Self, KeyError> {
        let mut key = Zeroizing::new([0_u8; 32]);
        getrandom::fill(key.as_mut_slice()).map_err(|_| KeyError::NoRandomness)?;
        Ok(Self(key))
    }

    /// Derives a key for another use, which says nothing about this one.
    pub fn derive(&self, purpose: &str) -> Zeroizing<[u8; 32]> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, self.0.as_slice());
        let mut derived = Zeroizing::new([0_u8; 32]);
        for (to, from) in derived.iter_mut().zip(hmac::sign(&key, purpose.as_bytes()).as_ref()) {
            *to = *from;
        }
        derived
    }

    /// Returns the text that [`MasterKey::parse`] accepts. Only for the file or variable that stores the key.
    pub fn expose(&self) -> Zeroizing<String> {
        Zeroizing::new(URL_SAFE_NO_PAD.encode(self.0.as_slice()))
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("master key…")
    }
}

/// Why a secret could not be sealed or opened. The error reveals nothing about the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The operating system's random source failed.
    #[error("the operating system's random source failed")]
    NoRandomness,
    /// It was sealed under another master key, for another owner or another purpose, or it is damaged.
    #[error("a stored secret cannot be opened with this key")]
    CannotOpen,
}

/// Seals and opens secrets under one master key.
pub struct Vault {
    cipher: LessSafeKey,
}

impl Vault {
    /// Creates the vault of the key `master`.
    pub fn new(master: &MasterKey) -> Result<Self, KeyError> {
        let key = UnboundKey::new(&AES_256_GCM_SIV, master.0.as_slice()).map_err(|_| KeyError::CannotOpen)?;
        Ok(Self { cipher: LessSafeKey::new(key) })
    }

    /// Seals `secret` for `owner` and `purpose`, a name for its use.
    pub fn seal(&self, owner: &str, purpose: impl AsRef<str>, secret: &str) -> Result<String, KeyError> {
        let mut nonce = [0_u8; NONCE_LEN];
        getrandom::fill(&mut nonce).map_err(|_| KeyError::NoRandomness)?;
        let bound = associated_data(owner, purpose.as_ref());
        // The tag fits into the reserved space, so that the plain text is not copied by a reallocation.
        let mut text = Zeroizing::new(Vec::with_capacity(secret.len() + AES_256_GCM_SIV.tag_len()));
        text.extend_from_slice(secret.as_bytes());
        self.cipher
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(bound.as_bytes()),
                &mut *text,
            )
            .map_err(|_| KeyError::CannotOpen)?;
        let blob: Vec<u8> = [FORMAT_VERSION].iter().chain(&nonce).chain(text.iter()).copied().collect();
        Ok(URL_SAFE_NO_PAD.encode(blob))
    }

    /// Opens a secret that was sealed for the same `owner` and `purpose`.
    pub fn open(
        &self,
        owner: &str,
        purpose: impl AsRef<str>,
        sealed: &str,
    ) -> Result<Zeroizing<String>, KeyError> {
        let mut blob = Zeroizing::new(URL_SAFE_NO_PAD.decode(sealed).map_err(|_| KeyError::CannotOpen)?);
        let Some((&mut FORMAT_VERSION, rest)) = blob.split_first_mut() else {
            return Err(KeyError::CannotOpen);
        };
        let (nonce, sealed) = rest.split_first_chunk_mut::<NONCE_LEN>().ok_or(KeyError::CannotOpen)?;
        let bound = associated_data(owner, purpose.as_ref());
        let plain = self
            .cipher
            .open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(bound.as_bytes()), sealed)
            .map_err(|_| KeyError::CannotOpen)?;
        // Only text is ever sealed.
        let text = std::str::from_utf8(plain).map_err(|_| KeyError::CannotOpen)?;
        Ok(Zeroizing::new(text.to_owned()))
    }
}

/// Returns the associated data. No id contains NUL, so no two pairs have the same data.
fn associated_data(owner: &str, purpose: &str) -> String {
    format!("{owner}\0{purpose}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PURPOSE: &str = "engine_key";

    fn vault() -> Vault {
        Vault::new(&MasterKey(Zeroizing::new([7; 32]))).unwrap()
    }

    #[test]
    fn master_keys_are_43_characters_of_base64url() {
        let key = MasterKey::generate().unwrap();
        let text = key.expose();
        assert_eq!(text.len(), 43);
        assert_eq!(*MasterKey::parse(&text).unwrap().0, *key.0);
        assert!(!format!("{key:?}").contains(&**text));
        for wrong in ["", "short", &"A".repeat(42), &"A".repeat(44), &"+".repeat(43), &format!("{}=", *text)]
        {
            assert!(MasterKey::parse(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn the_same_secret_is_never_sealed_alike() {
        let vault = vault();
        let seal = || vault.seal("eng_1", PURPOSE, "secret").unwrap();
        assert_ne!(seal(), seal());
    }

    proptest! {
        #[test]
        fn a_sealed_secret_opens_for_its_owner_and_purpose_alone(
            owner in "[a-z_0-9]{1,40}", other in "[a-z_0-9]{1,40}", secret in ".{0,80}",
        ) {
            let vault = vault();
            let sealed = vault.seal(&owner, PURPOSE, &secret).unwrap();
            prop_assert!(secret.len() < 8 || !sealed.contains(&secret));
            prop_assert_eq!(&*vault.open(&owner, PURPOSE, &sealed).unwrap(), &secret);
            prop_assert!(vault.open(&owner, "another", &sealed).is_err());
            prop_assert!(other == owner || vault.open(&other, PURPOSE, &sealed).is_err());
            let other_vault = Vault::new(&MasterKey(Zeroizing::new([8; 32]))).unwrap();
            prop_assert!(other_vault.open(&owner, PURPOSE, &sealed).is_err());
        }

        #[test]
        fn a_damaged_secret_does_not_open(at in any::<prop::sample::Index>(), flip in 1_u8..=255) {
            let vault = vault();
            let sealed = vault.seal("eng_1", PURPOSE, "sk-svc-secret").unwrap();
            let mut blob = URL_SAFE_NO_PAD.decode(&sealed).unwrap();
            let at = at.index(blob.len());
            blob[at] ^= flip;
            let damaged = URL_SAFE_NO_PAD.encode(blob);
            prop_assert_eq!(vault.open("eng_1", PURPOSE, &damaged).unwrap_err(), KeyError::CannotOpen);
        }

        #[test]
        fn no_text_panics_the_vault(text in ".{0,100}") {
            let _ = vault().open("eng_1", PURPOSE, &text);
        }
    }
}
