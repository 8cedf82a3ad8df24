//! Copies of brains: made and restored by a Pod on the engine's volume, which this module starts and waits for.
//!
//! The Pod runs this binary with [`COPY_ARG`], which [`copy_main`] handles. A copy that is interrupted is made anew;
//! a restore that is interrupted is repeated before the engine's next launch, because its claim says so.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::obstacle_error;
use super::label::Role;
use super::pod_state::{Exit, Obstacle, PodState, PodView};
use super::removal::KILL_GRACE;
use super::{Inner, spec};
use crate::engine_folder::{EngineFolder, STILL_RUNNING_MESSAGE};
use crate::{BackendError, BrainCopy, BrainFormats, Target};

/// The first argument of the program when it is to copy or restore a brain.
pub const COPY_ARG: &str = "brain-copy";

/// The file in which a container leaves a message for the status of its Pod.
const MESSAGE_FILE: &str = "/dev/termination-log";
/// Where the engine's volume is mounted.
const DATA_FOLDER: &str = "/data";

/// How long a copy may take. The caller has a deadline of its own; this one ends what nobody waits for any more.
const COPY_TIMEOUT: Duration = Duration::from_mins(10);

/// What the Pod does.
#[derive(Clone, Copy, Debug)]
enum Action {
    Copy,
    Restore,
    Formats,
}

impl Action {
    const fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Restore => "restore",
            Self::Formats => "formats",
        }
    }
}

/// What the Pod says when it has succeeded.
#[derive(Serialize, Deserialize)]
struct Done {
    /// The format of the brain, if known.
    format: Option<u32>,
    /// The copy, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    copy: Option<CopyDone>,
}

/// A copy that there is.
#[derive(Serialize, Deserialize)]
struct CopyDone {
    /// Its format, if known.
    format: Option<u32>,
}

impl Inner {
    /// Copies the brain. Fails if the engine runs.
    pub(super) async fn copy_brain(&self, target: Target) -> Result<BrainCopy, BackendError> {
        self.check_stopped(target).await?;
        if self.claim_for(target).await?.is_restoring {
            self.restore_brain(target).await?;
        }
        let Done { format, .. } = self.run_copy_pod(target, Action::Copy).await?;
        Ok(BrainCopy { format })
    }

    /// Replaces the brain by its copy. The claim says so until that is done.
    pub(super) async fn restore_brain(&self, target: Target) -> Result<(), BackendError> {
        self.check_stopped(target).await?;
        self.mark_restoring(target, true).await?;
        self.run_copy_pod(target, Action::Restore).await?;
        self.mark_restoring(target, false).await.map(drop)
    }

    /// Returns the formats of the brain and of its copy. Fails if the engine runs.
    pub(super) async fn brain_formats(&self, target: Target) -> Result<BrainFormats, BackendError> {
        self.check_stopped(target).await?;
        if self.claim_for(target).await?.is_restoring {
            self.restore_brain(target).await?;
        }
        let Done { format, copy } = self.run_copy_pod(target, Action::Formats).await?;
        Ok(BrainFormats { brain: format, copy: copy.map(|copy| BrainCopy { format: copy.format }) })
    }

    /// Fails if the engine may run. Ends a Pod that an earlier call left copying.
    async fn check_stopped(&self, target: Target) -> Result<(), BackendError> {
        let found = self.fenced_pods(target).await?;
        found.reject_superseded()?;
        for pod in &found.own {
            if pod.role == Role::Copy {
                self.end_pod(pod, KILL_GRACE).await?;
            } else if pod.is_alive() {
                return Err(BackendError::Failed(STILL_RUNNING_MESSAGE.to_owned()));
            }
        }
        Ok(())
    }

    async fn run_copy_pod(&self, target: Target, action: Action) -> Result<Done, BackendError> {
        let args = vec![COPY_ARG.to_owned(), action.name().to_owned()];
        let pod = self.cluster.create_pod(&spec::copy_pod(&self.options, target, args)).await?;
        let Some(pod) = pod.and_then(|pod| self.observe(&pod)) else {
            return Err(BackendError::Failed("another Pod has the name of the one that copies".to_owned()));
        };
        let result = self.wait_for_copy(&pod).await;
        // One that still runs is left until the next call ends it: what it does is finished or repeated.
        let ended = self.end_pod(&pod, KILL_GRACE).await;
        let done = result?;
        ended?;
        Ok(done)
    }

    async fn wait_for_copy(&self, pod: &PodView) -> Result<Done, BackendError> {
        let image = &self.options.copy_image;
        let started = self.wait_for(pod, self.options.settings.start_timeout, |pod| match &pod.state {
            PodState::Running | PodState::Exited(_) => Some(Ok(())),
            PodState::Waiting(Some(obstacle @ Obstacle::NoSuchImage(_))) => {
                Some(Err(obstacle_error(obstacle, image)))
            }
            PodState::Waiting(_) => None,
        });
        match started.await? {
            Some(started) => started?,
            None => {
                if let Some(PodState::Waiting(Some(obstacle))) =
                    self.pods.get(pod.engine_id, &pod.uid).map(|pod| pod.state)
                {
                    return Err(obstacle_error(&obstacle, image));
                }
            }
        }
        let exit = self.wait_for(pod, COPY_TIMEOUT, |pod| match &pod.state {
            PodState::Exited(exit) => Some(exit.clone()),
            PodState::Waiting(_) | PodState::Running => None,
        });
        match exit.await? {
            Some(Exit { succeeded: true, output, .. }) => serde_json::from_str(&output).map_err(|error| {
                BackendError::Failed(format!("the copy of a brain gave no result: {error}"))
            }),
            Some(Exit { reason, output, .. }) => {
                let last = output.lines().next_back().unwrap_or(&reason).to_owned();
                Err(BackendError::Failed(format!("the brain could not be copied: {last}")))
            }
            None => Err(BackendError::Unreachable("the copy of a brain does not end".to_owned())),
        }
    }
}

/// Copies or restores the brain on the volume of this Pod, as the arguments after [`COPY_ARG`] say.
pub fn copy_main(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let folder = EngineFolder::at(PathBuf::from(DATA_FOLDER));
    let action = args.next().unwrap_or_default();
    let result = match action.to_str() {
        Some("copy") => folder.copy_brain().map(|copy| Done { format: copy.format, copy: None }),
        Some("restore") => folder.restore_brain().map(|()| Done { format: None, copy: None }),
        Some("formats") => folder.brain_formats().map(|formats| Done {
            format: formats.brain,
            copy: formats.copy.map(|copy| CopyDone { format: copy.format }),
        }),
        _ => Err(io::Error::other(format!("{COPY_ARG} copies or restores, not {}", action.display()))),
    };
    let reported = result.and_then(|done| std::fs::write(MESSAGE_FILE, serde_json::to_vec(&done)?));
    match reported {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The status of the Pod contains the end of its log.
            let _ = io::Write::write_all(&mut io::stderr(), format!("{error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}
