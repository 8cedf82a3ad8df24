//! Verifies that the process on an engine's port is that engine. The process has to prove that it holds the
//! engine's key; only if it gives no proof, as engines of earlier versions do, is the key sent to it. An engine
//! that must be able to give a proof is never sent the key.

use api::EngineKey;

use super::Fleet;
use crate::backend::{KeyProof, ProbeError};

impl Fleet {
    /// Verifies that the process on `port` is the engine that holds `key`.
    pub(super) async fn verify_identity(&self, port: u16, key: &EngineKey) -> Result<(), ProbeError> {
        let response = self.probe.check_health(port, key.hash()).await?;
        self.verify_proof(port, key, response.proof).await
    }

    /// Verifies an engine that was just launched and has answered with this `proof`.
    pub(super) async fn verify_launched_identity(
        &self,
        port: u16,
        key: &EngineKey,
        proof: KeyProof,
    ) -> Result<(), ProbeError> {
        if proof == KeyProof::Absent && self.backend.has_single_image() {
            // The engine is this very program, which gives a proof.
            return Err(ProbeError::Unproven { port });
        }
        self.verify_proof(port, key, proof).await
    }

    /// Verifies an engine that has answered with this `proof`.
    async fn verify_proof(&self, port: u16, key: &EngineKey, proof: KeyProof) -> Result<(), ProbeError> {
        match proof {
            KeyProof::Valid => Ok(()),
            KeyProof::Invalid => Err(ProbeError::KeyRefused { port }),
            KeyProof::Absent => self.probe.identify(port, key).await,
        }
    }
}
