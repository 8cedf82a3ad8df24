//! Markdown files that begin with a block of YAML between two lines of `---`.

use serde::de::DeserializeOwned;

/// Splits `text` into its parsed front matter and the text after it, without surrounding blank lines.
///
/// # Errors
/// There is no front matter, or it is invalid; the reason is for a person.
pub(super) fn split<T: DeserializeOwned>(text: &str) -> Result<(T, &str), String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.split_inclusive('\n');
    let first = lines.next().unwrap_or_default();
    if first.trim_end() != "---" {
        return Err(
            "it does not begin with front matter: a line of `---`, fields, and another line of `---`".into(),
        );
    }
    let mut end = first.len();
    for line in lines {
        if line.trim_end() == "---" {
            let yaml = text.get(first.len()..end).unwrap_or_default();
            let body = text.get(end + line.len()..).unwrap_or_default().trim();
            let fields =
                serde_saphyr::from_str(yaml).map_err(|error| format!("its front matter: {error}"))?;
            return Ok((fields, body));
        }
        end += line.len();
    }
    Err("its front matter has no end: add a line of `---` after the fields".into())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Fields {
        name: String,
    }

    #[test]
    fn fields_and_text_are_told_apart() {
        let split = |text| split::<Fields>(text).map(|(fields, body)| (fields.name, body.to_owned()));
        let expected = Ok(("a".to_owned(), "Text.\n---\nMore.".to_owned()));
        assert_eq!(split("---\nname: a\n---\n\nText.\n---\nMore.\n"), expected);
        assert_eq!(split("\u{feff}---\r\nname: a\r\n--- \r\nText.\n---\nMore."), expected);
        assert_eq!(split("---\nname: a\n---"), Ok(("a".to_owned(), String::new())));
        for invalid_field in ["", "name: a", "---\nname: a\n", "---\nnames: a\n---\n", "---\n: :\n\t-\n---\n"]
        {
            assert!(split(invalid_field).is_err(), "{invalid_field:?}");
        }
    }
}
