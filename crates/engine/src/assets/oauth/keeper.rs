//! Keeps the tokens of one server: hands them out, refreshes them, and puts others in their place.
//!
//! Whatever changes what is kept is a *flight*: a task of its own, one at a time, which others wait for and nobody who
//! goes away cancels. So a refresh token is used once, and what it was exchanged for is on record before anybody uses
//! it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use reqwest::Url;
use secrecy::{ExposeSecret as _, SecretString};

use super::grant::{Grant, Leave, Tokens, Verdict};
use super::http::Http;
use super::party::{Party, TokenError};
use super::{address, client};
use crate::assets::AssetsError;
use crate::assets::access::{AccessError, Bearer};
use crate::assets::connections::Connections;
use crate::assets::directory::Directory;
use crate::catalog::ServerSpec;
use crate::sabotage::{self, Saboteur};
use crate::tools::Allowed;

/// How long an authorization server that could not be reached is left alone.
const REST: Duration = Duration::from_secs(1);
/// Why nothing is asked any more at the engine's end.
const ENDING: &str = "the engine is stopping";
/// How long a revocation may take.
const REVOKING: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Keeper {
    spec: Arc<ServerSpec>,
    url: Url,
    connections: Arc<Connections>,
    directory: Arc<Directory>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    flight: Option<Flight>,
    /// Whether what is kept was revoked.
    ended: bool,
    /// What could not be stored: it is newer than what is in the brain.
    unkept: Option<Grant>,
    /// Why the authorization server was not reached last, and when, by the monotonic clock.
    missed: Option<(Duration, String)>,
}

/// What a flight brings: a token, unless it ends them.
type Brought = Result<SecretString, AccessError>;
type Flight = Shared<BoxFuture<'static, Brought>>;

/// What a flight is for.
#[derive(Clone)]
enum Purpose {
    /// To have a token other than this.
    Token(Option<SecretString>),
    /// To put this in the place of what is kept.
    Install(Box<Grant>),
    /// To revoke what is kept.
    End,
}

/// Takes a flight off the board when it has ended, however.
struct Landing(Arc<Keeper>);

impl Drop for Landing {
    fn drop(&mut self) {
        self.0.state().flight = None;
    }
}

impl Keeper {
    /// What keeps the tokens of the server at `url`.
    pub(super) fn new(
        spec: Arc<ServerSpec>,
        url: Url,
        (connections, directory): (Arc<Connections>, Arc<Directory>),
    ) -> Self {
        Self { spec, url, connections, directory, state: Mutex::default() }
    }

    /// Whether it keeps the tokens of this address.
    pub(super) fn is_of(&self, url: &Url) -> bool {
        self.url == *url
    }

    /// Puts tokens in the place of what is kept. They are on record when this is done.
    pub(super) async fn install(self: &Arc<Self>, grant: Grant) -> Result<(), AccessError> {
        self.fly(Purpose::Install(Box::new(grant))).await.map(drop)
    }

    /// Revokes what is kept, as far as that can be done.
    pub(super) async fn end(self: &Arc<Self>) {
        let _ended = self.fly(Purpose::End).await;
    }

    async fn token(self: &Arc<Self>, refused: Option<&SecretString>) -> Brought {
        if self.state().ended {
            return Err(ended());
        }
        // What is not on record yet is given to nobody.
        let is_kept = self.state().unkept.is_none();
        if is_kept
            && let Some(grant) = self.kept()?
            && let Verdict::Good(token) = grant.judge(self.connections.now(), refused)
        {
            return Ok(token);
        }
        loop {
            let (flight, is_own) = self.board(Purpose::Token(refused.cloned()));
            match flight.await {
                // It took off before the token was refused.
                Ok(token) if !is_own && refused.is_some_and(|refused| is_same(refused, &token)) => {}
                brought => return brought,
            }
        }
    }

    /// A flight of one's own, after those that are under way.
    async fn fly(self: &Arc<Self>, purpose: Purpose) -> Brought {
        loop {
            let (flight, is_own) = self.board(purpose.clone());
            let brought = flight.await;
            if is_own {
                return brought;
            }
        }
    }

    /// The flight that is under way, or else one for this purpose; whether it is that.
    fn board(self: &Arc<Self>, purpose: Purpose) -> (Flight, bool) {
        let mut state = self.state();
        let under_way = state.flight.as_ref().filter(|_| !sabotage::by(Saboteur::RefreshEach));
        if let Some(flight) = under_way {
            return (flight.clone(), false);
        }
        let keeper = Arc::clone(self);
        let task = self.connections.spawn(async move {
            let landing = Landing(keeper);
            let keeper = &landing.0;
            match purpose {
                Purpose::Token(refused) => keeper.fetch(refused.as_ref()).await,
                Purpose::Install(grant) => keeper.replace(*grant).await,
                Purpose::End => keeper.revoke().await,
            }
        });
        let lost = || AccessError::Unavailable(ENDING.into());
        let flight = async move { task.await.unwrap_or_else(|_| Err(lost())) }.boxed().shared();
        state.flight = Some(flight.clone());
        (flight, true)
    }

    /// Brings a token other than `refused`.
    async fn fetch(&self, refused: Option<&SecretString>) -> Brought {
        self.keep_unkept().await?;
        let Some(grant) = self.grant()? else {
            return Err(AccessError::Expired("no token is kept of it".into()));
        };
        match grant.judge(self.connections.now(), refused) {
            Verdict::Good(token) => Ok(token),
            Verdict::Over(reason) => Err(AccessError::Expired(reason)),
            Verdict::Ends(reason) => self.over(grant.party, reason).await,
            Verdict::Refresh { with, meanwhile } => {
                let refreshed = match self.missed() {
                    // A refresh token is good once, and what comes for it may come too late to be stored.
                    _ if self.connections.is_ending() => Err(TokenError::Unavailable(ENDING.into())),
                    Some(reason) => Err(TokenError::Unavailable(reason)),
                    None => self.refresh(&grant.party, &with).await,
                };
                let brought = match refreshed {
                    Ok(tokens) => self.replace(Grant { leave: Leave::Given(tokens), ..grant }).await,
                    Err(TokenError::Unavailable(reason)) => Err(AccessError::Unavailable(reason)),
                    Err(error @ TokenError::Refused { .. }) => self.refused(grant.party, error).await,
                };
                match (brought, meanwhile) {
                    (Err(AccessError::Unavailable(_)), Some(token)) => Ok(token),
                    (brought, _) => brought,
                }
            }
        }
    }

    async fn refresh(&self, party: &Party, with: &zeroize::Zeroizing<String>) -> Result<Tokens, TokenError> {
        let asked = async {
            let http = Http::of(&self.url, self.connections.web()).await?;
            party.refresh(&http, self.connections.now(), with).await
        };
        let refreshed = asked.await;
        let missed = match &refreshed {
            Err(TokenError::Unavailable(reason)) => {
                tracing::warn!(server = self.spec.name, reason, "A token could not be refreshed.");
                Some((self.connections.clock().monotonic(), reason.clone()))
            }
            _ => None,
        };
        self.state().missed = missed;
        let mut tokens = refreshed?;
        // Without another one, the old one stays good (RFC 6749, section 6).
        if tokens.refresh.is_none() && !sabotage::by(Saboteur::DropRefreshToken) {
            tokens.refresh = Some(with.clone());
        }
        Ok(tokens)
    }

    /// The authorization server has refused to refresh.
    async fn refused(&self, party: Party, error: TokenError) -> Brought {
        // The secret that the catalog names is the operator's to set right: the user's leave holds.
        let is_over = match &error {
            TokenError::Refused { code, .. } if code == "invalid_grant" => true,
            error => error.is_of_client() && !party.client.has_secret_of_catalog(),
        };
        if !is_over || sabotage::by(Saboteur::RefreshForever) {
            let mut reason = error.to_string();
            if error.is_of_client() {
                reason.push_str(": it must know the `client_id` and the `client_secret` of mcp.json");
            }
            self.state().missed = Some((self.connections.clock().monotonic(), reason.clone()));
            return Err(AccessError::Unavailable(reason));
        }
        if error.is_of_client() && party.client.registered {
            let forgotten = self.connections.keep_registration(&party.registered_at, None).await;
            if let Err(error) = forgotten {
                tracing::warn!(server = self.spec.name, %error, "A registration could not be forgotten.");
            }
        }
        self.over(party, error.to_string()).await
    }

    /// There is no leave any more: that is on record, and the connection shows it, before anybody is told.
    async fn over(&self, party: Party, reason: String) -> Brought {
        let grant = Grant { party, leave: Leave::Over(reason.clone()) };
        let error = AccessError::Expired(reason);
        let stored = match grant.written() {
            Ok(held) => self.connections.expire(&self.spec, held, &error.to_string()).await,
            Err(error) => Err(AssetsError::Failed(error.to_string())),
        };
        match stored {
            Ok(()) => self.state().unkept = None,
            Err(error) => {
                tracing::warn!(server = self.spec.name, %error, "The end of a leave could not be stored yet.");
                self.state().unkept = Some(grant);
            }
        }
        Err(error)
    }

    /// Puts a grant in the place of what is kept; its token, once it is on record.
    async fn replace(&self, grant: Grant) -> Brought {
        {
            let mut state = self.state();
            (state.missed, state.ended) = (None, false);
        }
        let token = match &grant.leave {
            Leave::Given(tokens) => Ok(SecretString::from(tokens.access.as_str())),
            Leave::Over(reason) => Err(AccessError::Expired(reason.clone())),
        };
        self.put(grant).await?;
        token
    }

    /// From now on nobody gets a token. What is kept stays until the connection goes: a revocation that a crash cut off
    /// can be asked for again.
    async fn revoke(&self) -> Brought {
        self.state().ended = true;
        if let Some(grant) = self.grant()? {
            give_back(&self.spec.name, &grant, (&self.url, self.connections.web())).await;
        }
        Err(ended())
    }

    /// Takes a grant down. What could not be stored is not lost: it is tried again before anything else is done.
    async fn put(&self, grant: Grant) -> Result<(), AccessError> {
        self.state().unkept = Some(grant);
        self.keep_unkept().await
    }

    async fn keep_unkept(&self) -> Result<(), AccessError> {
        let Some(grant) = self.state().unkept.clone() else { return Ok(()) };
        let unkept = |error: &dyn std::fmt::Display| {
            AccessError::Unavailable(format!("its tokens could not be stored: {error}"))
        };
        let held = grant.written().map_err(|_| unkept(&"they cannot be written"))?;
        if !self.connections.keep(&self.spec, held).await.map_err(|error| unkept(&error))? {
            tracing::info!(server = self.spec.name, "Tokens came for a connection that is gone.");
        }
        self.state().unkept = None;
        Ok(())
    }

    /// What there is now, to be shown by the secret that the catalog has now: it may be newer than the leave.
    fn grant(&self) -> Result<Option<Grant>, AccessError> {
        let unkept = self.state().unkept.clone();
        let Some(Grant { party, leave }) = unkept.map_or_else(|| self.kept(), |unkept| Ok(Some(unkept)))?
        else {
            return Ok(None);
        };
        let spec = self.directory.find(&self.spec.name);
        let meant = spec.as_ref().filter(|spec| address(spec) == Some(&self.url));
        let party = party.by_catalog(meant.and_then(|spec| client(spec)));
        Ok(Some(Grant { party, leave }))
    }

    /// What is on record.
    fn kept(&self) -> Result<Option<Grant>, AccessError> {
        let held = self.connections.credentials(&self.spec);
        let held = held.map_err(|error| AccessError::Unavailable(AssetsError::from(error).to_string()))?;
        Ok(held.as_ref().and_then(Grant::read))
    }

    /// Why the authorization server is left alone, if it is.
    fn missed(&self) -> Option<String> {
        let now = self.connections.clock().monotonic();
        let missed = self.state().missed.clone();
        missed.filter(|(at, _)| now.saturating_sub(*at) < REST).map(|(_, reason)| reason)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Revokes tokens, as far as that can be done.
pub(super) async fn give_back(server: &str, Grant { party, leave }: &Grant, (url, web): (&Url, &Allowed)) {
    let Leave::Given(tokens) = leave else { return };
    let revoking = tokio::time::timeout(REVOKING, async {
        let http = Http::of(url, web).await?;
        let refresh = match &tokens.refresh {
            Some(token) => party.revoke(&http, token, "refresh_token").await,
            None => Ok(()),
        };
        refresh.and(party.revoke(&http, &tokens.access, "access_token").await)
    });
    let reason = match revoking.await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("it took over {} seconds", REVOKING.as_secs()),
    };
    tracing::warn!(server, reason, "The tokens of a connection could not be revoked.");
}

fn ended() -> AccessError {
    AccessError::Expired("it was disconnected".into())
}

/// Gives the tokens of a keeper.
pub(super) struct Keeping(pub(super) Arc<Keeper>);

impl Bearer for Keeping {
    fn token<'a>(&'a self, refused: Option<&'a SecretString>) -> BoxFuture<'a, Brought> {
        Box::pin(self.0.token(refused))
    }
}

fn is_same(one: &SecretString, other: &SecretString) -> bool {
    one.expose_secret() == other.expose_secret()
}
