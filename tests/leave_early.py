"""A program that leaves replies in every way; `-W error` shows what is left behind."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import trio

from tests.asking import HELLO
from tests.loopback import HANG, Answer, open_loopback
from trioagent.models.openai_chat import OpenAIChat

PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'


async def main() -> None:
    async with open_loopback(Answer([PIECE, PIECE, HANG])) as server:
        model = OpenAIChat("m", base_url=server.url)
        async with model.open_reply(HELLO):
            pass
        async with model.open_reply(HELLO) as parts:
            async for _ in parts:
                break
        try:
            async with model.open_reply(HELLO) as parts:
                async for _ in parts:
                    raise KeyError
        except KeyError:
            pass
        with trio.move_on_after(0.05):
            async with model.open_reply(HELLO) as parts:
                async for _ in parts:
                    pass
        for _ in range(3):
            gc.collect()
            await trio.sleep(0.01)


trio.run(main)
