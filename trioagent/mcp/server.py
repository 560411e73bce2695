"""A server as a set of tools."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack
from urllib.parse import urlsplit

import trio

from trioagent._errors import ToolError
from trioagent._events import Effect
from trioagent._limits import check_number
from trioagent._ports import Approve
from trioagent._tools import Tool, ToolContext, check_approve

from ._results import as_text
from ._wire import Address, Command
from ._words import Scrubber, ServerError, plain_url, without_last_words

if TYPE_CHECKING:  # the package is loaded when the first server is entered
    import mcp_types

    from ._link import Link

INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
NAME_LENGTH = 64  # of a tool, as providers take it
REMEDY = "it needs the package mcp, 2.3 or later: pip install 'trioagent[mcp]'"

logger = logging.getLogger("trioagent")


class ServerOptions(TypedDict, total=False):
    """What `MCPServer.stdio`, `MCPServer.http` and `mcp_servers` take besides."""

    name: str
    tools: Collection[str] | None
    prefix: str | None
    connect_seconds: float
    seconds: float | None
    result_bytes: int
    effects: Mapping[str, str] | None
    atomic: Collection[str]
    grace_seconds: float
    approve: Approve | None


class MCPServer:
    """The tools of an MCP server: give it to `Agent(tools=[…])`.

    It is connected while somebody has entered it: an agent's `async with` for all its
    runs, or else a run for itself. Each `trio.run` has a connection of its own; the
    last to leave ends it, and the server's process with all that it has started.

    Args:
        name: for errors, and to tell two servers apart; the program or the host.
        tools: those that a model may see; None is all.
        prefix: `prefix="files"` makes `read` of a server `files__read` of the model's.
        connect_seconds: until the server is there and has told its tools.
        seconds: how long a call may take; None: Limits.tool_seconds.
        result_bytes: how much of a result a model is told.
        effects: tool name → "read", "once" or "keyed" (here: may be repeated with the
            same arguments). By default a tool is "read" where the server says so
            (readOnlyHint) and "once" otherwise. It is the server that says so: a server
            that you do not trust deserves `effects=`, and `approve=`.
        atomic: tools that do all or nothing: their own error means that nothing
            happened. Of others that are no reads that is unknown: they had begun.
        grace_seconds: for ending a process: half of it for the process itself, at the
            end of its stdin, and half from TERM to KILL.
        approve: asked before each call that is no read, as of `@tool`.

    A call that is cut (by a stop, a deadline, its limit) is cancelled at the server,
    which cannot say any more what it had done: unless it is a read, it is uncertain. So
    is one whose server died. Nothing is ever sent twice. The next call connects anew.

    Raises ToolError where a connection cannot be made: then a run ends as failed
    (`no_tools`), before its first request.
    """

    def __init__(
        self,
        target: Command | Address,
        secrets: Mapping[str, str],
        *,
        name: str = "",
        tools: Collection[str] | None = None,
        prefix: str | None = None,
        connect_seconds: float = 10,
        seconds: float | None = None,
        result_bytes: int = 100_000,
        effects: Mapping[str, str] | None = None,
        atomic: Collection[str] = (),
        grace_seconds: float = 0.5,  # checked, and kept, with the target
        approve: Approve | None = None,
    ) -> None:
        self.name = name
        self.tools = None if tools is None else tuple(tools)
        self.prefix = prefix
        self.connect_seconds = connect_seconds
        self.seconds = seconds
        self.result_bytes = result_bytes
        self.effects = {tool: _effect(tool, e) for tool, e in (effects or {}).items()}
        self.atomic = tuple(atomic)
        self.approve = approve
        for option in ("connect_seconds", "seconds", "result_bytes"):
            if (value := getattr(self, option)) is not None:
                check_number(f"MCPServer({option}=…)", value)
        for option, names in (("tools", tools), ("atomic", atomic)):
            if isinstance(names, str):
                raise TypeError(f"MCPServer({option}=…) takes several, not {names!r}")
        check_approve("MCPServer(approve=…)", approve)
        self._target = target
        self._scrub = Scrubber(secrets.values())
        self._here: trio.lowlevel.RunVar[_Shared | None] = trio.lowlevel.RunVar(
            "trioagent MCP server", None
        )

    @classmethod
    def stdio(
        cls,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        **options: Unpack[ServerOptions],
    ) -> Self:
        """A program that is started, and ends with the last who uses it, or with us.

        Besides `env` it finds only what is harmless in its environment: PATH, HOME,
        LANG and such. All of ours is `env=os.environ`: keys too.
        """
        if isinstance(command, str) or not command:
            raise TypeError("MCPServer.stdio takes a list of strings, not a string")
        kept = {key: os.environ[key] for key in INHERITED if key in os.environ}
        environment = {**kept, **(env or {})}
        options.setdefault("name", PurePath(command[0]).stem)
        grace = _grace(options)
        place = None if cwd is None else os.fspath(cwd)
        target = Command(tuple(command), environment, place, grace)
        return cls(target, env or {}, **options)

    @classmethod
    def http(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        **options: Unpack[ServerOptions],
    ) -> Self:
        """A server that is there already, by streamable HTTP.

        `headers` go with each request; neither they nor a query in the URL are shown.
        """
        headers = dict(headers or {})
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("MCPServer.http takes a URL, of http or https")
        for header, value in headers.items():
            if not (value.isprintable() and value.isascii()):
                raise ValueError(
                    f"MCPServer.http(headers=…): the value of {header!r} cannot be sent"
                )
        options.setdefault("name", urlsplit(url).hostname or "")
        target = Address(url, headers, plain_url(url), _grace(options))
        return cls(target, headers, **options)

    def __repr__(self) -> str:
        return f"<MCPServer {self.name}: {self._target}>"

    async def __aenter__(self) -> list[Tool]:
        """Connect, unless somebody has; the tools."""
        shared = self._here.get()
        if shared is None:
            shared = _Shared()
            self._here.set(shared)
        shared.users += 1
        try:
            link, _ = await self._live_link(shared)
            return self._make_tools(link.tools)
        except BaseException:
            await self.__aexit__()  # noqa: ASYNC102 - it brings its own bounded shield
            raise

    async def __aexit__(self, *error: object) -> None:
        """The last one ends the connection; when this returns, the server is gone."""
        shared = self._here.get()
        assert shared is not None
        shared.users -= 1
        if not shared.users:  # before the first await: whoever comes now makes another
            self._here.set(None)
            await shared.close()  # noqa: ASYNC102 - it brings its own bounded shield
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def _live_link(self, shared: _Shared) -> tuple[Link, str]:
        """A connection that can be used, and why there had to be a new one."""
        async with shared.lock:
            why = ""
            if shared.links and not (why := shared.links[-1].lost):
                return shared.links[-1], ""
            shared.links = [link for link in shared.links if not link.is_over]
            make = await _load_link()
            try:
                link = await make.open(
                    self._target,
                    name=self.name,
                    connect_seconds=self.connect_seconds,
                    scrub=self._scrub,
                )
            except ToolError as error:
                if not why:
                    raise
                raise ToolError(
                    f"{error} (connecting anew, for the connection was lost: {why})"
                ) from None
            shared.links.append(link)
            return link, why

    def _make_tools(self, offered: Mapping[str, mcp_types.Tool]) -> list[Tool]:
        for option in ("tools", "effects", "atomic"):
            named = getattr(self, option) or ()
            if unknown := [name for name in named if name not in offered]:
                raise ToolError(
                    f"MCP server {self.name}: {option}= names {', '.join(unknown)}, and"
                    f" it has {', '.join(offered) or 'no tools'}"
                )
        made = [
            self._make_tool(tool)
            for name, tool in offered.items()
            if self.tools is None or name in self.tools
        ]
        names = [tool.name for tool in made]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ToolError(
                f"MCP server {self.name}: two of its tools would be {twice.pop()!r}:"
                " choose by tools="
            )
        return made

    def _make_tool(self, offered: mcp_types.Tool) -> Tool:
        effect = self._effect(offered)

        async def call_it(arguments: dict[str, Any], context: ToolContext) -> str:
            return await self._call(offered.name, effect, arguments, context)

        reads = effect is Effect.READ
        return Tool(
            _public_name(self.prefix, offered.name),
            call_it,
            description=offered.description or offered.title or "",
            schema=offered.input_schema,
            effect=effect,
            seconds=self.seconds,
            approve=None if reads else self.approve,
            context="context",
        )

    def _effect(self, offered: mcp_types.Tool) -> Effect:
        hints = offered.annotations
        reads = hints is not None and bool(hints.read_only_hint)
        default = Effect.READ if reads else Effect.ONCE
        return self.effects.get(offered.name, default)

    async def _call(
        self, name: str, effect: Effect, arguments: dict[str, Any], context: ToolContext
    ) -> str:
        shared = self._here.get()
        if shared is None:
            raise ToolError(f"MCP server {self.name}: not connected")
        link, why = await self._live_link(shared)
        if why:
            why = without_last_words(why)
            logger.warning("MCP server %s: connected anew: %s", self.name, why)
            await context.show(f"connected anew to {self.name}: {why}\n")
        offered = link.tools.get(name)
        if offered is None or self._effect(offered) is not effect:
            raise ToolError(f"MCP server {self.name} has no such {name} any more")
        result = await link.call(name, arguments, context.show)
        text = as_text(result, self.result_bytes)
        if not result.is_error:
            return text
        text = self._scrub(text)
        if effect is Effect.READ or name in self.atomic:
            raise ToolError(text)
        raise ServerError(f"the server says that it failed: {text}")


class _Shared:
    """What one `trio.run` has of a server."""

    def __init__(self) -> None:
        self.users = 0
        self.lock = trio.Lock()  # held while a connection is made
        self.links: list[Link] = []  # the last is in use; others end with their calls

    async def close(self) -> None:
        """End all; when this returns, they are gone."""
        for link in self.links:
            await link.close()


def _grace(options: ServerOptions) -> float:
    grace = options.get("grace_seconds", 0.5)
    check_number("MCPServer(grace_seconds=…)", grace, least=0)
    return grace


def _effect(tool: str, effect: str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        raise ValueError(
            f"MCPServer(effects=…): {tool} is read, keyed or once, not {effect!r}"
        ) from None


def _public_name(prefix: str | None, name: str) -> str:
    """As providers take it: MCP allows more."""
    name = f"{prefix}__{name}" if prefix else name
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:NAME_LENGTH]


async def _load_link() -> type[Link]:
    """Loading the package takes a second, in which other tasks go on."""
    module = "trioagent.mcp._link"
    try:
        if module not in sys.modules:
            await trio.to_thread.run_sync(import_module, module, abandon_on_cancel=True)
        link: type[Link] = import_module(module).Link
    except ImportError as error:
        raise ToolError(f"an MCP server cannot be used: {REMEDY} ({error})") from None
    return link
