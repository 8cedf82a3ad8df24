//! Converts an HTML page to readable Markdown.
//!
//! It works on the tokens of the HTML standard's tokenizer, not on a tree: nesting costs no stack, and the work
//! grows linearly with the page, whatever the page contains.

use std::convert::Infallible;

use html5gum::emitters::callback::{CallbackEmitter, CallbackEvent};
use html5gum::{Span, Tokenizer};
use reqwest::Url;

use super::markdown::MarkdownWriter;

/// The maximum length of a title, in characters.
const MAX_TITLE_CHARS: usize = 300;
/// The maximum length of a link's address that is shown, in bytes.
const MAX_LINK_URL_BYTES: usize = 500;
/// The maximum length of a link's text, in bytes, so that an unclosed link does not swallow the page.
const MAX_LINK_TEXT_BYTES: usize = 1_000;
/// The maximum depth of nested lists that is tracked.
const MAX_LIST_DEPTH: usize = 100;

/// The text of a page.
#[derive(Debug, PartialEq, Eq)]
pub struct Document {
    /// The title; empty if there is none.
    pub title: String,
    /// The text, as Markdown.
    pub text: String,
}

/// Converts a page. `url` is the page's own address; `max` is the approximate limit of the text, in bytes.
pub fn read_html(html: &str, url: &Url, max: usize) -> Document {
    let mut reader = HtmlReader::new(url, max);
    let callback = |event: CallbackEvent<'_>, _: Span<()>| -> Option<Infallible> {
        reader.handle_event(&event);
        None
    };
    let mut emitter = CallbackEmitter::new(callback);
    emitter.naively_switch_states(true);
    let Ok(()) = Tokenizer::new_with_emitter(html, emitter).finish();
    reader.close_link();
    let title = reader.title.split_whitespace().collect::<Vec<_>>().join(" ");
    let title = title.chars().filter(|character| !character.is_control()).take(MAX_TITLE_CHARS).collect();
    Document { title, text: reader.out.finish() }
}

/// The relevant parts of a start tag.
#[derive(Debug, Default)]
struct Tag {
    name: String,
    href: Option<String>,
    alt: Option<String>,
    start: Option<u64>,
    attribute: Attribute,
}

/// The attribute whose value comes next.
#[derive(Clone, Copy, Debug, Default)]
enum Attribute {
    #[default]
    Other,
    Href,
    Alt,
    Start,
}

#[derive(Debug)]
struct Link {
    url: String,
    /// The length of the link's text so far, in bytes.
    text_bytes: usize,
}

struct HtmlReader {
    out: MarkdownWriter,
    title: String,
    in_title: bool,
    page_url: Url,
    /// The base URL of relative links.
    base_url: Url,
    tag: Tag,
    /// The element being skipped, and its nesting depth within itself.
    skipped: Option<(String, usize)>,
    /// The open lists: the number of the next item for ordered lists, `None` for others.
    lists: Vec<Option<u64>>,
    link: Option<Link>,
    in_pre: bool,
    /// Whether the next cell of a table is the first in its row.
    first_cell: bool,
}

impl HtmlReader {
    fn new(url: &Url, max: usize) -> Self {
        Self {
            out: MarkdownWriter::new(max),
            title: String::new(),
            in_title: false,
            page_url: url.clone(),
            base_url: url.clone(),
            tag: Tag::default(),
            skipped: None,
            lists: Vec::new(),
            link: None,
            in_pre: false,
            first_cell: true,
        }
    }

    fn handle_event(&mut self, event: &CallbackEvent<'_>) {
        if self.out.is_full() {
            return;
        }
        match event {
            CallbackEvent::OpenStartTag { name } => {
                self.tag = Tag { name: decode_lossy(name), ..Tag::default() };
            }
            CallbackEvent::AttributeName { name } => {
                self.tag.attribute = match *name {
                    b"href" if self.tag.href.is_none() => Attribute::Href,
                    b"alt" if self.tag.alt.is_none() => Attribute::Alt,
                    b"start" if self.tag.start.is_none() => Attribute::Start,
                    _ => Attribute::Other,
                };
            }
            CallbackEvent::AttributeValue { value } => match self.tag.attribute {
                Attribute::Href => self.tag.href = Some(decode_lossy(value)),
                Attribute::Alt => self.tag.alt = Some(decode_lossy(value)),
                Attribute::Start => self.tag.start = decode_lossy(value).trim().parse().ok(),
                Attribute::Other => {}
            },
            CallbackEvent::CloseStartTag { self_closing } => {
                let tag = std::mem::take(&mut self.tag);
                self.handle_start_tag(&tag, *self_closing);
            }
            CallbackEvent::EndTag { name } => self.handle_end_tag(&decode_lossy(name)),
            CallbackEvent::String { value } => self.handle_text(&decode_lossy(value)),
            CallbackEvent::Comment { .. } | CallbackEvent::Doctype { .. } | CallbackEvent::Error(_) => {}
        }
    }

    fn handle_text(&mut self, text: &str) {
        if self.in_title {
            return self.title.push_str(text);
        }
        if self.skipped.is_some() {
            return;
        }
        if self.in_pre {
            self.out.push_verbatim(text);
            return;
        }
        let has_text = !text.trim_ascii().is_empty();
        if let Some(link) = self.link.as_mut().filter(|_| has_text) {
            if link.text_bytes == 0 {
                if text.starts_with(|c: char| c.is_ascii_whitespace()) {
                    self.out.push_space();
                }
                self.out.push_token("[");
                self.out.push_text(text.trim_ascii_start());
            } else {
                self.out.push_text(text);
            }
            link.text_bytes += text.len();
            if link.text_bytes > MAX_LINK_TEXT_BYTES {
                self.close_link();
            }
            return;
        }
        self.out.push_text(text);
    }

    fn handle_start_tag(&mut self, tag: &Tag, self_closing: bool) {
        let name = tag.name.as_str();
        if let Some((skipped, depth)) = &mut self.skipped {
            if skipped == name && !self_closing {
                *depth += 1;
            }
            return;
        }
        match name {
            "title" => self.in_title = self.title.is_empty(),
            "base" => {
                if let Some(base) = tag.href.as_deref().and_then(|href| self.base_url.join(href).ok()) {
                    self.base_url = base;
                }
            }
            "script" | "style" | "template" | "noscript" | "iframe" | "object" | "svg" | "noembed"
            | "noframes" | "select" | "textarea"
                if !self_closing || name != "svg" =>
            {
                self.skipped = Some((name.to_owned(), 0));
            }
            "a" => self.open_link(tag),
            "img" => self.push_image_alt(tag.alt.as_deref().unwrap_or_default()),
            "br" => self.break_line(1),
            "hr" => {
                self.close_link();
                self.break_line(2);
                self.out.push_token("---");
                self.break_line(2);
            }
            "pre" | "listing" => {
                self.close_link();
                self.break_line(2);
                self.out.push_token("```");
                self.out.break_line(1);
                self.in_pre = true;
            }
            "code" | "kbd" | "samp" => self.handle_code(MarkdownWriter::push_token),
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => self.start_heading(name),
            "ul" | "menu" => self.open_list(None),
            "ol" => self.open_list(Some(tag.start.unwrap_or(1))),
            "li" => self.start_item(),
            "blockquote" => {
                self.close_link();
                self.break_line(2);
                self.out.quote(true);
            }
            "tr" => {
                self.close_link();
                self.break_line(1);
                self.first_cell = true;
            }
            "td" | "th" => self.start_cell(),
            name => self.break_line(line_breaks_around(name)),
        }
    }

    fn handle_end_tag(&mut self, name: &str) {
        if let Some((skipped, depth)) = &mut self.skipped {
            if skipped == name {
                *depth = match depth.checked_sub(1) {
                    Some(depth) => depth,
                    None => return self.skipped = None,
                };
            }
            return;
        }
        match name {
            "title" => self.in_title = false,
            "a" => self.close_link(),
            "pre" | "listing" if self.in_pre => {
                self.in_pre = false;
                self.out.break_line(1);
                self.out.push_token("```");
                self.out.break_line(2);
            }
            "code" | "kbd" | "samp" => self.handle_code(MarkdownWriter::push_closing),
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.out.end_marker();
                self.break_line(2);
            }
            "ul" | "ol" | "menu" => {
                self.out.end_marker();
                self.lists.pop();
                self.out.set_indent(self.lists.len().saturating_sub(1));
                self.break_line(if self.lists.is_empty() { 2 } else { 1 });
            }
            "blockquote" => {
                self.break_line(2);
                self.out.quote(false);
            }
            "li" | "td" | "th" | "tr" | "table" => {
                self.out.end_marker();
                self.break_line(line_breaks_around(name));
            }
            name => self.break_line(line_breaks_around(name)),
        }
    }

    /// Breaks the line. In a link a break becomes a space, because the link's text is one line.
    fn break_line(&mut self, lines: usize) {
        match (lines, &self.link) {
            (0, _) => {}
            (_, Some(_)) => self.out.push_space(),
            (lines, None) => self.out.break_line(lines),
        }
    }

    fn handle_code(&mut self, write: fn(&mut MarkdownWriter, &str)) {
        if self.link.is_none() && !self.in_pre {
            write(&mut self.out, "`");
        }
    }

    fn start_heading(&mut self, name: &str) {
        self.break_line(2);
        if self.link.is_none() {
            let level = name.trim_start_matches('h').parse().unwrap_or(1);
            self.out.push_marker(&"#".repeat(level));
        }
    }

    fn push_image_alt(&mut self, alt: &str) {
        let alt = alt.trim();
        if !alt.is_empty() && !self.in_pre {
            self.handle_text(&format!("({alt})"));
        }
    }

    fn open_list(&mut self, first: Option<u64>) {
        self.close_link();
        self.break_line(if self.lists.is_empty() { 2 } else { 1 });
        if self.lists.len() < MAX_LIST_DEPTH {
            self.lists.push(first);
        }
    }

    fn start_item(&mut self) {
        self.close_link();
        self.out.end_marker();
        self.break_line(1);
        self.out.set_indent(self.lists.len().saturating_sub(1));
        match self.lists.last_mut() {
            Some(Some(number)) => {
                self.out.push_marker(&format!("{number}."));
                *number = number.saturating_add(1);
            }
            Some(None) | None => self.out.push_marker("-"),
        }
    }

    fn start_cell(&mut self) {
        self.close_link();
        if !std::mem::take(&mut self.first_cell) {
            self.out.end_marker();
            self.out.continue_line();
            self.out.push_marker("|");
        }
    }

    fn open_link(&mut self, tag: &Tag) {
        self.close_link();
        let Some(url) = tag.href.as_deref().and_then(|href| self.base_url.join(href.trim()).ok()) else {
            return;
        };
        let useful =
            matches!(url.scheme(), "http" | "https" | "mailto") && url.as_str().len() <= MAX_LINK_URL_BYTES;
        let within = url.fragment().is_some() && same_page(&url, &self.page_url);
        if useful && !within && !self.in_pre {
            self.link = Some(Link { url: url.into(), text_bytes: 0 });
        }
    }

    fn close_link(&mut self) {
        if let Some(Link { url: address, text_bytes: 1.. }) = self.link.take() {
            self.out.push_closing(&format!("]({address})"));
        }
    }
}

/// Returns the number of line breaks around an element.
fn line_breaks_around(name: &str) -> usize {
    match name {
        "p" | "table" | "figure" | "dl" | "details" | "article" | "section" | "fieldset" | "main" => 2,
        "div" | "header" | "footer" | "nav" | "aside" | "form" | "dt" | "dd" | "figcaption" | "summary"
        | "address" | "caption" | "center" | "legend" | "option" | "body" | "tbody" | "thead" | "tfoot"
        | "hgroup" | "search" | "tr" | "li" => 1,
        _ => 0,
    }
}

/// Whether a link leads to the page that it is on.
fn same_page(url: &Url, page: &Url) -> bool {
    let without_fragment = |url: &Url| {
        let mut url = url.clone();
        url.set_fragment(None);
        url
    };
    without_fragment(url) == without_fragment(page)
}

/// Decodes a token. It is a part of a string, but may be cut within a character.
fn decode_lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
#[path = "../tests/unit/html.rs"]
mod tests;
