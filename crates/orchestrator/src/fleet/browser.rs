//! Browser access: mints and revokes the tokens of engines, keeps the origins of the products' pages, and lets engines
//! know both.
//!
//! An engine verifies tokens alone. What it cannot know, it is told: in its environment at each launch, and by a
//! command when something changes while it runs. A command that fails is repeated until the engine has answered or
//! stopped; after a start of the orchestrator, every running engine with something to know is told again. So whatever
//! dies between a revocation and its command, the engine learns of it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::browser::{
    AllowedOrigins, BrowserToken, Claims, DEFAULT_LIFETIME_S, ListTokens, MintToken, MintedToken, Origins,
    RevokedToken, TokenList, TokenRefusal, TokenSecret, TokenSummary,
};
use api::orchestrator::{EngineStatus, PageLimit};
use api::{EngineId, ProductId, Timestamp, TokenId, UserId};
use futures::StreamExt as _;
use parking_lot::{Mutex, RwLock};
use secrecy::ExposeSecret as _;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::FleetError;
use super::caller::Caller;
use super::engine_client::EngineClient;
use super::idempotency::Call;
use super::queries::DEFAULT_PAGE_SIZE;
use super::shared::Shared;
use crate::domain::EngineOwner;
use crate::keys::KeyError;
use crate::registry::{AuditEntry, EngineRow, Event, MintRefused, Product, RegistryError};

/// The pause before engines that have not answered are told again.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
/// Engines that are told concurrently.
const MAX_CONCURRENT_COMMANDS: usize = 16;

/// The browsers' access to the engines.
pub(crate) struct Browsers {
    shared: Arc<Shared>,
    client: Arc<EngineClient>,
    /// The origins of each product's pages, for preflights, which do not name a product.
    origins: RwLock<HashMap<ProductId, Arc<Origins>>>,
    /// The engines that have to be told.
    untold: Mutex<HashSet<EngineId>>,
}

/// What became of an attempt to tell an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// It knows, or reads it when it starts.
    Yes,
    /// It is starting, or has not answered.
    NotYet,
}

impl Browsers {
    pub(super) fn new(shared: Arc<Shared>, client: Arc<EngineClient>) -> Self {
        Self { shared, client, origins: RwLock::default(), untold: Mutex::default() }
    }

    /// Loads the origins, and remembers to tell every engine that may have missed something.
    pub(super) async fn load(&self) -> Result<(), RegistryError> {
        let origins = self.shared.registry.all_origins().await?;
        let engines = self.shared.registry.engines_with_browser_access(None).await?;
        *self.origins.write() =
            origins.into_iter().map(|(product, origins)| (product, Arc::new(origins))).collect();
        self.untold.lock().extend(engines);
        Ok(())
    }

    /// Tells engines what they have missed, until `shutdown`.
    pub(super) async fn tell_engines(
        self: Arc<Self>,
        mut ready: watch::Receiver<bool>,
        shutdown: CancellationToken,
    ) {
        let telling = async {
            // The sender lives as long as the fleet.
            let _ = ready.wait_for(|ready| *ready).await;
            loop {
                let untold: Vec<_> = self.untold.lock().iter().copied().collect();
                let tell = |engine_id| self.tell_and_remember(engine_id);
                futures::stream::iter(untold)
                    .map(tell)
                    .buffer_unordered(MAX_CONCURRENT_COMMANDS)
                    .count()
                    .await;
                self.shared.clock.sleep(RETRY_INTERVAL).await;
            }
        };
        shutdown.run_until_cancelled(telling).await;
    }

    /// Mints a token for the engine of a user.
    pub(crate) async fn mint(
        &self,
        product: &Product,
        user_id: UserId,
        request: MintToken,
        call: Option<&Call>,
    ) -> Result<MintedToken, FleetError> {
        let row = self.engine(product, user_id).await?;
        let now = self.shared.clock.now();
        let lifetime_s = request.lifetime_s.map_or(DEFAULT_LIFETIME_S, api::serde_helpers::BoundedInt::get);
        let expires_at = Timestamp::from_unix_ms(now.unix_ms().saturating_add(lifetime_s * 1_000));
        let MintToken { scopes, task_id, .. } = request;
        let engine_id = row.engine_id;
        let summary = TokenSummary {
            token_id: TokenId::new(),
            engine_id,
            scopes,
            task_id,
            issued_at: now,
            expires_at,
            revoked_at: None,
        };
        let claims = Claims {
            token_id: summary.token_id,
            engine_id,
            issued_at_ms: now.unix_ms(),
            expires_at_ms: expires_at.unix_ms(),
            scopes: summary.scopes.clone(),
            task_id: summary.task_id.clone(),
        };
        let token = self.secret(&row)?.signing_key(row.key_hash).sign(&claims);
        let detail = json!({
            "token_id": summary.token_id, "scopes": summary.scopes, "task_id": summary.task_id,
            "expires_at": summary.expires_at,
        });
        let minted = MintedToken { token, summary };
        let call = call.map(|call| call.applied_with(&minted)).transpose()?;
        let entry = engine_entry(&row, Event::MintToken, now, detail).of_call(call);
        match self.shared.registry.insert_token(&row, &minted.summary, &entry).await? {
            Ok(()) => Ok(minted),
            // Deleted meanwhile, or its key was rotated: the product asks again.
            Err(MintRefused::Stale) => Err(FleetError::EngineNotFound),
            Err(MintRefused::Limit { first_expiry }) => {
                let wait_ms = first_expiry.unix_ms().saturating_sub(now.unix_ms()).max(1_000);
                Err(FleetError::TokenLimit { retry_after_s: wait_ms.unsigned_abs().div_ceil(1_000) })
            }
        }
    }

    /// Lists the tokens of a user's engine that are not void, newest first.
    pub(crate) async fn list(
        &self,
        product: &Product,
        user_id: UserId,
        query: ListTokens,
    ) -> Result<TokenList, FleetError> {
        let row = self.engine(product, user_id).await?;
        let (now, limit) = (self.shared.clock.now(), query.limit.map_or(DEFAULT_PAGE_SIZE, PageLimit::get));
        let tokens = self.shared.registry.tokens(&row, now, query.before, limit).await?;
        Ok(TokenList { tokens })
    }

    /// Revokes a token of a user's engine. It may be called again.
    pub(crate) async fn revoke(
        self: &Arc<Self>,
        caller: &Caller,
        user_id: UserId,
        token_id: TokenId,
    ) -> Result<RevokedToken, FleetError> {
        let (row, actor) = (self.engine(caller, user_id).await?, caller.actor());
        let browsers = Arc::clone(self);
        // In a task of its own: whoever disconnects does not keep the engine from being told.
        let revoked = tokio::spawn(async move {
            let registry = &browsers.shared.registry;
            let token = registry.token(&row, token_id).await?.ok_or(FleetError::TokenNotFound)?;
            let now = browsers.shared.clock.now();
            let entry = engine_entry(&row, Event::RevokeToken, now, json!({"token_id": token_id}));
            let entry = entry.by(actor);
            let summary =
                if token.revoked_at.is_none() && registry.revoke_token(&row, token_id, &entry).await? {
                    browsers.untold.lock().insert(row.engine_id);
                    TokenSummary { revoked_at: Some(now), ..token }
                } else {
                    registry.token(&row, token_id).await?.ok_or(FleetError::TokenNotFound)?
                };
            let is_untold = browsers.untold.lock().contains(&row.engine_id);
            let told = if is_untold { browsers.tell_and_remember(row.engine_id).await } else { Told::Yes };
            Ok(RevokedToken { summary, in_force: told == Told::Yes })
        });
        revoked.await.unwrap_or_else(|error| Err(FleetError::internal(error)))
    }

    /// The origins of a product's pages.
    pub(crate) async fn origins(&self, product: &Product) -> Result<AllowedOrigins, FleetError> {
        Ok(AllowedOrigins { origins: self.shared.registry.origins(product.product_id).await? })
    }

    /// Replaces the origins of a product's pages. Running engines are told at once.
    pub(crate) async fn set_origins(
        self: &Arc<Self>,
        caller: &Caller,
        origins: Origins,
    ) -> Result<AllowedOrigins, FleetError> {
        let (product_id, actor, call) = (caller.product_id, caller.actor(), caller.call().cloned());
        let browsers = Arc::clone(self);
        let set = tokio::spawn(async move {
            let at = browsers.shared.clock.now();
            let detail = json!({"origins": origins});
            let call = call.as_ref();
            let entry = AuditEntry {
                at,
                event: Event::SetOrigins,
                engine: None,
                duration_ms: None,
                detail,
                call: call.map(Call::applied),
            };
            let entry = entry.by(actor);
            let registry = &browsers.shared.registry;
            let in_force = if call.is_some_and(Call::is_applied) {
                // They may have been replaced since then.
                registry.origins(product_id).await?
            } else {
                registry.set_origins(product_id, &origins, &entry).await?;
                origins.clone()
            };
            browsers.origins.write().insert(product_id, Arc::new(in_force));
            let engines = registry.engines_with_browser_access(Some(product_id)).await?;
            browsers.untold.lock().extend(engines.iter().copied());
            let tell = |engine_id| browsers.tell_and_remember(engine_id);
            futures::stream::iter(engines).map(tell).buffer_unordered(MAX_CONCURRENT_COMMANDS).count().await;
            Ok(AllowedOrigins { origins })
        });
        set.await.unwrap_or_else(|error| Err(FleetError::internal(error)))
    }

    /// Whether any product has pages.
    pub(crate) fn is_used(&self) -> bool {
        self.origins.read().values().any(|origins| !origins.is_empty())
    }

    /// Whether a page with this origin is of some product: a preflight names none.
    pub(crate) fn any_product_allows(&self, origin: &str) -> bool {
        self.origins.read().values().any(|origins| origins.allow(origin))
    }

    /// Whether a page with this origin is of this product.
    pub(crate) fn product_allows(&self, product_id: ProductId, origin: &str) -> bool {
        self.known_origins(product_id).allow(origin)
    }

    /// Verifies that a token is of the engine of a user, whose product it thereby names. The engine verifies it again,
    /// and knows what it permits.
    pub(crate) async fn verify(
        &self,
        token: &BrowserToken,
        user_id: &UserId,
    ) -> Result<EngineOwner, FleetError> {
        let invalid = FleetError::TokenRefused(TokenRefusal::Invalid);
        let Some(engine_id) = token.claimed_engine() else { return Err(invalid) };
        let row = self.shared.registry.engine_by_id(engine_id).await?;
        let Some(row) = row.filter(|row| row.owner.user_id == *user_id) else { return Err(invalid) };
        let signing_key = self.secret(&row)?.signing_key(row.key_hash);
        let claims = signing_key.verify(token, engine_id, self.shared.clock.now());
        let claims = claims.map_err(FleetError::TokenRefused)?;
        match self.shared.registry.token(&row, claims.token_id).await? {
            Some(token) if token.revoked_at.is_none() => Ok(row.owner),
            Some(_) => Err(FleetError::TokenRefused(TokenRefusal::Revoked)),
            None => Err(invalid),
        }
    }

    async fn engine(&self, product: &Product, user_id: UserId) -> Result<EngineRow, FleetError> {
        let row = self.shared.registry.engine(&product.engine_owner(user_id)).await?;
        row.filter(|row| row.status != EngineStatus::Destroying).ok_or(FleetError::EngineNotFound)
    }

    fn secret(&self, row: &EngineRow) -> Result<TokenSecret, KeyError> {
        token_secret(&self.shared, row.engine_id, &row.sealed_secrets_key)
    }

    fn known_origins(&self, product_id: ProductId) -> Arc<Origins> {
        self.origins.read().get(&product_id).cloned().unwrap_or_default()
    }

    /// Tells an engine. It stays remembered until it knows.
    async fn tell_and_remember(&self, engine_id: EngineId) -> Told {
        // Forgotten before the registry is read: whoever changes something later remembers it again.
        self.untold.lock().remove(&engine_id);
        let told = self.tell(engine_id).await.unwrap_or_else(|error| {
            tracing::info!(
                %engine_id,
                error = &error as &dyn std::error::Error,
                "An engine could not be told about browser tokens and origins; retrying."
            );
            Told::NotYet
        });
        if told == Told::NotYet {
            self.untold.lock().insert(engine_id);
        }
        told
    }

    async fn tell(&self, engine_id: EngineId) -> Result<Told, FleetError> {
        let Some(row) = self.shared.registry.engine_by_id(engine_id).await? else { return Ok(Told::Yes) };
        let Some(engine) = self.shared.running(&row) else {
            // One that is launched later reads it then; one that is being launched may have read it before.
            return Ok(if row.claim.is_some() { Told::NotYet } else { Told::Yes });
        };
        let now = self.shared.clock.now();
        let access = self.shared.registry.browser_access(engine_id, row.owner.product_id, now).await?;
        let key = self.shared.keys.key(&row)?;
        match self.client.set_browser_access(engine, &key, &access).await {
            // What it was told concerns this instance; a change under way may launch another.
            Ok(()) if row.claim.is_none() => Ok(Told::Yes),
            Ok(()) => Ok(Told::NotYet),
            Err(error) => Err(FleetError::Backend(error.to_string())),
        }
    }
}

/// The secret from which the keys of an engine's tokens derive.
pub(super) fn token_secret(
    shared: &Shared,
    engine_id: EngineId,
    sealed_secrets_key: &str,
) -> Result<TokenSecret, KeyError> {
    let secrets_key = shared.keys.secrets_key(engine_id, sealed_secrets_key)?;
    Ok(TokenSecret::derive(secrets_key.expose_secret(), engine_id))
}

fn engine_entry(row: &EngineRow, event: Event, at: Timestamp, detail: serde_json::Value) -> AuditEntry {
    let engine = Some((row.engine_id, row.owner.user_id.clone()));
    AuditEntry { at, event, engine, duration_ms: None, detail, call: None }
}
