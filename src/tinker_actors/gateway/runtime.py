"""What the gateway serves: a mesh with a trainer and a sampler over each base model, the registry and the scheduler."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tinker_actors.actors import Actor, Mesh, RestartPolicy
from tinker_actors.errors import ConfigError
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.models import resolve
from tinker_actors.policies import PolicyRegistry
from tinker_actors.sampling import Sampler
from tinker_actors.scheduler.devices import check_device
from tinker_actors.training import Trainer

BEHIND = 10
"""How much nicer than the gateway the engines' processes are (`nice`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A base model that clients may train and sample.

    Attributes:
        name: What clients call it, such as `Qwen/Qwen3-4B-Instruct-2507`.
        base_model: Its name in the catalogue; `name` if empty.
        dtype: Of the base's weights.
        device: Where they are, and what trains and samples.
        chat_template: How conversations become prompts, as `load_renderer` takes it; the tokenizer's own if empty.
        tool_format: How the model writes calls of tools, as a `Toolbox` takes it; what its template shows if empty.
        trainer: More arguments of its `Trainer`.
        sampler: More arguments of its `Sampler`.
    """

    name: str
    base_model: str = ""
    dtype: str = "float32"
    device: str = "cpu"
    chat_template: str = ""
    tool_format: str = ""
    trainer: Mapping[str, Any] = field(default_factory=dict)
    sampler: Mapping[str, Any] = field(default_factory=dict)

    @property
    def catalogue_name(self) -> str:
        """Its name in the catalogue."""
        return self.base_model or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The actors over one base model; they share its weights in one process."""

    served: ServedModel
    trainer: Trainer
    sampler: Sampler


class _Background(Actor):
    """Lets the other processes of the host go first, where they and this one's threads want the processors."""

    async def on_start(self) -> None:
        os.nice(BEHIND)  # of this thread, and of those that it starts from now on: the ones that compute


class Runtime:
    """The mesh behind a gateway; enter it to start the actors, leave it to end them.

    Args:
        root: Folder of all that the service keeps.
        models: What it serves.
        in_process: Run the engines in this process rather than in a child process for each base model, which leaves
            this one's event loop to the clients.
    """

    def __init__(self, root: str | Path, models: Sequence[ServedModel], *, in_process: bool = False) -> None:
        names = [model.name for model in models]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"models has {sorted(twice)} more than once; each name is needed once")
        for model in models:
            resolve(model.catalogue_name)  # a name that means nothing is refused before anything starts
            check_device(f'models."{model.name}".device', model.device)
        self.root = Path(root)
        self.models = tuple(models)
        self.engines: dict[str, Engines] = {}
        self._lengths: dict[str, int] = {}
        self._nodes = 1 if in_process else 1 + len(models)
        self._stack = AsyncExitStack()

    @property
    def store(self) -> Path:
        """Folder of the snapshot store that all engines share."""
        return self.root / "policies"

    async def __aenter__(self) -> Self:
        """Start the mesh and its actors; the base models load meanwhile."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)  # its files are of many tenants
        async with AsyncExitStack() as stack:
            self.mesh = await stack.enter_async_context(Mesh(nodes=self._nodes, name="tinker-actors serve"))
            self.registry = await self.mesh.spawn(PolicyRegistry, str(self.store), name="policies", node=0)
            for number, served in enumerate(self.models, start=1):
                self.engines[served.name] = await self._start(served, node=number if self._nodes > 1 else 0)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the actors and their processes."""
        await self._stack.__aexit__(kind, error, trace)

    def engines_of(self, model: str) -> Engines:
        """The actors over a base model.

        Raises:
            RefusalError: It isn't served; says which are.
        """
        if model not in self.engines:
            raise RefusalError(
                400, f"base_model is {model!r}, which is not served; {sorted(self.engines)} are", code="unknown_model"
            )
        return self.engines[model]

    async def context_length(self, model: str) -> int:
        """Longest sequence in tokens that a served model takes, once it is loaded."""
        if model not in self._lengths:
            engines = self.engines_of(model)
            longest = await engines.trainer.context_length()
            self._lengths[model] = min(longest, engines.served.sampler.get("context_length") or longest)
        return self._lengths[model]

    async def _start(self, served: ServedModel, *, node: int) -> Engines:
        restart = RestartPolicy.on_failure()  # without what they held, which whoever put it there sees to
        common = {"base_model": served.catalogue_name, "store": str(self.store), "node": node}
        common |= {"dtype": served.dtype, "device": served.device}
        suffix = served.name.replace("/", "--")
        if node:  # clients are answered while it computes
            await self.mesh.spawn(_Background, name=f"background:{suffix}", node=node, restart=restart)
        trainer = await self.mesh.spawn(Trainer, name=f"trainer:{suffix}", restart=restart, **common, **served.trainer)
        sampler = await self.mesh.spawn(Sampler, name=f"sampler:{suffix}", restart=restart, **common, **served.sampler)
        return Engines(served=served, trainer=trainer, sampler=sampler)
