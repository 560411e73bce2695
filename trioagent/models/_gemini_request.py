"""A `ModelRequest` as the body of a Gemini request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import msgspec

from trioagent._events import Message, Reply, ToolCall, ToolResult, UserMessage
from trioagent._ports import ModelRequest, ToolSpec

from ._arguments import arguments_object
from ._call_ids import CallIds
from ._gemini_wire import WIRE_NAME
from ._kept import kept_items

_Part = dict[str, Any]


def encode_request(
    request: ModelRequest, *, host: str, extra_body: Mapping[str, Any]
) -> bytes:
    """The JSON to send. What the caller did not ask for is left to the server."""
    contents = kept_items(
        request,
        f"{WIRE_NAME} {host}",
        lambda: partial(_contents, ids=CallIds(), host=host),
    )
    body: dict[str, Any] = {"contents": contents}
    if request.instructions:
        body["systemInstruction"] = {"parts": [{"text": request.instructions}]}
    if request.tools:
        body["tools"] = [{"functionDeclarations": [*map(_declare, request.tools)]}]
    if config := _config(request):
        body["generationConfig"] = config
    return msgspec.json.encode(_add(body, extra_body))


def _add(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Google's tools go beside the agent's own, a setting beside ours."""
    merged = body | dict(extra)
    if "tools" in body and isinstance(extra.get("tools"), list):
        merged["tools"] = [*body["tools"], *extra["tools"]]
    if "generationConfig" in body and isinstance(extra.get("generationConfig"), dict):
        merged["generationConfig"] = (
            body["generationConfig"] | extra["generationConfig"]
        )
    return merged


def _config(request: ModelRequest) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if request.output is not None:
        config["responseMimeType"] = "application/json"
        config["responseJsonSchema"] = request.output.schema
    if request.max_output_tokens is not None:
        config["maxOutputTokens"] = request.max_output_tokens
    return config


def _declare(tool: ToolSpec) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parametersJsonSchema": tool.parameters,
    }


def _contents(
    messages: Sequence[Message], *, ids: CallIds, host: str
) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = []
    order: dict[str, int] = {}  # of the last calls, by their ids
    for message in _with_results_together(messages):
        if isinstance(message, UserMessage):
            contents.append({"role": "user", "parts": [{"text": message.text}]})
        elif isinstance(message, Reply):
            call_ids = ids.of_calls(message.tool_calls)
            order = {call_id: place for place, call_id in enumerate(call_ids)}
            # A turn without parts is refused: one that was blocked has none.
            if parts := _turn(message, call_ids, host):
                contents.append({"role": "model", "parts": parts})
        else:
            results = [(ids.of_result(result), result) for result in message]
            results.sort(key=lambda pair: order.get(pair[0], len(order)))
            parts = [_result(call_id, result) for call_id, result in results]
            contents.append({"role": "user", "parts": parts})
    return contents


def _with_results_together(
    messages: Sequence[Message],
) -> Iterable[UserMessage | Reply | list[ToolResult]]:
    """Gemini wants all results of a turn in one content."""
    for _, group in groupby(messages, key=lambda m: isinstance(m, ToolResult)):
        results: list[ToolResult] = []
        for message in group:
            if isinstance(message, ToolResult):
                results.append(message)
            else:
                yield message
        if results:
            yield results


def _turn(reply: Reply, ids: Sequence[str], host: str) -> list[_Part]:
    calls = [_call(*pair) for pair in zip(ids, reply.tool_calls, strict=True)]
    # Only the server that signed it can read it; another may refuse the request.
    if reply.provider == WIRE_NAME and reply.carry.get("host", host) == host:
        carried = reply.carry.get("parts", [])
        if sum("functionCall" in part for part in carried) == len(calls):
            following = iter(calls)
            parts = [_fill(part, following) for part in carried]
            if parts:
                return parts
    text = reply.text or reply.refusal
    said = [{"text": text}] if text else []
    return [*said, *({"functionCall": call} for call in calls)]


def _fill(part: _Part, calls: Iterable[dict[str, Any]]) -> _Part:
    """The part as it came; a call is given its id and its arguments again."""
    if "functionCall" not in part:
        return part
    return part | {"functionCall": part["functionCall"] | next(iter(calls))}


def _call(call_id: str, call: ToolCall) -> dict[str, Any]:
    arguments = arguments_object(call.arguments)
    return {"id": call_id, "name": call.name, "args": arguments}


def _result(call_id: str, result: ToolResult) -> _Part:
    response = {"error" if result.failed else "result": result.content}
    said = {"id": call_id, "name": result.name, "response": response}
    return {"functionResponse": said}
