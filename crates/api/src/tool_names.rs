//! The names of tools, as events, permissions and grants carry them.

/// The maximum length of a tool's name that every model provider accepts, in bytes.
pub const MAX_BYTES: usize = 64;

/// Stores a value in the task's working memory.
pub const WORKING_MEMORY_SET: &str = "working_memory_set";
/// Searches the user's memory.
pub const MEMORY_SEARCH: &str = "memory_search";
/// Saves knowledge for later tasks.
pub const MEMORY_SAVE: &str = "memory_save";
/// Erases knowledge at the user's wish.
pub const MEMORY_FORGET: &str = "memory_forget";
/// Schedules a message of the agent to itself.
pub const SCHEDULE_CREATE: &str = "schedule_create";
/// Lists the schedules.
pub const SCHEDULE_LIST: &str = "schedule_list";
/// Deletes a schedule.
pub const SCHEDULE_DELETE: &str = "schedule_delete";
/// Asks the user a question.
pub const ASK_USER: &str = "ask_user";
/// Loads the instructions of a skill.
pub const LOAD_SKILL: &str = "load_skill";
/// Runs a script of a skill.
pub const RUN_SKILL_SCRIPT: &str = "run_skill_script";
/// Reads a file of the workspace.
pub const READ_FILE: &str = "read_file";
/// Writes a file of the workspace.
pub const WRITE_FILE: &str = "write_file";
/// Replaces a part of a file of the workspace.
pub const EDIT_FILE: &str = "edit_file";
/// Lists a folder of the workspace.
pub const LIST_FILES: &str = "list_files";
/// Runs a command.
pub const SHELL: &str = "shell";
/// Fetches a web page.
pub const WEB_FETCH: &str = "web_fetch";
/// Searches the web.
pub const WEB_SEARCH: &str = "web_search";
/// Delegates work to a sub-agent.
pub const RUN_AGENT: &str = "run_agent";
/// Searches the tools of MCP servers that are not declared to the model.
pub const TOOL_SEARCH: &str = "tool_search";
/// Calls a tool that was found by [`TOOL_SEARCH`].
pub const TOOL_CALL: &str = "tool_call";

/// The names of all built-in tools, available or not; no other tool may have one of them.
pub const BUILT_IN: [&str; 20] = [
    WORKING_MEMORY_SET,
    MEMORY_SEARCH,
    MEMORY_SAVE,
    MEMORY_FORGET,
    SCHEDULE_CREATE,
    SCHEDULE_LIST,
    SCHEDULE_DELETE,
    ASK_USER,
    LOAD_SKILL,
    RUN_SKILL_SCRIPT,
    READ_FILE,
    WRITE_FILE,
    EDIT_FILE,
    LIST_FILES,
    SHELL,
    WEB_FETCH,
    WEB_SEARCH,
    RUN_AGENT,
    TOOL_SEARCH,
    TOOL_CALL,
];

/// Whether every model provider accepts this name for a tool: `[A-Za-z0-9_-]{1,64}`.
pub fn is_valid(name: &str) -> bool {
    (1..=MAX_BYTES).contains(&name.len()) && name.chars().all(is_valid_char)
}

/// Whether a tool's name may contain this character.
pub fn is_valid_char(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_' || character == '-'
}
