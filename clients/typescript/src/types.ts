/** The types of both APIs under their names, from the OpenAPI documents. */

import type { components as Engine, paths as EnginePaths } from "./generated/engine.js";
import type { components as Orchestrator, paths as OrchestratorPaths } from "./generated/orchestrator.js";

export type { EnginePaths, OrchestratorPaths };
/** Every type of the engine's API, by its name in the OpenAPI document. */
export type EngineSchemas = Engine["schemas"];
/** Every type of the orchestrator's API, by its name in the OpenAPI document. */
export type OrchestratorSchemas = Orchestrator["schemas"];

// The orchestrator.
export type AuditRow = OrchestratorSchemas["AuditRow"];
export type BrowserScope = OrchestratorSchemas["Scope"];
/** A browser token without its secret. */
export type BrowserTokenSummary = OrchestratorSchemas["TokenSummary"];
export type EngineRecord = OrchestratorSchemas["EngineRecord"];
export type EngineStatus = OrchestratorSchemas["EngineStatus"];
export type EngineSummary = OrchestratorSchemas["EngineSummary"];
export type Explanation = OrchestratorSchemas["Explanation"];
export type FleetMetrics = OrchestratorSchemas["Metrics"];
export type FleetStatus = OrchestratorSchemas["FleetStatus"];
/** A question that waits for a person. */
export type InboxQuestion = OrchestratorSchemas["InboxQuestion"];
export type MintedToken = OrchestratorSchemas["MintedToken"];
/** What a product may do. What is left out or null does not limit it. */
export type Policy = Partial<OrchestratorSchemas["Policy"]>;
export type ProductSummary = OrchestratorSchemas["ProductSummary"];
export type ProvisionedEngine = OrchestratorSchemas["ProvisionedEngine"];
export type RegisteredProduct = OrchestratorSchemas["RegisteredProduct"];
export type RevokedToken = OrchestratorSchemas["RevokedToken"];

// The engine: turns and people.
export type ApprovalGrant = EngineSchemas["ApprovalGrant"];
export type ApprovalRequest = EngineSchemas["ApprovalRequest"];
export type ApprovalRespond = EngineSchemas["ApprovalRespond"];
export type BackgroundTurn = EngineSchemas["BackgroundTurn"];
export type Citation = EngineSchemas["Citation"];
export type ContentBlock = EngineSchemas["ContentBlock"];
export type EngineHealth = EngineSchemas["EngineHealth"];
export type Execute = EngineSchemas["Execute"];
export type Feedback = EngineSchemas["Feedback"];
export type Grant = EngineSchemas["Grant"];
export type HitlRespond = EngineSchemas["HitlRespond"];
export type PendingRequest = EngineSchemas["PendingRequest"];
export type StopReason = EngineSchemas["StopReason"];
export type TurnRecord = EngineSchemas["TurnRecord"];
/** Tokens that a turn has used so far. */
export type Usage = Omit<EngineSchemas["UsageData"], "task_id" | "turn_id" | "ts">;

// The engine: tasks and conversations.
export type AttachedFile = EngineSchemas["AttachedFile"];
export type Conversation = EngineSchemas["Conversation"];
export type ConversationHit = EngineSchemas["ConversationHit"];
export type ConversationMessage = EngineSchemas["ConversationMessage"];
export type TaskMessage = EngineSchemas["TaskMessage"];
export type TaskSummary = EngineSchemas["TaskSummary"];

// The engine: everything else.
export type Connection = EngineSchemas["Connection"];
export type Episode = EngineSchemas["Episode"];
export type Fact = EngineSchemas["Fact"];
export type FileEntry = EngineSchemas["FileEntry"];
export type Knowledge = EngineSchemas["Knowledge"];
export type Lesson = EngineSchemas["Lesson"];
export type Schedule = EngineSchemas["Schedule"];
export type ScheduleRun = EngineSchemas["ScheduleRun"];
export type Skill = EngineSchemas["Skill"];
export type UploadedFile = EngineSchemas["UploadedFile"];
export type UsageRow = EngineSchemas["UsageRow"];
export type WebhookDelivery = EngineSchemas["WebhookDelivery"];
