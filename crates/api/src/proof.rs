//! Proof that an engine has its key, without sending the key.
//!
//! The response of `GET /health` to a request with a challenge in [`CHALLENGE_HEADER`] has a proof in
//! [`PROOF_HEADER`]: the challenge's HMAC-SHA256 under the key's hash, which only the engine and its orchestrator
//! know. Another program on the engine's port can neither compute it nor learn anything about the key. Engines of
//! earlier versions answer without a proof.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::keys::{KeyHash, NoRandomness};

/// The header of a challenge: a text chosen by the client, new for each request.
pub const CHALLENGE_HEADER: &str = "x-engine-challenge";
/// The header of the proof.
pub const PROOF_HEADER: &str = "x-engine-proof";

/// The header with the tag of the questions that wait, beside the proof.
pub const WAITING_HEADER: &str = "x-engine-waiting";

/// The text before a set of questions in the HMAC's input.
const WAITING_CONTEXT: &str = "roundhouse engine waiting 1\n";

/// Computes the tag of a set of questions, which says nothing to those who do not have the key's hash: `count` of them,
/// and the latest one.
pub fn waiting_tag(hash: KeyHash, count: u64, latest: &str) -> String {
    let set = format!("{count} {latest}");
    KeyHash(hmac_sha256(&hash.0, &[WAITING_CONTEXT.as_bytes(), set.as_bytes()])).to_hex()
}

/// The header with the tag of what the engine has used, beside the proof.
pub const USAGE_HEADER: &str = "x-engine-usage";

/// The text before the mark of what was used in the HMAC's input.
const USAGE_CONTEXT: &str = "roundhouse engine usage 1\n";

/// Computes the tag of what an engine has used, which says nothing to those who do not have the key's hash: `mark`
/// changes whenever something is counted.
pub fn usage_tag(hash: KeyHash, mark: u64) -> String {
    KeyHash(hmac_sha256(&hash.0, &[USAGE_CONTEXT.as_bytes(), mark.to_string().as_bytes()])).to_hex()
}

/// The text before the challenge in the HMAC's input, which separates this use of the hash from any other.
const PROOF_CONTEXT: &str = "roundhouse engine proof 1\n";

/// The block size of SHA-256, which is the key size of its HMAC.
const HMAC_BLOCK_BYTES: usize = 64;

/// The longest challenge that is answered, in bytes.
const MAX_CHALLENGE_BYTES: usize = 128;

/// A challenge: 1 to 128 letters, digits, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge(String);

impl Challenge {
    /// Generates a new challenge.
    pub fn generate() -> Result<Self, NoRandomness> {
        let mut random = [0; 32];
        getrandom::fill(&mut random).map_err(NoRandomness)?;
        Ok(Self(URL_SAFE_NO_PAD.encode(random)))
    }

    /// Parses the header's text; returns `None` if it is not a valid challenge, which is then ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let has_length = (1..=MAX_CHALLENGE_BYTES).contains(&text.len());
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        (has_length && is_plain).then(|| Self(text.to_owned()))
    }

    /// Computes the proof under the key with this hash: 64 lower-case hexadecimal digits.
    pub fn proof(&self, hash: KeyHash) -> String {
        KeyHash(hmac_sha256(&hash.0, &[PROOF_CONTEXT.as_bytes(), self.0.as_bytes()])).to_hex()
    }

    /// Whether `proof` was computed under the key with this hash, compared in constant time.
    pub fn verify(&self, proof: &str, hash: KeyHash) -> bool {
        self.proof(hash).as_bytes().ct_eq(proof.as_bytes()).into()
    }
}

/// Computes the HMAC-SHA256 of the concatenated `parts`. The first part names the use, so that no result of one use is
/// one of another.
pub(crate) fn hmac_sha256(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    // HMAC pads a shorter key with zeros.
    let mut padded = Zeroizing::new([0; HMAC_BLOCK_BYTES]);
    for (to, from) in padded.iter_mut().zip(key) {
        *to = *from;
    }
    let mut mac = Hmac::<Sha256>::new((&*padded).into());
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
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

    /// Engines and orchestrators of different versions work together, so the proof must never change.
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
