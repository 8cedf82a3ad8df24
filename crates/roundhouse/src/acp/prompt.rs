//! A prompt of the client as a message to the agent.

use api::content::ContentBlock as Attachment;
use serde_json::{Value, json};

use super::params::{ContentBlock, Resource};
use super::rpc::RpcError;

/// The message of a prompt that has attachments only.
const ATTACHMENTS_ONLY: &str = "(See what is attached.)";

/// A message and what is attached to it.
#[derive(Debug, PartialEq)]
pub(super) struct Message {
    pub(super) text: String,
    pub(super) media: Vec<Attachment>,
}

/// Translates a prompt. Links stand in the text where the client put them.
pub(super) fn message(prompt: Vec<ContentBlock>) -> Result<Message, RpcError> {
    let mut text = String::new();
    let mut media = Vec::new();
    for (index, block) in prompt.into_iter().enumerate() {
        match block {
            ContentBlock::Text { text: part } => text.push_str(&part),
            ContentBlock::Image { data, mime_type } => {
                media.push(attachment(
                    index,
                    json!({"type": "image", "media_type": mime_type, "data": data}),
                )?);
            }
            ContentBlock::Audio { data, mime_type } => {
                media.push(attachment(
                    index,
                    json!({"type": "audio", "media_type": mime_type, "data": data}),
                )?);
            }
            ContentBlock::ResourceLink { uri, name } => text.push_str(&link(&name, &uri)),
            ContentBlock::Resource { resource: Resource::Text { uri, text: content } } => {
                text.push_str(&link(file_name(&uri), &uri));
                media.push(Attachment::Text(format!("{uri}:\n{content}")));
            }
            ContentBlock::Resource { resource: Resource::Blob { uri, blob, mime_type } } => {
                text.push_str(&link(file_name(&uri), &uri));
                media.push(blob_attachment(index, &uri, &blob, mime_type)?);
            }
        }
    }
    if text.trim().is_empty() {
        if media.is_empty() {
            return Err(RpcError::invalid_params("`prompt`: must not be empty or blank"));
        }
        ATTACHMENTS_ONLY.clone_into(&mut text);
    }
    Ok(Message { text, media })
}

fn link(name: &str, uri: &str) -> String {
    format!("[{name}]({uri})")
}

fn file_name(uri: &str) -> &str {
    uri.trim_end_matches('/').rsplit('/').next().unwrap_or(uri)
}

fn blob_attachment(
    index: usize,
    uri: &str,
    blob: &str,
    mime_type: Option<String>,
) -> Result<Attachment, RpcError> {
    let Some(mime_type) = mime_type else {
        return Err(RpcError::invalid_params(format!("`prompt[{index}].resource.mimeType`: must be given")));
    };
    let kind = match mime_type.split('/').next() {
        Some("image") => "image",
        Some("audio") => "audio",
        _ => "document",
    };
    attachment(index, json!({"type": kind, "media_type": mime_type, "data": blob, "name": file_name(uri)}))
}

/// An attachment as the engine takes it, with the engine's rules.
fn attachment(index: usize, block: Value) -> Result<Attachment, RpcError> {
    serde_json::from_value(block)
        .map_err(|error| RpcError::invalid_params(format!("`prompt[{index}]`: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(prompt: Value) -> Result<Message, RpcError> {
        message(serde_json::from_value(prompt).unwrap())
    }

    #[test]
    fn links_stand_where_they_were_and_files_are_attached() {
        let prompt = json!([
            {"type": "text", "text": "Look at "},
            {"type": "resource_link", "uri": "file:///a/b.rs", "name": "b.rs"},
            {"type": "text", "text": ", and "},
            {"type": "resource", "resource": {"uri": "file:///a/c.md", "text": "# C"}},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "file:///a/d.pdf", "blob": "AAAA", "mimeType": "application/pdf"}},
        ]);
        let Message { text, media } = translated(prompt).unwrap();
        assert_eq!(
            text,
            "Look at [b.rs](file:///a/b.rs), and [c.md](file:///a/c.md)[d.pdf](file:///a/d.pdf)"
        );
        assert_eq!(media.len(), 3);
        assert_eq!(media[0], Attachment::Text("file:///a/c.md:\n# C".into()));
    }

    #[test]
    fn what_cannot_be_attached_is_refused_by_place() {
        for (prompt, words) in [
            (json!([]), "must not be empty"),
            (json!([{"type": "text", "text": " "}]), "must not be empty"),
            (json!([{"type": "image", "data": "!", "mimeType": "image/png"}]), "prompt[0]"),
            (json!([{"type": "image", "data": "AAAA", "mimeType": "text/plain"}]), "prompt[0]"),
            (json!([{"type": "resource", "resource": {"uri": "x", "blob": "AAAA"}}]), "mimeType"),
        ] {
            let error = format!("{:?}", translated(prompt.clone()).unwrap_err());
            assert!(error.contains(words), "{prompt}: {error}");
        }
        let picture = json!([{"type": "image", "data": "AAAA", "mimeType": "image/png"}]);
        assert_eq!(translated(picture).unwrap().text, ATTACHMENTS_ONLY);
    }
}
