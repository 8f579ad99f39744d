"""Tools of a real MCP server, over pipes and over HTTP."""

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tinker_actors.coordinator import run_episode
from tinker_actors.data import EpisodeEnd, Task
from tinker_actors.environments import ScriptedAgent
from tinker_actors.environments.tools import McpServer, McpSession, Toolbox, ToolEnvironment
from tinker_actors.errors import ConfigError, EpisodeError

COMMAND = (sys.executable, str(Path(__file__).with_name("mcp_server.py")))


class Served(ToolEnvironment):
    tool_format = "json"
    servers = (McpServer(command=COMMAND, tools=("add", "fail", "die"), prefix="s."),)

    def begin(self, seed):
        return "3+4="

    def answer(self, text):
        return float(text == "7")


async def play(*actions):
    said, seen = iter(actions), []

    def act(messages):
        seen.extend(message.content for message in messages)
        return next(said)

    episode = await run_episode(Served(), {"agent": ScriptedAgent(act)}, task=Task(environment="s", seed=0), id="e")
    return episode, seen


def children():
    return psutil.Process().children(recursive=True)


async def test_an_episode_calls_a_servers_tools_and_leaves_no_process():
    before = children()
    episode, seen = await play(
        '[{"name": "s.add", "parameters": {"a": 3, "b": 4}}, {"name": "s.fail", "parameters": {"text": "no luck"}},'
        ' {"name": "s.add", "parameters": {"a": "x"}}]',
        "7",
    )
    assert episode.end is EpisodeEnd.TERMINATED
    assert seen[:2] == ["3+4=", "7"]
    assert seen[2].startswith("error: ")
    assert "no luck" in seen[2]
    assert seen[3].startswith("error: ")
    assert episode.trajectory("agent").reward == 1.0
    assert children() == before


async def test_a_server_that_dies_fails_the_episode_not_the_policy():
    episode, _ = await play('{"name": "s.die"}')
    assert episode.end is EpisodeEnd.FAILED
    assert "mcp_server.py' is gone" in episode.error
    assert "turn 0" in episode.error


async def test_a_servers_schemas_images_and_selection():
    session = McpSession(McpServer(command=COMMAND))
    try:
        tools = await session.open()
        assert [tool.name for tool in tools] == ["add", "fail", "die", "picture"]
        assert tools[0].description == "Add two whole numbers."
        assert tools[0].parameters["required"] == ["a", "b"]
        used = await Toolbox(tools, format="{name}({arguments})").use("picture()")
        assert used.results[0].shown == "[image 1x1]"
    finally:
        await session.close()
    lacking = McpSession(McpServer(command=COMMAND, tools=("subtract",)))
    with pytest.raises(ConfigError, match=r"has no tools \['subtract'\]; it has \['add', 'fail', 'die', 'picture'\]"):
        await lacking.open()
    await lacking.close()


async def test_a_server_at_an_address():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(*COMMAND, str(port), stderr=subprocess.DEVNULL)
    try:
        await asyncio.to_thread(wait_for, port)
        session = McpSession(McpServer(url=f"http://127.0.0.1:{port}/mcp", tools=("add",)))
        used = await Toolbox(await session.open(), format="add({arguments})").use("add(3, 4)")
        assert used.results[0].content == "7"
        await session.close()
    finally:
        process.kill()
        await process.wait()


def wait_for(port):
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


async def test_servers_that_can_not_be_used_are_named():
    with pytest.raises(ConfigError, match="exactly one of them is needed"):
        McpServer()
    gone = McpSession(McpServer(command=("/no/such/program",)))
    with pytest.raises(EpisodeError, match="MCP server '/no/such/program' can't be used: FileNotFoundError"):
        await gone.open()
    await gone.close()
    silent = McpSession(McpServer(command=("sleep", "60"), seconds=0.2))
    before = children()
    with pytest.raises(EpisodeError, match=r"wasn't ready in 0.2 s"):
        await silent.open()
    assert children() == before
