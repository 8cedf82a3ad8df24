//! Real containers of a real daemon: a small server in the engine's place that runs what it is sent, so that a test
//! can look around from inside. Where there is no daemon, or no image to make the engine's from, they are skipped.

mod exits;
mod folders;
mod inside;
mod life;
mod networks;
mod silence;
mod spec;
mod support;
mod upgrades;
