//! The secrets that the orchestrator seals under the deployment's master key.

pub(crate) use http_service::vault::Vault;
pub use http_service::vault::{KeyError, MasterKey};

/// The purpose of a sealed secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The plaintext engine key, which products get.
    EngineKey,
    /// The key with which the engine seals its own credentials.
    EngineSecrets,
    /// A secret that the requests of a webhook are signed with.
    WebhookSecret,
    /// The confirmation of a product's deletion, which is handed out and not stored.
    ProductDeletion,
    /// The answer to a call with an `Idempotency-Key`.
    IdempotentAnswer,
    /// A known text that shows whether the master key is the right one.
    KeyCheck,
}

impl AsRef<str> for Purpose {
    fn as_ref(&self) -> &str {
        match self {
            Self::EngineKey => "engine_key",
            Self::EngineSecrets => "ad_encryption_key",
            Self::WebhookSecret => "webhook_secret",
            Self::ProductDeletion => "product_deletion",
            Self::IdempotentAnswer => "idempotent_answer",
            Self::KeyCheck => "canary",
        }
    }
}
