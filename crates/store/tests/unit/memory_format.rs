//! Whose results are trusted: a list of every built-in tool, so that each is decided on purpose.

use std::collections::BTreeSet;

use api::tool_names::{
    BUILT_IN, EDIT_FILE, LIST_FILES, READ_FILE, RUN_AGENT, RUN_SKILL_SCRIPT, SCHEDULE_LIST, SHELL, TOOL_CALL,
    TOOL_SEARCH, WEB_FETCH, WEB_SEARCH, WRITE_FILE,
};

use super::*;

#[test]
fn each_built_in_tool_is_trusted_or_not_on_purpose() {
    // Each entry is a decision about security; see the rule at `TRUSTED_TOOLS`.
    let trusted = [
        ASK_USER,
        LOAD_SKILL,
        MEMORY_FORGET,
        MEMORY_SAVE,
        MEMORY_SEARCH,
        SCHEDULE_CREATE,
        SCHEDULE_DELETE,
        WORKING_MEMORY_SET,
    ];
    let untrusted = [
        // Text of files.
        READ_FILE,
        LIST_FILES,
        WRITE_FILE,
        EDIT_FILE,
        // Text of programs.
        RUN_SKILL_SCRIPT,
        SHELL,
        // Text of the network and of tool servers.
        WEB_FETCH,
        WEB_SEARCH,
        TOOL_SEARCH,
        TOOL_CALL,
        // Messages that anybody may have set.
        SCHEDULE_LIST,
        // Text of a sub-agent, which may have read any of these.
        RUN_AGENT,
    ];
    for tool in trusted {
        assert!(!is_untrusted_tool(tool), "{tool}");
    }
    for tool in untrusted {
        assert!(is_untrusted_tool(tool), "{tool}");
    }
    let decided: BTreeSet<&str> = trusted.into_iter().chain(untrusted).collect();
    assert_eq!(decided, BTreeSet::from(BUILT_IN), "each name is in exactly one of the two lists");
    assert_eq!(decided.len(), trusted.len() + untrusted.len());
}

#[test]
fn a_tool_of_a_server_or_the_catalog_is_not_trusted() {
    for tool in ["weather", "mail__memory_search", "Ask_User", "ask_user ", ""] {
        assert!(is_untrusted_tool(tool), "{tool:?}");
    }
}
