//! Tests with real containers of a real Docker daemon. The engine is a small server that runs the commands
//! that a test sends, so that the test can inspect the container from inside. Without a daemon, or without
//! the base image of the engine's image, these tests are skipped.

mod exits;
mod folders;
mod isolation;
mod lifecycle;
mod networks;
mod spec;
mod support;
mod unresponsive;
mod upgrades;
