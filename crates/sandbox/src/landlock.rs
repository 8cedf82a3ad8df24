//! The Landlock rules of a program: the files that it may read, write and execute. All other files, TCP unless the
//! network is on, abstract sockets outside of the sandbox and signals to processes outside are denied.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use crate::HiddenFiles;

/// The oldest Landlock version with all required features: it also restricts signals and abstract sockets
/// (Linux 6.12).
const REQUIRED_ABI: ABI = ABI::V6;

/// The system's programs and libraries.
pub(crate) const PROGRAM_PATHS: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store"];

/// The files of `/etc` that the resolver, the user database, TLS and the time zone need.
const ETC_PATHS: [&str; 23] = [
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

/// The files of `/etc` that the loader needs.
const LOADER_PATHS: [&str; 5] = [
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld-musl-x86_64.path",
    "/etc/ld-musl-aarch64.path",
];
/// Devices that programs may read and write, because they neither store nor transmit data.
const DEVICE_PATHS: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];

/// Devices that programs may only read.
const RANDOM_DEVICE_PATHS: [&str; 2] = ["/dev/random", "/dev/urandom"];

/// The paths that a program may access, by kind of access.
#[derive(Debug)]
pub(crate) struct AccessProfile {
    /// Read, write and execute.
    workspace: Option<PathBuf>,
    /// Read and execute.
    programs: Vec<PathBuf>,
    /// List only. The entries of these folders have rules of their own.
    list_only: Vec<PathBuf>,
    /// Read.
    read_only: Vec<PathBuf>,
    /// Read and write existing files.
    devices: Vec<PathBuf>,
    /// Whether TCP is allowed.
    network: bool,
}

impl AccessProfile {
    /// The profile of a program with this workspace, these readable folders and the hidden files in them.
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
        let mut data = paths(&LOADER_PATHS);
        data.extend(paths(&ETC_PATHS));
        data.extend(paths(&RANDOM_DEVICE_PATHS));
        let list_only = exposed.list_only;
        Self {
            workspace: Some(workspace.into()),
            programs,
            list_only,
            read_only: data,
            devices: paths(&DEVICE_PATHS),
            network,
        }
    }

    /// The profile of a program that reaches no files but the system's programs and libraries. It is given by
    /// a path that may be that of a running executable, whose name may be gone.
    pub(crate) fn execute_only(program: Option<PathBuf>) -> Self {
        let mut programs: Vec<PathBuf> = PROGRAM_PATHS.iter().map(PathBuf::from).collect();
        programs.extend(program);
        let read_only = LOADER_PATHS.iter().map(PathBuf::from).collect();
        let list_only = Vec::new();
        Self { workspace: None, programs, list_only, read_only, devices: Vec::new(), network: false }
    }

    /// Applies the profile to this thread, the program that it executes, and its descendants. This cannot be
    /// undone.
    pub(crate) fn enforce(&self) -> Result<(), String> {
        let workspace = self.workspace.as_ref().map(PathFd::new).transpose();
        let workspace = workspace.map_err(|error| error.to_string())?;
        let status = self
            .ruleset(workspace)
            .and_then(RulesetCreated::restrict_self)
            .map_err(|error| error.to_string())?;
        if status.ruleset == RulesetStatus::FullyEnforced && status.no_new_privs {
            return Ok(());
        }
        Err(format!("Landlock enforces only a part of the rules ({:?})", status.ruleset))
    }

    fn ruleset(&self, workspace: Option<PathFd>) -> Result<RulesetCreated, RulesetError> {
        let execute = AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir;
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let write = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
        base_ruleset(self.network)?
            .create()?
            .add_rules(
                workspace.map(|folder| Ok::<_, RulesetError>(PathBeneath::new(folder, workspace_access()))),
            )?
            .add_rules(path_beneath_rules(&self.programs, execute))?
            .add_rules(path_beneath_rules(&self.list_only, AccessFs::ReadDir))?
            .add_rules(path_beneath_rules(&self.read_only, read))?
            .add_rules(path_beneath_rules(&self.devices, write))
    }
}

/// The real paths of the hidden files that exist now.
fn hidden_files(hidden: &[HiddenFiles]) -> BTreeSet<PathBuf> {
    let matching = |HiddenFiles { folder, ending }: &HiddenFiles| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let found = entries.filter(|entry| entry.file_name().as_encoded_bytes().ends_with(ending.as_bytes()));
        found.filter_map(|entry| fs::canonicalize(entry.path()).ok()).collect::<Vec<_>>()
    };
    hidden.iter().flat_map(matching).collect()
}

/// The paths within readable folders that get rules. A rule covers everything below its path, so a folder that
/// contains a hidden file at any depth gets one rule per entry; entries that are created later have no rule.
#[derive(Default)]
struct ExposedPaths {
    hidden: BTreeSet<PathBuf>,
    readable: Vec<PathBuf>,
    list_only: Vec<PathBuf>,
    visited: BTreeSet<PathBuf>,
}

impl ExposedPaths {
    fn add(&mut self, path: &Path) {
        // The real path, so that a hidden file stays hidden under another name or through a link.
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

/// Checks whether this kernel can enforce a profile. The error is the innermost cause.
pub(crate) fn check_supported() -> Result<(), String> {
    base_ruleset(false).and_then(Ruleset::create).map(drop).map_err(|error| {
        let mut reason: &dyn std::error::Error = &error;
        while let Some(source) = reason.source() {
            reason = source;
        }
        reason.to_string()
    })
}

/// A ruleset that handles all access rights of the required version, and so denies all of them until rules are
/// added.
fn base_ruleset(network: bool) -> Result<Ruleset, RulesetError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(REQUIRED_ABI))?
        .scope(Scope::from_all(REQUIRED_ABI))?;
    if network { Ok(ruleset) } else { ruleset.handle_access(AccessNet::from_all(REQUIRED_ABI)) }
}

/// All access rights except for making device nodes and sockets and for device ioctls: these lead out of the
/// sandbox.
fn workspace_access() -> BitFlags<AccessFs> {
    AccessFs::from_all(REQUIRED_ABI)
        & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock | AccessFs::IoctlDev)
}
