//! The user's own tool servers in the document, without connections and credentials, which belong to the
//! engine.

use api::Timestamp;
use api::user_servers::{MAX_USER_SERVERS, UserServerDefinition, UserServerName};
use rusqlite::params;
use serde::{Deserialize, Serialize};

use super::apply::ImportCopier;
use super::export::{DocumentWriter, ExportError, raw_json_column};
use super::records::RawJson;
use super::staging::{Staging, StagingError};
use super::validate::{StageRecord, compact_json, invalid_field, parse_json, validate_text};
use crate::queries::timestamp;
use crate::{StoreError, to_json};

/// The maximum length of an address, in bytes.
const MAX_URL_BYTES: usize = 2_048;
/// The maximum size of the approved definitions of a server's tools, in bytes. The engine approves far less.
const MAX_PINS_BYTES: usize = 512 * 1024;

/// A tool server of the user.
#[derive(Serialize, Deserialize)]
pub(super) struct UserServerRecord {
    name: String,
    definition: RawJson,
    /// The definitions of its tools that the user has approved.
    pins: RawJson,
    created_at: Timestamp,
    updated_at: Timestamp,
}

impl DocumentWriter<'_> {
    /// Writes the servers, if there are any.
    pub(super) fn user_servers(&mut self) -> Result<(), ExportError> {
        if !self.has_rows("user_servers")? {
            return Ok(());
        }
        let sql = "SELECT name, definition, pins, created_at, updated_at FROM user_servers ORDER BY server";
        self.section("mcp_servers", sql, |row, _| {
            Ok(UserServerRecord {
                name: row.get(0)?,
                definition: raw_json_column(row, 1)?,
                pins: raw_json_column(row, 2)?,
                created_at: timestamp(row, 3)?,
                updated_at: timestamp(row, 4)?,
            })
        })
    }
}

impl StageRecord for UserServerRecord {
    fn stage(self, n: u32, staging: &Staging) -> Result<(), StagingError> {
        let Self { name, definition, pins, created_at, updated_at } = self;
        let name = UserServerName::new(name).map_err(|error| invalid_field("name", &error.to_string()))?;
        let definition: UserServerDefinition = parse_json("definition", &definition)?;
        validate_text("definition.url", &definition.url, MAX_URL_BYTES)?;
        let pins = compact_json(&pins);
        if !pins.starts_with('[') || pins.len() > MAX_PINS_BYTES {
            return Err(invalid_field(
                "pins",
                &format!("must be an array of at most {MAX_PINS_BYTES} bytes"),
            ));
        }
        let values = params![
            n,
            name.as_str(),
            to_json(&definition)?,
            pins,
            created_at.unix_ms(),
            updated_at.unix_ms()
        ];
        staging.insert("INSERT INTO user_servers VALUES (?1, ?2, ?3, ?4, ?5, ?6)", values)
    }
}

impl ImportCopier<'_> {
    /// Copies the servers whose names are not taken, as far as there is room.
    pub(super) fn copy_user_servers(&self) -> Result<(), StoreError> {
        self.copy(
            "SELECT name, definition, pins, created_at, updated_at FROM user_servers ORDER BY n",
            &format!(
                "INSERT INTO user_servers (name, definition, pins, created_at, updated_at)
                 SELECT ?1, ?2, ?3, ?4, ?5 WHERE (SELECT COUNT(*) FROM user_servers) < {MAX_USER_SERVERS}
                 ON CONFLICT DO NOTHING"
            ),
        )?;
        Ok(())
    }
}
