//! The variables of backups.

use std::time::Duration;

use backup::{Retention, Target};
use http_service::env::{Env, EnvReader, parse_lifetime};

use crate::fleet::BackupSettings;

/// The variable with the place of the backups.
const URL_VAR: &str = "ORCH_BACKUP_URL";

/// How often engines are backed up unless the operator says otherwise.
const DEFAULT_INTERVAL: Duration = Duration::from_hours(24);
/// The shortest interval: the schedule is looked at every 15 seconds.
const MIN_INTERVAL: Duration = Duration::from_mins(1);
/// How many of the latest backups are kept by default.
const DEFAULT_KEEP_LAST: usize = 3;
/// For how many days every backup is kept by default.
const DEFAULT_KEEP_DAYS: u32 = 30;
/// The most that can be kept: a hundred years, and as many backups as are listed in a reasonable time.
const MAX_KEEP_DAYS: u32 = 36_500;
const MAX_KEEP_LAST: usize = 10_000;

/// Reads the settings; `None` if no place is named.
pub(super) fn read(reader: &mut EnvReader<'_>, env: &dyn Env) -> Option<BackupSettings> {
    let target = read_target(reader, env);
    let interval = reader.parse_or(
        "ORCH_BACKUP_INTERVAL",
        "a duration of a minute at least, such as `6h` or `1d`, or `off`",
        Some(DEFAULT_INTERVAL),
        parse_interval,
    );
    let at_sleep =
        reader.parse_or("ORCH_BACKUP_AT_SLEEP", "`true` or `false`", true, |text| text.parse().ok());
    let keep_last = reader.parse_or(
        "ORCH_BACKUP_KEEP_LAST",
        "a number of backups from 1 to 10000",
        DEFAULT_KEEP_LAST,
        |text| text.parse().ok().filter(|count| (1..=MAX_KEEP_LAST).contains(count)),
    );
    let keep_days = reader.parse_or(
        "ORCH_BACKUP_KEEP_DAYS",
        "a number of days from 0 to 36500",
        DEFAULT_KEEP_DAYS,
        |text| text.parse().ok().filter(|days| *days <= MAX_KEEP_DAYS),
    );
    let retention = Retention { keep_last, keep_days };
    target.map(|target| BackupSettings { target, interval, at_sleep, retention })
}

/// Reads the place of the backups.
pub(crate) fn read_target(reader: &mut EnvReader<'_>, env: &dyn Env) -> Option<Target> {
    reader.parse_or(URL_VAR, Target::EXPECTED, None, |text| Target::parse(text, env).map(Some))
}

/// Returns the settings as lines of the configuration.
pub(super) fn display(settings: &BackupSettings) -> Vec<(&'static str, String)> {
    let BackupSettings { target, interval, at_sleep, retention } = settings;
    let interval = interval.map_or_else(|| "off".to_owned(), |interval| format!("{}s", interval.as_secs()));
    vec![
        (URL_VAR, target.to_string()),
        ("ORCH_BACKUP_INTERVAL", interval),
        ("ORCH_BACKUP_AT_SLEEP", at_sleep.to_string()),
        ("ORCH_BACKUP_KEEP_LAST", retention.keep_last.to_string()),
        ("ORCH_BACKUP_KEEP_DAYS", retention.keep_days.to_string()),
    ]
}

/// Parses an interval, or `off`.
#[expect(clippy::option_option, reason = "the outer one is for an invalid value")]
fn parse_interval(text: &str) -> Option<Option<Duration>> {
    if text == "off" {
        return Some(None);
    }
    parse_lifetime(text).filter(|interval| *interval >= MIN_INTERVAL).map(Some)
}
