//! Reads a document as a stream; at most one record is in memory at a time.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::marker::PhantomData;
use std::path::Path;

use resources::memory_budget::NoMemory;
use resources::text::first_chars;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

use super::DOCUMENT_VERSION;
use super::records::{
    BatchRecord, ConversationRecord, EpisodeRecord, EventRecord, FeedbackRecord, KnowledgeRecord,
    LessonRecord, MediaRecord, MessageRecord, RecalledRecord, ScheduleRecord, SkillRecord, StepRecord,
    TaskRecord, TrajectoryRecord, TurnRecord,
};
use super::staging::{StagedImport, Staging, StagingError};
use super::usage::UsageRecord;
use super::user_servers::UserServerRecord;
use super::validate::StageRecord;
use crate::StoreError;

/// The maximum size of a record in bytes. The content of one request to the engine becomes a record of about that
/// size.
const MAX_RECORD_BYTES: u64 = 48 * 1024 * 1024;
/// The maximum size of a record that contains nothing large, in bytes.
const MAX_SMALL_RECORD_BYTES: u64 = 4 * 1024 * 1024;
/// The size of the read buffer in bytes.
const READ_BUFFER_BYTES: usize = 64 * 1024;

/// The reasons why an import is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The document is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The document could not be read to its end.
    #[error("the document could not be read to its end: {0}")]
    Unreadable(#[source] io::Error),
    /// There was not enough memory for one of its records.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// The staging file beside the brain could not be used.
    #[error("the document could not be kept beside the brain")]
    Staging(#[from] StoreError),
}

impl From<StagingError> for ImportError {
    fn from(error: StagingError) -> Self {
        match error {
            StagingError::Invalid(reason) => Self::Invalid(reason),
            StagingError::Sqlite(error) => Self::Staging(error.into()),
        }
    }
}

/// Reads the document into a staging file beside the brain in `file`. Before more of a record is kept in memory,
/// `admit` is called with the record's size so far in bytes.
pub(super) fn read(
    file: &Path,
    document: impl Read,
    admit: impl FnMut(usize) -> Result<(), NoMemory>,
) -> Result<StagedImport, ImportError> {
    let staging = Staging::open(file).map_err(StoreError::from)?;
    let position = ReadPosition::default();
    let reader = BufReader::with_capacity(
        READ_BUFFER_BYTES,
        BoundedReader { inner: document, position: &position, admit },
    );
    let mut deserializer = serde_json::Deserializer::from_reader(reader);
    let read = DocumentSeed { staging: &staging, position: &position }
        .deserialize(&mut deserializer)
        .and_then(|()| deserializer.end());
    if let Err(error) = read {
        return Err(position.to_import_error(error));
    }
    Ok(staging.validate()?)
}

/// The position in the document, for limits and error messages.
#[derive(Default)]
struct ReadPosition {
    /// The current section, and the number of its records that were read.
    section: RefCell<String>,
    index: Cell<u32>,
    /// The number of bytes that were read of the current record.
    record_bytes: Cell<u64>,
    /// The error that stopped the reading, if it was not a syntax error.
    staging_error: RefCell<Option<StagingError>>,
}

impl ReadPosition {
    fn enter_section(&self, section: &str) {
        // Unknown sections may have any name.
        first_chars(section, 64).clone_into(&mut self.section.borrow_mut());
        self.next_record(0);
    }

    fn next_record(&self, index: u32) {
        self.index.set(index);
        self.record_bytes.set(0);
    }

    /// The maximum size of a record in the current section.
    fn max_record_bytes(&self) -> u64 {
        match self.section.borrow().as_str() {
            "conversations" | "turns" | "said" | "recalled" | "episodes" | "trajectories" | "knowledge"
            | "batches" | "feedback" | "lessons" | "schedules" | "mcp_servers" | "usage" => {
                MAX_SMALL_RECORD_BYTES
            }
            _ => MAX_RECORD_BYTES,
        }
    }

    fn to_import_error(&self, error: serde_json::Error) -> ImportError {
        if let Some(StagingError::Sqlite(error)) = self.staging_error.take() {
            return ImportError::Staging(error.into());
        }
        let section = self.section.borrow();
        let prefix =
            if section.is_empty() { String::new() } else { format!("`{section}[{}]`: ", self.index.get()) };
        match error.classify() {
            Category::Io if error.io_error_kind() == Some(io::ErrorKind::FileTooLarge) => {
                let max_mib = self.max_record_bytes() / 1024 / 1024;
                ImportError::Invalid(format!("{prefix}one record must be at most {max_mib} MiB long"))
            }
            Category::Io if error.io_error_kind() == Some(io::ErrorKind::OutOfMemory) => {
                ImportError::NoMemory(NoMemory)
            }
            Category::Io => ImportError::Unreadable(error.into()),
            Category::Eof => ImportError::Invalid(format!("{prefix}the document is cut off: {error}")),
            Category::Syntax | Category::Data => ImportError::Invalid(format!("{prefix}{error}")),
        }
    }
}

/// Limits the size of each record, so that an endless one cannot fill the memory.
struct BoundedReader<'a, R, A> {
    inner: R,
    position: &'a ReadPosition,
    admit: A,
}

impl<R: Read, A: FnMut(usize) -> Result<(), NoMemory>> Read for BoundedReader<'_, R, A> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let bytes = self.position.record_bytes.get().saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        self.position.record_bytes.set(bytes);
        if bytes > self.position.max_record_bytes() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let admitted = (self.admit)(usize::try_from(bytes).unwrap_or(usize::MAX));
        admitted.map(|()| read).map_err(|NoMemory| io::ErrorKind::OutOfMemory.into())
    }
}

/// Deserializes the document.
struct DocumentSeed<'a> {
    staging: &'a Staging,
    position: &'a ReadPosition,
}

impl<'de> DeserializeSeed<'de> for DocumentSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for DocumentSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an export of an engine's memory, a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen: HashSet<String> = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            self.position.enter_section("");
            if is_known_key(&name) && !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("`{name}`: occurs twice")));
            }
            self.section(&name, &mut map)?;
            self.position.enter_section("");
        }
        if seen.contains("version") { Ok(()) } else { Err(A::Error::missing_field("version")) }
    }
}

/// Whether the key has a meaning in this version.
fn is_known_key(name: &str) -> bool {
    const KNOWN_KEYS: [&str; 19] = [
        "version",
        "tasks",
        "conversations",
        "turns",
        "steps",
        "said",
        "recalled",
        "events",
        "episodes",
        "trajectories",
        "knowledge",
        "skills",
        "batches",
        "feedback",
        "lessons",
        "media",
        "schedules",
        "mcp_servers",
        "usage",
    ];
    KNOWN_KEYS.contains(&name)
}

impl DocumentSeed<'_> {
    fn section<'de, A: MapAccess<'de>>(&self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "version" => check_version(map.next_value()?),
            "tasks" => self.records::<TaskRecord, A>(name, map),
            "conversations" => self.records::<ConversationRecord, A>(name, map),
            "turns" => self.records::<TurnRecord, A>(name, map),
            "steps" => self.records::<StepRecord, A>(name, map),
            "said" => self.records::<MessageRecord, A>(name, map),
            "recalled" => self.records::<RecalledRecord, A>(name, map),
            "events" => self.records::<EventRecord, A>(name, map),
            "episodes" => self.records::<EpisodeRecord, A>(name, map),
            "trajectories" => self.records::<TrajectoryRecord, A>(name, map),
            "knowledge" => self.records::<KnowledgeRecord, A>(name, map),
            "skills" => self.records::<SkillRecord, A>(name, map),
            "batches" => self.records::<BatchRecord, A>(name, map),
            "feedback" => self.records::<FeedbackRecord, A>(name, map),
            "lessons" => self.records::<LessonRecord, A>(name, map),
            "media" => self.records::<MediaRecord, A>(name, map),
            "schedules" => self.records::<ScheduleRecord, A>(name, map),
            "mcp_servers" => self.records::<UserServerRecord, A>(name, map),
            "usage" => self.records::<UsageRecord, A>(name, map),
            _ => {
                self.position.enter_section(name);
                map.next_value_seed(IgnoredSection(self.position))
            }
        }
    }

    fn records<'de, R: StageRecord, A: MapAccess<'de>>(
        &self,
        name: &str,
        map: &mut A,
    ) -> Result<(), A::Error> {
        self.position.enter_section(name);
        map.next_value_seed(RecordsSeed::<R> {
            staging: self.staging,
            position: self.position,
            record: PhantomData,
        })
    }
}

fn check_version<E: serde::de::Error>(version: u64) -> Result<(), E> {
    match version {
        DOCUMENT_VERSION => Ok(()),
        0 => Err(E::custom("`version`: must be at least 1")),
        later => Err(E::custom(format!(
            "`version`: is {later}, but this engine reads version {DOCUMENT_VERSION}; import it into a newer \
             engine"
        ))),
    }
}

/// Deserializes a section record by record.
struct RecordsSeed<'a, R> {
    staging: &'a Staging,
    position: &'a ReadPosition,
    record: PhantomData<R>,
}

impl<'de, R: StageRecord> DeserializeSeed<'de> for RecordsSeed<'_, R> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, R: StageRecord> Visitor<'de> for RecordsSeed<'_, R> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of records")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut records: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(record) = records.next_element::<R>()? {
            if let Err(error) = record.stage(index, self.staging) {
                let reason = error.to_string();
                *self.position.staging_error.borrow_mut() = Some(error);
                return Err(A::Error::custom(reason));
            }
            index =
                u32::checked_add(index, 1).ok_or_else(|| A::Error::custom("there are too many records"))?;
            self.position.next_record(index);
        }
        Ok(())
    }
}

/// Skips an unknown section.
struct IgnoredSection<'a>(&'a ReadPosition);

impl<'de> DeserializeSeed<'de> for IgnoredSection<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for IgnoredSection<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut records: A) -> Result<(), A::Error> {
        let mut index = 0;
        while records.next_element::<IgnoredAny>()?.is_some() {
            index = u32::saturating_add(index, 1);
            self.0.next_record(index);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}
