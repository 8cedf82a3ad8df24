//! Connections to MCP servers, and the state of their authorization. All secrets are passed in sealed.

use api::assets::ConnectionStatus;
use api::{ConnectionId, Timestamp};
use rusqlite::types::Type;
use rusqlite::{Connection, Error, OptionalExtension as _, Row, params};

use super::queries::timestamp;
use super::{StoreError, USER_SERVER_IDENTITY, WriteTx};

/// A connection to a tool server; there is one per server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRow {
    /// The id of the connection.
    pub id: ConnectionId,
    /// The name of the server.
    pub server: String,
    /// The status of the connection.
    pub status: ConnectionStatus,
    /// The error of the connection, if it has one.
    pub error: Option<String>,
    /// A hash that identifies the server.
    pub identity: String,
    /// The server's tools, as JSON.
    pub tools: String,
    /// The time at which the connection was created.
    pub created_at: Timestamp,
}

/// An authorization that was started and is not completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorizationRow {
    /// The name of the server.
    pub server: String,
    /// The sealed state that is needed to complete the authorization.
    pub sealed_state: String,
    /// The time at which it was started.
    pub created_at: Timestamp,
}

impl WriteTx<'_> {
    /// Inserts a connection or updates the existing one to its server. The stored credentials are kept, unless one
    /// of the two is to a server of the catalog and the other to one that the user has added.
    pub fn upsert_connection(&self, connection: &ConnectionRow) -> Result<(), StoreError> {
        let ConnectionRow { id, server, status, error, identity, tools, created_at } = connection;
        self.execute(
            "INSERT INTO connections (id, server, status, error, identity, tools, created_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (server) DO UPDATE SET id = excluded.id, status = excluded.status, error = excluded.error,
                 identity = excluded.identity, tools = excluded.tools, created_at = excluded.created_at,
                 credentials = iif(
                     (instr(identity, ?8) = 1) = (instr(excluded.identity, ?8) = 1), credentials, NULL
                 )",
            params![
                id.to_string(),
                server,
                status.name(),
                error,
                identity,
                tools,
                created_at.unix_ms(),
                USER_SERVER_IDENTITY
            ],
        )
    }

    /// Stores the sealed credentials of the connection to a server. Returns whether there is such a connection.
    pub fn set_credentials(&self, server: &str, sealed: &str) -> Result<bool, StoreError> {
        let sql = "UPDATE connections SET credentials = ?2 WHERE server = ?1";
        Ok(self.transaction.prepare_cached(sql)?.execute(params![server, sealed])? > 0)
    }

    /// Deletes the connection to a server and its pending authorizations.
    pub fn delete_connection(&self, server: &str) -> Result<(), StoreError> {
        self.execute("DELETE FROM connections WHERE server = ?1", [server])?;
        self.execute("DELETE FROM authorizations WHERE server = ?1", [server])
    }

    /// Stores a started authorization under the hash of its `state`, and deletes those started before `cutoff`.
    pub fn insert_authorization(
        &self,
        state_hash: &str,
        authorization: &AuthorizationRow,
        cutoff: Timestamp,
    ) -> Result<(), StoreError> {
        let AuthorizationRow { server, sealed_state, created_at } = authorization;
        self.execute("DELETE FROM authorizations WHERE created_at < ?1", [cutoff.unix_ms()])?;
        self.execute(
            "INSERT INTO authorizations (state, server, begun, created_at) VALUES (?1, ?2, ?3, ?4)",
            params![state_hash, server, sealed_state, created_at.unix_ms()],
        )
    }

    /// Removes and returns an authorization by the hash of its `state`, so that each can be used only once.
    pub fn take_authorization(&self, state_hash: &str) -> Result<Option<AuthorizationRow>, StoreError> {
        let mut query = self.transaction.prepare_cached(
            "DELETE FROM authorizations WHERE state = ?1 RETURNING server, begun, created_at",
        )?;
        let taken = query.query_row([state_hash], |row| {
            Ok(AuthorizationRow {
                server: row.get(0)?,
                sealed_state: row.get(1)?,
                created_at: timestamp(row, 2)?,
            })
        });
        Ok(taken.optional()?)
    }

    /// Stores the sealed client registration of the engine at an authorization server, or deletes it.
    pub fn set_client_registration(&self, issuer: &str, sealed: Option<&str>) -> Result<(), StoreError> {
        match sealed {
            Some(sealed) => self.execute(
                "INSERT INTO registrations (issuer, registration) VALUES (?1, ?2)
                 ON CONFLICT (issuer) DO UPDATE SET registration = excluded.registration",
                params![issuer, sealed],
            ),
            None => self.execute("DELETE FROM registrations WHERE issuer = ?1", [issuer]),
        }
    }

    /// Deletes the client registrations whose keys begin with `prefix`.
    pub fn delete_client_registrations(&self, prefix: &str) -> Result<(), StoreError> {
        self.execute("DELETE FROM registrations WHERE instr(issuer, ?1) = 1", [prefix])
    }
}

/// All connections, oldest first.
pub(super) fn list(reader: &Connection) -> Result<Vec<ConnectionRow>, Error> {
    let mut query = reader.prepare_cached(
        "SELECT id, server, status, error, identity, tools, created_at FROM connections ORDER BY connection",
    )?;
    query.query_map([], connection_from_row)?.collect()
}

/// The sealed credentials of the connection to a server.
pub(super) fn credentials(reader: &Connection, server: &str) -> Result<Option<String>, Error> {
    let sql = "SELECT credentials FROM connections WHERE server = ?1";
    reader.prepare_cached(sql)?.query_row([server], |row| row.get(0)).optional().map(Option::flatten)
}

/// The time at which the newest authorization for a server was started.
pub(super) fn authorization_started_at(
    reader: &Connection,
    server: &str,
) -> Result<Option<Timestamp>, Error> {
    let sql = "SELECT created_at FROM authorizations WHERE server = ?1 ORDER BY created_at DESC LIMIT 1";
    reader.prepare_cached(sql)?.query_row([server], |row| timestamp(row, 0)).optional()
}

/// The sealed client registration of the engine at an authorization server.
pub(super) fn client_registration(reader: &Connection, issuer: &str) -> Result<Option<String>, Error> {
    let sql = "SELECT registration FROM registrations WHERE issuer = ?1";
    reader.prepare_cached(sql)?.query_row([issuer], |row| row.get(0)).optional()
}

fn connection_from_row(row: &Row<'_>) -> Result<ConnectionRow, Error> {
    let unreadable = |column: usize, what: &str| {
        Error::FromSqlConversionFailure(column, Type::Text, format!("it is not a valid {what}").into())
    };
    let (id, status): (String, String) = (row.get(0)?, row.get(2)?);
    Ok(ConnectionRow {
        id: id.parse().map_err(|_| unreadable(0, "connection id"))?,
        server: row.get(1)?,
        status: ConnectionStatus::from_name(&status).ok_or_else(|| unreadable(2, "status"))?,
        error: row.get(3)?,
        identity: row.get(4)?,
        tools: row.get(5)?,
        created_at: timestamp(row, 6)?,
    })
}
