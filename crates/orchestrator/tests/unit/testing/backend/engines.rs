//! The simulated engines of the fault backend: their health, their identity and their control interface.

use std::net::SocketAddr;

use api::engine::{EngineHealth, Subsystems};
use api::usage::Day;
use api::usage_days::MAX_DAYS_PER_REPORT;
use api::{EngineKey, KeyHash};
use backend::{HealthReport, KeyProof, Probe, ProbeError};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::{BackendCall, FaultBackend, SimulatedHealth, State};

impl FaultBackend {
    /// Executes `command` on the engine at `address`.
    fn handle_command(
        &self,
        address: SocketAddr,
        key: &EngineKey,
        command: &Value,
    ) -> Result<Value, ProbeError> {
        let mut state = self.state();
        let found = state.engine_at(address).map(|(engine_id, _)| engine_id);
        let State { running, busy, next_due, browser_access, usage, .. } = &mut *state;
        let Some((engine_id, (_, launch))) =
            found.and_then(|found| running.get_mut(&found).map(|run| (found, run)))
        else {
            return Err(unreachable(address));
        };
        if !launch.key_hash.matches(key.expose()) {
            return Err(ProbeError::KeyRefused { address });
        }
        match command["op"].as_str() {
            Some("set_key_hash") => {
                launch.key_hash = KeyHash::from_hex(command["key_hash"].as_str().unwrap()).unwrap();
                Ok(json!({}))
            }
            Some("set_browser_access") => {
                browser_access.insert(engine_id, command.clone());
                Ok(json!({}))
            }
            Some("get_log_filter" | "set_log_filter" | "reset_log_filter") => {
                let active = command["filter"].as_str().unwrap_or("info");
                let expires_at = command["filter"].as_str().map(|_| "2026-11-20T12:15:00.000Z");
                Ok(json!({"active": active, "configured": "info", "expires_at": expires_at}))
            }
            Some("waiting") => Ok(json!({"questions": []})),
            Some("usage_days") => {
                let from = command["from"].as_str().map_or(0, |day| day.parse::<Day>().unwrap().unix_days());
                let days = usage.get(&engine_id).into_iter().flatten();
                let days = days.filter(|used| used.day.unix_days() >= from).take(MAX_DAYS_PER_REPORT);
                Ok(json!({"days": days.collect::<Vec<_>>()}))
            }
            Some("quiesce") => Ok(json!({"quiesced": command["lift"] != true && !busy.contains(&engine_id)})),
            Some("next_due") => Ok(json!({"next_due_at": next_due.get(&engine_id)})),
            Some("activity") => Ok(json!({
                "running_turns": i32::from(busy.contains(&engine_id)), "pending_hitl": 0,
                "last_activity_at": null, "confinement": "none",
            })),
            other => panic!("engines do not know {other:?}"),
        }
    }

    /// Returns the health that the engine at `address` reports. A frozen engine never answers.
    fn simulated_health(&self, address: SocketAddr) -> BoxFuture<'_, Result<EngineHealth, ProbeError>> {
        let mut state = self.state();
        let engine_id = state.engine_at(address).map(|(engine_id, _)| engine_id);
        let is_running = engine_id.is_some();
        if let Some(engine_id) = engine_id {
            *state.probe_counts.entry(engine_id).or_default() += 1;
            if state.frozen.contains(&engine_id) {
                return Box::pin(std::future::pending());
            }
        }
        let subsystems = |database: &str, provider: &str| Subsystems {
            database: database.to_owned(),
            llm_provider: provider.to_owned(),
            asset_directory: "ok".to_owned(),
        };
        let health = |status: &str, subsystems| EngineHealth {
            status: status.to_owned(),
            uptime_seconds: 0.5,
            subsystems,
        };
        let answer = match &state.health {
            SimulatedHealth::WrongEngine => Ok(health("ok", subsystems("ok", "ok"))),
            SimulatedHealth::Healthy if is_running => Ok(health("ok", subsystems("ok", "ok"))),
            SimulatedHealth::Provider(reason) if is_running => {
                Ok(health("degraded", subsystems("ok", reason)))
            }
            SimulatedHealth::Database(reason) if is_running => {
                Ok(health("degraded", subsystems(reason, "ok")))
            }
            SimulatedHealth::Unreachable
            | SimulatedHealth::Healthy
            | SimulatedHealth::Provider(_)
            | SimulatedHealth::Database(_) => Err(unreachable(address)),
        };
        Box::pin(std::future::ready(answer))
    }
}

impl Probe for FaultBackend {
    fn check_health(
        &self,
        address: SocketAddr,
        hash: KeyHash,
    ) -> BoxFuture<'_, Result<HealthReport, ProbeError>> {
        Box::pin(async move {
            let health = self.simulated_health(address).await?;
            let state = self.state();
            let engine = state.engine_at(address);
            let proof = match engine {
                _ if state.health == SimulatedHealth::WrongEngine => KeyProof::Absent,
                Some((_, launch)) if state.proves_keys && launch.key_hash == hash => KeyProof::Valid,
                Some(_) if state.proves_keys => KeyProof::Invalid,
                Some(_) | None => KeyProof::Absent,
            };
            let used = engine.and_then(|(engine_id, _)| state.usage.get(&engine_id));
            let usage = used.map(|days| format!("{days:?}"));
            Ok(HealthReport { health, proof, waiting: None, usage })
        })
    }

    fn identify<'a>(
        &'a self,
        address: SocketAddr,
        key: &'a EngineKey,
    ) -> BoxFuture<'a, Result<(), ProbeError>> {
        let mut state = self.state();
        state.keys_sent += 1;
        let engine = state.engine_at(address);
        if engine.is_some_and(|(engine_id, _)| state.frozen.contains(&engine_id)) {
            return Box::pin(std::future::pending());
        }
        let answer = match state.health {
            SimulatedHealth::WrongEngine => {
                Err(ProbeError::WrongEngine { address, answer: "200".to_owned() })
            }
            SimulatedHealth::Unreachable => Err(unreachable(address)),
            SimulatedHealth::Healthy | SimulatedHealth::Provider(_) | SimulatedHealth::Database(_) => {
                match engine {
                    Some((_, launch)) if launch.key_hash.matches(key.expose()) => Ok(()),
                    Some(_) => Err(ProbeError::KeyRefused { address }),
                    None => Err(unreachable(address)),
                }
            }
        };
        Box::pin(std::future::ready(answer))
    }

    fn rpc<'a>(
        &'a self,
        address: SocketAddr,
        key: &'a EngineKey,
        command: &'a Value,
    ) -> BoxFuture<'a, Result<Value, ProbeError>> {
        Box::pin(async move {
            let is_frozen = {
                let state = self.state();
                state.engine_at(address).is_some_and(|(engine_id, _)| state.frozen.contains(&engine_id))
            };
            if is_frozen {
                std::future::pending::<()>().await;
            }
            self.respond(BackendCall::Rpc, |backend| Ok(backend.handle_command(address, key, command)))
                .await
                .map_err(|_| unreachable(address))?
        })
    }
}

/// The error of a probe where nothing listens.
fn unreachable(address: SocketAddr) -> ProbeError {
    ProbeError::Unreachable { address, reason: "connection refused".to_owned() }
}
