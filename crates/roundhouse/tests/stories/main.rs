//! End-to-end tests of the public contract: each test starts the real binary, in its own folder and on its own
//! ports, and talks to it over HTTP, signals and the terminal.
//!
//! There is one file per story. All of them are one test binary, so that the stories run in parallel; `support`
//! holds what they share.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests fail as tests do"
)]

mod a2a;
mod support;

mod acp;
mod acp_stdio;
mod agui;
mod approvals;
mod audio;
mod audit_cli;
mod background_turns;
mod bad_engine_setups;
mod bad_setups;
mod browser_pages;
mod browser_tokens;
mod browser_tokens_revoked;
mod busy_tasks;
mod busy_tasks_killed;
mod cancel;
mod cassettes;
mod cassettes_bad;
mod cassettes_cli;
mod catalog;
mod chat;
mod chat_people;
mod chat_programs;
mod chat_terminal;
mod chat_terminal_text;
mod chat_terminal_turns;
mod chat_terminal_window;
mod churn;
mod citations;
mod client_request_id;
mod configuration;
mod connection_cli;
mod continued_thread;
mod contract_engine;
mod contract_orchestrator;
mod contract_table;
mod conversations;
mod custom_script;
mod deploy;
mod docker_daemon;
mod docker_engine_killed;
mod docker_external_changes;
mod docker_full_disk;
mod docker_isolation;
mod docker_lifecycle;
mod docker_orchestrator_killed;
mod docker_ports;
mod docker_sandbox;
mod docker_up;
mod docker_upgrade;
mod docker_web;
mod doctor;
mod documents;
mod documents_hostile;
mod early_shutdown;
mod edit_retry;
mod engine_api;
mod engine_killed;
mod erasure;
mod events;
mod facts;
mod file_transfers;
mod files;
mod first_start;
mod fork;
mod gateway_config;
mod grant_binding;
mod grants;
mod hitl;
mod hitl_pending;
mod hooks;
mod hooks_killed;
mod idle_sleep;
mod inbox;
mod journal;
mod learning;
mod limits;
mod long_task;
mod mcp;
mod mcp_server;
mod media;
mod memory;
mod memory_bounds;
mod memory_transfer;
mod missing_data;
mod models;
mod noisy_tenant;
mod one_engine_per_user;
mod openai_api;
mod openai_clients;
mod operators;
mod operators_audit;
mod operators_drain;
mod orchestrator_auth;
mod orchestrator_input;
mod orchestrator_killed;
mod planning;
mod postgres;
mod postgres_outages;
mod power_loss;
mod provider_failures;
mod proxy;
mod rekey_cli;
mod repeated_kills;
mod replay;
mod rotate_key;
mod rpc;
mod sandbox;
mod schedules;
mod schedules_asleep;
mod schedules_clock;
mod schedules_killed;
mod schedules_requested;
mod schedules_tool;
mod search_rebuild;
mod secrets;
mod secrets_orchestrator;
mod sigterm;
mod skills;
mod standby;
mod steer;
mod structured_output;
mod supervision;
mod tasks;
mod tools;
mod turn_limits;
mod turn_options;
mod turn_reports;
mod unknown_usage;
mod unresponsive_dns;
mod upgrades;
mod usage;
mod usage_caps;
mod user_servers;
mod user_servers_hostile;
mod user_servers_killed;
mod web_search;
mod webhook;
mod webhook_killed;
mod working_memory;
