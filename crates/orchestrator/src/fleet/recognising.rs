//! Whether what answers on an engine's port is that engine: by a proof that it has the key, and only where it gives none, by
//! sending it the key.

use contract::{EngineImage, EngineKey};

use super::Fleet;
use crate::backend::{Proof, Unwell};
use crate::sabotage::{self, Saboteur};

/// Engines of this major and minor version and of later ones give a proof: to one that does not the key is not sent.
const PROVES_SINCE: (u64, u64) = (0, 2);

/// Whether engines of `image` give a proof of their key.
fn proves(image: &EngineImage) -> bool {
    let mut numbers = image.version().split(['.', '-']).map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return false };
    (major, minor) >= PROVES_SINCE
}

impl Fleet {
    /// Makes sure that what answers on `port` is the engine of `key`.
    pub(super) async fn recognise(
        &self,
        port: u16,
        key: &EngineKey,
        image: &EngineImage,
    ) -> Result<(), Unwell> {
        let examined = self.probe.examine(port, key.hash()).await?;
        self.accept(port, key, image, examined.proof).await
    }

    /// The same, after it has answered with this `proof`.
    pub(super) async fn accept(
        &self,
        port: u16,
        key: &EngineKey,
        image: &EngineImage,
        proof: Proof,
    ) -> Result<(), Unwell> {
        match proof {
            Proof::Given if !sabotage::by(Saboteur::SendKeys) => Ok(()),
            Proof::Wrong => Err(Unwell::Refused { port }),
            Proof::Absent if proves(image) => {
                let answer = "a health answer without a proof of the key".to_owned();
                Err(Unwell::Stranger { port, answer })
            }
            Proof::Given | Proof::Absent => self.probe.identify(port, key).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_of_the_first_version_need_no_proof() {
        for (image, expected) in [
            ("svc-engine:0.1.0", false),
            ("svc-engine:0.1.9-rc.1", false),
            ("svc-engine:0.2.0", true),
            ("registry/svc-engine:1.0.0", true),
        ] {
            assert_eq!(proves(&image.parse().unwrap()), expected, "{image}");
        }
    }
}
