//! The wire types of the API between products, the orchestrator and engines, and nothing else.
//!
//! Both services, the command line and the tests use these types, so a field exists here or not at all. Input is
//! validated while it is parsed: every value of these types is valid.

pub mod admin;
pub mod approvals;
pub mod assets;
pub mod audit;
pub mod audit_webhooks;
pub mod backup;
pub mod browser;
pub mod cassettes;
pub mod citations;
pub mod content;
pub mod conversations;
pub mod drift;
pub mod engine;
pub mod error;
pub mod event;
pub mod facts;
pub mod files;
pub mod fleet;
pub mod ids;
pub mod image;
pub mod inbox;
pub mod keys;
pub mod learning;
pub mod log_filter;
pub mod maintenance;
pub mod memory;
pub mod metrics;
pub mod orchestrator;
pub mod policy;
pub mod product_keys;
pub mod product_state;
pub mod proof;
pub mod response_format;
pub mod rollout;
pub mod rpc;
pub mod schedules;
pub mod serde_helpers;
pub mod skills;
pub mod text;
pub mod time;
pub mod tool_names;
pub mod transfer;
pub mod turn_options;
pub mod turn_reports;
pub mod turns;
pub mod usage;
pub mod usage_caps;
pub mod usage_days;
pub mod user_servers;
pub mod version;
pub mod webhooks;

pub use error::{ErrorBody, ErrorCode, ErrorDetail};
pub use ids::{
    AuditWebhookId, BatchId, CallId, ConnectionId, EngineId, EpisodeId, FeedbackId, GrantId, HitlId,
    MemoryId, MessageId, PlatformKeyId, ProductId, RolloutId, TokenId, TurnId,
};
pub use image::EngineImage;
pub use keys::{AdminKey, EngineKey, KeyHash, PlatformKey};
pub use text::{ClientRequestId, DisplayName, SkillName, Slug, TaskId, UserId};
pub use time::Timestamp;
