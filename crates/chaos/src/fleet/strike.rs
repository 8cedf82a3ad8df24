//! How the orchestrator is killed, and what else befalls the deployment meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::aim::{Moment, Plan};
use super::cluster::Trouble;
use super::load::{Load, client};
use super::registry::Sight;
use super::round::Rounds;
use super::running::Blow;
use super::stage;
use crate::dice::Dice;

/// How long a call is waited for, with processes.
const AIM: Duration = Duration::from_millis(150);
/// How long a change of the orchestrator's own is waited for beyond that.
const OWN: Duration = Duration::from_millis(1_350);
/// How often trouble befalls a database that it can befall.
const TROUBLE: f64 = 0.15;

impl Rounds {
    /// Lets the clients ask, and kills the orchestrator as planned.
    pub(super) async fn strike(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let over = Arc::new(AtomicBool::new(false));
        let spare_sleepy = plan.kind() == Some("sleep") || self.dice.chance(0.2);
        let load = Load { prefer: plan.kind(), spare_sleepy, over: Arc::clone(&over) };
        if let Some(kind) = plan.kind()
            && self.dice.chance(0.8)
        {
            stage::set(&self.world, kind, &mut self.dice).await;
        }
        if plan.kind() == Some("wake") {
            self.until(Sight::Rest("sleeping"), self.own()).await?;
        }
        let clients = if plan.kind() == Some("restart") { 0 } else { self.clients };
        let mut asking = JoinSet::new();
        for number in 0..clients {
            let dice = Dice::new(self.world.seed, (self.round, number));
            asking.spawn(client(Arc::clone(&self.world), load.clone(), number, dice));
        }
        // There must be something to lose.
        if self.dice.chance(0.6) {
            let wait = self.dice.millis(0..=150);
            tokio::time::sleep(wait).await;
        }
        if self.dice.chance(0.1) {
            let blow = if self.dice.chance(0.5) { Blow::Kill } else { Blow::Remove };
            self.disturb(blow, 1)?;
        } else if self.world.extent.supervised && !self.sabotaged && self.dice.chance(0.01) {
            self.disturb(Blow::Hang, 1)?;
        }
        let troubled = self.deployment.cluster().is_some() && self.dice.chance(TROUBLE);
        if !(troubled && self.trouble().await?) {
            self.aimed(plan).await?;
        }
        self.world.trap.fire(Signal::KILL);
        over.store(true, Ordering::Relaxed);
        while let Some(client) = asking.join_next().await {
            client.context("a client panicked")?;
        }
        Ok(())
    }

    /// Kills the orchestrator as planned.
    async fn aimed(&mut self, plan: &Plan) -> anyhow::Result<()> {
        match plan.moment {
            Moment::Claimed("restart") => {}
            Moment::Claimed(kind) => {
                let limit = if kind == "sleep" { self.own() } else { self.aim() };
                self.when(Sight::Claim(kind), limit, plan.delay).await?;
            }
            Moment::Sent(op) => {
                self.world.trap.arm(op, None);
                let _ = tokio::time::timeout(self.aim(), self.world.trap.sprung()).await;
                self.fire_after(plan.delay).await?;
            }
            Moment::Begun => self.fire_after(plan.delay).await?,
        }
        Ok(())
    }

    /// How long a call is waited for before the orchestrator is killed anyhow.
    fn aim(&self) -> Duration {
        AIM * self.pace
    }

    /// How long a change of the orchestrator's own is waited for.
    pub(super) fn own(&self) -> Duration {
        OWN + self.aim()
    }

    /// Kills the orchestrator `delay` after the registry shows `sight`, or once `limit` is over.
    pub(super) async fn when(&self, sight: Sight, limit: Duration, delay: Duration) -> anyhow::Result<()> {
        let (registry, world) = (self.deployment.registry().clone(), Arc::clone(&self.world));
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || {
            // A registry that cannot be read now is looked at after the kill.
            let _ = runtime.block_on(registry.watch(sight, limit));
            std::thread::park_timeout(delay);
            world.trap.fire(Signal::KILL);
        })
        .await?;
        Ok(())
    }

    /// Waits until the registry shows `sight`, at most for `limit`.
    async fn until(&self, sight: Sight, limit: Duration) -> anyhow::Result<()> {
        let (registry, runtime) = (self.deployment.registry().clone(), Handle::current());
        tokio::task::spawn_blocking(move || runtime.block_on(registry.watch(sight, limit))).await??;
        Ok(())
    }

    /// Lets trouble befall the database, for a while. Gives whether the orchestrator was killed in it.
    async fn trouble(&mut self) -> anyhow::Result<bool> {
        let Some(trouble) = self.dice.pick(&Trouble::ALL).copied() else { return Ok(false) };
        self.world.troubled.store(true, Ordering::Relaxed);
        self.world.tally.count(trouble.name());
        self.story = format!("{}; {}", self.story, trouble.name());
        let deployment = Arc::clone(&self.deployment);
        let begun = tokio::task::spawn_blocking(move || match deployment.cluster() {
            Some(cluster) => cluster.begin(trouble),
            None => Ok(()),
        });
        let lasts = self.dice.millis(0..=600);
        tokio::time::sleep(lasts).await;
        let killed = self.dice.chance(0.4) && self.world.trap.fire(Signal::KILL);
        begun.await??;
        if let Some(cluster) = self.deployment.cluster() {
            cluster.end_trouble();
        }
        Ok(killed)
    }

    /// Kills the orchestrator after `delay`, more exactly than the runtime's clock would.
    async fn fire_after(&self, delay: Duration) -> anyhow::Result<()> {
        let world = Arc::clone(&self.world);
        tokio::task::spawn_blocking(move || {
            std::thread::park_timeout(delay);
            world.trap.fire(Signal::KILL);
        })
        .await?;
        Ok(())
    }

    /// Strikes some engines behind the orchestrator's back.
    pub(super) fn disturb(&mut self, blow: Blow, most: u64) -> anyhow::Result<()> {
        let engines = self.deployment.engines()?;
        for _ in 0..self.dice.between(1..=most) {
            if let Some(engine) = self.dice.pick(&engines) {
                self.world.disturbed.store(true, Ordering::Relaxed);
                self.deployment.strike(engine, blow)?;
                self.world.tally.count(blow.name());
                self.story = format!("{}; {}: {}", self.story, blow.name(), engine.engine_id);
            }
        }
        Ok(())
    }
}
