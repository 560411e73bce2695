"""A `ModelRequest` as the body of a Messages request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from trioagent._events import Message, Reply, ToolCall, ToolResult, UserMessage
from trioagent._ports import ModelRequest, ToolSpec

from ._anthropic_schema import fit_schema
from ._anthropic_wire import WIRE_NAME
from ._call_ids import CallIds
from ._kept import kept_items

_ID = "[a-zA-Z0-9_-]+"  # what the API takes for the id of a call

Block = dict[str, Any]


def encode_request(
    request: ModelRequest,
    *,
    model: str,
    host: str,
    max_tokens: int,
    extra_body: Mapping[str, Any],
) -> bytes:
    """The JSON to send. What the caller did not ask for is left to the server."""
    left = request.max_output_tokens
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens if left is None else min(left, max_tokens),
        "messages": kept_items(
            request,
            f"{WIRE_NAME} {host}",
            lambda: partial(_messages, ids=CallIds(_ID), host=host),
        ),
        "stream": True,
    }
    instructions = request.instructions
    if request.output is not None:
        schema = request.output.schema
        if fitted := fit_schema(schema):
            wanted = {"type": "json_schema", "schema": fitted}
            body["output_config"] = {"format": wanted}
        else:
            instructions = f"{instructions}\n\n{_ask_for(schema)}".strip()
    if instructions:
        body["system"] = instructions
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    return msgspec.json.encode(_add(body, extra_body))


def _ask_for(schema: dict[str, Any]) -> str:
    text = msgspec.json.encode(schema).decode()
    return f"Give your final answer as nothing but JSON that fits this schema: {text}"


def _add(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Server tools go beside the agent's own, an effort beside the output's format."""
    merged = body | dict(extra)
    if "tools" in body and isinstance(extra.get("tools"), list):
        merged["tools"] = [*body["tools"], *extra["tools"]]
    if "output_config" in body and isinstance(extra.get("output_config"), dict):
        merged["output_config"] = body["output_config"] | extra["output_config"]
    return merged


def _messages(
    messages: Sequence[Message], *, ids: CallIds, host: str
) -> list[dict[str, Any]]:
    """The roles take turns: what follows each other from one side is one message."""
    sent: list[dict[str, Any]] = []
    for role, content in _sides(messages, ids, host):
        if not content:  # the API refuses a message without content
            continue
        if sent and sent[-1]["role"] == role:
            sent[-1]["content"] += content
        else:
            sent.append({"role": role, "content": content})
    return sent


def _sides(
    messages: Sequence[Message], ids: CallIds, host: str
) -> Iterator[tuple[str, list[Block]]]:
    said = _Said([])
    for message in messages:
        if isinstance(message, Reply):
            yield "user", said.content()
            call_ids = ids.of_calls(message.tool_calls)
            said = _Said(call_ids)
            yield "assistant", _assistant(message, call_ids, host)
        elif isinstance(message, UserMessage):
            said.texts += _text(message.text)
        else:
            said.results.append(_result(message, ids.of_result(message)))
    yield "user", said.content()


class _Said:
    """What the user's side says between two replies."""

    def __init__(self, call_ids: list[str]) -> None:
        self._order = {call_id: place for place, call_id in enumerate(call_ids)}
        self.results: list[Block] = []
        self.texts: list[Block] = []

    def content(self) -> list[Block]:
        """The results first, in the order of their calls: so the API wants it."""
        last = len(self._order)
        self.results.sort(key=lambda b: self._order.get(b["tool_use_id"], last))
        return self.results + self.texts


def _text(text: str) -> list[Block]:
    """A block of text; none where there is nothing to read, which the API refuses."""
    return [{"type": "text", "text": text}] if text.strip() else []


def _result(result: ToolResult, call_id: str) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": call_id}
    block["content"] = result.content
    if result.failed:  # the API refuses an error that says nothing
        block |= {"is_error": True, "content": result.content or "failed"}
    return block


def _assistant(reply: Reply, ids: Sequence[str], host: str) -> list[Block]:
    pairs = zip(ids, reply.tool_calls, strict=True)
    calls = [_call(call, call_id) for call_id, call in pairs]
    # Only the server that wrote it can read it; another may refuse the request over it.
    mine = reply.provider == WIRE_NAME and reply.carry.get("host", host) == host
    carried = reply.carry.get("content") if mine else None
    if carried and _count_calls(carried) == len(calls):
        return list(_carried(carried, iter(calls)))
    return [*_text(reply.text or reply.refusal), *calls]


def _count_calls(content: list[Block]) -> int:
    return sum(block["type"] == "tool_use" for block in content)


def _carried(content: list[Block], calls: Iterator[Block]) -> Iterator[Block]:
    for block in content:
        if block["type"] == "tool_use":
            yield block | next(calls)
        elif block["type"] != "text" or block["text"].strip():
            yield block


def _call(call: ToolCall, call_id: str) -> Block:
    return {
        "type": "tool_use",
        "id": call_id,
        "name": call.name,
        "input": _input(call.arguments),
    }


def _input(arguments: str) -> Any:
    """The arguments as they are; the API takes an object only, also where it is one."""
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return {"INVALID_JSON": arguments} if arguments.strip() else {}
    return msgspec.Raw(arguments.encode())


def _tool(tool: ToolSpec) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.parameters,
    }
