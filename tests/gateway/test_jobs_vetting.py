"""What a submitted configuration may name."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from tinker_actors.gateway.jobs.vetting import FREE, RULES, WORDS, Allowed, vetted
from tinker_actors.gateway.refusals import RefusalError, not_found
from tinker_actors.scheduler import loading

RL: dict[str, Any] = {"environment": {"name": "number_guess"}}
SFT: dict[str, Any] = {"job": "sft"}


async def find(name: str) -> str:
    if name in ("upload:mine", "job:mine"):
        return f"found/{name[-4:]}"
    raise not_found("it", name)


def texts(model: type[BaseModel], where: str = "") -> Iterator[str]:
    """The keys of a configuration that may hold text of any kind."""
    for name, field in model.model_fields.items():
        yield from _texts(field.annotation, f"{where}{name}")


def _texts(kind: Any, key: str) -> Iterator[str]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from texts(kind, f"{key}.")
    elif kind in (str, Any):
        yield key
    elif origin is dict:
        yield from _texts(arguments[1], key if arguments[1] is Any else f"{key}.*")
    elif origin in (tuple, list, typing.Union, types.UnionType, typing.Annotated):
        for argument in arguments[:1] if origin is typing.Annotated else arguments:
            yield from _texts(argument, key)


@pytest.mark.parametrize("model", loading._JOBS.values())  # pyright: ignore[reportPrivateUsage]
def test_every_text_of_a_configuration_is_either_checked_or_a_mere_word(model: type[BaseModel]):
    keys = set(texts(model)) - {"output"}
    assert {"model.name", "name"} <= keys
    # settings of other backends are refused with the backend, and those of trackers with the tracker
    left = {
        key
        for key in keys
        if not key.startswith(("sampler.vllm.", "sampler.tinker.", "tracking.wandb.", "tracking.trackio."))
    }
    assert left - set(RULES) - FREE - WORDS == set()


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"model": {"name": "/etc"}}, "model.name"),
        ({"policy": {"start_store": "/etc"}}, "policy.start_store"),
        ({"policies": {"a": {"start_store": "../x"}}}, "policies.a.start_store"),
        ({"model": {"name": "../x"}}, "model.name"),
        ({"model": {"name": "some/hub"}}, "model.name"),
        ({"model": {"chat_template": "{{ 1 }}"}}, "model.chat_template"),
        ({"environment": {"name": "/tmp/evil.py"}}, "environment.name"),
        ({"environment": {"name": "evil.py"}}, "environment.name"),
        ({"environment": {"name": "./number_guess"}}, "environment.name"),
        ({"environment": {"name": "os:system"}}, "environment.name"),
        ({"algorithm": {"name": "os:system"}}, "algorithm.name"),
        ({"algorithm": {"name": "/tmp/evil.py:f"}}, "algorithm.name"),
        ({"algorithm": {"loss": "os:system"}}, "algorithm.loss"),
        ({"algorithm": {"loss": "./evil.py:f"}}, "algorithm.loss"),
        ({"environment": {"name": "gymnasium:os:x"}}, "environment.name"),
        ({"environment": {"name": "number_guess:x"}}, "environment.name"),
        ({"seats": {"player": {"player": "script", "function": "os:system"}}}, "seats.player.function"),
        ({"seats": {"player": {"player": "script", "function": "_hidden"}}}, "seats.player.function"),
        ({"seats": {"player": {"player": "person"}}}, "seats.player.player"),
        ({"seats": {"player": {"player": "endpoint", "command": ["sh"]}}}, "seats.player.command"),
        ({"seats": {"player": {"player": "endpoint", "harness": "os:system"}}}, "seats.player.harness"),
        ({"seats": {"player": {"player": "snapshot", "store": "/srv/other"}}}, "seats.player.store"),
        ({"evaluation": {"seats": {"s": {"player": "snapshot", "store": "../x"}}}}, "evaluation.seats.s.store"),
        ({"kl": {"reference": "tinker://p/weights/a", "reference_store": "/x"}}, "kl.reference_store"),
        ({"tracking": {"wandb": {}}}, "tracking.wandb"),
        ({"tracking": {"trackio": {"space": "a/b"}}}, "tracking.trackio"),
        ({"sampler": {"backend": "tinker", "tinker": {"serves_store": True}}}, "sampler.backend"),
        ({"sampler": {"backend": "tinker"}, "trainer": {"backend": "tinker"}}, "sampler.backend"),
    ],
)
async def test_what_would_open_a_file_or_run_code_is_refused_by_its_key(config: Mapping[str, Any], key: str):
    with pytest.raises(RefusalError) as caught:
        await vetted(RL | config, Allowed(), find)
    assert caught.value.code == "not_allowed"
    assert f"config.{key} is" in caught.value.detail


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "rows.jsonl", "hub/data", "s3://x/y", "upload:../../x", "upload:other"]
)
async def test_data_is_what_was_uploaded(name: str):
    with pytest.raises(RefusalError):
        await vetted(SFT | {"data": {"train": ["upload:mine", name]}}, Allowed(), find)
    config = await vetted(SFT | {"data": {"train": "upload:mine", "evaluation": ["upload:mine"]}}, Allowed(), find)
    assert config.model_dump()["data"]["train"] == ("found/mine",)


async def test_names_are_resolved_and_output_is_not_used():
    config = await vetted(
        RL
        | {
            "output": "/etc/cron.d",
            "model": {"name": "a/b", "chat_template": "plain"},
            "kl": {"reference": "tinker://p/weights/a", "reference_store": "job:mine"},
        },
        Allowed(models={"a/b": "/srv/models/b"}),
        find,
    )
    plain = config.model_dump()
    assert (plain["output"], plain["model"]["name"]) == (None, "/srv/models/b")
    assert plain["kl"]["reference_store"] == "found/mine"


async def test_what_the_operator_allows_may_be_named_and_nothing_beside_it(tmp_path: Path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "rows.jsonl").write_text("{}")
    (inside / "link").symlink_to(outside)
    allowed = Allowed(paths=(str(inside),), modules=("mine.envs", "gymnasium:CartPole-v1"))

    async def train(path: Path | str) -> Any:
        return (await vetted(SFT | {"data": {"train": str(path)}}, allowed, find)).model_dump()["data"]["train"][0]

    assert await train(inside / "rows.jsonl") == str(inside / "rows.jsonl")
    assert await train(f"{inside}/x/../rows.jsonl") == str(inside / "rows.jsonl")
    for path in (
        outside / "rows.jsonl",
        f"{inside}/../out/rows.jsonl",
        inside / "link" / "rows.jsonl",
        f"{inside}x/rows",
    ):
        with pytest.raises(RefusalError):
            await train(path)
    for name in ("mine.envs:Game", "mine.envs.more:Game", "gymnasium:CartPole-v1", f"{inside}/game.py:Game"):
        await vetted({"environment": {"name": name}}, allowed, find)
    algorithm = {"name": "mine.envs.more:ranks", "loss": f"{inside}/../in/game.py:loss"}
    named = (await vetted(RL | {"algorithm": algorithm}, allowed, find)).model_dump()["algorithm"]
    assert (named["name"], named["loss"]) == ("mine.envs.more:ranks", f"{inside}/game.py:loss")
    for name in ("mine.envs:_hidden", "mine.envs:", f"{inside}/game.py:__import__"):
        with pytest.raises(RefusalError):
            await vetted(RL | {"algorithm": {"name": name}}, allowed, find)
    for name in ("mine:Game", "mine.envs2:Game", "gymnasium:Other-v1", f"{inside}/link/game.py", f"{outside}/game.py"):
        with pytest.raises(RefusalError):
            await vetted({"environment": {"name": name}}, allowed, find)
        with pytest.raises(RefusalError):
            await vetted(RL | {"algorithm": {"loss": f"{name.removesuffix(':Game')}:loss"}}, allowed, find)
