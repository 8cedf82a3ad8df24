//! The tool by which a model gives a final answer that must match a schema, for protocols that cannot enforce the
//! schema of a text, or not beside other tools.
//!
//! The rest of the engine never sees a call of it: the input of the call is the text of the answer.

use api::event::BlockType;
use futures::{StreamExt as _, stream};

use super::tool_schema::normalised;
use super::{
    Answer, Block, EventStream, ModelError, Request, StreamEvent, ToolDeclaration, ToolSpec, ToolUse,
};

/// The name of the tool.
const NAME: &str = "final_answer";
/// What the tool does, for the model.
const DESCRIPTION: &str = "Gives the final answer. Call it once, by itself, when nothing else is left to do; its \
                           input is the whole answer.";

/// The tools of a request, with the tool for the final answer as the last one.
pub(super) struct WithAnswerTool {
    tools: Vec<ToolDeclaration>,
    name: String,
}

impl WithAnswerTool {
    /// Adds the tool to those of a request that sets a schema; `None` if it sets none.
    pub(super) fn new(request: &Request<'_>) -> Option<Self> {
        let format = request.output?;
        let mut name = NAME.to_owned();
        while request.tools.iter().any(|tool| tool.name == name) {
            name.push('_');
        }
        let tool = ToolSpec {
            name: name.clone(),
            description: DESCRIPTION.to_owned(),
            input_schema: normalised(format.schema.as_value()),
        };
        let tools = request.tools.iter().cloned().chain([tool.into()]).collect();
        Some(Self { tools, name })
    }

    /// The request with the tool.
    pub(super) fn request<'a>(&'a self, request: &Request<'a>) -> Request<'a> {
        Request { tools: &self.tools, ..request.clone() }
    }

    /// Turns calls of the tool into the text of the answer.
    pub(super) fn into_text(self, events: EventStream) -> EventStream {
        let mut translator = Translator { name: self.name, withheld: Vec::new() };
        events.flat_map(move |event| stream::iter(translator.translate(event))).boxed()
    }
}

/// The name of the tool that the model must call, in a request that [`WithAnswerTool::request`] made: the final
/// answer is all that is left to do.
pub(super) fn forced_tool<'a>(request: &Request<'a>) -> Option<&'a str> {
    let is_forced = request.output.is_some() && !request.allow_tool_calls;
    request.tools.last().filter(|_| is_forced).map(|tool| tool.name.as_str())
}

/// Translates the events of an answer. Which tool is called is known only once the answer is complete, so the events
/// from the first call on wait until then.
struct Translator {
    name: String,
    withheld: Vec<StreamEvent>,
}

impl Translator {
    fn translate(&mut self, event: Result<StreamEvent, ModelError>) -> Vec<Result<StreamEvent, ModelError>> {
        match event {
            Ok(StreamEvent::Done(answer)) => self.finish(answer).into_iter().map(Ok).collect(),
            Ok(event)
                if !self.withheld.is_empty() || event == StreamEvent::BlockStart(BlockType::ToolUse) =>
            {
                self.withheld.push(event);
                Vec::new()
            }
            event => vec![event],
        }
    }

    fn finish(&mut self, answer: Answer) -> Vec<StreamEvent> {
        let mut events = self.release(&answer);
        events.push(StreamEvent::Done(self.answer_as_text(answer)));
        events
    }

    /// The events that were withheld, with a text in place of each call of the tool.
    fn release(&mut self, answer: &Answer) -> Vec<StreamEvent> {
        let mut calls = answer.calls();
        let mut events = Vec::new();
        for event in self.withheld.drain(..) {
            let is_call = event == StreamEvent::BlockStart(BlockType::ToolUse);
            let call = if is_call { calls.next() } else { None };
            match call.filter(|call| call.name == self.name) {
                Some(call) => events.extend([
                    StreamEvent::BlockStart(BlockType::Text),
                    StreamEvent::Delta(call.input.to_string()),
                ]),
                None => events.push(event),
            }
        }
        events
    }

    /// The answer with the text in place of the call. Text beside a final answer is left out: it would not match.
    fn answer_as_text(&self, answer: Answer) -> Answer {
        let is_final = |call: &ToolUse| call.name == self.name;
        let has_final = answer.calls().any(is_final);
        let is_last = has_final && answer.calls().all(is_final);
        let mut given = false;
        let blocks = answer.blocks.into_iter().filter_map(|block| match block {
            Block::ToolUse(call) if is_final(&call) => {
                let is_first = !std::mem::replace(&mut given, true);
                is_first.then(|| Block::Text { text: call.input.to_string(), signature: None })
            }
            Block::Text { .. } if is_last => None,
            block => Some(block),
        });
        Answer { blocks: blocks.collect(), ..answer }
    }
}

#[cfg(test)]
#[path = "../tests/unit/answer_tool.rs"]
pub(super) mod tests;
