//! Tests of the fleet through the HTTP API, with a backend that fails as scripted.

mod boots;
mod browsers;
mod data;
mod deletes;
mod drain;
mod endings;
mod explanations;
mod fairness;
mod faults;
mod fence;
mod histories;
mod keys;
mod linearize;
mod model;
mod moves;
mod operations;
mod own_addresses;
mod platform_keys;
mod registry_outage;
mod restarts;
mod rotation;
mod scheduled_wakes;
mod sharing;
mod supervision;
mod versions;
mod webhooks;
