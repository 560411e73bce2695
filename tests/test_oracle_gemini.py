"""The same conversation through Google's own SDK: what is sent means the same."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from tests.asking import ask_for_reply
from tests.loopback import Answer, Loopback, open_loopback
from trioagent._events import Message, Reply, ToolResult, UserMessage
from trioagent._ports import ModelRequest, OutputSpec, ToolSpec
from trioagent.models.gemini import Gemini

genai = pytest.importorskip("google.genai", reason="google-genai is not installed")
types = genai.types

KEY = "AIza-test-DO-NOT-LOG-0123456789"
LOOK = ToolSpec(
    name="look",
    description="Looks.",
    parameters={
        "type": "object",
        "properties": {"q": {"type": "number", "description": "How far."}},
        "required": ["q"],
    },
)
FIND = ToolSpec(name="find", description="Finds.", parameters={"type": "object"})
ANSWER = OutputSpec(
    name="Answer", schema={"type": "object", "properties": {"a": {"type": "string"}}}
)
# A model's turn, and what the tools it calls say: name, id, text, whether they failed.
TURNS: list[tuple[list[dict[str, Any]], list[tuple[str, str, str, bool]]]] = [
    (
        [
            {"text": "Hm.", "thought": True},
            {"text": "I look."},
            {
                "functionCall": {"id": "c1", "name": "look", "args": {"q": 1.5}},
                "thoughtSignature": "++//Pw==",
            },
            {"functionCall": {"id": "c2", "name": "find", "args": {}}},
        ],
        [("look", "c1", "seen", False), ("find", "c2", "boom", True)],
    ),
    (
        [{"functionCall": {"id": "c3", "name": "look", "args": {"q": 2}}}],
        [("look", "c3", "öäü \u2028", False)],
    ),
    ([{"text": "Done."}], []),
]
CONFIGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "instructions": {"instructions": "be kind"},
    "tools": {"tools": [LOOK, FIND]},
    "output": {"output": ANSWER},
    "max_tokens": {"max_output_tokens": 99},
    "all": {
        "instructions": "be kind",
        "tools": [LOOK, FIND],
        "output": ANSWER,
        "max_output_tokens": 99,
    },
}


def answers() -> list[Answer]:
    chunks = (
        {
            "candidates": [
                {"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
            ]
        }
        for parts, _ in TURNS
    )
    return [Answer([f"data: {json.dumps(c)}\r\n\r\n".encode()]) for c in chunks]


async def through_ours(server: Loopback, config: dict[str, Any]) -> None:
    messages: list[Message] = [UserMessage("hello")]
    async with Gemini("fake", api_key=KEY, base_url=f"{server.url}/v1beta") as model:
        for _, results in TURNS:
            request = ModelRequest(messages=messages, **config)
            reply: Reply = await ask_for_reply(model, request)
            messages.append(reply)
            messages += [ToolResult(n, said, i, bad) for n, i, said, bad in results]


def through_theirs(server: Loopback, config: dict[str, Any]) -> None:
    options = types.HttpOptions(base_url=server.url, api_version="v1beta")
    with genai.Client(api_key=KEY, http_options=options) as client:
        chat = client.chats.create(model="fake", config=in_their_words(**config))
        said: Any = "hello"
        for _, results in TURNS:
            for _ in chat.send_message_stream(said):
                pass
            said = [
                types.Part(
                    function_response=types.FunctionResponse(
                        id=call_id,
                        name=name,
                        response={"error" if failed else "result": text},
                    )
                )
                for name, call_id, text, failed in results
            ]


def in_their_words(
    instructions: str | None = None,
    tools: Sequence[ToolSpec] = (),
    output: OutputSpec | None = None,
    max_output_tokens: int | None = None,
) -> Any:
    declared = [
        types.FunctionDeclaration(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.parameters,
        )
        for tool in tools
    ]
    return types.GenerateContentConfig(
        system_instruction=instructions,
        tools=[types.Tool(function_declarations=declared)] if declared else None,
        response_mime_type="application/json" if output else None,
        response_json_schema=output.schema if output else None,
        max_output_tokens=max_output_tokens,
    )


def meaning(body: dict[str, Any]) -> dict[str, Any]:
    """The body in one spelling: the API takes a field by either of its names.

    The SDK writes signatures in the other alphabet of base64, gives the instructions a
    role, which the API does not look at, and sends a `generationConfig` also where it
    holds nothing.
    """
    for content in body["contents"]:
        for part in content["parts"]:
            if signature := part.get("thoughtSignature"):
                part["thoughtSignature"] = base64.urlsafe_b64decode(
                    signature.translate({ord("+"): "-", ord("/"): "_"})
                )
    if not body.get("generationConfig", True):
        del body["generationConfig"]
    body.get("systemInstruction", {}).pop("role", None)
    for tool in body.get("tools", []):
        for declared in tool["functionDeclarations"]:
            if "parameters_json_schema" in declared:
                schema = declared.pop("parameters_json_schema")
                declared["parametersJsonSchema"] = schema
    return body


@pytest.mark.parametrize("name", CONFIGS)
async def test_we_send_what_the_official_sdk_sends(name: str) -> None:
    config = CONFIGS[name]
    with trio.fail_after(30):
        async with open_loopback(*answers()) as ours, open_loopback(*answers()) as sdks:
            await through_ours(ours, config)
            await trio.to_thread.run_sync(through_theirs, sdks, config)
    assert len(ours.requests) == len(sdks.requests) == len(TURNS)
    for mine, theirs in zip(ours.requests, sdks.requests, strict=True):
        assert (mine.method, mine.path) == (theirs.method, theirs.path)
        key = "x-goog-api-key"
        assert mine.headers[key] == theirs.headers[key] == KEY
        assert meaning(mine.json()) == meaning(theirs.json())
