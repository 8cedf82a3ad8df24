//! Validates a request to run a turn.

use api::content::{self, ContentBlock, MediaKind};
use api::engine::Execute;
use api::memory::Source;
use api::turn_options::TurnOverrides;
use api::turns::OnBusy;
use api::{ClientRequestId, MessageId, TaskId, Timestamp};
use bytes::Bytes;
use documents::{Extracted, Format};
use llm::{ChatModel, Content, Media, Routes, estimate};
use sha2::{Digest as _, Sha256};
use store::steps::{Opened, TurnBase, TurnOptions};
use store::{IdempotencyKey, Rewind};
use tools::Toolbox;
use tools::documents::ReadError;
use tools::media::media_text;

use super::attachment_intake::{self, Intake};
use super::branch::{Branch, BranchPointError};
use super::{AgentError, turn_overrides};

/// The most model calls of a turn if the request sets no limit.
const DEFAULT_MAX_TURNS: u64 = 50;
/// The largest recording in a message, in bytes. One request to a model carries little more.
const MAX_AUDIO_BYTES: usize = 20 << 20;

/// A validated request to run a turn.
pub(super) struct TurnRequest {
    pub(super) task_id: TaskId,
    pub(super) idempotency_key: Option<IdempotencyKey>,
    pub(super) on_busy: OnBusy,
    start_from: StartFrom,
    message: String,
    media: Vec<Content>,
    /// The notes about what the request sets for this turn only.
    notes: Vec<String>,
    options: TurnOptions,
}

/// The point from which the turn continues, as the caller names it.
enum StartFrom {
    End,
    Edit(String),
    Retry(String),
}

impl TurnRequest {
    /// Validates a request, against the models that the gateway has, if any is configured, and the tools. One that was
    /// accepted earlier is not checked against them again: they may be others by now.
    pub(super) fn parse(
        mut request: Execute,
        intake: Intake,
        models: Option<&Routes>,
        toolbox: Option<&Toolbox>,
    ) -> Result<Self, AgentError> {
        let mut overrides = request.take_overrides();
        let idempotency_key = intake.key.clone().or_else(|| {
            request.client_request_id.as_ref().map(|id| idempotency_key(id, &request, &overrides))
        });
        let model = turn_overrides::validate(&overrides, models, toolbox)?;
        let start_from = StartFrom::of(&request)?;
        let has_overrides = !overrides.is_empty();
        let notes = turn_overrides::take_notes(&mut overrides);
        let overrides = (!overrides.is_empty()).then(|| Box::new(overrides));
        let max_turns =
            request.max_turns.and_then(|max| u64::try_from(max.get()).ok()).unwrap_or(DEFAULT_MAX_TURNS);
        check_on_busy(&request, &start_from, has_overrides)?;
        Ok(Self {
            task_id: request.task_id,
            idempotency_key,
            on_busy: request.on_busy,
            start_from,
            message: request.message,
            media: parse_attachments(
                "media",
                request.media,
                intake.extracted,
                model.as_ref().map(|route| &*route.model),
            )?,
            notes,
            options: TurnOptions {
                max_turns,
                super_thinking: request.super_thinking,
                direct: request.direct,
                overrides,
            },
        })
    }

    /// The text of the message.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Returns whether the turn continues from an earlier message, which requires an existing thread.
    pub(super) fn rewinds(&self) -> bool {
        !matches!(self.start_from, StartFrom::End)
    }

    /// The point from which the turn continues; the end if the id is not a valid message id.
    pub(super) fn base(&self) -> TurnBase {
        let parse_base = |id: &str, base: fn(MessageId) -> TurnBase| id.parse().map_or(TurnBase::End, base);
        match &self.start_from {
            StartFrom::End => TurnBase::End,
            StartFrom::Edit(id) => parse_base(id, |message_id| TurnBase::Edit { message_id }),
            StartFrom::Retry(id) => parse_base(id, |message_id| TurnBase::Retry { message_id }),
        }
    }

    /// Resolves the request against the conversation: the turn's opening, and what it removes.
    pub(super) fn resolve(
        self,
        prior: Option<&Branch>,
        now: Timestamp,
    ) -> Result<(Opened, Rewind), AgentError> {
        let Self { start_from, message, media, notes: request_notes, options, .. } = self;
        let (base, rewind, retried) = start_from.resolve(prior)?;
        let (message_id, message) = retried.map_or((MessageId::new(), message), |id| (id, String::new()));
        // A retried answer keeps the notes of its question.
        let mut notes = if base.is_retry() { Vec::new() } else { vec![sent_at_note(now)] };
        notes.extend(request_notes);
        let notes_source = Source::Agent.into();
        // The question of a retried answer has what was recalled for it.
        let recall_at = (!base.is_retry()).then_some(notes.len());
        let opened = Opened {
            message_id,
            notes,
            notes_source,
            recall_at,
            message,
            media,
            options,
            base,
            // Set with what the turn begins with.
            prompt: None,
            traceparent: traces::stored_traceparent(),
        };
        Ok((opened, rewind))
    }
}

impl StartFrom {
    /// Checks where a request's turn continues, and whether the request fits that.
    fn of(request: &Execute) -> Result<Self, AgentError> {
        let invalid = |message: &str| Err(AgentError::Invalid(message.to_owned()));
        let start_from = match (&request.edit_message_id, &request.retry_message_id) {
            (Some(_), Some(_)) => {
                return invalid("`edit_message_id`, `retry_message_id`: only one of them can be given");
            }
            (Some(id), None) => Self::Edit(id.clone()),
            (None, Some(id)) => Self::Retry(id.clone()),
            (None, None) => Self::End,
        };
        if let Self::Retry(_) = start_from {
            if !request.media.is_empty() {
                return invalid("`media`: cannot be given with `retry_message_id`, which adds no message");
            }
        } else if request.message.trim().is_empty() {
            // Providers reject a blank text, and would reject every later turn that has it in its history.
            return invalid("`message`: must not be empty or blank");
        }
        Ok(start_from)
    }

    /// Finds the point in the conversation: what the turn continues from, what that removes, and the message that
    /// is answered again.
    fn resolve(&self, prior: Option<&Branch>) -> Result<(TurnBase, Rewind, Option<MessageId>), AgentError> {
        let found = |id: &str, resolve: &dyn Fn(&Branch, MessageId) -> Result<_, BranchPointError>| {
            let found = find_message(prior, id).and_then(|(branch, message_id)| resolve(branch, message_id));
            found.map_err(|reason| branch_point_error(id, reason))
        };
        match self {
            Self::End => Ok((TurnBase::End, Rewind::default(), None)),
            Self::Edit(id) => found(id, &|branch, message_id| {
                let base = TurnBase::Edit { message_id };
                Ok((base, branch.rewind_effects(base)?, None))
            }),
            Self::Retry(id) => found(id, &|branch, message_id| {
                let base = TurnBase::Retry { message_id };
                let retried = branch.retried_message(message_id)?;
                Ok((base, branch.rewind_effects(base)?, Some(retried)))
            }),
        }
    }
}

/// Refuses what the handling of a busy task cannot combine.
fn check_on_busy(request: &Execute, start_from: &StartFrom, has_overrides: bool) -> Result<(), AgentError> {
    let invalid = |message: &str| Err(AgentError::Invalid(message.to_owned()));
    match request.on_busy {
        OnBusy::Queue | OnBusy::Steer if !matches!(start_from, StartFrom::End) => invalid(
            "`on_busy`: `queue` and `steer` cannot be given with `edit_message_id` or `retry_message_id`",
        ),
        OnBusy::Steer if !request.media.is_empty() => {
            invalid("`media`: cannot be given with `on_busy` `steer`; a running turn takes text only")
        }
        OnBusy::Steer if has_overrides => invalid(
            "`on_busy`: `steer` gives the message to the running turn, which has options of its own; leave out \
             what is for one turn only",
        ),
        OnBusy::Steer if request.client_request_id.is_some() => invalid(
            "`client_request_id`: cannot be given with `on_busy` `steer`, which may begin no turn to join",
        ),
        OnBusy::Reject | OnBusy::Interrupt | OnBusy::Queue | OnBusy::Steer => Ok(()),
    }
}

/// The note that tells the model when a message was sent.
pub(super) fn sent_at_note(now: Timestamp) -> String {
    let now = now.to_string();
    let minute = now.get(..16).unwrap_or(&now).replace('T', " ");
    format!("[Sent {minute} UTC]")
}

/// Parses the message id given by the caller, together with the conversation.
fn find_message<'a>(
    prior: Option<&'a Branch>,
    id: &str,
) -> Result<(&'a Branch, MessageId), BranchPointError> {
    let branch = prior.ok_or(BranchPointError::Unknown)?;
    let message_id = id.parse().map_err(|_| BranchPointError::Unknown)?;
    Ok((branch, message_id))
}

fn branch_point_error(id: &str, reason: BranchPointError) -> AgentError {
    match reason {
        BranchPointError::Unknown => AgentError::UnknownMessage(format!("`{}`: {reason}", truncated_id(id))),
        BranchPointError::NotEditable => AgentError::Invalid(format!("`edit_message_id`: {reason}")),
    }
}

/// Converts attachments to the engine's representation.
pub(super) fn parse_attachments(
    field: &str,
    blocks: Vec<ContentBlock>,
    extracted: Vec<Option<Result<Extracted, ReadError>>>,
    model: Option<&dyn ChatModel>,
) -> Result<Vec<Content>, AgentError> {
    attachment_intake::check_count(field, &blocks)?;
    let extracted = extracted.into_iter().chain(std::iter::repeat_with(|| None));
    let content = |(number, (block, extracted))| match block {
        ContentBlock::Text(text) => Ok(Content::Text { text }),
        ContentBlock::Link(_) => {
            Err(AgentError::Invalid(format!("`{field}[{number}]`: `url` is not taken here")))
        }
        ContentBlock::Media(media) => {
            // Without a model the turn itself reports that none is configured.
            let accepted = model.map(|model| model.supports_media(media.kind, &media.media_type));
            attached_media(media, accepted, extracted).map_err(|refusal| refusal.of(field, number))
        }
    };
    blocks.into_iter().zip(extracted).enumerate().map(content).collect()
}

/// Why an attachment is refused.
enum Refusal {
    Unsupported(String),
    Unread(ReadError),
}

impl Refusal {
    fn of(self, field: &str, number: usize) -> AgentError {
        match self {
            Self::Unsupported(reason) => AgentError::Invalid(format!("`{field}[{number}]`: {reason}")),
            Self::Unread(error) => attachment_intake::read_error(field, number, &error),
        }
    }
}

/// Converts an attachment, given whether the model takes it as it is. If not, it needs its text.
fn attached_media(
    media: content::Media,
    accepted: Option<Result<(), String>>,
    extracted: Option<Result<Extracted, ReadError>>,
) -> Result<Content, Refusal> {
    check_audio(&media).map_err(Refusal::Unsupported)?;
    let content::Media { kind, media_type, name, mut data } = media;
    let is_plain_text = kind == MediaKind::Document && media_type == Format::Text.media_type();
    let is_sent = match &accepted {
        Some(accepted) => accepted.is_ok(),
        None => llm::is_sendable_media(kind, &media_type),
    };
    let extracted = match (extracted, accepted) {
        (Some(Err(error)), _) if !is_sent || is_plain_text => return Err(Refusal::Unread(error)),
        (None, Some(Err(reason))) if kind == MediaKind::Document => {
            return Err(Refusal::Unsupported(format!(
                "{reason}; of others, the text of {} is given",
                Format::NAMES
            )));
        }
        (None, Some(Err(reason))) => return Err(Refusal::Unsupported(reason)),
        (extracted, _) => extracted.and_then(Result::ok),
    };
    let mut text = extracted.as_ref().map(media_text);
    // A plain text is its own text, decoded and bounded.
    if is_plain_text && let Some(bytes) = text.take().and_then(|text| text.data) {
        data = bytes.into();
    }
    let tokens = match text.as_ref().and_then(|text| text.data.as_ref()).filter(|_| !is_sent) {
        Some(text) => estimate::text_by_len(text.len()),
        None if kind == MediaKind::Audio => estimate::audio(documents::audio_seconds(&data)),
        None => estimate::attachment(&media_type, &data, extracted.and_then(|extracted| extracted.pages)),
    };
    let hash = hex::encode(Sha256::digest(&data));
    let data = Some(Bytes::from(data));
    Ok(Content::Media(Media { kind, media_type, name, hash, tokens: Some(tokens), text, data }))
}

/// Refuses audio that is too large, or of another format than its media type says: providers would refuse it.
fn check_audio(media: &content::Media) -> Result<(), String> {
    if media.kind != MediaKind::Audio {
        return Ok(());
    }
    if media.data.len() > MAX_AUDIO_BYTES {
        let limit = MAX_AUDIO_BYTES >> 20;
        return Err(format!(
            "the audio is larger than {limit} MiB; send a part of it, or a compressed format"
        ));
    }
    match documents::audio_type(&media.data) {
        Some(found) if found == media.media_type => Ok(()),
        Some(found) => Err(format!("its media type says that it is {}, but it is {found}", media.media_type)),
        None => Err(format!(
            "its media type says that it is {}, but it is neither WAV, MP3, AIFF, AAC (ADTS), Ogg nor FLAC",
            media.media_type
        )),
    }
}

/// Checks of a request what needs no attachments, before they are taken in.
pub(super) fn check_early(
    request: &mut Execute,
    models: Option<&Routes>,
    toolbox: &Toolbox,
) -> Result<(), AgentError> {
    let overrides = copy_overrides(request);
    turn_overrides::validate(&overrides, models, Some(toolbox))?;
    check_on_busy(request, &StartFrom::of(request)?, !overrides.is_empty())
}

/// The idempotency key of a request as it was sent, before its attachments are taken in.
pub(super) fn early_key(request: &mut Execute) -> Option<IdempotencyKey> {
    let overrides = copy_overrides(request);
    let id = request.client_request_id.as_ref()?;
    Some(idempotency_key(id, request, &overrides))
}

/// What a request sets for its turn only.
fn copy_overrides(request: &mut Execute) -> TurnOverrides {
    // Attachments may be large, so they are not copied.
    let media = std::mem::take(&mut request.media);
    let mut rest = request.clone();
    request.media = media;
    rest.take_overrides()
}

/// The idempotency key of a request: its id and a hash of its content.
fn idempotency_key(id: &ClientRequestId, request: &Execute, overrides: &TurnOverrides) -> IdempotencyKey {
    let Execute {
        message, media, direct, edit_message_id, retry_message_id, max_turns, super_thinking, ..
    } = request;
    let mut hasher = Sha256::new();
    let options = (message, edit_message_id, retry_message_id, direct, max_turns, super_thinking);
    // A tuple of strings and numbers can always be serialized.
    hasher.update(serde_json::to_vec(&options).unwrap_or_default());
    // Requests without them keep the hash of earlier versions.
    if !overrides.is_empty() {
        hasher.update(serde_json::to_vec(overrides).unwrap_or_default());
    }
    for block in media {
        match block {
            ContentBlock::Text(text) => hasher.update(Sha256::digest(text)),
            ContentBlock::Link(link) => hasher.update(Sha256::digest(format!("url {}", link.url))),
            ContentBlock::Media(media) => hasher.update(Sha256::digest(&media.data)),
        }
    }
    IdempotencyKey { id: id.as_str().to_owned(), hash: hex::encode(hasher.finalize()) }
}

/// Truncates an id for an error message.
fn truncated_id(id: &str) -> String {
    id.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use pretty_assertions::assert_eq;

    use super::*;

    const PDF: &str = "application/pdf";

    fn tokens(
        media_type: &str,
        accepted: Option<Result<(), String>>,
        extracted: Option<Result<Extracted, ReadError>>,
    ) -> Result<u64, String> {
        let (kind, name, data) = (MediaKind::Document, None, vec![b'x'; 400]);
        let media = content::Media { kind, media_type: media_type.into(), name, data };
        match attached_media(media, accepted, extracted) {
            Ok(Content::Media(media)) => Ok(media.tokens.unwrap()),
            Ok(content) => panic!("{content:?}"),
            Err(refusal) => Err(refusal.of("media", 3).to_string()),
        }
    }

    fn read(text: &str, pages: Option<u32>) -> Extracted {
        Extracted { text: text.into(), pages }
    }

    #[test]
    fn an_attachment_counts_as_what_is_sent_of_it() {
        let refused = || Some(Err("no".to_owned()));
        let text = "x".repeat(4_000);
        assert_eq!(tokens(PDF, Some(Ok(())), Some(Ok(read(&text, Some(70))))), Ok(140_000));
        assert_eq!(tokens(PDF, refused(), Some(Ok(read(&text, Some(70))))), Ok(1_000));
        assert_eq!(tokens("text/csv", refused(), Some(Ok(read(&text, None)))), Ok(1_000));
        // Accepted before a restart, when no model is at hand.
        assert_eq!(tokens("text/csv", None, Some(Ok(read(&text, None)))), Ok(1_000));
        assert_eq!(tokens(PDF, None, Some(Ok(read(&text, Some(2))))), Ok(4_000));
        // What the model takes as it is need not be read here.
        assert_eq!(tokens(PDF, Some(Ok(())), Some(Err(ReadError::Time))), Ok(2_000));
    }

    #[test]
    fn audio_is_what_it_says_and_counts_by_its_length() {
        let taken_in = |media_type: &str, data: Vec<u8>, accepted: Option<Result<(), String>>| {
            let (kind, media_type) = (MediaKind::Audio, media_type.into());
            let media = content::Media { kind, media_type, name: Some("録音".into()), data };
            match attached_media(media, accepted, None) {
                Ok(Content::Media(media)) => Ok(media.tokens.unwrap()),
                Ok(content) => panic!("{content:?}"),
                Err(refusal) => Err(refusal.of("media", 3).to_string()),
            }
        };
        // 32,000 bytes a second for ten seconds.
        let header =
            b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\0\0\0\0";
        let wav = || [header.as_slice(), &vec![0; 320_000]].concat();
        assert_eq!(taken_in("audio/wav", wav(), Some(Ok(()))), Ok(320));
        assert_eq!(taken_in("audio/wav", wav(), None), Ok(320));
        let mut large = wav();
        large.resize(MAX_AUDIO_BYTES, 0);
        assert_eq!(taken_in("audio/wav", large.clone(), Some(Ok(()))).map(|_| ()), Ok(()));
        large.push(0);
        for (media_type, data, accepted, words) in [
            (
                "audio/mpeg",
                wav(),
                Ok(()),
                "`media[3]`: its media type says that it is audio/mpeg, but it is audio/wav",
            ),
            ("audio/wav", b"hi".to_vec(), Ok(()), "but it is neither WAV, MP3"),
            ("audio/wav", large, Ok(()), "the audio is larger than 20 MiB"),
            (
                "audio/wav",
                wav(),
                Err("the model accepts no audio".into()),
                "`media[3]`: the model accepts no audio",
            ),
        ] {
            let refused = taken_in(media_type, data, Some(accepted)).unwrap_err();
            assert!(refused.contains(words), "{words}: {refused}");
        }
    }

    #[test]
    fn a_plain_text_is_sent_decoded_and_bounded() {
        let taken_in = |extracted| {
            let data = b"\xff\xfeh\0i\0".to_vec();
            let media = content::Media {
                kind: MediaKind::Document,
                media_type: "text/plain".into(),
                name: None,
                data,
            };
            attached_media(media, Some(Ok(())), Some(extracted)).map_err(|refusal| refusal.of("media", 0))
        };
        let Ok(Content::Media(media)) = taken_in(Ok(read("hi", None))) else { panic!() };
        assert_eq!((media.data.as_deref(), media.text, media.tokens), (Some(&b"hi"[..]), None, Some(1)));
        assert_eq!(media.hash, hex::encode(Sha256::digest("hi")));
        let refused = taken_in(Err(documents::DocumentError::Binary.into())).unwrap_err().to_string();
        assert!(refused.contains("`media[0]`: its media type says that it is text"), "{refused}");
    }

    #[test]
    fn what_can_neither_be_sent_nor_read_is_refused_with_the_reason() {
        let refused = || Some(Err("the model accepts no such thing".to_owned()));
        let error = tokens("application/x", refused(), None).unwrap_err();
        assert_eq!(
            error,
            "`media[3]`: the model accepts no such thing; of others, the text of text, CSV, Markdown, JSON, HTML, DOCX, \
             XLSX and PDF is given"
        );
        let error = tokens(PDF, refused(), Some(Err(ReadError::Time))).unwrap_err();
        assert!(error.starts_with("`media[3]`: reading the document took longer than 10 s"), "{error}");
        let busy = refused()
            .zip(Some(ReadError::Busy))
            .map(|(model, error)| tokens(PDF, Some(model), Some(Err(error))));
        assert!(busy.unwrap().unwrap_err().contains("try again"));
    }
}
