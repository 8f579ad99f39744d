"""The code in README and docs: its imports are there, and what is called a complete file is one."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from tinker_actors.coordinator import EpisodeLimits, run_episode
from tinker_actors.data import EpisodeEnd, Task
from tinker_actors.environments import ScriptedAgent, load_environment

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))


def blocks(page: str) -> list[str]:
    """The Python in a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_what_documented_code_imports_is_there(page: str):
    for block in blocks(page):
        tree = compile(block, page, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):  # type: ignore[arg-type]
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tinker_actors"):
                module = import_module(str(node.module))
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize("page", ["README.md", "docs/environments.md", "docs/tools.md"])
async def test_a_complete_environment_of_the_docs_plays_and_can_be_won(page: str, tmp_path: Path):
    (tmp_path / "documented.py").write_text(blocks(page)[0])
    factory = load_environment(str(tmp_path / "documented.py"))
    rewards = []
    for seed in range(40):
        environment = factory()
        agent = ScriptedAgent(lambda _, environment=environment: environment.demonstrate())
        task = Task(environment=factory.name, seed=seed)
        episode = await run_episode(environment, {"agent": agent}, task=task, id=f"try-{seed}", limits=EpisodeLimits())
        assert episode.end is EpisodeEnd.TERMINATED, episode.error
        rewards.append(episode.trajectories[0].reward)
    assert 1.0 in rewards
