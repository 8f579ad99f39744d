"""Settings of each backend, as they stand in a run's configuration. Plain data; loads no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from tinker_actors.errors import ConfigError

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM's `--max-lora-rank` may be."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FORBID: Mapping[str, Any] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSettings:
    """The sampler of this package, in the run's process; see `Sampler`.

    Attributes:
        max_batch: Samples that run at once at most.
        max_step_tokens: Tokens of one step at most.
        kv_memory: Bytes for keys and values.
        prefix_caching: Whether finished sequences stay for prompts that go on from them.
        max_adapters: Adapters among the base's layers at once; None for all that are served.
        adapter_memory: Bytes of host memory for copies of adapters, where `max_adapters` bounds them.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _FORBID

    max_batch: int = 256
    max_step_tokens: int = 512
    kv_memory: int = 2**30
    prefix_caching: bool = True
    max_adapters: int | None = None
    adapter_memory: int = 2**30

    def __post_init__(self) -> None:
        _positive(self, "max_batch", "max_step_tokens", "kv_memory", "max_adapters")
        if self.adapter_memory < 0:
            raise ConfigError(f"adapter_memory is {self.adapter_memory}; an integer >= 0 is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """A vLLM server with LoRA adapters that are loaded while it runs: one that is started, or one that is there.

    Attributes:
        python: Interpreter of an environment that has vLLM; the server is started with it and ends with the sampler.
        url: Address of a server that is there, instead of `python`.
        served_model: What a server that is there calls the base model; its first one if empty.
        api_key_variable: Environment variable with the key that a server that is there wants; none if empty.
        folder: Where adapters are put for the server to read, and the log of one that is started; a temporary one,
            which goes with the sampler, if empty.
        server_folder: What a server that is there calls `folder`, if it sees it elsewhere.
        dtype: The base weights'.
        max_loras: Adapters in one batch at most.
        max_lora_rank: The highest rank that is served; every adapter costs as much as one of this rank. In a run it is
            the lowest that the policy fits if not given, else 16.
        target_modules: Layers that may be adapted, by the last part of their names.
        max_batch: Samples that run at once at most.
        kv_gigabytes: Memory for keys and values on a CPU, in GiB.
        prefix_caching: Whether computed prompts stay for those that go on from them.
        max_logprobs: The most likely tokens that a request may ask for with each of its own.
        threads: CPU threads of a server that is started; vLLM's own choice if not given.
        max_waiting: Samples under way or waiting; a request beyond them is refused with `Overloaded`.
        start_timeout: Seconds until a server must be ready.
        max_restarts: How often in ten minutes a server that died is started again, or waited for.
        arguments: Further command-line arguments of a server that is started.
        environment: Further environment variables of it.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _FORBID

    python: str = ""
    url: str = ""
    served_model: str = ""
    api_key_variable: str = ""
    folder: str = ""
    server_folder: str = ""
    dtype: str = "float32"
    max_loras: int = 8
    max_lora_rank: int | None = None
    target_modules: tuple[str, ...] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    max_batch: int = 256
    kv_gigabytes: int = 1
    prefix_caching: bool = True
    max_logprobs: int = 20
    threads: int | None = None
    max_waiting: int = 65_536
    start_timeout: float = 300.0
    max_restarts: int = 3
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        _positive(self, "max_loras", "max_batch", "kv_gigabytes", "threads", "max_waiting", "start_timeout")
        if self.max_lora_rank is not None and self.max_lora_rank not in VLLM_RANKS:
            needed = ", ".join(map(str, VLLM_RANKS))
            raise ConfigError(f"max_lora_rank is {self.max_lora_rank}; one of {needed} is needed")
        if not 0 <= self.max_logprobs <= 1000:
            raise ConfigError(f"max_logprobs is {self.max_logprobs}; an integer from 0 to 1000 is needed")
        if self.max_restarts < 0:
            raise ConfigError(f"max_restarts is {self.max_restarts}; an integer >= 0 is needed")
        if not self.target_modules:
            raise ConfigError("target_modules is empty; the names of the layers that adapters may have are needed")
        if self.url:
            self._check_attached()
        elif others := [name for name in ("served_model", "api_key_variable", "server_folder") if getattr(self, name)]:
            raise ConfigError(f"{others[0]} is {getattr(self, others[0])!r}, which goes with url, and url is empty")

    def check_complete(self) -> None:
        """Refuse settings that name no server.

        Raises:
            ConfigError: Neither `python` nor `url` is given.
        """
        if not self.python and not self.url:
            raise ConfigError(
                "python and url are empty; the interpreter of an environment with vLLM is needed, or a server's address"
            )

    def rank(self) -> int:
        """The highest rank that is served."""
        return self.max_lora_rank or 16

    def _check_attached(self) -> None:
        if self.python:
            raise ConfigError(f"python is {self.python!r} and url {self.url!r}; one or the other is needed")
        host = _check_url(self.url)
        own = ("arguments", "environment", "threads")
        if given := [name for name in own if getattr(self, name)]:
            raise ConfigError(
                f"{given[0]} is {getattr(self, given[0])!r}, but a server at url {self.url!r} runs already"
            )
        if host not in _LOOPBACK and not self.folder:
            raise ConfigError(
                f"folder is empty and url is {self.url!r}; the server reads adapters from disk, so that a folder which "
                "this host and the server's share is needed"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """Which Tinker service, for the official client.

    Attributes:
        url: The service's address; the client's own default, `TINKER_BASE_URL` or the hosted service, if empty.
        api_key_variable: Environment variable with the key.
        base_model: What the service calls the base model; the run's own name for it if empty.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _FORBID

    url: str = ""
    api_key_variable: str = "TINKER_API_KEY"
    base_model: str = ""

    def __post_init__(self) -> None:
        if self.url:
            _check_url(self.url)
        if not self.api_key_variable:
            raise ConfigError("api_key_variable is empty; the name of an environment variable is needed")

    def api_key(self) -> str:
        """The key.

        Raises:
            ConfigError: The variable is not set.
        """
        return key_of(self.api_key_variable)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerSettings(ServiceSettings):
    """Sampling by a remote Tinker service.

    Attributes:
        serves_store: Whether the service reads the snapshot store that the run publishes to, so that it knows the
            run's handles.
        context_length: Longest prompt and reply together, in tokens; if not given, the service refuses what is longer.
        max_waiting: Samples under way or waiting; a request beyond them is refused with `Overloaded`.
    """

    serves_store: bool = False
    context_length: int | None = None
    max_waiting: int = 65_536

    def __post_init__(self) -> None:
        ServiceSettings.__post_init__(self)
        _positive(self, "context_length", "max_waiting")

    def at(self, place: ServiceSettings) -> TinkerSettings:
        """The same at the service of other settings."""
        return replace(self, **{each.name: getattr(place, each.name) for each in fields(ServiceSettings)})


def key_of(variable: str) -> str:
    """What an environment variable holds.

    Raises:
        ConfigError: It is not set.
    """
    if not (value := os.environ.get(variable)):
        raise ConfigError(f"api_key_variable is {variable!r}, which is not set in the environment")
    return value


def _positive(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value <= 0:
            raise ConfigError(f"{name} is {value}; a positive number is needed")


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"url is {url!r}; http://HOST:PORT or https://HOST is needed")
    return parts.hostname
