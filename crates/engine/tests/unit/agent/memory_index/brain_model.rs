//! A brain beside a reference model of what must be found in it.

use super::*;

/// An action on a task or on knowledge. Numbers select among what exists.
#[derive(Clone, Debug)]
pub(in crate::agent) enum Action {
    Turn { task: usize, from: TurnStart, steps: Vec<AnswerSpec>, end: TurnEnd },
    Save { supersedes: Option<usize> },
    Delete(usize),
    DeleteTask(usize),
}

#[derive(Clone, Copy, Debug)]
pub(in crate::agent) enum TurnStart {
    End,
    Edit(usize),
    Retry(usize),
}

#[derive(Clone, Copy, Debug)]
pub(in crate::agent) struct AnswerSpec {
    pub(super) has_words: bool,
    pub(super) calls: bool,
    /// Whether the user sends a message before the answer, and after it.
    pub(super) steered: (bool, bool),
    pub(super) saves: KnowledgeSave,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::agent) enum TurnEnd {
    Completed,
    Cancelled { has_partial_answer: bool },
    Killed,
}

/// What an answer with a call saves.
#[derive(Clone, Copy, Debug)]
pub(in crate::agent) enum KnowledgeSave {
    Nothing,
    Record { supersedes: Option<usize> },
}

/// A knowledge record in the reference model.
#[derive(Clone, Debug)]
pub(super) struct ExpectedKnowledge {
    pub(super) id: MemoryId,
    pub(super) word: String,
    pub(super) supersedes: Option<MemoryId>,
    pub(super) is_active: bool,
    /// The answer that saved it, and its task.
    pub(super) saved_by: Option<(TaskRow, MessageId)>,
}

pub(super) fn query(
    text: &str,
    scope: SearchScope,
    conversation: Option<(TaskRow, TurnBase)>,
) -> MemoryQuery {
    let deadline = Instant::now() + Duration::from_secs(20);
    MemoryQuery { text: text.into(), scope, offset: 0, limit: 100, conversation, deadline }
}

pub(in crate::agent) struct BrainModel {
    pub(in crate::agent) brain: Brain,
    pub(in crate::agent) tasks: [Option<TaskRow>; 2],
    pub(super) knowledge: Vec<ExpectedKnowledge>,
    /// A word for each message that no other message contains.
    pub(super) words: BTreeMap<String, String>,
    pub(super) at: i64,
    /// The turns of each task that were killed since its last one that was not.
    pub(super) kills: [usize; 2],
    pub(super) folder: TempDir,
}

impl BrainModel {
    pub(in crate::agent) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let brain = Brain::open(&folder.path().join("brain.sqlite")).unwrap();
        Self {
            brain,
            tasks: [None; 2],
            knowledge: Vec::new(),
            words: BTreeMap::new(),
            at: 0,
            kills: [0; 2],
            folder,
        }
    }

    /// Continues in another brain into which this one was imported.
    pub(in crate::agent) fn move_to(&mut self, brain: Brain, folder: TempDir) {
        let row = |brain: &Brain, number: usize| {
            brain.task(&task_id(&format!("t{number}"))).unwrap().map(|entry| entry.row)
        };
        for known in &mut self.knowledge {
            known.saved_by = known.saved_by.and_then(|(task, message_id)| {
                let number = self.tasks.iter().position(|known| *known == Some(task))?;
                Some((row(&brain, number)?, message_id))
            });
        }
        for (number, task) in self.tasks.iter_mut().enumerate() {
            let moved = row(&brain, number);
            assert_eq!(moved.is_some(), task.is_some(), "t{number}");
            *task = moved;
        }
        (self.brain, self.folder) = (brain, folder);
    }

    pub(super) fn now(&mut self) -> Timestamp {
        self.at += 1;
        Timestamp::from_unix_ms(self.at)
    }

    pub(super) fn word(&mut self, message_id: &str) -> String {
        let word = format!("word{}x", self.words.len());
        self.words.insert(message_id.to_owned(), word.clone());
        word
    }

    pub(in crate::agent) async fn write<T: Send + 'static>(
        &self,
        write: impl Fn(&WriteTx<'_>) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> T {
        self.brain.write(write).await.unwrap()
    }

    pub(super) async fn step(&mut self, task: TaskRow, turn_id: TurnId, step: Step) {
        let at = self.now();
        self.write(move |tx| tx.insert_step(task, turn_id, at, at.unix_ms(), &step)).await;
    }

    pub(in crate::agent) async fn apply(&mut self, action: &Action) {
        match action {
            Action::Turn { task, from, steps, end } => {
                let number = *task;
                let task = self.turn(number, *from, steps, *end).await;
                if matches!(end, TurnEnd::Killed) {
                    self.kills[number] += 1;
                } else {
                    // With a turn, only a few of the backlog are indexed; maintenance takes in the rest.
                    let is_all = std::mem::take(&mut self.kills[number]) < 4;
                    while !is_all && self.brain.has_ingest_backlog().unwrap() {
                        self.write(|tx| tx.ingest_backlog(4)).await;
                    }
                    self.check_task(task);
                }
            }
            Action::Save { supersedes } => self.save(*supersedes, None).await,
            Action::Delete(number) => {
                if let Some(number) = number.checked_rem(self.knowledge.len()) {
                    let id = self.knowledge.remove(number).id;
                    assert!(self.write(move |tx| tx.delete_knowledge(id)).await);
                }
            }
            Action::DeleteTask(number) => {
                if let Some(task) = self.tasks[*number].take() {
                    self.write(move |tx| tx.delete_task(task, &TaskDeletion::default())).await;
                    for known in &mut self.knowledge {
                        known.saved_by = known.saved_by.filter(|(saved_in, _)| *saved_in != task);
                    }
                }
            }
        }
        self.check_knowledge();
        self.check_indexes();
    }

    pub(super) async fn turn(
        &mut self,
        number: usize,
        from: TurnStart,
        steps: &[AnswerSpec],
        end: TurnEnd,
    ) -> TaskRow {
        let at = self.now();
        if self.tasks[number].is_none() {
            let (task, name) = (self.brain.reserve_task(), task_id(&format!("t{number}")));
            self.write(move |tx| tx.insert_task(task, &name, at)).await;
            self.tasks[number] = Some(task);
        }
        let task = self.tasks[number].unwrap();
        let branch = branch_from_steps(self.brain.steps(task).unwrap());
        let active: Vec<MessageId> =
            branch.listed().filter_map(|(id, active)| active.then_some(id)).collect();
        let pick = |number: usize| number.checked_rem(active.len()).map(|at| active[at]);
        let base = match from {
            TurnStart::End => TurnBase::End,
            TurnStart::Edit(number) => {
                pick(number).map_or(TurnBase::End, |message_id| TurnBase::Edit { message_id })
            }
            TurnStart::Retry(number) => {
                pick(number).map_or(TurnBase::End, |message_id| TurnBase::Retry { message_id })
            }
        };
        let base = if branch.rewind_effects(base).is_ok() { base } else { TurnBase::End };
        let message_id = match base {
            TurnBase::Retry { message_id } => branch.retried_message(message_id).unwrap(),
            _ => MessageId::new(),
        };
        let message = match base {
            TurnBase::Retry { .. } => String::new(),
            _ => self.word(&message_id.to_string()),
        };
        let turn_id = TurnId::new();
        let new_turn = NewTurn { turn_id, message_id, request: None };
        self.write(move |tx| tx.insert_turn(task, &new_turn, at.unix_ms(), at)).await;
        self.step(task, turn_id, Step::Opened(Opened { message_id, base, ..opened(&message) })).await;
        self.withdraw(task);
        for (number, answered) in steps.iter().enumerate() {
            // All answers but the last continue with a call.
            let calls = answered.calls || number + 1 < steps.len();
            self.answer(task, turn_id, *answered, calls).await;
        }
        let outcome = match end {
            TurnEnd::Completed => Some(TurnOutcome::Completed { stop_reason: StopReason::EndTurn }),
            TurnEnd::Cancelled { has_partial_answer } => {
                let message_id = MessageId::new();
                // After an answer that ends the turn the model says nothing more.
                let may_continue =
                    steps.last().is_none_or(|last| last.calls || last.steered.0 || last.steered.1);
                let partial = (has_partial_answer && may_continue)
                    .then(|| PartialAnswer { message_id, text: self.word(&message_id.to_string()) });
                Some(TurnOutcome::Cancelled { said: partial })
            }
            TurnEnd::Killed => None,
        };
        if let Some(outcome) = outcome {
            self.step(task, turn_id, Step::Ended { outcome }).await;
        }
        task
    }

    pub(super) async fn answer(&mut self, task: TaskRow, turn_id: TurnId, answered: AnswerSpec, calls: bool) {
        if answered.steered.0 {
            self.steer(task, turn_id).await;
        }
        let message_id = MessageId::new();
        let text = if answered.has_words { self.word(&message_id.to_string()) } else { String::new() };
        let mut blocks = vec![Block::Text { text, signature: None }];
        let call_id = CallId::new();
        if calls {
            let (provider_id, name) = (call_id.to_string(), "look".to_owned());
            let call =
                ToolUse { call_id, provider_id, name, input: json!({}), signature: None, broken: None };
            blocks.push(Block::ToolUse(call));
        }
        let answer = Answer { blocks, usage: TokenUsage::default(), stop: FinishReason::Done };
        let step = Step::Answered { message_id, model: "m".into(), answer, cost_usd: None, capped: false };
        self.step(task, turn_id, step).await;
        if calls {
            self.step(task, turn_id, Step::Intended { call_id }).await;
            if let KnowledgeSave::Record { supersedes } = answered.saves {
                self.save(supersedes, Some((task, message_id))).await;
            }
        }
        if answered.steered.1 {
            self.steer(task, turn_id).await;
        }
        if calls {
            let outcome = ToolOutcome::new("it is so".into(), None, 1);
            self.step(
                task,
                turn_id,
                Step::Resulted { call_id, outcome, memory: Vec::new(), source: Source::Tool.into() },
            )
            .await;
        }
    }

    pub(super) async fn steer(&mut self, task: TaskRow, turn_id: TurnId) {
        let message_id = MessageId::new();
        let message = self.word(&message_id.to_string());
        self.step(task, turn_id, Step::Steered { message_id, message }).await;
    }

    pub(super) async fn save(&mut self, supersedes: Option<usize>, by: Option<(TaskRow, MessageId)>) {
        let at = self.now();
        let id = MemoryId::new();
        let word = self.word(&id.to_string());
        let old = supersedes.and_then(|number| number.checked_rem(self.knowledge.len()));
        let old = old.filter(|number| self.knowledge[*number].is_active);
        let supersedes = old.map(|number| {
            self.knowledge[number].is_active = false;
            self.knowledge[number].id
        });
        let draft =
            KnowledgeDraft { content: format!("It is {word}."), tags: vec!["all".into()], supersedes };
        let record = NewKnowledge { id, draft, source: Source::Agent };
        let task = by.map(|(task, _)| task);
        self.write(move |tx| match task {
            Some(task) => tx.save_knowledge_from_turn(&record, task, at),
            None => tx.save_knowledge(&record, None, at).map(Result::unwrap),
        })
        .await;
        self.knowledge.push(ExpectedKnowledge { id, word, supersedes, is_active: true, saved_by: by });
    }

    /// Withdraws the knowledge of answers that were removed, as if it had never existed.
    pub(super) fn withdraw(&mut self, task: TaskRow) {
        let branch = branch_from_steps(self.brain.steps(task).unwrap());
        let active: Vec<MessageId> =
            branch.listed().filter_map(|(id, active)| active.then_some(id)).collect();
        let is_absent = |known: &ExpectedKnowledge| {
            known.saved_by.is_some_and(|(saved_in, answer)| saved_in == task && !active.contains(&answer))
        };
        while let Some(last) = self.knowledge.iter().rposition(is_absent) {
            let known = self.knowledge.remove(last);
            // What took its place comes after what it had replaced.
            for later in self.knowledge.iter_mut().filter(|later| later.supersedes == Some(known.id)) {
                later.supersedes = known.supersedes;
            }
            if known.is_active
                && let Some(before) =
                    self.knowledge.iter_mut().find(|before| Some(before.id) == known.supersedes)
            {
                before.is_active = true;
            }
        }
    }

    pub(super) fn search(&self, text: &str, scope: SearchScope) -> Vec<SearchHit> {
        self.brain.search(&query(text, scope, None)).unwrap()
    }

    /// Checks that the indexed messages of a task are its active ones, in order.
    pub(super) fn check_task(&self, task: TaskRow) {
        let branch = branch_from_steps(self.brain.steps(task).unwrap());
        let listed: Vec<(String, bool)> =
            branch.listed().map(|(id, active)| (id.to_string(), active)).collect();
        let active: Vec<&String> = listed
            .iter()
            .filter(|(id, active)| *active && self.words.contains_key(id))
            .map(|(id, _)| id)
            .collect();
        let connection = self.open_connection();
        let indexed = column(
            &connection,
            &format!(
                "SELECT message_id FROM said WHERE task = {} AND nth IS NOT NULL ORDER BY nth",
                row_number(task)
            ),
        );
        assert_eq!(indexed.iter().collect::<Vec<_>>(), active);
        let pending = "SELECT CAST(COUNT(*) AS TEXT) FROM to_index WHERE place >> 20 =";
        assert_eq!(column(&connection, &format!("{pending} {}", row_number(task))), ["0"]);
        for (message_id, active) in &listed {
            let Some(word) = self.words.get(message_id) else { continue };
            let mut found = self.search(word, SearchScope::Everything);
            found.retain(|found| found.kind == MemoryKind::Message);
            assert_eq!(found.is_empty(), !active, "{word}");
            let has_message =
                |found: &SearchHit| found.message_ids.iter().any(|id| id.to_string() == *message_id);
            // Behind it may come what follows it.
            assert!(found.first().is_none_or(has_message), "{word}: {found:?}");
        }
        let length = "SELECT CAST(COALESCE(MAX(place + length), 0) AS TEXT) FROM said WHERE task =";
        let length = column(&connection, &format!("{length} {}", row_number(task)));
        assert_eq!(length, [branch.messages().len().to_string()]);
    }

    pub(in crate::agent) fn check_knowledge(&self) {
        let listed = self.brain.knowledge(1_000, 0).unwrap();
        let listed: Vec<_> =
            listed.iter().rev().map(|record| (record.id, record.valid_until.is_none())).collect();
        let mut expected: Vec<_> = self.knowledge.iter().map(|known| (known.id, known.is_active)).collect();
        expected.sort_by_key(|(id, _)| listed.iter().position(|(listed, _)| listed == id));
        assert_eq!(listed, expected);
        for known in &self.knowledge {
            let found = self.search(&known.word, SearchScope::Knowledge);
            assert_eq!(found.len(), usize::from(known.is_active), "{known:?}");
        }
    }

    /// Checks the integrity of every index, and that it matches its table.
    pub(in crate::agent) fn check_indexes(&self) {
        let connection = self.open_connection();
        connection.execute_batch("INSERT INTO terms (terms, rank) VALUES ('integrity-check', 0)").unwrap();
        // The places that are indexed or wait for it are those of what is in force.
        let differing = "WITH
            in_force (place) AS (
                SELECT task << 20 | nth FROM said WHERE nth IS NOT NULL
                UNION ALL SELECT (1 << 41) + record << 20 FROM knowledge WHERE valid_until IS NULL
            ),
            known (place) AS (SELECT place FROM indexed UNION ALL SELECT place FROM to_index)
            SELECT CAST(place AS TEXT) FROM (SELECT place FROM in_force EXCEPT SELECT place FROM known)
            UNION ALL
            SELECT CAST(place AS TEXT) FROM (SELECT place FROM known EXCEPT SELECT place FROM in_force)";
        assert_eq!(column(&connection, differing), Vec::<String>::new());
        let not_once = "SELECT CAST(place AS TEXT) FROM indexed JOIN to_index USING (place)";
        assert_eq!(column(&connection, not_once), Vec::<String>::new());
        let postings = "SELECT CAST(id AS TEXT) FROM (
                SELECT id FROM terms_docsize EXCEPT SELECT place FROM indexed
            )";
        assert_eq!(column(&connection, postings), Vec::<String>::new());
        let miscounted = "SELECT CAST(is_knowledge AS TEXT) FROM indexed_counts
            WHERE places <> (SELECT COUNT(*) FROM indexed WHERE (place >= 1 << 61) = is_knowledge)
            OR tasks <> (SELECT COUNT(*) FROM indexed WHERE (place >= 1 << 61) = is_knowledge AND place & 1048575 = 0)";
        assert_eq!(column(&connection, miscounted), Vec::<String>::new());
        let orphans = "SELECT CAST(COUNT(*) AS TEXT) FROM (
                SELECT task FROM said UNION ALL SELECT task FROM episodes
                UNION ALL SELECT task FROM trajectories
            ) WHERE task NOT IN (SELECT task FROM tasks)";
        assert_eq!(column(&connection, orphans), ["0"]);
    }

    pub(super) fn open_connection(&self) -> Connection {
        Connection::open(self.folder.path().join("brain.sqlite")).unwrap()
    }
}

pub(super) fn column(connection: &Connection, sql: &str) -> Vec<String> {
    let mut query = connection.prepare(sql).unwrap();
    let rows = query.query_map([], |row| row.get::<_, Option<String>>(0)).unwrap();
    rows.filter_map(Result::unwrap).collect()
}

pub(in crate::agent) fn actions() -> impl Strategy<Value = Vec<Action>> {
    let from = prop_oneof![
        3 => Just(TurnStart::End),
        1 => any::<usize>().prop_map(TurnStart::Edit),
        1 => any::<usize>().prop_map(TurnStart::Retry),
    ];
    let record = prop::option::of(any::<usize>()).prop_map(|supersedes| KnowledgeSave::Record { supersedes });
    let saves = prop_oneof![3 => Just(KnowledgeSave::Nothing), 2 => record];
    let answered = (
        prop::bool::weighted(0.8),
        any::<bool>(),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
        saves,
    );
    let answered = answered.prop_map(|(has_words, calls, before, after, saves)| AnswerSpec {
        has_words,
        calls,
        steered: (before, after),
        saves,
    });
    let end = prop_oneof![
        6 => Just(TurnEnd::Completed),
        2 => any::<bool>().prop_map(|has_partial_answer| TurnEnd::Cancelled { has_partial_answer }),
        1 => Just(TurnEnd::Killed),
    ];
    let turn = (0..2_usize, from, prop::collection::vec(answered, 0..4), end);
    let turn = turn.prop_map(|(task, from, steps, end)| Action::Turn { task, from, steps, end });
    let action = prop_oneof![
        12 => turn,
        2 => prop::option::of(any::<usize>()).prop_map(|supersedes| Action::Save { supersedes }),
        1 => any::<usize>().prop_map(Action::Delete),
        1 => (0..2_usize).prop_map(Action::DeleteTask),
    ];
    prop::collection::vec(action, 1..16)
}
