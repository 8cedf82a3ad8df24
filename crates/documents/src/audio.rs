//! The format and the length of a sound recording, from its headers. Nothing is decoded.

use crate::numbers::{big, little};

/// The bytes of a second of a recording whose headers do not say its length. An assumption: speech is mostly
/// recorded with 24 to 128 kbit/s, and this is 64 kbit/s.
const USUAL_BYTES_PER_SECOND: usize = 8_000;
/// The fewest bytes of a second: 8 kbit/s, as little as codecs for telephones need. Headers may claim anything.
const MIN_BYTES_PER_SECOND: usize = 1_000;
/// The most bytes of a second: 192 kHz in two channels of 32 bits.
const MAX_BYTES_PER_SECOND: usize = 1_536_000;

/// The media type of a recording, by how it begins; `None` for what is of no known format.
pub fn audio_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => Some("audio/wav"),
        [b'F', b'O', b'R', b'M', _, _, _, _, b'A', b'I', b'F', b'F' | b'C', ..] => Some("audio/aiff"),
        [b'O', b'g', b'g', b'S', ..] => Some("audio/ogg"),
        [b'f', b'L', b'a', b'C', ..] => Some("audio/flac"),
        [b'I', b'D', b'3', ..] => Some("audio/mpeg"),
        [0xff, second, third, ..] => frame_type(*second, *third),
        _ => None,
    }
}

/// The media type of a stream that begins with a frame: MPEG audio of layer III (ISO/IEC 11172-3, 2.4.1.3), or AAC in
/// ADTS (ISO/IEC 13818-7, 6.2), where the layer is zero.
fn frame_type(second: u8, third: u8) -> Option<&'static str> {
    let (sync, version, layer) = (second >> 4, (second >> 3) & 0b11, (second >> 1) & 0b11);
    match layer {
        0b00 if sync == 0b1111 && (third >> 2) & 0b1111 <= 12 => Some("audio/aac"),
        0b01 if sync >= 0b1110 && version != 0b01 && third >> 4 != 0b1111 && (third >> 2) & 0b11 != 0b11 => {
            Some("audio/mpeg")
        }
        _ => None,
    }
}

/// The length of a recording in seconds, at least 1: as its headers say, as far as the number of its bytes makes that
/// possible; else [as usual](USUAL_BYTES_PER_SECOND).
pub fn audio_seconds(bytes: &[u8]) -> u64 {
    let said = match audio_type(bytes) {
        Some("audio/wav") => wav_seconds(bytes),
        Some("audio/aiff") => aiff_seconds(bytes),
        Some("audio/flac") => flac_seconds(bytes),
        _ => None,
    };
    let at_rate = |rate: usize| u64::try_from(bytes.len().div_ceil(rate)).unwrap_or(u64::MAX).max(1);
    let (least, most) = (at_rate(MAX_BYTES_PER_SECOND), at_rate(MIN_BYTES_PER_SECOND));
    said.unwrap_or_else(|| at_rate(USUAL_BYTES_PER_SECOND)).clamp(least, most)
}

/// The length of the samples, divided by the rate in the format (RIFF, "WAVE form").
fn wav_seconds(bytes: &[u8]) -> Option<u64> {
    let (format, _) = chunk(bytes, *b"fmt ", little)?;
    let rate = u64::from(little(bytes, format.checked_add(8)?, 4)?);
    let (samples, length) = chunk(bytes, *b"data", little)?;
    let present = u64::try_from(bytes.len().checked_sub(samples)?).ok()?;
    // What is written as it is recorded has no length, or the largest one.
    let length = if length == 0 { present } else { u64::from(length).min(present) };
    length.checked_next_multiple_of(rate)?.checked_div(rate)
}

/// The number of sample frames, divided by their rate, which is an 80-bit float (AIFF-C, "Common Chunk").
fn aiff_seconds(bytes: &[u8]) -> Option<u64> {
    const BIAS: u32 = 0x3fff;
    let (common, _) = chunk(bytes, *b"COMM", big)?;
    let frames = u64::from(big(bytes, common.checked_add(2)?, 4)?);
    let exponent = big(bytes, common.checked_add(8)?, 2)?.checked_sub(BIAS)?;
    // The highest bit of the mantissa is the whole part.
    let mantissa = big(bytes, common.checked_add(10)?, 4)?;
    let rate = u64::from(mantissa.checked_shr(31_u32.checked_sub(exponent)?)?);
    frames.checked_next_multiple_of(rate)?.checked_div(rate)
}

/// The number of samples, divided by their rate: both are in the first block of metadata (RFC 9639, section 8.2).
fn flac_seconds(bytes: &[u8]) -> Option<u64> {
    let rate = u64::from(big(bytes, 18, 3)? >> 4);
    let samples = (u64::from(big(bytes, 21, 1)? & 0xf) << 32) | u64::from(big(bytes, 22, 4)?);
    // An unknown number is zero.
    (samples > 0).then_some(samples)?.checked_next_multiple_of(rate)?.checked_div(rate)
}

/// The place and the declared length of the first chunk with this id. Chunks follow the header of 12 bytes, each at
/// an even place.
fn chunk(
    bytes: &[u8],
    id: [u8; 4],
    read: impl Fn(&[u8], usize, usize) -> Option<u32>,
) -> Option<(usize, u32)> {
    let mut at = 12_usize;
    loop {
        let length = read(bytes, at.checked_add(4)?, 4)?;
        let content = at.checked_add(8)?;
        if bytes.get(at..at.checked_add(4)?)? == id {
            return Some((content, length));
        }
        at = content.checked_add(usize::try_from(length).ok()?)?.checked_next_multiple_of(2)?;
    }
}

#[cfg(test)]
#[path = "../tests/unit/audio.rs"]
mod tests;
