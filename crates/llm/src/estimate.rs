//! Estimates token counts without the provider's vocabulary.
//!
//! Vendors count about four bytes of text as one token. A count reported by the provider is always better; the
//! estimate is for content that no provider has counted yet.

use super::media::{PDF, PLAIN_TEXT};
use super::{Block, Content, Media, Message, ToolDeclaration};

/// The average number of bytes of text in a token.
const BYTES_PER_TOKEN: usize = 4;
/// The size of a message in addition to its text, in bytes.
const MESSAGE_OVERHEAD_BYTES: usize = 16;
/// The tokens of an image of any size, and of a document of unknown type.
const IMAGE_TOKENS: u64 = 1_500;
/// The tokens of a page of a PDF: vendors read its text, and most of them also an image of it.
const PDF_PAGE_TOKENS: u64 = 2_000;
/// The tokens of a second of audio: as many as Gemini has counted. It now counts 25, and OpenAI 10
/// (<https://ai.google.dev/gemini-api/docs/audio>, <https://platform.openai.com/docs/guides/audio>).
const AUDIO_SECOND_TOKENS: u64 = 32;
/// The assumed size of a page, for PDFs whose page objects are not visible.
const PDF_PAGE_BYTES: usize = 100 * 1024;
/// The maximum number of pages guessed from the size alone. A scan or slides have few pages for their size. Too
/// high an estimate costs a conversation its detail, while too low an estimate is corrected by the provider.
const MAX_GUESSED_PAGES: usize = 15;

/// Estimates the tokens of `messages`.
pub fn messages(messages: &[Message]) -> u64 {
    tokens_for_bytes(messages.iter().map(|message| MESSAGE_OVERHEAD_BYTES + message_bytes(message)).sum())
}

/// Estimates the tokens of a text.
pub fn text(text: &str) -> u64 {
    tokens_for_bytes(text.len())
}

/// Estimates the tokens of a text of `bytes` bytes.
pub fn text_by_len(bytes: usize) -> u64 {
    tokens_for_bytes(bytes)
}

/// Estimates the tokens of an attached file. `pages` are those of a PDF, if they have been counted.
pub fn attachment(media_type: &str, data: &[u8], pages: Option<u32>) -> u64 {
    match media_type {
        PDF => PDF_PAGE_TOKENS.saturating_mul(pages.map_or_else(|| guess_pages(data), u64::from)),
        // It is sent as text.
        PLAIN_TEXT => tokens_for_bytes(data.len()),
        _ => IMAGE_TOKENS,
    }
}

/// Estimates the tokens of a sound recording of `seconds` seconds.
pub fn audio(seconds: u64) -> u64 {
    AUDIO_SECOND_TOKENS.saturating_mul(seconds)
}

/// A guess of the number of pages of a PDF: its number of objects of type `/Page` or, if those are
/// compressed, a guess from the file's size.
fn guess_pages(data: &[u8]) -> u64 {
    // Each PDF name begins with a slash, so a type entry is two names in a row.
    let names = data.split(|byte| *byte == b'/');
    let types = names.clone().zip(names.skip(1)).filter(|(key, _)| key.trim_ascii_end() == b"Type");
    let is_page = |name: &[u8]| {
        name.strip_prefix(b"Page").is_some_and(|rest| !rest.first().is_some_and(u8::is_ascii_alphanumeric))
    };
    let pages = match types.filter(|(_, name)| is_page(name)).count() {
        0 => data.len().div_ceil(PDF_PAGE_BYTES).clamp(1, MAX_GUESSED_PAGES),
        pages => pages,
    };
    u64::try_from(pages).unwrap_or(u64::MAX)
}

/// The number of bytes of text that count as many tokens as an attachment.
pub(super) fn media_equivalent_bytes(media: &Media) -> usize {
    let tokens = usize::try_from(media.tokens.unwrap_or(IMAGE_TOKENS)).unwrap_or(usize::MAX);
    tokens.saturating_mul(BYTES_PER_TOKEN)
}

/// Estimates the tokens of an answer.
pub fn answer(blocks: &[Block]) -> u64 {
    tokens_for_bytes(blocks.iter().map(block_bytes).sum())
}

/// Estimates the tokens of the declarations of `tools`.
pub fn tools(tools: &[ToolDeclaration]) -> u64 {
    let tool = |tool: &ToolDeclaration| {
        MESSAGE_OVERHEAD_BYTES + tool.name.len() + tool.description.len() + tool.input_schema.get().len()
    };
    tokens_for_bytes(tools.iter().map(tool).sum::<usize>())
}

fn message_bytes(message: &Message) -> usize {
    match message {
        Message::User { content } => content.iter().map(content_bytes).sum(),
        Message::Assistant { blocks, .. } => blocks.iter().map(block_bytes).sum(),
        Message::Results(replies) => {
            let reply = |reply: &super::ToolReply| {
                MESSAGE_OVERHEAD_BYTES
                    + reply.text.len()
                    + reply.remarks.iter().map(content_bytes).sum::<usize>()
            };
            replies.iter().map(reply).sum()
        }
    }
}

fn content_bytes(content: &Content) -> usize {
    match content {
        Content::Text { text } | Content::Note { text } => text.len(),
        Content::Media(media) => media_equivalent_bytes(media),
    }
}

fn block_bytes(block: &Block) -> usize {
    match block {
        Block::Text { text, .. } => text.len(),
        Block::Thinking { thinking, .. } => thinking.len(),
        Block::RedactedThinking { data } => data.len(),
        Block::ToolUse(call) => MESSAGE_OVERHEAD_BYTES + call.name.len() + call.input.to_string().len(),
    }
}

fn tokens_for_bytes(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use api::content::MediaKind;
    use pretty_assertions::assert_eq;

    use super::*;

    fn pdf(pages: usize) -> Vec<u8> {
        let page = "<< /Type /Page /Parent 2 0 R >> << /Type/Page>> ";
        let other = "<< /Type /Pages /Count 9 >> << /Type /PageLabel >> << /Subtype /Page >> ";
        format!("%PDF-1.7\n{other}{}%%EOF", page.repeat(pages / 2)).into_bytes()
    }

    #[test]
    fn a_pdf_counts_by_its_pages_or_by_its_size() {
        for (data, pages) in [
            (pdf(2), 2),
            (pdf(300), 300),
            // Compressed, so that no page object is visible.
            (pdf(0), 1),
            (vec![b'x'; 10 * PDF_PAGE_BYTES], 10),
            (vec![b'x'; 200 * PDF_PAGE_BYTES], 15),
        ] {
            assert_eq!(attachment(PDF, &data, None), PDF_PAGE_TOKENS * pages, "{} bytes", data.len());
        }
        assert_eq!(attachment(PDF, &pdf(2), Some(70)), PDF_PAGE_TOKENS * 70);
        assert_eq!(attachment(PLAIN_TEXT, &[b'x'; 4_000], None), 1_000);
        assert_eq!(attachment("image/png", &vec![0; 400_000], None), IMAGE_TOKENS);
        assert_eq!((audio(60), audio(u64::MAX)), (1_920, u64::MAX));
    }

    #[test]
    fn a_message_counts_what_is_attached_to_it() {
        let media = |tokens| {
            Content::Media(Media {
                kind: MediaKind::Document,
                media_type: PDF.into(),
                name: None,
                hash: "0".repeat(64),
                tokens,
                text: None,
                data: None,
            })
        };
        let estimate = |tokens| messages(&[Message::User { content: vec![media(tokens)] }]);
        assert_eq!(estimate(Some(200_000)), 200_004);
        // A journal entry from before estimates were stored.
        assert_eq!(estimate(None), 1_504);
    }
}
