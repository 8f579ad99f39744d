"""Who plays a seat, as the command line says it: `person`, `script:FUNCTION`, a run, a store, a model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tinker_actors.actors import Mesh
from tinker_actors.console.stored import find_snapshot
from tinker_actors.environments import Agent, Environment, EnvironmentFactory, LiveEnvironment, ScriptedAgent
from tinker_actors.environments.person import PersonAgent, Terminal
from tinker_actors.errors import ConfigError, ModelNotFoundError, UnknownPolicyError
from tinker_actors.models import ChatRenderer, load_renderer, load_tokenizer
from tinker_actors.models.catalogue import resolve
from tinker_actors.policies import PolicySpec, Snapshot, SnapshotStore
from tinker_actors.rollouts import PolicySeat, ScriptedSeat, script, scripted_agent
from tinker_actors.rollouts.seats import agent_for
from tinker_actors.sampling import SamplingParams
from tinker_actors.scheduler import RunConfig, RunFolder
from tinker_actors.scheduler.line_ups import Players
from tinker_actors.telemetry import read_jsonl

Kind = Literal["person", "demonstration", "script", "run", "store", "model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    """What a word on the command line means.

    Attributes:
        kind: What plays.
        name: The function, folder or model.
        which: Of a run or store: `best`, a policy, a snapshot; empty for the newest.
    """

    kind: Kind
    name: str = ""
    which: str = ""

    @classmethod
    def parse(cls, text: str, store: str | None = None) -> Who:
        """Read a word.

        Args:
            text: The word.
            store: The folder in which a bare handle lies.

        Raises:
            ConfigError: It means nothing.
        """
        if text in ("person", "demonstration"):
            return cls(kind=text)
        if text.startswith("script:"):
            return cls(kind="script", name=text.removeprefix("script:"))
        if text.startswith("tinker://"):
            if store is None:
                raise ConfigError(f"{text} lies in a store; --store names its folder, such as a run's")
            return cls(kind="run" if (Path(store) / "config.toml").is_file() else "store", name=store, which=text)
        name, _, which = (text, "", "") if Path(text).exists() else text.partition("@")
        if (Path(name) / "config.toml").is_file():
            return cls(kind="run", name=name, which=which)
        if Path(name).is_dir() and SnapshotStore(name).policies():
            return cls(kind="store", name=name, which=which)
        try:
            resolve(text)
        except ModelNotFoundError as error:
            raise ConfigError(
                f"{text!r} can't play: it is no run folder, store or model, and neither 'person', 'demonstration' nor "
                f"'script:FUNCTION' ({error})"
            ) from None
        return cls(kind="model", name=text)

    def run_config(self) -> RunConfig | None:
        """The configuration of the RL run that it is, if it is one."""
        config = RunFolder(Path(self.name)).load_config() if self.kind == "run" else None
        return config if isinstance(config, RunConfig) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """Who plays a seat.

    Attributes:
        label: For people.
        note: Something that they should know.
        seat: What plays, where `agent_for` makes its agent.
        renderer: Of its model.
    """

    label: str
    note: str = ""
    seat: PolicySeat | ScriptedSeat | None = None
    renderer: ChatRenderer | None = None

    def agent(self, seat: str, live: LiveEnvironment, terminal: Terminal, seed: int) -> Agent:
        """Its agent for one episode."""
        if self.label == "person":
            return PersonAgent(terminal, seat, tells_reward=False)
        if self.seat is None:
            return ScriptedAgent(lambda _messages: live.demonstrate(seat))
        if isinstance(self.seat, ScriptedSeat):
            return scripted_agent(self.seat, live.environment, seat=seat, seed=seed)
        assert self.renderer is not None
        return agent_for(self.seat, seat=seat, live=live, renderer=self.renderer, seed=seed)


@dataclass(slots=True)
class Opponents:
    """Makes players, and starts what they need: a sampler for each base model and store. Closed at the end.

    Attributes:
        factory: What is played.
        temperature: Of policies; None for what their run evaluates at, 0 elsewhere.
        max_tokens: Of an answer; None for what their run allows, 64 elsewhere.
    """

    factory: EnvironmentFactory
    temperature: float | None = None
    max_tokens: int | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _mesh: Mesh | None = None
    _samplers: dict[tuple[str, str], tuple[Any, list[str]]] = field(
        default_factory=dict[tuple[str, str], tuple[Any, list[str]]]
    )

    async def __aenter__(self) -> Opponents:
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._stack.aclose()

    async def player(self, who: Who, seat: str) -> Player:
        """Who plays a seat.

        Raises:
            ConfigError: The environment has no demonstrations or no such script.
            UnknownPolicyError: A run or store has no such snapshot.
        """
        match who.kind:
            case "person":
                return Player(label="person")
            case "demonstration":
                if self.factory.environment.demonstrate is Environment.demonstrate:
                    raise ConfigError(f"environment {self.factory.name} has no demonstrations; name another player")
                return Player(label="demonstration")
            case "script":
                spec = ScriptedSeat(function=who.name)
                script(spec, self.factory.environment)
                return Player(label=f"script {who.name}", seat=spec)
            case "model":
                return await self._model(who.name)
            case _:
                return await self._snapshot(who, seat)

    async def _model(self, name: str) -> Player:
        """A base model as it is: an adapter that has learned nothing changes nothing."""
        from tinker_actors.training import Trainer

        store = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tinker-actors-play-"))
        trainer = await (await self._running()).spawn(Trainer, base_model=name, store=store)
        snapshot = await trainer.publish(await trainer.create(PolicySpec(base_model=name, rank=1, name="base")))
        return await self._policy(f"model {name}", snapshot, store, model=name)

    async def _snapshot(self, who: Who, seat: str) -> Player:
        config = who.run_config()
        root = RunFolder(Path(who.name)).policies if who.kind == "run" else Path(who.name)
        store = SnapshotStore(root)
        await self._sampler(self._chosen(who, config, store, seat)[0].base_model, str(root))
        # a run that goes on may have put another in its place while the base model was loaded
        snapshot, note = self._chosen(who, config, store, seat)
        model = RunFolder(Path(who.name)).load_config().model if who.kind == "run" else None
        label = f"{snapshot.policy_id}/{snapshot.number} of {who.name}"
        return await self._policy(
            label,
            snapshot,
            str(root),
            model=snapshot.base_model if model is None else model.name,
            template=None if model is None else model.chat_template,
            config=config,
            note=note,
        )

    def _chosen(self, who: Who, config: RunConfig | None, store: SnapshotStore, seat: str) -> tuple[Snapshot, str]:
        """The snapshot that is meant, as of now, and what is to be told of it."""
        if who.which == "best":
            return best(who.name, store)
        if who.which:
            return find_snapshot(store, who.which), ""
        return store.latest(self._learner(who, config, store, seat)), ""

    def _learner(self, who: Who, config: RunConfig | None, store: SnapshotStore, seat: str) -> str:
        """Whose newest snapshot is meant: in a run the policy that plays the seat there, else one with snapshots."""
        kept = [policy for policy in store.policies() if store.list(policy)]
        if config is not None:
            seats = self.factory.environment.seats
            playing = Players.of(config, seats).training if set(config.seats) <= set(seats) else {}
            own = playing[seat].policy if seat in playing else None
            kept = [policy for policy in (own, *config.learners()) if policy in kept]
        if not kept:
            raise UnknownPolicyError(f"{who.name} has no snapshot yet; has its run got past the warm-up?")
        return kept[0] or ""

    async def _policy(
        self,
        label: str,
        snapshot: Snapshot,
        store: str,
        *,
        model: str,
        template: str | None = None,
        config: RunConfig | None = None,
        note: str = "",
    ) -> Player:
        sampler, served = await self._sampler(snapshot.base_model, store)
        served.append(snapshot.handle)
        await sampler.refresh(served)
        temperature = config.evaluation.temperature if config else 0.0
        params = SamplingParams(
            max_tokens=self.max_tokens or (config.rollouts.max_tokens if config else 64),
            temperature=temperature if self.temperature is None else self.temperature,
            stop=config.rollouts.stop if config else (),
        )
        seat = PolicySeat(
            sampler=sampler, policy=snapshot.policy_id, snapshot=snapshot.handle, params=params, trainable=False
        )
        renderer = load_renderer(load_tokenizer(model), template)
        return Player(label=label, note=note, seat=seat, renderer=renderer)

    async def _sampler(self, base_model: str, store: str) -> tuple[Any, list[str]]:
        from tinker_actors.sampling import Sampler  # loads torch, which games without policies don't need

        key = (base_model, store)
        if key not in self._samplers:
            spawn = partial((await self._running()).spawn, Sampler, base_model=base_model, store=store)
            self._samplers[key] = (await spawn(), [])
        return self._samplers[key]

    async def _running(self) -> Mesh:
        if self._mesh is None:
            # a model is loaded on its loop, for which nobody else waits
            self._mesh = await self._stack.enter_async_context(Mesh(blocked_loop=None))
        return self._mesh


def best(run: str, store: SnapshotStore) -> tuple[Snapshot, str]:
    """The snapshot of a run that evaluated best among those that are still kept, and what is to be said of it.

    Raises:
        UnknownPolicyError: None of those that were evaluated is kept.
    """
    folder = RunFolder(Path(run))
    records = read_jsonl(folder.metrics) if folder.metrics.is_file() else []
    found = [record for record in records if record["kind"] == "evaluation" and record.get("snapshots")]
    ordered: Sequence[Mapping[str, Any]] = sorted(found, key=lambda record: -record["reward"])
    kept = {snapshot.handle: snapshot for policy in store.policies() for snapshot in store.list(policy)}
    for record in ordered:
        for handle in record["snapshots"].values():
            if handle in kept:
                note = f"evaluated at {record['reward']:.3f} after step {record['step']}"
                if record["reward"] < ordered[0]["reward"]:
                    top = ordered[0]
                    note += (
                        f"; that of step {top['step']}, {top['reward']:.3f}, is no longer kept "
                        "(checkpoints.keep_snapshots)"
                    )
                return kept[handle], note
    raise UnknownPolicyError(f"{run} keeps no snapshot that was evaluated; leave @best out for the newest")
