//! Whether what answers on an engine's port is that engine: by a proof that it has the key, and only where it gives none, as
//! engines of earlier versions do, by sending it the key. One that must be able to give a proof is
//! sent none.

use contract::EngineKey;

use super::Fleet;
use crate::backend::{KeyProof, ProbeError};
use crate::fault_injection::{self, Mutation};

impl Fleet {
    /// Makes sure that what answers on `port` is the engine of `key`.
    pub(super) async fn verify_identity(&self, port: u16, key: &EngineKey) -> Result<(), ProbeError> {
        let examined = self.probe.check_health(port, key.hash()).await?;
        self.verify_proof(port, key, examined.proof).await
    }

    /// The same of one that was just launched, after it has answered with this `proof`.
    pub(super) async fn verify_launched_identity(
        &self,
        port: u16,
        key: &EngineKey,
        proof: KeyProof,
    ) -> Result<(), ProbeError> {
        if proof == KeyProof::Absent && self.backend.has_single_image() {
            // The engine is this very program, which gives one.
            return Err(ProbeError::Unproven { port });
        }
        self.verify_proof(port, key, proof).await
    }

    /// The same, after it has answered with this `proof`.
    async fn verify_proof(&self, port: u16, key: &EngineKey, proof: KeyProof) -> Result<(), ProbeError> {
        match proof {
            KeyProof::Valid if !fault_injection::active(Mutation::SendKeys) => Ok(()),
            KeyProof::Invalid => Err(ProbeError::KeyRefused { port }),
            KeyProof::Valid | KeyProof::Absent => self.probe.identify(port, key).await,
        }
    }
}
