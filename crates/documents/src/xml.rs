//! The parts of a document in XML, as a stream of events. No entity is expanded but the five of XML itself
//! and numbers of characters, so a document type declaration has no effect.

use std::io::BufRead;

use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};

use crate::DocumentError;
use crate::limits::MAX_XML_DEPTH;
use crate::zip_archive::part_error;

/// An event of a part.
pub(crate) enum XmlEvent<'a> {
    /// An element begins. An empty one ends at once.
    Start(&'a BytesStart<'a>),
    /// An element ends.
    End(&'a str),
    /// Text, or a part of one.
    Text(&'a str),
}

/// Calls `handle` for each event, until it returns `false`.
pub(crate) fn for_each_event<R: BufRead>(
    part: R,
    mut handle: impl FnMut(XmlEvent<'_>) -> bool,
) -> Result<(), DocumentError> {
    let mut reader = Reader::from_reader(part);
    let (mut buffer, mut depth) = (Vec::new(), 0_usize);
    loop {
        buffer.clear();
        let goes_on = match reader.read_event_into(&mut buffer).map_err(|error| xml_error(&error))? {
            Event::Start(start) => {
                depth += 1;
                if depth > MAX_XML_DEPTH {
                    return Err(DocumentError::Expands(format!(
                        "it is nested deeper than {MAX_XML_DEPTH} levels"
                    )));
                }
                handle(XmlEvent::Start(&start))
            }
            Event::Empty(start) => {
                handle(XmlEvent::Start(&start)) && handle(XmlEvent::End(start.local_name().as_ref()))
            }
            Event::End(end) => {
                depth = depth.saturating_sub(1);
                handle(XmlEvent::End(end.local_name().as_ref()))
            }
            Event::Text(text) => handle(XmlEvent::Text(&text.xml10_content())),
            Event::CData(text) => handle(XmlEvent::Text(&text.xml10_content())),
            Event::GeneralRef(reference) => match reference.resolve_char_ref() {
                Ok(Some(char)) => handle(XmlEvent::Text(char.encode_utf8(&mut [0; 4]))),
                _ => resolve_predefined_entity(&reference.xml10_content())
                    .is_none_or(|text| handle(XmlEvent::Text(text))),
            },
            Event::Eof => return Ok(()),
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => true,
        };
        if !goes_on {
            return Ok(());
        }
    }
}

/// The value of the attribute with this name, whatever its prefix.
pub(crate) fn attribute(start: &BytesStart<'_>, name: &str) -> Option<String> {
    let mut attributes = start.attributes();
    let mut found = attributes.with_checks(false).flatten();
    let attribute = found.find(|attribute| attribute.key.local_name().as_ref() == name)?;
    Some(attribute.value.into_owned())
}

fn xml_error(error: &quick_xml::Error) -> DocumentError {
    match error {
        quick_xml::Error::Io(error) => part_error(error),
        other => DocumentError::broken(other),
    }
}
