"""A `ModelRequest` as the body of a Responses request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from trioagent._events import Message, Reply, ToolCall, ToolResult, UserMessage
from trioagent._ports import ModelRequest, ToolSpec

from ._call_ids import CallIds
from ._kept import kept_items
from ._output_format import output_format
from ._responses_carry import replay
from ._responses_wire import WIRE_NAME

_CALL_ID = ".{1,64}"  # longer ones are refused


def encode_request(
    request: ModelRequest, *, model: str, host: str, extra_body: Mapping[str, Any]
) -> bytes:
    """The JSON to send. What the caller did not ask for is left to the server.

    Nothing is stored there; so reasoning has to come in a form that can be sent back.
    """
    body: dict[str, Any] = {
        "model": model,
        "input": kept_items(request, f"{WIRE_NAME} {host}", lambda: _Input(host).of),
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    if request.instructions:
        body["instructions"] = request.instructions
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.output is not None:
        schema = output_format(request.output)
        body["text"] = {"format": {"type": "json_schema", **schema}}
    if request.max_output_tokens is not None:
        # What is left of a budget may be less than the API takes: 400 below 16.
        body["max_output_tokens"] = max(16, request.max_output_tokens)
    return msgspec.json.encode(body | dict(extra_body))


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,  # left out, the server would rewrite the schema to be strict
    }


class _Input:
    """Makes items of messages."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._ids = CallIds(_CALL_ID)
        self._custom: set[str] = set()  # the ids of calls whose input is free text

    def of(self, messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
        for message in messages:
            if isinstance(message, UserMessage):
                yield _message("user", "input_text", message.text)
            elif isinstance(message, Reply):
                yield from self._reply(message)
            else:
                yield self._result(message)

    def _reply(self, reply: Reply) -> Iterator[dict[str, Any]]:
        ids = self._ids.of_calls(reply.tool_calls)
        carried = False
        for item, call in replay(reply, ids, self._host):
            carried = True
            if item["type"] == "custom_tool_call":
                self._custom.add(item["call_id"])
            elif call is not None:
                item["arguments"] = call.arguments
            yield item
        if not carried:
            yield from _plain_reply(reply, ids)

    def _result(self, result: ToolResult) -> dict[str, Any]:
        call_id = self._ids.of_result(result)
        kind = "custom_tool_call" if call_id in self._custom else "function_call"
        return {"type": f"{kind}_output", "call_id": call_id, "output": result.content}


def _plain_reply(reply: Reply, ids: Sequence[str]) -> Iterator[dict[str, Any]]:
    text = reply.text or reply.refusal
    if text:
        yield _message("assistant", "output_text", text, annotations=[])
    for call_id, call in zip(ids, reply.tool_calls, strict=True):
        yield _call(call_id, call)


def _call(call_id: str, call: ToolCall) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": call_id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _message(role: str, kind: str, text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": kind, "text": text, **more}]
    return {"type": "message", "role": role, "content": content}
