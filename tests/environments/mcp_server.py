"""An MCP server over the official package, for tests: over its pipes, or at the port that is its argument."""

import os
import sys

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("sums", log_level="ERROR")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two whole numbers."""
    return a + b


@server.tool()
def fail(text: str) -> str:
    """Raise."""
    raise ToolError(text)


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def picture() -> Image:
    """A picture of one pixel."""
    import io

    import PIL.Image

    data = io.BytesIO()
    PIL.Image.new("L", (1, 1)).save(data, "png")
    return Image(data=data.getvalue(), format="png")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
