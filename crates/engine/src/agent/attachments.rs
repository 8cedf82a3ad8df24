//! The media of a conversation, loaded when a model is called: those of the messages it is sent, each once, and
//! no more than one request can carry. Between two requests none are held in memory.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use llm::{ChatModel, Content, Media, Message};
use resources::memory_budget::{MemoryBudget, MemoryUse, NoMemory, Reservation};
use store::Brain;

/// The most bytes of media in one request. Vendors accept requests of some 20 to 50 MB, in base64, and one
/// message can have less than this.
const MAX_REQUEST_MEDIA_BYTES: usize = 24 << 20;

/// The hashes of the media in a conversation, newest first, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attachments(Vec<String>);

/// The media that were loaded, by hash.
#[derive(Debug, Default)]
pub(super) struct LoadedAttachments {
    bytes: HashMap<String, Bytes>,
    /// Hashes of media that are omitted because newer ones use up the limit.
    left_out: HashSet<String>,
}

/// Why media could not be loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachmentError {
    /// Other requests use up the memory budget.
    #[error("the attachments of this conversation cannot be loaded now: {0}")]
    NoMemory(#[from] NoMemory),
    /// The brain could not be read.
    #[error("the attachments of this conversation cannot be read from the brain")]
    Read(#[from] store::StoreError),
    /// The engine is stopping.
    #[error("the engine is stopping")]
    Stopping,
}

/// Bytes that keep their memory reservation until the last holder drops them.
struct ReservedBytes {
    bytes: Vec<u8>,
    _reserved: Arc<Reservation>,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Attachments {
    /// Collects what any model may be sent of the media of `messages`.
    pub(super) fn in_messages(messages: &[Message]) -> Self {
        Self::collect(messages, |media| llm::is_sendable_media(media.kind, &media.media_type))
    }

    /// Collects what `model` is sent of the media of `messages`: what it does not take leaves the room to others.
    pub(super) fn for_model(messages: &[Message], model: &dyn ChatModel) -> Self {
        Self::collect(messages, |media| model.supports_media(media.kind, &media.media_type).is_ok())
    }

    fn collect(messages: &[Message], takes_bytes: impl Fn(&Media) -> bool) -> Self {
        let mut seen = HashSet::new();
        let newest_first = messages.iter().rev().flat_map(|message| media(message).into_iter().rev());
        let hashes = newest_first.flat_map(|media| media.hashes_if(takes_bytes(media)));
        Self(hashes.filter(|hash| seen.insert(*hash)).map(ToOwned::to_owned).collect())
    }

    /// Loads the media, omitting the oldest if they exceed [`MAX_REQUEST_MEDIA_BYTES`].
    pub(super) async fn load(
        self,
        brain: Brain,
        memory: MemoryBudget,
    ) -> Result<LoadedAttachments, AttachmentError> {
        self.load_up_to(MAX_REQUEST_MEDIA_BYTES, brain, memory).await
    }

    /// Loads the media, omitting the oldest if they exceed `max` bytes.
    pub(super) async fn load_up_to(
        self,
        max: usize,
        brain: Brain,
        memory: MemoryBudget,
    ) -> Result<LoadedAttachments, AttachmentError> {
        let Self(hashes) = self;
        if hashes.is_empty() {
            return Ok(LoadedAttachments::default());
        }
        let sizes = brain.run_blocking(move |brain| brain.media_sizes(hashes)).await;
        let (kept, left_out) = select_newest(max, sizes.ok_or(AttachmentError::Stopping)??);
        let bytes = kept.iter().map(|(_, size)| size).sum();
        let reserved = Arc::new(memory.reserve(MemoryUse::Media, bytes).await?);
        let read = move |brain: &Brain| {
            let read = |(hash, _): (String, usize)| {
                // A file that is gone from the store stays without data, and is reported as such.
                let Some(bytes) = brain.media(&hash)? else { return Ok(None) };
                let reserved_bytes = ReservedBytes { bytes, _reserved: Arc::clone(&reserved) };
                Ok(Some((hash, Bytes::from_owner(reserved_bytes))))
            };
            kept.into_iter()
                .filter_map(|media| read(media).transpose())
                .collect::<Result<_, store::StoreError>>()
        };
        let bytes = brain.run_blocking(read).await.ok_or(AttachmentError::Stopping)??;
        Ok(LoadedAttachments { bytes, left_out })
    }
}

/// Splits the media into those that are sent and those that are omitted: the newest that fit, and always the
/// newest one.
fn select_newest(max: usize, sizes: Vec<(String, usize)>) -> (Vec<(String, usize)>, HashSet<String>) {
    let mut total = 0_usize;
    let fits = |index: usize, size: usize| index == 0 || size <= max;
    let count = sizes.iter().enumerate().take_while(|(index, (_, size))| {
        total = total.saturating_add(*size);
        fits(*index, total)
    });
    let count = count.count();
    let mut kept = sizes;
    let left_out = kept.split_off(count);
    (kept, left_out.into_iter().map(|(hash, _)| hash).collect())
}

impl LoadedAttachments {
    /// Whether any were omitted.
    pub(super) fn has_left_out(&self) -> bool {
        !self.left_out.is_empty()
    }

    /// Whether a file of `messages` is neither loaded nor omitted: it is gone from the brain.
    pub(super) fn has_lost(&self, messages: &[Message]) -> bool {
        let is_known = |hash: &str| self.bytes.contains_key(hash) || self.left_out.contains(hash);
        let mut files = messages.iter().flat_map(media);
        files.any(|file| !file.sendable_hashes().any(is_known))
    }

    /// Returns `messages` with the loaded data inserted, and a note in place of each omitted file.
    pub(super) fn insert_into<'a>(&self, messages: &'a [Message]) -> Cow<'a, [Message]> {
        if self.bytes.is_empty() && self.left_out.is_empty() {
            return Cow::Borrowed(messages);
        }
        let mut messages = messages.to_vec();
        for content in messages.iter_mut().flat_map(contents_mut) {
            if let Content::Media(media) = content {
                media.data = self.bytes.get(&media.hash).cloned();
                if let Some(text) = &mut media.text {
                    text.data = self.bytes.get(&text.hash).cloned();
                }
                let is_loaded =
                    media.data.is_some() || media.text.as_ref().is_some_and(|text| text.data.is_some());
                if !is_loaded && media.sendable_hashes().any(|hash| self.left_out.contains(hash)) {
                    *content = Content::Note { text: omitted_note(media) };
                }
            }
        }
        Cow::Owned(messages)
    }
}

/// The note that a model receives in place of an omitted file.
fn omitted_note(media: &Media) -> String {
    let name = media.name.as_deref().unwrap_or("without a name");
    format!(
        "[A file that was attached here ({name}, {}) is left out: newer attachments use up the limit. If it is \
         needed, ask the user to attach it again.]",
        media.media_type
    )
}

/// Whether `model` is sent images, PDFs or recordings with these messages.
pub(super) fn has_files(messages: &[Message], model: &dyn ChatModel) -> bool {
    let is_file = |media: &Media| {
        media.is_sent_as_file() && model.supports_media(media.kind, &media.media_type).is_ok()
    };
    messages.iter().flat_map(media).any(is_file)
}

/// The media of a message, in order.
fn media(message: &Message) -> Vec<&Media> {
    let is_media = |content: &'_ Content| matches!(content, Content::Media(_));
    let contents: Vec<&Content> = match message {
        Message::User { content } => content.iter().filter(|content| is_media(content)).collect(),
        Message::Results(replies) => {
            replies.iter().flat_map(|reply| &reply.remarks).filter(|content| is_media(content)).collect()
        }
        Message::Assistant { .. } => Vec::new(),
    };
    contents
        .into_iter()
        .filter_map(|content| match content {
            Content::Media(media) => Some(media),
            Content::Text { .. } | Content::Note { .. } => None,
        })
        .collect()
}

fn contents_mut(message: &mut Message) -> Box<dyn Iterator<Item = &mut Content> + '_> {
    match message {
        Message::User { content } => Box::new(content.iter_mut()),
        Message::Results(replies) => Box::new(replies.iter_mut().flat_map(|reply| &mut reply.remarks)),
        Message::Assistant { .. } => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use api::content::MediaKind;

    use super::*;

    fn attached(hash: &str) -> Content {
        Content::Media(Media {
            kind: MediaKind::Image,
            media_type: "image/png".into(),
            name: Some(format!("{hash}.png")),
            hash: hash.into(),
            tokens: None,
            text: None,
            data: None,
        })
    }

    #[test]
    fn what_is_shown_twice_is_read_once_and_the_newest_comes_first() {
        let messages = [
            Message::User { content: vec![attached("a"), attached("b")] },
            Message::user("and?"),
            Message::User { content: vec![attached("c"), attached("a")] },
        ];
        assert_eq!(
            Attachments::in_messages(&messages),
            Attachments(["a", "c", "b"].map(String::from).to_vec())
        );
        assert_eq!(Attachments::in_messages(&[Message::user("no")]), Attachments::default());
    }

    struct TextOnlyModel;

    impl ChatModel for TextOnlyModel {
        fn name(&self) -> &'static str {
            "text-only"
        }

        fn supports_media(&self, _: MediaKind, media_type: &str) -> Result<(), String> {
            if media_type == "text/plain" { Ok(()) } else { Err("no".into()) }
        }

        fn supports_effort(&self) -> Result<(), String> {
            Ok(())
        }

        fn stream(&self, _: &llm::Request<'_>) -> llm::EventStream {
            Box::pin(futures::stream::empty())
        }
    }

    #[test]
    fn bytes_that_a_model_does_not_take_leave_the_room_to_texts() {
        let file = |hash: &str, media_type: &str| {
            let Content::Media(media) = attached(hash) else { panic!() };
            Media { kind: MediaKind::Document, media_type: media_type.into(), ..media }
        };
        let text = Some(llm::MediaText { hash: "text".into(), tokens: None, data: None });
        let pdf = Media { text, ..file("pdf", "application/pdf") };
        let plain = file("plain", "text/plain");
        // The text is the same as the bytes.
        let text = Some(llm::MediaText { hash: "csv".into(), tokens: None, data: None });
        let csv = Media { text, ..file("csv", "text/csv") };
        let files = [plain, csv, pdf].map(Content::Media);
        let content = files.into_iter().chain([attached("picture")]).collect();
        let messages = [Message::User { content }];
        let found = |hashes: &[&str]| Attachments(hashes.iter().map(|&hash| hash.into()).collect());
        assert_eq!(Attachments::for_model(&messages, &TextOnlyModel), found(&["text", "csv", "plain"]));
        assert_eq!(Attachments::in_messages(&messages), found(&["picture", "pdf", "text", "csv", "plain"]));
        assert!(!has_files(&messages, &TextOnlyModel));
    }

    #[test]
    fn a_file_that_is_neither_loaded_nor_left_out_is_lost() {
        let loaded = LoadedAttachments {
            bytes: HashMap::from([("a".into(), Bytes::new())]),
            left_out: HashSet::from(["b".into()]),
        };
        let message = |hash| [Message::User { content: vec![attached(hash)] }];
        assert_eq!(["a", "b", "c"].map(|hash| loaded.has_lost(&message(hash))), [false, false, true]);
    }

    #[test]
    fn the_oldest_are_left_out_where_there_is_no_room() {
        let sizes =
            |sizes: &[(&str, usize)]| sizes.iter().map(|(hash, size)| ((*hash).into(), size << 20)).collect();
        let select = |files: &[(&str, usize)]| select_newest(MAX_REQUEST_MEDIA_BYTES, sizes(files));
        let kept = |files: &[(&str, usize)]| select(files).0.len();
        assert_eq!(kept(&[("a", 12), ("b", 12), ("c", 1)]), 2);
        // Whatever is older than an omitted file is omitted too.
        assert_eq!(kept(&[("a", 12), ("b", 20), ("c", 1)]), 1);
        assert_eq!(kept(&[("a", 30), ("b", 1)]), 1);
        assert_eq!(select(&[("a", 24), ("b", 1)]).1, HashSet::from(["b".into()]));
    }

    #[test]
    fn what_was_read_stands_in_its_places_and_what_was_left_out_is_named() {
        let loaded = LoadedAttachments {
            bytes: HashMap::from([("a".into(), Bytes::from_static(b"A"))]),
            left_out: HashSet::from(["b".into()]),
        };
        let messages = [Message::User { content: vec![attached("a"), attached("b"), attached("c")] }];
        let sent = loaded.insert_into(&messages);
        let Some(Message::User { content }) = sent.first() else { panic!("{sent:?}") };
        let [Content::Media(a), Content::Note { text }, Content::Media(c)] = &content[..] else {
            panic!("{content:?}")
        };
        assert_eq!((a.data.as_deref(), c.data.as_deref()), (Some(&b"A"[..]), None));
        assert!(text.contains("b.png") && text.contains("left out"), "{text}");
    }
}
