//! The coverage that a run must reach.

use super::cluster::DatabaseFault;
use super::cluster_fault::ClusterFault;
use super::engine_host::{Backend, EngineFault};
use super::kill::INJURED_STARTS;
use super::schedule::{PHASES, hit_counter_name};
use super::{Database, FleetCampaign, NOT_EXERCISED, PODS_WATCHED, ROUNDS};
use crate::counters::Counters;

/// The number of rounds from which each phase of each operation is required.
const FULL_RUN_ROUNDS: u64 = 200;
/// The required hits in a run of full size, and the number of rounds per required hit.
const MIN_HITS: u64 = 10;
const ROUNDS_PER_HIT: u64 = 100;

/// Returns the coverage that a run of this size requires and did not reach, one line per cause.
pub fn unmet_coverage(counters: &Counters, campaign: &FleetCampaign) -> Vec<String> {
    let rounds = campaign.rounds;
    let mut unmet_coverage = Vec::new();
    let mut require = |what: &str, at_least: u64| {
        let found = counters.get(what);
        if found < at_least {
            unmet_coverage.push(format!("{what}: {found}, but at least {at_least} are required"));
        }
    };
    require(ROUNDS, rounds);
    require("calls: provision", 1);
    if campaign.backend == Backend::Kubernetes {
        require(PODS_WATCHED, 1);
    }
    if rounds >= FULL_RUN_ROUNDS {
        let required_hits = (rounds / ROUNDS_PER_HIT).min(MIN_HITS);
        for phase in PHASES {
            require(&hit_counter_name(phase), required_hits);
        }
        for what in ["old keys refused", "tasks found again", EngineFault::Kill.name()] {
            require(what, required_hits);
        }
        if campaign.backend != Backend::Process {
            require(EngineFault::Remove.name(), required_hits);
        }
        if campaign.cluster_faults {
            for fault in ClusterFault::ALL {
                require(fault.name(), required_hits);
            }
            require(INJURED_STARTS, required_hits);
        }
        if campaign.database == Database::Postgres {
            for fault in DatabaseFault::ALL {
                require(fault.name(), required_hits);
            }
        }
    }
    unmet_coverage.extend(counters.counts().into_keys().filter(|what| what.starts_with(NOT_EXERCISED)));
    unmet_coverage
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn campaign(rounds: u64, backend: Backend, database: Database) -> FleetCampaign {
        let limit = Duration::from_secs(1);
        FleetCampaign {
            binary: "x".into(),
            backend,
            database,
            seed: 1,
            rounds,
            time_limit: limit,
            mutant: None,
            cluster_faults: false,
            keep_folder: false,
        }
    }

    #[test]
    fn a_phase_that_was_hit_too_seldom_is_unmet() {
        for (rounds, required_hits) in [(200, 2), (1_000, 10), (5_000, 10)] {
            let campaign = campaign(rounds, Backend::Process, Database::Sqlite);
            let counters = Counters::default();
            counters.add(ROUNDS, rounds);
            counters.add("calls: provision", 1);
            for what in ["old keys refused", "tasks found again", "engines sent SIGKILL"] {
                counters.add(what, required_hits);
            }
            let (last, others) = PHASES.split_last().unwrap();
            for phase in others {
                counters.add(hit_counter_name(*phase), required_hits);
            }
            counters.add(hit_counter_name(*last), required_hits - 1);
            assert_eq!(unmet_coverage(&counters, &campaign).len(), 1, "{rounds}");
            counters.count(hit_counter_name(*last));
            assert_eq!(unmet_coverage(&counters, &campaign), Vec::<String>::new(), "{rounds}");
        }
    }

    #[test]
    fn what_befalls_the_parts_of_a_combination_is_wanted_too() {
        let unmet_coverage = |rounds, backend, database| {
            unmet_coverage(&Counters::default(), &campaign(rounds, backend, database)).len()
        };
        assert_eq!(unmet_coverage(15, Backend::Docker, Database::Postgres), 2);
        assert_eq!(unmet_coverage(15, Backend::Kubernetes, Database::Postgres), 3);
        let plain = unmet_coverage(200, Backend::Process, Database::Sqlite);
        assert_eq!(unmet_coverage(200, Backend::Docker, Database::Sqlite), plain + 1);
        assert_eq!(
            unmet_coverage(200, Backend::Process, Database::Postgres),
            plain + DatabaseFault::ALL.len()
        );
    }
}
