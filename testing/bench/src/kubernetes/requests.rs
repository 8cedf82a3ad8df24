//! The requests that the orchestrator has sent to the API server, as the API server's audit log has them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use anyhow::Context as _;
use serde::Deserialize;

/// The numbers of requests, by verb and resource, such as `list pods`; refused ones also by their status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Requests(BTreeMap<String, u64>);

impl Requests {
    pub(super) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns each kind of request, the most frequent first.
    pub(super) fn by_frequency(&self) -> Vec<(&str, u64)> {
        let mut kinds: Vec<_> = self.0.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        kinds
    }

    fn of_lines(lines: &str) -> anyhow::Result<Self> {
        let mut requests = Self::default();
        for line in lines.lines() {
            let event: AuditEvent =
                serde_json::from_str(line).context("the audit log has an unknown format")?;
            *requests.0.entry(event.kind()).or_default() += 1;
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
    fn kind(self) -> String {
        let mut kind = self.verb;
        if let Some(ObjectRef { resource, subresource }) = self.object_ref {
            for part in [resource, subresource].into_iter().flatten() {
                kind.push(' ');
                kind.push_str(&part);
            }
        }
        match self.response_status.and_then(|status| status.code) {
            Some(code) if code >= 400 => format!("{kind} ({code})"),
            _ => kind,
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
        let get = r#"{"verb":"get","objectRef":{"resource":"pods","subresource":"log"},"responseStatus":{"code":500}}"#;
        let list = r#"{"verb":"list","objectRef":{"resource":"pods"},"responseStatus":{"code":200}}"#;
        std::fs::write(&path, format!("{get}\n{list}\n{list}\n{{\"verb\":")).unwrap();
        let mut log = AuditLog::new(path.clone());
        let first = log.new_requests().unwrap();
        assert_eq!(first.by_frequency(), [("list pods", 2), ("get pods log (500)", 1)]);
        assert_eq!(first.total(), 3);
        std::fs::write(&path, format!("{get}\n{list}\n{list}\n{{\"verb\":\"get\"}}\n")).unwrap();
        assert_eq!(log.new_requests().unwrap().by_frequency(), [("get", 1)]);
        assert_eq!(log.new_requests().unwrap(), Requests::default());
    }
}
