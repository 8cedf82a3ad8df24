//! The engines' image with the binary under test.

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
use super::schema::ENGINE_RECORD;
use super::skip;
use super::test_env::BINARY;
use super::{Deployment, Product};

/// The base image.
pub(crate) fn base_image() -> String {
    std::env::var("ROUNDHOUSE_TEST_BASE_IMAGE").unwrap_or_else(|_| "roundhouse-base:bookworm".to_owned())
}

/// The image's name without its version. It depends on the binary's path, so that several checkouts do not share
/// images.
pub(crate) fn repository() -> String {
    format!("roundhouse-test-{:016x}/svc-engine", hash(BINARY))
}

/// The reference of an image of this version.
pub(crate) fn reference(version: &str) -> String {
    format!("{}:{version}", repository())
}

/// The image of this build, built once; skips the story and returns `None` if it cannot be built.
pub(crate) fn current_build(docker: &Docker) -> Option<String> {
    static BUILT: OnceLock<Result<String, String>> = OnceLock::new();
    match BUILT.get_or_init(|| build(docker)) {
        Ok(reference) => Some(reference.clone()),
        Err(reason) => {
            skip(&format!("the engines' image: {reason}"));
            None
        }
    }
}

/// An image under the name of another version of the engines' image. Dropping it removes the name.
pub(crate) struct RetaggedImage {
    docker: Docker,
    pub(crate) reference: String,
}

impl RetaggedImage {
    /// The engines' image.
    pub(crate) async fn new(docker: &Docker, version: &str) -> Self {
        Self::tag(docker, &reference(env!("CARGO_PKG_VERSION")), version).await
    }

    /// An image that is no engine.
    pub(crate) async fn broken(docker: &Docker, version: &str) -> Self {
        Self::tag(docker, &base_image(), version).await
    }

    async fn tag(docker: &Docker, image: &str, version: &str) -> Self {
        let reference = reference(version);
        docker.run(&["tag", image, &reference]).await;
        Self { docker: docker.clone(), reference }
    }
}

impl Drop for RetaggedImage {
    fn drop(&mut self) {
        // A container may still be being removed.
        let _ = self.docker.run_blocking(&["image", "rm", "--force", &self.reference]);
    }
}

/// The image that a user's engine runs; the orchestrator and the daemon must agree on it.
pub(crate) async fn of_engine(deployment: &Deployment, product: &Product, user: &str) -> String {
    let record = product.get(user).await.assert_ok(ENGINE_RECORD);
    let container =
        deployment.docker_daemon().container_of(record["engine_id"].as_str().unwrap()).await.unwrap();
    let inspected = deployment.docker_daemon().inspect(&container).await;
    assert_eq!(record["engine_version"], inspected["Config"]["Image"], "{user}");
    record["engine_version"].as_str().unwrap().to_owned()
}

fn build(docker: &Docker) -> Result<String, String> {
    let base_id = docker.run_blocking(&["image", "inspect", "--format", "{{.Id}}", &base_image()]);
    let base_id = base_id.map_err(|error| format!("{}: {error}", base_image()))?;
    // Another test run of the same checkout may be building it.
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
    build_from(docker, Target::Engine, Path::new(BINARY), &reference, &binary)?;
    if let Ok(old) = old {
        // The removal fails if a container of another run needs the image.
        let _ = docker.run_blocking(&["image", "rm", &old]);
    }
    Ok(reference)
}

/// A stage of the shipped Dockerfile.
#[derive(Clone, Copy)]
enum Target {
    Engine,
    Orchestrator,
}

/// An image of its own. Dropping it removes the image.
pub(crate) struct ProgramImage {
    docker: Docker,
    pub(crate) reference: String,
}

impl ProgramImage {
    pub(crate) fn build(docker: &Docker, program: &Path, version: &str) -> Self {
        let reference = reference(version);
        build_from(docker, Target::Engine, program, &reference, &program.display().to_string()).unwrap();
        Self { docker: docker.clone(), reference }
    }

    /// The orchestrator's image with the program under test, under a name of its own; skips the story and returns
    /// `None` if it cannot be built.
    pub(crate) fn of_orchestrator(docker: &Docker) -> Option<Self> {
        // The same base is needed, and its lack is reported once.
        current_build(docker)?;
        let reference = format!("{}-orchestrator-{}:test", repository(), std::process::id());
        build_from(docker, Target::Orchestrator, Path::new(BINARY), &reference, BINARY).unwrap();
        Some(Self { docker: docker.clone(), reference })
    }
}

impl Drop for ProgramImage {
    fn drop(&mut self) {
        // A container may still be being removed.
        let _ = self.docker.run_blocking(&["image", "rm", "--force", &self.reference]);
    }
}

/// Builds with the shipped Dockerfile from a stripped copy of the program.
fn build_from(
    docker: &Docker,
    target: Target,
    program: &Path,
    reference: &str,
    binary: &str,
) -> Result<(), String> {
    let target = match target {
        Target::Engine => "engine",
        Target::Orchestrator => "orchestrator",
    };
    let context = TempDir::with_prefix("roundhouse-image-").map_err(|error| error.to_string())?;
    let copy = context.path().join("roundhouse");
    let stripped = Command::new("strip").arg("-o").arg(&copy).arg(program).status();
    if !stripped.is_ok_and(|status| status.success()) {
        fs::copy(program, &copy).map_err(|error| error.to_string())?;
    }
    let mut recipe = fs::read_to_string(dockerfile()).map_err(|error| error.to_string())?;
    if program != Path::new(BINARY) {
        // Earlier versions cannot unpack their catalog. Orchestrators mount one.
        recipe =
            recipe.lines().filter(|line| !line.contains("unpack-catalog")).collect::<Vec<_>>().join("\n");
    }
    let file = context.path().join("Dockerfile");
    fs::write(&file, recipe).map_err(|error| error.to_string())?;
    let base = format!("BASE={}", base_image());
    let label = format!("roundhouse.test.binary={binary}");
    let options = ["build", "--quiet", "--target", target, "--file", text(&file)];
    let arguments = ["--build-arg", &base, "--label", &label, "--tag", reference, text(context.path())];
    docker.run_blocking(&[options.as_slice(), &arguments].concat()).map(drop)
}

fn dockerfile() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/Dockerfile")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A fingerprint that changes with every build.
fn fingerprint(base_id: &str) -> String {
    let file = fs::metadata(BINARY).unwrap();
    let modified = file.modified().unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let recipe = fs::read(dockerfile()).unwrap_or_default();
    format!("{:016x}", hash((file.len(), modified.as_nanos(), recipe, base_id)))
}

fn hash(value: impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
