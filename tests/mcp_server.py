"""An MCP server by the official package, for tests.

python mcp_server.py LOG         on stdin and stdout
python mcp_server.py LOG PORT    by streamable HTTP, on loopback

What it does is a line in LOG.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

LOG = Path(sys.argv[1])
server = MCPServer("tests", log_level="ERROR")
reads = ToolAnnotations(read_only_hint=True)


def note(line: str) -> None:
    with LOG.open("a") as log:
        log.write(line + "\n")


@server.tool(annotations=reads)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def charge(amount: int, seconds: float = 0.0) -> str:
    """Charge an amount, after some seconds."""
    note(f"begun {amount}")
    try:
        await anyio.sleep(seconds)
    except anyio.get_cancelled_exc_class():
        note(f"cancelled {amount}")
        raise
    note(f"charged {amount}")
    return f"charged {amount}"


@server.tool(annotations=reads)
async def look(seconds: float) -> str:
    """Look for some seconds."""
    note("looking")
    await anyio.sleep(seconds)
    return "seen"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def fail(half_done: bool) -> str:
    """Fail."""
    note(f"failing {half_done}")
    raise ToolError("the disk is full")


@server.tool(annotations=reads)
def fail_to_read() -> str:
    """Fail."""
    raise ToolError("no such file")


@server.tool(annotations=reads)
async def report(context: Context[Any, Any]) -> str:
    """Show progress."""
    for n in range(1, 4):
        await context.report_progress(n, 3, f"part {n}")
        await anyio.sleep(0.05)
    return "done"


@server.tool(annotations=reads)
def picture() -> Image:
    """A picture."""
    return Image(data=b"0" * 300, format="png")


@server.tool(annotations=reads)
def people(count: int) -> dict[str, Any]:
    """Structured data."""
    return {"people": [{"name": f"n{i}"} for i in range(count)]}


@server.tool()
def die() -> str:
    """End the process."""
    sys.stderr.write("fatal: out of luck\n")
    sys.stderr.flush()
    os._exit(4)


if len(sys.argv) > 2:
    server.run("streamable-http", port=int(sys.argv[2]))
else:
    server.run("stdio")
