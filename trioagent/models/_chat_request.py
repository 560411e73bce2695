"""A `ModelRequest` as the body of a Chat Completions request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from trioagent._events import Message, Reply, UserMessage
from trioagent._ports import ModelRequest, OutputSpec, ToolSpec

from ._call_ids import CallIds
from ._chat_wire import WIRE_NAME
from ._kept import kept_items
from ._output_format import output_format

_CARRIED = ("reasoning_content", "reasoning_details")


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
    said: list[Any] = []
    if request.instructions:
        said.append({"role": "system", "content": request.instructions})
    said += kept_items(request, f"{WIRE_NAME} {host}", lambda: _Messages(host).of)
    body: dict[str, Any] = {"model": model, "messages": said, "stream": True}
    if stream_usage:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.output is not None:
        body["response_format"] = _response_format(request.output)
    if request.max_output_tokens is not None:
        body[max_tokens_field] = request.max_output_tokens
    return msgspec.json.encode(body | dict(extra_body))


class _Messages:
    """Makes messages of the wire of ours."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._ids = CallIds()

    def of(self, messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
        for message in messages:
            if isinstance(message, UserMessage):
                yield {"role": "user", "content": message.text}
            elif isinstance(message, Reply):
                ids = self._ids.of_calls(message.tool_calls)
                yield _assistant(message, ids, self._host)
            else:
                call_id = self._ids.of_result(message)
                said = {"tool_call_id": call_id, "content": message.content}
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


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


def _response_format(output: OutputSpec) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": output_format(output)}
