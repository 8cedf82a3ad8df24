//! One run: an engine, a provider, the load, the kills, and the judgement.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::Signal;
use strict_provider::StrictProvider;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::Api;
use crate::client::uncut;
use crate::dice::Dice;
use crate::driver::{Retired, digest, drive};
use crate::files::Watcher;
use crate::journal::{Stalls, is_whole};
use crate::killer::{Killer, STANDING};
use crate::mix::Mix;
use crate::ports::Ports;
use crate::program::{Program, Service, Setup};
use crate::script::Script;
use crate::tally::Tally;
use crate::trap::Trap;
use crate::wire::Wire;
use crate::world::World;

/// How long turns may take to end once the engine is left alone.
const SETTLE: Duration = Duration::from_mins(1);
/// Each provider request is kept for its rules alone: none is read later.
const FORGET: Duration = Duration::from_secs(1);

/// A run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The `roundhouse` binary.
    pub binary: PathBuf,
    /// Where all choices come from.
    pub seed: u64,
    /// The wire.
    pub wire: Wire,
    /// How many SIGKILLs, and more until one was in an open turn.
    pub kills: u64,
    /// When to stop killing.
    pub limit: Duration,
    /// What the load is made of.
    pub mix: Mix,
    /// How many tasks run side by side.
    pub tasks: u64,
    /// The most turns of a task before it is judged and another one begins.
    pub turns_per_task: u64,
    /// What breaks a guarantee in the engine: then the first violation ends the run.
    pub saboteur: Option<String>,
}

impl Campaign {
    /// Runs it. What is wrong with the engine is in the tally; an error is the harness's own.
    pub async fn run(&self) -> anyhow::Result<Arc<Tally>> {
        let folder = tempfile::Builder::new().prefix("roundhouse-chaos-").tempdir()?;
        let api = Api::new()?;
        let (tally, trap) = (Arc::new(Tally::default()), Arc::new(Trap::default()));
        let script = Arc::new(Script::new(self.seed, self.mix, Arc::clone(&tally), Arc::clone(&trap)));
        // Refusals are violations in the tally; a panic would hide them.
        let provider = StrictProvider::builder().bind_thinking(true).guard_protocol(false).start().await?;
        let respond = Arc::clone(&script);
        provider.set_responder(move |request| respond.reply(request));
        let setup = self.setup(folder.path().to_owned(), &api, &provider)?;
        let watcher = Watcher::start(&setup.workspace(), Arc::clone(&trap))?;
        let (place, places) = watch::channel(None);
        let (settle, settling) = watch::channel(false);
        let world = Arc::new(World {
            seed: self.seed,
            mix: self.mix,
            api,
            tally: Arc::clone(&tally),
            trap,
            stalls: Stalls::default(),
            script,
            workspace: setup.workspace(),
            place: places,
            settling,
            deadline: Instant::now() + self.limit + SETTLE,
        });
        // What never happens shows as 0 in the table.
        for step in self.mix.steps() {
            tally.add(format!("{STANDING}{step}"), 0);
        }
        tally.add(self.wire.kills_in_open_turns(), 0);
        let tasks = Arc::new(Mutex::new(Vec::new()));
        let mut killer = Killer {
            world: Arc::clone(&world),
            setup: setup.clone(),
            ports: Ports::claim()?,
            place,
            tasks: Arc::clone(&tasks),
            port: 0,
            engines: 0,
            wire: self.wire,
            dice: Dice::new(self.seed, "killer"),
        };
        let forgetting = async {
            loop {
                tokio::time::sleep(FORGET).await;
                provider.clear_requests();
            }
        };
        let running = async {
            let engine = killer.start().await?;
            let mut drivers = JoinSet::new();
            for number in 0..self.tasks {
                drivers.spawn(drive(
                    Arc::clone(&world),
                    Arc::clone(&tasks),
                    format!("t{number}"),
                    self.turns_per_task,
                ));
            }
            let end = Instant::now() + self.limit;
            let until =
                || Instant::now() > end || (self.saboteur.is_some() && tally.kills_until_first().is_some());
            let engine = killer.run(engine, self.kills, until).await?;
            settle.send_replace(true);
            let retired = self.settle(&world, drivers).await?;
            finish(&world, &setup, engine, &retired).await
        };
        tokio::select! {
            outcome = running => outcome?,
            () = forgetting => {}
        }
        drop(watcher);
        for refusal in provider.take_refusals() {
            tally.violation(format!("the provider refused a request: {} {}", refusal.status, refusal.reason));
        }
        Ok(tally)
    }

    fn setup(&self, folder: PathBuf, api: &Api, provider: &StrictProvider) -> anyhow::Result<Setup> {
        let catalog = folder.join("catalog");
        std::fs::create_dir(&catalog)?;
        if let Some(gateway) = self.wire.gateway() {
            std::fs::write(catalog.join("gateway.json"), gateway.to_string())?;
        }
        let text = |path: &std::path::Path| {
            path.to_str().map(str::to_owned).context("a temporary folder that is no text")
        };
        let mut variables: BTreeMap<String, String> = [
            ("ENGINE_KEY_HASH", api.key_hash()),
            ("SQLITE_DB_PATH", text(&folder.join("brain.sqlite"))?),
            ("CATALOG_DIR", text(&catalog)?),
            ("ENGINE_HOST", "127.0.0.1".to_owned()),
            ("ENGINE_LOG_LEVEL", "warn".to_owned()),
        ]
        .into_iter()
        .chain(self.wire.variables(provider))
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
        if let Some(saboteur) = &self.saboteur {
            variables.insert("ROUNDHOUSE_SABOTEUR".to_owned(), saboteur.clone());
        }
        let setup = Setup { binary: self.binary.clone(), service: Service::Engine, folder, variables };
        std::fs::create_dir(setup.workspace())?;
        std::fs::write(setup.workspace().join("note.txt"), "A note.\n")?;
        Ok(setup)
    }

    /// Waits until every driver has seen its last turn end.
    async fn settle(
        &self,
        world: &World,
        mut drivers: JoinSet<anyhow::Result<Vec<Retired>>>,
    ) -> anyhow::Result<Vec<Retired>> {
        let mut retired = Vec::new();
        let all = async {
            while let Some(driver) = drivers.join_next().await {
                retired.extend(driver.context("a driver panicked")??);
            }
            anyhow::Ok(())
        };
        // A saboteur may have left what never ends, and has been caught.
        let patience = if self.saboteur.is_some() { Duration::from_secs(3) } else { SETTLE };
        match tokio::time::timeout(patience, all).await {
            Ok(outcome) => outcome?,
            Err(_) => {
                world.tally.violation(format!("turns did not end within {patience:?} after the last kill"));
            }
        }
        Ok(retired)
    }
}

/// Looks at everything once more, and lets the engine end in peace.
async fn finish(
    world: &World,
    setup: &Setup,
    mut engine: Program,
    retired: &[Retired],
) -> anyhow::Result<()> {
    for Retired { task, digest: before } in retired {
        match uncut(world, task).await {
            Some(events) if digest(&events) == *before => {}
            Some(_) => world.tally.violation(format!("{}: its events changed after its end", task.name)),
            None if world.is_over() => break,
            None => world.tally.violation(format!("{}: its events are gone", task.name)),
        }
    }
    world.trap.fire(Signal::TERM);
    let status = engine.ended().await?;
    if !status.success() {
        world.tally.violation(format!("after SIGTERM the engine ended with {status}"));
    }
    if !is_whole(&setup.brain())? {
        world.tally.violation("the brain is damaged");
    }
    let log = std::fs::read_to_string(setup.log()).unwrap_or_default();
    for line in log.lines().filter(|line| line.contains("panicked")) {
        world.tally.violation(format!("the engine's log says: {line}"));
    }
    for line in log.lines().filter(|line| line.contains("ERROR")) {
        world.tally.count(format!(
            "engine's errors: {}",
            line.split_whitespace().skip(2).take(10).collect::<Vec<_>>().join(" ")
        ));
    }
    Ok(())
}
