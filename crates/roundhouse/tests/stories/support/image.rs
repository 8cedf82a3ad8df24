//! The engines' image with the binary under test in it.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

use super::docker::Docker;
use super::skip;
use super::test_env::BINARY;

/// What the image is built on.
pub(crate) fn base_image() -> String {
    std::env::var("ROUNDHOUSE_TEST_BASE_IMAGE").unwrap_or_else(|_| "roundhouse-base:bookworm".to_owned())
}

/// The image's name without its version, one for each place where the binary is built: checkouts side by side do not
/// take each other's.
pub(crate) fn repository() -> String {
    format!("roundhouse-test-{:016x}/svc-engine", hash(BINARY))
}

/// The reference of an image of this version.
pub(crate) fn reference(version: &str) -> String {
    format!("{}:{version}", repository())
}

/// The image of this build, made once; none, with a reason that is said, where it cannot be.
pub(crate) fn current_build(docker: &Docker) -> Option<String> {
    static BUILT: OnceLock<Result<String, String>> = OnceLock::new();
    match BUILT.get_or_init(|| build(docker)) {
        Ok(reference) => Some(reference.clone()),
        Err(why) => {
            skip(&format!("the engines' image: {why}"));
            None
        }
    }
}

fn build(docker: &Docker) -> Result<String, String> {
    let base_id = docker.run_blocking(&["image", "inspect", "--format", "{{.Id}}", &base_image()]);
    let base_id = base_id.map_err(|why| format!("{}: {why}", base_image()))?;
    // Another run of the same stories may be at it.
    let lock = File::create(std::env::temp_dir().join(format!("roundhouse-test-{:016x}.lock", hash(BINARY))))
        .map_err(|error| error.to_string())?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| error.to_string())?;
    let reference = reference(env!("CARGO_PKG_VERSION"));
    let binary = fingerprint(&base_id);
    let label = "{{index .Config.Labels \"roundhouse.test.binary\"}}";
    let before = docker.run_blocking(&["image", "inspect", "--format", label, &reference]);
    if before.as_deref() == Ok(binary.as_str()) {
        return Ok(reference);
    }
    let old = docker.run_blocking(&["image", "inspect", "--format", "{{.Id}}", &reference]);
    build_from(docker, Path::new(BINARY), &reference, &binary)?;
    if let Ok(old) = old {
        // It stays where a container of another run needs it.
        let _ = docker.run_blocking(&["image", "rm", &old]);
    }
    Ok(reference)
}

/// The image of another program than the one under test. At its end it goes.
pub(crate) struct ProgramImage {
    docker: Docker,
    pub(crate) reference: String,
}

impl ProgramImage {
    pub(crate) fn build(docker: &Docker, program: &Path, version: &str) -> Self {
        let reference = reference(version);
        build_from(docker, program, &reference, &program.display().to_string()).unwrap();
        Self { docker: docker.clone(), reference }
    }
}

impl Drop for ProgramImage {
    fn drop(&mut self) {
        // It may be that a container is just going.
        let _ = self.docker.run_blocking(&["image", "rm", "--force", &self.reference]);
    }
}

/// Builds with the Dockerfile that ships, from a copy of the program without what only a debugger reads.
fn build_from(docker: &Docker, program: &Path, reference: &str, binary: &str) -> Result<(), String> {
    let context = TempDir::with_prefix("roundhouse-image-").map_err(|error| error.to_string())?;
    let copy = context.path().join("roundhouse");
    let stripped = Command::new("strip").arg("-o").arg(&copy).arg(program).status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(program, &copy).map_err(|error| error.to_string())?;
    }
    let file = dockerfile();
    let base = format!("BASE={}", base_image());
    let label = format!("roundhouse.test.binary={binary}");
    let what = ["build", "--quiet", "--target", "engine", "--file", text(&file)];
    let with = ["--build-arg", &base, "--label", &label, "--tag", reference, text(context.path())];
    docker.run_blocking(&[what.as_slice(), &with].concat()).map(drop)
}

fn dockerfile() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/Dockerfile")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What tells one build from the next.
fn fingerprint(base_id: &str) -> String {
    let file = fs::metadata(BINARY).unwrap();
    let made = file.modified().unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let recipe = fs::read(dockerfile()).unwrap_or_default();
    format!("{:016x}", hash((file.len(), made.as_nanos(), recipe, base_id)))
}

fn hash(what: impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}
