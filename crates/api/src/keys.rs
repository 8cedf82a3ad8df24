//! Keys and their hashes.
//!
//! A key is wiped from memory when dropped. None of these types reveals its value: `Debug` prints a fixed text,
//! and there is no `Display`. The only way to the text is `expose`, which is easy to search for.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use zeroize::Zeroizing;

/// The kind of a [`Key`], which determines its prefix.
pub trait KeyKind {
    /// The text before the random part.
    const PREFIX: &'static str;
    /// The name of the key type in the OpenAPI document.
    const NAME: &'static str;
}

/// The kinds of keys.
pub mod kind {
    use super::KeyKind;

    /// A product's key to the orchestrator.
    pub enum Product {}
    /// A key to one engine.
    pub enum Engine {}

    impl KeyKind for Product {
        const PREFIX: &'static str = "pk-svc-";
        const NAME: &'static str = "PlatformKey";
    }
    impl KeyKind for Engine {
        const PREFIX: &'static str = "sk-svc-";
        const NAME: &'static str = "EngineKey";
    }
}

/// `pk-svc-…`: a product's key to the orchestrator.
pub type PlatformKey = Key<kind::Product>;
/// `sk-svc-…`: the key to one engine.
pub type EngineKey = Key<kind::Engine>;

/// A random key: the prefix of its kind and 32 random bytes in base64url (43 characters).
pub struct Key<H> {
    text: Zeroizing<String>,
    kind: PhantomData<fn() -> H>,
}

/// The error when the operating system's random source fails.
#[derive(Debug, thiserror::Error)]
#[error("the operating system's random source failed")]
pub struct NoRandomness(#[source] pub(crate) getrandom::Error);

impl<H: KeyKind> Key<H> {
    /// Generates a key from the operating system's random source.
    pub fn generate() -> Result<Self, NoRandomness> {
        let mut random = Zeroizing::new([0_u8; 32]);
        getrandom::fill(random.as_mut_slice()).map_err(NoRandomness)?;
        let text = Zeroizing::new(format!("{}{}", H::PREFIX, URL_SAFE_NO_PAD.encode(random.as_slice())));
        Ok(Self { text, kind: PhantomData })
    }

    /// Wraps a key that a caller sent or that was read from a store. Any text is accepted: a malformed key simply
    /// matches nothing.
    pub fn from_text(text: String) -> Self {
        Self { text: Zeroizing::new(text), kind: PhantomData }
    }
}

impl<H: KeyKind> Key<H> {
    /// The prefix of keys of this kind.
    pub const PREFIX: &'static str = H::PREFIX;

    /// Whether it has the form of a generated key: the prefix, and at least as many characters of the same
    /// alphabet (43 to 200). Such a key can be as hard to guess as a generated one.
    pub fn is_well_formed(&self) -> bool {
        self.text.strip_prefix(H::PREFIX).is_some_and(|random| {
            (43..=200).contains(&random.len())
                && random.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
        })
    }
}

impl<H> Key<H> {
    /// Returns the key's text. Only for the response, file or header that the key is meant for.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// Returns the hash, which is all that a verifier of the key needs.
    pub fn hash(&self) -> KeyHash {
        KeyHash::of(&self.text)
    }
}

impl<H> Clone for Key<H> {
    fn clone(&self) -> Self {
        Self { text: self.text.clone(), kind: PhantomData }
    }
}

impl<H: KeyKind> fmt::Debug for Key<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}…", H::PREFIX)
    }
}

/// Serializes the key in the clear: only responses that hand over a key have a field of this type.
impl<H> Serialize for Key<H> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de, H: KeyKind> Deserialize<'de> for Key<H> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from_text)
    }
}

impl<H: KeyKind> utoipa::PartialSchema for Key<H> {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some(format!("^{}[A-Za-z0-9_-]{{43}}$", H::PREFIX)))
            .into()
    }
}

impl<H: KeyKind> utoipa::ToSchema for Key<H> {
    fn name() -> Cow<'static, str> {
        H::NAME.into()
    }
}

/// The SHA-256 of a key: stored and passed on instead of the key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub(crate) [u8; 32]);

/// The error for a text that is not a key hash.
#[derive(Debug, thiserror::Error)]
#[error("must be 64 lower-case hexadecimal digits (the SHA-256 of the key)")]
pub struct InvalidKeyHash;

impl KeyHash {
    /// Hashes a key's text.
    pub fn of(key: &str) -> Self {
        Self(Sha256::digest(key.as_bytes()).into())
    }

    /// Whether `key` has this hash, compared in constant time.
    pub fn matches(&self, key: &str) -> bool {
        self.constant_time_eq(Self::of(key))
    }

    /// Whether `other` is the same hash, compared in constant time.
    pub fn constant_time_eq(&self, other: Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Returns the hash in lower-case hexadecimal, the format of `ENGINE_KEY_HASH`.
    pub fn to_hex(self) -> String {
        hex::encode(self.0)
    }

    /// Parses the result of [`KeyHash::to_hex`].
    pub fn from_hex(text: &str) -> Result<Self, InvalidKeyHash> {
        // `hex` accepts upper case too; only what `to_hex` writes is a hash.
        if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(InvalidKeyHash);
        }
        let mut hash = [0_u8; 32];
        hex::decode_to_slice(text, &mut hash).map_err(|_| InvalidKeyHash)?;
        Ok(Self(hash))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256…")
    }
}

impl<'de> Deserialize<'de> for KeyHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_hex(&Cow::<str>::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// The deployment's admin key, as chosen by the operator. Its clones share one buffer: services clone it with
/// their handlers' state for every request.
#[derive(Clone)]
pub struct AdminKey(Arc<Zeroizing<String>>);

impl AdminKey {
    /// Wraps the operator's key, which may be any text.
    pub fn from_text(text: String) -> Self {
        Self(Arc::new(Zeroizing::new(text)))
    }

    /// Whether `key` is this key, compared as plain strings in constant time.
    pub fn matches(&self, key: &str) -> bool {
        self.0.as_bytes().ct_eq(key.as_bytes()).into()
    }
}

impl fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("admin key…")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_contracts_form_and_differ() {
        let key = EngineKey::generate().unwrap();
        let random = key.expose().strip_prefix("sk-svc-").unwrap();
        assert_eq!(random.len(), 43);
        assert!(random.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
        assert_ne!(EngineKey::generate().unwrap().expose(), key.expose());
        assert!(PlatformKey::generate().unwrap().expose().starts_with("pk-svc-"));
    }

    #[test]
    fn a_key_never_shows_itself() {
        let key = EngineKey::generate().unwrap();
        let secret = key.expose().strip_prefix("sk-svc-").unwrap().to_owned();
        let admin = AdminKey::from_text("open sesame".into());
        let shown = format!("{key:?} {:?} {admin:?}", key.hash());
        assert!(!shown.contains(&secret) && !shown.contains(&key.hash().to_hex()), "{shown}");
        assert!(!shown.contains("sesame"), "{shown}");
    }

    #[test]
    fn hashes_match_their_key_alone_and_read_back() {
        let key = EngineKey::generate().unwrap();
        let hash = key.hash();
        assert!(hash.matches(key.expose()));
        assert!(!hash.matches(&key.expose()[1..]) && !hash.matches(""));
        assert_eq!(KeyHash::from_hex(&hash.to_hex()).unwrap(), hash);
        // The SHA-256 of the empty text, from the examples for FIPS 180-4.
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(KeyHash::of("").to_hex(), empty);
        for wrong in ["", "zz", &empty[1..], &empty.to_uppercase(), &format!("{empty}0")] {
            assert!(KeyHash::from_hex(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_admin_key_is_compared_whole() {
        let admin = AdminKey::from_text("open sesame".into());
        assert!(admin.matches("open sesame"));
        assert!(!admin.matches("open sesam") && !admin.matches("") && !admin.matches("open sesame "));
    }
}
