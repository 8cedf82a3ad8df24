//! Reads a document, record by record: never more of it is held than one record.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::marker::PhantomData;
use std::path::Path;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

use super::VERSION;
use super::keeping::Record;
use super::records::{
    BatchRecord, EpisodeRecord, EventRecord, FeedbackRecord, KnowledgeRecord, LessonRecord, MediaRecord,
    Recalled, Said, SkillRecord, StepRecord, Task, Trajectory, Turn,
};
use super::staging::{Staged, Staging, StagingError};
use crate::memory_budget::NoMemory;

/// The most bytes of one record. What a request to the engine may hold becomes a record of not much more.
const MAX_RECORD: u64 = 48 * 1024 * 1024;
/// The same of a record that nothing large belongs to.
const MAX_SMALL: u64 = 4 * 1024 * 1024;
/// How much is read at once.
const BUFFER: usize = 64 * 1024;

/// Why a document was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Something is wrong with it.
    #[error("{0}")]
    Faulty(String),
    /// It could not be read to its end.
    #[error("the document could not be read to its end: {0}")]
    Broken(#[source] io::Error),
    /// There was no memory for one of its records.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// It could not be kept beside the brain.
    #[error("the document could not be kept beside the brain")]
    Staging(#[from] rusqlite::Error),
}

impl From<StagingError> for ImportError {
    fn from(error: StagingError) -> Self {
        match error {
            StagingError::Faulty(reason) => Self::Faulty(reason),
            StagingError::Sqlite(error) => Self::Staging(error),
        }
    }
}

/// Reads the document and keeps it beside the brain in `file`. `admit` is asked before more of a record is kept in memory,
/// with how many bytes it then has.
pub(super) fn read(
    file: &Path,
    document: impl Read,
    admit: impl FnMut(usize) -> Result<(), NoMemory>,
) -> Result<Staged, ImportError> {
    let staging = Staging::open(file)?;
    let place = Place::default();
    let reader = BufReader::with_capacity(BUFFER, Bounded { inner: document, place: &place, admit });
    let mut deserializer = serde_json::Deserializer::from_reader(reader);
    let read = Document { staging: &staging, place: &place }
        .deserialize(&mut deserializer)
        .and_then(|()| deserializer.end());
    if let Err(error) = read {
        return Err(place.explain(error));
    }
    Ok(staging.checked()?)
}

/// How far the reading has come.
#[derive(Default)]
struct Place {
    /// The section, and how many records of it were read.
    section: RefCell<String>,
    index: Cell<u32>,
    /// How many bytes were read of the record.
    bytes: Cell<u64>,
    /// What stopped it, if that was not its form.
    stopped: RefCell<Option<StagingError>>,
}

impl Place {
    fn enter(&self, section: &str) {
        // Sections that nobody knows may have any name.
        *self.section.borrow_mut() = section.chars().take(64).collect();
        self.next(0);
    }

    fn next(&self, index: u32) {
        self.index.set(index);
        self.bytes.set(0);
    }

    /// How many bytes a record of the section may have.
    fn most(&self) -> u64 {
        match self.section.borrow().as_str() {
            "turns" | "said" | "recalled" | "episodes" | "trajectories" | "knowledge" | "batches"
            | "feedback" | "lessons" => MAX_SMALL,
            _ => MAX_RECORD,
        }
    }

    fn explain(&self, error: serde_json::Error) -> ImportError {
        if let Some(StagingError::Sqlite(error)) = self.stopped.take() {
            return ImportError::Staging(error);
        }
        let section = self.section.borrow();
        let at =
            if section.is_empty() { String::new() } else { format!("`{section}[{}]`: ", self.index.get()) };
        match error.classify() {
            Category::Io if error.io_error_kind() == Some(io::ErrorKind::FileTooLarge) => {
                let most = self.most() / 1024 / 1024;
                ImportError::Faulty(format!("{at}one record must be at most {most} MiB long"))
            }
            Category::Io if error.io_error_kind() == Some(io::ErrorKind::OutOfMemory) => {
                ImportError::NoMemory(NoMemory)
            }
            Category::Io => ImportError::Broken(error.into()),
            Category::Eof => ImportError::Faulty(format!("{at}the document is cut off: {error}")),
            Category::Syntax | Category::Data => ImportError::Faulty(format!("{at}{error}")),
        }
    }
}

/// Bounds what one record may have, so that nobody's memory is filled with one that never ends.
struct Bounded<'a, R, A> {
    inner: R,
    place: &'a Place,
    admit: A,
}

impl<R: Read, A: FnMut(usize) -> Result<(), NoMemory>> Read for Bounded<'_, R, A> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let bytes = self.place.bytes.get().saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        self.place.bytes.set(bytes);
        if bytes > self.place.most() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let admitted = (self.admit)(usize::try_from(bytes).unwrap_or(usize::MAX));
        admitted.map(|()| read).map_err(|NoMemory| io::ErrorKind::OutOfMemory.into())
    }
}

/// The document itself.
struct Document<'a> {
    staging: &'a Staging,
    place: &'a Place,
}

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an export of an engine's memory, a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut seen: HashSet<String> = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            self.place.enter("");
            if is_known(&name) && !seen.insert(name.clone()) {
                return Err(A::Error::custom(format!("`{name}`: is there twice")));
            }
            self.section(&name, &mut map)?;
            self.place.enter("");
        }
        if seen.contains("version") { Ok(()) } else { Err(A::Error::missing_field("version")) }
    }
}

/// The names that mean something.
fn is_known(name: &str) -> bool {
    const KNOWN: [&str; 15] = [
        "version",
        "tasks",
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
    ];
    KNOWN.contains(&name)
}

impl Document<'_> {
    fn section<'de, A: MapAccess<'de>>(&self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "version" => version(map.next_value()?),
            "tasks" => self.records::<Task, A>(name, map),
            "turns" => self.records::<Turn, A>(name, map),
            "steps" => self.records::<StepRecord, A>(name, map),
            "said" => self.records::<Said, A>(name, map),
            "recalled" => self.records::<Recalled, A>(name, map),
            "events" => self.records::<EventRecord, A>(name, map),
            "episodes" => self.records::<EpisodeRecord, A>(name, map),
            "trajectories" => self.records::<Trajectory, A>(name, map),
            "knowledge" => self.records::<KnowledgeRecord, A>(name, map),
            "skills" => self.records::<SkillRecord, A>(name, map),
            "batches" => self.records::<BatchRecord, A>(name, map),
            "feedback" => self.records::<FeedbackRecord, A>(name, map),
            "lessons" => self.records::<LessonRecord, A>(name, map),
            "media" => self.records::<MediaRecord, A>(name, map),
            _ => {
                self.place.enter(name);
                map.next_value_seed(Ignored(self.place))
            }
        }
    }

    fn records<'de, R: Record, A: MapAccess<'de>>(&self, name: &str, map: &mut A) -> Result<(), A::Error> {
        self.place.enter(name);
        map.next_value_seed(Records::<R> { staging: self.staging, place: self.place, record: PhantomData })
    }
}

fn version<E: serde::de::Error>(version: u64) -> Result<(), E> {
    match version {
        VERSION => Ok(()),
        0 => Err(E::custom("`version`: must be at least 1")),
        later => Err(E::custom(format!(
            "`version`: is {later}, and this engine reads version {VERSION}; import it into a newer engine"
        ))),
    }
}

/// A section, record by record.
struct Records<'a, R> {
    staging: &'a Staging,
    place: &'a Place,
    record: PhantomData<R>,
}

impl<'de, R: Record> DeserializeSeed<'de> for Records<'_, R> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, R: Record> Visitor<'de> for Records<'_, R> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of records")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut records: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(record) = records.next_element::<R>()? {
            if let Err(error) = self.staging.take(index, record) {
                let reason = error.to_string();
                *self.place.stopped.borrow_mut() = Some(error);
                return Err(A::Error::custom(reason));
            }
            index = u32::checked_add(index, 1).ok_or_else(|| A::Error::custom("are too many"))?;
            self.place.next(index);
        }
        Ok(())
    }
}

/// A section that nobody knows.
struct Ignored<'a>(&'a Place);

impl<'de> DeserializeSeed<'de> for Ignored<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Ignored<'_> {
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
            self.0.next(index);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}
