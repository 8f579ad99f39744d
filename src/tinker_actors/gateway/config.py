"""What `tinker-actors serve` serves and what it allows: plain, checked data, as in `serve.toml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from tinker_actors.environments.tools.formats import tool_format
from tinker_actors.errors import ConfigError
from tinker_actors.gateway import DEFAULT_ROOT
from tinker_actors.gateway.limits import Limits
from tinker_actors.gateway.runtime import ServedModel
from tinker_actors.gateway.sampling_options import SamplingOptions
from tinker_actors.gateway.tinker.options import TinkerOptions
from tinker_actors.models.templates import ChatTemplate
from tinker_actors.scheduler.demand import machine
from tinker_actors.scheduler.devices import DeviceName
from tinker_actors.scheduler.loading import read_toml, validated
from tinker_actors.scheduler.queue import Quota, Rules
from tinker_actors.scheduler.resources import Resources
from tinker_actors.scheduler.sections import Section
from tinker_actors.scheduler.verdict import RetryPolicy

PORT = 8400


class TrainerTable(Section):
    """The trainer of a base model."""

    threads: int | None = Field(default=None, ge=1)
    """Of torch; 1 for small models, else torch's own setting, if not given."""


class SamplerTable(Section):
    """The sampler of a base model; what is not given is the sampler's own default."""

    max_batch: int | None = Field(default=None, ge=1)
    max_step_tokens: int | None = Field(default=None, ge=1)
    max_waiting: int | None = Field(default=None, ge=1)
    context_length: int | None = Field(default=None, ge=1)
    kv_memory: int | None = Field(default=None, ge=1)
    """Bytes."""
    prefix_caching: bool | None = None
    max_adapters: int | None = Field(default=None, ge=1)
    adapter_memory: int | None = Field(default=None, ge=0)
    """Bytes."""
    threads: int | None = Field(default=None, ge=1)


class ModelTable(Section):
    """A base model, under the name by which clients ask for it."""

    base: str = ""
    """A catalogue name, a local model directory or a hub id; the table's own name if not given."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: DeviceName = "cpu"
    """Where the weights are, and what trains and samples: `cpu`, `cuda` or a GPU by its number, `cuda:1`."""
    chat_template: str = ""
    """A name (`chatml`, `plain`, `renderers:FAMILY`) or Jinja source; the tokenizer's own if not given."""
    tool_format: str = ""
    """How the model writes calls of tools: `hermes`, `json` or a form of plain text; its template tells if empty."""
    trainer: TrainerTable = TrainerTable()
    sampler: SamplerTable = SamplerTable()

    @field_validator("chat_template")
    @classmethod
    def _compiles(cls, value: str) -> str:
        ChatTemplate(value, variables={})
        return value

    @field_validator("tool_format")
    @classmethod
    def _is_a_form(cls, value: str) -> str:
        if value:
            tool_format(value)
        return value

    def served(self, name: str) -> ServedModel:
        """What the runtime starts."""
        return ServedModel(
            name=name,
            base_model=self.base,
            dtype=self.dtype,
            device=self.device,
            chat_template=self.chat_template,
            tool_format=self.tool_format,
            trainer=self.trainer.model_dump(exclude_none=True),
            sampler=self.sampler.model_dump(exclude_none=True),
        )


class CapacityTable(Section):
    """All that jobs may hold together."""

    devices: int = Field(default=0, ge=0)
    memory: int | None = Field(default=None, ge=1)
    """Bytes; all of the host's if not given."""
    adapter_slots: int = Field(default=64, ge=1)
    cpu_workers: int | None = Field(default=None, ge=1)
    """Four for each processor if not given."""

    def resources(self) -> Resources:
        """As the scheduler takes it."""
        found = machine(devices=self.devices, adapter_slots=self.adapter_slots, cpu_workers=self.cpu_workers)
        return Resources(
            devices=found.devices,
            memory=self.memory or found.memory,
            adapter_slots=found.adapter_slots,
            cpu_workers=found.cpu_workers,
        )


class QuotaTable(Section):
    """What the jobs of a tenant may hold at a time; no bound where nothing is given."""

    devices: int | None = Field(default=None, ge=0)
    memory: int | None = Field(default=None, ge=0)
    adapter_slots: int | None = Field(default=None, ge=0)
    cpu_workers: int | None = Field(default=None, ge=0)
    jobs: int | None = Field(default=None, ge=1)
    weight: float = Field(default=1.0, gt=0)
    """Its part of the machine, relative to others'."""
    priority: int = 0
    """The highest that its jobs may have; bounds nobody on a gateway without keys."""

    def quota(self, capacity: Resources) -> Quota:
        """As the scheduler takes it."""
        names = ("devices", "memory", "adapter_slots", "cpu_workers")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        most = Resources(**{**{name: getattr(capacity, name) for name in names}, **given}) if given else None
        return Quota(most=most, jobs=self.jobs, weight=self.weight)


class RulesTable(Section):
    """How the queue of jobs is served."""

    default: QuotaTable = QuotaTable()
    """Of tenants that have no table in `quotas`."""
    quotas: dict[str, QuotaTable] = Field(default_factory=dict)
    ageing: int = Field(default=16, ge=1)
    preempt: bool = True

    def rules(self, capacity: Resources) -> Rules:
        """As the scheduler takes them."""
        return Rules(
            quotas={tenant: table.quota(capacity) for tenant, table in self.quotas.items()},
            default=self.default.quota(capacity),
            ageing=self.ageing,
            preempt=self.preempt,
        )


class JobsTable(Section):
    """How jobs are run, and what a submitted configuration may name."""

    retries: int = Field(default=2, ge=0)
    backoff: float = Field(default=1.0, ge=0)
    grace: float = Field(default=10.0, gt=0)
    """Seconds that a job's process has to end when it is told to."""
    save_grace: float = Field(default=120.0, gt=0)
    """Seconds that it has before, to save its present step."""
    allowed_paths: tuple[str, ...] = ()
    """Folders below which a configuration may name models, data, stores and environments; none if not given."""
    allowed_modules: tuple[str, ...] = ()
    """Modules, with those below them, whose environments and functions a configuration may name; and environments of
    libraries, such as `gymnasium:FrozenLake-v1`."""
    upload_bytes: int = Field(default=2**26, ge=1)
    """Most bytes of the rows that a client uploads at once; `limits.large_body_bytes` bounds them too."""
    upload_bytes_of_tenant: int = Field(default=2**32, ge=1)
    """Most bytes of all that a tenant has uploaded."""
    uploads_of_tenant: int = Field(default=4096, ge=1)
    """Most uploads that a tenant has."""
    unfinished_of_tenant: int = Field(default=500, ge=1)
    """Most jobs of a tenant that aren't over: each is looked at whenever another one may start."""
    kept_of_tenant: int = Field(default=10_000, ge=1)
    """Most jobs that a tenant has, over or not."""
    keep_days: float | None = Field(default=None, gt=0)
    """Days after its end on which a job is deleted; its checkpoints stay. For ever if not given."""
    keep_upload_days: float | None = Field(default=None, gt=0)
    """The same of rows, after they were uploaded or last named by a submission."""

    @field_validator("allowed_paths")
    @classmethod
    def _absolute(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(Path(path).expanduser().absolute()) for path in value)

    def retry(self) -> RetryPolicy:
        """As the scheduler takes it."""
        return RetryPolicy(retries=self.retries, backoff=self.backoff)


class ServeConfig(Section):
    """A gateway."""

    root: str = DEFAULT_ROOT
    """Folder of all that the service keeps."""
    host: str = "127.0.0.1"
    port: int = Field(default=PORT, ge=0, le=65535)
    """0 takes any that is free."""
    in_process: bool = False
    """Run the base models in the process that serves, rather than in one for each."""
    models: dict[str, ModelTable] = Field(default_factory=dict)
    """By the names that clients call them by."""
    capacity: CapacityTable = CapacityTable()
    rules: RulesTable = RulesTable()
    jobs: JobsTable = JobsTable()
    limits: Limits = Limits()
    """How much one request, one tenant and one address may ask for."""
    sampling: SamplingOptions = SamplingOptions()
    """How much sampling is let in, and how many snapshots are held."""
    tinker: TinkerOptions = TinkerOptions()
    """What is chosen of the Tinker API."""
    log_json: bool = False
    """Write the log as JSON lines."""

    def served(self) -> list[ServedModel]:
        """The base models as the runtime takes them."""
        return [table.served(name) for name, table in self.models.items()]


def load_serve_config(
    path: Path | None = None, *, models: Sequence[str] = (), settings: Mapping[str, Any] | None = None
) -> ServeConfig:
    """A gateway's configuration.

    Args:
        path: A TOML file, or None for defaults alone.
        models: `NAME` or `NAME=BASE`, besides those of the file.
        settings: Keys that win over the file's.

    Raises:
        ConfigError: One line that names the key, the value seen and what would be right.
    """
    data = read_toml(path) if path is not None else {}
    source = str(path) if path is not None else "the command line"
    data.update(settings or {})
    for text in models:
        name, separator, base = text.partition("=")
        if not name or (separator and not base):
            raise ConfigError(f"--model is {text!r}; NAME or NAME=BASE is needed")
        tables = data.setdefault("models", {})
        if isinstance(tables, dict):
            tables[name] = {**tables.get(name, {}), **({"base": base} if base else {})}
    return validated(ServeConfig, data, source=source)
