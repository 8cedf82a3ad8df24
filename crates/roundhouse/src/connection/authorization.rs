//! Authorization of a connection by the user, in a browser.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use api::ErrorCode;
use api::assets::{Callback, Connection, ConnectionStatus};
use reqwest::Url;
use resources::threads::run_blocking;
use tokio::net::TcpListener;

use super::callback::CallbackAddress;
use super::{Session, usage_failure};
use crate::client::ClientError;
use crate::error::Failure;
use crate::terminal::{print_line, single_line};
use crate::up::port;

/// How long an authorization stays valid, by the contract.
const AUTHORIZATION_TIMEOUT: Duration = Duration::from_mins(10);
/// How often the connection's state is polled when another server receives the callback.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How many polls in a row may fail.
const MAX_CONSECUTIVE_FAILURES: u32 = 5;

/// An authorization that the engine has started.
pub(super) struct Authorization {
    server: String,
    /// The page on which the user authorizes the connection.
    authorization_url: Url,
    state: String,
}

/// Who receives the callback.
enum CallbackReceiver {
    /// This command.
    Local(CallbackAddress, TcpListener),
    /// The server at the redirect address.
    External,
}

impl Authorization {
    pub(super) fn new(server: &str, address: &str, state: String) -> Result<Self, Failure> {
        // A server must not make a person open any other kind of URL.
        let address = Url::parse(address).ok().filter(|address| matches!(address.scheme(), "https" | "http"));
        let address = address.context("the engine returned no web address for the authorization")?;
        Ok(Self { server: server.to_owned(), authorization_url: address, state })
    }

    /// Shows the authorization URL, and waits until the server is connected.
    pub(super) async fn complete(self, session: &mut Session) -> Result<(), Failure> {
        let callback_receiver = self.callback_receiver().await?;
        let address = single_line(self.authorization_url.as_str(), usize::MAX);
        print_line(&format!(
            "To let the engine use `{}`, open this address in a browser:\n\n{address}\n\nWaiting for your \
             authorization, ten minutes at most; Ctrl-C ends.",
            self.server
        ))?;
        let Self { server, state, .. } = self;
        let done = match callback_receiver {
            CallbackReceiver::Local(callback_address, listener) => {
                let finish = async |callback| forward_callback(session, &server, callback).await;
                callback_address.receive(listener, state, AUTHORIZATION_TIMEOUT, finish).await?
            }
            CallbackReceiver::External => {
                let find_connection = async || session.find_connection(&server).await;
                tokio::time::timeout(AUTHORIZATION_TIMEOUT, poll_until_connected(find_connection))
                    .await
                    .ok()
                    .transpose()?
            }
        };
        done.ok_or_else(|| {
            anyhow!("access was not granted within ten minutes; {}", retry_hint(&server)).into()
        })
    }

    /// Listens on the redirect address, if it is a free port of this machine.
    async fn callback_receiver(&self) -> Result<CallbackReceiver, Failure> {
        let redirect_url = self.authorization_url.query_pairs().find(|(name, _)| name == "redirect_uri");
        let redirect_url = redirect_url.and_then(|(_, address)| Url::parse(&address).ok());
        let Some(callback_address) = redirect_url.as_ref().and_then(CallbackAddress::parse_url) else {
            return Ok(CallbackReceiver::External);
        };
        let error = match callback_address.listen().await {
            Ok(listener) => return Ok(CallbackReceiver::Local(callback_address, listener)),
            Err(error) => error,
        };
        let port = callback_address.address.port();
        let holder = run_blocking(move || port::holder(port)).await.flatten();
        let reason = holder.map_or_else(|| error.to_string(), |holder| format!("{holder} uses it"));
        print_line(&format!(
            "The browser will be sent back to {}, where this command cannot listen: {reason}. The server there \
             must forward the callback to the engine.\n",
            callback_address.address
        ))?;
        Ok(CallbackReceiver::External)
    }
}

fn retry_hint(server: &str) -> String {
    format!("`roundhouse connection connect {server}` asks again")
}

/// Forwards the parameters of the redirect to the engine.
async fn forward_callback(session: &mut Session, server: &str, callback: Callback) -> Result<(), Failure> {
    // The engine may have gone to sleep in the meantime.
    session.refresh_engine().await?;
    match session.engine.finish_authorization(&callback).await {
        Ok(_) => Ok(()),
        Err(ClientError::Refused { code: ErrorCode::OauthDenied, message }) => {
            Err(anyhow!("{}; {}", single_line(&message, usize::MAX), retry_hint(server)).into())
        }
        Err(error) => Err(usage_failure(error)),
    }
}

impl Session {
    /// Returns the engine's current connection to a server.
    async fn find_connection(&mut self, server: &str) -> Result<Option<Connection>, ClientError> {
        let connections = if let Ok(connections) = self.engine.connections().await {
            connections
        } else {
            self.refresh_engine().await?;
            self.engine.connections().await?
        };
        Ok(connections.into_iter().find(|connection| connection.server == server))
    }
}

/// Polls until the connection is made, or has failed.
async fn poll_until_connected(
    mut find_connection: impl AsyncFnMut() -> Result<Option<Connection>, ClientError>,
) -> Result<(), Failure> {
    let mut initial = None;
    let mut failures = 0;
    loop {
        match find_connection().await {
            Ok(current) => {
                failures = 0;
                match progress(initial.get_or_insert_with(|| current.clone()).as_ref(), current.as_ref()) {
                    Progress::Pending => {}
                    Progress::Connected => return Ok(()),
                    Progress::Failed(reason) => return Err(anyhow!(reason).into()),
                }
            }
            Err(error) if failures == MAX_CONSECUTIVE_FAILURES => return Err(error.into()),
            Err(_) => failures += 1,
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// The progress of an authorization.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Pending,
    Connected,
    Failed(String),
}

/// Compares the connection before the authorization with the current one.
fn progress(initial: Option<&Connection>, current: Option<&Connection>) -> Progress {
    let Some(current) = current else {
        // A connection that only awaited authorization is removed when access is denied.
        return match initial {
            Some(_) => Progress::Failed("access was not granted, or the connection was removed".into()),
            None => Progress::Pending,
        };
    };
    match current.status {
        ConnectionStatus::Connected => Progress::Connected,
        ConnectionStatus::Pending => Progress::Pending,
        // An unchanged error may be the reason for the renewal.
        _ if initial
            .is_some_and(|initial| (initial.status, &initial.error) == (current.status, &current.error)) =>
        {
            Progress::Pending
        }
        status @ (ConnectionStatus::Expired | ConnectionStatus::Error) => {
            let error = current.error.as_deref().unwrap_or(status.name());
            Progress::Failed(format!("the server was not connected: {}", single_line(error, usize::MAX)))
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/connection/authorization.rs"]
mod tests;
