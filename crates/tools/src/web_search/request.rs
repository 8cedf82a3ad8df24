//! What is searched for, and the request that asks a provider for it. Pure.

use catalog::{SearchApi, SearchProvider};
use fetch::ApiRequest;
use reqwest::Url;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The maximum length of a query, in characters, and its words: the limits of Brave Search, which has the lowest.
pub(super) const MAX_QUERY_CHARS: usize = 400;
const MAX_QUERY_WORDS: usize = 50;
/// The maximum number of results.
pub(super) const MAX_COUNT: usize = 10;
const DEFAULT_COUNT: usize = 5;

/// The input of the tool.
#[derive(Deserialize)]
pub(super) struct SearchInput {
    query: String,
    count: Option<usize>,
    freshness: Option<Freshness>,
    site: Option<String>,
}

/// How old a page may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Freshness {
    Day,
    Week,
    Month,
    Year,
}

impl Freshness {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The name that Brave Search has for it.
    const fn of_brave(self) -> &'static str {
        match self {
            Self::Day => "pd",
            Self::Week => "pw",
            Self::Month => "pm",
            Self::Year => "py",
        }
    }
}

/// What is searched for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SearchQuery {
    words: String,
    pub(super) count: usize,
    freshness: Option<Freshness>,
    site: Option<String>,
}

impl SearchQuery {
    /// Validates the input.
    ///
    /// # Errors
    /// What is wrong with it, for the model.
    pub(super) fn new(input: SearchInput) -> Result<Self, String> {
        let SearchInput { query, count, freshness, site } = input;
        let count = count.unwrap_or(DEFAULT_COUNT);
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(format!("`count` must be 1 to {MAX_COUNT}"));
        }
        let words =
            query.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
        let words = words.collect::<Vec<_>>().join(" ");
        if words.is_empty() {
            return Err("`query` is empty".into());
        }
        let site = site.filter(|site| !site.is_empty()).map(|site| parse_site(&site)).transpose()?;
        let query = Self { words, count, freshness, site };
        let text = query.text();
        if text.chars().count() > MAX_QUERY_CHARS || text.split(' ').count() > MAX_QUERY_WORDS {
            return Err(format!(
                "`query` is too long: with `site`, at most {MAX_QUERY_CHARS} characters and {MAX_QUERY_WORDS} words \
                 can be searched for"
            ));
        }
        Ok(query)
    }

    /// Whether only recent pages are searched for.
    pub(super) const fn has_freshness(&self) -> bool {
        self.freshness.is_some()
    }

    /// The query as search engines understand it, with the site in it.
    pub(super) fn text(&self) -> String {
        match &self.site {
            Some(site) => format!("{} site:{site}", self.words),
            None => self.words.clone(),
        }
    }
}

/// Reads a host name.
fn parse_site(site: &str) -> Result<String, String> {
    let is_plain = !site.contains(['/', '?', '#', '@', ':', '\\']) && !site.contains(char::is_whitespace);
    let url = Url::parse(&format!("https://{site}/")).ok().filter(|_| is_plain);
    url.and_then(|url| url.domain().map(str::to_owned))
        .ok_or_else(|| "`site` must be the name of a host, such as example.org".into())
}

/// The request that asks a provider.
pub(super) fn build(provider: &SearchProvider, query: &SearchQuery) -> ApiRequest {
    let mut fields = match provider.api {
        SearchApi::Brave => brave_fields(query),
        SearchApi::Tavily => tavily_fields(query),
        SearchApi::SearXng => searxng_fields(query),
        SearchApi::Http(_) => Map::new(),
    };
    let has_site = provider.parameters.contains("{site}");
    let values = Values { query, text: if has_site { query.words.clone() } else { query.text() } };
    for (name, value) in &provider.parameters.0 {
        if let Some(value) = values.fill(value) {
            fields.insert(name.clone(), value);
        }
    }
    let call = &provider.call;
    let (mut url, mut body) = (call.url.clone(), None);
    if call.sends_query() {
        let pairs = fields
            .into_iter()
            .map(|(name, value)| (name, value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
        url.query_pairs_mut().extend_pairs(pairs);
    } else {
        body = Some(Value::Object(fields).to_string());
    }
    ApiRequest { method: call.method.clone(), url, headers: call.headers.clone(), body }
}

type Fields = Map<String, Value>;

fn brave_fields(query: &SearchQuery) -> Fields {
    let mut fields = Fields::new();
    fields.insert("q".into(), query.text().into());
    fields.insert("count".into(), query.count.into());
    fields.insert("text_decorations".into(), false.into());
    if let Some(freshness) = query.freshness {
        fields.insert("freshness".into(), freshness.of_brave().into());
    }
    fields
}

fn tavily_fields(query: &SearchQuery) -> Fields {
    let mut fields = Fields::new();
    fields.insert("query".into(), query.words.clone().into());
    fields.insert("max_results".into(), query.count.into());
    if let Some(freshness) = query.freshness {
        fields.insert("time_range".into(), freshness.as_str().into());
    }
    if let Some(site) = &query.site {
        fields.insert("include_domains".into(), json!([site]));
    }
    fields
}

fn searxng_fields(query: &SearchQuery) -> Fields {
    let mut fields = Fields::new();
    fields.insert("q".into(), query.text().into());
    fields.insert("format".into(), "json".into());
    if let Some(freshness) = query.freshness {
        fields.insert("time_range".into(), freshness.as_str().into());
    }
    fields
}

/// What the placeholders of a provider's parameters stand for.
struct Values<'a> {
    query: &'a SearchQuery,
    text: String,
}

impl Values<'_> {
    /// Fills in a value; `None` if it needs something that the search does not set.
    fn fill(&self, value: &Value) -> Option<Value> {
        match value {
            Value::String(text) if text == "{count}" => Some(self.query.count.into()),
            Value::String(text) => self.fill_text(text).map(Value::String),
            Value::Array(list) => Some(list.iter().filter_map(|value| self.fill(value)).collect()),
            Value::Object(fields) => {
                let filled =
                    fields.iter().filter_map(|(name, value)| Some((name.clone(), self.fill(value)?)));
                Some(Value::Object(filled.collect()))
            }
            other => Some(other.clone()),
        }
    }

    /// Replaces each placeholder once, from left to right: what is filled in is not read again.
    fn fill_text(&self, text: &str) -> Option<String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            filled.push_str(before);
            match after.split_once('}') {
                Some(("query", behind)) => {
                    filled.push_str(&self.text);
                    rest = behind;
                }
                Some(("count", behind)) => {
                    filled.push_str(&self.query.count.to_string());
                    rest = behind;
                }
                Some(("freshness", behind)) => {
                    filled.push_str(self.query.freshness?.as_str());
                    rest = behind;
                }
                Some(("site", behind)) => {
                    filled.push_str(self.query.site.as_ref()?);
                    rest = behind;
                }
                _ => {
                    filled.push('{');
                    rest = after;
                }
            }
        }
        filled.push_str(rest);
        Some(filled)
    }
}
