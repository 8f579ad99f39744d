"""How much sampling a gateway lets in, and how many snapshots its samplers hold."""

from __future__ import annotations

from pydantic import Field, model_validator

from tinker_actors.gateway.crowding import Crowding
from tinker_actors.gateway.pace import Pace
from tinker_actors.scheduler.sections import Section


class PaceOptions(Section):
    """How fast requests for samples are let in."""

    bearable: float = Field(default=0.01, gt=0)
    """Seconds that the serving loop may be late; beyond them fewer are let in."""
    slowest: float = Field(default=50.0, gt=0)
    """Requests a second that are let in however late it is."""
    fastest: float = Field(default=5000.0, gt=0)
    """Requests a second that are let in at most."""
    burst: float = Field(default=16.0, ge=1)
    """Requests that are let in at once."""

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> PaceOptions:
        if self.slowest > self.fastest:
            raise ValueError(f"slowest is {self.slowest:g}; at most fastest, {self.fastest:g}, is needed")
        return self

    def pace(self) -> Pace:
        """What lets them in."""
        return Pace(bearable=self.bearable, slowest=self.slowest, fastest=self.fastest, burst=self.burst)


class SamplingOptions(Section):
    """The sampling section of the service's configuration."""

    snapshots: int = Field(default=64, ge=1)
    """Snapshots that the sampler of each base model holds, unless more are in use."""
    samples: int = Field(default=16_384, ge=1)
    """Samples under way at each sampler."""
    samples_of_tenant: int = Field(default=8_192, ge=1)
    """Those of one tenant among them."""
    prompt_tokens: int = Field(default=8_000_000, ge=1)
    """Prompt tokens that all requests under way may hold together."""
    pace: PaceOptions = PaceOptions()

    @model_validator(mode="after")
    def _refuse_what_cannot_work(self) -> SamplingOptions:
        if self.samples_of_tenant > self.samples:
            raise ValueError(
                f"samples_of_tenant is {self.samples_of_tenant}; at most samples, {self.samples}, is needed"
            )
        return self

    def crowding(self) -> Crowding:
        """What counts them."""
        return Crowding(of_model=self.samples, of_tenant=self.samples_of_tenant, tokens=self.prompt_tokens)
