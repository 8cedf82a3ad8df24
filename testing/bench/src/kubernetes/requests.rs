//! The requests that the orchestrator has sent to the API server, as the API server's audit log has them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use anyhow::Context as _;
use jiff::Timestamp;
use serde::Deserialize;

/// The requests by verb and resource, such as `list pods`; refused ones also by their status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Requests(BTreeMap<String, Kind>);

/// The requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Kind {
    pub(super) number: u32,
    /// The time that all of them took in the API server.
    total_ms: f64,
}

impl Kind {
    /// The mean time that one of them took in the API server.
    pub(super) fn mean_ms(self) -> f64 {
        self.total_ms / f64::from(self.number)
    }
}

impl Requests {
    pub(super) fn total(&self) -> u32 {
        self.0.values().map(|kind| kind.number).sum()
    }

    /// Returns each kind of request, the most frequent first.
    pub(super) fn by_frequency(&self) -> Vec<(&str, Kind)> {
        let mut kinds: Vec<_> = self.0.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
        kinds.sort_by_key(|(_, kind)| std::cmp::Reverse(kind.number));
        kinds
    }

    fn of_lines(lines: &str) -> anyhow::Result<Self> {
        let mut requests = Self::default();
        for line in lines.lines() {
            let event: AuditEvent =
                serde_json::from_str(line).context("the audit log has an unknown format")?;
            let took = event.stage_timestamp.duration_since(event.request_received_timestamp);
            let kind = requests.0.entry(event.name()).or_default();
            kind.number += 1;
            kind.total_ms += took.as_millis_f64();
        }
        Ok(requests)
    }
}

/// The audit log, read up to some place.
pub(super) struct AuditLog {
    path: PathBuf,
    read: u64,
}

impl AuditLog {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, read: 0 }
    }

    /// Returns the requests that ended since the last call.
    pub(super) fn new_requests(&mut self) -> anyhow::Result<Requests> {
        let mut file = File::open(&self.path).context("there is no audit log")?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        // The last line may be half written.
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        self.read += u64::try_from(bytes.len())?;
        Requests::of_lines(std::str::from_utf8(&bytes)?)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuditEvent {
    verb: String,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
    object_ref: Option<ObjectRef>,
    response_status: Option<ResponseStatus>,
}

#[derive(Deserialize)]
struct ObjectRef {
    resource: Option<String>,
    subresource: Option<String>,
}

#[derive(Deserialize)]
struct ResponseStatus {
    code: Option<u16>,
}

impl AuditEvent {
    fn name(self) -> String {
        let mut name = self.verb;
        if let Some(ObjectRef { resource, subresource }) = self.object_ref {
            for part in [resource, subresource].into_iter().flatten() {
                name.push(' ');
                name.push_str(&part);
            }
        }
        match self.response_status.and_then(|status| status.code) {
            Some(code) if code >= 400 => format!("{name} ({code})"),
            _ => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_what_they_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let times = r#""requestReceivedTimestamp":"2026-01-02T03:04:05.000000Z","stageTimestamp":"2026-01-02T03:04:05.002500Z""#;
        let event = |verb: &str, rest: &str| format!("{{\"verb\":\"{verb}\",{times}{rest}}}\n");
        let log_of_pod =
            r#","objectRef":{"resource":"pods","subresource":"log"},"responseStatus":{"code":500}"#;
        let pods = r#","objectRef":{"resource":"pods"},"responseStatus":{"code":200}"#;
        let first = [event("get", log_of_pod), event("list", pods), event("list", pods)].concat();
        std::fs::write(&path, format!("{first}{{\"verb\":")).unwrap();
        let mut log = AuditLog::new(path.clone());
        let counted = log.new_requests().unwrap();
        let kinds = counted.by_frequency();
        let numbers: Vec<_> = kinds.iter().map(|(name, kind)| (*name, kind.number)).collect();
        assert_eq!(numbers, [("list pods", 2), ("get pods log (500)", 1)]);
        assert!(kinds.iter().all(|(_, kind)| (kind.mean_ms() - 2.5).abs() < 0.01), "{kinds:?}");
        assert_eq!(counted.total(), 3);
        std::fs::write(&path, first + &event("get", "")).unwrap();
        assert_eq!(log.new_requests().unwrap().total(), 1);
        assert_eq!(log.new_requests().unwrap(), Requests::default());
    }
}
