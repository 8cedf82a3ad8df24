//! Failures that users of comparable systems suffered from, each as a test that keeps it from occurring here.
//! `docs/regressions.md` pairs each with the mutation that makes it fail.

mod approvals;
mod broken_streams;
mod cancelling;
mod child_processes;
mod compaction;
mod emptied_log;
mod events;
mod histories;
mod loops;
mod memory_growth;
mod memory_poisoning;
mod oauth;
mod poison_turn;
pub(crate) mod prompt_caches;
mod schemas;
mod servers;
mod signatures;
mod store_growth;
mod tools;
