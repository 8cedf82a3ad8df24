"""Uses an engine with OpenAI's official SDK: `openai_client.py SCENARIO BASE_URL KEY`. Prints one JSON object per line."""

import json
import sys
import time

try:
    import openai
    from pydantic import BaseModel
except ImportError as error:
    print(f"the SDK is missing: {error}", file=sys.stderr)
    sys.exit(77)

base_url, key = sys.argv[2], sys.argv[3]


def client(key=key, **options):
    return openai.OpenAI(base_url=base_url, api_key=key, max_retries=0, timeout=60, **options)


def show(**fields):
    print(json.dumps(fields, ensure_ascii=False), flush=True)


class Place(BaseModel):
    city: str


def user(text):
    return [{"role": "user", "content": text}]


def chat():
    api = client()
    show(models=[model.id for model in api.models.list()], one=api.models.retrieve("default").id)
    done = api.chat.completions.create(model="default", messages=user("Grüß Gott"))
    show(content=done.choices[0].message.content, finish=done.choices[0].finish_reason,
         tokens=done.usage.completion_tokens)
    stream = api.chat.completions.create(
        model="default", messages=user("Wohin?"), stream=True, stream_options={"include_usage": True},
        extra_headers={"Roundhouse-Task": "reise"})
    text, finish, tokens = "", None, None
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
        elif chunk.usage:
            tokens = chunk.usage.completion_tokens
    show(content=text, finish=finish, tokens=tokens)
    parsed = api.chat.completions.parse(model="default", messages=user("As JSON"), response_format=Place)
    show(city=parsed.choices[0].message.parsed.city)


def permission():
    stream = client().chat.completions.create(
        model="default", messages=user("Write."), stream=True, extra_body={"roundhouse": {"task_id": "task"}})
    text = ""
    for chunk in stream:
        extra = (chunk.model_extra or {}).get("roundhouse")
        if extra:
            show(asked=extra["hitl_request"]["kind"])
        text += chunk.choices[0].delta.content or ""
    show(content=text)


def again():
    """Reads a completion until the engine dies, and after a line of input makes the same request again."""
    def read():
        text, id = "", None
        try:
            for chunk in client().chat.completions.create(
                    model="default", messages=user("Erzähl."), stream=True, extra_headers={"Idempotency-Key": "once"}):
                id = chunk.id
                piece = chunk.choices[0].delta.content or ""
                if piece and not text:
                    show(began=True)
                text += piece
            return {"broken": False, "text": text, "id": id}
        except Exception as error:
            return {"broken": type(error).__name__, "text": text, "id": id}

    show(**read())
    sys.stdin.readline()
    show(**read())


def retries():
    """Does not notice that the engine dies: the SDK tries again, as often as it does by default."""
    api = openai.OpenAI(base_url=base_url, api_key=key, timeout=60)
    headers = {"Idempotency-Key": sys.argv[4]} if len(sys.argv) > 4 else {}
    done = api.chat.completions.create(model="default", messages=user("Erzähl."), extra_headers=headers)
    show(text=done.choices[0].message.content)


def errors():
    def refused(call, *arguments, **fields):
        try:
            call(*arguments, **fields)
            show(error=None)
        except openai.APIStatusError as error:
            show(error=type(error).__name__, status=error.status_code, code=error.code, param=error.param)

    create = client().chat.completions.create
    refused(client("sk-svc-wrong").chat.completions.create, model="default", messages=user("Hi"))
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    refused(create, model="default", messages=user("Hi"), tools=[tool])
    refused(create, model="default", messages=user("Hi"), n=2)
    refused(create, model="gpt-nine", messages=user("Hi"))
    refused(create, model="default", messages=user("Hi"), extra_headers={"Roundhouse-Task": "busy"})
    refused(create, model="default", messages=user("Hi"), extra_body={"massage": 1})
    refused(client().responses.create, model="default", input="Hi", previous_response_id="resp_x")
    refused(client().responses.retrieve, "resp_x")
    refused(client().models.retrieve, "gpt-nine")


def quota():
    api = client()
    api.chat.completions.create(model="default", messages=user("Hi"))
    try:
        api.responses.create(model="default", input="Hi")
    except openai.RateLimitError as error:
        show(code=error.code, waits=int(error.response.headers["retry-after"]) > 0)


def responses():
    api = client()
    first = api.responses.create(model="default", input="Wer bist du?", metadata={"ticket": "4711"})
    show(text=first.output_text, status=first.status, tokens=first.usage.output_tokens)
    second = api.responses.create(model="default", input="Und weiter?", previous_response_id=first.id)
    show(text=second.output_text, same=second.conversation.id == first.conversation.id)
    forked = api.responses.create(model="default", input="Oder so?", previous_response_id=first.id)
    show(text=forked.output_text, same=forked.conversation.id == first.conversation.id)
    again = api.responses.retrieve(first.id)
    show(text=again.output_text, metadata=again.metadata)
    with api.responses.stream(model="default", input="Rede.", conversation="täsk") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    show(text=final.output_text, deltas="".join(deltas), conversation=final.conversation.id)
    parsed = api.responses.parse(model="default", input="As JSON", text_format=Place)
    show(city=parsed.output_parsed.city)
    background = api.responses.create(model="default", input="Später", background=True)
    status = background.status
    deadline = time.monotonic() + 30
    while background.status in ("queued", "in_progress") and time.monotonic() < deadline:
        background = api.responses.retrieve(background.id)
    show(before=status, after=background.status, text=background.output_text)
    api.responses.delete(background.id)
    try:
        api.responses.retrieve(background.id)
    except openai.NotFoundError as error:
        show(gone=error.code)


def asked():
    api = client()
    waiting = api.responses.create(model="default", input="Write.", conversation="task")
    show(status=waiting.status, items=[item.type for item in waiting.output], id=waiting.id)
    sys.stdin.readline()
    with api.responses.retrieve(waiting.id, stream=True) as stream:
        last = [event for event in stream][-1]
    show(status=last.response.status, text=last.response.output_text)


def cancel():
    api = client()
    running = api.responses.create(model="default", input="Think.", background=True)
    show(status=running.status)
    show(status=api.responses.cancel(running.id).status)


def resume():
    """Reads a stream until the engine dies, and after a line of input the rest."""
    api, events, last = client(), [], None
    try:
        for event in api.responses.create(model="default", input="Erzähl.", conversation="task", stream=True):
            events.append(json.loads(event.to_json()))
            if event.type == "response.created":
                id = event.response.id
            if event.type == "response.output_text.delta" and last is None:
                show(id=id)
            last = event.sequence_number if event.type == "response.output_text.delta" else last
        show(broken=False)
    except Exception as error:
        show(broken=type(error).__name__)
    sys.stdin.readline()
    for event in api.responses.retrieve(id, stream=True, starting_after=events[-1]["sequence_number"]):
        events.append(json.loads(event.to_json()))
    show(events=events)


{function.__name__: function
 for function in (chat, permission, again, retries, errors, quota, responses, asked, cancel, resume)}[sys.argv[1]]()
