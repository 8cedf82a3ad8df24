//! `read_file` and `list_files`: read files and folders of the workspace.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};

use api::tool_names;
use bytes::Bytes;
use catalog::Permission;
use documents::Format;
use futures::future::BoxFuture;
use llm::ToolSpec;
use resources::memory_budget::{MemoryBudget, MemoryUse};
use rustix::fs::{Dir, FileType, OFlags};
use serde::Deserialize;
use serde_json::{Value, json};

use super::beneath::is_temporary;
use super::documents::DocumentReader;
use super::files::{Workspace, cannot_read, not_a_file};
use super::media::{ShownDocument, UnreadDocument};
use super::patterns::Subject;
use super::spill::is_utf8_continuation;
use super::{Invocation, Tool, ToolError, ToolOutput, ToolStep, media, parse_input};

/// The maximum length of one part of a file, in bytes. The note about the part fits beside it into a tool's
/// result.
const MAX_READ_BYTES: u64 = 63 * 1024;
/// The maximum length of a UTF-8 character, in bytes.
const MAX_CHAR_BYTES: usize = 4;
/// How much of a file is looked at to find out what it is, in bytes.
const SIGNATURE_BYTES: u64 = 1_024;
/// The maximum size of a document that is read, in bytes.
const MAX_DOCUMENT_BYTES: usize = 20 << 20;
/// The maximum number of a folder's entries in a result.
const MAX_ENTRIES: usize = 1_000;

#[derive(Deserialize)]
struct PathInput {
    path: String,
}

fn path_schema(what: &str) -> Value {
    json!({
        "type": "object",
        "properties": {"path": {"type": "string", "description": what}},
        "required": ["path"],
    })
}

/// The `read_file` tool.
pub(super) struct ReadFile {
    workspace: Workspace,
    documents: DocumentReader,
    memory_budget: MemoryBudget,
}

/// What there is to read.
enum Found {
    /// A part of a text.
    Text(String),
    /// A picture or a document of so many bytes, which is read whole.
    Whole(Option<Format>, File, u64),
}

#[derive(Deserialize)]
struct ReadInput {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

impl Tool for ReadFile {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: tool_names::READ_FILE.into(),
            description: format!(
                "Reads a file of the workspace: a text, at most {MAX_READ_BYTES} bytes at once; where there is \
                 more, the result says with which `offset` to read on. Pictures (PNG, JPEG, GIF, WebP) and \
                 short PDFs are shown; of longer PDFs, DOCX and XLSX the text is read."
            ),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "The file, relative to the workspace."},
                    "offset": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "The byte to begin at; 0 is the first.",
                    },
                    "limit": {"type": "integer", "minimum": 1, "description": "The most bytes to read."},
                },
                "required": ["path"],
            }),
        }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn grant_subject(&self, input: &Value) -> Option<Subject> {
        Some(Subject::Path(input.get("path")?.as_str()?.to_owned()))
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let is_shown = invocation.task.is_some();
            let input: ReadInput = parse_input(invocation.input)?;
            let (workspace, path) = (self.workspace.clone(), input.path.clone());
            let failed = || ToolError("the tool failed".into());
            let found = self.workspace.lane().run(move || find(&workspace, &input)).await;
            let output = match found.ok_or_else(failed)?? {
                Found::Text(text) => ToolOutput { text, ..ToolOutput::default() },
                Found::Whole(format, file, size) => {
                    self.read_whole(&path, format, (file, size), is_shown).await?
                }
            };
            Ok(ToolStep::Done(output))
        })
    }
}

impl ReadFile {
    pub(super) fn new(workspace: Workspace, documents: DocumentReader, memory_budget: MemoryBudget) -> Self {
        Self { workspace, documents, memory_budget }
    }

    /// Reads a picture or a document. `is_shown` says whether there is a model that is shown more than the text.
    async fn read_whole(
        &self,
        path: &str,
        format: Option<Format>,
        (file, size): (File, u64),
        is_shown: bool,
    ) -> Result<ToolOutput, ToolError> {
        let limit = format.map_or(media::MAX_PICTURE_BYTES, |_| MAX_DOCUMENT_BYTES);
        let length = usize::try_from(size).ok().filter(|length| *length <= limit).ok_or_else(|| {
            let limit = format.map_or(media::MAX_PICTURE_SIZE.to_owned(), |_| format!("{} MiB", limit >> 20));
            ToolError(format!("`{path}` has {size} bytes; such files are read up to {limit}"))
        })?;
        let reserved = self.memory_budget.reserve(MemoryUse::Tools, length.saturating_mul(2)).await;
        let _reserved = reserved.map_err(|error| ToolError(error.to_string()))?;
        let read = self.workspace.lane().run(move || {
            let mut bytes = Vec::new();
            file.take(size).read_to_end(&mut bytes).map(|_| bytes)
        });
        let bytes = read.await.ok_or_else(|| ToolError("the tool failed".into()))?;
        let bytes = bytes.map_err(|error| cannot_read(path, &error))?;
        let name = path.rsplit('/').next().unwrap_or(path);
        let failed = |reason: String| ToolError(format!("`{path}`: {reason}"));
        let Some(format) = format else {
            let media_type = documents::picture_type(&bytes).unwrap_or_default();
            let media = vec![media::picture(Some(name), bytes).map_err(failed)?];
            return Ok(if is_shown {
                let text = format!("[The picture `{path}`, {size} bytes, is shown with this result.]");
                ToolOutput { text, media, ..ToolOutput::default() }
            } else {
                let text = format!("[The picture `{path}`, {media_type}, {size} bytes, is not shown here.]");
                ToolOutput { text, ..ToolOutput::default() }
            });
        };
        let document = UnreadDocument { format, path: path.to_owned(), bytes: Bytes::from(bytes) };
        let shown = document.show(&self.documents, is_shown.then_some(media::MAX_SHOWN_PAGES)).await;
        let ShownDocument { text, pdf } = shown.map_err(|error| failed(error.to_string()))?;
        Ok(ToolOutput { text, media: pdf.into_iter().map(|(pdf, _)| pdf).collect(), ..ToolOutput::default() })
    }
}

/// Finds out what a file is, and reads the part of a text.
fn find(workspace: &Workspace, ReadInput { path, offset, limit }: &ReadInput) -> Result<Found, ToolError> {
    let failed = |error: io::Error| cannot_read(path, &error);
    let mut file = File::from(workspace.open(path, OFlags::empty())?);
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(not_a_file(path));
    }
    let size = metadata.len();
    if offset.is_none() && limit.is_none() {
        let mut start = Vec::new();
        (&file).take(SIGNATURE_BYTES).read_to_end(&mut start).map_err(failed)?;
        let format = Format::of_file(&start, path);
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        if format.is_some() || documents::picture_type(&start).is_some() {
            return Ok(Found::Whole(format, file, size));
        }
    }
    let offset = offset.unwrap_or(0);
    if offset > size {
        return Err(ToolError(format!("`{path}` has {size} bytes, so none at offset {offset}")));
    }
    let limit = limit.unwrap_or(MAX_READ_BYTES).clamp(1, MAX_READ_BYTES);
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut bytes = Vec::new();
    // With room for a character that begins before the limit.
    let room = limit.saturating_add(u64::try_from(2 * MAX_CHAR_BYTES).unwrap_or(0));
    file.take(room).read_to_end(&mut bytes).map_err(failed)?;
    let FileChunk { skipped, text, len } =
        char_aligned_chunk(&bytes, usize::try_from(limit).unwrap_or(usize::MAX), offset > 0);
    let begin = offset.saturating_add(u64::try_from(skipped).unwrap_or(0));
    let end = begin.saturating_add(u64::try_from(len).unwrap_or(0));
    Ok(Found::Text(if end < size {
        format!("{text}\n[cut: bytes {begin} to {end} of {size}; read on with `offset` {end}]")
    } else {
        text
    }))
}

/// A part of a file.
struct FileChunk {
    /// The number of leading bytes that belong to a character that began before the offset.
    skipped: usize,
    /// The text, with replacement characters for invalid UTF-8.
    text: String,
    /// The length of the part in the file, in bytes.
    len: usize,
}

/// Returns about the first `limit` bytes, aligned to characters at both ends. `inside` says whether the bytes may
/// begin in the middle of a character.
fn char_aligned_chunk(bytes: &[u8], limit: usize, inside: bool) -> FileChunk {
    let cut_off = |bytes: &[u8]| {
        bytes.iter().take(MAX_CHAR_BYTES - 1).take_while(|byte| is_utf8_continuation(**byte)).count()
    };
    let skipped = if inside { cut_off(bytes) } else { 0 };
    let bytes = bytes.get(skipped..).unwrap_or_default();
    let upto = |end: usize| bytes.get(..end).unwrap_or(bytes);
    let mut chunk = upto(limit.min(bytes.len()));
    chunk = upto(chunk.len() + cut_off(bytes.get(chunk.len()..).unwrap_or_default()));
    if std::str::from_utf8(chunk).is_err() {
        // Replacement characters take up to three times as many bytes as what they replace.
        chunk = upto(chunk.len().min((limit / 3).max(1)));
    }
    FileChunk { skipped, text: String::from_utf8_lossy(chunk).into_owned(), len: chunk.len() }
}

/// The `list_files` tool.
pub(super) struct ListFiles(pub(super) Workspace);

impl Tool for ListFiles {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: tool_names::LIST_FILES.into(),
            description: "Lists a folder of the workspace; names of folders end with a slash.".into(),
            input_schema: path_schema("The folder, relative to the workspace; `.` for the workspace itself."),
        }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Allow
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let PathInput { path } = parse_input(invocation.input)?;
            self.0.run_blocking(move |workspace| list(&workspace, &path)).await
        })
    }
}

fn list(workspace: &Workspace, path: &str) -> Result<String, ToolError> {
    let failed = |error: rustix::io::Errno| {
        ToolError(format!("`{path}` cannot be listed: {}", io::Error::from(error)))
    };
    let folder = workspace.open(path, OFlags::DIRECTORY)?;
    let mut names = Vec::new();
    let mut more = false;
    for entry in Dir::read_from(&folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let mut name = entry.file_name().to_string_lossy().into_owned();
        if name == "." || name == ".." || is_temporary(&*name) {
            continue;
        }
        if entry.file_type() == FileType::Directory {
            name.push('/');
        }
        more = names.len() == MAX_ENTRIES;
        if more {
            break;
        }
        names.push(name);
    }
    names.sort_unstable();
    if more {
        names.push(format!("[cut: the folder has more than {MAX_ENTRIES} entries]"));
    }
    if names.is_empty() { Ok("(empty)".into()) } else { Ok(names.join("\n")) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::WorkspaceFixture;

    fn read_part(workspace: &Workspace, input: &ReadInput) -> Result<String, ToolError> {
        match find(workspace, input)? {
            Found::Text(text) => Ok(text),
            Found::Whole(format, ..) => panic!("{format:?}"),
        }
    }

    fn read(workspace: &Workspace, path: &str) -> Result<String, ToolError> {
        read_part(workspace, &ReadInput { path: path.into(), offset: None, limit: None })
    }

    #[test]
    fn reads_and_lists_what_is_inside() {
        let fixture = WorkspaceFixture::new();
        assert_eq!(list(&fixture.workspace, "."), Ok("(empty)".into()));
        fixture.write_file("sub/notes.txt", "green");
        fixture.write_file("a", "");
        fixture.write_file(".writing-1.tmp", "left by a crash");
        assert_eq!(list(&fixture.workspace, "."), Ok("a\nsub/".into()));
        assert_eq!(read(&fixture.workspace, "sub/../sub/notes.txt"), Ok("green".into()));
    }

    #[test]
    fn nothing_leads_outside() {
        let fixture = WorkspaceFixture::new();
        for path in fixture.escape_paths() {
            let refused = read(&fixture.workspace, &path).unwrap_err();
            assert!(refused.0.contains("leads out of the workspace"), "{path}: {refused}");
            assert!(list(&fixture.workspace, &path).is_err(), "{path}");
        }
    }

    #[test]
    fn folders_pipes_and_missing_files_are_told_apart() {
        let fixture = WorkspaceFixture::new();
        assert!(read(&fixture.workspace, ".").unwrap_err().0.contains("is not a file"));
        assert!(read(&fixture.workspace, "nothing").unwrap_err().0.contains("no such file"));
        fixture.create_fifo("pipe");
        assert!(read(&fixture.workspace, "pipe").unwrap_err().0.contains("is not a file"));
    }

    #[test]
    fn a_large_file_is_read_bit_by_bit() {
        let fixture = WorkspaceFixture::new();
        fixture.write_file("large", "grün ".repeat(20_000));
        let read = |offset, limit| {
            read_part(&fixture.workspace, &ReadInput { path: "large".into(), offset, limit }).unwrap()
        };
        let text = read(None, None);
        assert!(text.ends_with("\n[cut: bytes 0 to 64512 of 120000; read on with `offset` 64512]"), "{text}");
        let rest = read(Some(64_512), Some(1 << 40));
        assert_eq!(text.split("\n[cut").next().unwrap().to_owned() + &rest, "grün ".repeat(20_000));
        assert_eq!(read(Some(3), Some(2)), "n \n[cut: bytes 4 to 6 of 120000; read on with `offset` 6]");
        assert_eq!(read(Some(120_000), None), "");
        let input = ReadInput { path: "large".into(), offset: Some(120_001), limit: None };
        assert!(read_part(&fixture.workspace, &input).unwrap_err().0.contains("120000 bytes"));
    }

    #[test]
    fn bytes_that_are_no_text_are_read_too() {
        let fixture = WorkspaceFixture::new();
        fixture.write_file("bytes", vec![0xff; 100_000]);
        let text = read(&fixture.workspace, "bytes").unwrap();
        assert!(text.len() < 64 * 1024 && text.contains("read on with `offset` 21504"), "{}", text.len());
    }

    proptest! {
        #[test]
        fn read_in_parts_a_text_is_whole(text in ".{0,40}", limit in 1_usize..20) {
            let (mut offset, mut read) = (0, String::new());
            while offset < text.len() {
                let bytes = &text.as_bytes()[offset..];
                let FileChunk { skipped, text, len } = char_aligned_chunk(&bytes[..bytes.len().min(limit + 8)], limit, offset > 0);
                prop_assert_eq!(skipped, 0);
                prop_assert!(len > 0);
                read.push_str(&text);
                offset += len;
            }
            prop_assert_eq!(read, text);
        }

        #[test]
        fn any_bytes_are_read_to_their_end(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            limit in 1_usize..20,
        ) {
            let mut offset = 0;
            while offset < bytes.len() {
                let rest = &bytes[offset..];
                let FileChunk { skipped, text, len } = char_aligned_chunk(&rest[..rest.len().min(limit + 8)], limit, offset > 0);
                prop_assert!(skipped + len > 0 && text.len() <= 3 * len.max(1));
                offset += skipped + len;
            }
        }
    }
}
