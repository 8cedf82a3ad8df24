//! The size of a picture, from its first bytes. Nothing is decoded.

use crate::numbers::{big, little};

/// The width and the height in pixels that a picture claims; `None` for formats that are not known, and for
/// what is no picture.
pub fn picture_size(bytes: &[u8]) -> Option<(u32, u32)> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => {
            Some((big(bytes, 16, 4)?, big(bytes, 20, 4)?))
        }
        [b'G', b'I', b'F', b'8', _, b'a', ..] => Some((little(bytes, 6, 2)?, little(bytes, 8, 2)?)),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => webp_size(bytes),
        [0xff, 0xd8, 0xff, ..] => jpeg_size(bytes),
        _ => None,
    }
}

/// The media type of a picture, by how it begins; `None` for what models do not take everywhere.
pub fn picture_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        _ => None,
    }
}

/// The size in the first chunk of a WebP (RFC 9649).
fn webp_size(bytes: &[u8]) -> Option<(u32, u32)> {
    match bytes.get(12..16)? {
        b"VP8X" => Some((little(bytes, 24, 3)? + 1, little(bytes, 27, 3)? + 1)),
        b"VP8L" => {
            let sizes = little(bytes, 21, 4)?;
            Some(((sizes & 0x3fff) + 1, ((sizes >> 14) & 0x3fff) + 1))
        }
        b"VP8 " => Some((little(bytes, 26, 2)? & 0x3fff, little(bytes, 28, 2)? & 0x3fff)),
        _ => None,
    }
}

/// The size in the first frame header of a JPEG (ITU-T T.81, annex B).
fn jpeg_size(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        if *bytes.get(at)? != 0xff {
            return None;
        }
        match *bytes.get(at + 1)? {
            // A fill byte.
            0xff => at += 1,
            // Markers without a segment.
            0x01 | 0xd0..=0xd8 => at += 2,
            // A start of frame; the three in between are other tables.
            marker @ 0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                return Some((big(bytes, at + 7, 2)?, big(bytes, at + 5, 2)?));
            }
            // The picture begins, or ends.
            0xd9 | 0xda => return None,
            _ => at += 2 + usize::try_from(big(bytes, at + 2, 2)?.max(2)).ok()?,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_size_is_in_the_header() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\xea\x60\0\0\0\x02";
        let gif = b"GIF89a\x01\0\x02\x01";
        let jpeg = b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xc4\0\x02\xff\xc2\0\x0b\x08\x01\0\x02\0";
        let webp = |chunk: &[u8], rest: &[u8]| [b"RIFF\0\0\0\0WEBP", chunk, b"\0\0\0\0", rest].concat();
        for (bytes, size) in [
            (png.to_vec(), (60_000, 2)),
            (gif.to_vec(), (1, 258)),
            (jpeg.to_vec(), (512, 256)),
            (webp(b"VP8X", b"\0\0\0\0\xff\0\0\x01\0\0"), (256, 2)),
            (webp(b"VP8L", b"\x2f\x03\x80\0\0"), (4, 3)),
            (webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a\x05\0\x06\0"), (5, 6)),
        ] {
            assert_eq!(picture_size(&bytes), Some(size));
            assert_eq!(picture_size(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(picture_size(b"hi"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_size_or_none(
            start in prop::sample::select(vec![&b"\xff\xd8\xff"[..], b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF1234WEBPVP8 "]),
            rest in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = picture_size(&[start, &rest].concat());
        }
    }
}
