"""The file that names servers, as other programs have it: `.mcp.json`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, TypeVar, Unpack

import msgspec

from .server import MCPServer, ServerOptions

VARIABLE = re.compile(r"\$\{([^}:]+)(?::-([^}]*))?\}")
HTTP = ("http", "streamable-http", "streamableHttp", "streamable_http")

T = TypeVar("T")


def mcp_servers(
    path: str | os.PathLike[str] = ".mcp.json", **options: Unpack[ServerOptions]
) -> list[MCPServer]:
    """The servers of a file such as `.mcp.json`, for `Agent(tools=[…])`.

        {"mcpServers": {"files": {"command": "npx", "args": ["-y", "…"], "env": {…}},
                        "search": {"url": "https://…", "headers": {…}}}}

    `${VAR}` and `${VAR:-default}` stand for environment variables. Servers that are
    `disabled` are left out; keys that are not known are ignored. `options` hold for
    each server; its name is the one in the file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it cannot be used; the file, the server and the key are named.
    """
    place = str(path)
    try:
        content = msgspec.json.decode(Path(path).read_bytes())
    except msgspec.DecodeError as error:
        raise ValueError(f"{place}: it is not JSON: {error}") from None
    servers = _Entry(place, content).get("mcpServers", dict[str, Any])
    entries = {name: _Entry(f"{place}: {name}", of) for name, of in servers.items()}
    return [
        entry.server(ServerOptions(**{**options, "name": name}))
        for name, entry in entries.items()
        if not entry.get("disabled", bool, False)
    ]


class _Entry:
    """One server of the file; knows its place there, for errors."""

    def __init__(self, place: str, content: Any) -> None:
        self._place = place
        try:
            self._content = msgspec.convert(content, dict[str, Any])
        except msgspec.ValidationError as error:
            raise ValueError(f"{place}: {error}") from None

    def server(self, options: ServerOptions) -> MCPServer:
        kind = self.get("type", str, "")
        if kind == "sse":
            raise ValueError(
                f'{self._place}: type "sse" is the old transport, and is not supported;'
                ' use "http" where the server has it'
            )
        if kind not in ("", "stdio", *HTTP):
            raise ValueError(f'{self._place}: type is "stdio" or "http", not "{kind}"')
        known = [key for key in ("command", "url") if key in self._content]
        if kind:
            known = ["command" if kind == "stdio" else "url"]
        if len(known) != 1:
            raise ValueError(f'{self._place}: it takes one of "command" and "url"')
        try:
            return self._http(options) if known == ["url"] else self._stdio(options)
        except (TypeError, ValueError) as error:
            if str(error).startswith(self._place):
                raise
            raise ValueError(f"{self._place}: {error}") from None

    def _stdio(self, options: ServerOptions) -> MCPServer:
        command = self._text("command", self.get("command", str))
        args = self.get("args", list[str], [])
        return MCPServer.stdio(
            [command, *(self._text("args", arg) for arg in args)],
            env=self._texts("env"),
            cwd=self._text("cwd", self.get("cwd", str, "")) or None,
            **options,
        )

    def _http(self, options: ServerOptions) -> MCPServer:
        url = self._text("url", self.get("url", str))
        return MCPServer.http(url, headers=self._texts("headers"), **options)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """The value of `key`; without a default it must be there."""
        value = self._content.get(key, default)
        if value is None:
            raise ValueError(f'{self._place}: "{key}" is missing')
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise ValueError(f'{self._place}: "{key}": {error}') from None

    def _texts(self, key: str) -> dict[str, str]:
        values = self.get(key, dict[str, str], {})
        return {
            name: self._text(f"{key}.{name}", text) for name, text in values.items()
        }

    def _text(self, key: str, text: str) -> str:
        def value(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            if name not in os.environ and default is None:
                problem = f"the environment variable {name} is not set"
                raise ValueError(f'{self._place}: "{key}": {problem}')
            return os.environ.get(name, default)

        return VARIABLE.sub(value, text)
