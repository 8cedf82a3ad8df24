//! What users of comparable systems suffered from, each as a test that would fail if they suffered from it here.
//! `docs/lessons.md` pairs each with the saboteur that turns it red.

mod approvals;
mod broken_streams;
pub(crate) mod caches;
mod cancelling;
mod children;
mod compaction;
mod events;
mod histories;
mod loops;
mod memory;
mod oauth;
mod poison;
mod poisoning;
mod schemas;
mod servers;
mod signatures;
mod stores;
mod tools;
