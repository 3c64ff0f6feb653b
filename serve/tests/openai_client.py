"""The official client against a running server: every answer here was parsed by openai's own models.

    python openai_client.py 127.0.0.1:8080 harness/builtin/eval.jsonl

The server serves the built-in model at batch 1 with `--queue 1`, so that one request runs, one waits and a
third is refused. Plain asserts; the first that does not hold ends the script with exit code 1.
"""

import asyncio
import json
import sys
import time
import urllib.request

import openai

MODEL = "whatis-9m"
# End tokens of the built-in model: banned where an answer must run to its length.
BANNED = {"4088": -100, "4090": -100}
LONG = dict(model=MODEL, prompt="What does", temperature=0, max_tokens=2000, logit_bias=BANNED)


def refused(kind, call, **expected):
    """`call` raises `kind` with the given attributes."""
    try:
        call()
    except openai.APIStatusError as error:
        assert type(error) is kind, (type(error), error)
        for name, value in expected.items():
            assert getattr(error, name) == value, (name, getattr(error, name), error.body)
        return error
    raise AssertionError(f"no {kind.__name__}")


def ask(question):
    return dict(model=MODEL, temperature=0, messages=[{"role": "user", "content": question}])


def models(client):
    listed = client.models.list().data
    assert [m.id for m in listed] == [MODEL], listed
    assert client.models.retrieve(MODEL).object == "model"
    refused(openai.NotFoundError, lambda: client.models.retrieve("other"), code="model_not_found", param="model")


def chat(client, rows):
    for row in rows:
        whole = client.chat.completions.create(**ask(row["question"]))
        choice = whole.choices[0]
        assert choice.message.role == "assistant" and choice.finish_reason == "stop", whole
        assert choice.message.content == row["greedy_text"], (row["question"], choice.message.content)
        assert whole.usage.prompt_tokens == len(row["prompt_ids"]), whole.usage
        assert whole.usage.completion_tokens == len(row["greedy_ids"]), whole.usage
        assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def streaming(client, row):
    chunks = list(
        client.chat.completions.create(
            **ask(row["question"]), stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == row["greedy_text"], said
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    last = chunks[-1]
    assert last.choices == [] and last.usage.completion_tokens == len(row["greedy_ids"]), last
    assert chunks[-2].choices[0].finish_reason == "stop", chunks[-2]
    plain = list(client.chat.completions.create(**ask(row["question"]), stream=True))
    assert all(c.usage is None and c.choices for c in plain)
    # The client's own accumulator builds the same message from the events.
    with client.chat.completions.stream(**ask(row["question"])) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.content == row["greedy_text"], final


def stops(client, row):
    text = row["greedy_text"]
    for stop in (text.split(" ")[2], ["\0never", text[5:9]], text[-1]):
        first = min(i for i in (text.find(s) for s in ([stop] if isinstance(stop, str) else stop)) if i >= 0)
        whole = client.chat.completions.create(**ask(row["question"]), stop=stop).choices[0]
        assert (whole.message.content, whole.finish_reason) == (text[:first], "stop"), (stop, whole)
        chunks = list(client.chat.completions.create(**ask(row["question"]), stop=stop, stream=True))
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == text[:first], stop
    cut = client.chat.completions.create(**ask(row["question"]), max_completion_tokens=3)
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 3, cut
    assert text.startswith(cut.choices[0].message.content)


def completions(client):
    one = client.completions.create(model=MODEL, prompt="What does", temperature=0, max_tokens=5)
    assert one.object == "text_completion" and one.usage.completion_tokens <= 5, one
    ids = {"temperature": 0, "max_tokens": 5, "logit_bias": BANNED, "logprobs": 2}
    two = client.completions.create(model=MODEL, prompt=["What does", "What is"], **ids)
    assert [c.index for c in two.choices] == [0, 1] and two.usage.completion_tokens == 10, two
    logprobs = two.choices[0].logprobs
    assert len(logprobs.tokens) == 5 and all(value <= 0 for value in logprobs.token_logprobs), logprobs
    streamed = client.completions.create(model=MODEL, prompt="What does", stream=True, **ids)
    assert "".join(c.choices[0].text for c in streamed) == two.choices[0].text


def sampled(client, row):
    asked = dict(ask(row["question"]), temperature=1.0, max_tokens=12, seed=7)
    both = [client.chat.completions.create(**asked).choices[0].message.content for _ in range(2)]
    assert both[0] == both[1], both
    asked = dict(ask(row["question"]), logprobs=True, top_logprobs=3, max_tokens=4)
    tokens = client.chat.completions.create(**asked).choices[0].logprobs.content
    assert len(tokens) == 4, tokens
    for token in tokens:
        assert len(token.top_logprobs) == 3 and token.logprob <= 0, token
        assert token.token == token.top_logprobs[0].token, "greedy takes the most likely token"


def errors(client, row):
    create = client.chat.completions.create
    asked = ask(row["question"])
    bad = openai.BadRequestError
    refused(bad, lambda: create(**asked, n=2), param="n", code="unsupported_parameter")
    refused(bad, lambda: create(**asked, top_p=0), param="top_p", type="invalid_request_error")
    refused(bad, lambda: create(**dict(asked, temperature=3)), param="temperature")
    refused(bad, lambda: create(**asked, max_tokens=9999), param="max_tokens", code="context_length_exceeded")
    refused(bad, lambda: create(**dict(asked, messages=[])), param="messages")
    refused(bad, lambda: create(**asked, tools=[{"type": "function", "function": {"name": "f"}}]), param="tools")
    refused(bad, lambda: create(**asked, extra_body={"no_such_field": 1}), param="no_such_field")
    refused(openai.NotFoundError, lambda: create(**dict(asked, model="other")), code="model_not_found")


def waits(client):
    """Whether one request waits for a row: asked first, or the third might take the second one's place."""
    with urllib.request.urlopen(str(client.base_url).split("/v1")[0] + "/metrics", timeout=5) as page:
        return b"\nsparkpipe_queue_depth 1\n" in page.read()


def queue_of_one(client):
    """One runs, one waits, the third is refused; a closed stream frees its row."""
    running = client.completions.create(**LONG, stream=True)
    next(iter(running))

    async def other():
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="unused", max_retries=0) as waiting:
            task = asyncio.create_task(waiting.completions.create(**dict(LONG, max_tokens=3)))
            deadline = time.monotonic() + 30
            while True:
                await asyncio.sleep(0.01)
                if not waits(client):
                    assert time.monotonic() < deadline, "the second request never waited"
                    continue
                assert not task.done(), "the row was free although another answer runs"
                assert time.monotonic() < deadline, "the server never said that it is full"
                try:
                    client.completions.create(**dict(LONG, max_tokens=1, timeout=1))
                except openai.RateLimitError as error:
                    assert error.code == "queue_full" and error.type == "rate_limit_error", error.body
                    break
                except openai.APITimeoutError:
                    continue
            running.close()
            return await task

    second = asyncio.run(other())
    assert second.usage.completion_tokens == 3, second


def main():
    address, eval_file = sys.argv[1:]
    with open(eval_file, encoding="utf-8") as lines:
        rows = [json.loads(next(lines)) for _ in range(5)]
    client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="unused", max_retries=0, timeout=60)
    models(client)
    chat(client, rows)
    for row in rows[:2]:
        streaming(client, row)
        stops(client, row)
    completions(client)
    sampled(client, rows[0])
    errors(client, rows[0])
    queue_of_one(client)
    print(f"openai {openai.__version__}: models, chat, streams, stops, completions, errors and the queue hold")


if __name__ == "__main__":
    main()
