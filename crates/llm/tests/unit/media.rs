//! Accepted media, and the replacement of media that cannot be sent.

use bytes::Bytes;
use pretty_assertions::assert_eq;

use super::*;

/// The hashes of an image and of another file.
pub(in super::super) const IMAGE: &str = "1111111111111111111111111111111111111111111111111111111111111111";
pub(in super::super) const FILE: &str = "2222222222222222222222222222222222222222222222222222222222222222";

fn media(kind: MediaKind, media_type: &str, name: Option<&str>, data: Option<&'static [u8]>) -> Content {
    Content::Media(Media {
        kind,
        media_type: media_type.into(),
        name: name.map(str::to_owned),
        hash: data.map_or("00", |data| if data == b"image" { IMAGE } else { FILE }).into(),
        tokens: None,
        text: None,
        data: data.map(Bytes::from_static),
    })
}

/// An image.
pub(in super::super) fn image(name: &str) -> Content {
    media(MediaKind::Image, "image/png", Some(name), Some(b"image"))
}

/// A PDF.
pub(in super::super) fn pdf(name: Option<&str>) -> Content {
    media(MediaKind::Document, PDF, name, Some(b"%PDF"))
}

/// A WAV or an MP3.
pub(in super::super) fn audio(media_type: &str) -> Content {
    media(MediaKind::Audio, media_type, Some("録音"), Some(b"sound"))
}

/// A plain-text document.
pub(in super::super) fn plain(name: &str) -> Content {
    media(MediaKind::Document, PLAIN_TEXT, Some(name), Some(b"plain text"))
}

#[test]
fn what_is_taken_is_said_where_something_is_not() {
    use MediaKind::{Document, Image};
    for &media_type in COMMON_MEDIA.images {
        assert_eq!(check_common_media(Image, media_type), Ok(()));
        assert!(check_common_media(Document, media_type).is_err());
    }
    for media_type in [PDF, PLAIN_TEXT] {
        assert_eq!(check_common_media(Document, media_type), Ok(()));
        assert!(check_common_media(Image, media_type).is_err());
    }
    let error = check_common_media(Image, "image/tiff").unwrap_err();
    assert!(error.contains("image/webp") && error.contains("not image/tiff"), "{error}");
    assert!(check_common_media(Document, "text/html").unwrap_err().contains("application/pdf, text/plain"));

    assert_eq!(GEMINI_MEDIA.check(Document, PDF), Ok(()));
    assert_eq!(GEMINI_MEDIA.check(Image, "image/heic"), Ok(()));
    assert_eq!(OLLAMA_MEDIA.check(Image, "image/webp"), Ok(()));
    for vendor in [&GEMINI_MEDIA, &OLLAMA_MEDIA] {
        assert!(vendor.check(Image, "image/gif").is_err());
        assert_eq!(vendor.check(Document, PLAIN_TEXT), Ok(()));
    }
    let error = OLLAMA_MEDIA.check(Document, PDF).unwrap_err();
    assert_eq!(error, "the model accepts documents of the types text/plain, not application/pdf");
    let text_only = SupportedMedia { images: &[], documents: &[PLAIN_TEXT], audio: &[] };
    assert_eq!(text_only.check(Image, "image/png"), Err("the model accepts no images".to_owned()));
}

#[test]
fn what_cannot_be_sent_is_told_as_a_text() {
    use MediaKind::{Document, Image};
    for (content, expected) in [
        (media(Image, "image/png", Some("a.png"), None), "[The image a.png is no longer stored.]"),
        (media(Document, PDF, Some(" "), None), "[The document is no longer stored.]"),
        (
            media(Image, "image/tiff", Some("a.tiff"), Some(b"II")),
            "[The image a.tiff is of a type that this model does not accept.]",
        ),
        (media(Image, "image/tiff", None, None), "[The image is of a type that this model does not accept.]"),
        (media(Document, PLAIN_TEXT, Some("a"), Some(b" \n")), "[The document a is empty.]"),
    ] {
        assert_eq!(OutgoingContent::from_content(&content), Some(OutgoingContent::Text(expected.into())));
    }
    assert_eq!(OutgoingContent::from_content(&Content::Text { text: "\n ".into() }), None);
    let replacement = "[The document a.pdf is of a type that this model does not accept.]";
    assert_eq!(OLLAMA_MEDIA.outgoing(&pdf(Some("a.pdf"))), Some(OutgoingContent::Text(replacement.into())));
}

#[test]
fn audio_is_taken_by_models_that_take_it() {
    let hearing = ModelProfile { takes_audio: true, ..ModelProfile::for_tests("m") };
    let deaf = ModelProfile::for_tests("m");
    let replaced = "[The audio 録音 is of a type that this model does not accept.]";
    for (media_type, by_openai) in [(WAV, true), (MP3, true), ("audio/flac", false), ("audio/ogg", false)] {
        let content = audio(media_type);
        let sent = OutgoingContent::Audio { media_type, base64: placeholder(FILE) };
        assert_eq!(gemini_media(&hearing).outgoing(&content).as_ref(), Some(&sent));
        assert_eq!(
            openai_media(&hearing).outgoing(&content).as_ref() == Some(&sent),
            by_openai,
            "{media_type}"
        );
        for media in [gemini_media(&deaf), openai_media(&deaf), COMMON_MEDIA, OLLAMA_MEDIA] {
            assert_eq!(media.outgoing(&content), Some(OutgoingContent::Text(replaced.into())));
            assert_eq!(
                media.check(MediaKind::Audio, media_type),
                Err("the model accepts no audio".to_owned())
            );
        }
        assert!(is_taken_by_some(MediaKind::Audio, media_type));
    }
    let refused = openai_media(&hearing).check(MediaKind::Audio, "audio/flac").unwrap_err();
    assert_eq!(refused, "the model accepts audio of the types audio/wav, audio/mpeg, not audio/flac");
    assert_eq!(openai_media(&hearing).check(MediaKind::Image, "image/png"), Ok(()));
}

#[test]
fn a_document_is_sent_as_text_where_it_is_not_taken() {
    let with_text = |content, text: Option<&'static [u8]>| {
        let Content::Media(media) = content else { panic!("{content:?}") };
        let text = MediaText { hash: FILE.into(), tokens: None, data: text.map(Bytes::from_static) };
        Content::Media(Media { text: Some(text), ..media })
    };
    let text = |text: &'static str| Some(OutgoingContent::PlainText { name: Some("a"), text: text.into() });
    let pdf = with_text(pdf(Some("a")), Some(b"its text"));
    assert!(matches!(OutgoingContent::from_content(&pdf), Some(OutgoingContent::Pdf { .. })));
    assert_eq!(OLLAMA_MEDIA.outgoing(&pdf), text("its text"));
    // Of what no vendor takes, only the text is loaded.
    let docx = || media(MediaKind::Document, "application/docx", Some("a"), None);
    assert_eq!(OutgoingContent::from_content(&with_text(docx(), Some(b"its text"))), text("its text"));
    let lost = with_text(docx(), None);
    assert_eq!(
        OutgoingContent::from_content(&lost),
        Some(OutgoingContent::Text("[The document a is no longer stored.]".into()))
    );
    let Content::Media(pdf) = pdf else { panic!("{pdf:?}") };
    assert_eq!(pdf.sendable_hashes().count(), 2);
    let Content::Media(docx) = lost else { panic!("{lost:?}") };
    assert_eq!(docx.sendable_hashes().collect::<Vec<_>>(), [FILE]);
}

#[test]
fn a_text_that_is_not_quite_utf_8_is_sent_as_far_as_it_is() {
    let content = media(MediaKind::Document, PLAIN_TEXT, None, Some(b"a\xffb"));
    let expected = OutgoingContent::PlainText { name: None, text: "a\u{fffd}b".into() };
    assert_eq!(OutgoingContent::from_content(&content), Some(expected));
}
