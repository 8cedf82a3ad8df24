//! Story 44: the memory of an engine is moved into another one: completely or not at all, even if the engine is
//! killed, and with little RAM, whatever its size.

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
use crate::support::{Engine, Program, StandaloneEngine, env_number, processes};

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

#[tokio::test]
async fn an_import_that_is_killed_at_any_moment_leaves_all_of_it_or_nothing() {
    let kills = env_number("ROUNDHOUSE_TEST_TRANSFER_KILLS", 8);
    let setup = StandaloneEngine::new();
    let (mut program, mut engine) = setup.start().await;
    assert_completed(&engine.execute("mine", "Hello.").await.collect().await);
    let before = export(&engine).await;
    let document = SyntheticExport::with_tasks(6).document();
    for mode in ["merge", "replace"] {
        import(&engine, "replace", before.clone()).await;
        let start = Instant::now();
        import(&engine, mode, document.clone()).await;
        let elapsed = start.elapsed();
        let after = export(&engine).await;
        assert_ne!(before, after);

        let (mut unchanged, mut imported, mut answered) = (0, 0, 0);
        for kill in 0..=kills {
            import(&engine, "replace", before.clone()).await;
            assert_eq!(export(&engine).await, before);
            let path = format!("/memory/import?mode={mode}");
            let importing = tokio::spawn(engine.request(Method::POST, &path).body(document.clone()).send());
            // The kills are spread over the duration of the first import, and a little beyond.
            let share = f64::from(u32::try_from(kill).unwrap()) / f64::from(u32::try_from(kills).unwrap());
            let instant = elapsed.mul_f64(1.2 * share);
            tokio::time::sleep(instant).await;
            processes::kill(program.pid());
            answered += usize::from(importing.await.unwrap().is_ok_and(|response| response.status() == 200));
            (program, engine) = setup.start().await;
            let now = export(&engine).await;
            match (now == before, now == after) {
                (true, _) => unchanged += 1,
                (_, true) => imported += 1,
                _ => panic!("{mode}, killed after {instant:?}: the import is there in part"),
            }
            let leftovers =
                fs::read_dir(setup.test_env.path()).unwrap().map(|entry| entry.unwrap().file_name());
            let leftovers: Vec<_> =
                leftovers.filter(|name| name.to_str().unwrap().contains("import")).collect();
            assert!(leftovers.is_empty(), "{leftovers:?}");
            // And the engine works.
            assert_completed(&engine.execute("mine", "Still there?").await.collect().await);
        }
        print_line(&format!(
            "{mode}: {unchanged} kills before the import was committed, {imported} after it ({answered} answered)"
        ));
        assert!(unchanged > 0, "no kill came before the import was committed");
        assert!(imported >= answered, "an acknowledged import was lost");
    }
}

/// The resident memory of a process, now and its peak since the last [`reset_peak`], in KiB.
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

/// The SHA-256 of the engine's export in hex, and its length in bytes.
async fn export_hash(engine: &Engine) -> (String, usize) {
    let response = engine.request(Method::GET, "/memory/export").send().await.unwrap();
    assert_eq!(response.status(), 200);
    let (mut hash, mut length) = (Sha256::new(), 0);
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.unwrap();
        hash.update(&chunk);
        length += chunk.len();
    }
    (hex::encode(hash.finalize()), length)
}

/// How much memory an engine may use for an import or an export of any size, in KiB.
const MAX_EXTRA_KIB: u64 = 64 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_size_of_what_is_moved_costs_no_memory() {
    let max_mib = env_number("ROUNDHOUSE_TEST_TRANSFER_MIB", 16);
    for mib in [max_mib / 4, max_mib / 2, max_mib] {
        let (from, to) = (StandaloneEngine::new(), StandaloneEngine::new());
        let ((source, engine), (target, fresh)) = (from.start().await, to.start().await);
        let (idle, _) = resident_and_peak_kib(&source);
        let (idle_fresh, _) = resident_and_peak_kib(&target);
        let start = Instant::now();
        reset_peak(&source);
        let chunks =
            futures::stream::iter(SyntheticExport::with_mib(mib).chunks().map(Ok::<Bytes, std::io::Error>));
        import(&engine, "merge", Body::wrap_stream(chunks)).await;
        let (elapsed, (_, peak)) = (start.elapsed(), resident_and_peak_kib(&source));

        // Streamed from one engine into the other; neither ever holds the whole document.
        reset_peak(&source);
        reset_peak(&target);
        let start = Instant::now();
        let export = engine.request(Method::GET, "/memory/export").send().await.unwrap();
        assert_eq!(export.status(), 200);
        import(&fresh, "replace", Body::wrap_stream(export.bytes_stream())).await;
        let moved = start.elapsed();
        let ((_, peak_export), (_, peak_import)) =
            (resident_and_peak_kib(&source), resident_and_peak_kib(&target));
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
            seconds(elapsed),
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
