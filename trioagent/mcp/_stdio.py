"""A server on stdin and stdout, which ends with its connection, and with us."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import mcp_types
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from trioagent.isolate._supervised import Supervised, open_supervised

from ._wire import MESSAGE_BYTES, Command
from ._words import said

EXIT_SECONDS = 0.2  # from the end of its stdout until a server that ends has ended
SHOWN_JUNK = 200  # bytes

_Inbox = MemoryObjectSendStream[SessionMessage | Exception]
_Read = MemoryObjectReceiveStream[SessionMessage | Exception]
_Outbox = MemoryObjectReceiveStream[SessionMessage]
_Write = MemoryObjectSendStream[SessionMessage]
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
_NOBODY_READS = (anyio.BrokenResourceError, anyio.ClosedResourceError)

logger = logging.getLogger("trioagent")


class StdioWire:
    """One process. Half of the grace is for its own end, half from TERM to KILL."""

    # Servers that know only the new era are rare, and many of the old one do not answer
    # the question which era they are of: to them it is a method that they do not know.
    eras: tuple[str, ...] = ("legacy", "auto")

    def __init__(self, command: Command) -> None:
        self._command = command
        self._half_grace = command.grace_seconds / 2
        self._process: Supervised | None = None
        self._junk = b""  # the first thing on stdout that was no message
        self._too_long = False
        self._leaving = False
        self._lose: Callable[[str], None] = lambda _: None

    @asynccontextmanager
    async def streams(
        self, lose: Callable[[str], None]
    ) -> AsyncGenerator[tuple[_Read, _Write]]:
        """See `Wire`."""
        self._lose, self._leaving = lose, False
        async with open_supervised(
            self._command.argv,
            cwd=self._command.cwd,
            env=self._command.environment,
            grace_seconds=self._half_grace,
        ) as self._process:
            inbox, read = anyio.create_memory_object_stream[
                SessionMessage | Exception
            ]()
            # Without a bound: a server that does not read must not hold a caller that
            # was cancelled, and has to say so.
            write, outbox = anyio.create_memory_object_stream[SessionMessage](math.inf)
            ended, flushed = trio.Event(), trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive, self._process, inbox, ended)
                nursery.start_soon(self._send, self._process, outbox, flushed)
                try:
                    yield read, write
                finally:
                    self._leaving = True
                    read.close()
                    write.close()
                    with trio.move_on_after(self._half_grace, shield=True):
                        await flushed.wait()
                        await self._process.stdin.aclose()
                        await ended.wait()
                    # Both tasks end with it, so that all is read and all is written
                    # that can be.
                    await self._process.stop()  # noqa: ASYNC102 - it has its own shield

    async def _receive(
        self, process: Supervised, inbox: _Inbox, ended: trio.Event
    ) -> None:
        with trio.CancelScope(shield=True), inbox:
            line = bytearray()
            try:
                async for chunk in process.stdout:
                    first, *others = chunk.split(b"\n")
                    line += first
                    for start_of_next in others:
                        await self._pass_on(bytes(line), inbox)
                        line = bytearray(start_of_next)
                    if len(line) > MESSAGE_BYTES:
                        self._too_long = True
                        break
            except _GONE:
                pass
            await self._see_it_end(process)
            ended.set()

    async def _pass_on(self, line: bytes, inbox: _Inbox) -> None:
        if not line.strip():
            return
        try:
            message = mcp_types.jsonrpc_message_adapter.validate_json(
                line, by_name=False
            )
        except ValueError:
            self._junk = self._junk or line[:SHOWN_JUNK]
            logger.debug("%s wrote what is no message", self._command)
            return
        try:
            await inbox.send(SessionMessage(message))
        except _NOBODY_READS:  # on the way out what it writes is only emptied
            pass

    async def _see_it_end(self, process: Supervised) -> None:
        """Say how it ended, before the calls in flight are told that it did."""
        how = ""
        with trio.move_on_after(EXIT_SECONDS):
            how = f"it ended with {await process.wait()}"
        await process.stop()  # also one that only closed its stdout; then all is read
        if self._leaving:
            return
        if self._too_long:
            how = f"it sent more than {MESSAGE_BYTES} bytes in one message"
        self._lose((how or "it closed its stdout") + self.last_words())

    async def _send(
        self, process: Supervised, outbox: _Outbox, flushed: trio.Event
    ) -> None:
        with trio.CancelScope(shield=True), outbox:
            try:
                async for item in outbox:
                    message = item.message.model_dump_json(
                        by_alias=True, exclude_unset=True
                    )
                    await process.stdin.send_all(message.encode() + b"\n")
            except _GONE:  # the reader sees why
                pass
        flushed.set()

    def last_words(self) -> str:
        """The end of its stderr; else what it wrote instead of messages."""
        tail = self._process.stderr_tail if self._process else ""
        junk = self._junk.decode(errors="replace")
        return said(tail) or said(junk, "stdout, instead of messages")
