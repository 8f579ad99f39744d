"""The frozen policy that a run's KL penalty refers to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinker_actors.algorithms import mean_kl, penalised
from tinker_actors.data import Datum
from tinker_actors.policies import PolicySpec
from tinker_actors.scheduler.config import KlSection
from tinker_actors.training import LossConfig, Trainer

REFERENCE = "reference"
"""The id of the reference policy in the run's trainer."""

_KEPT = "kept"
_SCORED = LossConfig(name="importance_sampling")


class Reference:
    """Scores datums under the reference policy, which the run's trainer holds beside the one that learns.

    Args:
        trainer: Holds the reference.
        settings: The penalty.
    """

    def __init__(self, trainer: Trainer, settings: KlSection) -> None:
        self._trainer = trainer
        self._settings = settings

    @classmethod
    async def begin(cls, trainer: Trainer, settings: KlSection, policy: str, base_model: str) -> Reference | None:
        """The reference of a run that starts; stored in the run's own store, so that it can be taken up again.

        Args:
            trainer: The run's trainer.
            settings: The penalty; without a coefficient there is no reference.
            policy: The policy that will learn, in its present state the initial one.
            base_model: The run's base model.
        """
        if not settings.coefficient:
            return None
        match settings.reference:
            case "base":  # a new adapter adds nothing until it is trained
                spec = PolicySpec(base_model=base_model, rank=1, name=REFERENCE)
                await trainer.create(spec)
            case "initial":
                handle = await trainer.save(policy, REFERENCE)
                await trainer.load(handle, policy=REFERENCE, optimizer=False)
            case handle:
                await trainer.load(handle, policy=REFERENCE, optimizer=False, store=settings.reference_store)
        await trainer.save(REFERENCE, _KEPT)
        return cls(trainer, settings)

    @classmethod
    async def resume(cls, trainer: Trainer, settings: KlSection) -> Reference | None:
        """The reference that the run had when it was interrupted.

        Raises:
            UnknownPolicyError: It had none.
        """
        if not settings.coefficient:
            return None
        await trainer.load(f"tinker://{REFERENCE}/weights/{_KEPT}", optimizer=False)
        return cls(trainer, settings)

    async def applied(self, datums: Sequence[Datum]) -> tuple[tuple[Datum, ...], float]:
        """The datums with reference log-probs and, with `where = "reward"`, penalised advantages.

        Returns:
            The datums, and the mean KL estimate at their sampled tokens, before any update on them.
        """
        scored = await self._trainer.forward(REFERENCE, datums, _SCORED)
        found = tuple(
            replace(datum, reference_logprobs=row) for datum, row in zip(datums, scored.logprobs, strict=True)
        )
        kl = mean_kl(found, self._settings.estimator)
        if self._settings.where == "reward":
            found = penalised(found, self._settings.coefficient, self._settings.estimator)
        return found, kl
