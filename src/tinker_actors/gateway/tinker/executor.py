"""Runs the commands of all models over one base model on its trainer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from tinker_actors.errors import ActorError, NotInTrainingError
from tinker_actors.gateway.futures import Answer, Futures
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker.commands import Action, Command, CommandLog, Pass
from tinker_actors.training import Trainer
from tinker_actors.training.joint import passed_together, together

logger = logging.getLogger(__name__)


class LiveModel:
    """A model in training, and its commands.

    Attributes:
        model_id: The model, which is also its policy's id.
        tenant: Whose it is.
        session_id: Made in which session.
        log: Its commands.
        running: The command that is being run, if one is.
        lost: Why it can't be trained any longer; None while it can.
        used_at: When it was last asked anything, in seconds since the epoch.
    """

    def __init__(self, model_id: str, *, tenant: str, session_id: str) -> None:
        self.model_id, self.tenant, self.session_id = model_id, tenant, session_id
        self.log = CommandLog()
        self.running: Command | None = None
        self.lost: RefusalError | None = None
        self.used_at = time.time()


class Executor:
    """One base model's trainer and the models on it.

    Commands of one model run one after the other. Of different models, forward and backward passes that are ready at
    the same time run together, and whatever else is ready runs before them: it takes little time, and meanwhile more
    passes come together.

    Args:
        trainer: The trainer.
        futures: Where answers go.
        explain: Given a model's id, the error for its commands after its training state was lost.

    Attributes:
        models: The models in training, by id.
    """

    def __init__(self, trainer: Trainer, futures: Futures, explain: Callable[[str], RefusalError]) -> None:
        self.trainer, self._futures, self._explain = trainer, futures, explain
        self.models: dict[str, LiveModel] = {}
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Tell that commands are ready."""
        self._woken.set()

    async def run(self) -> None:
        """Run commands until cancelled."""
        while True:
            self._woken.clear()
            actions = [(model, work) for model, work in self._heads() if not isinstance(work, Pass)]
            async with asyncio.TaskGroup() as group:
                for model, action in actions:
                    group.create_task(self._act(model, self._begin(model), action))
            heads = [(model, work) for model, work in self._heads() if isinstance(work, Pass)]
            passes = together(heads, lambda head: head[1].tokens)
            await self._pass([(model, self._begin(model), work) for model, work in passes])
            if not actions and not passes:
                await self._woken.wait()

    def lose(self, model: LiveModel) -> None:
        """Tell all commands of a model that its training state is gone."""
        if model.lost is None:
            model.lost = self._explain(model.model_id)
        self.drop(model, model.lost)

    def drop(self, model: LiveModel, why: RefusalError) -> None:
        """Answer the commands of a model that don't run any more; the one that is being run goes on."""
        for command in model.log.clear():
            self._futures.fail(command.future, why)

    def _heads(self) -> list[tuple[LiveModel, Pass | Action]]:
        """The next command of every model that has one, the one that came first first."""
        waiting = [model for model in self.models.values() if model.log.ready and model.running is None]
        waiting.sort(key=lambda model: model.log.ready[0].arrived)
        return [(model, model.log.ready[0].work) for model in waiting]

    @staticmethod
    def _begin(model: LiveModel) -> Command:
        model.running = model.log.ready.popleft()
        return model.running

    async def _act(self, model: LiveModel, command: Command, action: Action) -> None:
        try:
            answer = await action()
        except Exception as error:  # the boundary: every command is answered, and the model's next one runs
            self._failed(model, command, error)
        else:
            self._succeeded(model, command, answer)

    async def _pass(self, members: Sequence[tuple[LiveModel, Command, Pass]]) -> None:
        if not members:
            return
        batches = [(model.model_id, work.datums, work.loss) for model, _, work in members]
        results = await passed_together(self.trainer, batches)
        for (model, command, work), found in zip(members, results, strict=True):
            if isinstance(found, Exception):
                self._failed(model, command, found)
            else:
                await self._act(model, command, partial(work.answer, found))

    def _succeeded(self, model: LiveModel, command: Command, answer: Answer) -> None:
        model.running = None
        self._futures.settle(command.future, answer)

    def _failed(self, model: LiveModel, command: Command, error: Exception) -> None:
        model.running = None
        if isinstance(error, ActorError) and not isinstance(error, TimeoutError):
            logger.error("the trainer of %s is gone", model.model_id, exc_info=error)
            for other in self.models.values():
                self.lose(other)
        elif isinstance(error, NotInTrainingError):
            self.lose(model)  # the trainer was started anew since
        self._futures.fail(command.future, model.lost or error)
