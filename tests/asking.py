"""Asking a model once, for tests: everything that comes, and the error at the end."""

from __future__ import annotations

from trioagent._errors import ModelError
from trioagent._events import ReasoningDelta, Reply, ReplyPart, TextDelta, UserMessage
from trioagent._ports import Model, ModelRequest

HELLO = ModelRequest(messages=[UserMessage("hello")])


class Asked:
    """What came of one question: the pieces, and a reply or an error."""

    def __init__(self) -> None:
        self.parts: list[ReplyPart] = []
        self.error: ModelError | None = None

    @property
    def reply(self) -> Reply | None:
        last = self.parts[-1] if self.parts else None
        return last if isinstance(last, Reply) else None

    @property
    def text(self) -> str:
        return "".join(p.text for p in self.parts if isinstance(p, TextDelta))

    @property
    def reasoning(self) -> str:
        return "".join(p.text for p in self.parts if isinstance(p, ReasoningDelta))


async def ask(model: Model, request: ModelRequest = HELLO) -> Asked:
    asked = Asked()
    try:
        async with model.open_reply(request) as parts:
            async for part in parts:
                asked.parts.append(part)
    except ModelError as error:
        asked.error = error
    return asked


async def ask_for_reply(model: Model, request: ModelRequest = HELLO) -> Reply:
    asked = await ask(model, request)
    if asked.error is not None:
        raise asked.error
    assert asked.reply is not None
    return asked.reply


async def ask_for_error(model: Model, request: ModelRequest = HELLO) -> ModelError:
    asked = await ask(model, request)
    assert asked.error is not None
    assert asked.reply is None
    return asked.error
