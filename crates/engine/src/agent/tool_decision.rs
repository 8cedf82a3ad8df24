//! Decides whether a tool call may run. Pure.

use std::sync::Arc;

use api::approvals::ApprovalReason;
use catalog::Permission;
use llm::ToolUse;
use store::ToolGrant;
use tools::{Delegation, ExposedTools, Tool, ToolError, Toolbox, patterns};

use super::thread::{OUTCOME_UNKNOWN, OpenCall, OpenStage};

/// The decision about a call.
pub(super) enum CallDecision {
    /// Run it, for the first time or again.
    Run(Arc<dyn Tool>),
    /// Run or resume the sub-agent that it requests.
    Delegate(Arc<dyn Tool>, Delegation),
    /// Ask the user for approval, for this reason.
    AskPermission(Arc<dyn Tool>, ApprovalReason),
    /// Do not run it, for this reason.
    Refuse(String),
}

/// Whether a grant covers a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantStatus {
    /// The call is granted.
    Granted,
    /// There is a grant, but the tool has changed since, or its identity was not recorded.
    ToolChanged,
    /// There is no grant.
    NotGranted,
}

impl GrantStatus {
    /// Returns whether one of the grants of `tool` covers the call.
    fn of(call: &ToolUse, tool: &dyn Tool, mut granted: Vec<ToolGrant>) -> Self {
        let subject = tool.grant_subject(&call.input);
        granted.retain(|grant| patterns::allows(grant.prefix.as_deref(), subject.as_ref()));
        let binding = tool.binding();
        match granted.as_slice() {
            [] => Self::NotGranted,
            granted if granted.iter().any(|grant| grant.binding == binding) => Self::Granted,
            _ => Self::ToolChanged,
        }
    }
}

/// Decides about a call of an agent with the tools `exposed`, in a turn with that many model calls left.
/// `has_untrusted` tells whether the conversation has seen content that nobody has vouched for, and `read_grants`
/// returns the user's grants for a tool.
pub(super) fn decide(
    OpenCall { call, stage, .. }: &OpenCall,
    toolbox: &Toolbox,
    exposed: &ExposedTools,
    model_calls_left: u64,
    has_untrusted: impl Fn() -> bool,
    read_grants: impl FnOnce(&str) -> Vec<ToolGrant>,
) -> CallDecision {
    if let Some(reason) = &call.broken {
        return CallDecision::Refuse(reason.clone());
    }
    // An agent may call only the tools that it was offered.
    let tool = toolbox.find(&call.name).filter(|_| exposed.contains(&call.name));
    if matches!(stage, OpenStage::New | OpenStage::Ready)
        && let Some(tool) = &tool
        && toolbox.permission(&call.name, &**tool) == Permission::Deny
    {
        return CallDecision::Refuse(format!("the tool `{}` is not permitted", call.name));
    }
    if *stage == OpenStage::New
        && let Some(tool) = &tool
    {
        if let Err(reason) = toolbox.validate_input(&call.name, &call.input) {
            return CallDecision::Refuse(reason);
        }
        match toolbox.permission(&call.name, &**tool) {
            Permission::Ask | Permission::Allow if tool.asks_after_untrusted_content() && has_untrusted() => {
                return CallDecision::AskPermission(Arc::clone(tool), ApprovalReason::UntrustedContent);
            }
            Permission::Ask => match GrantStatus::of(call, &**tool, read_grants(&call.name)) {
                GrantStatus::Granted => {}
                GrantStatus::ToolChanged => {
                    return CallDecision::AskPermission(Arc::clone(tool), ApprovalReason::ToolChanged);
                }
                GrantStatus::NotGranted => {
                    return CallDecision::AskPermission(Arc::clone(tool), ApprovalReason::Permission);
                }
            },
            Permission::Allow | Permission::Deny => {}
        }
    }
    if let Some((tool, delegation)) =
        tool.as_ref().and_then(|tool| Some((tool, tool.sub_agent(&call.input)?)))
    {
        return match delegation {
            Ok(_) if *stage != OpenStage::Running && model_calls_left < 2 => {
                CallDecision::Refuse("the turn has too few model calls left, so no agent can be run".into())
            }
            Ok(delegation) => CallDecision::Delegate(Arc::clone(tool), delegation),
            Err(ToolError(reason)) => CallDecision::Refuse(reason),
        };
    }
    match (stage, tool) {
        // The call may have run, even if the tool no longer exists.
        (OpenStage::Running, tool) => match tool {
            Some(tool) if tool.idempotent() => CallDecision::Run(tool),
            _ => CallDecision::Refuse(OUTCOME_UNKNOWN.into()),
        },
        (_, None) => CallDecision::Refuse(format!("there is no tool called `{}`", call.name)),
        (OpenStage::New | OpenStage::Ready, Some(tool)) => CallDecision::Run(tool),
        // Its hooks are run instead.
        (OpenStage::Returned, Some(_)) => CallDecision::Refuse(OUTCOME_UNKNOWN.into()),
    }
}
