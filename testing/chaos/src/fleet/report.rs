//! What a run should have met.

use super::cluster::DatabaseFault;
use super::engine_host::{Backend, EngineFault};
use super::schedule::{PHASES, hit_counter_name};
use super::{Database, FleetCampaign, NOT_EXERCISED, ROUNDS};
use crate::counters::Counters;

/// From how many rounds on each phase of each change must have been hit.
const FULL_RUN_ROUNDS: u64 = 200;
/// How often at the least in a run of full size, which is this many rounds a hit.
const MIN_HITS: u64 = 10;
const ROUNDS_PER_HIT: u64 = 100;

/// What a run of this size should have met and did not.
pub fn unmet_coverage(tally: &Counters, campaign: &FleetCampaign) -> Vec<String> {
    let rounds = campaign.rounds;
    let mut unmet_coverage = Vec::new();
    let mut want = |what: &str, at_least: u64| {
        let found = tally.get(what);
        if found < at_least {
            unmet_coverage.push(format!("{what}: {found}, and at least {at_least} are wanted"));
        }
    };
    want(ROUNDS, rounds);
    want("calls: provision", 1);
    if rounds >= FULL_RUN_ROUNDS {
        let often = (rounds / ROUNDS_PER_HIT).min(MIN_HITS);
        for phase in PHASES {
            want(&hit_counter_name(phase), often);
        }
        for what in ["old keys refused", "tasks found again", EngineFault::Kill.name()] {
            want(what, often);
        }
        if campaign.backend == Backend::Docker {
            want(EngineFault::Remove.name(), often);
        }
        if campaign.database == Database::Postgres {
            for trouble in DatabaseFault::ALL {
                want(trouble.name(), often);
            }
        }
    }
    unmet_coverage.extend(tally.counts().into_keys().filter(|what| what.starts_with(NOT_EXERCISED)));
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
            mutation: None,
            keep_folder: false,
        }
    }

    #[test]
    fn a_phase_that_was_hit_too_seldom_is_unmet() {
        for (rounds, often) in [(200, 2), (1_000, 10), (5_000, 10)] {
            let campaign = campaign(rounds, Backend::Process, Database::Sqlite);
            let tally = Counters::default();
            tally.add(ROUNDS, rounds);
            tally.add("calls: provision", 1);
            for what in ["old keys refused", "tasks found again", "engines sent SIGKILL"] {
                tally.add(what, often);
            }
            let (last, others) = PHASES.split_last().unwrap();
            for phase in others {
                tally.add(hit_counter_name(*phase), often);
            }
            tally.add(hit_counter_name(*last), often - 1);
            assert_eq!(unmet_coverage(&tally, &campaign).len(), 1, "{rounds}");
            tally.count(hit_counter_name(*last));
            assert_eq!(unmet_coverage(&tally, &campaign), Vec::<String>::new(), "{rounds}");
        }
    }

    #[test]
    fn what_befalls_the_parts_of_a_combination_is_wanted_too() {
        let unmet_coverage = |rounds, backend, database| {
            unmet_coverage(&Counters::default(), &campaign(rounds, backend, database)).len()
        };
        assert_eq!(unmet_coverage(15, Backend::Docker, Database::Postgres), 2);
        let plain = unmet_coverage(200, Backend::Process, Database::Sqlite);
        assert_eq!(unmet_coverage(200, Backend::Docker, Database::Sqlite), plain + 1);
        assert_eq!(
            unmet_coverage(200, Backend::Process, Database::Postgres),
            plain + DatabaseFault::ALL.len()
        );
    }
}
