"""The same conversation through OpenAI's own SDK: what is sent means the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

from tests.asking import ask_for_reply
from tests.loopback import Answer, open_loopback
from trioagent._events import Message, Reply, ToolResult, UserMessage
from trioagent._ports import Model, ModelRequest, OutputSpec, ToolSpec
from trioagent.models.openai_chat import OpenAIChat
from trioagent.models.openai_responses import OpenAIResponses

openai = pytest.importorskip("openai", reason="openai is not installed")
httpx2 = pytest.importorskip("httpx2", reason="httpx2 is not installed")
pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

KEY = "sk-test-DO-NOT-LOG-0123456789"
PROMPT = "How far is it?"
SCHEMA = {
    "type": "object",
    "properties": {"q": {"type": "number", "description": "How far."}},
    "required": ["q"],
}
TOOLS = [
    ToolSpec(name="look", description="Looks.", parameters=SCHEMA),
    ToolSpec(name="find", description="Finds.", parameters={"type": "object"}),
]
# What the tools say that each turn calls, by the ids of the calls; the last calls none.
RESULTS = [{"c1": "seen", "c2": "boom"}, {"c3": "öäü \u2028"}, {}]
CALLS = {"c1": ("look", '{"q": 1.5}'), "c2": ("find", "{}"), "c3": ("look", '{"q":2}')}
FINAL = '{"far": 7}'


class Distance(pydantic.BaseModel):  # type: ignore[misc,name-defined]
    model_config = pydantic.ConfigDict(extra="forbid")
    far: int


ANSWER = OutputSpec(name="Distance", schema=Distance.model_json_schema())
CONFIGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "instructions": {"instructions": "Be kind."},
    "tools": {"tools": TOOLS},
    "output": {"output": ANSWER},
    "max_tokens": {"max_output_tokens": 99},
    "all": {
        "instructions": "Be kind.",
        "tools": TOOLS,
        "output": ANSWER,
        "max_output_tokens": 99,
    },
}
Body = dict[str, Any]
Ask = Callable[[Any, dict[str, Any]], None]


def official(bodies: Sequence[Body], config: Body, ask: Ask) -> list[Body]:
    """What the SDK sends to a server that gives these answers."""
    sent: list[Body] = []

    def answer(request: Any) -> Any:
        sent.append(json.loads(request.content))
        return httpx2.Response(200, json=bodies[len(sent) - 1])

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        ask(openai.OpenAI(api_key=KEY, http_client=http), config)
    return sent


async def ours(
    bodies: Sequence[Body], config: Body, make: Callable[[str], Model]
) -> list[Body]:
    """What our adapter sends to a server that gives these answers."""
    messages: list[Message] = [UserMessage(PROMPT)]
    answers = [Answer([json.dumps(body).encode()]) for body in bodies]
    with trio.fail_after(10):
        async with open_loopback(*answers) as server:
            model = make(server.url)
            for results in RESULTS:
                request = ModelRequest(messages=messages, **config)
                reply: Reply = await ask_for_reply(model, request)
                said = [
                    ToolResult(call.name, results[call.id], call.id)
                    for call in reply.tool_calls
                ]
                messages += [reply, *said]
            return [request.json() for request in server.requests]


# Chat Completions


def chat_answer(results: dict[str, str]) -> Body:
    calls = [
        {
            "id": id,
            "type": "function",
            "function": {"name": CALLS[id][0], "arguments": CALLS[id][1]},
        }
        for id in results
    ]
    message = {"role": "assistant", "content": None if calls else FINAL}
    if calls:
        message["tool_calls"] = calls  # type: ignore[assignment]
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": "tool_calls" if calls else "stop",
    }
    return {
        "id": "cc-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt",
        "choices": [choice],
    }


def ask_chat(client: Any, config: Body) -> None:
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    if "instructions" in config:
        messages.insert(0, {"role": "system", "content": config["instructions"]})
    options: Body = {}
    if "tools" in config:
        options["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": t.name,
                    "description": t.description,
                    "parameters": t.parameters,
                },
            }
            for t in config["tools"]
        ]
    if "output" in config:
        options["response_format"] = (
            openai.lib._parsing._completions.type_to_response_format_param(Distance)
        )
    if "max_output_tokens" in config:
        options["max_completion_tokens"] = config["max_output_tokens"]
    for results in RESULTS:
        completion = client.chat.completions.create(
            model="gpt", messages=messages, **options
        )
        message = completion.choices[0].message
        said = [
            {"role": "tool", "tool_call_id": call.id, "content": results[call.id]}
            for call in message.tool_calls or ()
        ]
        messages += [message, *said]


def chat_meaning(body: Body) -> Body:
    """Without how the answer is to come, and without what says nothing."""
    body = {k: v for k, v in body.items() if k not in ("stream", "stream_options")}
    body["messages"] = [
        {k: v for k, v in message.items() if v is not None}
        for message in body["messages"]
    ]
    return body


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
async def test_chat_completions_gets_what_the_sdk_would_send(config: Body) -> None:
    bodies = [chat_answer(results) for results in RESULTS]
    theirs = official(bodies, config, ask_chat)
    mine = await ours(bodies, config, lambda url: OpenAIChat("gpt", base_url=url))
    assert list(map(chat_meaning, mine)) == list(map(chat_meaning, theirs))
    assert len(mine) == len(RESULTS)


# Responses


def reasoning(id: str) -> Body:
    secret = f"gAAA/+=={id}"
    return {
        "type": "reasoning",
        "id": id,
        "summary": [],
        "content": [],
        "encrypted_content": secret,
    }


def call_item(id: str, **more: Any) -> Body:
    name, arguments = CALLS[id]
    item = {"type": "function_call", "id": f"fc_{id}", "status": "completed"}
    return item | {"call_id": id, "name": name, "arguments": arguments} | more


def message_item(text: str, **more: Any) -> Body:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"type": "message", "id": "msg_1", "status": "completed"}
    return item | {"role": "assistant", "content": [part]} | more


PLAIN = [  # each text is one that the SDK can parse: it insists
    [message_item(FINAL), call_item("c1"), call_item("c2")],
    [call_item("c3")],
    [message_item(FINAL)],
]
THINKING = [
    [
        reasoning("rs_1"),
        message_item("I look.", phase="commentary"),
        call_item("c1", namespace="world"),
        reasoning("rs_2"),
        call_item("c2"),
    ],
    [reasoning("rs_3"), call_item("c3")],
    [message_item(FINAL)],
]
REFUSING = [
    *THINKING[:2],
    [
        message_item("")
        | {"content": [{"type": "refusal", "refusal": "I would rather not."}]}
    ],
]


def response(output: list[Body]) -> Body:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "gpt",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
    }


def ask_responses(client: Any, config: Body) -> None:
    items: list[Any] = [{"role": "user", "content": PROMPT}]
    options: Body = {"store": False, "include": ["reasoning.encrypted_content"]}
    if "instructions" in config:
        options["instructions"] = config["instructions"]
    if "tools" in config:
        options["tools"] = [
            {
                "type": "function",
                "name": t.name,
                "description": t.description,
                "parameters": t.parameters,
                "strict": False,
            }
            for t in config["tools"]
        ]
    if "output" in config:
        options["text_format"] = Distance
    if "max_output_tokens" in config:
        options["max_output_tokens"] = config["max_output_tokens"]
    ask = client.responses.parse if "output" in config else client.responses.create
    for results in RESULTS:
        output = ask(model="gpt", input=items, **options).output
        calls = [item for item in output if item.type == "function_call"]
        said = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": results[call.call_id],
            }
            for call in calls
        ]
        items += [*output, *said]


def responses_meaning(body: Body) -> Body:
    """Without how the answer is to come, and with one way to write each item."""
    body = {k: v for k, v in body.items() if k != "stream"}
    body["input"] = [item_meaning(item) for item in body["input"]]
    return body


def item_meaning(item: Body) -> Body:
    if item.get("type") == "reasoning":
        return item  # each byte of it counts
    kept = {k: v for k, v in item.items() if k not in ("id", "status", *PARSED)}
    if isinstance(kept.get("content"), str):
        kept["content"] = [{"type": "input_text", "text": kept["content"]}]
        kept["type"] = "message"
    if "content" in kept:
        kept["content"] = [
            {k: v for k, v in part.items() if k not in ("logprobs", *PARSED)}
            for part in kept["content"]
        ]
    return kept


PARSED = ("parsed", "parsed_arguments")  # what `parse` adds to its own answers


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(
    "outputs", [PLAIN, THINKING, REFUSING], ids=["plain", "thinking", "refusing"]
)
async def test_responses_gets_what_the_sdk_would_send(
    outputs: list[list[Body]], config: Body
) -> None:
    bodies = [response(output) for output in outputs]
    theirs = official(bodies, config, ask_responses)
    mine = await ours(bodies, config, lambda url: OpenAIResponses("gpt", base_url=url))
    assert list(map(responses_meaning, mine)) == list(map(responses_meaning, theirs))
    assert len(mine) == len(RESULTS)


async def test_what_a_thinking_model_wrote_goes_back_item_by_item() -> None:
    bodies = [response(output) for output in THINKING]
    mine = await ours(bodies, {}, lambda url: OpenAIResponses("gpt", base_url=url))
    back = [item for item in mine[-1]["input"] if "output" not in item]
    assert back[1:] == [item for output in THINKING[:2] for item in output]
