"""Tools for environments: Python functions with schemas from their type hints, called in text, answered in order."""

from tinker_actors.environments.tools.environment import ToolEnvironment
from tinker_actors.environments.tools.formats import (
    HermesFormat,
    JsonFormat,
    PlainFormat,
    Said,
    ToolFormat,
    tool_format,
)
from tinker_actors.environments.tools.mcp import McpServer, McpSession
from tinker_actors.environments.tools.sandbox import (
    CodeResult,
    PythonSandbox,
    SandboxLimits,
    SandboxReport,
    sandbox_report,
)
from tinker_actors.environments.tools.tool import Content, Tool, ToolError, tool
from tinker_actors.environments.tools.toolbox import Toolbox, Used

__all__ = [
    "CodeResult",
    "Content",
    "HermesFormat",
    "JsonFormat",
    "McpServer",
    "McpSession",
    "PlainFormat",
    "PythonSandbox",
    "Said",
    "SandboxLimits",
    "SandboxReport",
    "Tool",
    "ToolEnvironment",
    "ToolError",
    "ToolFormat",
    "Toolbox",
    "Used",
    "sandbox_report",
    "tool",
    "tool_format",
]
