/** A typed client of Roundhouse: of its orchestrator (`Fleet`, `Admin`) and of a user's engine (`Engine`). */

export { Admin, type AdminOptions } from "./admin.js";
export { Api, type CallOptions } from "./api.js";
export { Download, type DownloadOptions } from "./download.js";
export { Engine, type EngineOptions, type OfTurn, type RunOptions } from "./engine.js";
export * from "./error-codes.js";
export * from "./errors.js";
export type * from "./events.js";
export type { TurnFields } from "./execute.js";
export { type AdmitOptions, Fleet, type FleetOptions } from "./fleet.js";
export type { Fetch, HttpOptions } from "./http.js";
export { type Page, Pages } from "./pages.js";
export type { OnRequest, RequestAnswer, RequestContext } from "./requests.js";
export type { FileInfo, FilePath } from "./resources/files.js";
export type { Hitl } from "./resources/hitl.js";
export type { Memory } from "./resources/memory.js";
export type { Schedules } from "./resources/schedules.js";
export type { Connections, Servers } from "./resources/servers.js";
export type { Skills } from "./resources/skills.js";
export type { ListOptions, Tasks } from "./resources/tasks.js";
export type { UsageGroup, UsageQuery } from "./resources/usage.js";
export { type SseMessage, SseParser } from "./sse.js";
export { Transcript, type TranscriptBlock } from "./transcript.js";
export { Turn, type TurnOptions, type TurnResult } from "./turn.js";
export type * from "./types.js";
export type { UploadBody, UploadOptions } from "./upload.js";
