//! A cache of a task's newest published events, so that live readers need not query the store.

use std::collections::VecDeque;

use api::TurnId;
use bytes::Bytes;

/// An event in its form on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// The `ts` of the event.
    pub(super) ts: i64,
    /// The turn of the event.
    pub(super) turn_id: TurnId,
    /// Whether the event is the last one of its turn.
    pub(super) ends_turn: bool,
    /// The encoded server-sent event.
    pub(super) sse: Bytes,
}

/// The most frames that a ring keeps.
const MAX_FRAMES: usize = 512;
/// The most bytes of frames that a ring keeps.
const MAX_RING_BYTES: usize = 128 * 1024;

/// A bounded queue of frames. It contains every committed event with a `ts` above `floor`.
#[derive(Debug)]
pub(super) struct Ring {
    frames: VecDeque<Frame>,
    bytes: usize,
    floor: i64,
}

impl Ring {
    /// Creates an empty ring. Events up to `floor` are only in the store.
    pub(super) fn starting_after(floor: i64) -> Self {
        Self { frames: VecDeque::new(), bytes: 0, floor }
    }

    pub(super) fn push(&mut self, frame: Frame) {
        self.bytes += frame.sse.len();
        self.frames.push_back(frame);
        while self.frames.len() > MAX_FRAMES || self.bytes > MAX_RING_BYTES {
            let Some(oldest) = self.frames.pop_front() else { break };
            self.bytes -= oldest.sse.len();
            self.floor = oldest.ts;
        }
    }

    /// Drops all frames; readers find them in the store.
    pub(super) fn clear(&mut self) {
        if let Some(newest) = self.frames.back() {
            self.floor = newest.ts;
        }
        (self.frames, self.bytes) = (VecDeque::new(), 0);
    }

    /// Drops the frames from `ts` on, because their events were deleted from the store.
    pub(super) fn truncate_from(&mut self, ts: i64) {
        self.frames.retain(|frame| frame.ts < ts);
        self.bytes = self.frames.iter().map(|frame| frame.sse.len()).sum();
    }

    /// The frames with a `ts` above `ts`; `None` if some of them were dropped and must be read from the store.
    pub(super) fn frames_after(&self, ts: i64) -> Option<Vec<Frame>> {
        if ts < self.floor {
            return None;
        }
        let first = self.frames.partition_point(|frame| frame.ts <= ts);
        Some(self.frames.range(first..).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(ts: i64, bytes: usize) -> Frame {
        Frame { ts, turn_id: TurnId::new(), ends_turn: false, sse: Bytes::from(vec![0; bytes]) }
    }

    fn stamps(ring: &Ring, after: i64) -> Option<Vec<i64>> {
        ring.frames_after(after).map(|frames| frames.iter().map(|frame| frame.ts).collect())
    }

    #[test]
    fn gives_what_it_has_and_sends_to_the_store_for_the_rest() {
        let mut ring = Ring::starting_after(10);
        assert_eq!(stamps(&ring, 9), None);
        assert_eq!(stamps(&ring, 10), Some(vec![]));
        ring.push(frame(11, 1));
        ring.push(frame(15, 1));
        assert_eq!(stamps(&ring, 10), Some(vec![11, 15]));
        assert_eq!(stamps(&ring, 12), Some(vec![15]));
        assert_eq!(stamps(&ring, 15), Some(vec![]));
    }

    #[test]
    fn what_is_let_go_or_taken_out_is_left_to_the_store() {
        let mut ring = Ring::starting_after(0);
        for ts in 1..=4 {
            ring.push(frame(ts, 1));
        }
        ring.truncate_from(3);
        assert_eq!(stamps(&ring, 0), Some(vec![1, 2]));
        ring.push(frame(7, 1));
        assert_eq!(stamps(&ring, 2), Some(vec![7]));
        ring.clear();
        assert_eq!(stamps(&ring, 6), None);
        assert_eq!(stamps(&ring, 7), Some(vec![]));
    }

    #[test]
    fn is_bounded_in_frames_and_bytes() {
        let mut ring = Ring::starting_after(0);
        for ts in 1..=1_000 {
            ring.push(frame(ts, 1));
        }
        assert_eq!(stamps(&ring, 487), None);
        assert_eq!(stamps(&ring, 488).unwrap().len(), MAX_FRAMES);
        ring.push(frame(1_001, MAX_RING_BYTES + 1));
        assert_eq!(stamps(&ring, 1_000), None);
        assert_eq!(stamps(&ring, 1_001), Some(vec![]));
    }
}
