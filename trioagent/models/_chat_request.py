"""A `ModelRequest` as the body of a Chat Completions request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from trioagent._events import Message, Reply, ToolCall, ToolResult, UserMessage
from trioagent._ports import ModelRequest, OutputSpec, ToolSpec

from ._chat_wire import WIRE_NAME

_CARRIED = ("reasoning_content", "reasoning_details")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


def encode_request(
    request: ModelRequest,
    *,
    model: str,
    host: str,
    max_tokens_field: str,
    stream_usage: bool,
    extra_body: Mapping[str, Any],
) -> bytes:
    """The JSON to send. What the caller did not ask for is left to the server."""
    body: dict[str, Any] = {
        "model": model,
        "messages": list(_messages(request.instructions, request.messages, host)),
        "stream": True,
    }
    if stream_usage:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.output is not None:
        body["response_format"] = _response_format(request.output)
    if request.max_output_tokens is not None:
        body[max_tokens_field] = request.max_output_tokens
    return msgspec.json.encode(body | dict(extra_body))


def _messages(
    instructions: str, messages: Sequence[Message], host: str
) -> Iterator[dict[str, Any]]:
    if instructions:
        yield {"role": "system", "content": instructions}
    ids = _CallIds()
    for message in messages:
        if isinstance(message, UserMessage):
            yield {"role": "user", "content": message.text}
        elif isinstance(message, Reply):
            yield _assistant(message, ids.of_calls(message.tool_calls), host)
        else:
            said = {"tool_call_id": ids.of_result(message), "content": message.content}
            yield {"role": "tool", **said}


def _assistant(reply: Reply, ids: Sequence[str], host: str) -> dict[str, Any]:
    text = reply.text or reply.refusal
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reply.tool_calls:
        message["content"] = text or None
        message["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call_id, call in zip(ids, reply.tool_calls, strict=True)
        ]
    # Only the server that wrote it can read it; another may refuse the request over it.
    if reply.provider == WIRE_NAME and reply.carry.get("host", host) == host:
        message |= {key: reply.carry[key] for key in _CARRIED if key in reply.carry}
    return message


class _CallIds:
    """The ids that calls and results go by on the wire: each one there, and only once.

    Where a provider gave none, or gave one twice, the id is made from the turn and the
    position. The same history gives the same ids, so that prompt caches hit.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._turn = 0
        self._open: list[tuple[ToolCall, str]] = []  # calls without a result so far

    def of_calls(self, calls: Sequence[ToolCall]) -> list[str]:
        self._turn += 1
        ids = [self._id_of(call, position) for position, call in enumerate(calls)]
        self._open = list(zip(calls, ids, strict=True))
        return ids

    def of_result(self, result: ToolResult) -> str:
        """The id of the call that this is the result of, as it was sent."""
        if not self._open:
            return result.call_id
        best = max(self._open, key=lambda pair: _likeness(pair[0], result))
        self._open.remove(best)
        return best[1]

    def _id_of(self, call: ToolCall, position: int) -> str:
        wire_id = call.id
        if not wire_id or wire_id in self._used:
            wire_id = f"call_{call.turn or self._turn}_{position}"
        while wire_id in self._used:
            wire_id += "_"
        self._used.add(wire_id)
        return wire_id


def _likeness(call: ToolCall, result: ToolResult) -> int:
    return 2 * (call.id == result.call_id) + (call.name == result.name)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


def _response_format(output: OutputSpec) -> dict[str, Any]:
    schema = {
        "name": _NOT_IN_A_NAME.sub("_", output.name)[:64] or "output",
        "schema": output.schema,
        "strict": _may_be_strict(output.schema),
    }
    return {"type": "json_schema", "json_schema": schema}


def _may_be_strict(schema: Any) -> bool:
    """Whether every object in the schema is closed and asks for all of its keys."""
    if isinstance(schema, list):
        return all(map(_may_be_strict, schema))
    if not isinstance(schema, dict):
        return True
    if "properties" in schema or schema.get("type") == "object":
        keys = schema.get("properties") or {}
        if schema.get("additionalProperties") is not False:
            return False
        if set(keys) - set(schema.get("required") or ()):
            return False
        if not all(map(_may_be_strict, keys.values())):
            return False
    rest = (value for key, value in schema.items() if key not in _NO_SCHEMA)
    return all(map(_may_be_strict, rest))


# Under these keys stand names or values, not schemas; `properties` was looked at above.
_NO_SCHEMA = ("properties", "required", "enum", "const", "default", "examples")
