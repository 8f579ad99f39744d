"""The trainer's synchronous core: many policies over one base model."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tinker_actors.data import Datum
from tinker_actors.errors import ConfigError, DataError, NotInTrainingError, PolicyError
from tinker_actors.models import load_base
from tinker_actors.models.lora import MultiLoraModel
from tinker_actors.policies import Handle, PolicySpec, Snapshot, SnapshotStore
from tinker_actors.policies.handles import check_id
from tinker_actors.policies.handover import hand_over
from tinker_actors.training.batching import Example, check_batch, examples_of, plain_batches
from tinker_actors.training.checkpoint import read_checkpoint, read_spec, write_checkpoint
from tinker_actors.training.contract import AdamParams, ForwardBackwardResult, OptimStepResult, PolicyInfo
from tinker_actors.training.custom_loss import SUPERVISED_PASS, CustomLoss, evaluate, scorable, weighted
from tinker_actors.training.forking import read_snapshot
from tinker_actors.training.loss_config import LossConfig
from tinker_actors.training.packing import Block, chains, packed_blocks
from tinker_actors.training.passes import run_alone, run_joint
from tinker_actors.training.policy import TrainedPolicy
from tinker_actors.training.residency import Residency
from tinker_actors.training.scoring import run_padded
from tinker_actors.training.sharing import can_pack, grow
from tinker_actors.training.spill import Shelf
from tinker_actors.training.work import Work


class TrainingEngine:
    """Creates, trains, publishes, saves and loads policies over one base model; for one thread at a time.

    Policies share nothing but the base's frozen weights: what is done to one leaves every other's weights, moments and
    pending gradients as they are, bit for bit.

    Args:
        base_model: The base model's name in the catalogue.
        store: Folder of the snapshot store.
        dtype: The base's dtype; adapters and fully trained weights are fp32.
        device: Where all weights are, and what computes.
        resident: How many policies may be in memory; the others' state lies on disk until they are used. None for all.
    """

    def __init__(
        self,
        base_model: str,
        store: str | Path,
        dtype: str = "float32",
        device: str = "cpu",
        *,
        resident: Residency | None = None,
    ) -> None:
        self.base_model = base_model
        self.base = load_base(base_model, dtype, device)
        self.store = SnapshotStore(store)
        self._policies = Shelf(resident)
        self._lora = MultiLoraModel(self.base.skeleton()) if can_pack(self.base.config) else None

    def create(self, spec: PolicySpec) -> str:
        """Make a policy and return its id: the spec's name, or one that is drawn.

        Raises:
            ConfigError: The spec is for another base model, or targets modules that this one lacks.
            PolicyError: A policy of this name is in training here.
        """
        self._check_base(spec)
        policy_id = self._free(spec.name)
        return self._take(TrainedPolicy(policy_id, spec, self.base))

    def delete(self, policy_id: str) -> None:
        """End a policy's training and free its state; its snapshots and checkpoints stay in the store.

        Raises:
            NotInTrainingError: No policy of this id is in training here.
        """
        self._found(policy_id)
        del self._policies[policy_id]

    @property
    def size(self) -> int:
        """How many policies are in training."""
        return len(self._policies.held())

    def policies(self) -> tuple[PolicyInfo, ...]:
        """All policies in training, in order of creation."""
        resident = self._policies.resident()
        return tuple(replace(policy.info(), resident=policy.policy_id in resident) for policy in self._policies.held())

    def forward_backward(
        self,
        policy_id: str,
        datums: Sequence[Datum],
        loss: LossConfig,
        *,
        every_target: bool = False,
        proceed: Callable[[], None] = lambda: None,
    ) -> ForwardBackwardResult:
        """Add the gradient of the loss, summed over trained tokens, to the policy's pending gradients.

        Args:
            policy_id: The policy.
            datums: The batch. One without a trained token is fine and adds nothing.
            loss: The loss.
            every_target: Give log-probs of all targets rather than the trained ones; loss and metrics don't change.
            proceed: Called between micro-batches; if it raises, the pending gradients are as before the call.

        Raises:
            NotInTrainingError: No policy of this id is in training here.
            DataError: A datum doesn't suit the loss or the model; nothing was computed.
            PolicyError: The loss has a value loss and the policy no value head.
        """
        return self.forward_backward_many([(policy_id, datums, loss)], every_target=every_target, proceed=proceed)[0]

    def forward_backward_many(
        self,
        batches: Sequence[tuple[str, Sequence[Datum], LossConfig]],
        *,
        every_target: bool = False,
        proceed: Callable[[], None] = lambda: None,
    ) -> tuple[ForwardBackwardResult, ...]:
        """As `forward_backward` for several policies, in passes over the base that they share.

        A policy's result and gradients are what its batch alone gives: bit for bit where the base's matrix products
        compute a row alike whatever the other rows are, else up to rounding; the page on training says where that is.
        Policies that train all weights, or adapt more than linear layers, take passes of their own.

        Args:
            batches: For each policy, once, its id, datums and loss.
            every_target: As of `forward_backward`.
            proceed: Called between passes; if it raises, the pending gradients of all are as before the call.

        Returns:
            A result for each, in the order given.

        Raises:
            NotInTrainingError: A policy isn't in training here.
            PolicyError: A policy stands twice, or has no value head for its loss's value loss.
            DataError: A datum doesn't suit its loss or the model; nothing was computed for anyone.
        """
        ids = [policy_id for policy_id, _, _ in batches]
        if twice := {policy_id for policy_id in ids if ids.count(policy_id) > 1}:
            raise PolicyError(f"{sorted(twice)} stand more than once; a policy has one batch in a joint pass")
        self._policies.use(ids)
        works = [self._work(*batch) for batch in batches]
        with contextlib.ExitStack() as stack:
            for work in works:
                stack.enter_context(work.policy.accumulating())
            return tuple(self._compute(works, backward=True, every_target=every_target, proceed=proceed))

    def forward(
        self, policy_id: str, datums: Sequence[Datum], loss: LossConfig, *, every_target: bool = False
    ) -> ForwardBackwardResult:
        """As `forward_backward`, without gradients.

        Args:
            policy_id: The policy.
            datums: The batch.
            loss: The loss.
            every_target: Give log-probs of all targets rather than the trained ones; loss and metrics don't change.
        """
        self._policies.use([policy_id])
        works = [self._work(policy_id, datums, loss)]
        return self._compute(works, backward=False, every_target=every_target)[0]

    def backward(
        self,
        policy_id: str,
        datums: Sequence[Datum],
        gradients: Sequence[Sequence[float]],
        passes: LossConfig = SUPERVISED_PASS,
        *,
        proceed: Callable[[], None] = lambda: None,
    ) -> None:
        """Add the gradient of a loss to the pending ones, given its gradient by each log-prob of the datums' targets.

        Args:
            policy_id: The policy.
            datums: The batch; of its rows only model input, targets and temperature matter.
            gradients: A row per datum, as `ForwardBackwardResult.logprobs`.
            passes: A `cross_entropy` that says how the batch is computed.
            proceed: As of `forward_backward`.

        Raises:
            NotInTrainingError: No policy of this id is in training here.
            DataError: The gradients don't match the datums, or a datum doesn't suit the model.
        """
        if len(gradients) != len(datums):
            raise DataError(f"{len(gradients)} rows of gradients for {len(datums)} datums; one each is needed")
        unsampled = self._unsampled()
        rows = [
            weighted(datum, [-value for value in row], without=unsampled)
            for datum, row in zip(datums, gradients, strict=True)
        ]
        self.forward_backward(policy_id, rows, passes, proceed=proceed)

    def forward_backward_custom(
        self, policy_id: str, datums: Sequence[Datum], function: CustomLoss, passes: LossConfig = SUPERVISED_PASS
    ) -> ForwardBackwardResult:
        """Add the gradient of a loss of one's own; see `custom.forward_backward_custom`, of which this is the core."""
        scored = self.forward(policy_id, scorable(datums), passes, every_target=True)
        found, gradients = evaluate(function, datums, scored)
        self.backward(policy_id, datums, gradients, passes)
        return found

    def optim_step(self, policy_id: str, params: AdamParams) -> OptimStepResult:
        """Apply a policy's pending gradients with the optimizer that the settings are for, and drop them.

        Raises:
            NotInTrainingError: No policy of this id is in training here.
            PolicyError: It has no pending gradients; or its moments are another optimizer's; or the gradients aren't
                finite: then they are dropped, and weights, moments and step are unchanged.
        """
        return self._policy(policy_id).optim_step(params)

    def publish(self, policy_id: str, *, ttl: float | None = None, handle: str | None = None) -> Snapshot:
        """Store a policy's present weights as a snapshot, for samplers; `ttl` and `handle` as of the store's `publish`.

        Raises:
            NotInTrainingError: No policy of this id is in training here.
        """
        policy = self._policy(policy_id)
        snapshot = self.store.publish(policy_id, policy.write_snapshot, policy.origin(), ttl=ttl, handle=handle)
        if lent := policy.lend():
            hand_over(snapshot, lent)
        policy.parent = policy.snapshot = snapshot.handle
        return snapshot

    def save(self, policy_id: str, name: str) -> str:
        """Store a policy's whole training state under a name and return its handle.

        Raises:
            NotInTrainingError: No policy of this id is in training here.
            PolicyError: The name is taken or not valid.
        """
        policy = self._policy(policy_id)
        write = partial(write_checkpoint, policy)
        return self.store.checkpoint(policy_id, name, write, policy.origin()).handle

    def load(
        self,
        handle: str,
        *,
        policy: str | None = None,
        optimizer: bool = True,
        store: str | Path | None = None,
        replacing: bool = False,
    ) -> str:
        """Restore a checkpoint and return the policy's id.

        Args:
            handle: What `save` returned.
            policy: The id of a new policy that starts from the checkpoint; None for the policy that was saved, whose
                present state, if it is in training here, is replaced once the checkpoint was read.
            optimizer: Restore moments, step, pending gradients and random numbers too; without them training starts
                cold from the saved weights.
            store: Folder of another store to read it from; None for the engine's own.
            replacing: Whether a policy of the new id that is in training here is replaced so, too.

        Raises:
            UnknownPolicyError: There is no such checkpoint.
            SnapshotCorruptError: A file of it is torn or altered; nothing was changed.
            ConfigError: It is of another base model.
            PolicyError: The handle isn't one of a checkpoint, or a policy of the new id is in training here.
        """
        parsed = Handle.parse(handle, kind="weights")
        policy_id = parsed.policy_id if policy is None else check_id("policy id", policy)
        if policy is not None and not replacing:
            self._free(policy_id)
        source = self.store if store is None else SnapshotStore(store)
        snapshot = source.get(handle)
        folder = source.fetch(snapshot)
        # the store knows where a base model is that was moved with it
        spec = replace(read_spec(folder), base_model=snapshot.base_model)
        self._check_base(spec)
        restored = read_checkpoint(folder, policy_id, spec, self.base, optimizer=optimizer)
        restored.parent = handle
        return self._take(restored)

    def fork(self, handle: str, *, policy: str | None = None, store: str | Path | None = None) -> str:
        """Make a new policy that starts cold from the weights of a snapshot or checkpoint, and return its id.

        Args:
            handle: What it starts from.
            policy: The new policy's id; None for one that is drawn.
            store: The store to read it from; None for the engine's own.

        Raises:
            UnknownPolicyError: There is no such snapshot or checkpoint.
            SnapshotCorruptError: A file of it is torn or altered.
            ConfigError: It is of another base model.
            PolicyError: A policy of the new id is in training here.
        """
        policy_id = self._free(policy)
        if Handle.parse(handle).kind == "weights":
            return self.load(handle, policy=policy_id, optimizer=False, store=store)
        source = self.store if store is None else SnapshotStore(store)
        manifest = source.manifest(handle)
        self._check_base(PolicySpec(base_model=manifest.base_model))
        folder = source.fetch(source.get(handle))
        forked = read_snapshot(folder, manifest, policy_id, self.base)
        forked.parent = handle
        return self._take(forked)

    def export_base(self, policy_id: str, path: str | Path) -> str:
        """Write a policy's weights, merged into the base's, as a transformers directory with tokenizer: a new base.

        Returns:
            The directory's absolute path.

        Raises:
            NotInTrainingError: No policy of this id is in training here.
            ModelError: `path` exists.
        """
        target = Path(path).resolve()
        self._policy(policy_id).export(target)
        return str(target)

    def close(self) -> None:
        """Forget all policies and free what they hold in memory and on disk; the store stays."""
        self._policies.close()

    def _free(self, name: str | None) -> str:
        """The id of a new policy: its name, or one that is drawn."""
        policy_id = name or f"policy-{secrets.token_hex(6)}"
        if policy_id in self._policies:
            raise PolicyError(f"policy {policy_id!r} is in training here already; choose another name or delete it")
        return policy_id

    def _take(self, policy: TrainedPolicy) -> str:
        """Train a policy from now on, in place of one of its id; others go to disk as far as the limits demand it."""
        self._policies.add(policy)
        return policy.policy_id

    def _policy(self, policy_id: str) -> TrainedPolicy:
        """A policy, in memory, and others on disk as far as the limits demand it."""
        self._policies.use([policy_id])
        return self._found(policy_id)

    def _found(self, policy_id: str) -> TrainedPolicy:
        if policy_id not in self._policies:
            raise NotInTrainingError(f"policy {policy_id!r} is not in training here; {sorted(self._policies)} are")
        return self._policies[policy_id]

    def _check_base(self, spec: PolicySpec) -> None:
        if spec.base_model not in (self.base_model, self.base.name):
            raise ConfigError(f"base_model is {spec.base_model!r}; this trainer trains policies of {self.base_model!r}")

    def _unsampled(self) -> tuple[int, ...]:
        """Tokens that have no log-prob, because no policy of the model ever samples them."""
        return () if self.base.vision is None else self.base.vision.rule.unsampled

    def _work(self, policy_id: str, datums: Sequence[Datum], loss: LossConfig) -> Work:
        policy = self._found(policy_id)
        base = self.base
        if loss.value_coefficient and policy.value_head is None:
            raise PolicyError(
                f"policy {policy_id!r} has no value head, but value_coefficient is {loss.value_coefficient}; create it "
                "with value_head=True"
            )
        check_batch(datums, loss, vocabulary=base.vocab_size, context_length=base.context_length, vision=base.vision)
        return Work(policy=policy, datums=datums, loss=loss)

    def _compute(
        self,
        works: Sequence[Work],
        *,
        backward: bool,
        every_target: bool = False,
        proceed: Callable[[], None] = lambda: None,
    ) -> list[ForwardBackwardResult]:
        """The results of the works in their order: those that can share passes together, the others one by one."""
        results: dict[int, ForwardBackwardResult] = {}
        together: list[int] = []
        blocks: list[list[Block]] = []
        unsampled = self._unsampled()
        for index, work in enumerate(works):
            examples = examples_of(work.datums, every_target=every_target, unsampled=unsampled)
            if self._lora is None:
                batches = plain_batches(examples, work.loss.micro_batch_tokens)
                results[index] = run_padded(work, batches, backward=backward, proceed=proceed)
            elif work.policy.adapter is None:
                results[index] = run_alone(work, self._pack(examples, work.loss), backward=backward, proceed=proceed)
            else:
                together.append(index)
                blocks.append(self._pack(examples, work.loss))
        if self._lora is not None and together:
            chosen = [works[index] for index in together]
            found = run_joint(self._lora, chosen, blocks, backward=backward, proceed=proceed)
            results |= dict(zip(together, found, strict=True))
        return [results[index] for index in range(len(works))]

    def _pack(self, examples: Sequence[Example], loss: LossConfig) -> list[Block]:
        budget = loss.micro_batch_tokens
        trees = grow(examples, budget, int(self.base.config.hidden_size)) if loss.share_prompts else chains(examples)
        return packed_blocks(trees, budget)
