//! What the brain keeps of authorizations, sealed: the pending ones, and the engine's registrations as a client.

use std::time::Duration;

use api::Timestamp;
use store::AuthorizationRow;
use zeroize::Zeroizing;

use super::{Connections, seal_error};
use crate::McpError;

/// How long an authorization may stay pending.
const AUTHORIZATION_TTL: Duration = Duration::from_mins(10);
/// The purpose to which the seals of authorizations and registrations are bound.
const AUTHORIZATION_SEAL_PURPOSE: &str = "authorization";
const REGISTRATION_SEAL_PURPOSE: &str = "registration";

impl Connections {
    /// Whether the user was asked for consent and has not answered yet.
    pub(crate) fn has_pending_authorization(&self, server: &str) -> Result<bool, store::StoreError> {
        let started_at = self.brain.authorization_started_at(server)?;
        Ok(started_at.is_some_and(|started_at| started_at > self.authorization_cutoff()))
    }

    /// Stores a pending authorization under the hash of its `state`.
    pub(crate) async fn store_authorization(
        &self,
        server: &str,
        state_hash: &str,
        pending: &str,
    ) -> Result<(), McpError> {
        let sealed = self.vault()?.seal(server, AUTHORIZATION_SEAL_PURPOSE, pending).map_err(seal_error)?;
        let row =
            AuthorizationRow { server: server.to_owned(), sealed_state: sealed, created_at: self.now() };
        let (state_hash, cutoff) = (state_hash.to_owned(), self.authorization_cutoff());
        self.brain.write(move |rows| rows.insert_authorization(&state_hash, &row, cutoff)).await?;
        Ok(())
    }

    /// Takes a pending authorization and its server; this succeeds once, and within ten minutes.
    pub(crate) async fn take_authorization(
        &self,
        state_hash: &str,
    ) -> Result<Option<(String, Zeroizing<String>)>, McpError> {
        let state_hash = state_hash.to_owned();
        let Some(row) = self.brain.write(move |rows| rows.take_authorization(&state_hash)).await? else {
            return Ok(None);
        };
        if row.created_at <= self.authorization_cutoff() {
            return Ok(None);
        }
        let pending = self.vault()?.open(&row.server, AUTHORIZATION_SEAL_PURPOSE, &row.sealed_state);
        Ok(pending.ok().map(|pending| (row.server, pending)))
    }

    /// Returns the engine's client registration at an authorization server, if any.
    pub(crate) fn registration(&self, issuer: &str) -> Result<Option<Zeroizing<String>>, McpError> {
        let Some(sealed) = self.brain.client_registration(issuer)? else { return Ok(None) };
        Ok(self.vault()?.open(issuer, REGISTRATION_SEAL_PURPOSE, &sealed).ok())
    }

    /// Stores or removes the engine's client registration at an authorization server.
    pub(crate) async fn store_registration(
        &self,
        issuer: &str,
        registration: Option<&str>,
    ) -> Result<(), McpError> {
        let vault = self.vault()?;
        let sealed = registration.map(|text| vault.seal(issuer, REGISTRATION_SEAL_PURPOSE, text)).transpose();
        let (sealed, issuer) = (sealed.map_err(seal_error)?, issuer.to_owned());
        self.brain.write(move |rows| rows.set_client_registration(&issuer, sealed.as_deref())).await?;
        Ok(())
    }

    fn authorization_cutoff(&self) -> Timestamp {
        let ttl_ms = i64::try_from(AUTHORIZATION_TTL.as_millis()).unwrap_or(i64::MAX);
        Timestamp::from_unix_ms(self.now().unix_ms().saturating_sub(ttl_ms))
    }
}
