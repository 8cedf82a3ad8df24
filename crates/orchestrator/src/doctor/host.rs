//! The host: its disks, its clock, the ports of engines, and the certificates that it trusts.

use std::fs;
use std::path::{Path, PathBuf};

use api::Timestamp;
use rustix::fs::statvfs;

use super::Check;
use crate::config::PortRange;

const GIB: u64 = 1024 * 1024 * 1024;
/// Less room than this is little, whatever the size of the disk.
const LEAST_FREE: u64 = GIB;
/// A larger disk has little room below a twentieth of its size, but never above this.
const MOST_NEEDED: u64 = 20 * GIB;
/// How far clocks may be apart: certificates, signatures and the order of events tolerate that.
const MAX_CLOCK_DIFFERENCE_MS: i64 = 5_000;

/// The room on a disk, in bytes and in files.
#[derive(Clone, Copy, Debug)]
struct Room {
    free: u64,
    total: u64,
    free_files: u64,
    /// 0 on file systems that do not count them.
    total_files: u64,
}

impl Room {
    /// What is scarce, for a sentence about the disk.
    fn shortage(self) -> Option<String> {
        let Self { free, total, free_files, total_files } = self;
        if free < (total / 20).clamp(LEAST_FREE, MOST_NEEDED) {
            let mib = |bytes: u64| bytes / (1024 * 1024);
            return Some(format!("{} of {} MiB are free", mib(free), mib(total)));
        }
        (free_files < total_files / 20).then(|| format!("{free_files} of {total_files} inodes are free"))
    }
}

/// Checks the disks of these folders, each with the variable that names it.
pub(super) fn check_disks(folders: &[(&'static str, PathBuf)]) -> Check {
    let mut found = Vec::new();
    for (variable, folder) in folders {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.clone());
        // What does not exist yet is created on the disk of what exists above it.
        let Some(existing) = folder.ancestors().find(|folder| folder.exists()) else { continue };
        let folder = folder.display();
        match room(existing) {
            Ok(room) => found.extend(room.shortage().map(|shortage| {
                format!(
                    "the disk of {folder} ({variable}) is nearly full, {shortage}: make room, or turns and backups will \
                     fail"
                )
            })),
            Err(error) => found.push(format!("the disk of {folder} ({variable}) cannot be examined: {error}")),
        }
    }
    Check::new("disks", found, "there is room")
}

fn room(folder: &Path) -> std::io::Result<Room> {
    let found = statvfs(folder)?;
    Ok(Room {
        free: found.f_bavail.saturating_mul(found.f_frsize),
        total: found.f_blocks.saturating_mul(found.f_frsize),
        free_files: found.f_favail,
        total_files: found.f_files,
    })
}

/// Compares this host's clock with the database's, and with the last change in the registry.
pub(super) fn check_clock(
    now: Timestamp,
    database_time: Option<Timestamp>,
    last_change_at: Option<Timestamp>,
) -> Check {
    let difference_ms = |other: Timestamp| other.unix_ms().saturating_sub(now.unix_ms());
    let seconds = |ms: i64| ms.unsigned_abs() / 1_000;
    let mut found = Vec::new();
    if let Some(ms) = database_time.map(difference_ms).filter(|ms| ms.abs() > MAX_CLOCK_DIFFERENCE_MS) {
        let direction = if ms > 0 { "behind" } else { "ahead of" };
        found.push(format!(
            "this host's clock is {} s {direction} the database's: synchronize both with NTP",
            seconds(ms)
        ));
    }
    if let Some(ms) = last_change_at.map(difference_ms).filter(|ms| *ms > MAX_CLOCK_DIFFERENCE_MS) {
        found.push(format!(
            "the registry has changes that are {} s ahead of this host's clock: it was set back, or another host's is \
             ahead. Synchronize them with NTP; until then, times of schedules and tokens are off",
            seconds(ms)
        ));
    }
    Check::new("clock", found, "it agrees with the registry")
}

/// Checks that the system gives none of the engines' ports to outgoing connections.
pub(super) fn check_port_range(ports: PortRange) -> Option<String> {
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
    let (ephemeral, reserved) = (read("ip_local_port_range").ok()?, read("ip_local_reserved_ports").ok()?);
    describe_overlap(ports, &ephemeral, &reserved)
}

/// `ephemeral` and `reserved` are in the forms of `ip-sysctl`: two numbers, and a list such as `8080,9148-9150`.
fn describe_overlap(ports: PortRange, ephemeral: &str, reserved: &str) -> Option<String> {
    let (first, last) = ephemeral.trim().split_once(char::is_whitespace)?;
    let (first, last) = (first.parse().ok()?, last.trim().parse().ok()?);
    let (low, high) = (ports.min().max(first), ports.max().min(last));
    let is_reserved = |port: u16| {
        reserved.trim().split(',').any(|range| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            from.parse().is_ok_and(|from: u16| from <= port) && to.parse().is_ok_and(|to: u16| port <= to)
        })
    };
    let taken = (low..=high).any(|port| !is_reserved(port));
    taken.then(|| {
        format!(
            "the engines' ports {}-{} (ORCH_PORT_MIN, ORCH_PORT_MAX) overlap with those that the system gives to outgoing \
             connections, {first}-{last}: choose others, or reserve them with \
             `sysctl net.ipv4.ip_local_reserved_ports={low}-{high}`",
            ports.min(),
            ports.max()
        )
    })
}

/// Checks that this host trusts any certificate authority: model providers and webhooks are called with TLS.
pub(super) fn check_certificates() -> Check {
    let loaded = rustls_native_certs::load_native_certs();
    let mut found = Vec::new();
    if loaded.certs.is_empty() {
        let reason = loaded.errors.first().map_or_else(String::new, |error| format!(" ({error})"));
        found.push(format!(
            "no certificate authority is known on this host{reason}: install the package ca-certificates, or name a file \
             with SSL_CERT_FILE; until then, no call with https:// succeeds"
        ));
    }
    Check::new("certificates", found, format!("{} authorities are trusted", loaded.certs.len()))
}

#[cfg(test)]
#[path = "../../tests/unit/doctor_host.rs"]
mod tests;
