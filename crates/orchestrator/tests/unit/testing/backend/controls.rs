//! What a test makes the simulated backend do, and what it learns from it.

use api::usage::Day;
use api::usage_days::{UsageCounts, UsageOfDay};

use super::*;

impl FaultBackend {
    /// Injects `fault` into the next `call`. Further faults for it apply to the calls after that.
    pub(crate) fn inject(&self, call: BackendCall, fault: Fault) {
        self.state().faults.entry(call).or_default().push_back(fault);
    }

    /// Removes all injected faults.
    pub(crate) fn clear_faults(&self) {
        self.state().faults.clear();
    }

    pub(crate) fn set_health(&self, health: SimulatedHealth) {
        self.state().health = health;
    }

    /// Makes all engines prove their keys from now on.
    pub(crate) fn prove_keys(&self) {
        self.state().proves_keys = true;
    }

    /// The number of times that a key was sent to identify an engine.
    pub(crate) fn keys_sent(&self) -> usize {
        self.state().keys_sent
    }

    /// Simulates the start or the end of a turn in this engine.
    pub(crate) fn set_busy(&self, engine_id: EngineId, busy: bool) {
        let mut state = self.state();
        if busy {
            state.busy.insert(engine_id)
        } else {
            state.busy.remove(&engine_id)
        };
    }

    /// What an engine was last told about browsers.
    pub(crate) fn browser_access(&self, engine_id: EngineId) -> Option<serde_json::Value> {
        self.state().browser_access.get(&engine_id).cloned()
    }

    /// Sets when a schedule of this engine is due; `None` if none is.
    pub(crate) fn set_next_due(&self, engine_id: EngineId, at: Option<api::Timestamp>) {
        let mut state = self.state();
        match at {
            Some(at) => state.next_due.insert(engine_id, at.to_string()),
            None => state.next_due.remove(&engine_id),
        };
    }

    /// Sets the turns that this engine has counted on each day.
    pub(crate) fn set_usage(&self, engine_id: EngineId, turns_by_day: &[(i64, u64)]) {
        let days = turns_by_day.iter().map(|(day, turns)| UsageOfDay {
            day: Day::from_unix_days(*day),
            counts: UsageCounts { turns: *turns, ..UsageCounts::default() },
        });
        self.state().usage.insert(engine_id, days.collect());
    }

    /// Makes this engine answer nothing until it is launched again.
    pub(crate) fn freeze(&self, engine_id: EngineId) {
        self.state().frozen.insert(engine_id);
    }

    /// Makes all engines answer again.
    pub(crate) fn thaw(&self) {
        self.state().frozen.clear();
    }

    /// Returns the hashes of the keys that the running engines accept.
    pub(crate) fn key_hashes(&self) -> Vec<KeyHash> {
        self.state().running.values().map(|(_, launch)| launch.key_hash).collect()
    }

    /// Makes every running engine refuse its key.
    pub(crate) fn invalidate_keys(&self) {
        for (_, launch) in self.state().running.values_mut() {
            launch.key_hash = KeyHash::of("another key");
        }
    }

    /// Returns the number of health checks of this engine.
    pub(crate) fn probe_count(&self, engine_id: EngineId) -> usize {
        self.state().probe_counts.get(&engine_id).copied().unwrap_or_default()
    }

    /// Simulates another program on the host that listens on `port`.
    pub(crate) fn occupy_port(&self, port: u16) {
        self.state().occupied_ports.insert(port);
    }

    /// Returns how often `call` was made.
    pub(crate) fn count(&self, call: BackendCall) -> usize {
        self.state().calls.iter().filter(|made| **made == call).count()
    }

    /// Returns the number of all calls to the backend and of all health checks.
    pub(crate) fn count_all_calls(&self) -> usize {
        let state = self.state();
        state.calls.len() + state.probe_counts.values().sum::<usize>()
    }

    /// Returns the maximum number of concurrent `call`s.
    pub(crate) fn max_concurrent(&self, call: BackendCall) -> usize {
        self.state().in_flight.get(&call).map_or(0, |(_, max)| *max)
    }

    /// Restricts the backend to a single image, like the process backend.
    pub(crate) fn use_single_image(&self) {
        let mut state = self.state();
        state.single_image = true;
        // It is the orchestrator's own version, which proves its key.
        state.proves_keys = true;
    }

    /// Adds an image of another major version.
    pub(crate) fn add_image(&self, image: EngineImage) {
        self.state().extra_images.insert(image);
    }

    /// Makes engines of this image exit at launch, or start normally again.
    pub(crate) fn set_crashing(&self, image: EngineImage, crashing: bool) {
        let mut state = self.state();
        if crashing {
            state.crashing_images.insert(image)
        } else {
            state.crashing_images.remove(&image)
        };
    }

    /// Returns the format of an engine's brain.
    pub(crate) fn brain_format(&self, engine_id: EngineId) -> u64 {
        self.state().brain_formats[&engine_id]
    }

    /// Removes an image.
    pub(crate) fn remove_image(&self, image: EngineImage) {
        self.state().missing_images.insert(image);
    }

    /// Returns the ports of the running engines.
    pub(crate) fn ports(&self) -> HashMap<EngineId, u16> {
        let state = self.state();
        let ports = state.running.iter().filter_map(|(engine_id, (_, launch))| {
            launch.placement.host_port().map(|port| (*engine_id, port))
        });
        ports.collect()
    }

    pub(crate) fn launches(&self) -> Vec<LaunchSpec> {
        self.state().launches.clone()
    }

    pub(crate) fn running(&self) -> HashSet<EngineId> {
        self.state().running.keys().copied().collect()
    }

    pub(crate) fn folders(&self) -> HashSet<EngineId> {
        self.state().folders.clone()
    }

    /// Removes the folder of this engine.
    pub(crate) fn remove_folder(&self, engine_id: EngineId) {
        self.state().folders.remove(&engine_id);
    }

    /// Lets the folder of this engine not have changed for a long time.
    pub(crate) fn age_folder(&self, engine_id: EngineId) {
        self.state().old_folders.insert(engine_id);
    }

    /// Restores the folder of this engine.
    pub(crate) fn restore_folder(&self, engine_id: EngineId) {
        self.state().folders.insert(engine_id);
    }

    /// Kills an engine from outside.
    pub(crate) fn crash(&self, engine_id: EngineId) {
        self.end(engine_id, "signal: 9 (SIGKILL)");
    }

    /// Kills an engine from outside, without an exit event.
    pub(crate) fn crash_silently(&self, engine_id: EngineId) {
        let mut state = self.state();
        state.own_addresses.remove(&engine_id);
        state.running.remove(&engine_id);
    }

    /// Reports the exit of an engine that is already running again.
    pub(crate) fn send_stale_exit(&self, engine_id: EngineId) {
        let instance = self.state().running[&engine_id].0.clone();
        let _ = self.exits.lock().unwrap().send(InstanceExit { engine_id, instance, reason: None });
    }

    /// Adds a running engine that no orchestrator launched, on `port` if it has none of its own addresses.
    pub(crate) fn run_orphan(&self, engine_id: EngineId, port: u16, launch: LaunchSpec) {
        let placement = self.addressing.placement(Some(port)).expect("it has a port");
        let mut state = self.state();
        state
            .running
            .insert(engine_id, (Instance::new("orphan"), LaunchSpec { engine_id, placement, ..launch }));
        self.assign_address(&mut state, engine_id);
    }

    /// Sets the generation of a running engine to one that the registry does not know.
    pub(crate) fn set_generation(&self, engine_id: EngineId, generation: i64) {
        self.state().running.get_mut(&engine_id).unwrap().1.generation = generation;
    }

    /// Adds a second instance of an engine, launched for an earlier change by an orchestrator that has been
    /// replaced.
    pub(crate) fn run_stray(&self, engine_id: EngineId) {
        let stray =
            EngineListing { engine_id, instance: Instance::new("stray"), generation: 0, running: true };
        self.state().strays.push(stray);
    }

    /// Returns the number of such second instances.
    pub(crate) fn strays(&self) -> usize {
        self.state().strays.len()
    }

    /// Leaves remains of an engine that does not run.
    pub(crate) fn leave_remains(&self, engine_id: EngineId) {
        self.state().remains.insert(engine_id, Instance::new("remains"));
    }

    /// Returns the engines with remains.
    pub(crate) fn remains(&self) -> HashSet<EngineId> {
        self.state().remains.keys().copied().collect()
    }

    /// Sets the limits that every running engine reports.
    pub(crate) fn set_resource_limits(&self, limits: ResourceLimits) {
        self.state().resource_limits = Some(limits);
    }

    /// Connects another orchestrator, which receives all exit events from now on.
    pub(crate) fn reconnect(&self) {
        let (exits, listener) = mpsc::unbounded_channel();
        *self.exits.lock().unwrap() = exits;
        *self.listener.lock().unwrap() = Some(listener);
    }
}
