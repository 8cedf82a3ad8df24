use std::convert::Infallible;

use jiff::civil::Date;
use proptest::collection::vec;
use proptest::prelude::*;

use super::{POSTING_BUDGET, read};
use crate::postings::{Place, Postings};
use crate::terms::{AskedWord, WordKind};

/// Messages of one task: those with a word are the newest, as many as the word's name says.
struct Frequencies;

const MESSAGES: usize = 3 * POSTING_BUDGET;

impl Postings for Frequencies {
    type Error = Infallible;

    fn message_count(&self) -> Result<u64, Infallible> {
        Ok(u64::try_from(MESSAGES).unwrap())
    }

    fn task_count(&self) -> Result<u64, Infallible> {
        Ok(1)
    }

    fn read_places(&self, term: &str, limit: usize, places: &mut Vec<Place>) -> Result<(), Infallible> {
        let newest = term.parse::<usize>().unwrap().min(limit);
        places
            .extend((MESSAGES - newest..MESSAGES).map(|index| Place::new(0, u32::try_from(index).unwrap())));
        Ok(())
    }

    fn task_length(&self, _: u64) -> Result<u32, Infallible> {
        unreachable!("only candidates have lengths")
    }

    fn read_characters(&self, _: u64, _: u32, _: &mut [u32]) -> Result<(), Infallible> {
        unreachable!("only results have characters")
    }

    fn read_dates(&self, _: u64, _: u32, _: &mut [Option<Date>]) -> Result<(), Infallible> {
        unreachable!("only candidates have dates")
    }
}

/// The frequencies of the rarest words that fit into the budget together, or the rarest, cut to it.
fn definition(frequencies: &[usize]) -> Vec<usize> {
    let mut rarest_first: Vec<usize> =
        frequencies.iter().copied().filter(|frequency| *frequency > 0).collect();
    rarest_first.sort_unstable();
    let mut sum = 0;
    let fitting = rarest_first.iter().take_while(|frequency| {
        sum += **frequency;
        sum <= POSTING_BUDGET
    });
    let fitting: Vec<usize> = fitting.copied().collect();
    let newest = rarest_first.first().map(|frequency| (*frequency).min(POSTING_BUDGET));
    if fitting.is_empty() { newest.into_iter().collect() } else { fitting }
}

fn frequency() -> impl Strategy<Value = usize> {
    prop_oneof![
        Just(0),
        1..100_usize,
        1..POSTING_BUDGET,
        POSTING_BUDGET - 2..POSTING_BUDGET + 3,
        POSTING_BUDGET..MESSAGES,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_rarest_words_are_read_to_the_budget_in_whatever_order(frequencies in vec(frequency(), 0..8)) {
        let words: Vec<AskedWord> = frequencies
            .iter()
            .map(|frequency| AskedWord { terms: vec![frequency.to_string()], kind: WordKind::Whole })
            .collect();
        let mut places = Vec::new();
        let asked = read(&Frequencies, &words, false, &mut places).unwrap();
        let newest = |frequency: usize| {
            let first = u32::try_from(MESSAGES - frequency).unwrap();
            (first..u32::try_from(MESSAGES).unwrap()).map(|index| Place::new(0, index)).collect::<Vec<_>>()
        };
        let found: Vec<Vec<Place>> = asked.found.iter().map(|word| word.places.to_vec()).collect();
        let expected: Vec<Vec<Place>> = definition(&frequencies).into_iter().map(newest).collect();
        prop_assert!(found == expected, "{:?}", found.iter().map(Vec::len).collect::<Vec<_>>());
        // No list is copied because the memory grows.
        prop_assert!(places.capacity() <= 2 * (POSTING_BUDGET + 1));
    }
}
