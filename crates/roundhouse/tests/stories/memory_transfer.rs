//! Story 44: what an engine remembers moves into another one: whole or not at all, whatever kills it, and in little
//! memory, however much it is.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt as _;
use reqwest::{Body, Method};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::support::synthetic_export::SyntheticExport;
use crate::support::turn::assert_completed;
use crate::support::{Engine, Program, StandaloneEngine, processes};

const IMPORTED: &str = "status:text mode:text counts:object";

async fn import(engine: &Engine, mode: &str, document: impl Into<Body>) -> Value {
    let request = engine.request(Method::POST, &format!("/memory/import?mode={mode}"));
    let response = request.body(document).send().await.unwrap();
    let status = response.status();
    let body = response.text().await.unwrap();
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    crate::support::assert_fields(&body, IMPORTED);
    body
}

async fn export(engine: &Engine) -> String {
    let response = engine.request(Method::GET, "/memory/export").send().await.unwrap();
    assert_eq!(response.status(), 200);
    response.text().await.unwrap()
}

/// A number from the environment.
fn env_number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

#[tokio::test]
async fn an_import_that_is_killed_at_any_moment_leaves_all_of_it_or_nothing() {
    let kills = env_number("ROUNDHOUSE_TEST_TRANSFER_KILLS", 8);
    let place = StandaloneEngine::new();
    let (mut program, mut engine) = place.start().await;
    assert_completed(&engine.execute("mine", "Hello.").await.collect().await);
    let before = export(&engine).await;
    let document = SyntheticExport::with_tasks(6).document();
    for mode in ["merge", "replace"] {
        import(&engine, "replace", before.clone()).await;
        let start = Instant::now();
        import(&engine, mode, document.clone()).await;
        let took = start.elapsed();
        let after = export(&engine).await;
        assert_ne!(before, after);

        let (mut unchanged, mut imported, mut answered) = (0, 0, 0);
        for kill in 0..=kills {
            import(&engine, "replace", before.clone()).await;
            assert_eq!(export(&engine).await, before);
            let path = format!("/memory/import?mode={mode}");
            let importing = tokio::spawn(engine.request(Method::POST, &path).body(document.clone()).send());
            // The kills are spread over what the first import took, and a little beyond.
            let share = f64::from(u32::try_from(kill).unwrap()) / f64::from(u32::try_from(kills).unwrap());
            let instant = took.mul_f64(1.2 * share);
            tokio::time::sleep(instant).await;
            processes::kill(program.pid());
            answered += usize::from(importing.await.unwrap().is_ok_and(|response| response.status() == 200));
            (program, engine) = place.start().await;
            let now = export(&engine).await;
            match (now == before, now == after) {
                (true, _) => unchanged += 1,
                (_, true) => imported += 1,
                _ => panic!("{mode}, killed after {instant:?}: a part of it is there"),
            }
            let left = fs::read_dir(place.test_env.path()).unwrap().map(|entry| entry.unwrap().file_name());
            let left: Vec<_> = left.filter(|name| name.to_str().unwrap().contains("import")).collect();
            assert!(left.is_empty(), "{left:?}");
            // And it works.
            assert_completed(&engine.execute("mine", "Still there?").await.collect().await);
        }
        print_line(&format!(
            "{mode}: {unchanged} kills came before the import was in force, {imported} after ({answered} answered)"
        ));
        assert!(unchanged > 0, "no kill came before the import was in force");
        assert!(imported >= answered, "what was answered was lost");
    }
}

/// How much memory a process has of its own and of its share of others, now and at most since the last
/// [`reset_peak`], in KiB.
fn resident_and_peak_kib(program: &Program) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{}/status", program.pid().as_raw_nonzero())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    (field("VmRSS:"), field("VmHWM:"))
}

fn reset_peak(program: &Program) {
    fs::write(format!("/proc/{}/clear_refs", program.pid().as_raw_nonzero()), "5").unwrap();
}

fn print_line(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap();
}

/// The hash of what `engine` exports, and how many bytes that is.
async fn export_hash(engine: &Engine) -> (String, usize) {
    let response = engine.request(Method::GET, "/memory/export").send().await.unwrap();
    assert_eq!(response.status(), 200);
    let (mut hash, mut length) = (Sha256::new(), 0);
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.unwrap();
        hash.update(&piece);
        length += piece.len();
    }
    let hash = hash.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    });
    (hash, length)
}

/// How much memory an engine may take for an import or an export, in KiB, however large it is.
const MAX_EXTRA_KIB: u64 = 64 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_size_of_what_is_moved_costs_no_memory() {
    let most = env_number("ROUNDHOUSE_TEST_TRANSFER_MIB", 16);
    for mib in [most / 4, most / 2, most] {
        let (from, to) = (StandaloneEngine::new(), StandaloneEngine::new());
        let ((one, engine), (other, fresh)) = (from.start().await, to.start().await);
        let (idle, _) = resident_and_peak_kib(&one);
        let (idle_fresh, _) = resident_and_peak_kib(&other);
        let start = Instant::now();
        reset_peak(&one);
        let pieces =
            futures::stream::iter(SyntheticExport::with_mib(mib).chunks().map(Ok::<Bytes, std::io::Error>));
        import(&engine, "merge", Body::wrap_stream(pieces)).await;
        let (took, (_, peak)) = (start.elapsed(), resident_and_peak_kib(&one));

        // Out of the one and into the other, neither of which ever has it whole.
        reset_peak(&one);
        reset_peak(&other);
        let start = Instant::now();
        let export = engine.request(Method::GET, "/memory/export").send().await.unwrap();
        assert_eq!(export.status(), 200);
        import(&fresh, "replace", Body::wrap_stream(export.bytes_stream())).await;
        let moved = start.elapsed();
        let ((_, peak_export), (_, peak_import)) =
            (resident_and_peak_kib(&one), resident_and_peak_kib(&other));
        let exported = export_hash(&engine).await;
        assert_eq!(export_hash(&fresh).await, exported);
        let grown = [
            peak.saturating_sub(idle),
            peak_export.saturating_sub(idle),
            peak_import.saturating_sub(idle_fresh),
        ];
        print_line(&format!(
            "{mib} MiB ({} bytes exported): imported in {}; moved in {}; memory grew by {} KiB importing, {} KiB \
             exporting, {} KiB importing what was exported, from {idle} KiB",
            exported.1,
            seconds(took),
            seconds(moved),
            grown[0],
            grown[1],
            grown[2],
        ));
        assert!(grown.iter().all(|grown| *grown < MAX_EXTRA_KIB), "{grown:?} KiB");
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
