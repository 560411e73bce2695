"""An MCP server for `tests.stopping`: one tool that works for a while."""

from __future__ import annotations

import anyio
from mcp.server.mcpserver import MCPServer

WORK_SECONDS = 1.5  # as in tests.stopping
server = MCPServer("stopping")


def note(ledger: str, word: str) -> None:
    with open(ledger, "a", encoding="utf-8") as file:
        file.write(f"{word}\n")


@server.tool()
async def work(ledger: str) -> str:
    """Work."""
    note(ledger, "began")
    await anyio.sleep(WORK_SECONDS)
    note(ledger, "late")
    return "done"


server.run("stdio")
