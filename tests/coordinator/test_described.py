"""Which line of code a user is told of, when an environment of theirs fails."""

from pathlib import Path

import pytest

from tinker_actors.coordinator import run_episode
from tinker_actors.data import Task
from tinker_actors.environments import ScriptedAgent, load_environment

MINE = """
import json
from tinker_actors import Environment, Step
from tinker_actors.data import Message
class Mine(Environment):
    def reset(self, seed): return self.begin()
    def step(self, action): return Step(terminated=True)
    def begin(self): {begin}
"""


async def error_of(folder: Path, begin: str) -> str:
    (folder / "mine.py").write_text(MINE.replace("{begin}", begin))
    environment = load_environment(str(folder / "mine.py"))()
    episode = await run_episode(environment, {"agent": ScriptedAgent(str)}, task=Task(environment="m", seed=1), id="e")
    assert episode.error is not None
    return episode.error


@pytest.mark.parametrize("begin", ["raise KeyError('a')", "json.loads('{')", "Message.of(3)"])
async def test_it_is_the_innermost_of_their_own_file_whatever_raised(tmp_path: Path, begin: str):
    assert (await error_of(tmp_path, begin)).endswith("(mine.py:8)")


async def test_it_is_none_where_what_they_returned_can_not_be_used(tmp_path: Path):
    assert (await error_of(tmp_path, "return 3")).endswith("is needed")
