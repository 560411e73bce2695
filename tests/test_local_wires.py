"""The wires that llama.cpp's server speaks beside Chat Completions, spoken to it.

Real answers, over a real socket. A row for each wire: add yours. Skipped where the
local model is not installed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import trio

from tests.test_local import LONG, busy, needs_model, read_some, wait_idle
from trioagent import Agent, Limits, Model, Status, ToolResult, UserMessage
from trioagent._events import FinishReason, Message, Reply, ToolCall
from trioagent._ports import ModelRequest, ToolSpec
from trioagent._schema import schema_of
from trioagent.models.anthropic import AnthropicMessages
from trioagent.models.local import LocalModel
from trioagent.models.openai_responses import OpenAIResponses

from .asking import ask

pytestmark = [needs_model, pytest.mark.machine]

# Of what a wire can carry, the server leaves some out: on /v1/messages it reads neither
# `output_config` nor any other wish for JSON, and with the template of this model no
# `tool_choice` forces a call, on any of its wires. On /v1/responses it does not read
# `text.format`, though it reads the `response_format` of Chat Completions there; and it
# calls an answer complete that the limit has cut.
GREEDY = {"temperature": 0}  # the same answer each time: it must not end early
WIRES: dict[str, Callable[[str], Model]] = {
    "anthropic": lambda address: AnthropicMessages(
        "local", base_url=address, extra_body=GREEDY
    ),
    "openai-responses": lambda address: OpenAIResponses(
        "local", base_url=f"{address}/v1", extra_body=GREEDY
    ),
}
CUT: dict[str, FinishReason] = {"anthropic": "length", "openai-responses": "stop"}
wires = pytest.mark.parametrize("wire", WIRES)


@wires
async def test_it_answers_in_pieces_and_says_what_it_used(wire: str) -> None:
    async with LocalModel() as local:
        limit = ModelRequest(messages=[UserMessage(LONG)], max_output_tokens=20)
        asked = await ask(WIRES[wire](local.address), limit)
        assert asked.error is None
        assert asked.reply is not None
        assert len(asked.parts) > 10, "not all at once"
        assert asked.text == asked.reply.text
        assert asked.reply.finish_reason == CUT[wire]
        assert asked.reply.usage.input_tokens
        assert asked.reply.usage.output_tokens == 20
        assert local.path.name in asked.reply.model


@wires
async def test_it_takes_a_conversation_with_tools(wire: str) -> None:
    parameters = {"type": "object", "properties": {"word": {"type": "string"}}}
    spec = ToolSpec(name="look_up", description="Explains.", parameters=parameters)
    call = ToolCall("look_up", '{"word": "tree"}')  # of a provider that gives no ids
    messages: list[Message] = [
        UserMessage("Look up the word tree."),
        Reply(text="I look.", tool_calls=(call,)),
        ToolResult("look_up", "A tall plant."),
        UserMessage("Tell me."),
    ]
    async with LocalModel() as local:
        request = ModelRequest(
            messages=messages,
            instructions="Be brief.",
            tools=[spec],
            max_output_tokens=10,
        )
        asked = await ask(WIRES[wire](local.address), request)
    assert asked.error is None
    assert asked.text


@wires
async def test_a_stop_in_the_middle_frees_the_slot(wire: str) -> None:
    async with LocalModel() as local:
        async with Agent(WIRES[wire](local.address)).open(LONG) as run:
            await read_some(run)
            assert await busy(local) == 1
            run.cancel("enough")
        assert run.outcome.status is Status.CANCELLED
        assert run.outcome.text
        await wait_idle(local)


@wires
async def test_a_deadline_frees_the_slot(wire: str) -> None:
    async with LocalModel() as local:
        began = trio.current_time()
        agent = Agent(WIRES[wire](local.address), limits=Limits(seconds=1))
        outcome = await agent.run(LONG)
        assert outcome.status is Status.TIMED_OUT
        assert trio.current_time() - began < 1.5
        await wait_idle(local)


class Legs(msgspec.Struct, forbid_unknown_fields=True):
    legs: int


SHAPE = {"name": "Legs", "schema": schema_of(Legs), "strict": True}
SHAPED: dict[str, Callable[[str], Model]] = {
    "openai-responses": lambda address: OpenAIResponses(
        "local",
        base_url=f"{address}/v1",
        extra_body={
            "response_format": {"type": "json_schema", "json_schema": SHAPE},
            **GREEDY,
        },
    )
}


@pytest.mark.parametrize("wire", SHAPED)
async def test_it_gives_an_answer_of_the_shape_asked_for(wire: str) -> None:
    async with LocalModel() as local:
        agent = Agent(SHAPED[wire](local.address), output=Legs)
        outcome = await agent.run("How many legs has a dog?")
    assert outcome.status is Status.COMPLETED
    assert isinstance(outcome.output, Legs)
