use std::time::{Duration, Instant};

use pretty_assertions::assert_eq;
use proptest::prelude::*;

use super::*;

const MAX: usize = 5 * 1024 * 1024;

fn read(html: &str) -> Document {
    read_html(html, &"https://example.org/a/b?c".parse().unwrap(), MAX)
}

fn text(html: &str) -> String {
    read(html).text
}

#[test]
fn a_page_is_read_as_a_person_would() {
    let page = "<!doctype html><html><head><title> My\n &amp; your page</title><style>p{color:red}</style>\
        <script>if (1 < 2) alert('<p>no</p>')</script></head><body><nav><a href=/>Home</a> <a href='#x'>Down</a></nav>\
        <h1>Head <em>line</em></h1><p>Hello\n   <b>bold</b> and <a href='../d?x=1&amp;y=2'>a\nlink</a>.\
        <p>Second&nbsp;<code>x = 1</code>, done.<ul><li>one<li>two<ol start=3><li>a</li><li>b</li></ol></ul>\
        <pre>fn x() {\n    1\n}</pre><table><tr><th>A<th>B<tr><td>1<td>2</table>\
        <blockquote><p>quoted<br>twice</blockquote><img src=x alt='a cat'><hr>end";
    let expected = "[Home](https://example.org/) Down\n\n# Head line\n\nHello bold and \
        [a link](https://example.org/d?x=1&y=2).\n\nSecond\u{a0}`x = 1`, done.\n\n- one\n- two\n  3. a\n  4. b\n\n\
        ```\nfn x() {\n    1\n}\n```\n\nA | B\n1 | 2\n\n> quoted\n> twice\n\n(a cat)\n\n---\n\nend";
    let document = read(page);
    assert_eq!(document.title, "My & your page");
    assert_eq!(document.text, expected);
}

#[test]
fn a_link_is_one_line_and_leads_somewhere_else() {
    assert_eq!(text("<a href=x><h3>Title</h3><p>Words</p></a>!"), "[Title Words](https://example.org/a/x) !");
    assert_eq!(text("a <a href=x> b </a> c"), "a [b](https://example.org/a/x) c");
    assert_eq!(text("<a href=x></a><a href=y><img alt=''></a>z"), "z");
    assert_eq!(text("<a href='javascript:alert(1)'>a</a> <a href='data:,x'>b</a> <a>c</a>"), "a b c");
    assert_eq!(text("<base href='https://b.example/'><a href=x>b</a>"), "[b](https://b.example/x)");
    assert_eq!(text("<base href=../z/><a href='../a/b?c#d'>here</a>"), "here");
    assert_eq!(
        text("<a href=x>one<a href=y>two</a>"),
        "[one](https://example.org/a/x)[two](https://example.org/a/y)"
    );
    let unclosed = format!("<a href=x>{}<p>after", "word ".repeat(300));
    assert!(text(&unclosed).ends_with("(https://example.org/a/x)\n\nafter"), "{}", text(&unclosed));
}

#[test]
fn items_cells_and_headings_hold_what_is_in_them() {
    assert_eq!(
        text("<ul><li><p>a</p><p>b</p><li><div><div>c</div></div><li></li><li>d</ul>e"),
        "- a\n\nb\n\n- c\n-\n- d\n\ne"
    );
    assert_eq!(text("<ol><li><ul><li>a</ul></ol>"), "1.\n  - a");
    assert_eq!(
        text("<table><tr><td><p>a</p></td><td><div>b</div></td></tr><tr><td>c<td></table>d"),
        "a | b\nc |\n\nd"
    );
    assert_eq!(text("<h2><div>a</div></h2><p>b<h3></h3><p>c"), "## a\n\nb\n\n###\n\nc");
    assert_eq!(text("<a href=x>a<pre>b</pre></a>"), "[a](https://example.org/a/x)\n\n```\nb\n```");
}

#[test]
fn what_is_not_shown_is_not_read() {
    let hidden = "<noscript>a</noscript><template>b<template>c</template>d</template><svg><title>e</title></svg>\
        <iframe>f</iframe><!-- g --><select><option>h</select><textarea>i</textarea><object>j</object>";
    assert_eq!(read(&format!("{hidden}shown")), Document { title: String::new(), text: "shown".into() });
    assert_eq!(text("<style>unclosed <p>x"), "");
}

#[test]
fn control_characters_do_not_come_through() {
    assert_eq!(text("a\u{1b}[2Jb&#27;c<pre>d\u{1b}e</pre>"), "a[2Jbc\n\n```\nde\n```");
    assert_eq!(read("<title>a\u{1b}b\nc</title>").title, "ab c");
}

/// Each of these overflows the stack of a converter that works on trees, keeps it busy for minutes, or fills its
/// memory.
#[test]
fn hostile_pages_are_read_in_time_and_within_bounds() {
    let many = 100_000;
    let pages = [
        "<div>".repeat(many) + "x",
        "<b>".repeat(many) + "x",
        "<ul><li>".repeat(many) + "x",
        "<ol><li>".repeat(many) + "x",
        "<blockquote>".repeat(many) + "x",
        "<table><tr><td>".repeat(many) + "x",
        "</blockquote></ul></a></pre></td>".repeat(many) + "x",
        "<a href=x>y</a>".repeat(many) + "x",
        "<a href=x>".repeat(many) + "x",
        "<template>".repeat(many) + "x",
        format!("<div {}>x", "a=1 b=2 ".repeat(many)),
        format!("<base href='https://{}.example/'>{}x", "y".repeat(400), "<a href=z>z</a>".repeat(many)),
        format!("<title>{}</title>x", "long ".repeat(many)),
        (0..1_000).map(|size| format!("<font size={size}>")).collect::<Vec<_>>().concat()
            + &"<p>x".repeat(many),
        format!("<pre>{}x", "\n".repeat(many)),
        "<".repeat(many) + "x",
        "&".repeat(many) + "x",
        "<!--".repeat(many) + "x",
        "<![CDATA[".repeat(many) + "x",
    ];
    for page in pages {
        let start = Instant::now();
        let document = read(&page);
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", page.get(..40));
        assert!(document.text.len() < MAX + 4_096, "{:?}", page.get(..40));
        assert!(document.title.chars().count() <= MAX_TITLE_CHARS);
    }
}

#[test]
fn the_text_has_a_bound() {
    let document = read_html(&"<p>word ".repeat(1_000), &"https://example.org/".parse().unwrap(), 1_000);
    assert!((1_000..1_100).contains(&document.text.len()), "{}", document.text.len());
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(pieces in proptest::collection::vec(piece(), 0..60)) {
        let document = read(&pieces.concat());
        prop_assert!(!document.text.starts_with('\n') && !document.text.ends_with('\n'));
    }

    #[test]
    fn no_word_is_lost(words in proptest::collection::vec("[a-z]{1,8}", 1..20), tags in proptest::collection::vec(block(), 20)) {
        let pieces = words.iter().zip(&tags).map(|(word, tag)| format!("<{tag}>{word}</{tag}>"));
        let text = text(&pieces.collect::<Vec<_>>().concat());
        let read: Vec<&str> = text.split(|c: char| !c.is_ascii_lowercase()).filter(|word| !word.is_empty()).collect();
        prop_assert_eq!(read, words);
    }
}

fn block() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec!["p", "div", "h2", "li", "ul", "ol", "blockquote", "pre", "td", "section"])
}

fn piece() -> impl Strategy<Value = String> {
    let known = [
        "<p>",
        "</p>",
        "<a href=x>",
        "</a>",
        "<a href='//'>",
        "<ul>",
        "</ul>",
        "<li>",
        "<ol start=99999999999999999999>",
        "<pre>",
        "</pre>",
        "<code>",
        "</code>",
        "<blockquote>",
        "</blockquote>",
        "<title>",
        "</title>",
        "<td>",
        "<tr>",
        "<svg/>",
        "<svg>",
        "</svg>",
        "<img alt='[](', <br>",
        "<base href='::'>",
        "\n",
        " ",
        "ü",
        "\u{202e}",
        "\0",
        "&#0;",
        "&#xd800;",
        "<!--",
        "-->",
        "</",
        "<",
        "=",
        "'",
    ];
    prop_oneof![proptest::sample::select(known.to_vec()).prop_map(str::to_owned), "\\PC{0,8}"]
}
