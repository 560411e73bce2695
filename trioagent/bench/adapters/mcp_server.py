"""An MCP server with one tool that never answers, by the official package, on stdio.

It is a program, and no adapter: `python mcp_server.py ADDRESS`. That a call has come,
and when it was let go, is seen by the bench's loopback server at ADDRESS.
"""

from __future__ import annotations

import sys

import httpx

try:
    from mcp.server.mcpserver import MCPServer as Server  # 2.x
except ImportError:
    from mcp.server.fastmcp import FastMCP as Server  # type: ignore[attr-defined, no-redef]  # 1.x

server = Server("bench", log_level="ERROR")


@server.tool()
async def work() -> str:
    """The work."""
    async with httpx.AsyncClient(verify=False, timeout=None) as client:
        return (await client.post(f"{sys.argv[1]}/silent")).text


if __name__ == "__main__":
    server.run()
