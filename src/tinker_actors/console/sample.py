"""`tinker-actors sample`: talk to the policy of a run."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tinker_actors.actors import Mesh
from tinker_actors.console.stored import find_snapshot
from tinker_actors.data import Image, Message, derive_seed
from tinker_actors.environments import PolicyAgent, PolicySeat
from tinker_actors.environments.person import Lines
from tinker_actors.errors import ConfigError, DataError, UnknownPolicyError
from tinker_actors.models import load_renderer, load_tokenizer
from tinker_actors.policies import Snapshot, SnapshotStore
from tinker_actors.sampling import Sampler, SamplingParams
from tinker_actors.sampling.backends import ServesSnapshots, TinkerSampler, TinkerSettings
from tinker_actors.scheduler import InferenceConfig, JobConfig, RunConfig, RunFolder


def sample_command(options: argparse.Namespace) -> int:
    """Answer `--prompt`, or each line of standard input in one conversation.

    Returns:
        The exit code.

    Raises:
        ConfigError: The folder is no run, an option can't work, or an image can't be read.
        UnknownPolicyError: The run has no snapshot, or none of that handle.
        SamplingError: A sampling option is out of its range.
    """
    if options.samples < 1 or (options.prompt is None and options.samples > 1):
        raise ConfigError(f"--samples is {options.samples}; at least 1 is needed, and more than 1 goes with --prompt")
    if options.image and options.prompt is None:
        raise ConfigError("--image goes with --prompt; give both")
    images = [_image(path) for path in options.image]
    params = SamplingParams(
        max_tokens=options.max_tokens, temperature=options.temperature, top_p=options.top_p, top_k=options.top_k
    )
    try:
        asyncio.run(_talk(options, params, images))
    except KeyboardInterrupt:
        return 130
    return 0


async def _talk(options: argparse.Namespace, params: SamplingParams, images: Sequence[Image]) -> None:
    folder = RunFolder(Path(options.run))
    config = folder.load_config()
    snapshot = _snapshot(folder, config, options.snapshot)
    renderer = load_renderer(load_tokenizer(config.model.name), config.model.chat_template)
    console = Console()
    # a model is loaded on its loop, for which nobody else waits
    async with Mesh(blocked_loop=None) as mesh:
        sampler = await _sampler(mesh, folder, config, snapshot)
        # a run that goes on may have put another in its place while the base model was loaded
        snapshot = _snapshot(folder, config, options.snapshot)
        await sampler.refresh([snapshot.handle])
        seat = PolicySeat(
            sampler=sampler, policy=snapshot.policy_id, snapshot=snapshot.handle, params=params, trainable=False
        )
        agents = [
            PolicyAgent(seat, renderer, seed=derive_seed(options.seed, index)) for index in range(options.samples)
        ]
        opening = [Message(role="system", content=options.system)] if options.system else []
        if options.prompt is not None:
            messages = [*opening, Message.of(*images, options.prompt)]
            for action in await asyncio.gather(*(agent.act(messages) for agent in agents)):
                console.print(Text(action.text), soft_wrap=True)
            return
        lines = Lines(sys.stdin.fileno())
        while (line := await _next(lines)) is not None:
            action = await agents[0].act([*opening, Message(role="user", content=line)])
            opening = []
            console.print(Text(action.text), soft_wrap=True)


async def _sampler(mesh: Mesh, folder: RunFolder, config: JobConfig, snapshot: Snapshot) -> ServesSnapshots:
    """What serves a run's snapshot: the service where it was trained, or this process."""
    store, context_length = str(folder.policies), config.model.context_length
    if not isinstance(config, InferenceConfig) and config.trainer.backend == "tinker":
        settings = TinkerSettings(context_length=context_length).at(config.trainer.tinker)
        return await mesh.spawn(TinkerSampler, base_model=snapshot.base_model, store=store, settings=settings)
    return await mesh.spawn(Sampler, base_model=snapshot.base_model, store=store, context_length=context_length)


def _snapshot(folder: RunFolder, config: JobConfig, handle: str | None) -> Snapshot:
    store = SnapshotStore(folder.policies)
    if handle is not None:
        return find_snapshot(store, handle)
    learners = config.learners() if isinstance(config, RunConfig) else store.policies()
    if not (policies := [policy for policy in learners if store.list(policy)]):
        raise UnknownPolicyError(f"{folder.root} has no snapshot yet; has its run got past the warm-up?")
    return store.latest(policies[0])


def _image(path: str) -> Image:
    try:
        return Image.of(Path(path).read_bytes())
    except (OSError, DataError) as error:
        raise ConfigError(f"--image {path} can't be read: {error}") from error


async def _next(lines: Lines) -> str | None:
    if sys.stdin.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
    return await lines.next()
