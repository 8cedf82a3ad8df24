//! Recordings of each format, and headers that lie.

use pretty_assertions::assert_eq;
use proptest::prelude::*;

use super::*;
use crate::samples::wav;

/// A chunk with its declared length.
fn chunk_of(id: [u8; 4], length: [u8; 4], content: &[u8]) -> Vec<u8> {
    [id.as_slice(), &length, content].concat()
}

fn aiff(frames: u32, rate: [u8; 10]) -> Vec<u8> {
    let common = [&[0, 1], &frames.to_be_bytes()[..], &[0, 16], &rate].concat();
    // A chunk of odd length before it.
    let name = chunk_of(*b"NAME", [0, 0, 0, 3], b"abc\0");
    [b"FORM\0\0\0\0AIFF", &name[..], &chunk_of(*b"COMM", [0, 0, 0, 18], &common), &vec![0; 200_000]].concat()
}

/// 44,100 as an 80-bit float.
const CD_RATE: [u8; 10] = [0x40, 0x0e, 0xac, 0x44, 0, 0, 0, 0, 0, 0];

fn flac(rate: u32, samples: u64, length: usize) -> Vec<u8> {
    let packed = (u64::from(rate) << 44) | (15 << 36) | samples;
    let mut bytes = [b"fLaC\x80\0\0\x22".as_slice(), &[0; 10], &packed.to_be_bytes()].concat();
    bytes.resize(length, 0);
    bytes
}

#[test]
fn the_format_is_in_the_first_bytes() {
    for (bytes, expected) in [
        (&wav(16_000, 1)[..], Some("audio/wav")),
        (&aiff(1, CD_RATE), Some("audio/aiff")),
        (b"FORM\0\0\0\0AIFC", Some("audio/aiff")),
        (b"OggS\0", Some("audio/ogg")),
        (b"fLaC\0", Some("audio/flac")),
        (b"ID3\x04", Some("audio/mpeg")),
        (b"\xff\xfb\x90\0", Some("audio/mpeg")),
        // MPEG 2.5.
        (b"\xff\xe3\x18\0", Some("audio/mpeg")),
        (b"\xff\xf1\x50\x80", Some("audio/aac")),
        (b"\xff\xf9\x50\x80", Some("audio/aac")),
        // Layer II, a reserved version, no bit rate, no sample rate; a JPEG and a text in UTF-16.
        (b"\xff\xfd\x90\0", None),
        (b"\xff\xeb\x90\0", None),
        (b"\xff\xfb\xf0\0", None),
        (b"\xff\xfb\x9c\0", None),
        (b"\xff\xf1\x74\0", None),
        (b"\xff\xd8\xff\xe0", None),
        (b"\xff\xfeh\0i\0", None),
        (b"RIFF\0\0\0\0WEBP", None),
        (b"RIFF\0\0\0\0WAV", None),
        (b"\0\0\0\x20ftypM4A ", None),
        (b"\xff\xfb", None),
        (b"", None),
    ] {
        assert_eq!(audio_type(bytes), expected, "{:?}", &bytes[..bytes.len().min(16)]);
    }
}

#[test]
fn the_length_is_in_the_headers_or_follows_from_the_bytes() {
    for (bytes, seconds) in [
        (wav(16_000, 10), 10),
        (wav(192_000, 1), 1),
        (aiff(44_100 * 2, CD_RATE), 2),
        (aiff(44_101, CD_RATE), 2),
        (flac(48_000, 48_000 * 30, 200_000), 30),
        (flac(0, 5, 16_000), 2),
        (flac(48_000, 0, 16_000), 2),
        ([b"ID3".to_vec(), vec![0; 80_000]].concat(), 11),
        ([b"OggS".to_vec(), vec![0; 79_000]].concat(), 10),
        (b"RIFF\0\0\0\0WAVE".to_vec(), 1),
    ] {
        assert_eq!(audio_seconds(&bytes), seconds, "{} bytes", bytes.len());
    }
}

#[test]
fn headers_that_lie_claim_no_more_than_the_bytes_make_possible() {
    let format = |rate: u32| {
        let fields =
            [&[1, 0, 1, 0], &16_000_u32.to_le_bytes()[..], &rate.to_le_bytes(), &[2, 0, 16, 0]].concat();
        chunk_of(*b"fmt ", [16, 0, 0, 0], &fields)
    };
    let recording = |rate: u32, length: [u8; 4]| {
        let samples = chunk_of(*b"data", length, &vec![0; 64_000 - 44]);
        [b"RIFF\xff\xff\xff\xffWAVE".as_slice(), &format(rate), &samples].concat()
    };
    for (bytes, seconds) in [
        // 4 GiB are declared, or nothing.
        (recording(32_000, [0xff; 4]), 2),
        (recording(32_000, [0; 4]), 2),
        // The rate is zero, too low, too high.
        (recording(0, [0xff; 4]), 8),
        (recording(1, [0xff; 4]), 64),
        (recording(u32::MAX, [0xff; 4]), 1),
        // There is no format, or it is cut off, or a chunk ends beyond the file.
        ([b"RIFF\0\0\0\0WAVEdata\0\0\0\0".as_slice(), &[0; 15_980]].concat(), 2),
        (recording(32_000, [0xff; 4])[..24].to_vec(), 1),
        ([b"RIFF\0\0\0\0WAVELIST\xff\xff\xff\xff".as_slice(), &[0; 15_980]].concat(), 2),
        (aiff(u32::MAX, CD_RATE), 201),
        (aiff(44_100, [0; 10]), 26),
        (aiff(44_100, [0xff; 10]), 26),
        (flac(1, (1 << 36) - 1, 16_000), 16),
    ] {
        assert_eq!(audio_seconds(&bytes), seconds, "{:?}", &bytes[..bytes.len().min(44)]);
    }
}

proptest! {
    #[test]
    fn any_bytes_have_a_length_within_what_they_make_possible(
        start in prop::sample::select(vec![
            &b"RIFF\0\0\0\0WAVE"[..], b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0", b"RIFF\0\0\0\0WAVEfmt \0\0\0\0data",
            b"FORM\0\0\0\0AIFF", b"FORM\0\0\0\0AIFCCOMM", b"fLaC", b"fLaC\0\0\0\x22", b"OggS", b"ID3", b"\xff", b"",
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..3_000),
    ) {
        let bytes = [start, &rest].concat();
        let seconds = audio_seconds(&bytes);
        prop_assert!((1..=bytes.len().div_ceil(MIN_BYTES_PER_SECOND).max(1) as u64).contains(&seconds));
    }
}
