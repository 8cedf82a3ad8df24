//! What a run should have met.

use super::aim::{PHASES, hits};
use super::cluster::Trouble;
use super::running::{Backend, Blow};
use super::{Database, FleetCampaign, LEFT_OUT, ROUNDS};
use crate::tally::Tally;

/// From how many rounds on each phase of each change must have been hit.
const BIG: u64 = 200;
/// How often at the least in a run of full size, which is this many rounds a hit.
const OFTEN: u64 = 10;
const ROUNDS_A_HIT: u64 = 100;

/// What a run of this size should have met and did not.
pub fn unmet(tally: &Tally, campaign: &FleetCampaign) -> Vec<String> {
    let rounds = campaign.rounds;
    let mut unmet = Vec::new();
    let mut want = |what: &str, at_least: u64| {
        let found = tally.of(what);
        if found < at_least {
            unmet.push(format!("{what}: {found}, and at least {at_least} are wanted"));
        }
    };
    want(ROUNDS, rounds);
    want("calls: provision", 1);
    if rounds >= BIG {
        let often = (rounds / ROUNDS_A_HIT).min(OFTEN);
        for phase in PHASES {
            want(&hits(phase), often);
        }
        for what in ["old keys refused", "tasks found again", Blow::Kill.name()] {
            want(what, often);
        }
        if campaign.backend == Backend::Docker {
            want(Blow::Remove.name(), often);
        }
        if campaign.database == Database::Postgres {
            for trouble in Trouble::ALL {
                want(trouble.name(), often);
            }
        }
    }
    unmet.extend(tally.counts().into_keys().filter(|what| what.starts_with(LEFT_OUT)));
    unmet
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
            limit,
            saboteur: None,
            keep: false,
        }
    }

    #[test]
    fn a_phase_that_was_hit_too_seldom_is_unmet() {
        for (rounds, often) in [(200, 2), (1_000, 10), (5_000, 10)] {
            let campaign = campaign(rounds, Backend::Process, Database::Sqlite);
            let tally = Tally::default();
            tally.add(ROUNDS, rounds);
            tally.add("calls: provision", 1);
            for what in ["old keys refused", "tasks found again", "engines sent SIGKILL"] {
                tally.add(what, often);
            }
            let (last, others) = PHASES.split_last().unwrap();
            for phase in others {
                tally.add(hits(*phase), often);
            }
            tally.add(hits(*last), often - 1);
            assert_eq!(unmet(&tally, &campaign).len(), 1, "{rounds}");
            tally.count(hits(*last));
            assert_eq!(unmet(&tally, &campaign), Vec::<String>::new(), "{rounds}");
        }
    }

    #[test]
    fn what_befalls_the_parts_of_a_combination_is_wanted_too() {
        let unmet =
            |rounds, backend, database| unmet(&Tally::default(), &campaign(rounds, backend, database)).len();
        assert_eq!(unmet(15, Backend::Docker, Database::Postgres), 2);
        let plain = unmet(200, Backend::Process, Database::Sqlite);
        assert_eq!(unmet(200, Backend::Docker, Database::Sqlite), plain + 1);
        assert_eq!(unmet(200, Backend::Process, Database::Postgres), plain + Trouble::ALL.len());
    }
}
