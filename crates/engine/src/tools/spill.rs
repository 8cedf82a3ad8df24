//! Output that is too long for the model: it goes to a file of the workspace, and the model is told its head, its
//! tail, and where the rest is.

use std::io;
use std::path::Path;

use contract::CallId;
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use super::files::{FileLocation, Workspace};
use super::{ToolError, ToolOutput, ToolStep};

/// The longest output that the model is given whole, in bytes, unless its tool says otherwise.
pub(super) const MAX_INLINE_BYTES: usize = 64 * 1024;
/// How much of a longer one it is given, of each end. Bytes that are no text take three times as much when they
/// are shown: also then there is room for what a tool says about its output.
const HEAD_TAIL_BYTES: usize = 8 * 1024;
/// How much of it the file has.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;
/// The folder of these files.
const SPILL_FOLDER: &str = "tool-output";
/// A path in it.
const PROBE_FILE: &str = "tool-output/any";
/// How many bytes the older ones may have together: this decides how many of them are kept.
const MAX_TOTAL_BYTES: u64 = 256 * 1024 * 1024;
/// How many of them there are at most, with the one that is written: the folder is looked through for each.
const MAX_FILES: usize = 1_024;

/// Where long output goes.
#[derive(Clone)]
pub(crate) struct SpillDir {
    workspace: Workspace,
}

impl SpillDir {
    /// For tools that work in this folder.
    pub(crate) fn new(workspace: &Path) -> Self {
        Self { workspace: Workspace::new(workspace) }
    }

    /// The calls whose output is in a file.
    pub(crate) async fn spilled_calls(&self) -> io::Result<Vec<CallId>> {
        let workspace = self.workspace.clone();
        let kept = self.workspace.lane().run(move || {
            let Some(folder) = spill_folder(&workspace)? else { return Ok(Vec::new()) };
            let files = folder.siblings(is_spill_file)?;
            Ok(files.iter().filter_map(|(name, _)| name.strip_suffix(".txt")?.parse().ok()).collect())
        });
        kept.await.unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Removes the files of these calls.
    pub(crate) async fn remove(&self, calls: Vec<CallId>) -> io::Result<()> {
        let workspace = self.workspace.clone();
        let removed = self.workspace.lane().run(move || {
            let Some(folder) = spill_folder(&workspace)? else { return Ok(()) };
            calls.iter().try_for_each(|call_id| folder.remove_sibling(&format!("{call_id}.txt")))
        });
        removed.await.unwrap_or(Ok(()))
    }

    /// What the model is told of a call: what its tool gave, whole up to `most` bytes.
    pub(crate) async fn limit_output(
        &self,
        call_id: CallId,
        result: Result<ToolStep, ToolError>,
        most: usize,
    ) -> Result<ToolStep, ToolError> {
        match result {
            Ok(ToolStep::Done(output)) => {
                let text = self.limit_text(call_id, output.text, most).await;
                Ok(ToolStep::Done(ToolOutput { text, ..output }))
            }
            Err(ToolError(reason)) => {
                Err(ToolError(self.limit_text(call_id, reason, MAX_INLINE_BYTES).await))
            }
            asks @ Ok(ToolStep::Ask(_)) => asks,
        }
    }

    async fn limit_text(&self, call_id: CallId, text: String, most: usize) -> String {
        if text.len() <= most {
            return text;
        }
        let mut spool = self.spool(call_id);
        spool.push(text.as_bytes()).await;
        drop(text);
        spool.finish().await
    }

    /// Takes up the output of a call while it comes.
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

/// Output that comes in pieces. What it holds in memory is bounded, however much comes.
pub(super) struct Spool {
    workspace: Workspace,
    path: String,
    /// All of it, until that is too long; then its head.
    head: Vec<u8>,
    /// The end of what is behind the head, and up to as much before it.
    tail: Vec<u8>,
    total_bytes: u64,
    file: SpillState,
}

/// The file of a long output.
enum SpillState {
    /// It is not long yet.
    Inline,
    /// This much of it is in the file.
    File(File, u64),
    /// It cannot be kept, for this reason.
    Failed(String),
}

impl Spool {
    /// Takes the next piece.
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

    /// How many bytes came so far.
    pub(super) fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// What the model is told.
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

    /// Makes the file, with what came so far in it.
    async fn open_file(&mut self) {
        let (workspace, path) = (self.workspace.clone(), self.path.clone());
        let made = tokio::task::spawn_blocking(move || create_spill_file(&workspace, &path)).await;
        self.file = match made {
            Ok(Ok(file)) => SpillState::File(File::from_std(file), 0),
            Ok(Err(ToolError(reason))) => SpillState::Failed(reason),
            Err(error) => SpillState::Failed(error.to_string()),
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

/// At most `max` bytes from the start of `bytes`, not in the middle of a character.
fn utf8_prefix(bytes: &[u8], max: usize) -> &[u8] {
    let mut end = max.min(bytes.len());
    while end > max.saturating_sub(4) && bytes.get(end).is_some_and(|byte| is_utf8_continuation(*byte)) {
        end -= 1;
    }
    bytes.get(..end).unwrap_or(bytes)
}

/// At most `max` bytes from the end of `bytes`, not in the middle of a character.
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

/// Whether a byte of UTF-8 is one behind a character's first.
pub(super) fn is_utf8_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// The folder of these files, by a file in it; none where there is none, or only the workspace's owner could say why not.
fn spill_folder(workspace: &Workspace) -> io::Result<Option<FileLocation<'static>>> {
    if workspace.is_missing(SPILL_FOLDER) {
        return Ok(None);
    }
    // By the name of a file that is not looked at.
    let place = workspace.locate(PROBE_FILE).map_err(|ToolError(reason)| io::Error::other(reason))?;
    Ok(Some(place))
}

/// Makes the file `path`, in place of one of an earlier run of the same call, and removes the oldest ones.
fn create_spill_file(workspace: &Workspace, path: &str) -> Result<std::fs::File, ToolError> {
    let place = workspace.locate_creating_folders(path)?;
    evict_oldest(&place).map_err(|error| ToolError(error.to_string()))?;
    place.create()
}

/// Why there is no file of this path, if it is one that was made here.
pub(super) fn eviction_notice(path: &str) -> Option<String> {
    let name = path.trim_start_matches("./").strip_prefix(SPILL_FOLDER)?.strip_prefix('/')?;
    is_spill_file(name).then(|| {
        format!(
            "this output of an earlier call is no longer kept, because newer ones took its place (together they may \
             have {} MiB): make the call again if you still need it",
            MAX_TOTAL_BYTES >> 20
        )
    })
}

/// Whether a file of this name was made here.
fn is_spill_file(name: &str) -> bool {
    name.strip_suffix(".txt").is_some_and(|id| id.parse::<CallId>().is_ok())
}

/// Removes the oldest files beside the new one. Their names tell their age: ids grow with time.
fn evict_oldest(place: &FileLocation<'_>) -> io::Result<()> {
    let mut files = place.siblings(is_spill_file)?;
    files.sort_unstable_by(|(one, _), (other, _)| other.cmp(one));
    let mut kept = 0_u64;
    for (at, (name, size)) in files.iter().enumerate() {
        kept = kept.saturating_add(*size);
        if at + 1 >= MAX_FILES || kept > MAX_TOTAL_BYTES {
            place.remove_sibling(name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "spill_tests.rs"]
mod tests;
