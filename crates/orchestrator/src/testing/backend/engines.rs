//! What the engines of the fault backend say, and do when they are told something.

use contract::engine::{EngineHealth, Subsystems};
use contract::{EngineKey, KeyHash};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::{Call, FaultBackend, Health, State};
use crate::backend::{Examined, Probe, Proof, Unwell};

impl FaultBackend {
    /// What the engine on `port` does when it is told something.
    fn obey(&self, port: u16, key: &EngineKey, command: &Value) -> Result<Value, Unwell> {
        let mut state = self.state();
        let State { running, busy, .. } = &mut *state;
        let found = running.iter_mut().find(|(_, (_, launch))| launch.port == port);
        let Some((engine_id, (_, launch))) = found else {
            return Err(Unwell::Silent { port, reason: "connection refused".to_owned() });
        };
        if !launch.key_hash.matches(key.expose()) {
            return Err(Unwell::Refused { port });
        }
        match command["op"].as_str() {
            Some("set_key_hash") => {
                launch.key_hash = KeyHash::from_hex(command["key_hash"].as_str().unwrap()).unwrap();
                Ok(json!({}))
            }
            Some("quiesce") => Ok(json!({"quiesced": command["lift"] != true && !busy.contains(engine_id)})),
            Some("activity") => Ok(json!({
                "running_turns": i32::from(busy.contains(engine_id)), "pending_hitl": 0,
                "last_activity_at": null, "confinement": "none",
            })),
            other => panic!("engines do not know {other:?}"),
        }
    }

    /// How the engine on `port` says it is.
    fn ask(&self, port: u16) -> BoxFuture<'_, Result<EngineHealth, Unwell>> {
        let mut state = self.state();
        let on_port = state.running.iter().find(|(_, (_, launch))| launch.port == port);
        let engine_id = on_port.map(|(engine_id, _)| *engine_id);
        let runs = engine_id.is_some();
        if let Some(engine_id) = engine_id {
            *state.asked.entry(engine_id).or_default() += 1;
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
            Health::Stranger => Ok(health("ok", subsystems("ok", "ok"))),
            Health::Well if runs => Ok(health("ok", subsystems("ok", "ok"))),
            Health::Provider(reason) if runs => Ok(health("degraded", subsystems("ok", reason))),
            Health::Database(reason) if runs => Ok(health("degraded", subsystems(reason, "ok"))),
            Health::Silent | Health::Well | Health::Provider(_) | Health::Database(_) => {
                Err(Unwell::Silent { port, reason: "connection refused".to_owned() })
            }
        };
        Box::pin(std::future::ready(answer))
    }
}

impl Probe for FaultBackend {
    fn examine(&self, port: u16, hash: KeyHash) -> BoxFuture<'_, Result<Examined, Unwell>> {
        Box::pin(async move {
            let health = self.ask(port).await?;
            let state = self.state();
            let engine = state.running.values().find(|(_, launch)| launch.port == port);
            let proof = match engine {
                _ if state.health == Health::Stranger => Proof::Absent,
                Some((_, launch)) if state.proving && launch.key_hash == hash => Proof::Given,
                Some(_) if state.proving => Proof::Wrong,
                Some(_) | None => Proof::Absent,
            };
            Ok(Examined { health, proof })
        })
    }

    fn identify<'a>(&'a self, port: u16, key: &'a EngineKey) -> BoxFuture<'a, Result<(), Unwell>> {
        let mut state = self.state();
        state.keys_sent += 1;
        let mut launches = state.running.values().map(|(_, launch)| launch);
        let own = launches.any(|launch| launch.port == port && launch.key_hash.matches(key.expose()));
        if state.running.iter().any(|(id, (_, launch))| launch.port == port && state.frozen.contains(id)) {
            return Box::pin(std::future::pending());
        }
        let answer = match state.health {
            Health::Stranger => Err(Unwell::Stranger { port, answer: "200".to_owned() }),
            Health::Silent => Err(Unwell::Silent { port, reason: "connection refused".to_owned() }),
            Health::Well | Health::Provider(_) | Health::Database(_) if own => Ok(()),
            Health::Well | Health::Provider(_) | Health::Database(_) => {
                let runs = state.running.values().any(|(_, launch)| launch.port == port);
                let silent = Unwell::Silent { port, reason: "connection refused".to_owned() };
                Err(if runs { Unwell::Refused { port } } else { silent })
            }
        };
        Box::pin(std::future::ready(answer))
    }

    fn rpc<'a>(
        &'a self,
        port: u16,
        key: &'a EngineKey,
        command: &'a Value,
    ) -> BoxFuture<'a, Result<Value, Unwell>> {
        Box::pin(async move {
            let silent = || Unwell::Silent { port, reason: "connection refused".to_owned() };
            let frozen = {
                let state = self.state();
                state.running.iter().any(|(id, (_, launch))| launch.port == port && state.frozen.contains(id))
            };
            if frozen {
                std::future::pending::<()>().await;
            }
            self.answer(Call::Rpc, |backend| Ok(backend.obey(port, key, command)))
                .await
                .map_err(|_| silent())?
        })
    }
}
