"""Anthropic Messages through `anthropic`."""

import anthropic

from scripting import BASE_URL, TOOL, USAGE, USER, fault, raises, refuse, script, text, thinking, tool_use

claude = anthropic.Anthropic(base_url=BASE_URL, api_key="key", max_retries=0, timeout=20)


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


CHECKS = [
    check_claude_turns,
    check_claude_events,
    check_claude_errors,
    check_claude_strictness,
    check_claude_broken_streams,
]
