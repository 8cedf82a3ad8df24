//! Measures the upload and the download of a large file, and the memory that an engine takes for them.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Method;

use crate::baselines::{self, BaselineKind};
use crate::client::Client;
use crate::context::BenchContext;
use crate::engine::{Engine, EngineSetup};
use crate::paced_provider::{Pace, PacedProvider};
use crate::probe;
use crate::process::{Process, free_port, log_file};
use crate::report::{Budget, Quantity, Subject, Unit};

/// The least rate, as a part of the baseline's.
const MIN_RATE: f64 = 0.8;
/// How much more memory than when idle the engine may take, in MiB.
const MAX_PEAK_MIB: f64 = 32.0;
/// A model that is never called.
const PACE: Pace = Pace { deltas: 1, pause: None };

pub(super) async fn measure(bench: &BenchContext) -> anyhow::Result<Vec<Quantity>> {
    let mebibytes = bench.size.choose(64, 1_024);
    let content = content(mebibytes << 20);
    let provider = PacedProvider::start(PACE).await?;
    let (engine, _) =
        EngineSetup::new(&bench.binary, bench.new_folder()?, provider.model_config())?.start()?;
    let (_baseline, port) = start_baseline(bench)?;
    let name = |what: &str| format!("{what}, {mebibytes} MiB");
    let mut upload = quantity(&name("upload"), Unit::MegabytesPerSecond);
    let mut download = quantity(&name("download"), Unit::MegabytesPerSecond);
    let mut memory = quantity("peak memory", Unit::Mebibytes);
    memory.baselines = vec![Subject::comparison("idle")];
    memory.budget = Some(Budget::AboveBaseline(MAX_PEAK_MIB));
    for round in 0..bench.rounds {
        bench.report_round("files", round);
        let idle = reset_peak(&engine.process)?;
        let ours = send(&mut engine.connect().await?, &engine, &content).await?;
        let bare = send(&mut connect(port).await?, &engine, &content).await?;
        upload.add(rate(&content, ours)?, rate(&content, bare)?);
        let ours = receive(&mut engine.connect().await?, &engine, &content).await?;
        let bare = receive(&mut connect(port).await?, &engine, &content).await?;
        download.add(rate(&content, ours)?, rate(&content, bare)?);
        memory.add(resident_mib(&engine.process, "VmHWM:")?, idle);
    }
    Ok(vec![upload, download, memory])
}

/// Returns bytes of which no two neighbouring pages are equal.
fn content(length: usize) -> Bytes {
    let words = (0_u64..).flat_map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    words.take(length).collect::<Vec<u8>>().into()
}

fn start_baseline(bench: &BenchContext) -> anyhow::Result<(Process, u16)> {
    let (folder, port) = (bench.new_folder()?, free_port()?);
    let command = baselines::command(&bench.baseline_program, BaselineKind::Files, port, &folder)?;
    let mut process = Process::spawn(command, "the files baseline", log_file(&folder, "baseline"))?;
    probe::wait_until_healthy(&mut process, port)?;
    Ok((process, port))
}

async fn connect(port: u16) -> anyhow::Result<Client> {
    Client::connect(([127, 0, 0, 1], port).into()).await
}

/// Uploads the content; returns the time until it was acknowledged.
async fn send(client: &mut Client, engine: &Engine, content: &Bytes) -> anyhow::Result<Duration> {
    let request = engine.file(client, Method::PUT).body(Full::new(content.clone()))?;
    let began = Instant::now();
    let (status, _) = client.fetch(request).await?;
    ensure!(status.is_success(), "the upload was answered with {status}");
    Ok(began.elapsed())
}

/// Downloads the content; returns the time until its last byte.
async fn receive(client: &mut Client, engine: &Engine, content: &Bytes) -> anyhow::Result<Duration> {
    let request = engine.file(client, Method::GET).body(Full::default())?;
    let began = Instant::now();
    let mut response = client.send(request).await?;
    let mut received = 0;
    while let Some(frame) = response.frame().await {
        let Ok(piece) = frame?.into_data() else { continue };
        let expected = content.get(received..received + piece.len());
        ensure!(expected == Some(&*piece), "the download differs from byte {received} on");
        received += piece.len();
    }
    ensure!(received == content.len(), "the download has {received} bytes");
    Ok(began.elapsed())
}

fn rate(content: &Bytes, elapsed: Duration) -> anyhow::Result<f64> {
    Ok(f64::from(u32::try_from(content.len())?) / elapsed.as_secs_f64() / 1_000_000.0)
}

/// Resets the process's peak to its current memory, which is returned in MiB.
fn reset_peak(process: &Process) -> anyhow::Result<f64> {
    let path = format!("/proc/{}/clear_refs", process.pid());
    fs::write(&path, "5").with_context(|| format!("{path} cannot be written"))?;
    resident_mib(process, "VmRSS:")
}

fn resident_mib(process: &Process, name: &str) -> anyhow::Result<f64> {
    let path = format!("/proc/{}/status", process.pid());
    let text = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib: Option<u32> = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    Ok(f64::from(kib.with_context(|| format!("{path} has an unknown format"))?) / 1_024.0)
}

fn quantity(name: &str, unit: Unit) -> Quantity {
    Quantity {
        name: name.into(),
        unit,
        subject: Subject::new("engine"),
        baselines: vec![Subject::new("bare axum")],
        budget: Some(Budget::AtLeastTimesBaseline(MIN_RATE)),
    }
}
