"""Losses of one's own against a trainer actor, in this process or another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinker_actors.data import Datum
from tinker_actors.training.contract import ForwardBackwardResult, LossConfig
from tinker_actors.training.custom_loss import SUPERVISED_PASS, CustomLoss, evaluate, scorable

if TYPE_CHECKING:
    from tinker_actors.training.trainer import Trainer


async def forward_backward_custom(
    trainer: Trainer,
    policy: str,
    datums: Sequence[Datum],
    function: CustomLoss,
    *,
    passes: LossConfig = SUPERVISED_PASS,
) -> ForwardBackwardResult:
    """Add the gradient of a loss of one's own to a policy's pending gradients, wherever the trainer is.

    >>> def brevity(datums, logprobs):
    ...     loss = sum(row.sum() for row in logprobs) / len(logprobs)
    ...     return loss, {"mean": loss.item()}

    Between the two messages that this sends, the policy should not be stepped by others.

    Args:
        trainer: The trainer's ref, or the trainer.
        policy: The policy.
        datums: The batch, supervised or RL; masks and weights mean only what the callable makes of them.
        function: The loss.
        passes: Its `micro_batch_tokens` and `share_prompts` are used; a `cross_entropy`.

    Returns:
        The callable's loss and metrics, and the log-probs of all targets; those of images are 0 and pass no gradient.

    Raises:
        AlgorithmError: The callable's loss is no number, isn't finite, or doesn't depend on the log-probs; or a
            gradient isn't finite.
        UnknownPolicyError, DataError: As of `Trainer.forward_backward`.
    """
    scored = await trainer.forward(policy, scorable(datums), passes, every_target=True)
    found, gradients = evaluate(function, datums, scored)
    await trainer.backward(policy, datums, gradients, passes)
    return found
