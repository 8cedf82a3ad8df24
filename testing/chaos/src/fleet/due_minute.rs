//! The minute in which the schedules of many sleeping users are due, while the orchestrator and the engines that it
//! wakes are killed. Afterwards each due time has begun exactly one turn, or is listed as missed where the schedule
//! says so.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use api::Timestamp;
use reqwest::{Client, Method};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::deployment::Deployment;
use super::due_clock::{ClockPlan, FleetClock};
use super::due_verdict::{DueTime, Found, judge};
use super::engine_host::{Backend, EngineFault, EngineInstance};
use super::registry::{AuditCursor, EngineRow};
use super::tenant_users::text_field;
use super::{Database, FleetCampaign, register_product};
use crate::client::{CallOutcome, send};
use crate::counters::{Counters, KILLS};
use crate::rng::SeededRng;
use crate::service_process::ServiceProcess;

/// How many users are set up, and checked, at once.
const CONCURRENT_USERS: usize = 4;
/// How long the setup of a user takes at most, on a busy machine.
const SETUP_TIME: Duration = Duration::from_millis(900);
/// How much earlier than the due time the last engine is to be asleep.
const QUIET_TIME: Duration = Duration::from_secs(20);
/// How long before the due time the kills begin: when the first engines are woken.
const KILLS_BEGIN: Duration = Duration::from_secs(6);
/// How long a user's engine may take to be there, and its run to end, at the end.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(2);
/// How long it may take until all are at rest: wakes that failed are tried again some seconds, then minutes later.
const REST_TIMEOUT: Duration = Duration::from_mins(15);
const HOUR_MS: i64 = 60 * 60 * 1_000;
/// How often one engine is killed at most: as documented, a turn ends if eight starts in a row resume it without progress,
/// and some starts fail without a kill.
const MAX_KILLS_OF_ENGINE: u32 = 4;
/// The part of the kills that are the orchestrator's at most, in percent.
const ORCHESTRATOR_SHARE: u64 = 30;
/// How many kills come with a change of the clock, and by how many seconds it is set.
const CLOCK_SHARE: f64 = 0.15;
const CLOCK_CHANGES_S: [i64; 6] = [-400, -60, -5, 5, 60, 400];
/// From how many users on some have a cron expression; fewer do not wait for a whole minute.
const CRON_USERS: usize = 40;
/// The pauses between kills, in milliseconds.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 10..=500;
/// The task of all runs.
const TASK: &str = "report";
/// What the model says: long enough that kills come in the middle of it.
const SCRIPT: &str = "rules:\n  - answers:\n      - text: \"All of it is in order, as it was the day before.\"\n        delay_ms: 30\n";

/// Counts of what the run must have seen.
const ASLEEP: &str = "engines asleep before the due time";
const ORCHESTRATOR_KILLS: &str = "kills of the orchestrator";
const CLOCK_CHANGES: &str = "changes of the clock";
const KILLS_IN_RUN: &str = "kills of an engine with a scheduled run";
const SCHEDULED_WAKES: &str = "wakes: schedule";

/// A run.
#[derive(Clone, Debug)]
pub struct DueMinute {
    /// The `roundhouse` binary.
    pub binary: PathBuf,
    /// What runs the engines.
    pub backend: Backend,
    /// Where the registry is.
    pub database: Database,
    /// Where all choices come from.
    pub seed: u64,
    /// How many users have a schedule.
    pub users: usize,
    /// How many kills, as long as something is not yet decided.
    pub kills: u64,
    /// What the wall clock of the fleet does.
    pub clock: ClockPlan,
}

/// What runs, while its orchestrator comes and goes.
#[derive(Debug)]
struct Fleet {
    deployment: Deployment,
    http: Client,
    key: String,
    product_id: String,
    counters: Arc<Counters>,
    clock: FleetClock,
}

impl DueMinute {
    /// Runs it. Broken promises are counted as violations; an error is the harness's own.
    pub async fn run(&self) -> anyhow::Result<Arc<Counters>> {
        let folder = tempfile::Builder::new().prefix("roundhouse-chaos-due-").tempdir()?;
        let counters = Arc::new(Counters::default());
        let campaign = FleetCampaign {
            binary: self.binary.clone(),
            backend: self.backend,
            database: self.database,
            seed: self.seed,
            rounds: 0,
            time_limit: Duration::ZERO,
            mutant: None,
            cluster_faults: false,
            keep_folder: false,
        };
        let mut deployment = Deployment::new(&campaign, folder.path()).await?;
        if self.backend == Backend::Process {
            let script = folder.path().join("script.yaml");
            std::fs::write(&script, SCRIPT)?;
            deployment.set_env("LLM_SCRIPT_PATH", script.display().to_string());
            deployment
                .set_env("ORCH_ENGINE_ENV_PASSTHROUGH", "LLM_PROVIDER,LLM_SCRIPT_PATH,ENGINE_LOG_LEVEL");
        }
        let clock = FleetClock::new(self.clock, folder.path())?;
        if let Some(program) = clock.program(&self.binary)? {
            deployment.set_binary(program);
        }
        clock.set_in_engines(&deployment)?;
        let http = deployment.http_client()?;
        let orchestrator = deployment.start_ready(false, &http).await?;
        deployment.set_id(deployment.registry().deployment_id().await?);
        let registered = register_product(&deployment, &http, "due", &json!({})).await?;
        let field = |name: &str| text_field(&registered, name).context("the registration lacks a field");
        let (key, product_id) = (field("/platform_api_key")?, field("/product_id")?);
        let counted = Arc::clone(&counters);
        let fleet = Arc::new(Fleet { deployment, http, key, product_id, counters: counted, clock });

        let due = self.set_schedules(&fleet).await?;
        fleet.sleep_until(due, KILLS_BEGIN).await;
        counters.add(ASLEEP, fleet.count_engines("sleeping").await?);
        let _orchestrator = self.kill_at_random(&fleet, orchestrator, due).await?;
        fleet.clock.pass(due);
        self.wait_until_at_rest(&fleet, due).await?;
        self.check(&fleet, due).await?;
        fleet.count_wakes().await?;
        Ok(counters)
    }

    /// The coverage that a run must reach and did not, one line per cause.
    pub fn unmet_coverage(&self, counters: &Counters) -> Vec<String> {
        let users = self.users as u64;
        let required = [
            (KILLS, self.kills),
            (ASLEEP, users * 9 / 10),
            // Of an engine that is killed while it is woken, a restart gets it up.
            (SCHEDULED_WAKES, users / 2),
            (ORCHESTRATOR_KILLS, self.kills / 10),
            (KILLS_IN_RUN, if self.backend == Backend::Process { self.kills / 50 } else { 0 }),
            ("users judged", users),
            (CLOCK_CHANGES, if self.clock == ClockPlan::Steady { 0 } else { self.kills / 20 }),
        ];
        let unmet = required.into_iter().filter(|(what, at_least)| counters.get(what) < *at_least);
        unmet
            .map(|(what, at_least)| {
                format!("{what}: {}, but at least {at_least} are required", counters.get(what))
            })
            .collect()
    }

    fn due_time(due: Timestamp, user: usize) -> DueTime {
        DueTime { due_at: due, skips_missed: user % 2 == 1 }
    }

    /// Sets the schedule of each user, all with one due time, which is returned.
    async fn set_schedules(&self, fleet: &Arc<Fleet>) -> anyhow::Result<Timestamp> {
        let setup = SETUP_TIME * u32::try_from(self.users)? / 2 + QUIET_TIME;
        let has_cron = self.users >= CRON_USERS || self.clock.season().is_some();
        let unit = if has_cron { 60_000 } else { 1_000 };
        fleet.clock.begin(setup);
        let now = fleet.clock.now_ms();
        let due = Timestamp::from_unix_ms((now + i64::try_from(setup.as_millis())?) / unit * unit + unit);
        let season = self.clock.season();
        for_each_user(self.users, |user| {
            let fleet = Arc::clone(fleet);
            async move {
                let DueTime { skips_missed, .. } = Self::due_time(due, user);
                let seconds = due.unix_ms() / 1_000;
                let when = if user % 4 < 2 || !has_cron {
                    json!({"at": due})
                } else if let Some(season) = season {
                    json!({"cron": season.cron, "time_zone": season.time_zone})
                } else {
                    // The same minute, once a day.
                    let cron = format!("{} {} * * *", seconds / 60 % 60, seconds / 3_600 % 24);
                    json!({"cron": cron, "time_zone": "UTC"})
                };
                let schedule = json!({
                    "id": "due", "name": "Report", "when": when, "message": "Report.", "task_id": TASK,
                    "missed": if skips_missed { "skip" } else { "run_once" }, "options": {"direct": true},
                });
                match fleet.call_engine(user, Method::POST, "/schedules", Some(&schedule)).await? {
                    (200 | 201, _) => Ok(()),
                    other => bail!("the schedule of user {user} was refused: {other:?}"),
                }
            }
        })
        .await?;
        if fleet.clock.now_ms() > due.unix_ms() {
            bail!("the machine was too busy to set the schedules in time");
        }
        Ok(due)
    }

    /// Kills the orchestrator and engines at random around the due time.
    async fn kill_at_random(
        &self,
        fleet: &Fleet,
        mut orchestrator: ServiceProcess,
        due: Timestamp,
    ) -> anyhow::Result<ServiceProcess> {
        let mut rng = SeededRng::new(self.seed, "due minute");
        let counters = &fleet.counters;
        let begin = Instant::now();
        let mut kills_of: HashMap<String, u32> = HashMap::new();
        // After that everything is decided, or missed for other reasons than kills.
        while counters.get(KILLS) < self.kills && begin.elapsed() < Duration::from_mins(15) {
            tokio::time::sleep(rng.millis(PAUSE_MS)).await;
            if fleet.clock.is_set() && rng.chance(CLOCK_SHARE) {
                let change = rng.pick(&CLOCK_CHANGES_S).copied().unwrap_or_default();
                fleet.clock.advance_ms(change * 1_000);
                counters.count(CLOCK_CHANGES);
            }
            // Of the engines, few are alive at once, so that often there is none to kill.
            let is_orchestrator_due =
                counters.get(ORCHESTRATOR_KILLS) * 100 <= counters.get(KILLS) * ORCHESTRATOR_SHARE;
            if is_orchestrator_due {
                pidfd_send_signal(orchestrator.pidfd()?, Signal::KILL)?;
                orchestrator.wait_exit().await?;
                counters.count(ORCHESTRATOR_KILLS);
                counters.count(KILLS);
                orchestrator = fleet.deployment.start_ready(false, &fleet.http).await?;
                continue;
            }
            let alive: Vec<_> =
                fleet.deployment.engines()?.into_iter().filter(|engine| engine.is_alive).collect();
            let may_be_killed = |engine: &&EngineInstance| {
                kills_of.get(&engine.engine_id).is_none_or(|kills| *kills < MAX_KILLS_OF_ENGINE)
            };
            let targets: Vec<_> = alive.iter().filter(may_be_killed).collect();
            if let Some(engine) = rng.pick(&targets) {
                fleet.deployment.inject_fault(engine, EngineFault::Kill)?;
                *kills_of.entry(engine.engine_id.clone()).or_default() += 1;
                counters.count(KILLS);
                let brain = fleet.deployment.data_root().join(&engine.engine_id).join("brain.sqlite");
                if is_run_open(&brain).unwrap_or(false) {
                    counters.count(KILLS_IN_RUN);
                }
            } else if alive.is_empty()
                && fleet.clock.now_ms() > due.unix_ms()
                && fleet.count_engines("sleeping").await? == self.users as u64
            {
                // Everything is done: what is killed now is woken by calls of its users.
                let user = usize::try_from(rng.between(0..=self.users as u64 - 1))?;
                let _ = fleet.admit(user).await;
            }
        }
        Ok(orchestrator)
    }

    /// Waits until every engine sleeps again and is not to be woken for the due time any more, or has failed for good:
    /// nobody calls for those that are yet to be woken.
    async fn wait_until_at_rest(&self, fleet: &Fleet, due: Timestamp) -> anyhow::Result<()> {
        let begin = Instant::now();
        let is_at_rest = |engine: &EngineRow| match engine.status.as_str() {
            // One with a cron expression is due again the next day.
            "sleeping" => engine.wake_at.is_none_or(|at| at > due.unix_ms() + HOUR_MS),
            status => status == "failed" && engine.restart_at.is_none(),
        };
        while begin.elapsed() < REST_TIMEOUT {
            let snapshot = fleet.deployment.registry().snapshot(&AuditCursor::new()).await?;
            if snapshot.engines.iter().all(|engine| engine.claim.is_none() && is_at_rest(engine)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }

    /// Checks what became of the due time of each user.
    async fn check(&self, fleet: &Arc<Fleet>, due: Timestamp) -> anyhow::Result<()> {
        for_each_user(self.users, |user| {
            let fleet = Arc::clone(fleet);
            async move {
                let expected = Self::due_time(due, user);
                match fleet.settled(user).await {
                    Ok(found) => match judge(&expected, &found) {
                        Ok(verdict) => fleet.counters.count(format!("due times: {verdict}")),
                        Err(fault) => fleet.counters.record_violation(format!("user {user}: {fault}")),
                    },
                    Err(error) => fleet.counters.record_violation(format!("user {user}: {error:#}")),
                }
                fleet.counters.count("users judged");
                Ok(())
            }
        })
        .await
    }
}

impl Fleet {
    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> CallOutcome {
        let request = self.http.request(method, format!("{}{path}", self.deployment.base_url()));
        let request = request.header("x-platform-key", &self.key);
        send(match body {
            Some(body) => request.json(body),
            None => request,
        })
        .await
    }

    /// The address and the key of a user's engine, which is provisioned, woken or started if it has to be.
    async fn admit(&self, user: usize) -> anyhow::Result<(String, String)> {
        let begin = Instant::now();
        let body = json!({"auto_provision": true, "auto_wake": true});
        loop {
            let outcome = self.call(Method::POST, &format!("/engines/user-{user}/admit"), Some(&body)).await;
            if let CallOutcome::Response(200, body) = &outcome {
                let field = |name: &str| text_field(body, name);
                if let (Some(url), Some(key)) = (field("/engine/url"), field("/engine/api_key")) {
                    return Ok((url, key));
                }
                // It was killed too often: its user starts it.
                let _ = self.call(Method::POST, &format!("/engines/user-{user}/start"), None).await;
            }
            if begin.elapsed() > SETTLE_TIMEOUT {
                bail!("user {user} was not admitted: {outcome:?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Calls the engine of a user, also while it is put to sleep and woken.
    async fn call_engine(
        &self,
        user: usize,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(u16, Value)> {
        let begin = Instant::now();
        loop {
            let (url, key) = self.admit(user).await?;
            let request =
                self.http.request(method.clone(), format!("{url}{path}")).header("x-engine-key", key);
            let outcome = send(match body {
                Some(body) => request.json(body),
                None => request,
            })
            .await;
            match outcome {
                CallOutcome::Response(status, body) if status != 503 => return Ok((status, body)),
                outcome if begin.elapsed() > SETTLE_TIMEOUT => {
                    bail!("{path} of user {user} was not answered: {outcome:?}")
                }
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// What became of a user's due time, once it is decided and its turn has ended.
    async fn settled(&self, user: usize) -> anyhow::Result<Found> {
        let begin = Instant::now();
        loop {
            let (status, schedule) = self.call_engine(user, Method::GET, "/schedules/due", None).await?;
            let mut runs = schedule.get("runs").and_then(Value::as_array).cloned().unwrap_or_default();
            let is_open = |run: &Value| {
                matches!(
                    run.get("turn_state").and_then(Value::as_str),
                    Some("queued" | "running" | "waiting")
                )
            };
            let is_settled = !runs.is_empty() && !runs.iter().any(is_open);
            if is_settled || begin.elapsed() > SETTLE_TIMEOUT {
                if status != 200 {
                    bail!("its schedule is {status}: {schedule}");
                }
                for run in runs.iter_mut().filter(|run| run.get("turn_state") == Some(&json!("failed"))) {
                    let turn = text_field(run, "/turn_id").unwrap_or_default();
                    let path = format!("/tasks/{TASK}/turns/{turn}");
                    let (_, turn) = self.call_engine(user, Method::GET, &path, None).await?;
                    if let Some(run) = run.as_object_mut() {
                        run.insert("turn".to_owned(), turn);
                    }
                }
                let path = format!("/tasks/{TASK}/turns");
                let (_, turns) = self.call_engine(user, Method::GET, &path, None).await?;
                let turns = turns.get("turns").and_then(Value::as_array).map_or(0, Vec::len);
                let path = format!("/tasks/{TASK}/messages");
                let (_, messages) = self.call_engine(user, Method::GET, &path, None).await?;
                let messages =
                    messages.get("messages").and_then(Value::as_array).cloned().unwrap_or_default();
                let said = |message: &&Value| message.get("role") == Some(&json!("user"));
                return Ok(Found { runs, turns, messages: messages.iter().filter(said).count() });
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until `before` the time `at`.
    async fn sleep_until(&self, at: Timestamp, before: Duration) {
        let until = at.unix_ms() - i64::try_from(before.as_millis()).unwrap_or(0) - self.clock.now_ms();
        tokio::time::sleep(Duration::from_millis(until.max(0).unsigned_abs())).await;
    }

    async fn count_engines(&self, status: &str) -> anyhow::Result<u64> {
        let snapshot = self.deployment.registry().snapshot(&AuditCursor::new()).await?;
        let engines = snapshot.engines.iter().filter(|engine| engine.product_id == self.product_id);
        Ok(engines.filter(|engine| engine.status == status && engine.claim.is_none()).count() as u64)
    }

    /// Counts the wakes by their reasons.
    async fn count_wakes(&self) -> anyhow::Result<()> {
        let snapshot = self.deployment.registry().snapshot(&AuditCursor::new()).await?;
        for row in snapshot.audit.iter().filter(|row| row.event == "wake") {
            let detail: Value = serde_json::from_str(&row.detail)?;
            let reason = text_field(&detail, "/reason").unwrap_or_default();
            self.counters.count(format!("wakes: {reason}"));
        }
        Ok(())
    }
}

/// Does something for all users, a few at a time.
async fn for_each_user<F>(users: usize, step: impl Fn(usize) -> F) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(CONCURRENT_USERS));
    let mut steps = JoinSet::new();
    for user in 0..users {
        let (permits, step) = (Arc::clone(&permits), step(user));
        steps.spawn(async move {
            let _permit = permits.acquire_owned().await?;
            step.await
        });
    }
    while let Some(done) = steps.join_next().await {
        done??;
    }
    Ok(())
}

/// Whether the engine with this brain has a run whose turn has not ended.
fn is_run_open(brain: &std::path::Path) -> rusqlite::Result<bool> {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let brain = rusqlite::Connection::open_with_flags(brain, flags)?;
    let sql = "SELECT EXISTS (SELECT 1 FROM schedule_runs WHERE turn_id IS NOT NULL)
               AND NOT EXISTS (SELECT 1 FROM turns WHERE ended_at IS NOT NULL)";
    brain.query_row(sql, [], |row| row.get(0))
}
