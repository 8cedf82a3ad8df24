//! `write_file` and `edit_file`: write or edit files of the workspace.

use api::approvals::{ApprovalPreview, ApprovalRisk, PresentFile};
use api::tool_names;
use catalog::Permission;
use futures::future::BoxFuture;
use llm::ToolSpec;
use serde::Deserialize;
use serde_json::{Value, json};

use super::files::Workspace;
use super::patterns::Subject;
use super::{Invocation, Tool, ToolError, ToolStep, approval, parse_input};

/// The maximum size of a written or edited file, in bytes.
const MAX_FILE_BYTES: usize = 1024 * 1024;
/// The maximum length of a file's content as shown to a person, in characters.
const MAX_SHOWN_CHARS: usize = 20_000;

/// The `write_file` tool.
pub(super) struct WriteFile(pub(super) Workspace);

#[derive(Deserialize)]
struct WriteInput {
    path: String,
    content: String,
}

impl Tool for WriteFile {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: tool_names::WRITE_FILE.into(),
            description:
                "Writes a text file of the workspace, replacing what was there. Missing folders are \
                          made."
                    .into(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "The file, relative to the workspace."},
                    "content": {"type": "string", "description": "All that the file shall hold."},
                },
                "required": ["path", "content"],
            }),
        }
    }

    fn idempotent(&self) -> bool {
        true
    }

    fn permission(&self) -> Permission {
        Permission::Ask
    }

    fn approval_prompt(&self, input: &Value) -> String {
        let Ok(WriteInput { path, content }) = WriteInput::deserialize(input) else {
            return approval::default_prompt(&self.spec().name, input);
        };
        match existing_file(&self.0, &path) {
            ExistingFile::Text(old) => {
                let difference = approval::line_diff(&old, &content, MAX_SHOWN_CHARS);
                format!("Change the file {path:?}? {}", difference.describe())
            }
            present => {
                let noun = match present {
                    ExistingFile::Missing => "the new file",
                    _ => "the file",
                };
                let replaced =
                    if matches!(present, ExistingFile::NotText) { ", in place of what is there" } else { "" };
                let shown = approval::excerpt(&content, "", MAX_SHOWN_CHARS);
                let len = content.len();
                format!("Write {noun} {path:?}{replaced}? It will hold {len} bytes:\n\n{shown}")
            }
        }
    }

    fn approval_preview(&self, input: &Value) -> ApprovalPreview {
        let Ok(WriteInput { path, content }) = WriteInput::deserialize(input) else {
            return approval::input_preview(input);
        };
        let (present, (diff, truncated)) = match existing_file(&self.0, &path) {
            ExistingFile::Text(old) => {
                let difference = approval::line_diff(&old, &content, MAX_SHOWN_CHARS);
                (PresentFile::Text, (difference.shown, difference.truncated))
            }
            ExistingFile::Missing => (PresentFile::Missing, insertions(&content)),
            ExistingFile::NotText => (PresentFile::Other, insertions(&content)),
        };
        let path = shown_path(&path);
        ApprovalPreview::Diff { path, present, diff, truncated }
    }

    fn check_input(&self, input: &Value) -> Result<(), ToolError> {
        check_content(&parse_input::<WriteInput>(input.clone())?.content)
    }

    fn grant_subject(&self, input: &Value) -> Option<Subject> {
        WriteInput::deserialize(input).ok().map(|input| Subject::Path(input.path))
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let input = parse_input(invocation.input)?;
            self.0.run_blocking(move |workspace| write(&workspace, &input)).await
        })
    }
}

/// A path in visible form: what the person reads is where the file is.
fn shown_path(path: &str) -> String {
    approval::visible_prefix(path, "", MAX_SHOWN_CHARS).0
}

/// The diff of a text where nothing was before, and whether it is only the beginning.
fn insertions(content: &str) -> (String, bool) {
    let content = content.strip_suffix('\n').unwrap_or(content);
    if content.is_empty() {
        (String::new(), false)
    } else {
        approval::visible_prefix(content, "+", MAX_SHOWN_CHARS)
    }
}

/// The content of the file at a path before it is written.
enum ExistingFile {
    Missing,
    Text(String),
    /// It is not text, or cannot be read.
    NotText,
}

fn existing_file(workspace: &Workspace, path: &str) -> ExistingFile {
    match workspace.locate(path).and_then(|location| location.exists()) {
        Ok(true) => {}
        Ok(false) => return ExistingFile::Missing,
        // A missing folder is created when the file is written.
        Err(_) => {
            return if workspace.is_missing(path) { ExistingFile::Missing } else { ExistingFile::NotText };
        }
    }
    let text = workspace.locate(path).and_then(|location| location.read(MAX_FILE_BYTES as u64));
    text.map_or(ExistingFile::NotText, ExistingFile::Text)
}

fn check_content(content: &str) -> Result<(), ToolError> {
    if content.len() > MAX_FILE_BYTES {
        return Err(ToolError(format!("`content` must be at most {MAX_FILE_BYTES} bytes long")));
    }
    Ok(())
}

fn write(workspace: &Workspace, WriteInput { path, content }: &WriteInput) -> Result<String, ToolError> {
    check_content(content)?;
    let _changing = workspace.lock();
    workspace.locate_creating_folders(path)?.replace(content)?;
    Ok(format!("wrote {} bytes to `{path}`", content.len()))
}

/// The `edit_file` tool.
pub(super) struct EditFile(pub(super) Workspace);

#[derive(Deserialize)]
struct EditInput {
    path: String,
    old: String,
    new: String,
    all: Option<bool>,
}

impl Tool for EditFile {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: tool_names::EDIT_FILE.into(),
            description: "Replaces a piece of text in a file of the workspace.".into(),
            input_schema: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "The file, relative to the workspace."},
                    "old": {
                        "type": "string",
                        "description": "The text to replace, exactly as it is in the file. It must occur once.",
                    },
                    "new": {"type": "string", "description": "The text to put in its place."},
                    "all": {
                        "type": "boolean",
                        "description": "Replace `old` everywhere; it may then occur more than once.",
                    },
                },
                "required": ["path", "old", "new"],
            }),
        }
    }

    /// The new text may contain the old text: a second run would change it again.
    fn idempotent(&self) -> bool {
        false
    }

    fn permission(&self) -> Permission {
        Permission::Ask
    }

    fn approval_prompt(&self, input: &Value) -> String {
        let Ok(edit) = EditInput::deserialize(input) else {
            return approval::default_prompt(&self.spec().name, input);
        };
        if let ExistingFile::Text(before) = existing_file(&self.0, &edit.path)
            && let Ok((after, _)) = apply_edit(&before, &edit)
        {
            let difference = approval::line_diff(&before, &after, MAX_SHOWN_CHARS);
            return format!("Edit the file {:?}? {}", edit.path, difference.describe());
        }
        impossible_edit(&edit)
    }

    fn approval_preview(&self, input: &Value) -> ApprovalPreview {
        let Ok(edit) = EditInput::deserialize(input) else { return approval::input_preview(input) };
        if let ExistingFile::Text(before) = existing_file(&self.0, &edit.path)
            && let Ok((after, _)) = apply_edit(&before, &edit)
        {
            let difference = approval::line_diff(&before, &after, MAX_SHOWN_CHARS);
            return ApprovalPreview::Diff {
                path: shown_path(&edit.path),
                present: PresentFile::Text,
                diff: difference.shown,
                truncated: difference.truncated,
            };
        }
        approval::text_preview(&impossible_edit(&edit))
    }

    /// Another run could change more, but only in the file.
    fn risk(&self) -> ApprovalRisk {
        ApprovalRisk::Medium
    }

    fn check_input(&self, input: &Value) -> Result<(), ToolError> {
        if parse_input::<EditInput>(input.clone())?.old.is_empty() {
            return Err(ToolError("`old` must not be empty".into()));
        }
        Ok(())
    }

    fn grant_subject(&self, input: &Value) -> Option<Subject> {
        EditInput::deserialize(input).ok().map(|input| Subject::Path(input.path))
    }

    fn run(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolStep, ToolError>> {
        Box::pin(async move {
            let input = parse_input(invocation.input)?;
            self.0.run_blocking(move |workspace| edit(&workspace, &input)).await
        })
    }
}

/// Describes an edit that is not possible in the present state; that may have changed by the time of the call.
fn impossible_edit(EditInput { path, old, new, all }: &EditInput) -> String {
    let scope = if *all == Some(true) { "everywhere" } else { "in one place" };
    let mut prompt = format!("Edit the file {path:?}, {scope}?\n");
    for (sign, text) in [("-", old), ("+", new)] {
        // A removal does not insert an empty line.
        if !text.is_empty() {
            prompt.push('\n');
            prompt.push_str(&approval::excerpt(text, sign, MAX_SHOWN_CHARS / 2));
        }
    }
    prompt
}

fn edit(workspace: &Workspace, input: &EditInput) -> Result<String, ToolError> {
    let _changing = workspace.lock();
    let location = workspace.locate(&input.path)?;
    let (text, times) = apply_edit(&location.read(MAX_FILE_BYTES as u64)?, input)?;
    location.replace(&text)?;
    let occurrences = if times == 1 { "1 place".into() } else { format!("{times} places") };
    Ok(format!("edited `{}` in {occurrences}", input.path))
}

/// Returns the text after the edit, and the number of replacements.
fn apply_edit(
    text: &str,
    EditInput { path, old, new, all }: &EditInput,
) -> Result<(String, usize), ToolError> {
    if old.is_empty() {
        return Err(ToolError("`old` must not be empty".into()));
    }
    let times = text.matches(old).count();
    if times == 0 {
        return Err(ToolError(format!("`old` does not occur in `{path}`")));
    }
    // Of two overlapping matches only one is counted, but either could be meant.
    if *all != Some(true) && text.find(old) != text.rfind(old) {
        let times = times.max(2);
        return Err(ToolError(format!(
            "`old` occurs {times} times in `{path}`; give more of the text around it, or set `all`"
        )));
    }
    // Checked before the text is built: many long replacements could use up all memory.
    let len = times.saturating_mul(new.len()).saturating_add(text.len() - times * old.len());
    if len > MAX_FILE_BYTES {
        return Err(ToolError(format!("`{path}` would be over {MAX_FILE_BYTES} bytes")));
    }
    Ok((text.replace(old, new), times))
}

#[cfg(test)]
#[path = "../tests/unit/write.rs"]
mod tests;
