"""Environments of OpenEnv, in this process and over a socket to a real server."""

import asyncio
import socket
import threading

import pytest

pytest.importorskip("openenv.core")

import uvicorn
from openenv.core import GenericEnvClient
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment as Served
from openenv.core.env_server.types import Action, Observation, State

from tinker_actors.coordinator import run_episode
from tinker_actors.data import Task
from tinker_actors.environments import ScriptedAgent, load_environment
from tinker_actors.environments.libraries import OpenEnvEnvironment
from tinker_actors.errors import ConfigError

pytestmark = pytest.mark.libraries
closed: list[str] = []


class Guess(Action):
    number: str
    loudly: bool = False


class Reply(Observation):
    text: str = ""


class Numbers(Served[Guess, Reply, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, top: int = 100):
        super().__init__()
        self.top = top

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.secret = (seed or 0) % self.top
        return Reply(text=f"A number below {self.top}?")

    def step(self, action: Guess, timeout_s=None, **kwargs):
        right = action.number == str(self.secret)
        return Reply(text="right" if right else "LOUD" if action.loudly else "no", reward=float(right), done=right)

    @property
    def state(self):
        return State()

    def close(self):
        closed.append("numbers")


NAME = f"openenv:{__name__}:Numbers"


def script(*answers):
    said = iter(answers)
    return ScriptedAgent(lambda messages: next(said))


@pytest.fixture
def served():
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(create_fastapi_app(Numbers, Guess, Reply, max_concurrent_envs=4), log_level="warning")
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=10)


async def test_an_environment_in_this_process_is_played_and_closed_once():
    factory = load_environment(NAME, top=10)
    closed.clear()
    episode = await run_episode(factory(), {"agent": script("3", "7")}, task=Task(environment=NAME, seed=17), id="a")
    assert (episode.error, episode.end.value) == (None, "terminated")
    assert [turn.reward for turn in episode.trajectory("agent").turns] == [0.0, 1.0]
    assert closed == ["numbers"]


async def test_a_server_is_played_over_its_socket(served):
    name = f"openenv:{served}"
    factory = load_environment(name, action_field="number", observation_field="text")
    episodes = await asyncio.gather(
        *(
            run_episode(
                factory(), {"agent": script("3", str(seed))}, task=Task(environment=name, seed=seed), id=f"{seed}"
            )
            for seed in (17, 18)
        )
    )
    assert [episode.error for episode in episodes] == [None, None]
    assert [episode.trajectory("agent").reward for episode in episodes] == [1.0, 1.0]


async def test_a_client_may_be_wrapped(served):
    environment = OpenEnvEnvironment(GenericEnvClient(base_url=served), action_field="number")
    assert await environment.reset(5) == "A number below 100?"
    assert (await environment.step("5")).terminated
    await environment.close()


def test_json_gives_other_fields_too():
    numbers = OpenEnvEnvironment(Numbers())
    assert numbers.reset(5) == "A number below 100?"
    assert numbers.step('{"number": "1", "loudly": true}').observation == "LOUD"
    assert numbers.step('{"number": "1"').observation == "no"
    numbers.close()


def test_what_cannot_be_played_is_refused():
    with pytest.raises(ConfigError, match="neither an address"):
        load_environment("openenv:numbers")
    with pytest.raises(ConfigError, match="needs the option 'action_field'"):
        load_environment("openenv:http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="option 'action_field' is 'digit'; Guess has loudly, number"):
        load_environment(NAME, action_field="digit")
    with pytest.raises(ConfigError, match=r"can't be made with .*unexpected keyword argument 'bottom'"):
        load_environment(NAME, bottom=3)
