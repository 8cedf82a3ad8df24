//! Browser access to an engine: tokens that a page may have instead of the engine's key, and the origins of the pages.

mod origin;
mod token;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::origin::{InvalidOrigin, Origin, Origins};
pub use self::token::{BrowserToken, Claims, Scope, Scopes, SigningKey, TokenRefusal, TokenSecret};
use crate::orchestrator::PageLimit;
use crate::serde_helpers::BoundedInt;
use crate::{EngineId, TaskId, Timestamp, TokenId};

/// The engine's variable with the secret from which the keys of its tokens derive.
pub const TOKEN_SECRET_VAR: &str = "ENGINE_TOKEN_SECRET";
/// The engine's variable with its [`BrowserAccess`] at the start.
pub const BROWSER_ACCESS_VAR: &str = "ENGINE_BROWSER_ACCESS";

/// The most browser tokens of an engine that have neither expired nor died with a key.
pub const MAX_TOKENS: usize = 500;

/// The lifetime of a token in seconds: a minute to a day.
pub type TokenLifetime = BoundedInt<60, 86_400>;
/// The lifetime of a token unless its minting says otherwise, in seconds.
pub const DEFAULT_LIFETIME_S: i64 = 900;

/// How long after its expiry a revoked token stays revoked, in milliseconds: a clock that is set back brings none back.
pub const REVOCATION_SLACK_MS: i64 = 3_600_000;

/// What an engine has to know about browsers: whose pages may call it, and which tokens it refuses although they have
/// not expired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrowserAccess {
    /// Grows with every change: of two, the one with the higher number is the later.
    #[serde(default)]
    pub revision: i64,
    /// The origins of the product's pages.
    #[serde(default)]
    pub origins: Origins,
    /// The revoked tokens, at most [`MAX_TOKENS`] of them.
    #[serde(default)]
    pub revoked: Vec<TokenId>,
}

/// Body of `POST /engines/{user_id}/tokens`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MintToken {
    /// What the token permits.
    pub scopes: Scopes,
    /// The only task that the token permits; by default every task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<TaskId>,
    /// For how many seconds the token is valid: 60 to 86,400; 900 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime_s: Option<TokenLifetime>,
}

/// Response of `POST /engines/{user_id}/tokens`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct MintedToken {
    /// The token, for `Authorization: Bearer`. It is returned only here.
    pub token: BrowserToken,
    /// What is known about it.
    #[serde(flatten)]
    pub summary: TokenSummary,
}

/// A browser token without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenSummary {
    /// The token's id, by which it can be revoked.
    pub token_id: TokenId,
    /// The engine for which it is valid.
    pub engine_id: EngineId,
    /// What it permits.
    pub scopes: Scopes,
    /// The only task that it permits; null if it permits every task.
    #[schema(required)]
    pub task_id: Option<TaskId>,
    /// When it was minted.
    pub issued_at: Timestamp,
    /// When it expires.
    pub expires_at: Timestamp,
    /// When it was revoked; null if it was not.
    #[schema(required)]
    pub revoked_at: Option<Timestamp>,
}

/// Query of `GET /engines/{user_id}/tokens`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ListTokens {
    /// Page size; 100 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<PageLimit>,
    /// Only tokens that are older than the one with this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<TokenId>,
}

/// Response of `GET /engines/{user_id}/tokens`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenList {
    /// The page: tokens that have not expired, newest first.
    pub tokens: Vec<TokenSummary>,
}

/// Response of `DELETE /engines/{user_id}/tokens/{token_id}`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RevokedToken {
    /// The token.
    #[serde(flatten)]
    pub summary: TokenSummary,
    /// Whether the engine refuses it from now on. `false`: the engine runs but has not answered yet; it is told again
    /// until it does.
    pub in_force: bool,
}

/// Body and response of `/origins`: the origins of the product's pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AllowedOrigins {
    /// The origins, such as `https://app.example.com`: at most 32.
    pub origins: Origins,
}
