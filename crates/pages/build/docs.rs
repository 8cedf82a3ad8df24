//! The documentation as a site: a page for each Markdown file, with navigation and an index for its search.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde_json::json;

use crate::contents::{API, INDEX, PARTS, Part, slug};
use crate::files::{Files, invalid, read_folder, resolve, take_text};
use crate::markdown::{Section, Target, escaped, render, sections};
use crate::{openapi, site};

const MOUNT: &str = "docs";
/// Where pictures are, for readers of the Markdown too.
pub(crate) const IMAGES: &str = "docs/images";
/// What the site loads of the console: it has its colours, and its session.
const SHARED: &[&str] = &[
    "icon.svg",
    "lib/base.js",
    "lib/errors.js",
    "lib/html.js",
    "lib/session.js",
    "lib/sse.js",
    "lib/store.js",
    "style/base.css",
    "vendor/htm.mjs",
    "vendor/preact-hooks.mjs",
    "vendor/preact.mjs",
];
/// Pages whose text is not searched, only their headings: they are for whoever changes the code, and a third of all text.
const HEADINGS_ONLY: &[&str] = &[
    "CHANGELOG.md",
    "docs/contract.md",
    "docs/regressions.md",
    "testing/bench/README.md",
    "testing/chaos/README.md",
];

/// A page before it is rendered.
struct Page {
    file: &'static str,
    short_title: &'static str,
    part: usize,
    markdown: String,
    sections: Vec<Section>,
}

/// Renders the site. `console` has the console's files.
pub(crate) fn site(root: &Path, workspace: &Path, console: &Files) -> io::Result<site::Source> {
    let documents = openapi::read(workspace)?;
    let (api, api_sections) = openapi::page(&documents);
    let mut pages = read_pages(workspace)?;
    if let Some(page) = pages.iter_mut().find(|page| page.file == API) {
        page.sections = api_sections;
    }

    let mut assets = Files::new();
    read_folder(&root.join("docs"), "", &mut assets)?;
    let template = take_text(&mut assets, "page.html")?;
    for path in SHARED {
        let content =
            console.get(*path).ok_or_else(|| invalid(&format!("the console has no {path} any more")))?;
        assets.insert((*path).to_owned(), content.clone());
    }
    for document in &documents {
        assets.insert(format!("openapi/{}.json", document.service), document.compact().into_bytes());
    }
    if workspace.join(IMAGES).is_dir() {
        read_folder(&workspace.join(IMAGES), "images/", &mut assets)?;
    }
    assets.insert("search.json".to_owned(), search_index(&pages).into_bytes());
    let hash = site::hash(&assets);

    let links = Links { workspace, pages: &pages, hash: &hash, assets: &assets };
    let (mut index, mut rendered, mut broken) = (String::new(), Files::new(), Vec::new());
    for (at, page) in pages.iter().enumerate() {
        let content = if page.file == API {
            Ok(api.clone())
        } else {
            render(&page.markdown, &page.sections, |link| links.target(page, link))
        };
        match content {
            Ok(content) => {
                let html = complete(&template, &pages, at, &content, &hash);
                if page.file == INDEX {
                    index = html;
                } else if rendered.insert(slug(page.file), html.into_bytes()).is_some() {
                    broken.push(format!("two pages have the name of {}", page.file));
                }
            }
            Err(why) => broken.push(format!("{}: {why}", page.file)),
        }
    }
    if !broken.is_empty() {
        return Err(invalid(&broken.join("\n")));
    }
    Ok(site::Source { constant: "DOCS", mount: MOUNT, hash, index, pages: rendered, assets })
}

fn read_pages(workspace: &Path) -> io::Result<Vec<Page>> {
    let mut pages = Vec::new();
    for (part, Part { pages: listed, .. }) in PARTS.iter().enumerate() {
        for (file, short_title) in *listed {
            let markdown = if *file == API { String::new() } else { crate::read_text(workspace, file)? };
            let sections = sections(&markdown);
            pages.push(Page { file, short_title, part, markdown, sections });
        }
    }
    Ok(pages)
}

/// Resolves the links of pages.
struct Links<'a> {
    workspace: &'a Path,
    pages: &'a [Page],
    hash: &'a str,
    assets: &'a Files,
}

impl Links<'_> {
    fn target(&self, from: &Page, link: &str) -> Result<Target, String> {
        if link.starts_with("https://") || link.starts_with("http://") || link.starts_with("mailto:") {
            return Ok(Target::Address(link.to_owned()));
        }
        let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
        let folder = from.file.rsplit_once('/').map_or("", |(folder, _)| folder);
        let path = if path.is_empty() { from.file.to_owned() } else { resolve(folder, path) };
        let prefix = below(from.file);
        if let Some(image) = path.strip_prefix(IMAGES).map(|name| format!("images{name}"))
            && self.assets.contains_key(&image)
        {
            return Ok(Target::Address(format!("{prefix}{}/{image}", self.hash)));
        }
        let page = self.pages.iter().find(|page| page.file == path);
        // A folder stands for the first of its pages.
        let page =
            page.or_else(|| self.pages.iter().find(|page| page.file.starts_with(&format!("{path}/0"))));
        let Some(page) = page else {
            if !self.workspace.join(&path).exists() {
                return Err(format!("there is no {path}, to which `{link}` leads"));
            }
            return Ok(Target::File(path));
        };
        let mut address = if page.file == from.file { String::new() } else { address(from.file, page.file) };
        if let Some(anchor) = anchor {
            if !page.sections.iter().any(|section| section.id == anchor) {
                return Err(format!("`{link}`: {path} has no such heading"));
            }
            let _ = write!(address, "#{anchor}");
        }
        Ok(Target::Address(address))
    }
}

/// The address of a page on another one, relative, so that the site works below another path of a reverse proxy.
fn address(from: &str, to: &str) -> String {
    if to == INDEX {
        return format!("{}{MOUNT}", root(from));
    }
    format!("{}{}", below(from), slug(to))
}

/// What leads from a page to the service's root.
fn root(from: &str) -> &'static str {
    if from == INDEX { "" } else { "../" }
}

/// What leads from a page to the folder of pages.
fn below(from: &str) -> &'static str {
    if from == INDEX { "docs/" } else { "" }
}

/// Puts a page's content into the template.
fn complete(template: &str, pages: &[Page], at: usize, content: &str, hash: &str) -> String {
    let Some(page) = pages.get(at) else { return String::new() };
    let title = page.sections.first().map_or(page.short_title, |section| section.title.as_str());
    let assets = format!("{}{hash}", below(page.file));
    let head = if page.file == API {
        let style = format!("<link rel=\"stylesheet\" href=\"{assets}/api/api.css\">\n");
        format!("{style}<script type=\"module\" src=\"{assets}/api/app.js\"></script>\n")
    } else {
        String::new()
    };
    let (nav, toc, neighbours) = (nav(pages, page), toc(page), pager(pages, at));
    let values = BTreeMap::from([
        ("title", escaped(title)),
        ("assets", assets),
        ("head", head),
        ("home", address(page.file, INDEX)),
        ("root", root(page.file).to_owned()),
        ("below", below(page.file).to_owned()),
        ("nav", nav),
        ("toc", toc),
        ("pager", neighbours),
        ("content", content.to_owned()),
    ]);
    fill(template, &values)
}

/// Replaces each `{name}` of a template once; values are not searched for names.
fn fill(template: &str, values: &BTreeMap<&str, String>) -> String {
    let mut parts = template.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let named = part.split_once('}').and_then(|(name, rest)| Some((values.get(name)?, rest)));
        if let Some((value, rest)) = named {
            filled.push_str(value);
            filled.push_str(rest);
        } else {
            filled.push('{');
            filled.push_str(part);
        }
    }
    filled
}

/// The parts, and the pages of the one that this page is in.
fn nav(pages: &[Page], here: &Page) -> String {
    let mut html = String::new();
    for (part, Part { title, .. }) in PARTS.iter().enumerate() {
        let mut listed = pages.iter().filter(|page| page.part == part).peekable();
        let first = listed.peek().map_or("", |page| page.file);
        if part != here.part {
            let _ =
                writeln!(html, "<h2><a href=\"{}\">{}</a></h2>", address(here.file, first), escaped(title));
            continue;
        }
        let _ = writeln!(html, "<h2>{}</h2>\n<ul>", escaped(title));
        for page in listed {
            let current = if page.file == here.file { " aria-current=\"page\"" } else { "" };
            let address = address(here.file, page.file);
            let _ =
                writeln!(html, "<li><a href=\"{address}\"{current}>{}</a></li>", escaped(page.short_title));
        }
        html.push_str("</ul>\n");
    }
    html
}

/// The headings of a page, unless it has too few to look for one.
fn toc(page: &Page) -> String {
    let headings: Vec<&Section> =
        page.sections.iter().filter(|section| (2..=3).contains(&section.level)).collect();
    if headings.len() < 2 || page.file == API {
        return String::new();
    }
    let mut html =
        "<nav class=\"toc\" aria-label=\"On this page\">\n<h2>On this page</h2>\n<ul>\n".to_owned();
    for Section { level, id, title, .. } in headings {
        let _ = writeln!(html, "<li class=\"level-{level}\"><a href=\"#{id}\">{}</a></li>", escaped(title));
    }
    html.push_str("</ul>\n</nav>");
    html
}

/// The links to the pages before and after this one.
fn pager(pages: &[Page], at: usize) -> String {
    let mut html = String::new();
    let Some(here) = pages.get(at) else { return html };
    let neighbours = [
        ("prev", "Previous", at.checked_sub(1).and_then(|at| pages.get(at))),
        ("next", "Next", pages.get(at + 1)),
    ];
    for (rel, label, page) in neighbours {
        if let Some(page) = page {
            let (address, title) = (address(here.file, page.file), escaped(page.short_title));
            let _ = writeln!(html, "<a rel=\"{rel}\" href=\"{address}\"><span>{label}</span> {title}</a>");
        }
    }
    html
}

/// What the search looks through: pages as [name, title, part], sections as [page's number, id, title, text].
fn search_index(pages: &[Page]) -> String {
    let mut sections = Vec::new();
    let mut listed = Vec::new();
    let mut seen = BTreeSet::new();
    for (number, page) in pages.iter().enumerate() {
        let title = page.sections.first().map_or(page.short_title, |section| section.title.as_str());
        let part = PARTS.get(page.part).map_or("", |part| part.title);
        listed.push(json!([slug(page.file), title, part]));
        for section in &page.sections {
            let text = if HEADINGS_ONLY.contains(&page.file) { "" } else { section.text.trim() };
            if seen.insert((number, &section.id)) {
                sections.push(json!([number, section.id, section.title, text]));
            }
        }
    }
    json!({"pages": listed, "sections": sections}).to_string()
}
