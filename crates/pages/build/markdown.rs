//! Markdown into HTML: headings that can be linked to, links that a caller resolves, and no HTML of the text's own.

use std::collections::BTreeMap;

use pulldown_cmark::{CodeBlockKind, CowStr, Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

/// A heading, or the text before the first one.
#[derive(Default)]
pub(crate) struct Section {
    /// 1 for the page's title.
    pub(crate) level: u8,
    /// Its name in addresses.
    pub(crate) id: String,
    pub(crate) title: String,
    /// What follows it, without marks and without blocks of code.
    pub(crate) text: String,
}

/// Where a link leads.
pub(crate) enum Target {
    /// This address.
    Address(String),
    /// A file that has no page: it is named, and no link.
    File(String),
}

/// The sections of a page. The first one is its title.
pub(crate) fn sections(markdown: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut ids = BTreeMap::new();
    let (mut in_heading, mut in_code) = (false, false);
    for event in parser(markdown) {
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                in_heading = true;
                sections.push(Section { level: number(level), ..Section::default() });
            }
            Event::End(TagEnd::Heading(_)) => {
                in_heading = false;
                if let Some(section) = sections.last_mut() {
                    section.id = unique(slug(&section.title), &mut ids);
                }
            }
            Event::Start(Tag::CodeBlock(_)) => in_code = true,
            Event::End(TagEnd::CodeBlock) => in_code = false,
            Event::Text(text) | Event::Code(text) if !in_code => {
                let Some(section) = sections.last_mut() else { continue };
                let to = if in_heading { &mut section.title } else { &mut section.text };
                to.push_str(&text);
            }
            Event::SoftBreak | Event::HardBreak => push_space(&mut sections),
            Event::End(TagEnd::Paragraph | TagEnd::Item | TagEnd::TableCell) => {
                push_space(&mut sections);
            }
            _ => {}
        }
    }
    sections
}

/// Renders a page, whose sections are known.
///
/// # Errors
/// Fails with what `resolve` says about a link.
pub(crate) fn render(
    markdown: &str,
    sections: &[Section],
    resolve: impl Fn(&str) -> Result<Target, String>,
) -> Result<String, String> {
    let mut headings = sections.iter();
    let mut events = Vec::new();
    // How each link that is open ends.
    let mut ends = Vec::new();
    for event in parser(markdown) {
        match event {
            Event::Start(Tag::Heading { level, classes, attrs, .. }) => {
                let id = headings.next().map(|section| CowStr::from(section.id.clone()));
                events.push(Event::Start(Tag::Heading { level, id, classes, attrs }));
            }
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => match resolve(&dest_url)? {
                Target::Address(address) => {
                    ends.push(None);
                    let dest_url = address.into();
                    events.push(Event::Start(Tag::Link { link_type, dest_url, title, id }));
                }
                Target::File(path) => {
                    ends.push(Some("</span>"));
                    let start = format!("<span class=\"file\" title=\"{}\">", escaped(&path));
                    events.push(Event::InlineHtml(start.into()));
                }
            },
            Event::End(TagEnd::Link) => match ends.pop().flatten() {
                None => events.push(Event::End(TagEnd::Link)),
                Some(end) => events.push(Event::InlineHtml(end.into())),
            },
            Event::Start(Tag::Image { link_type, dest_url, title, id }) => match resolve(&dest_url)? {
                Target::Address(address) => {
                    let dest_url = address.into();
                    events.push(Event::Start(Tag::Image { link_type, dest_url, title, id }));
                }
                Target::File(path) => return Err(format!("{path} is not in the folder of images")),
            },
            // Without the alignment of columns, which would be a style in the element.
            Event::Start(Tag::Table(columns)) => {
                events.push(Event::Html("<div class=\"table\">".into()));
                events.push(Event::Start(Tag::Table(vec![pulldown_cmark::Alignment::None; columns.len()])));
            }
            Event::End(TagEnd::Table) => {
                events.push(Event::End(TagEnd::Table));
                events.push(Event::Html("</div>".into()));
            }
            // The marks of an example that tests run are not for readers.
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                let language = info.split_whitespace().next().unwrap_or_default().to_owned();
                events.push(Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language.into()))));
            }
            // Text, as everything that others wrote.
            Event::Html(text) | Event::InlineHtml(text) => events.push(Event::Text(text)),
            other => events.push(other),
        }
    }
    let mut page = String::new();
    html::push_html(&mut page, events.into_iter());
    Ok(page)
}

/// A text within HTML, also within quotation marks.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn parser(markdown: &str) -> Parser<'_> {
    Parser::new_ext(markdown, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
}

/// The name of a heading in addresses, as forges make it, because pages are read there as well.
fn slug(title: &str) -> String {
    let kept = title.chars().filter(|character| character.is_alphanumeric() || " -_".contains(*character));
    kept.flat_map(char::to_lowercase)
        .map(|character| if character == ' ' { '-' } else { character })
        .collect()
}

/// The second heading of a name gets a number.
fn unique(id: String, ids: &mut BTreeMap<String, usize>) -> String {
    let seen = ids.entry(id.clone()).or_default();
    *seen += 1;
    if *seen == 1 { id } else { format!("{id}-{}", *seen - 1) }
}

fn push_space(sections: &mut [Section]) {
    if let Some(section) = sections.last_mut()
        && !section.text.ends_with(' ')
    {
        section.text.push(' ');
    }
}

fn number(level: HeadingLevel) -> u8 {
    match level {
        HeadingLevel::H1 => 1,
        HeadingLevel::H2 => 2,
        HeadingLevel::H3 => 3,
        HeadingLevel::H4 => 4,
        HeadingLevel::H5 => 5,
        HeadingLevel::H6 => 6,
    }
}
