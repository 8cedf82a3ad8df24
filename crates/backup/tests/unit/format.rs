//! Streams and ids: whatever is changed in them is noticed.

use proptest::prelude::*;

use super::stream;
use crate::BackupId;
use crate::stream::{Decoder, Frame, StreamError, Summary};

fn decode(bytes: &[u8], chunk: usize) -> Result<(Summary, usize), StreamError> {
    let (mut decoder, mut frames) = (Decoder::default(), 0);
    for chunk in bytes.chunks(chunk.max(1)) {
        decoder.push(chunk);
        while let Some((frame, _)) = decoder.next_frame()? {
            frames += usize::from(!matches!(frame, Frame::End(_)));
        }
    }
    Ok((decoder.finish()?, frames))
}

#[test]
fn a_stream_is_read_in_whatever_chunks_it_arrives() {
    let bytes = stream(&super::noise(1, 150_000), &[("a", vec![1; 10]), ("b/c", Vec::new())]);
    // `b` is no folder: only a restore minds.
    for chunk in [1, 7, 4_096, 1 << 20] {
        let (summary, frames) = decode(&bytes, chunk).unwrap();
        assert_eq!(summary, Summary { entries: 4, bytes: 150_010, skipped: 0 });
        assert_eq!(frames, 1 + 4 + 3 + 1);
    }
}

#[test]
fn every_flipped_byte_and_every_cut_of_a_stream_is_noticed() {
    let bytes = stream(b"brain", &[("a", vec![1; 10])]);
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            assert!(decode(&changed, 64).is_err(), "byte {at} ^ {flip}");
        }
        assert!(decode(&bytes[..at], 64).is_err(), "cut at {at}");
    }
    let longer = [bytes.as_slice(), b"x"].concat();
    assert!(decode(&longer, 64).is_err());
    let twice = [bytes.as_slice(), &bytes].concat();
    assert!(decode(&twice, 64).is_err());
}

#[test]
fn paths_that_lead_out_of_the_workspace_are_refused() {
    for path in ["/etc/passwd", "..", "a/../b", "a//b", "./a", "a/", "a\0b", &"a".repeat(5_000)] {
        let bytes = stream(b"brain", &[(path, vec![1])]);
        assert_eq!(
            decode(&bytes, 4_096),
            Err(StreamError::Invalid("its path leads out of the workspace")),
            "{path}"
        );
    }
}

proptest! {
    #[test]
    fn nothing_that_arrives_panics_or_is_accepted(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(decode(&bytes, 16).is_err());
    }

    #[test]
    fn ids_are_read_as_they_are_written(at in 0_i64..4_000_000_000_000, at_rest: bool, text in ".{0,40}") {
        let id = BackupId::new(api::Timestamp::from_unix_ms(at), at_rest).unwrap();
        let read: BackupId = id.to_string().parse().unwrap();
        prop_assert_eq!(read, id);
        prop_assert_eq!((read.at_ms(), read.at_rest()), (at, at_rest));
        prop_assert!(text.parse::<BackupId>().is_err());
    }
}
