//! What users of comparable systems suffered from, each as a test that would fail if they suffered from it here.
//! `docs/lessons.md` pairs each with the saboteur that turns it red.

mod approvals;
mod broken_streams;
mod cancelling;
mod child_processes;
mod compaction;
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
