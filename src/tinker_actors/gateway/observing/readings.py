"""How what is behind the gateway stands, asked of it when Prometheus asks: samplers, futures, jobs, actors."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from tinker_actors.actors.description import ActorDescription, MeshDescription
from tinker_actors.sampling.metrics import SamplerStats
from tinker_actors.scheduler.states import JobState

if TYPE_CHECKING:
    from tinker_actors.gateway.gateway import Gateway

logger = logging.getLogger(__name__)

PATIENCE = 3.0
"""Seconds that a part has to answer; one that doesn't is left out, and `tinker_actors_up` says so."""

T = TypeVar("T")

_SAMPLER_COUNTS: Mapping[str, tuple[str, str]] = {
    "requests": ("requests", "Requests answered with samples."),
    "failed": ("failed_requests", "Requests that ended in an error."),
    "cancelled": ("cancelled_requests", "Requests whose asker went away."),
    "refused": ("refused_requests", "Requests not taken because too many waited."),
    "preempted": ("preempted_samples", "Samples that gave up their memory for a while."),
    "samples": ("samples", "Samples delivered."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of answered requests."),
    "prefilled_tokens": ("prefilled_tokens", "Prompt tokens computed."),
    "cached_tokens": ("cached_tokens", "Prompt tokens whose keys and values were there already."),
    "generated_tokens": ("generated_tokens", "Tokens drawn."),
    "steps": ("steps", "Forward passes."),
    "busy_seconds": ("busy_seconds", "Time spent computing."),
    "prefill_seconds": ("prefill_seconds", "Of it, in steps that computed mostly prompts."),
    "kv_evicted": ("kv_evictions", "Finished sequences that gave up their places."),
    "adapters_evicted": ("adapter_evictions", "Adapters that gave up their places."),
    "adapters_read": ("adapter_reads", "Adapters read again from the store."),
}
_SAMPLER_GAUGES: Mapping[str, tuple[str, str]] = {
    "waiting": ("waiting_samples", "Samples that wait for a place."),
    "running": ("running_samples", "Samples that have one."),
    "kv_tokens": ("kv_used_tokens", "Token places taken by running samples."),
    "kv_cached": ("kv_cached_tokens", "Token places that hold finished sequences."),
    "kv_capacity": ("kv_capacity_tokens", "Token places there are."),
    "kv_bytes": ("kv_bytes", "Memory of so many keys and values."),
    "adapters_loaded": ("adapters", "Adapters in the network."),
    "adapter_bytes": ("adapter_bytes", "Memory of their weights."),
}
_TRAINER_COUNTS: Mapping[str, tuple[str, str]] = {
    "passes": ("passes", "Batches of one policy that were computed."),
    "datums": ("datums", "Datums in them."),
    "tokens": ("tokens", "Target tokens in them."),
    "optimizer_steps": ("optimizer_steps", "Optimizer steps taken."),
    "published": ("published_snapshots", "Snapshots stored."),
    "failed": ("failed_messages", "Messages that ended in an error."),
    "busy_seconds": ("busy_seconds", "Time spent on all messages."),
}
_TRAINER_GAUGES: Mapping[str, tuple[str, str]] = {"policies": ("policies", "Policies in training.")}
_SPREADS: Mapping[str, tuple[str, str]] = {
    "queue_seconds": ("queue_seconds", "From arrival to a place, over the last 4096 requests."),
    "first_token_seconds": ("first_token_seconds", "From arrival to the first token, over the last 4096 requests."),
    "token_seconds": ("token_seconds", "From one token of a sample to the next, over the last 4096."),
}


async def readings(gateway: Gateway) -> list[Metric]:
    """Ask all parts at once, each for at most `PATIENCE` seconds."""
    engines = gateway.runtime.engines
    up = GaugeMetricFamily("tinker_actors_up", "Whether a part answers.", labels=("part",))

    async def within(part: str, asked: Awaitable[T]) -> T | None:
        found = None
        try:
            async with asyncio.timeout(PATIENCE):
                found = await asked
        except Exception:  # a part that fails is one of the things to be seen
            logger.warning("%s didn't say how it stands", part, exc_info=True)
        up.add_metric((part,), float(found is not None))
        return found

    sampled = [within(f"sampler {name}", made.sampler.stats()) for name, made in engines.items()]
    trained = [within(f"trainer {name}", made.trainer.stats()) for name, made in engines.items()]
    scheduler = gateway.scheduler
    samplers, trainers, mesh, jobs = await asyncio.gather(
        asyncio.gather(*sampled),
        asyncio.gather(*trained),
        within("mesh", gateway.runtime.mesh.describe()),
        within("scheduler", scheduler.counts()) if scheduler is not None else asyncio.sleep(0, None),
    )
    found: list[Metric] = [up, *_futures(gateway)]
    found += _samplers({name: one for name, one in zip(engines, samplers, strict=True) if one is not None})
    told = {name: one for name, one in zip(engines, trainers, strict=True) if one is not None}
    found += _by_model("trainer", told, _TRAINER_COUNTS, _TRAINER_GAUGES)
    if jobs is not None:
        found.append(_jobs(jobs))
    if mesh is not None:
        found += _mesh(mesh)
    return found


def _futures(gateway: Gateway) -> Iterable[Metric]:
    futures = gateway.futures
    yield GaugeMetricFamily("tinker_actors_futures_pending", "Requests under way.", value=futures.pending)
    yield GaugeMetricFamily("tinker_actors_futures_kept", "Answers kept to be fetched.", value=len(futures))
    yield GaugeMetricFamily("tinker_actors_futures_bytes", "Memory of those answers.", value=futures.bytes)


def _samplers(stats: Mapping[str, SamplerStats]) -> Iterable[Metric]:
    yield from _by_model("sampler", stats, _SAMPLER_COUNTS, _SAMPLER_GAUGES)
    for field, (name, says) in _SPREADS.items():
        family = GaugeMetricFamily(f"tinker_actors_sampler_{name}", says, labels=("model", "quantile"))
        for model, one in stats.items():
            family.add_metric((model, "0.5"), getattr(one, field).p50)
            family.add_metric((model, "0.99"), getattr(one, field).p99)
        yield family


def _by_model(
    part: str, stats: Mapping[str, object], counts: Mapping[str, tuple[str, str]], gauges: Mapping[str, tuple[str, str]]
) -> Iterable[Metric]:
    for kind, table in ((CounterMetricFamily, counts), (GaugeMetricFamily, gauges)):
        for field, (name, says) in table.items():
            family = kind(f"tinker_actors_{part}_{name}", says, labels=("model",))
            for model, one in stats.items():
                family.add_metric((model,), getattr(one, field))
            yield family


def _jobs(counts: Mapping[JobState, int]) -> Metric:
    family = GaugeMetricFamily("tinker_actors_jobs", "Jobs, by where they stand.", labels=("state",))
    for state in JobState:
        family.add_metric((state.value,), counts.get(state, 0))
    return family


def _mesh(mesh: MeshDescription) -> Iterable[Metric]:
    nodes = [
        ("loop_lag", "loop_lag_seconds", "How late an event loop was at most of late."),
        ("rss", "rss_bytes", "Memory."),
    ]
    for field, name, says in nodes:
        family = GaugeMetricFamily(f"tinker_actors_node_{name}", says, labels=("node",))
        for node in mesh.nodes:
            if (value := getattr(node, field)) is not None:
                family.add_metric((str(node.index),), value)
        yield family
    for field, says in (
        ("bad_messages", "Messages that couldn't be read."),
        ("dead_letters", "Tells that got nowhere."),
    ):
        family = CounterMetricFamily(f"tinker_actors_node_{field}", says, labels=("node",))
        for node in mesh.nodes:
            if (value := getattr(node, field)) is not None:
                family.add_metric((str(node.index),), value)
        yield family
    classes: dict[str, list[ActorDescription]] = defaultdict(list)
    for actor in mesh.actors:
        classes[actor.cls].append(actor)
    yield from _actors(classes)


def _actors(classes: Mapping[str, Sequence[ActorDescription]]) -> Iterable[Metric]:
    """By class, since actors come and go and each name would be a series for ever."""
    living = GaugeMetricFamily("tinker_actors_actors", "Actors that live, by class.", labels=("class",))
    mailbox = GaugeMetricFamily("tinker_actors_mailbox_messages", "Messages that wait.", labels=("class",))
    handled = CounterMetricFamily("tinker_actors_messages_handled", "Messages served by those.", labels=("class",))
    restarts = CounterMetricFamily("tinker_actors_actor_restarts", "Starts after the first.", labels=("class",))
    for name, actors in sorted(classes.items()):
        living.add_metric((name,), len(actors))
        mailbox.add_metric((name,), sum(actor.mailbox or 0 for actor in actors))
        handled.add_metric((name,), sum(actor.handled or 0 for actor in actors))
        restarts.add_metric((name,), sum(actor.restarts for actor in actors))
    yield from (living, mailbox, handled, restarts)
