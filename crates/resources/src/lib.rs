//! Resources that the turns of an engine share, each bounded so that one turn or one kind of work cannot
//! starve the others: threads for blocking work, name resolution, memory for large objects, files that are
//! safe to open, and folders that are removed whatever is in them. Texts are bounded here too, and locks are
//! kept by key.

pub mod dns;
pub mod files;
pub mod keyed_locks;
pub mod memory_budget;
pub mod removal;
pub mod text;
pub mod threads;
