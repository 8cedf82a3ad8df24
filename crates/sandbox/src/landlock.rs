//! Which files a program may reach, by Landlock: whatever is not named here is out of reach.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use crate::HiddenFiles;

/// The oldest Landlock with all that is needed: it bounds signals and abstract sockets too (Linux 6.12).
const REQUIRED_ABI: ABI = ABI::V6;

/// The system's programs and libraries.
pub(crate) const PROGRAM_PATHS: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];

/// What the loader, the resolver, the lists of users and TLS need, and the time zone.
const ETC_PATHS: [&str; 28] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld-musl-x86_64.path",
    "/etc/ld-musl-aarch64.path",
    "/etc/alternatives",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/protocols",
    "/etc/services",
    "/etc/passwd",
    "/etc/group",
    "/etc/ssl/certs",
    "/etc/ssl/cert.pem",
    "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/pki/tls/certs",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/openssl.cnf",
    "/etc/pki/ca-trust/extracted",
    "/etc/crypto-policies/back-ends",
    "/etc/localtime",
    "/etc/timezone",
];

/// Devices that hold nothing and reach nobody.
const DEVICE_PATHS: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

/// Devices that are read alone.
const RANDOM_DEVICE_PATHS: [&str; 2] = ["/dev/random", "/dev/urandom"];

/// What may be done where.
#[derive(Debug)]
pub(crate) struct AccessProfile {
    /// Read, written and executed.
    workspace: PathBuf,
    /// Read and executed.
    programs: Vec<PathBuf>,
    /// Listed, and no more: what is in them has rules of its own.
    list_only: Vec<PathBuf>,
    /// Read.
    read_only: Vec<PathBuf>,
    /// Read and written, and nothing made in it.
    devices: Vec<PathBuf>,
    /// Whether TCP is refused here too.
    network: bool,
}

impl AccessProfile {
    /// What a program with this workspace may reach.
    pub(crate) fn new(
        workspace: &Path,
        (readable, hidden): (&[PathBuf], &[HiddenFiles]),
        network: bool,
    ) -> Self {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let mut exposed = ExposedPaths { hidden: hidden_files(hidden), ..ExposedPaths::default() };
        for folder in readable {
            exposed.add(folder);
        }
        let mut programs = paths(&PROGRAM_PATHS);
        programs.extend(exposed.readable);
        let mut data = paths(&ETC_PATHS);
        data.extend(paths(&RANDOM_DEVICE_PATHS));
        let listed = exposed.list_only;
        Self {
            workspace: workspace.into(),
            programs,
            list_only: listed,
            read_only: data,
            devices: paths(&DEVICE_PATHS),
            network,
        }
    }

    /// Confines this thread, and what it becomes or starts, to it.
    pub(crate) fn enforce(&self) -> Result<(), String> {
        let workspace = PathFd::new(&self.workspace).map_err(|error| error.to_string())?;
        let status = self
            .ruleset(workspace)
            .and_then(RulesetCreated::restrict_self)
            .map_err(|error| error.to_string())?;
        if status.ruleset == RulesetStatus::FullyEnforced && status.no_new_privs {
            return Ok(());
        }
        Err(format!("Landlock enforces it in part alone ({:?})", status.ruleset))
    }

    fn ruleset(&self, workspace: PathFd) -> Result<RulesetCreated, RulesetError> {
        let run = AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir;
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let write = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
        base_ruleset(self.network)?
            .create()?
            .add_rule(PathBeneath::new(workspace, workspace_access()))?
            .add_rules(path_beneath_rules(&self.programs, run))?
            .add_rules(path_beneath_rules(&self.list_only, AccessFs::ReadDir))?
            .add_rules(path_beneath_rules(&self.read_only, read))?
            .add_rules(path_beneath_rules(&self.devices, write))
    }
}

/// The hidden files that there are, by their real paths.
fn hidden_files(hidden: &[HiddenFiles]) -> BTreeSet<PathBuf> {
    let of = |HiddenFiles { folder, ending }: &HiddenFiles| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let found = entries.filter(|entry| entry.file_name().as_encoded_bytes().ends_with(ending.as_bytes()));
        found.filter_map(|entry| fs::canonicalize(entry.path()).ok()).collect::<Vec<_>>()
    };
    hidden.iter().flat_map(of).collect()
}

/// What of readable folders is exposed. A rule covers all below it, so a folder with a hidden file somewhere in it is
/// exposed entry by entry; an entry that comes later is not.
#[derive(Default)]
struct ExposedPaths {
    hidden: BTreeSet<PathBuf>,
    readable: Vec<PathBuf>,
    list_only: Vec<PathBuf>,
    visited: BTreeSet<PathBuf>,
}

impl ExposedPaths {
    fn add(&mut self, path: &Path) {
        // Also by another name, or through a link, it is the same file.
        let Ok(real) = fs::canonicalize(path) else { return };
        if self.hidden.contains(&real) || !self.visited.insert(real.clone()) {
            return;
        }
        if !self.hidden.iter().any(|hidden| hidden.starts_with(&real)) {
            return self.readable.push(real);
        }
        for entry in fs::read_dir(&real).into_iter().flatten().flatten() {
            self.add(&entry.path());
        }
        self.list_only.push(real);
    }
}

/// Whether this kernel can enforce a profile.
pub(crate) fn check_supported() -> Result<(), String> {
    base_ruleset(false).and_then(Ruleset::create).map(drop).map_err(|error| {
        let mut reason: &dyn std::error::Error = &error;
        while let Some(deeper) = reason.source() {
            reason = deeper;
        }
        reason.to_string()
    })
}

/// A ruleset that handles all that the needed Landlock knows, and so allows nothing of it yet.
fn base_ruleset(network: bool) -> Result<Ruleset, RulesetError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(REQUIRED_ABI))?
        .scope(Scope::from_all(REQUIRED_ABI))?;
    if network { Ok(ruleset) } else { ruleset.handle_access(AccessNet::from_all(REQUIRED_ABI)) }
}

/// Everything but to make devices and sockets, which are doors to others.
fn workspace_access() -> BitFlags<AccessFs> {
    AccessFs::from_all(REQUIRED_ABI)
        & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock | AccessFs::IoctlDev)
}
