"""`HarnessAgent`: a seat that an existing harness plays, with the policy as its model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tinker_actors.data import Message, ToolList, Trajectory
from tinker_actors.environments.agents import Action, Agent
from tinker_actors.environments.outside.capture import Capture
from tinker_actors.environments.outside.harness import Harness, HarnessCall, as_sent
from tinker_actors.environments.outside.server import EndpointServer
from tinker_actors.errors import ConfigError, EpisodeError


class HarnessAgent(Agent):
    """Lets a harness answer the observations, and keeps the tokens that its model sampled for it.

    The harness is run once per observation, with a base URL and a key. What it asks there is sampled from the policy;
    what it returns is the action. It may ask as often as it likes, one call after the other or several at a time.

    Args:
        harness: What answers.
        capture: The seat's side of the endpoint.
        server: The process's.
        seconds: For one answer; None for no limit but the episode's.
    """

    def __init__(
        self, harness: Harness, capture: Capture, server: EndpointServer, *, seconds: float | None = None
    ) -> None:
        if seconds is not None and not seconds > 0:
            raise ConfigError(f"seconds is {seconds}; a positive number is needed")
        self.policy = capture.spec.policy
        self.trainable = capture.spec.trainable
        self._harness = harness
        self._capture = capture
        self._server = server
        self._seconds = seconds
        self._key: str | None = None
        self._tools: list[dict[str, object]] = []
        self._history: list[Message] = []
        self._turn = 0

    @property
    def metrics(self) -> Mapping[str, float]:
        """What became of the harness's calls in the episode."""
        counts = self._capture.counts
        return {
            "harness_calls": counts.calls,
            "harness_superseded": counts.superseded,
            "harness_cancelled": counts.cancelled,
            "harness_restarts": counts.restarts,
        }

    async def equip(self, tools: ToolList) -> None:
        """Hand the tools on to the harness, which may show them to its model."""
        self._tools = [dict(schema) for schema in tools.schemas]

    async def act(self, messages: Sequence[Message]) -> Action:
        """Run the harness.

        Raises:
            EpisodeError: It failed, took too long, returned no text, or never asked its model.
        """
        url = await self._server.start()
        if self._key is None:
            self._key = self._server.admit(self._capture)
        self._history.extend(messages)
        call = HarnessCall(
            base_url=f"{url}/v1",
            api_key=self._key,
            model=self._capture.model,
            observation=[as_sent(message) for message in messages],
            messages=[as_sent(message) for message in self._history],
            tools=self._tools,
            seat=self._capture.seat,
            turn=self._turn,
        )
        self._turn += 1
        self._capture.begin()
        try:
            text = await self._answer(call)
        finally:
            self._capture.end()
        turns = self._capture.turns(messages, text)
        if not turns:
            raise EpisodeError(
                f"the harness answered {text[:80]!r} without a call to {call.base_url}, so that there is nothing to "
                "learn from; it is to send its model's requests there"
            )
        self._history.append(Message(role="assistant", content=text))
        return Action(text=text, turns=turns)

    async def finish(self, trajectory: Trajectory, error: str | None) -> None:
        """Let nobody in with the seat's key any more."""
        if self._key is not None:
            self._server.dismiss(self._key, "the episode that the key was for has ended")

    async def _answer(self, call: HarnessCall) -> str:
        limit = asyncio.timeout(self._seconds)
        # the boundary to the harness: one that fails because its context was full has come to the end of it
        try:
            async with limit:
                return await self._harness.run(call)
        except TimeoutError:
            if limit.expired():
                raise EpisodeError(f"the harness took longer than {self._seconds:g} s") from None
            raise
        except Exception:  # user code: whatever it made of the refusal
            if self._capture.overflow is not None:
                return ""
            raise
