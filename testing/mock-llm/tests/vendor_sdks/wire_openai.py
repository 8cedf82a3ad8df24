"""OpenAI Chat Completions through `openai`."""

import json

import openai

from scripting import BASE_URL, FUNCTION, USAGE, USER, fault, raises, refuse, script, text, thinking, tool_use

gpt = openai.OpenAI(base_url=BASE_URL + "/v1", api_key="key", max_retries=0, timeout=20)


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
    check_gpt_turns,
    check_gpt_errors,
    check_gpt_broken_streams,
]
