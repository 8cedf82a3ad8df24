//! Real containers of a real daemon: a small server in the engine's place that runs what it is sent, so that a test
//! can look around from inside. Where there is no daemon, or no image to make the engine's from, they are skipped.

mod exits;
mod folders;
mod isolation;
mod lifecycle;
mod networks;
mod spec;
mod support;
mod unresponsive;
mod upgrades;
