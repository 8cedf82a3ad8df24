//! The wall clock of a fleet: that of the machine, or one that the run sets, also to the changes of summer time.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};
use api::Timestamp;
use clap::ValueEnum;
use testkit::wall_clock::WallClock;

use super::deployment::Deployment;

/// Where the orchestrator mounts the catalog in containers.
const CATALOG_IN_CONTAINERS: &str = "/catalog";

/// What the clock does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClockPlan {
    /// It is the machine's.
    Steady,
    /// It is set back and forward at random.
    Jumps,
    /// The same, around the night in which clocks are set forward.
    Spring,
    /// The same, around the night in which clocks are set back.
    Autumn,
}

/// A night in which the local time changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Season {
    /// When the schedule is due.
    due_at_ms: i64,
    /// Its cron expression and time zone.
    pub(crate) cron: &'static str,
    pub(crate) time_zone: &'static str,
}

impl ClockPlan {
    pub(crate) const fn season(self) -> Option<Season> {
        let due_at_ms = match self {
            Self::Steady | Self::Jumps => return None,
            // 2027-03-28 01:00 UTC: 02:30 does not exist, so it is due at 03:00.
            Self::Spring => 1_806_195_600_000,
            // 2026-10-25 00:30 UTC: the first of two times 02:30.
            Self::Autumn => 1_792_888_200_000,
        };
        Some(Season { due_at_ms, cron: "30 2 * * *", time_zone: "Europe/Berlin" })
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct FleetClock {
    plan: ClockPlan,
    clock: Option<WallClock>,
    folder: PathBuf,
}

impl FleetClock {
    /// The clock of a deployment in `folder`. It is beside the catalog, which containers have too.
    pub(crate) fn new(plan: ClockPlan, folder: &Path) -> anyhow::Result<Self> {
        let clock = (plan != ClockPlan::Steady).then(|| WallClock::new(&folder.join("catalog")));
        let folder = folder.join("clock");
        fs::create_dir(&folder)?;
        Ok(Self { plan, clock, folder })
    }

    /// A program that becomes `binary` with this clock, which all its children have too: in an `/etc` of its own, it
    /// names the library that each program loads. None if the clock is the machine's.
    pub(crate) fn program(&self, binary: &Path) -> anyhow::Result<Option<PathBuf>> {
        let Some(clock) = &self.clock else { return Ok(None) };
        let (etc, program) = (self.folder.join("etc"), self.folder.join("roundhouse"));
        let copied = Command::new("cp").args(["-a", "/etc"]).arg(&etc).status()?;
        ensure!(copied.success(), "/etc cannot be copied");
        fs::write(etc.join("ld.so.preload"), format!("{}\n", clock.library()))?;
        let binary = fs::canonicalize(binary).context("the binary is missing")?;
        let (etc, binary) = (etc.display(), binary.display());
        let script = format!(
            "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind \"{etc}\" /etc && exec \"{binary}\" \"$@\"' sh \"$@\"\n"
        );
        fs::write(&program, script)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(Some(program))
    }

    /// Gives the engines of a deployment this clock too, where they are no children of the orchestrator.
    pub(crate) fn set_in_engines(&self, deployment: &Deployment) -> anyhow::Result<()> {
        match (&self.clock, deployment.containers()) {
            (Some(clock), Some(containers)) => {
                let library = clock.library_for_folder_at(Path::new(CATALOG_IN_CONTAINERS));
                containers.resources.preload(&library)
            }
            _ => Ok(()),
        }
    }

    /// Whether the run sets it.
    pub(crate) const fn is_set(&self) -> bool {
        self.clock.is_some()
    }

    /// Sets it so that the due time of the season comes after `setup`.
    pub(crate) fn begin(&self, setup: Duration) {
        if let (Some(clock), Some(season)) = (&self.clock, self.plan.season()) {
            let setup = i64::try_from(setup.as_millis()).unwrap_or(0);
            clock.set(Timestamp::from_unix_ms(season.due_at_ms - setup - 1_000));
        }
    }

    /// What it says.
    pub(crate) fn now_ms(&self) -> i64 {
        match &self.clock {
            Some(clock) => clock.now().unix_ms(),
            None => SystemTime::UNIX_EPOCH
                .elapsed()
                .map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(i64::MAX)),
        }
    }

    /// Moves it forward, or back.
    pub(crate) fn advance_ms(&self, ms: i64) {
        if let Some(clock) = &self.clock {
            clock.advance_ms(ms);
        }
    }

    /// Moves it behind a time.
    pub(crate) fn pass(&self, at: Timestamp) {
        if let Some(clock) = self.clock.as_ref().filter(|clock| clock.now() < at) {
            clock.set(at);
        }
    }
}
