"""`ToolEnvironment`: a question, tools, and a final answer that earns the reward.

A policy's action either calls tools, and their results are what it reads next, or it is the answer:

>>> class Sums(ToolEnvironment):
...     max_turns = 4
...     tool_format = "{name}({arguments})"
...
...     def tools(self):
...         def calc(expression: str) -> int:
...             return sum(int(part) for part in expression.split("+"))
...         return [calc]
...
...     def begin(self, seed):
...         self.a, self.b = seed % 10, seed // 10 % 10
...         return f"{self.a}+{self.b}=?"
...
...     def answer(self, text):
...         return float(text.strip() == str(self.a + self.b))
>>> import asyncio
>>> async def played():
...     environment = Sums()
...     await environment.reset(34)
...     result = await environment.step("calc(4+3)")
...     return result.observation[0].content, (await environment.step("7")).reward
>>> asyncio.run(played())
('7', 1.0)
"""

from __future__ import annotations

import asyncio
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from tinker_actors.data import ToolList
from tinker_actors.environments.environment import Environment, Step
from tinker_actors.environments.threads import CallThread
from tinker_actors.environments.tools.formats import ToolFormat
from tinker_actors.environments.tools.mcp import McpServer, McpSession
from tinker_actors.environments.tools.tool import Tool
from tinker_actors.environments.tools.toolbox import Toolbox
from tinker_actors.errors import ConfigError


class ToolEnvironment(Environment):
    """One seat, tools, and an answer that ends the episode.

    Attributes:
        tool_format: How calls are written: `hermes` (`<tool_call>` and JSON), `json`, or the form of a call in plain
            text, such as `{name}({arguments})` or `<{arguments}>`.
        tool_seconds: How long a call may take whose tool has no limit of its own.
        max_calls: The most calls of one action.
        servers: MCP servers whose tools are there too; a connection to each is opened at the first `reset` and lasts
            until `close`. A subclass with a `close` of its own ends with `await super().close()`.
        toolbox: The episode's tools, from `reset` on.
    """

    tool_format: str | ToolFormat = "hermes"
    tool_seconds: float = 30.0
    max_calls: int = 16
    servers: Sequence[McpServer] = ()
    toolbox: Toolbox
    _sessions: list[McpSession] | None = None
    _served: tuple[Tool, ...] = ()
    _thread: CallThread | None = None
    _ONE_SEAT: ClassVar[str] = "use a Toolbox in an Environment of your own for several seats"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if len(cls.seats) != 1:
            raise ConfigError(f"{cls.__name__}.seats is {cls.seats!r}; one seat is needed; {cls._ONE_SEAT}")

    def tools(self) -> Iterable[Tool | Callable[..., Any]]:
        """The tools of the episode: functions, `Tool`s, methods of this environment; those of `servers` come on top."""
        return ()

    @abstractmethod
    def begin(self, seed: int, /) -> Any:
        """Begin the episode of the task that `seed` names; the first observation. May be `async`, or `blocking`."""

    @abstractmethod
    def answer(self, text: str, /) -> Any:
        """Judge an action without calls. May be `async`, or `blocking`.

        Returns:
            The reward, which ends the episode; or a `Step`, which may go on with an observation.
        """

    async def reset(self, seed: int, /) -> Any:
        """Set up the tools, then `begin`."""
        if self._sessions is None:
            self._sessions = [McpSession(server) for server in self.servers]
            opened = await asyncio.gather(*(session.open() for session in self._sessions), return_exceptions=True)
            for outcome in opened:
                if isinstance(outcome, BaseException):
                    raise outcome
                self._served += outcome
        await self._put_away()
        self.toolbox = Toolbox(
            [*self.tools(), *self._served], format=self.tool_format, seconds=self.tool_seconds, max_calls=self.max_calls
        )
        self._counts = {"tool_calls": 0, "tool_errors": 0}
        return await self._asked(self.begin, seed)

    def tool_list(self, *args: Any) -> ToolList | None:
        """What the policy is told of the tools."""
        return self.toolbox.listed

    async def step(self, action: str, /) -> Step:
        """Make the calls of the action, or take it as the answer if it has none."""
        used = await self.toolbox.use(action)
        if used.calls:
            self._counts["tool_calls"] += len(used.calls)
            self._counts["tool_errors"] += used.errors
            return Step(observation=used.results, metrics=self._numbers({}))
        judged = await self._asked(self.answer, used.text)
        if isinstance(judged, Step):
            return Step(
                observation=judged.observation,
                reward=judged.reward,
                terminated=judged.terminated,
                truncated=judged.truncated,
                metrics=self._numbers(judged.metrics),
            )
        return Step(reward=judged, terminated=True, metrics=self._numbers({}))

    async def close(self) -> None:
        """Close the tools, and disconnect from the servers."""
        await self._put_away()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()
        sessions, self._sessions = self._sessions or [], []
        await asyncio.gather(*(session.close() for session in sessions))

    async def _asked(self, method: Callable[..., Any], argument: Any) -> Any:
        """Call a method of the subclass: in a thread if it may block, as `blocking` says."""
        if self.blocking:
            if self._thread is None:
                self._thread = CallThread(f"environment {type(self).__name__}")
            returned = await self._thread.call(method, argument)
        else:
            returned = method(argument)
        return await returned if inspect.isawaitable(returned) else returned

    async def _put_away(self) -> None:
        if (toolbox := vars(self).get("toolbox")) is not None:
            await toolbox.close()

    def _numbers(self, own: Mapping[str, float]) -> dict[str, float]:
        return {**{name: float(count) for name, count in self._counts.items()}, **own}
