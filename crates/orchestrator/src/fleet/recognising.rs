//! Whether what answers on an engine's port is that engine: by a proof that it has the key, and only where it gives none, as
//! engines of earlier versions do, by sending it the key. One that must be able to give a proof is
//! sent none.

use contract::EngineKey;

use super::Fleet;
use crate::backend::{Proof, Unwell};
use crate::sabotage::{self, Saboteur};

impl Fleet {
    /// Makes sure that what answers on `port` is the engine of `key`.
    pub(super) async fn recognise(&self, port: u16, key: &EngineKey) -> Result<(), Unwell> {
        let examined = self.probe.examine(port, key.hash()).await?;
        self.accept(port, key, examined.proof).await
    }

    /// The same of one that was just launched, after it has answered with this `proof`.
    pub(super) async fn recognise_launched(
        &self,
        port: u16,
        key: &EngineKey,
        proof: Proof,
    ) -> Result<(), Unwell> {
        if proof == Proof::Absent && self.backend.has_one_image() {
            // The engine is this very program, which gives one.
            return Err(Unwell::Unproven { port });
        }
        self.accept(port, key, proof).await
    }

    /// The same, after it has answered with this `proof`.
    async fn accept(&self, port: u16, key: &EngineKey, proof: Proof) -> Result<(), Unwell> {
        match proof {
            Proof::Given if !sabotage::by(Saboteur::SendKeys) => Ok(()),
            Proof::Wrong => Err(Unwell::Refused { port }),
            Proof::Given | Proof::Absent => self.probe.identify(port, key).await,
        }
    }
}
