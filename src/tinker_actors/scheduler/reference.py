"""The frozen policy that a run's KL penalty refers to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinker_actors.algorithms import mean_kl, penalised
from tinker_actors.data import Datum
from tinker_actors.errors import ConfigError, UnknownPolicyError
from tinker_actors.policies import PolicySpec
from tinker_actors.scheduler.config import KlSection
from tinker_actors.training import LossConfig, TrainsPolicies

REFERENCE = "reference"
"""The id of the reference policy in the run's trainer; that of one policy's own begins with its id and a dot."""

_KEPT = "kept"
_SCORED = LossConfig(name="importance_sampling")


class Reference:
    """Scores datums under the reference policy, which the run's trainer holds beside those that learn.

    Args:
        trainer: Holds the reference.
        settings: The penalty.
        name: The reference's id.
    """

    def __init__(self, trainer: TrainsPolicies, settings: KlSection, name: str) -> None:
        self._trainer = trainer
        self._settings = settings
        self._name = name

    @classmethod
    async def begin(
        cls, trainer: TrainsPolicies, settings: KlSection, policies: Sequence[str], base_model: str
    ) -> dict[str, Reference]:
        """The references of a run that starts; stored in the run's own store, so that it can be taken up again.

        Args:
            trainer: The run's trainer.
            settings: The penalty; without a coefficient there is no reference.
            policies: The policies that will learn, in their present state the initial one.
            base_model: The run's base model.

        Returns:
            For each policy what it is pulled towards.

        Raises:
            ConfigError: The store holds no such checkpoint.
        """
        names = _names(settings, policies)
        for name, policy in {name: policy for policy, name in names.items()}.items():
            match settings.reference:
                case "base":  # a new adapter adds nothing until it is trained
                    spec = PolicySpec(base_model=base_model, rank=1, name=name)
                    await trainer.create(spec)
                case "initial":
                    handle = await trainer.save(policy, REFERENCE)
                    await trainer.load(handle, policy=name, optimizer=False)
                case handle:
                    try:
                        await trainer.load(handle, policy=name, optimizer=False, store=settings.reference_store)
                    except UnknownPolicyError as error:
                        where = "" if settings.reference_store else "; kl.reference_store says which store has it"
                        raise ConfigError(f"kl.reference can't be used: {error}{where}") from error
            await trainer.save(name, _KEPT)
        return {policy: cls(trainer, settings, name) for policy, name in names.items()}

    @classmethod
    async def resume(
        cls, trainer: TrainsPolicies, settings: KlSection, policies: Sequence[str]
    ) -> dict[str, Reference]:
        """The references that the run had when it was interrupted.

        Raises:
            UnknownPolicyError: It had none.
        """
        names = _names(settings, policies)
        for name in dict.fromkeys(names.values()):
            await trainer.load(f"tinker://{name}/weights/{_KEPT}", optimizer=False)
        return {policy: cls(trainer, settings, name) for policy, name in names.items()}

    async def applied(self, datums: Sequence[Datum]) -> tuple[tuple[Datum, ...], float]:
        """The datums with reference log-probs and, with `where = "reward"`, penalised advantages.

        Returns:
            The datums, and the mean KL estimate at their sampled tokens, before any update on them.
        """
        scored = await self._trainer.forward(self._name, datums, _SCORED)
        found = tuple(
            replace(datum, reference_logprobs=row) for datum, row in zip(datums, scored.logprobs, strict=True)
        )
        kl = mean_kl(found, self._settings.estimator)
        if self._settings.where == "reward":
            found = penalised(found, self._settings.coefficient, self._settings.estimator)
        return found, kl


def _names(settings: KlSection, policies: Sequence[str]) -> dict[str, str]:
    """The id of each policy's reference: one for all, unless each is pulled towards its own beginning."""
    if not settings.coefficient:
        return {}
    shared = settings.reference != "initial" or len(policies) == 1
    return {policy: REFERENCE if shared else f"{policy}.{REFERENCE}" for policy in policies}
