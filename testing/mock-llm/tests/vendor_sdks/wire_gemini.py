"""Gemini through `google-genai`."""

from google import genai

from scripting import BASE_URL, TOOL, USAGE, fault, raises, refuse, script, text, thinking, tool_use

gemini = genai.Client(api_key="key", http_options={"base_url": BASE_URL, "api_version": "v1beta", "timeout": 20_000})


def gemini_request(contents=("What is 1 + 2?",), model="gemini-3-test", **config):
    declaration = {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters_json_schema": TOOL["input_schema"],
    }
    settings = {
        "tools": [{"function_declarations": [declaration]}],
        "thinking_config": {"include_thoughts": True},
        "system_instruction": "Add.",
        "automatic_function_calling": {"disable": True},
    }
    settings.update(config)
    return {"model": model, "contents": list(contents), "config": settings}


def gemini_whole(request):
    response = gemini.models.generate_content(**request)
    return response.candidates[0].content.parts, response


def gemini_stream(request):
    chunks = list(gemini.models.generate_content_stream(**request))
    return [part for chunk in chunks for part in chunk.candidates[0].content.parts], chunks[-1]


def gemini_results(parts):
    """The conversation in which every call of these parts has its response."""
    results = [
        {"function_response": {"name": part.function_call.name, "id": part.function_call.id, "response": {"sum": 3}}}
        for part in parts
        if part.function_call
    ]
    return ["What is 1 + 2?", genai.types.Content(role="model", parts=parts), {"role": "user", "parts": results}]


def check_gemini_turns():
    first = {"blocks": [thinking("Add them up."), text("Let me add."), tool_use(1, 2), tool_use(3, 4)], "usage": USAGE}
    second = {"blocks": [text("It is 3.")]}
    for call in (gemini_whole, gemini_stream):
        script(first, second)
        parts, last = call(gemini_request())
        assert "".join(part.text or "" for part in parts if part.thought) == "Add them up."
        assert "".join(part.text or "" for part in parts if not part.thought) == "Let me add."
        calls = [part for part in parts if part.function_call]
        assert [part.function_call.args for part in calls] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        assert calls[0].thought_signature and not calls[1].thought_signature
        assert last.candidates[0].finish_reason == genai.types.FinishReason.STOP
        usage = last.usage_metadata
        assert (usage.prompt_token_count, usage.candidates_token_count, usage.thoughts_token_count) == (150, 40, 10)
        assert (usage.cached_content_token_count, usage.total_token_count) == (30, 200)
        final, _ = call(gemini_request(gemini_results(parts)))
        assert "".join(part.text for part in final) == "It is 3."
        assert final[-1].thought_signature
        history = [*gemini_results(parts), genai.types.Content(role="model", parts=final), "Bye"]
        script({"blocks": [text("Bye.")], "stop": "max_tokens"})
        _, bye = call(gemini_request(history))
        assert bye.candidates[0].finish_reason == genai.types.FinishReason.MAX_TOKENS


def check_gemini_strictness():
    def refused(request):
        error = raises(genai.errors.ClientError, lambda: gemini_whole(request))
        assert (error.code, error.status) == (400, "INVALID_ARGUMENT"), error
        return error.message

    script({"blocks": [tool_use(1, 2), tool_use(3, 4)]})
    parts, _ = gemini_whole(gemini_request())
    history = gemini_results(parts)
    unsigned = [part.model_copy(update={"thought_signature": None}) for part in parts]
    assert "missing a thought_signature" in refused(gemini_request(gemini_results(unsigned)))
    forged = [parts[0].model_copy(update={"thought_signature": b"forged"}), parts[1]]
    assert "thought signature" in refused(gemini_request(gemini_results(forged)))
    dummy = [parts[0].model_copy(update={"thought_signature": b"skip_thought_signature_validator"}), parts[1]]
    gemini_whole(gemini_request(gemini_results(dummy)))
    half = {"role": "user", "parts": history[2]["parts"][:1]}
    assert "number of function response parts" in refused(gemini_request([*history[:2], half]))
    assert "function response turn" in refused(gemini_request([history[0], history[2]]))
    both = {"thinking_budget": 10, "thinking_level": "low"}
    assert "only one of" in refused(gemini_request(thinking_config=both))


def check_gemini_errors():
    def call():
        gemini_whole(gemini_request())

    script(refuse("rate_limited", retry_after_s=7))
    error = raises(genai.errors.ClientError, call)
    assert (error.code, error.status) == (429, "RESOURCE_EXHAUSTED")
    assert error.details["error"]["details"][-1]["retryDelay"] == "7s"
    script(refuse("overloaded"))
    error = raises(genai.errors.ServerError, call)
    assert (error.code, error.status) == (503, "UNAVAILABLE")
    script(refuse("unknown_model"))
    assert raises(genai.errors.ClientError, call).code == 404
    script(refuse("unauthorized"))
    assert "API key not valid" in raises(genai.errors.ClientError, call).message

    def streamed():
        return gemini_stream(gemini_request())

    script(fault("error_event_after", deltas=2))
    assert raises(genai.errors.ServerError, streamed).status == "UNAVAILABLE"
    script(fault("no_end_mark"))
    _, last = streamed()
    assert last.candidates[0].finish_reason is None


CHECKS = [
    check_gemini_turns,
    check_gemini_strictness,
    check_gemini_errors,
]
