"""Environments of verifiers: `verifiers:TASKSET`, the id of a taskset that is installed.

verifiers plays an episode by itself and asks an endpoint for the replies of its model. Here that endpoint is the seat:
a request is what it sees next, and what it says is the response. Rewards come once verifiers has scored the episode.
"""

# pyright: reportMissingImports=false
# the package is in an environment of its own, where types aren't checked

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from tinker_actors.data import Message, ToolList
from tinker_actors.environments.environment import Step
from tinker_actors.environments.libraries.library import LibraryEnvironment, required
from tinker_actors.environments.tools import HermesFormat, Said
from tinker_actors.errors import ConfigError, EpisodeError

required("verifiers.v1", "verifiers")

import verifiers.v1 as vf  # noqa: E402
from aiohttp import web  # noqa: E402

_ENDLESS = 100_000  # tasks that are taken of a taskset without end
_MODEL = "seat"


class VerifiersEnvironment(LibraryEnvironment):
    """Wraps a verifiers environment of one agent.

    Tools of a task are told to the policy; calls are read from its text in the form `<tool_call>` and JSON.

    Args:
        environment: What `verifiers.v1.load_environment` returns.
        held_back: How many of its tasks, the last ones, are for evaluations alone; with 0 all are for both.
        options: As `LibraryEnvironment` takes them.
    """

    library: ClassVar[str] = "verifiers"
    reusable: ClassVar[bool] = True

    def __init__(self, environment: vf.Env[Any], *, held_back: int = 0, **options: Any) -> None:
        super().__init__(**options)
        agents = environment.config.agent_harnesses()
        if len(agents) != 1:
            raise ConfigError(
                f"{type(environment).__name__} of verifiers has the agents {', '.join(agents)}; one alone can be played"
            )
        self.wrapped = environment
        if held_back < 0:
            raise ConfigError(f"option 'held_back' is {held_back}; an integer of at least 0 is needed")
        self._held_back = held_back
        self._tasks: list[Any] = []
        self._runner: web.AppRunner | None = None
        self._episode: asyncio.Task[Any] | None = None
        self._waiting: set[asyncio.Future[str]] = set()

    @classmethod
    def opened(cls, target: str, arguments: Mapping[str, Any]) -> vf.Env[Any]:
        """Load the taskset's environment; `arguments` are verifiers' configuration of an environment. Unless they say
        otherwise, its agent is the harness `null`, which needs the program `uv`, in a process of this machine.
        """
        agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}, **arguments.get("agent", {})}
        taskset = {**arguments.get("taskset", {}), "id": target}
        return vf.load_environment(vf.resolve_env_config({**arguments, "taskset": taskset, "agent": agent}))

    def let_go(self) -> None:
        """Nothing runs yet."""

    async def reset(self, seed: int) -> Sequence[Message]:
        """Have verifiers begin an episode of the task of that seed, up to its first request."""
        await self._stop()
        if not self._tasks:
            self._tasks = list(itertools.islice(self.wrapped.taskset, _ENDLESS))
        if not self._tasks:
            raise ConfigError(f"taskset {type(self.wrapped.taskset).__name__} yields no task; at least 1 is needed")
        cut = len(self._tasks) - self._held_back
        if cut <= 0:
            raise ConfigError(
                f"option 'held_back' is {self._held_back}; fewer than the {len(self._tasks)} tasks that there are is "
                "needed"
            )
        tasks = self._tasks if not self._held_back else self._tasks[cut:] if self.evaluating else self._tasks[:cut]
        self._requests: asyncio.Queue[tuple[Mapping[str, Any], asyncio.Future[str]]] = asyncio.Queue()
        self._read: list[Any] = []
        self._tools: list[Any] = []
        self._replied: tuple[Any, str] | None = None
        client = vf.EvalClientConfig(base_url=await self._address(), api_key_var="TINKER_ACTORS_SEAT")
        task = tasks[self.library_seed(seed) % len(tasks)]
        self._episode = asyncio.create_task(self._play(task, vf.ModelContext(model=_MODEL, client=client)))
        first = await self._next(said=False)
        if first is None:
            raise EpisodeError(f"verifiers ended the episode before it asked for anything{self._ended()[1]}")
        return first

    async def _play(self, task: Any, context: vf.ModelContext) -> Any:
        async with self.wrapped.serving():
            return await self.wrapped.run_episode(task, context)

    def tool_list(self, *args: Any) -> ToolList | None:
        """The tools that the first request named."""
        if not self._tools:
            return None
        shown = "\n".join(json.dumps(each) for each in self._tools)
        form = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
        return ToolList(schemas=tuple(self._tools), described=f"Tools:\n{shown}\nCall one by {form}")

    async def step(self, action: str) -> Step:
        """Answer the request; what is asked next, or how the episode was scored."""
        self._reply.set_result(action)
        following = await self._next(said=True)
        if following is not None:
            return Step(observation=following)
        traces, problem = self._ended()
        if problem:
            raise EpisodeError(f"verifiers couldn't end the episode{problem}")
        metrics = {name: float(value) for trace in traces for name, value in trace.metrics.items() if value is not None}
        return Step(reward=float(sum(trace.reward for trace in traces)), terminated=True, metrics=metrics)

    async def close(self) -> None:
        """End the episode, and the endpoint."""
        await self._stop()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _stop(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None and not episode.done():
            # a request that waits for its answer would hold up the end of verifiers' own server
            for reply in [each for each in self._waiting if not each.done()]:
                reply.set_exception(EpisodeError("the episode is over"))
            episode.cancel()
            await asyncio.wait({episode})

    async def _next(self, *, said: bool) -> Sequence[Message] | None:
        """What the next request says that the seat hasn't read; None if verifiers is through with the episode."""
        episode = cast("asyncio.Task[Any]", self._episode)
        asked = asyncio.create_task(self._requests.get())
        try:
            await asyncio.wait({asked, episode}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not asked.done():
                asked.cancel()
        if not asked.done():
            return None
        body, self._reply = asked.result()
        self._tools = body.get("tools") or self._tools
        heard, before = list(body["messages"]), len(self._read)
        if heard[:before] != self._read or (
            said and [each["role"] for each in heard[before : before + 1]] != ["assistant"]
        ):
            raise EpisodeError(
                "verifiers rewrote the conversation: a request has to begin with the one before and the answer to it"
            )
        self._read = heard
        return [_message(each) for each in heard[before + said :]]

    def _ended(self) -> tuple[Sequence[Any], str]:
        """The traces of the episode that is over, and what went wrong."""
        episode = cast("asyncio.Task[Any]", self._episode).result()
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        return episode.traces, f": {errors[-1].type}: {errors[-1].message}" if errors and not episode.ok else ""

    async def _address(self) -> str:
        """Of the endpoint, which is reached from this machine alone."""
        if self._runner is None:
            app = web.Application(client_max_size=1 << 28)
            app.router.add_post("/v1/chat/completions", self._completion)
            self._runner = web.AppRunner(app)
            await self._runner.setup()
            await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def _completion(self, request: web.Request) -> web.Response:
        body = await request.json()
        try:
            text = await self._answer(body)
        except EpisodeError as error:
            return web.json_response({"error": {"message": str(error)}}, status=410)
        said = HermesFormat().read(text, {}) if body.get("tools") else Said(text=text)
        message: dict[str, Any] = {"role": "assistant", "content": said.text}
        if said.calls:
            message["tool_calls"] = [
                {
                    "index": place,
                    "id": f"{len(self._read)}-{call.id}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for place, call in enumerate(said.calls)
            ]
        end = "tool_calls" if said.calls else "stop"
        if not body.get("stream"):
            return web.json_response(_completed("", {"message": message, "finish_reason": end}))
        events = [
            json.dumps(_completed(".chunk", {"delta": message, "finish_reason": None})),
            json.dumps(_completed(".chunk", {"delta": {}, "finish_reason": end})),
            "[DONE]",
        ]
        text = "".join(f"data: {event}\n\n" for event in events)
        return web.Response(text=text, content_type="text/event-stream")

    async def _answer(self, body: Mapping[str, Any]) -> str:
        """The seat's reply; to a request that is made again, the one that it has given."""
        if self._replied and self._replied[0] == body["messages"]:
            return self._replied[1]
        reply: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((body, reply))
        self._waiting.add(reply)
        try:
            text = await reply
        finally:
            self._waiting.discard(reply)
        self._replied = (body["messages"], text)
        return text


def _completed(kind: str, choice: Mapping[str, Any]) -> dict[str, Any]:
    """A response to a chat request, or a part of a streamed one; tokens are counted by the run."""
    return {
        "id": "seat",
        "object": f"chat.completion{kind}",
        "created": int(time.time()),
        "model": _MODEL,
        "choices": [{"index": 0, **choice}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


def _message(given: Mapping[str, Any]) -> Message:
    """A message of a chat request: text, or parts of text."""
    content = given.get("content") or ""
    if not isinstance(content, str):
        content = "".join(part.get("text", "") for part in content)
    return Message(role=given["role"], content=content, tool_call_id=given.get("tool_call_id"))
