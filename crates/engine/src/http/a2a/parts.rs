//! The parts of a message: the words and attachments of a turn, or the answer to its question. Pure.

use api::content::ContentBlock;
use api::engine::{HitlRespond, PendingRequest};
use api::event::HitlKind;
use serde::Deserialize;
use serde_json::{Value, json};

use super::errors;
use super::request::Part;
use crate::http::json_rpc::Fault;

/// What a message says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Content {
    /// Its texts, with an empty line between two.
    pub(super) text: String,
    pub(super) media: Vec<ContentBlock>,
    /// Its data.
    pub(super) data: Vec<Value>,
}

/// The answer to a question, as data.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerData {
    answer: String,
    #[serde(default)]
    request_id: Option<String>,
    #[serde(default)]
    feedback: Option<String>,
}

impl Content {
    pub(super) fn parse(parts: Vec<Part>) -> Result<Self, Fault> {
        let mut content = Self::default();
        let mut texts = Vec::new();
        for (index, part) in parts.into_iter().enumerate() {
            let name = format!("message.parts[{index}]");
            let Part { text, raw, url, data, filename, media_type, .. } = part;
            match (text, raw, url, data) {
                (Some(text), None, None, None) => texts.push(text),
                (None, Some(raw), None, None) => {
                    if media_type.is_empty() {
                        return Err(Fault::invalid_params(format!(
                            "`{name}.mediaType`: must be given with `raw`"
                        )));
                    }
                    let source = json!({"data": raw});
                    content.media.push(media(&name, &media_type, &filename, source)?);
                }
                (None, None, Some(url), None) => {
                    content.media.push(media(&name, &media_type, &filename, json!({"url": url}))?);
                }
                (None, None, None, Some(data)) => content.data.push(data),
                _ => {
                    let message = format!("`{name}`: must have one of `text`, `raw`, `url` and `data`");
                    return Err(Fault::invalid_params(message));
                }
            }
        }
        content.text = texts.join("\n\n");
        Ok(content)
    }

    /// The message that begins a turn.
    pub(super) fn into_prompt(self) -> Result<(String, Vec<ContentBlock>), Fault> {
        if !self.data.is_empty() {
            let message = "`message.parts`: data only answers a question of a task; say it in text";
            return Err(errors::content_type_not_supported(message));
        }
        Ok((self.text, self.media))
    }

    /// The answer to `request`; `None` if it answers another request, which was answered already.
    pub(super) fn into_answer(self, request: &PendingRequest) -> Result<Option<HitlRespond>, Fault> {
        let Self { text, media, mut data } = self;
        let (answer, feedback) = match (data.pop(), data.is_empty(), text.trim().is_empty()) {
            (None, ..) => (text, None),
            (Some(data), true, true) => {
                let expected =
                    "`message.parts`: data must have `answer`, and may have `request_id` and `feedback`";
                let data: AnswerData =
                    serde_json::from_value(data).map_err(|_| Fault::invalid_params(expected))?;
                if data.request_id.is_some_and(|id| id != request.request_id.to_string()) {
                    return Ok(None);
                }
                (data.answer, data.feedback)
            }
            _ => {
                let message = "`message.parts`: an answer is either data or words";
                return Err(Fault::invalid_params(message));
            }
        };
        let answer = match request.kind {
            HitlKind::Permission => answer.trim().to_lowercase(),
            HitlKind::Question => answer,
        };
        Ok(Some(HitlRespond {
            task_id: request.task_id.clone(),
            answer,
            feedback,
            content_blocks: media,
            request_id: Some(request.request_id.to_string()),
            scope: None,
        }))
    }
}

/// An attachment whose content is in `source`.
fn media(name: &str, media_type: &str, filename: &str, source: Value) -> Result<ContentBlock, Fault> {
    let kind = match media_type.split('/').next() {
        Some("image") => "image",
        Some("audio") => "audio",
        _ => "document",
    };
    let mut block = source;
    if let Some(fields) = block.as_object_mut() {
        fields.insert("type".to_owned(), json!(kind));
        let given =
            [("media_type", media_type), ("name", filename)].into_iter().filter(|(_, text)| !text.is_empty());
        fields.extend(given.map(|(name, text)| (name.to_owned(), json!(text))));
    }
    serde_json::from_value(block).map_err(|error| Fault::invalid_params(format!("`{name}`: {error}")))
}
