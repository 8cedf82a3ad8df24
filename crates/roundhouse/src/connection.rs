//! `roundhouse connection`: lists, makes and removes a user's connections to tool servers.

mod authorization;
mod callback;
mod key;
mod table;

use anyhow::{Context as _, anyhow};
use api::assets::{AuthKind, Connect, ConnectOutcome, Connection, Server};
use api::{ErrorCode, UserId};
use clap::Subcommand;
use http_service::signals::ShutdownSignals;
use serde_json::json;

use self::authorization::Authorization;
use crate::client::{ClientError, Engine, Orchestrator};
use crate::engine_access::EngineOptions;
use crate::error::Failure;
use crate::terminal::{columns, escape_json, print_line, single_line};

/// The longest list of tool names that is printed unasked, in characters.
const MAX_TOOL_NAMES_CHARS: usize = 400;

/// Arguments of `roundhouse connection`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the tool servers that the catalog names, and the state of the connections to them.
    List {
        #[command(flatten)]
        engine: EngineOptions,
        /// Print `servers` and `connections` of the engine's API, as one JSON document on one line.
        #[arg(long)]
        json: bool,
    },
    /// Connect a tool server, so that the agent can use its tools. Connecting again renews the connection.
    ///
    /// For a server that needs a key, the command prompts for it at the terminal, or reads standard input if that
    /// is no terminal. For a server that needs your authorization, it prints the address at which to give it.
    Connect {
        /// The server's name.
        server: String,
        #[command(flatten)]
        engine: EngineOptions,
    },
    /// Remove a connection: revoke its authorization if the server supports that, and delete its credentials.
    Remove {
        /// The server's name, or the connection's id.
        connection: String,
        #[command(flatten)]
        engine: EngineOptions,
    },
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let mut signals = ShutdownSignals::listen().context("cannot listen for signals")?;
        tokio::select! {
            result = execute(args.command) => result,
            _ = signals.recv() => Err(anyhow!("interrupted before it was done").into()),
        }
    });
    // The thread that reads the terminal cannot be woken, and must not delay the exit.
    runtime.shutdown_background();
    result
}

async fn execute(command: Command) -> Result<(), Failure> {
    match command {
        Command::List { engine, json } => Session::start(engine).await?.list(json).await,
        Command::Connect { server, engine } => Session::start(engine).await?.connect(&server).await,
        Command::Remove { connection, engine } => Session::start(engine).await?.remove(&connection).await,
    }
}

/// A user's engine, and how to find it again.
struct Session {
    orchestrator: Orchestrator,
    user: UserId,
    engine: Engine,
}

impl Session {
    async fn start(options: EngineOptions) -> Result<Self, Failure> {
        let (orchestrator, user) = options.resolve()?;
        let engine = orchestrator.admit(&user).await?;
        Ok(Self { orchestrator, user, engine })
    }

    /// Looks the engine up again: it may have been put to sleep, or moved to another port.
    async fn refresh_engine(&mut self) -> Result<(), ClientError> {
        self.engine = self.orchestrator.admit(&self.user).await?;
        Ok(())
    }

    async fn list(&self, json: bool) -> Result<(), Failure> {
        let servers = self.engine.servers().await?;
        let connections = self.engine.connections().await?;
        if json {
            let document = json!({"servers": servers, "connections": connections});
            return Ok(print_line(&escape_json(&document.to_string()))?);
        }
        if servers.is_empty() && connections.is_empty() {
            return Ok(print_line(NO_SERVERS)?);
        }
        Ok(print_line(&table::render(&servers, &connections, columns()))?)
    }

    async fn connect(mut self, name: &str) -> Result<(), Failure> {
        let servers = self.engine.servers().await?;
        let Some(server) = servers.iter().find(|server| server.name == name) else {
            return Err(no_such_server(name, &servers));
        };
        let credentials = match server.auth {
            AuthKind::ApiKey => key::read_key(name).await?,
            AuthKind::None | AuthKind::OAuth => None,
        };
        let request_without_key = server.auth == AuthKind::ApiKey && credentials.is_none();
        let connect = Connect { server: name.to_owned(), credentials, redirect_to: None };
        match self.engine.connect(&connect).await {
            Ok(ConnectOutcome::Connected { .. }) => {}
            Ok(ConnectOutcome::AuthorizationRequired { authorization_url, state }) => {
                Authorization::new(name, &authorization_url, state)?.complete(&mut self).await?;
            }
            Err(ClientError::Refused { code: ErrorCode::InvalidRequest, .. }) if request_without_key => {
                return Err(Failure::usage(format!(
                    "the server `{name}` needs a key, and none was given: enter it at the prompt, or pass it on \
                     standard input"
                )));
            }
            Err(error) => return Err(usage_failure(error)),
        }
        let connections = self.engine.connections().await?;
        let tools = connections.iter().find(|connection| connection.server == name);
        Ok(print_line(&connected_message(
            name,
            tools.map(|connection| connection.tools.as_slice()).unwrap_or_default(),
        ))?)
    }

    async fn remove(&self, named: &str) -> Result<(), Failure> {
        let connections = self.engine.connections().await?;
        let is_named = |connection: &&Connection| {
            connection.server == named || connection.connection.to_string() == named
        };
        let Some(found) = connections.iter().find(is_named) else {
            return Err(no_such_connection(named, &connections));
        };
        self.engine.disconnect(found.connection).await.map_err(usage_failure)?;
        let server = single_line(&found.server, usize::MAX);
        Ok(print_line(&format!("The connection to `{server}` was removed."))?)
    }
}

const NO_SERVERS: &str = "The catalog names no tool servers; add them to its mcp.json.";

/// The message about a server that was just connected.
fn connected_message(server: &str, tools: &[String]) -> String {
    let names = single_line(&tools.join(", "), MAX_TOOL_NAMES_CHARS);
    match tools.len() {
        0 => format!("The server `{server}` is connected. It offers no tools."),
        1 => format!("The server `{server}` is connected. It offers one tool: {names}"),
        count => format!("The server `{server}` is connected. It offers {count} tools: {names}"),
    }
}

fn no_such_server(name: &str, servers: &[Server]) -> Failure {
    let name = single_line(name, MAX_TOOL_NAMES_CHARS);
    let known: Vec<_> = servers.iter().map(|server| server.name.as_str()).collect();
    Failure::usage(if known.is_empty() {
        format!("there is no server `{name}`: the catalog names none; add them to its mcp.json")
    } else {
        format!(
            "there is no server `{name}`; the catalog names {}",
            single_line(&known.join(", "), usize::MAX)
        )
    })
}

fn no_such_connection(named: &str, connections: &[Connection]) -> Failure {
    let named = single_line(named, MAX_TOOL_NAMES_CHARS);
    let known: Vec<_> = connections.iter().map(|connection| connection.server.as_str()).collect();
    Failure::usage(if known.is_empty() {
        format!("there is no connection `{named}`; there are none at all")
    } else {
        format!(
            "there is no connection `{named}`; there are connections to {}",
            single_line(&known.join(", "), usize::MAX)
        )
    })
}

/// Reports a refusal in the engine's words, which say what to do.
fn usage_failure(error: ClientError) -> Failure {
    let ClientError::Refused { code, message } = error else { return error.into() };
    let message = single_line(&message, usize::MAX);
    match code {
        ErrorCode::InvalidRequest
        | ErrorCode::ServerNotFound
        | ErrorCode::ConnectionNotFound
        | ErrorCode::AssetsNotConfigured => Failure::usage(message),
        _ => anyhow!(message).into(),
    }
}
