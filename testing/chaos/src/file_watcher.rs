//! Notifies the trigger when a tool has changed a file: the moment between a tool's effect and its result.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};

use crate::trigger::KillTrigger;

/// Watches a folder on a thread of its own until it is dropped.
#[derive(Debug)]
pub(crate) struct FileWatcher {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FileWatcher {
    /// Watches `folder`.
    pub(crate) fn start(folder: &Path, trigger: Arc<KillTrigger>) -> anyhow::Result<Self> {
        let notices =
            init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).context("inotify cannot be initialized")?;
        let flags = WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO;
        add_watch(&notices, folder, flags)
            .with_context(|| format!("{} cannot be watched", folder.display()))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread =
            thread::Builder::new().name("files".into()).spawn(move || watch(&notices, &trigger, &stopped))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for FileWatcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It only watches; how the thread ended does not matter.
            let _ = thread.join();
        }
    }
}

fn watch(notices: &OwnedFd, trigger: &KillTrigger, stopped: &AtomicBool) {
    let mut buffer = [MaybeUninit::uninit(); 4_096];
    let mut reader = Reader::new(notices, &mut buffer);
    let timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    while !stopped.load(Ordering::Relaxed) {
        let _ = poll(&mut [PollFd::new(notices, PollFlags::IN)], Some(&timeout));
        while let Ok(notice) = reader.next() {
            let what = notice.events();
            for (flag, trigger_event) in [
                (ReadFlags::MODIFY, "file modified"),
                (ReadFlags::CLOSE_WRITE, "file closed"),
                (ReadFlags::MOVED_TO, "file moved"),
            ] {
                if what.contains(flag) {
                    trigger.notify(trigger_event);
                }
            }
        }
    }
}
