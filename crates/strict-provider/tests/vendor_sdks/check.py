"""Drives a strict provider through the vendors' own SDKs.

Usage: check.py BASE_URL. The provider is scripted through its control endpoint. The SDKs parse what
the provider sends and raise their typed errors, so this proves that the wires are the vendors'
and not only what the Rust tests take them for. Exits with 77 when an SDK cannot be imported.
"""

import json
import sys
import urllib.request

try:
    import anthropic
    import openai
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)

BASE_URL = sys.argv[1]
TOOL = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
FUNCTION = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": TOOL["input_schema"],
    },
}
USAGE = {"input": 100, "output": 50, "cache_read": 30, "cache_write": 20, "reasoning": 10}

claude = anthropic.Anthropic(base_url=BASE_URL, api_key="key", max_retries=0, timeout=20)
gpt = openai.OpenAI(base_url=BASE_URL + "/v1", api_key="key", max_retries=0, timeout=20)


def script(*replies):
    """Adds replies to the provider's script."""
    request = urllib.request.Request(
        BASE_URL + "/control/replies",
        data=json.dumps(replies).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        assert response.status == 204


def raises(kind, call):
    """Calls and returns the error, which must be exactly of this kind."""
    try:
        call()
    except Exception as error:
        assert type(error) is kind, f"{type(error)} is not {kind}: {error}"
        return error
    raise AssertionError(f"{kind} was not raised")


def text(text):
    return {"type": "text", "text": text}


def thinking(text):
    return {"type": "thinking", "text": text}


def tool_use(a, b):
    return {"type": "tool_use", "name": "add", "input": {"a": a, "b": b}}


def refuse(reason, **details):
    return {"fault": {"kind": "refuse", "refusal": {"reason": reason, **details}}}


def fault(kind, **details):
    return {"blocks": [text("0123456789")], "fault": {"kind": kind, **details}}


# === Anthropic ===

USER = {"role": "user", "content": "What is 1 + 2?"}


def claude_request(messages=(USER,), **changes):
    request = {
        "model": "claude-test",
        "max_tokens": 4096,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tools": [TOOL],
        "messages": list(messages),
    }
    request.update(changes)
    return request


def claude_stream(request):
    with claude.messages.stream(**request) as stream:
        kinds = [event.type for event in stream]
        return kinds, stream.get_final_message()


def claude_whole(request):
    return claude.messages.create(**request)


def answered(message, *more):
    """The conversation in which every call of the message has its result."""
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "3"}
        for block in message.content
        if block.type == "tool_use"
    ]
    return [USER, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}, *more]


def check_claude_message(message):
    kinds = [block.type for block in message.content]
    assert kinds == ["thinking", "text", "redacted_thinking", "tool_use", "tool_use"], kinds
    reasoning, says, redacted, first, second = message.content
    assert reasoning.thinking == "Add them up." and reasoning.signature
    assert says.text == "Let me add."
    assert redacted.data
    assert first.input == {"a": 1, "b": 2} and second.input == {"a": 3, "b": 4}
    assert first.id != second.id and first.name == "add"
    assert message.stop_reason == "tool_use"
    usage = message.usage
    assert (usage.input_tokens, usage.output_tokens) == (100, 50)
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (30, 20)
    assert usage.output_tokens_details.thinking_tokens == 10


def check_claude_turns():
    first = {
        "blocks": [
            thinking("Add them up."),
            text("Let me add."),
            {"type": "redacted_thinking"},
            tool_use(1, 2),
            tool_use(3, 4),
        ],
        "usage": USAGE,
    }
    second = {"blocks": [thinking("Done."), text("It is 3.")]}
    for call in (claude_whole, lambda request: claude_stream(request)[1]):
        script(first, second)
        message = call(claude_request())
        check_claude_message(message)
        final = call(claude_request(answered(message)))
        assert final.content[-1].text == "It is 3."
        assert final.stop_reason == "end_turn"
        # The whole conversation goes back once more, signatures and all.
        script({"blocks": [text("Bye.")], "stop": "max_tokens"})
        bye = call(claude_request(answered(message, final.to_param(), {"role": "user", "content": "Bye"})))
        assert bye.stop_reason == "max_tokens"


def check_claude_events():
    script({"blocks": [thinking("abcdefgh"), text("abcdefgh"), tool_use(1, 2)], "chunking": {"deltas": 2}})
    stream = claude.messages.create(**claude_request(), stream=True)
    events = list(stream)
    assert events[0].type == "message_start" and events[-1].type == "message_stop"
    deltas = [event.delta.type for event in events if event.type == "content_block_delta"]
    assert deltas == (
        ["thinking_delta"] * 2 + ["signature_delta"] + ["text_delta"] * 2 + ["input_json_delta"] * 3
    ), deltas


def check_claude_errors():
    def call():
        claude_whole(claude_request())

    script(refuse("rate_limited", retry_after_s=7))
    error = raises(anthropic.RateLimitError, call)
    assert error.response.headers["retry-after"] == "7"
    assert error.type == "rate_limit_error" and error.request_id
    script(refuse("overloaded"))
    overloaded = raises(anthropic._exceptions.OverloadedError, call)
    assert isinstance(overloaded, anthropic.InternalServerError) and overloaded.status_code == 529
    script(refuse("server_error"))
    raises(anthropic.InternalServerError, call)
    script(refuse("unauthorized"))
    raises(anthropic.AuthenticationError, call)
    script(refuse("forbidden"))
    raises(anthropic.PermissionDeniedError, call)
    script(refuse("unknown_model"))
    raises(anthropic.NotFoundError, call)
    script(refuse("prompt_too_long"))
    error = raises(anthropic.BadRequestError, call)
    assert "prompt is too long" in error.api_message


def check_claude_strictness():
    script({"blocks": [thinking("One."), text("Two."), thinking("Three."), tool_use(1, 2)]})
    message = claude_whole(claude_request())
    conversation = answered(message)

    def call(messages):
        return raises(anthropic.BadRequestError, lambda: claude_whole(claude_request(messages)))

    unpaired = call(conversation[:2] + [USER])
    assert "`tool_use` ids were found without `tool_result` blocks" in unpaired.api_message
    one, two, three, use = message.content
    moved = [conversation[0], {"role": "assistant", "content": [one, three, two, use]}, conversation[2]]
    assert "cannot be modified" in call(moved).api_message
    dropped = [conversation[0], {"role": "assistant", "content": [use]}, conversation[2]]
    assert "Expected `thinking` or `redacted_thinking`" in call(dropped).api_message
    forged = one.model_copy(update={"thinking": "Eins."})
    forged = [conversation[0], {"role": "assistant", "content": [forged, two, three, use]}, conversation[2]]
    assert "Invalid `signature` in `thinking` block" in call(forged).api_message


def check_claude_broken_streams():
    def call():
        claude_stream(claude_request())

    script(fault("cut_after", deltas=2))
    # The SDK lets the error of its HTTP client through while it reads a stream.
    try:
        call()
        raise SystemExit("a cut stream went unnoticed")
    except Exception as error:
        assert "incomplete chunked read" in str(error), repr(error)
    script(fault("error_event_after", deltas=2))
    error = raises(anthropic.APIStatusError, call)
    assert error.type == "overloaded_error", error
    script(fault("no_end_mark"))
    kinds, _ = claude_stream(claude_request())
    assert "message_stop" not in kinds


# === OpenAI ===


def gpt_request(messages=(USER,), **changes):
    request = {"model": "gpt-test", "tools": [FUNCTION], "messages": list(messages)}
    request.update(changes)
    return request


def gpt_whole(request):
    return gpt.chat.completions.create(**request)


def gpt_stream(request):
    options = {"include_usage": True}
    with gpt.chat.completions.stream(**request, stream_options=options) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion()


def check_gpt_turns():
    first = {"blocks": [thinking("Hidden."), text("Let me add."), tool_use(1, 2), tool_use(3, 4)], "usage": USAGE}
    second = {"blocks": [text("It is 3.")]}
    for call in (gpt_whole, gpt_stream):
        script(first, second)
        completion = call(gpt_request())
        choice = completion.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me add."
        calls = choice.message.tool_calls
        assert [json.loads(call.function.arguments) for call in calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        usage = completion.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (150, 50, 200)
        assert usage.prompt_tokens_details.cached_tokens == 30
        assert usage.completion_tokens_details.reasoning_tokens == 10

        function_calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for call in calls
        ]
        messages = [USER, {"role": "assistant", "content": "Let me add.", "tool_calls": function_calls}]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in calls]
        final = call(gpt_request(messages))
        assert final.choices[0].message.content == "It is 3."
        assert final.choices[0].finish_reason == "stop"
        raises(openai.BadRequestError, lambda: gpt_whole(gpt_request(messages[:-1])))
        raises(openai.BadRequestError, lambda: gpt_whole(gpt_request([USER, messages[-1]])))


def check_gpt_errors():
    def call():
        gpt_whole(gpt_request())

    script(refuse("rate_limited", retry_after_s=7))
    error = raises(openai.RateLimitError, call)
    assert error.response.headers["retry-after"] == "7" and error.code == "rate_limit_exceeded"
    script(refuse("quota_exhausted"))
    assert raises(openai.RateLimitError, call).code == "insufficient_quota"
    script(refuse("overloaded"))
    assert raises(openai.InternalServerError, call).status_code == 503
    script(refuse("unauthorized"))
    assert raises(openai.AuthenticationError, call).code == "invalid_api_key"
    script(refuse("forbidden"))
    raises(openai.PermissionDeniedError, call)
    script(refuse("unknown_model"))
    assert raises(openai.NotFoundError, call).code == "model_not_found"
    script(refuse("prompt_too_long"))
    assert raises(openai.BadRequestError, call).code == "context_length_exceeded"


def check_gpt_broken_streams():
    def call():
        return list(gpt.chat.completions.create(**gpt_request(), stream=True))

    script(fault("cut_after", deltas=2))
    raises(openai.APIConnectionError, call)
    script(fault("error_event_after", deltas=2))
    error = raises(openai.APIError, call)
    assert error.type == "server_error", error
    script(fault("no_end_mark"))
    assert call()[-1].choices[0].finish_reason == "stop"


CHECKS = [
    check_claude_turns,
    check_claude_events,
    check_claude_errors,
    check_claude_strictness,
    check_claude_broken_streams,
    check_gpt_turns,
    check_gpt_errors,
    check_gpt_broken_streams,
]

for check in CHECKS:
    check()
    print("ok", check.__name__)
