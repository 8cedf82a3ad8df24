//! The rules through the front door, over a backend that fails as scripted.

mod boots;
mod deletes;
mod faults;
mod flights;
mod restarts;
mod sharing;
mod storm;
