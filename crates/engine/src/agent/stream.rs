//! Numbers the blocks of a model's streamed answer and turns it into events.

use api::event::{BlockStart, BlockStop, BlockType, Delta, Event};

/// The event that ends block `index`.
pub(super) const fn block_stop(index: u32) -> Event {
    Event::ContentBlockStop(BlockStop { index })
}

/// Numbers the blocks of a turn and tracks which one is open.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    next: u32,
    open: Option<(u32, BlockType)>,
}

impl Blocks {
    /// Continues after `started` blocks. The last of them is open if `open` gives its type.
    pub(super) fn after(started: u32, open: Option<BlockType>) -> Self {
        Self { next: started, open: started.checked_sub(1).zip(open) }
    }

    /// Begins a block.
    pub(super) fn start(&mut self, block_type: BlockType) -> Event {
        let index = self.next;
        self.next += 1;
        self.open = Some((index, block_type));
        Event::ContentBlockStart(BlockStart { index, block_type })
    }

    /// The event for more of the open block; `None` if there is nothing to send.
    pub(super) fn delta(&self, text: String) -> Option<Event> {
        match self.open {
            Some((_, BlockType::Text)) => Some(Event::TextDelta(Delta { text })),
            Some((_, BlockType::Thinking)) => Some(Event::ThinkingDelta(Delta { text })),
            Some((_, BlockType::ToolUse)) | None => None,
        }
    }

    /// Ends the open block; `None` if none is open.
    pub(super) fn stop(&mut self) -> Option<Event> {
        self.open.take().map(|(index, _)| block_stop(index))
    }
}
