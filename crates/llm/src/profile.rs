//! The properties of a model that a provider's protocol depends on, apart from its address.

pub(super) use api::turn_options::Effort;

/// A model's properties, as the protocols need them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModelProfile {
    /// The vendor's name of the model.
    pub(super) model: String,
    /// The context window in tokens, including the answer.
    pub(super) context_window: u64,
    /// The output limit in tokens.
    pub(super) max_output: u64,
    /// How the model is asked to think.
    pub(super) thinking: Thinking,
    /// Whether the model takes audio, if its protocol has it.
    pub(super) takes_audio: bool,
}

/// How a model is asked to think before it answers, if it is to think at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    /// No request: the model cannot think, or decides for itself.
    Off,
    /// A budget of this many tokens.
    Budget(u64),
    /// The model decides how much to think, guided by this effort.
    Adaptive(Effort),
    /// A fixed effort.
    Effort(Effort),
}

impl ModelProfile {
    /// How the model is asked to think for a request with this effort.
    pub(super) fn thinking_for(&self, effort: Option<Effort>) -> Thinking {
        match (self.thinking, effort) {
            (Thinking::Budget(tokens), Some(effort)) => Thinking::Budget(budget_for(tokens, effort)),
            (Thinking::Adaptive(_), Some(effort)) => Thinking::Adaptive(effort),
            (Thinking::Effort(_), Some(effort)) => Thinking::Effort(effort),
            (thinking @ Thinking::Off, _) | (thinking, None) => thinking,
        }
    }
}

/// The share of a model's thinking budget for an effort. The configured budget is the most.
fn budget_for(tokens: u64, effort: Effort) -> u64 {
    match effort {
        Effort::Low => tokens / 4,
        Effort::Medium => tokens / 2,
        Effort::High | Effort::Xhigh | Effort::Max => tokens,
    }
}

/// The message about a model whose effort cannot be chosen.
pub(super) fn no_effort(model: &str) -> String {
    format!("the model `{model}` takes no effort; leave it out, or choose another model")
}

#[cfg(test)]
impl ModelProfile {
    /// A model for tests, with a thinking budget.
    pub(super) fn for_tests(model: &str) -> Self {
        let thinking = Thinking::Budget(16_000);
        let model = model.to_owned();
        Self { model, context_window: 200_000, max_output: 32_000, thinking, takes_audio: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_effort_takes_the_place_of_the_configured_one_and_never_exceeds_a_budget() {
        let thinking = |thinking, effort| {
            ModelProfile { thinking, ..ModelProfile::for_tests("m") }.thinking_for(Some(effort))
        };
        for effort in [Effort::Low, Effort::Medium, Effort::High, Effort::Xhigh, Effort::Max] {
            assert_eq!(thinking(Thinking::Off, effort), Thinking::Off);
            assert_eq!(thinking(Thinking::Adaptive(Effort::High), effort), Thinking::Adaptive(effort));
            assert_eq!(thinking(Thinking::Effort(Effort::High), effort), Thinking::Effort(effort));
        }
        for (effort, tokens) in [(Effort::Low, 4_000), (Effort::Medium, 8_000), (Effort::Max, 16_000)] {
            assert_eq!(thinking(Thinking::Budget(16_000), effort), Thinking::Budget(tokens));
        }
        let usual = ModelProfile::for_tests("m");
        assert_eq!(usual.thinking_for(None), usual.thinking);
    }
}
