//! The package that a DOCX or XLSX is: an archive with a list of the types of its parts.

use crate::DocumentError;
use crate::xml::{XmlEvent, attribute, for_each_event};
use crate::zip_archive::Archive;

/// The part that lists the types of all parts.
const CONTENT_TYPES: &str = "[Content_Types].xml";

/// The name of the main part of a package whose type names one of these programs' formats; `None` if there is
/// none.
pub(crate) fn main_part(
    archive: &mut Archive<'_>,
    formats: &[&str],
) -> Result<Option<String>, DocumentError> {
    let Some(types) = archive.part(CONTENT_TYPES)? else { return Ok(None) };
    let is_main = |content_type: String| {
        let content_type = content_type.to_ascii_lowercase();
        content_type.ends_with("main+xml") && formats.iter().any(|format| content_type.contains(format))
    };
    let mut found = None;
    for_each_event(types, |event| {
        if let XmlEvent::Start(start) = event
            && start.local_name().as_ref() == "Override"
            && attribute(start, "ContentType").is_some_and(is_main)
        {
            found = attribute(start, "PartName");
        }
        found.is_none()
    })?;
    Ok(found.map(|name| name.trim_start_matches('/').to_owned()))
}
