//! Periodic yielding for long work on a blocking thread, so that the threads that serve requests get the
//! processor first.

/// How many bytes are processed between two yields. A yield may cost a full time slice of the other threads,
/// which is some milliseconds, so there is none after every line.
const YIELD_INTERVAL_BYTES: usize = 64 * 1024;

/// Counts processed bytes, and yields the thread after every [`YIELD_INTERVAL_BYTES`].
#[derive(Default)]
pub struct CooperativeYield {
    bytes: usize,
}

impl CooperativeYield {
    /// Records that `bytes` more were processed, and yields if it is time to.
    pub fn advance(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= YIELD_INTERVAL_BYTES {
            self.bytes = 0;
            std::thread::yield_now();
        }
    }
}
