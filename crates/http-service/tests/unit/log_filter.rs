use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::Event;
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;
use crate::logging::parse_filter;

const NOW: Timestamp = Timestamp::from_unix_ms(1_000_000);

/// Counts the lines that pass the filter before it.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// One line of each level, each time from the same places in the code.
fn log(lines: &Lines) -> usize {
    let before = lines.0.load(Ordering::Relaxed);
    tracing::info!("A line.");
    tracing::debug!("A line.");
    tracing::trace!("A line.");
    lines.0.load(Ordering::Relaxed) - before
}

#[tokio::test(start_paused = true)]
async fn a_filter_holds_for_its_time_and_is_replaced_or_ended_before() {
    let control = Arc::new(LogControl::new(parse_filter("info").unwrap()));
    let lines = Lines::default();
    let subscriber =
        tracing_subscriber::registry().with(SwitchableFilter(Arc::clone(&control))).with(lines.clone());
    let _default = tracing::subscriber::set_default(subscriber);
    let minutes = |count| Duration::from_mins(count);
    let state = |active: &str, expires_at| LogFilter {
        active: active.to_owned(),
        configured: "info".to_owned(),
        expires_at,
    };
    assert_eq!((control.filter(), log(&lines)), (state("info", None), 1));

    let at = |minutes: i64| Some(Timestamp::from_unix_ms(NOW.unix_ms() + minutes * 60_000));
    let replaced = control.replace(parse_filter("trace").unwrap(), minutes(15), NOW);
    assert_eq!((replaced, log(&lines)), (state("trace", at(15)), 3));
    tokio::time::sleep(minutes(10)).await;
    // The later one ends when it says, not when the earlier one would have.
    let replaced = control.replace(parse_filter("debug").unwrap(), minutes(10), NOW);
    assert_eq!((replaced, log(&lines)), (state("debug", at(10)), 2));
    tokio::time::sleep(minutes(9)).await;
    assert_eq!(log(&lines), 2);
    tokio::time::sleep(minutes(2)).await;
    assert_eq!((control.filter(), log(&lines)), (state("info", None), 1));

    control.replace(parse_filter("off").unwrap(), minutes(15), NOW);
    assert_eq!(log(&lines), 0);
    assert_eq!((control.reset(), log(&lines)), (state("info", None), 1));
}

#[test]
fn a_line_that_is_not_wanted_asks_the_filter_once() {
    struct Counting(SwitchableFilter, Arc<AtomicUsize>);
    impl<S: Subscriber> Layer<S> for Counting {
        fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
            Layer::<S>::register_callsite(&self.0, metadata)
        }
        fn enabled(&self, metadata: &Metadata<'_>, context: Context<'_, S>) -> bool {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.enabled(metadata, context)
        }
    }
    let control = Arc::new(LogControl::new(parse_filter("info,other=trace").unwrap()));
    let asked = Arc::new(AtomicUsize::new(0));
    let filter = Counting(SwitchableFilter(control), Arc::clone(&asked));
    let _default = tracing::subscriber::set_default(tracing_subscriber::registry().with(filter));
    for _ in 0..100 {
        tracing::info!("A line.");
        tracing::debug!("A line.");
    }
    assert!(asked.load(Ordering::Relaxed) <= 2, "{asked:?}");
}
