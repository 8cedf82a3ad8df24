//! Spill files: output that is too long for the conversation is written to a file of the workspace, and the model
//! receives its head, its tail, and the path of the rest.

use std::io;
use std::path::Path;

use api::CallId;
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use super::files::{FileLocation, Workspace};
use super::spill_name::{MAX_TOTAL_BYTES, SPILL_FOLDER, is_spill_file};
use super::{ToolError, ToolOutput, ToolStep, run_blocking};

/// The maximum length of an output that the model receives whole, in bytes, unless the tool sets another limit.
pub(super) const MAX_INLINE_BYTES: usize = 64 * 1024;
/// The length of the head and of the tail, in bytes each. Bytes that are not text take three times as much when
/// they are shown; even then there is room for the tool's note about its output.
const HEAD_TAIL_BYTES: usize = 8 * 1024;
/// The maximum size of a spill file, in bytes.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// A path in that folder.
const PROBE_FILE: &str = "tool-output/any";
/// The maximum number of files including the one being written: the folder is scanned for each new file.
const MAX_FILES: usize = 1_024;

/// The spill files of a workspace.
#[derive(Clone)]
pub struct SpillDir {
    workspace: Workspace,
}

impl SpillDir {
    /// Creates the spill files of this workspace.
    pub fn new(workspace: &Path) -> Self {
        Self { workspace: Workspace::new(workspace) }
    }

    /// Returns the calls whose output is in a spill file.
    pub async fn spilled_calls(&self) -> io::Result<Vec<CallId>> {
        let workspace = self.workspace.clone();
        let kept = self.workspace.lane().run(move || {
            let Some(folder) = spill_folder(&workspace)? else { return Ok(Vec::new()) };
            let files = folder.siblings(is_spill_file)?;
            Ok(files.iter().filter_map(|(name, _)| name.strip_suffix(".txt")?.parse().ok()).collect())
        });
        kept.await.unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Removes the spill files of these calls.
    pub async fn remove(&self, calls: Vec<CallId>) -> io::Result<()> {
        let workspace = self.workspace.clone();
        let removed = self.workspace.lane().run(move || {
            let Some(folder) = spill_folder(&workspace)? else { return Ok(()) };
            calls.iter().try_for_each(|call_id| folder.remove_sibling(&format!("{call_id}.txt")))
        });
        removed.await.unwrap_or(Ok(()))
    }

    /// Returns a tool's output as the model receives it: whole up to `most` bytes.
    pub async fn limit_output(
        &self,
        call_id: CallId,
        result: Result<ToolStep, ToolError>,
        max_bytes: usize,
    ) -> Result<ToolStep, ToolError> {
        match result {
            Ok(ToolStep::Done(output)) => {
                let text = self.limit_text(call_id, output.text, max_bytes).await;
                Ok(ToolStep::Done(ToolOutput { text, ..output }))
            }
            Err(ToolError(reason)) => {
                Err(ToolError(self.limit_text(call_id, reason, MAX_INLINE_BYTES).await))
            }
            asks @ Ok(ToolStep::Ask(_)) => asks,
        }
    }

    async fn limit_text(&self, call_id: CallId, text: String, max_bytes: usize) -> String {
        if text.len() <= max_bytes {
            return text;
        }
        let mut spool = self.spool(call_id);
        spool.push(text.as_bytes()).await;
        drop(text);
        spool.finish().await
    }

    /// Starts collecting the output of a call as it arrives.
    pub(super) fn spool(&self, call_id: CallId) -> Spool {
        let path = format!("{SPILL_FOLDER}/{call_id}.txt");
        Spool {
            workspace: self.workspace.clone(),
            path,
            head: Vec::new(),
            tail: Vec::new(),
            total_bytes: 0,
            file: SpillState::Inline,
        }
    }
}

/// Output that arrives in pieces. Its memory is bounded, however long the output.
pub(super) struct Spool {
    workspace: Workspace,
    path: String,
    /// All of the output until it gets too long; then its head.
    head: Vec<u8>,
    /// The end of what follows the head, and up to as much before it.
    tail: Vec<u8>,
    total_bytes: u64,
    file: SpillState,
}

/// The state of the spill file.
enum SpillState {
    /// The output is still short.
    Inline,
    /// The file, and how many bytes of the output it has.
    File(File, u64),
    /// The file could not be written, for this reason.
    Failed(String),
}

impl Spool {
    /// Appends the next piece.
    pub(super) async fn push(&mut self, bytes: &[u8]) {
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.total_bytes = self.total_bytes.saturating_add(len);
        if matches!(self.file, SpillState::Inline) {
            if self.head.len() + bytes.len() <= MAX_INLINE_BYTES {
                self.head.extend_from_slice(bytes);
                return;
            }
            self.open_file().await;
            let missing = (2 * HEAD_TAIL_BYTES).saturating_sub(self.head.len());
            self.head.extend_from_slice(bytes.get(..missing).unwrap_or(bytes));
        }
        self.write_to_file(bytes).await;
        self.push_tail(bytes);
    }

    /// Returns the number of bytes received so far.
    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Returns the output as the model receives it.
    pub(super) async fn finish(mut self) -> String {
        if let SpillState::File(file, _) = &mut self.file
            && let Err(error) = file.flush().await
        {
            self.file = SpillState::Failed(error.to_string());
        }
        let (kept, where_to) = match &self.file {
            SpillState::Inline => return String::from_utf8_lossy(&self.head).into_owned(),
            SpillState::File(_, kept) if *kept < self.total_bytes => {
                (Some(*kept), format!("the first {kept} bytes are in the file `{}`", self.path))
            }
            SpillState::File(_, kept) => (Some(*kept), format!("all of it is in the file `{}`", self.path)),
            SpillState::Failed(reason) => (None, format!("it could not be kept in a file: {reason}")),
        };
        let head = String::from_utf8_lossy(utf8_prefix(&self.head, HEAD_TAIL_BYTES));
        let tail = String::from_utf8_lossy(utf8_suffix(&self.tail, HEAD_TAIL_BYTES));
        let read_on = match kept {
            Some(_) => "; `read_file` reads on with `offset` and `limit`",
            None => "",
        };
        let total = self.total_bytes;
        format!("{head}\n\n[cut: {total} bytes came; {where_to}{read_on}. It ends:]\n\n{tail}")
    }

    /// Creates the file and writes the output so far into it.
    async fn open_file(&mut self) {
        let (workspace, path) = (self.workspace.clone(), self.path.clone());
        self.file = match run_blocking(move || create_spill_file(&workspace, &path)).await {
            Ok(file) => SpillState::File(File::from_std(file), 0),
            Err(ToolError(reason)) => SpillState::Failed(reason),
        };
        let head = std::mem::take(&mut self.head);
        self.write_to_file(&head).await;
        self.push_tail(&head);
        self.head = head;
        self.head.truncate(2 * HEAD_TAIL_BYTES);
        self.head.shrink_to_fit();
    }

    async fn write_to_file(&mut self, bytes: &[u8]) {
        let SpillState::File(file, kept) = &mut self.file else { return };
        let room = usize::try_from(MAX_FILE_BYTES.saturating_sub(*kept)).unwrap_or(usize::MAX);
        let bytes = bytes.get(..room).unwrap_or(bytes);
        match file.write_all(bytes).await {
            Ok(()) => *kept += u64::try_from(bytes.len()).unwrap_or(0),
            Err(error) => self.file = SpillState::Failed(error.to_string()),
        }
    }

    fn push_tail(&mut self, bytes: &[u8]) {
        let last = bytes.len().saturating_sub(2 * HEAD_TAIL_BYTES);
        self.tail.extend_from_slice(bytes.get(last..).unwrap_or(bytes));
        if self.tail.len() > 4 * HEAD_TAIL_BYTES {
            self.tail.drain(..self.tail.len() - 2 * HEAD_TAIL_BYTES);
        }
    }
}

/// Returns at most `max` bytes from the start of `bytes`, cut at a character boundary.
fn utf8_prefix(bytes: &[u8], max: usize) -> &[u8] {
    let mut end = max.min(bytes.len());
    while end > max.saturating_sub(4) && bytes.get(end).is_some_and(|byte| is_utf8_continuation(*byte)) {
        end -= 1;
    }
    bytes.get(..end).unwrap_or(bytes)
}

/// Returns at most `max` bytes from the end of `bytes`, cut at a character boundary.
fn utf8_suffix(bytes: &[u8], max: usize) -> &[u8] {
    let first = bytes.len().saturating_sub(max);
    let mut start = first;
    while start > 0
        && start < first.saturating_add(4)
        && bytes.get(start).is_some_and(|byte| is_utf8_continuation(*byte))
    {
        start += 1;
    }
    bytes.get(start..).unwrap_or_default()
}

/// Whether a byte is a continuation byte of UTF-8.
pub(super) fn is_utf8_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// Returns the location of the spill folder; `None` if the folder does not exist.
fn spill_folder(workspace: &Workspace) -> io::Result<Option<FileLocation<'static>>> {
    if workspace.is_missing(SPILL_FOLDER) {
        return Ok(None);
    }
    // The location is derived from a file name in it; that file is not accessed.
    let location = workspace.locate(PROBE_FILE).map_err(|ToolError(reason)| io::Error::other(reason))?;
    Ok(Some(location))
}

/// Creates the file `path`, replacing one of an earlier run of the same call, and evicts the oldest files.
fn create_spill_file(workspace: &Workspace, path: &str) -> Result<std::fs::File, ToolError> {
    let location = workspace.locate_creating_folders(path)?;
    evict_oldest(&location).map_err(|error| ToolError(error.to_string()))?;
    location.create()
}

/// Removes the oldest files beside the new one. Their names give their age because ids grow with time.
fn evict_oldest(location: &FileLocation<'_>) -> io::Result<()> {
    let mut files = location.siblings(is_spill_file)?;
    files.sort_unstable_by(|(one, _), (other, _)| other.cmp(one));
    let mut kept = 0_u64;
    for (at, (name, size)) in files.iter().enumerate() {
        kept = kept.saturating_add(*size);
        if at + 1 >= MAX_FILES || kept > MAX_TOTAL_BYTES {
            location.remove_sibling(name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "../tests/unit/spill.rs"]
mod tests;
