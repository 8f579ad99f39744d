"""Opening and checking the data of a supervised run before anything is trained."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, dataclass

from tinker_actors.data.chat_datasets import check_names, open_rows
from tinker_actors.errors import DataError
from tinker_actors.models import load_base, load_renderer, load_tokenizer
from tinker_actors.scheduler.model_checks import check_length, limit_of
from tinker_actors.scheduler.observer import Phase, RunObserver
from tinker_actors.scheduler.run_folder import RunFolder, write_atomically
from tinker_actors.scheduler.sft_config import SftConfig
from tinker_actors.scheduler.sft_data import ChatData, Skipped
from tinker_actors.scheduler.sft_plan import DataPlan, held_out

_AT_ONCE = 256  # rows between two looks at whether the run was cancelled


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a run learns from and is evaluated on.

    Attributes:
        train: The training data.
        plan: Its division into steps.
        evaluation: What is evaluated on; may be the training data, of which the plan leaves those examples out.
        held: The examples of `evaluation` that are evaluated.
        skipped: Lines of both that are not used.
    """

    train: ChatData
    plan: DataPlan
    evaluation: ChatData
    held: tuple[int, ...]
    skipped: tuple[Skipped, ...]


def check_sft(config: SftConfig) -> None:
    """Whether a run can work, as far as can be told without reading its data or loading weights.

    Raises:
        ConfigError: A file isn't there.
        ModelError: The model can't be resolved, or its chat template can't be used.
    """
    check_names((*config.data.train, *config.data.evaluation))
    load_renderer(load_tokenizer(config.model.name), config.model.chat_template)


async def prepare(config: SftConfig, folder: RunFolder, observer: RunObserver) -> Prepared:
    """Read and check all data; lines that are skipped are listed in the run folder.

    Raises:
        ConfigError: Data can't be opened, or a limit is past the model's.
        DataError: Lines are bad and not to be skipped, or nothing is left to train or to evaluate on; names them.
    """
    data, limit = config.data, await _limit(config)
    train = await _checked(config, data.train, data.split, limit, observer)
    kept, held = held_out(len(train.examples), data.holdout, config.seed)
    evaluation = train
    if data.evaluation:
        evaluation = await _checked(config, data.evaluation, data.evaluation_split, limit, observer)
        held = list(range(len(evaluation.examples)))
    for names, examples, wanted in ((data.train, kept, True), (data.evaluation, held, bool(data.evaluation))):
        if wanted and not examples:
            raise DataError(f"no line of {', '.join(names)} can be used{_why(train, evaluation)}")
    skipped = tuple({id(part): part for part in (train, evaluation)}.values())
    listed = tuple(entry for part in skipped for entry in part.examples.skipped)
    if listed:
        lines = "".join(json.dumps(asdict(entry), ensure_ascii=False) + "\n" for entry in listed)
        write_atomically(folder.skipped, lines)
        first = listed[0]
        observer.note(
            f"{len(listed)} lines are left out, all listed in {folder.skipped.name}; the first is {first.where}: "
            f"{first.reason}"
        )
    plan = DataPlan(
        lengths=train.examples.tokens,
        kept=kept,
        batch=config.batch,
        epochs=config.trainer.epochs,
        seed=config.seed,
        shuffle=data.shuffle,
    )
    return Prepared(train=train, plan=plan, evaluation=evaluation, held=tuple(held), skipped=listed)


async def _limit(config: SftConfig) -> int:
    """Tokens of an example."""
    base = await asyncio.to_thread(load_base, config.model.name)
    limit = limit_of(config.model, base.context_length)
    check_length(config, limit)
    return config.data.max_length or limit


async def _checked(
    config: SftConfig, names: tuple[str, ...], split: str, limit: int, observer: RunObserver
) -> ChatData:
    source = await asyncio.to_thread(open_rows, names, split)
    made = ChatData(source, config.data, config.model, limit)
    observer.phase(Phase.DATA, 0, 0)
    for start in range(0, len(source), _AT_ONCE):
        stop = min(start + _AT_ONCE, len(source))
        await asyncio.to_thread(made.check, start, stop)
        observer.progress(stop, len(source))
    made.refuse_bad_lines()
    return made


def _why(*parts: ChatData) -> str:
    for part in parts:
        for entry in part.examples.skipped:
            return f"; {entry.where}: {entry.reason}"
    return ""
