//! The working memory of a task: what its writes amount to, and how large it may become. Pure.

use store::steps::MemoryWrite;

/// The most bytes of a task's working memory, keys and values.
pub(super) const MAX_WORKING_MEMORY_BYTES: usize = 32 * 1024;

/// The current values of working memory: the newest write of each key.
pub(super) fn current_values<'a>(writes: impl Iterator<Item = &'a MemoryWrite>) -> Vec<&'a MemoryWrite> {
    let mut newest: Vec<&MemoryWrite> = Vec::new();
    for write in writes {
        newest.retain(|older| older.key != write.key);
        newest.push(write);
    }
    newest
}

/// The size of working memory after these writes: the current keys and values.
pub(super) fn size_bytes<'a>(writes: impl Iterator<Item = &'a MemoryWrite>) -> usize {
    let bytes = |write: &MemoryWrite| match &write.value {
        // A null value deletes the key.
        serde_json::Value::Null => 0,
        value => write.key.len() + value.to_string().len(),
    };
    current_values(writes).into_iter().map(bytes).sum()
}
