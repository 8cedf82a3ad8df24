//! Settings that were changed at runtime and persist across restarts.

use rusqlite::{Connection, Error, OptionalExtension as _, params};

use super::{StoreError, WriteTx};

/// The name of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The gateway's configuration as `set_config` received it: JSON without keys.
    Gateway,
}

impl Setting {
    const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
        }
    }
}

impl WriteTx<'_> {
    /// Stores a setting, or deletes it if the value is `None`.
    pub fn set_setting(&self, setting: Setting, value: Option<&str>) -> Result<(), StoreError> {
        match value {
            Some(value) => self.execute(
                "INSERT INTO settings (name, value) VALUES (?1, ?2)
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                params![setting.name(), value],
            ),
            None => self.execute("DELETE FROM settings WHERE name = ?1", [setting.name()]),
        }
    }
}

/// The stored value of a setting.
pub(super) fn setting(reader: &Connection, setting: Setting) -> Result<Option<String>, Error> {
    let query = "SELECT value FROM settings WHERE name = ?1";
    reader.query_row(query, [setting.name()], |row| row.get(0)).optional()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Brain;

    #[tokio::test]
    async fn a_setting_is_kept_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("brain.sqlite");
        let brain = Brain::open(&file).unwrap();
        assert_eq!(brain.setting(Setting::Gateway).unwrap(), None);
        for value in ["{}", "{\"default\": 1}"] {
            brain.write(move |tx| tx.set_setting(Setting::Gateway, Some(value))).await.unwrap();
        }
        brain.close().await;
        drop(brain);
        let brain = Brain::open(&file).unwrap();
        assert_eq!(brain.setting(Setting::Gateway).unwrap().as_deref(), Some("{\"default\": 1}"));
        brain.write(|tx| tx.set_setting(Setting::Gateway, None)).await.unwrap();
        assert_eq!(brain.setting(Setting::Gateway).unwrap(), None);
    }
}
