"""OpenAI Responses through `openai`."""

import json

import openai

from scripting import BASE_URL, FUNCTION, USAGE, USER, fault, raises, refuse, script, text, thinking, tool_use

gpt = openai.OpenAI(base_url=BASE_URL + "/v1", api_key="key", max_retries=0, timeout=20)

FLAT_FUNCTION = {"type": "function", "strict": False, **FUNCTION["function"]}
REASONING = {"effort": "low", "summary": "auto"}


def responses_request(items=(USER,), **changes):
    request = {
        "model": "gpt-5-test",
        "input": list(items),
        "tools": [FLAT_FUNCTION],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": REASONING,
    }
    request.update(changes)
    return request


def responses_whole(request):
    return gpt.responses.create(**request)


def responses_stream(request):
    with gpt.responses.stream(**request) as stream:
        numbers = [event.sequence_number for event in stream]
        assert numbers == list(range(len(numbers))), numbers
        return stream.get_final_response()


def as_input(response):
    """The conversation in which every call of the response has its output."""
    # What the SDK adds to the items that it parses is its own.
    items = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
    for item in items:
        for part in item.get("content") or []:
            part.pop("parsed", None)
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "3"}
        for item in items
        if item["type"] == "function_call"
    ]
    return [USER, *items, *outputs]


def check_responses_turns():
    first = {"blocks": [thinking("Add them up."), text("Let me add."), tool_use(1, 2), tool_use(3, 4)], "usage": USAGE}
    second = {"blocks": [thinking("Done."), text("It is 3.")]}
    for call in (responses_whole, responses_stream):
        script(first, second)
        response = call(responses_request())
        kinds = [item.type for item in response.output]
        assert kinds == ["reasoning", "message", "function_call", "function_call"], kinds
        reasoning, message, one, two = response.output
        assert reasoning.summary[0].text == "Add them up." and reasoning.encrypted_content
        assert response.output_text == "Let me add."
        assert [json.loads(call.arguments) for call in (one, two)] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        usage = response.usage
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (150, 50, 200)
        assert usage.input_tokens_details.cached_tokens == 30
        assert usage.output_tokens_details.reasoning_tokens == 10
        final = call(responses_request(as_input(response)))
        assert final.output_text == "It is 3." and final.status == "completed"
    script({"blocks": [text("cut")], "stop": "max_tokens"})
    cut = responses_whole(responses_request())
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"


def check_responses_strictness():
    script({"blocks": [thinking("Hm."), tool_use(1, 2)]})
    items = as_input(responses_whole(responses_request()))

    def refused(items, kind=openai.BadRequestError):
        return raises(kind, lambda: responses_whole(responses_request(items)))

    assert "No tool output found for function call" in refused(items[:-1]).message
    assert "No tool call found for function call output" in refused([USER, items[-1]]).message
    assert "without its required following item" in refused([USER, items[1]]).message
    assert "without its required 'reasoning' item" in refused([USER, items[2], items[3]]).message
    forged = {**items[1], "encrypted_content": "gAAAforged"}
    assert refused([USER, forged, *items[2:]]).code == "invalid_encrypted_content"
    bare = {name: value for name, value in items[1].items() if name != "encrypted_content"}
    refused([USER, bare, *items[2:]], openai.NotFoundError)


def check_responses_errors():
    def call():
        responses_whole(responses_request())

    script(refuse("rate_limited", retry_after_s=7))
    assert raises(openai.RateLimitError, call).response.headers["retry-after"] == "7"
    script(refuse("prompt_too_long"))
    assert raises(openai.BadRequestError, call).code == "context_length_exceeded"
    script(refuse("broken_history"))
    assert raises(openai.BadRequestError, call).code == "invalid_encrypted_content"

    def streamed():
        return list(gpt.responses.create(**responses_request(), stream=True))

    script(fault("cut_after", deltas=2))
    raises(openai.APIConnectionError, streamed)
    script(fault("error_event_after", deltas=2, refusal={"reason": "quota_exhausted"}))
    error = raises(openai.APIError, streamed)
    assert error.code == "insufficient_quota", error
    script(fault("no_end_mark"))
    assert streamed()[-1].type == "response.output_item.done"


CHECKS = [
    check_responses_turns,
    check_responses_strictness,
    check_responses_errors,
]
