//! Work that takes a while on a thread of its own, beside threads that answer: it lets them go first now and then.

/// After so much work whoever waits for this core goes first. Each time may cost as much as the scheduler gives others at
/// once, some milliseconds, so it is not done after every line.
const YIELD_INTERVAL_BYTES: usize = 64 * 1024;

/// How much has been done since others were last let go first.
#[derive(Default)]
pub(crate) struct CooperativeYield {
    bytes: usize,
}

impl CooperativeYield {
    /// Notes that so many bytes more were worked on.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= YIELD_INTERVAL_BYTES {
            self.bytes = 0;
            std::thread::yield_now();
        }
    }
}
