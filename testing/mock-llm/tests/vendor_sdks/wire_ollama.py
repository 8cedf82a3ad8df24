"""Ollama through `ollama`."""

import ollama

from scripting import BASE_URL, FUNCTION, USAGE, USER, fault, raises, refuse, script, text, thinking, tool_use

llama = ollama.Client(host=BASE_URL, timeout=20)


def ollama_request(messages=(USER,), model="qwen3", **changes):
    request = {
        "model": model,
        "messages": list(messages),
        "tools": [FUNCTION],
        "think": True,
        "options": {"num_ctx": 8192, "num_predict": 100},
    }
    request.update(changes)
    return request


def ollama_whole(request):
    response = llama.chat(**request)
    return response.message, response


def ollama_stream(request):
    chunks = list(llama.chat(**request, stream=True))
    message = ollama.Message(
        role="assistant",
        content="".join(chunk.message.content or "" for chunk in chunks),
        thinking="".join(chunk.message.thinking or "" for chunk in chunks),
        tool_calls=[call for chunk in chunks for call in chunk.message.tool_calls or []],
    )
    return message, chunks[-1]


def check_ollama_turns():
    first = {"blocks": [thinking("Add them up."), text("Let me add."), tool_use(1, 2), tool_use(3, 4)], "usage": USAGE}
    second = {"blocks": [text("It is 3.")], "stop": "max_tokens"}
    for call in (ollama_whole, ollama_stream):
        script(first, second)
        message, last = call(ollama_request())
        assert (message.thinking, message.content) == ("Add them up.", "Let me add.")
        arguments = [call.function.arguments for call in message.tool_calls]
        assert arguments == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        assert (last.done, last.done_reason) == (True, "stop")
        assert (last.prompt_eval_count, last.eval_count) == (150, 50)
        results = [{"role": "tool", "tool_name": "add", "content": "3"} for _ in message.tool_calls]
        final, last = call(ollama_request([USER, message, *results]))
        assert (final.content, last.done_reason) == ("It is 3.", "length")


def check_ollama_errors():
    def refused(request=None, call=ollama_whole):
        error = raises(ollama.ResponseError, lambda: call(request or ollama_request()))
        return error.status_code, error.error

    assert refused(ollama_request(model="llama3.2")) == (400, '"llama3.2" does not support thinking')
    call = {"function": {"name": "add", "arguments": {}}}
    ollama_whole(ollama_request([USER, {"role": "assistant", "tool_calls": [call]}, USER]))
    script(refuse("unknown_model"))
    assert refused() == (404, 'model "qwen3" not found, try pulling it first')
    script(refuse("overloaded"))
    assert refused(call=ollama_stream)[0] == 503
    script(fault("error_event_after", deltas=2))
    assert "server busy" in refused(call=ollama_stream)[1]
    script(fault("no_end_mark"))
    assert ollama_stream(ollama_request())[1].done is False


CHECKS = [
    check_ollama_turns,
    check_ollama_errors,
]
