//! Decodes the bytes of a page to text.

use encoding_rs::{Encoding, UTF_8};

/// How many bytes of a page are searched for its encoding (HTML standard, section "Determining the character
/// encoding").
const PRESCAN_BYTES: usize = 1_024;

/// Decodes a body. The encoding comes from its byte order mark, else from its content type, else from its own
/// declaration, else it is UTF-8. Invalid bytes become U+FFFD.
pub fn decode(bytes: &[u8], content_type: &str) -> String {
    let from_header = charset_label(content_type).and_then(encoding_for_label);
    let encoding = from_header.or_else(|| declared_encoding(bytes)).unwrap_or(UTF_8);
    encoding.decode(bytes).0.into_owned()
}

fn encoding_for_label(label: &str) -> Option<&'static Encoding> {
    Encoding::for_label(label.as_bytes())
}

/// Returns the value that follows `charset=`.
fn charset_label(text: &str) -> Option<&str> {
    let lower = text.to_ascii_lowercase();
    let at = lower.find("charset")? + "charset".len();
    let value = text.get(at..)?.trim_start().strip_prefix('=')?.trim_start().trim_start_matches(['"', '\'']);
    value.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ';' | '>' | '/')).next()
}

/// Returns the encoding that a page declares, in an HTML `meta` or an XML declaration.
fn declared_encoding(bytes: &[u8]) -> Option<&'static Encoding> {
    let start = bytes.get(..PRESCAN_BYTES.min(bytes.len()))?;
    let start: String =
        start.iter().map(|byte| if byte.is_ascii() { char::from(*byte) } else { '?' }).collect();
    let lower = start.to_ascii_lowercase();
    let metas = lower.match_indices("<meta").filter_map(|(at, _)| {
        let tag = start.get(at..)?.split('>').next()?;
        charset_label(tag).and_then(encoding_for_label)
    });
    let xml = || {
        let declaration = start.strip_prefix("<?xml")?.split("?>").next()?;
        let (_, value) = declaration.split_once("encoding=")?;
        encoding_for_label(value.trim_matches(['"', '\'']).split(['"', '\'']).next()?)
    };
    // A declaration of UTF-16 must be wrong, because UTF-16 would not have been readable so far.
    let found = metas.into_iter().next().or_else(xml)?;
    Some(if found.is_ascii_compatible() { found } else { UTF_8 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_then_the_header_then_the_page_says() {
        assert_eq!(decode(b"gr\xfcn", "text/plain; charset=iso-8859-1"), "grün");
        assert_eq!(decode(b"gr\xfcn", "text/plain; Charset=\"latin1\""), "grün");
        assert_eq!(decode("\u{feff}grün".as_bytes(), "text/plain; charset=iso-8859-1"), "grün");
        assert_eq!(decode(b"\xff\xfea\0b\0", "text/plain"), "ab");
        assert_eq!(decode(b"<META charset='windows-1252'>gr\xfcn", ""), "<META charset='windows-1252'>grün");
        let meta = b"<meta http-equiv=content-type content=\"text/html; charset=koi8-r\">\xc1";
        assert!(decode(meta, "text/html").ends_with('а'));
        assert!(decode(b"<?xml version='1.0' encoding='iso-8859-1'?>\xfc", "text/xml").ends_with('ü'));
        assert_eq!(decode("日本".as_bytes(), "text/plain"), "日本");
    }

    #[test]
    fn what_does_not_fit_is_replaced() {
        assert_eq!(decode(b"a\xff\xfeb", "text/plain; charset=utf-8"), "a\u{fffd}\u{fffd}b");
        assert_eq!(decode("grün".as_bytes(), "text/plain; charset=no-such-thing"), "grün");
        assert_eq!(decode(b"<meta charset=utf-16>a", "text/html"), "<meta charset=utf-16>a");
        assert_eq!(decode(b"", "charset"), "");
    }
}
