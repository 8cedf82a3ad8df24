//! How an engine proves that it has its key, without being sent the key.
//!
//! Whoever asks `GET /health` with a challenge in [`CHALLENGE_HEADER`] is answered with a proof in [`PROOF_HEADER`]: the
//! HMAC-SHA256 under the key's hash, which only the engine and its orchestrator know. A program that has taken the
//! engine's port can neither make it nor learn anything of the key. Engines of earlier versions answer without a proof.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use crate::keys::{KeyHash, NoRandomness};

/// The header of a challenge: text of the asker's, new for each question.
pub const CHALLENGE_HEADER: &str = "x-engine-challenge";
/// The header of the proof.
pub const PROOF_HEADER: &str = "x-engine-proof";

/// What is proven, ahead of the challenge: so that no other use of the hash makes the same text.
const PROOF_CONTEXT: &str = "roundhouse engine proof 1\n";

/// As many as the hash function takes at once.
const HMAC_BLOCK_BYTES: usize = 64;

/// The longest challenge that is answered.
const MAX_CHALLENGE_BYTES: usize = 128;

/// A challenge: 1 to 128 letters, digits, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge(String);

impl Challenge {
    /// A new one.
    pub fn generate() -> Result<Self, NoRandomness> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(NoRandomness)?;
        Ok(Self(URL_SAFE_NO_PAD.encode(random)))
    }

    /// Reads the header's text; none if that is no challenge, which is then left unanswered.
    pub fn parse(text: &str) -> Option<Self> {
        let fits = (1..=MAX_CHALLENGE_BYTES).contains(&text.len());
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        (fits && plain).then(|| Self(text.to_owned()))
    }

    /// The proof of whoever has the key of `hash`: 64 lower-case hexadecimal digits.
    pub fn proof(&self, hash: KeyHash) -> String {
        // A shorter key is filled up with zeros, as HMAC has it.
        let mut key = [0; HMAC_BLOCK_BYTES];
        for (to, from) in key.iter_mut().zip(hash.0) {
            *to = from;
        }
        let mut mac = Hmac::<Sha256>::new(&key.into());
        mac.update(PROOF_CONTEXT.as_bytes());
        mac.update(self.0.as_bytes());
        KeyHash(mac.finalize().into_bytes().into()).to_hex()
    }

    /// Whether `proof` is that of the key of `hash`, in time that does not depend on where it differs.
    pub fn verify(&self, proof: &str, hash: KeyHash) -> bool {
        self.proof(hash).as_bytes().ct_eq(proof.as_bytes()).into()
    }
}

impl fmt::Display for Challenge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_key_and_one_challenge() {
        let (key, other) = (KeyHash::of("sk-svc-a"), KeyHash::of("sk-svc-b"));
        let (challenge, next) = (Challenge::generate().unwrap(), Challenge::generate().unwrap());
        let proof = challenge.proof(key);
        assert!(challenge.verify(&proof, key));
        assert!(!challenge.verify(&proof, other) && !next.verify(&proof, key));
        assert!(!challenge.verify("", key) && !challenge.verify(&proof[1..], key));
    }

    /// Engines and orchestrators of different versions meet: it never changes.
    #[test]
    fn the_proof_is_as_it_was() {
        let challenge = Challenge::parse("a-challenge").unwrap();
        assert_eq!(
            challenge.proof(KeyHash::of("sk-svc-fixture")),
            "05a9dfdbe4e3d85ef6ad71918e66f3213d42ce70946fd57326480e94f15cc430"
        );
    }

    #[test]
    fn what_is_no_challenge_is_not_answered() {
        for text in ["", "a b", "a\"b", &"a".repeat(129), "ä"] {
            assert_eq!(Challenge::parse(text), None, "{text}");
        }
    }
}
