//! The tool servers that the user has added, with the approved definitions of their tools. Connections to
//! them and their credentials are those of [`mcp_connections`](super::mcp_connections).

use api::Timestamp;
use api::user_servers::MAX_USER_SERVERS;
use rusqlite::{Error, Row, params};

use super::queries::timestamp;
use super::{Brain, StoreError, WriteTx};

/// The beginning of the identity of a connection to a server that the user has added. It sets such a
/// connection apart from one to a server of the catalog with the same name.
pub const USER_SERVER_IDENTITY: &str = "user:";

/// A tool server that the user has added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserServerRow {
    /// Its name.
    pub name: String,
    /// Its definition, as JSON.
    pub definition: String,
    /// The approved definitions of its tools, as JSON.
    pub pins: String,
    /// The time at which it was added.
    pub created_at: Timestamp,
    /// The time of its last change.
    pub updated_at: Timestamp,
}

impl WriteTx<'_> {
    /// Inserts a server, unless there are `max` of them. Returns whether there was room.
    pub fn insert_user_server(&self, server: &UserServerRow, max: u64) -> Result<bool, StoreError> {
        let UserServerRow { name, definition, pins, created_at, updated_at } = server;
        let sql = "INSERT INTO user_servers (name, definition, pins, created_at, updated_at)
                   SELECT ?1, ?2, ?3, ?4, ?5 WHERE (SELECT COUNT(*) FROM user_servers) < ?6";
        let max = i64::try_from(max.min(MAX_USER_SERVERS)).unwrap_or(i64::MAX);
        let values = params![name, definition, pins, created_at.unix_ms(), updated_at.unix_ms(), max];
        Ok(self.transaction.prepare_cached(sql)?.execute(values)? > 0)
    }

    /// Replaces the definition and the approved tools of a server. Returns whether it exists.
    pub fn update_user_server(&self, server: &UserServerRow) -> Result<bool, StoreError> {
        let UserServerRow { name, definition, pins, updated_at, .. } = server;
        let sql = "UPDATE user_servers SET definition = ?2, pins = ?3, updated_at = ?4 WHERE name = ?1";
        let values = params![name, definition, pins, updated_at.unix_ms()];
        Ok(self.transaction.prepare_cached(sql)?.execute(values)? > 0)
    }

    /// Deletes a server. Returns whether it existed.
    pub fn delete_user_server(&self, name: &str) -> Result<bool, StoreError> {
        let sql = "DELETE FROM user_servers WHERE name = ?1";
        Ok(self.transaction.prepare_cached(sql)?.execute([name])? > 0)
    }

    /// Deletes the connections to all servers of the user, with their credentials and pending authorizations.
    pub(super) fn delete_user_server_connections(&self) -> Result<(), StoreError> {
        let of_user = "SELECT server FROM connections WHERE instr(identity, ?1) = 1";
        // Whatever gets such a name later is another tool.
        self.execute(
            &format!(
                "DELETE FROM grants WHERE EXISTS (
                     SELECT 1 FROM ({of_user}) WHERE substr(tool, 1, length(server) + 2) = server || '__'
                 )"
            ),
            [USER_SERVER_IDENTITY],
        )?;
        self.execute(
            &format!("DELETE FROM authorizations WHERE server IN ({of_user})"),
            [USER_SERVER_IDENTITY],
        )?;
        self.execute("DELETE FROM connections WHERE instr(identity, ?1) = 1", [USER_SERVER_IDENTITY])?;
        self.delete_client_registrations(USER_SERVER_IDENTITY)
    }
}

impl Brain {
    /// The servers that the user has added, the oldest first. Blocks.
    pub fn user_servers(&self) -> Result<Vec<UserServerRow>, StoreError> {
        self.read_long(|reader| {
            let mut query = reader.prepare_cached(
                "SELECT name, definition, pins, created_at, updated_at FROM user_servers ORDER BY server",
            )?;
            query.query_map([], from_row)?.collect()
        })
    }
}

fn from_row(row: &Row<'_>) -> Result<UserServerRow, Error> {
    Ok(UserServerRow {
        name: row.get(0)?,
        definition: row.get(1)?,
        pins: row.get(2)?,
        created_at: timestamp(row, 3)?,
        updated_at: timestamp(row, 4)?,
    })
}
