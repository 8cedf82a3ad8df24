use api::MessageId;
use api::event::{HitlKind, StopReason};
use api::memory::Source;
use llm::{Block, Content, TokenUsage, ToolOutcome, ToolUse};
use serde_json::json;
use store::steps::{Compacted, Opened, Replacement, TurnBase};

use super::*;

/// A journal that is written turn by turn.
struct Journal {
    steps: Vec<StoredStep>,
    turn_id: TurnId,
    ts: i64,
}

impl Journal {
    fn new() -> Self {
        Self { steps: Vec::new(), turn_id: TurnId::new(), ts: 0 }
    }

    fn push(&mut self, step: Step) {
        self.ts += 1;
        let at = Timestamp::from_unix_ms(self.ts);
        self.steps.push(StoredStep { turn_id: self.turn_id, opened_ts: self.ts, ts: self.ts, at, step });
    }

    /// Begins a turn; returns its id.
    fn open(&mut self, message: &str) -> TurnId {
        self.turn_id = TurnId::new();
        let opened = Opened {
            message_id: MessageId::new(),
            notes: vec!["[Sent]".into()],
            notes_source: Source::Agent.into(),
            recall_at: None,
            message: message.into(),
            media: Vec::new(),
            options: TurnOptions { max_turns: 9, super_thinking: false, direct: true, overrides: None },
            base: TurnBase::End,
            prompt: None,
            traceparent: None,
        };
        self.push(Step::Opened(opened));
        self.turn_id
    }

    fn answer(&mut self, text: &str, call: Option<CallId>) {
        let mut blocks = vec![Block::Text { text: text.into(), signature: None }];
        blocks.extend(call.map(|call_id| {
            Block::ToolUse(ToolUse {
                call_id,
                provider_id: call_id.to_string(),
                name: "read".into(),
                input: json!({"path": "model"}),
                signature: None,
                broken: None,
            })
        }));
        let usage = TokenUsage { input: 7, output: 3, ..TokenUsage::default() };
        let answer = Answer { blocks, usage, ..Answer::default() };
        let (message_id, model) = (MessageId::new(), "m".to_owned());
        self.push(Step::Answered { message_id, model, answer, cost_usd: Some(0.5), capped: false });
    }

    fn result(&mut self, call_id: CallId, output: &str) {
        let outcome = ToolOutcome::new(output.into(), None, 40);
        self.push(Step::Resulted { call_id, outcome, memory: Vec::new(), source: Source::Agent.into() });
    }

    fn end(&mut self) {
        let outcome = TurnOutcome::Completed { stop_reason: StopReason::EndTurn };
        self.push(Step::Ended { outcome });
    }

    fn read(&self, turn_id: TurnId) -> Option<RecordedTurn> {
        let mut reading = Reading::new(Branch::default(), turn_id);
        for step in self.steps.clone() {
            if !reading.apply(step).unwrap() {
                break;
            }
        }
        reading.into_turn()
    }
}

fn steps(turn: RecordedTurn) -> Vec<CassetteStep> {
    let record =
        |reply: ToolReply| CallResult { text: reply.text, is_error: reply.is_error, attached: Vec::new() };
    turn.steps.into_iter().map(|step| step.into_step(record)).collect()
}

#[test]
fn a_turn_is_what_its_model_was_sent_and_what_followed() {
    let mut journal = Journal::new();
    journal.open("First.");
    journal.answer("One.", None);
    journal.end();
    let turn_id = journal.open("Second.");
    let (call, request_id) = (CallId::new(), HitlId::new());
    journal.answer("I look.", Some(call));
    let (kind, question, options, reason) = (HitlKind::Permission, "May I?".to_owned(), None, None);
    journal.push(Step::Asked { request_id, call_id: call, kind, question, options, reason });
    journal.push(Step::InputChanged {
        request_id,
        call_id: call,
        input: json!({"path": "person"}),
        answer: "yes".into(),
        remarks: vec![Content::Text { text: "Mind it.".into() }],
    });
    journal.push(Step::Intended { call_id: call });
    journal.push(Step::Steered { message_id: MessageId::new(), message: "In French.".into() });
    journal.result(call, "found");
    journal.answer("Deux.", None);
    journal.end();
    journal.open("Third.");

    let turn = journal.read(turn_id).unwrap();
    assert!(turn.gaps.is_empty());
    assert_eq!(turn.messages.len(), 3, "{:?}", turn.messages);
    let steps = steps(turn);
    assert_eq!((steps.len(), steps[0].text.as_str(), steps[1].text.as_str()), (2, "I look.", "Deux."));
    assert_eq!(steps[0].steered, ["In French."]);
    let call = &steps[0].calls[0];
    assert_eq!((&call.input, &call.ran_input), (&json!({"path": "model"}), &Some(json!({"path": "person"}))));
    assert_eq!((call.result.text.as_str(), call.duration_ms), ("found", Some(40)));
    let person = PersonAnswer { kind, question: "May I?".into(), answer: Some("yes".into()) };
    assert_eq!(call.person, [person]);
    let usage = CassetteUsage { input_tokens: 7, output_tokens: 3, cost_usd: Some(0.5) };
    assert_eq!(steps[1].usage, usage);
}

#[test]
fn a_compaction_in_the_middle_is_a_gap_and_loses_nothing() {
    let compacted = || {
        let instead = Replacement::Summary { text: "Before.".into() };
        Step::Compacted(Compacted { covers: 1, instead, results_up_to: None, memory_up_to: None })
    };
    let mut journal = Journal::new();
    journal.open("First.");
    journal.answer("One.", None);
    journal.end();
    let turn_id = journal.open("Second.");
    journal.push(compacted());
    let call = CallId::new();
    journal.answer("I look.", Some(call));
    journal.result(call, "found");
    journal.push(compacted());
    journal.answer("Done.", None);
    journal.end();
    let turn = journal.read(turn_id).unwrap();
    assert_eq!(turn.gaps.len(), 1, "only the second one was in the middle: {:?}", turn.gaps);
    assert!(format!("{:?}", turn.messages).contains("Before."), "{:?}", turn.messages);
    let steps = steps(turn);
    assert_eq!(steps[0].calls[0].result.text, "found");
    assert_eq!(steps[1].text, "Done.");
}

#[test]
fn a_turn_without_an_end_of_its_own_is_read() {
    let mut journal = Journal::new();
    let turn_id = journal.open("First.");
    assert!(journal.read(TurnId::new()).is_none());
    // A turn that was given up has no end of its own.
    journal.answer("One.", Some(CallId::new()));
    for _ in 0..2 {
        let turn = journal.read(turn_id).unwrap();
        assert_eq!((turn.messages.len(), turn.steps.len()), (1, 1));
        journal.open("Second.");
    }
}
