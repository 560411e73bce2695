"""MCP servers as tools, through the official package `mcp`.

    files = MCPServer.stdio(["npx", "@modelcontextprotocol/server-filesystem", "."])
    agent = Agent("openai:gpt-5", tools=[files])

A server is started, or connected to, when a run begins, and left when that ends; inside
`async with agent` it is kept for several runs. The package comes with
`pip install 'trioagent[mcp]'`, and is loaded when the first server is entered.
"""

from ._config import mcp_servers
from ._words import ServerError
from .server import MCPServer, ServerOptions

__all__ = ["MCPServer", "ServerError", "ServerOptions", "mcp_servers"]
