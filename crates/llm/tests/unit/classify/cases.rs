//! Errors as the vendors send them, with the source of each.

use crate::ModelErrorKind::{self, Auth, BrokenHistory, Busy, NoSuchModel, Quota, Refused, TooLong};

/// The source of an error, its status, its kind, and its body or message.
type Case = (&'static str, u16, ModelErrorKind, &'static str);

pub(super) const ANTHROPIC: [Case; 15] = [
    (
        "https://platform.claude.com/docs/en/api/errors",
        529,
        Busy,
        r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_011CSHoEeqs5C35K2UUqR7Fy"}"#,
    ),
    (
        "https://platform.claude.com/docs/en/api/errors",
        404,
        NoSuchModel,
        r#"{"type":"error","error":{"type":"not_found_error","message":"The requested resource could not be found."},"request_id":"req_011CSHoEeqs5C35K2UUqR7Fy"}"#,
    ),
    (
        "https://platform.claude.com/docs/en/api/errors",
        413,
        TooLong,
        r#"{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum allowed number of bytes."}}"#,
    ),
    (
        "https://platform.claude.com/docs/en/api/errors",
        401,
        Auth,
        r#"{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}"#,
    ),
    (
        "https://platform.claude.com/docs/en/api/errors",
        429,
        Busy,
        r#"{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your account's rate limit. Please try again later."}}"#,
    ),
    (
        "https://platform.claude.com/docs/en/api/errors",
        402,
        Quota,
        r#"{"type":"error","error":{"type":"billing_error","message":"There is an issue with your billing or payment information."}}"#,
    ),
    (
        "https://github.com/anthropics/claude-code/issues/66314",
        400,
        Quota,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to upgrade or purchase credits."},"request_id":"req_011CbrFTcXhtiMzr3s6EocF7"}"#,
    ),
    (
        "https://github.com/boldsoftware/exe.dev/issues/62",
        400,
        TooLong,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 200251 tokens > 200000 maximum"},"request_id":"req_011CWdepJvA2D819tdYYq4h7"}"#,
    ),
    (
        "https://github.com/continuedev/continue/issues/8454",
        400,
        TooLong,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 143653 + 64000 > 200000, decrease input length or `max_tokens` and try again"},"request_id":"req_011CUWu7a8bGeMSvA9d7DRLa"}"#,
    ),
    (
        "https://github.com/anthropics/claude-code/issues/11302",
        400,
        Refused,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: 21333 > 4096, which is the maximum allowed number of output tokens for claude-3-opus-20240229"},"request_id":"req_011CUwZTS7TYAH8UyTro83sP"}"#,
    ),
    (
        "https://github.com/anthropics/claude-code/issues/10627",
        400,
        BrokenHistory,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in `thinking` block"},"request_id":"req_011CUdL49e3Fu9bCKbWF6cXD"}"#,
    ),
    (
        "https://github.com/anthropics/claude-code/issues/63404",
        400,
        BrokenHistory,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.11.content.11: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must remain as they were in the original response."},"request_id":"req_011CVTZiv4zz4a4AmyidNwVx"}"#,
    ),
    (
        "https://github.com/Kilo-Org/kilocode/issues/5219",
        400,
        BrokenHistory,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)."},"request_id":"req_vrtx_011CXHqiZPJzdrvgn43AHAoA"}"#,
    ),
    (
        "https://github.com/anthropics/claude-code/issues/12526",
        400,
        BrokenHistory,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.63: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_01Qimu3Y5DwauzoDUuBv2DmZ. Each `tool_use` block must have a corresponding `tool_result` block in the next message."},"request_id":"req_011CVXsgwwRSCBiN5tiU4kjB"}"#,
    ),
    (
        "https://github.com/andreasjansson/greger.el/issues/60",
        400,
        Refused,
        r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.2.content.0.tool_use.input: Input should be a valid dictionary"}}"#,
    ),
];

pub(super) const OPENAI: [Case; 14] = [
    (
        "https://github.com/theopenco/llmgateway/pull/3110",
        400,
        Refused,
        r#"{"error":{"message":"Invalid 'prompt_cache_key': string too long. Expected a string with maximum length 64, but got a string with length 72 instead.","type":"invalid_request_error","param":"prompt_cache_key","code":"string_above_max_length"}}"#,
    ),
    (
        "https://github.com/VectorlyApp/bluebox/issues/31",
        400,
        TooLong,
        r#"{"error":{"message":"Invalid 'input[0].content': string too long. Expected a string with maximum length 10485760, but got a string with length 62114761 instead.","type":"invalid_request_error","param":"input[0].content","code":"string_above_max_length"}}"#,
    ),
    (
        "https://github.com/chatanywhere/GPT_API_free/issues/229",
        429,
        Quota,
        r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details. For more information on this error, read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
    ),
    (
        "https://github.com/aallam/openai-kotlin/issues/216",
        429,
        Busy,
        r#"{"error":{"message":"Rate limit reached for default-gpt-3.5-turbo in organization org-x on requests per min,","type":"requests","param":null,"code":"rate_limit_exceeded"}}"#,
    ),
    (
        "https://github.com/vanna-ai/vanna-flask/issues/11",
        429,
        TooLong,
        r#"{"error":{"message":"Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389. The input or output tokens must be reduced in order to run successfully.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
    ),
    (
        "https://github.com/dimagi/open-chat-studio/issues/463",
        400,
        TooLong,
        r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 8202 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
    ),
    (
        "https://github.com/the-open-agent/openagent/issues/2344",
        400,
        TooLong,
        r#"{"error":{"type":"invalid_request_error","code":"context_length_exceeded","message":"Your input exceeds the context window of this model. Please adjust your input and try again.","param":"input"}}"#,
    ),
    (
        "https://github.com/The-Vibe-Company/quivr/issues/1400",
        401,
        Auth,
        r#"{"error":{"message":"Incorrect API key provided: sk-1. You can find your API key at https://platform.openai.com/account/api-keys.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#,
    ),
    (
        "https://github.com/openai/codex/issues/8145",
        400,
        BrokenHistory,
        r#"{"error":{"message":"The encrypted content gAAA...DQ== could not be verified.","type":"invalid_request_error","param":null,"code":"invalid_encrypted_content"}}"#,
    ),
    (
        "https://github.com/microsoft/vscode/issues/320060",
        400,
        BrokenHistory,
        r#"{"error":{"message":"No tool call found for function call output with call_id call_TnakLSVsqtVt5cJssAhRwMoe.","type":"invalid_request_error","param":"input","code":null}}"#,
    ),
    (
        "https://github.com/openai/codex/issues/93",
        400,
        BrokenHistory,
        r#"{"error":{"message":"No tool output found for function call call_k20FunjGZouIu7PaUIAHz2G6.","type":"invalid_request_error","param":"input","code":null}}"#,
    ),
    (
        "https://github.com/continuedev/continue/issues/8933",
        400,
        BrokenHistory,
        r#"{"error":{"message":"Item 'rs_0c3876fcd4da19ef00692a14046bc8819eba6941c05c5ab7e7' of type 'reasoning' was provided without its required following item.","type":"invalid_request_error","param":"input","code":null}}"#,
    ),
    (
        "https://github.com/can1357/oh-my-pi/issues/41",
        404,
        BrokenHistory,
        r#"{"error":{"message":"Item with id 'rs_04962823ecde01b901698e138042688193a657e07614b238c3' not found. Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item from your input.","type":"invalid_request_error","param":"input","code":null}}"#,
    ),
    (
        "https://github.com/RamiAwar/dataline/issues/172",
        400,
        BrokenHistory,
        r#"{"error":{"message":"An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: call_i8vT76kQ8XOpe9ErYaTYRRxV","type":"invalid_request_error","param":"messages.[14].role","code":null}}"#,
    ),
];

pub(super) const GEMINI: [Case; 10] = [
    (
        "https://ai.google.dev/gemini-api/docs/billing (prepaid accounts)",
        429,
        Quota,
        r#"{"error":{"code":429,"message":"Your prepayment credits are depleted. Please go to AI Studio at https://ai.studio/projects to manage your project and billing.","status":"RESOURCE_EXHAUSTED"}}"#,
    ),
    (
        "https://github.com/google-gemini/gemini-cli/issues/6678",
        400,
        TooLong,
        r#"[{"error":{"code":400,"message":"The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).","errors":[{"message":"The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).","domain":"global","reason":"badRequest"}],"status":"INVALID_ARGUMENT"}}]"#,
    ),
    (
        "https://github.com/google-gemini/gemini-cli/issues/8437",
        429,
        Quota,
        r#"{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaMetric":"generativelanguage.googleapis.com/generate_content_free_tier_requests","quotaId":"GenerateRequestsPerMinutePerProjectPerModel-FreeTier"},{"quotaMetric":"generativelanguage.googleapis.com/generate_content_free_tier_requests","quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}]}}"#,
    ),
    (
        "https://github.com/google-gemini/gemini-cli/issues/8437",
        429,
        Busy,
        r#"{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure","violations":[{"quotaMetric":"generativelanguage.googleapis.com/generate_content_free_tier_input_token_count","quotaId":"GenerateContentInputTokensPerModelPerMinute-FreeTier"}]},{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"34.07s"}]}}"#,
    ),
    (
        "https://github.com/googleapis/python-genai/issues/2065",
        429,
        Busy,
        r#"{"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota).","status":"RESOURCE_EXHAUSTED"}}"#,
    ),
    (
        "https://github.com/cequence-io/openai-scala-client/issues/109",
        400,
        Auth,
        r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID","domain":"googleapis.com","metadata":{"service":"generativelanguage.googleapis.com"}}]}}"#,
    ),
    (
        "https://github.com/TokenRhythm/opensquilla/issues/225",
        400,
        BrokenHistory,
        r#"[{"error":{"code":400,"message":"Function call is missing a thought_signature in functionCall parts. This is required for tools to work correctly, and missing thought_signature may lead to degraded model performance.","status":"INVALID_ARGUMENT"}}]"#,
    ),
    (
        "https://github.com/continuedev/continue/issues/11293",
        400,
        BrokenHistory,
        r#"{"error":{"code":400,"message":"Please ensure that function call turn comes immediately after a user turn or after a function response turn.","status":"INVALID_ARGUMENT"}}"#,
    ),
    (
        "https://github.com/microsoft/vscode/issues/299295",
        400,
        BrokenHistory,
        r#"{"error":{"code":400,"message":"Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.","status":"INVALID_ARGUMENT"}}"#,
    ),
    (
        "https://github.com/google-gemini/gemini-cli/issues/5333",
        400,
        Refused,
        r#"{"error":{"code":400,"message":"* GenerateContentRequest.tools[0].function_declarations[34].name: Invalid function name. Must start with a letter or an underscore.","status":"INVALID_ARGUMENT"}}"#,
    ),
];

pub(super) const OTHERS: [Case; 17] = [
    (
        "Ollama's hosted models: https://ollama.com/upgrade",
        429,
        Quota,
        r#"{"error":"you (account) have reached your weekly usage limit, upgrade for higher limits: https://ollama.com/upgrade"}"#,
    ),
    (
        "Ollama: https://github.com/TheBlewish/Automated-AI-Web-Researcher-Ollama/issues/42",
        404,
        NoSuchModel,
        r#"{"error":"model 'custom-phi3-32k-Q4_K_M' not found"}"#,
    ),
    (
        "vLLM: https://github.com/meta-llama/llama-verifications/issues/58",
        400,
        TooLong,
        r#"{"object":"error","message":"This model's maximum context length is 131072 tokens. However, you requested 156632 tokens (152536 in the messages, 4096 in the completion). Please reduce the length of the messages or completion.","type":"BadRequestError","param":null,"code":400}"#,
    ),
    (
        "vLLM: https://github.com/harbor-framework/harbor/pull/996",
        400,
        TooLong,
        r#"{"error":{"message":"You passed 1015 input tokens and requested 10 output tokens. However, the model's context length is only 1024 tokens, resulting in a maximum input length of 1014 tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=1015)","type":"BadRequestError","param":"input_tokens","code":400}}"#,
    ),
    (
        "llama.cpp: https://github.com/ggml-org/llama.cpp/pull/15780",
        500,
        TooLong,
        r#"{"error":{"code":500,"message":"the request exceeds the available context size. try increasing the context size or enable context shift","type":"exceed_context_size_error","n_prompt_tokens":1407,"n_ctx":256}}"#,
    ),
    (
        "LM Studio: https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/546",
        400,
        TooLong,
        r#"{"error":"Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with context length of only 32768 tokens, which is not enough. Try to load the model with a larger context length, or provide a shorter input."}"#,
    ),
    (
        "LM Studio: https://github.com/anomalyco/opencode/issues/11141",
        400,
        TooLong,
        r#"{"error":"Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)"}"#,
    ),
    (
        "Groq: https://github.com/cottongeeks/podscript/issues/20",
        413,
        TooLong,
        r#"{"error":{"message":"Request too large for model `llama-3.3-70b-versatile` in organization `org_01` service tier `on_demand` on tokens per minute (TPM): Limit 6000, Requested 10338, please reduce your message size and try again.","type":"tokens","code":"rate_limit_exceeded"}}"#,
    ),
    (
        "DeepSeek: https://github.com/Aider-AI/aider/issues/4851",
        402,
        Quota,
        r#"{"error":{"message":"Insufficient Balance","type":"unknown_error","param":null,"code":"invalid_request_error"}}"#,
    ),
    (
        "DeepSeek: https://github.com/nowledge-co/nowledge-mem/issues/36",
        400,
        BrokenHistory,
        r#"{"error":{"message":"The `reasoning_content` in the thinking mode must be passed back to the API.","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#,
    ),
    (
        "OpenRouter: https://github.com/open-assistant-org/open-assistant/issues/80",
        402,
        Quota,
        r#"{"error":{"message":"Insufficient credits. Add more using https://openrouter.ai/settings/credits","code":402,"metadata":{"limit_source":"openrouter_credits"}}}"#,
    ),
    (
        "OpenRouter: https://github.com/OpenRouterTeam/openrouter-examples/issues/74",
        400,
        NoSuchModel,
        r#"{"error":{"message":"claude-sonnet-4-6 is not a valid model ID","code":400}}"#,
    ),
    (
        "OpenRouter: https://github.com/refly-ai/refly/issues/1177",
        400,
        TooLong,
        r#"{"error":{"message":"This endpoint's maximum context length is 32768 tokens. However, you requested about 42832 tokens (42832 of text input). Please reduce the length of either one, or use the \"middle-out\" transform to compress your prompt automatically.","code":400}}"#,
    ),
    (
        "OpenRouter: https://github.com/lobehub/lobehub/issues/7298",
        400,
        BrokenHistory,
        r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\n  \"error\": {\n    \"code\": 400,\n    \"message\": \"Please ensure that function response turn comes immediately after a function call turn.\",\n    \"status\": \"INVALID_ARGUMENT\"\n  }\n}\n","provider_name":"Google AI Studio"}}}"#,
    ),
    (
        "Azure: https://github.com/chatboxai/chatbox/issues/861",
        404,
        NoSuchModel,
        r#"{"error":{"code":"DeploymentNotFound","message":"The API deployment for this resource does not exist. If you created the deployment within the last 5 minutes, please wait a moment and try again."}}"#,
    ),
    (
        "https://github.com/JohnnyZ93/oai-compatible-copilot/issues/229",
        404,
        Refused,
        r#"{"error":{"code":"404","message":"No endpoints found that support image input","param":"","type":""}}"#,
    ),
    (
        "https://github.com/ggml-org/llama.cpp/issues/13566",
        500,
        Refused,
        r#"{"error":{"code":500,"message":"image input is not supported by this server","type":"server_error"}}"#,
    ),
];

/// Messages without any other field that is more specific than the status.
pub(super) const MESSAGES: [Case; 29] = [
    (
        "https://github.com/earendil-works/pi/blob/main/packages/ai/src/utils/overflow.ts",
        400,
        TooLong,
        "Input length (265330) exceeds model's maximum context length (262144).",
    ),
    (
        "https://github.com/earendil-works/pi/blob/main/packages/ai/src/utils/overflow.ts",
        400,
        TooLong,
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens",
    ),
    (
        "https://github.com/earendil-works/pi/blob/main/packages/ai/src/utils/overflow.ts",
        400,
        TooLong,
        "Please reduce the length of the messages or completion",
    ),
    (
        "https://github.com/earendil-works/pi/blob/main/packages/ai/src/utils/overflow.ts",
        400,
        TooLong,
        "Input length 70000 exceeds the maximum allowed input length of 65536 tokens.",
    ),
    (
        "https://github.com/earendil-works/pi/blob/main/packages/ai/src/utils/overflow.ts",
        400,
        TooLong,
        "The input (70000 tokens) is longer than the model's context length (65536 tokens).",
    ),
    (
        "https://github.com/earendil-works/pi/blob/main/packages/ai/src/utils/overflow.ts",
        400,
        TooLong,
        "tokens to keep from the initial prompt is greater than the context length",
    ),
    (
        "https://github.com/earendil-works/pi/blob/main/packages/ai/src/utils/overflow.ts",
        400,
        TooLong,
        "invalid params, context window exceeds limit",
    ),
    (
        "https://github.com/earendil-works/pi/blob/main/packages/ai/src/utils/overflow.ts",
        400,
        TooLong,
        "Your request exceeded model token limit: 262144 (requested: 291351)",
    ),
    (
        "https://github.com/earendil-works/pi/blob/main/packages/ai/src/utils/overflow.ts",
        400,
        TooLong,
        "Prompt contains 65673 tokens, too large for model with 32768 maximum context length",
    ),
    (
        "https://github.com/earendil-works/pi/blob/main/packages/ai/src/utils/overflow.ts",
        400,
        TooLong,
        "prompt too long; exceeded max context length by 100918 tokens",
    ),
    (
        "https://help.aliyun.com/zh/model-studio/error-code",
        400,
        TooLong,
        "Range of input length should be [1, 98304]",
    ),
    (
        "https://github.com/aws-samples/assessment-generator/issues/2",
        400,
        TooLong,
        "Input is too long for requested model.",
    ),
    (
        "https://github.com/nano-step/nano-brain/issues/208",
        400,
        TooLong,
        "the input length exceeds the context length",
    ),
    (
        "https://github.com/anthropics/claude-code/issues/44863",
        429,
        TooLong,
        "Extra usage is required for long context requests.",
    ),
    (
        "https://github.com/anthropics/claude-code/issues/38035",
        400,
        Quota,
        "You have reached your specified API usage limits. You will regain access on 2026-04-01 at 00:00 UTC.",
    ),
    (
        "https://github.com/Anantys-oss/koan/issues/2412",
        403,
        Quota,
        "Your team deadb-a58d has either used all available credits or reached its monthly spending limit.",
    ),
    (
        "https://github.com/Wei-Shaw/sub2api/issues/4069",
        403,
        Quota,
        "You have run out of credits or need a Grok subscription.",
    ),
    (
        "https://github.com/Gitlawb/openclaude/issues/936",
        429,
        Quota,
        "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 free model requests per day",
    ),
    (
        "https://github.com/RooCodeInc/Roo-Code/issues/515",
        403,
        Quota,
        "Key limit exceeded. Manage it using https://openrouter.ai/keys",
    ),
    (
        "https://github.com/continuedev/continue/issues/10298",
        400,
        Quota,
        "This request requires more credits, or fewer max_tokens. You requested up to 4096 tokens, but can only afford 4000.",
    ),
    (
        "https://github.com/anthropics/claude-code/issues/13460",
        400,
        BrokenHistory,
        "messages.48.content.1: unexpected `tool_use_id` found in `tool_result` blocks: toolu_019ETtGZEhTBXgWPVsdVnXMh.",
    ),
    (
        "https://github.com/aliasrobotics/cai/issues/182",
        400,
        BrokenHistory,
        "messages: text content blocks must be non-empty",
    ),
    (
        "https://github.com/symgraph/GhidrAssist/issues/45",
        400,
        BrokenHistory,
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    ),
    (
        "https://github.com/decolua/9router/issues/301",
        400,
        BrokenHistory,
        "Unable to submit request because Thought signature is not valid.",
    ),
    (
        "https://github.com/google-gemini/gemini-cli/issues/13467",
        400,
        BrokenHistory,
        "Corrupted thought signature.",
    ),
    (
        "https://github.com/poenl/gemini-api/issues/4",
        400,
        Auth,
        "User location is not supported for the API use.",
    ),
    ("https://github.com/deepwn/addi/issues/13", 400, NoSuchModel, "Model Not Exist"),
    (
        "https://github.com/continuedev/continue/issues/11177",
        400,
        NoSuchModel,
        "/chat/completions: Invalid model name passed in model=ollama/deepseek-r1:latest. Call `/v1/models` to view available models for your key.",
    ),
    (
        "https://github.com/janhq/jan/issues/8136",
        400,
        BrokenHistory,
        "'messages.1' : for 'role:assistant' the following must be satisfied[('messages.1' : property 'reasoning_content' is unsupported)]",
    ),
];
