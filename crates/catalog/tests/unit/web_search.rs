use std::fs;

use pretty_assertions::assert_eq;
use serde_json::json;

use super::*;

fn environment() -> Environment {
    let variables = [("BRAVE_KEY", "b-secret"), ("TAVILY_KEY", "t-secret"), ("EMPTY", "")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Environment::from_env(&BTreeMap::from(variables))
}

fn load_value(value: &Value, before: &[Arc<SearchProvider>]) -> (Vec<Arc<SearchProvider>>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("web-search.json"), value.to_string()).unwrap();
    let mut warnings = Vec::new();
    let providers = load(folder.path(), &environment(), before, &mut warnings);
    (providers, warnings)
}

#[test]
fn providers_are_read_in_their_order() {
    let (providers, warnings) = load_value(
        &json!({"providers": [
            {"provider": "brave", "key": "${BRAVE_KEY}", "parameters": {"country": "DE"}},
            {"provider": "tavily", "key": "${TAVILY_KEY}", "url": "https://search.example.com/v2"},
            {"provider": "searxng", "url": "http://searxng.internal:8080/sub/"},
            {"provider": "http", "url": "https://a.example/find?v=1", "method": "post",
             "headers": {"X-Key": "${BRAVE_KEY}"}, "parameters": {"ask": {"text": "{query}", "key": "${TAVILY_KEY}"}},
             "response": {"results": "/hits", "title": "/name", "url": "/link"}}
        ]}),
        &[],
    );
    assert_eq!(warnings, [""; 0]);
    let summary: Vec<_> = providers
        .iter()
        .map(|provider| {
            let SearchProvider { api, call, is_own_address, .. } = &**provider;
            (api.name(), call.method.as_str(), call.url.as_str(), *is_own_address)
        })
        .collect();
    assert_eq!(
        summary,
        [
            ("brave", "GET", BRAVE_URL, false),
            ("tavily", "POST", "https://search.example.com/v2", true),
            ("searxng", "GET", "http://searxng.internal:8080/sub/search", true),
            ("http", "POST", "https://a.example/find?v=1", true),
        ]
    );
    assert_eq!(providers[0].call.headers["x-subscription-token"], "b-secret");
    assert_eq!(providers[1].call.headers["authorization"], "Bearer t-secret");
    assert_eq!(providers[3].parameters.0["ask"], json!({"text": "{query}", "key": "t-secret"}));
    assert_eq!(
        providers.iter().map(|provider| provider.knows_freshness()).collect::<Vec<_>>(),
        [true, true, true, false]
    );
    // Keys are not printed.
    assert!(!format!("{providers:?}").contains("secret"), "{providers:?}");
}

#[test]
fn without_the_file_there_is_no_provider() {
    let folder = tempfile::tempdir().unwrap();
    let mut warnings = Vec::new();
    assert_eq!(load(folder.path(), &environment(), &[], &mut warnings), []);
    assert_eq!(warnings, [""; 0]);
}

#[test]
fn what_is_wrong_is_said_without_the_keys() {
    let brave = |more: Value| {
        let mut entry = json!({"provider": "brave", "key": "${BRAVE_KEY}"});
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"providers": [entry]})
    };
    let http = |more: Value| {
        let mut entry = json!({"provider": "http", "url": "https://a.example/", "parameters": {"q": "{query}"},
                               "response": {"results": "", "title": "/t", "url": "/u"}});
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"providers": [entry]})
    };
    assert_eq!(load_value(&http(json!({})), &[]).1, [""; 0]);
    let cases = [
        (json!({"providers": []}), "`providers` has 0 entries"),
        (json!({"providers": [1]}), "wrong type"),
        (json!({"provider": "brave"}), "unknown field `provider`"),
        (json!({"providers": [{"provider": "google", "key": "k"}]}), "`provider` must be"),
        (json!({"providers": [{"provider": "brave"}]}), "provider 1 (`brave`): `key` is missing"),
        (json!({"providers": [{"provider": "tavily"}]}), "`key` is missing"),
        (json!({"providers": [{"provider": "searxng"}]}), "`url` is missing"),
        (json!({"providers": [{"provider": "searxng", "url": "http://a/", "key": "k-secret"}]}), "`headers`"),
        (json!({"providers": [{"provider": "searxng", "url": "http://a/?q=1"}]}), "without a query"),
        (brave(json!({"key": "${NO_SUCH_KEY}"})), "no variable `NO_SUCH_KEY`"),
        (brave(json!({"key": "${EMPTY}"})), "`key` is empty"),
        (brave(json!({"key": "k-secret\n"})), "cannot be sent"),
        (brave(json!({"url": "ftp://a/"})), "http://"),
        (brave(json!({"url": "https://u:k-secret@a/"})), "user and password"),
        (brave(json!({"url": "https://a/#b"})), "fragment"),
        (brave(json!({"method": "GET"})), "`method`"),
        (brave(json!({"parameters": {"a": "${NO_SUCH}"}})), "the parameter `a`"),
        (http(json!({"parameters": {"q": "x"}})), "`{query}`"),
        (http(json!({"parameters": {"q": "{query} site:{site}"}})), "neither `{site}`"),
        (http(json!({"parameters": {"q": "{query}&age={freshness}", "s": "{site}"}})), "neither `{site}`"),
        (http(json!({"parameters": {"q": ["{query}"]}})), "with GET"),
        (brave(json!({"url": "https://search.example:25/"})), "the port 25"),
        (brave(json!({"url": format!("https://a.example/{}", "x".repeat(9_000))})), "too long"),
        (http(json!({"method": "DELETE"})), "GET or POST"),
        (http(json!({"response": null})), "`response` is missing"),
        (
            http(json!({"response": {"results": "hits", "title": "/t", "url": "/u"}})),
            "`hits` is not a JSON pointer",
        ),
        (http(json!({"response": {"results": "", "title": "/t"}})), "missing field `url`"),
    ];
    for (value, reason) in cases {
        let (providers, warnings) = load_value(&value, &[]);
        assert!(providers.is_empty());
        let [warning] = warnings.as_slice() else { panic!("{value}: {warnings:?}") };
        assert!(warning.starts_with("web-search.json: ") && warning.contains(reason), "{reason}: {warning}");
        assert!(warning.ends_with("there is no `web_search` until this is fixed"), "{warning}");
        assert!(!warning.contains("secret"), "{warning}");
    }
    let deep = (0..20).fold(json!("{query}"), |inner, _| json!([inner]));
    let (_, warnings) = load_value(&http(json!({"method": "POST", "parameters": {"q": deep}})), &[]);
    assert!(warnings[0].contains("nested too deeply"), "{warnings:?}");
}

#[test]
fn a_faulty_file_leaves_its_last_good_version_in_use() {
    let (good, _) = load_value(&json!({"providers": [{"provider": "searxng", "url": "http://a/"}]}), &[]);
    let (kept, warnings) = load_value(&json!({"providers": 1}), &good);
    assert_eq!(kept, good);
    assert!(warnings[0].ends_with("its last good version stays in use"), "{warnings:?}");
}
