"""`tinker-actors rollouts`: what is chosen, what is shown of each token, and the pager in a terminal."""

from __future__ import annotations

import base64
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from recorded import MODEL, episode, recorded, trajectory, turn
from rich.console import Console
from screen import Screen

from tinker_actors.cli import main
from tinker_actors.console.colouring import TRAINED, UNTRAINED, advantage_style, logprob_style
from tinker_actors.console.episode_view import Look, episode_view
from tinker_actors.data import Image, Message, ModelInput, Turn, TurnEnd
from tinker_actors.models import load_tokenizer
from tinker_actors.rollouts import transcript
from tinker_actors.rollouts.transcripts import MOST_IMAGES, MOST_TOKENS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder."""
    return recorded(tmp_path_factory.mktemp("runs") / "duel").root


def shown(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main(["rollouts", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def styles(record: dict, **look) -> dict[str, str]:
    """The style of every text of the view that has one."""
    blocks = episode_view(record, Look(tokenizer=load_tokenizer(MODEL), **look))
    return {block.plain[span.start : span.end]: str(span.style) for block in blocks for span in block.spans}


def first(run: Path) -> dict:
    return json.loads((run / "rollouts.jsonl").read_text().splitlines()[0])


def test_every_token_is_shown_as_it_is_seat_by_seat(run, capsys):
    text = shown(capsys, run, "--episode", "train-1-0-0")
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == "step 1  train-1-0-0  duel  task 7  terminated"
    assert "<|user|>go<|end|>" in lines
    assert "x> 12<|end|>" in lines
    assert "x  reward -1  policy mine  advantages -1.5 to +1" in lines
    assert "o  reward 1  policy old  frozen" in lines
    assert "turn 2 · reward -1 · stop · mine/3 · temperature 0.7 · 4 + 2 tokens" in lines
    assert "\x1b" not in text


def test_values_stand_behind_each_sampled_token_and_no_other(run, capsys):
    text = shown(capsys, run, "--episode", "train-1-0-0", "--values")
    assert "x> 1{-0.50|+0.25}2{-1.00|-1.50}<|end|>{-1.50|+0.00}" in text
    assert "o> 9{-0.50|-}<|end|>{-1.00|-}" in text
    assert "<|user|>go<|end|>\n" in text


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--step", "2"], ["train-2-0-0", "train-2-0-1"]),
        (["--best"], ["train-2-0-0", "train-2-0-1", "train-1-0-0"]),
        (["--worst", "-n", "1"], ["train-1-0-0"]),
        (["--worst", "--seat", "o"], ["train-2-0-0", "train-1-0-0"]),
        (["--failed"], ["train-2-0-1"]),
        (["--policy", "old"], ["train-1-0-0", "train-2-0-0"]),
    ],
)
def test_episodes_are_chosen_and_ordered(run, capsys, arguments, ids):
    lines = shown(capsys, run, *arguments).splitlines()
    assert [line.split()[2] for line in lines if line.startswith("step ")] == ids


def test_a_seat_or_a_policy_is_shown_alone(run, capsys):
    assert "x> " not in shown(capsys, run, "--seat", "o")
    assert "x> " not in shown(capsys, run, "--policy", "old")


def test_control_characters_reach_no_terminal(run, capsys):
    assert "error: duel: step: it␛[31m broke" in shown(capsys, run, "--failed")


def test_what_is_not_there_is_refused_with_what_is(run, tmp_path, capsys):
    assert main(["rollouts", str(run), "--seat", "y"]) == 2
    assert "seats x, o and policies mine, old" in capsys.readouterr().err
    assert main(["rollouts", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_colours_say_log_prob_advantage_or_mask(run):
    record = first(run)
    by_logprob = styles(record, colouring="logprob")
    assert (by_logprob["1"], by_logprob["2"]) == (logprob_style(-0.5), logprob_style(-1.0))
    by_advantage = styles(record, colouring="advantage")
    assert (by_advantage["1"], by_advantage["2"]) == (advantage_style(0.25, 1.5), advantage_style(-1.5, 1.5))
    masked = styles(record, colouring="mask")
    assert (masked["1"], masked["9"]) == (TRAINED, UNTRAINED)


def test_styles_order_what_they_show():
    assert len({logprob_style(value) for value in (-0.01, -0.5, -1.2, -2.5, -9.0)}) == 5
    assert len({advantage_style(value, 3.0) for value in (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0)}) == 7
    assert advantage_style(0.0, 0.0) == advantage_style(0.0, 3.0)


def test_records_without_tokens_are_shown_by_what_was_said(run):
    record = first(run)
    for seat in record["seats"]:
        for entry in seat["turns"]:
            for key in ("observation_ids", "action_ids", "logprobs", "advantages"):
                del entry[key]
    text = "\n".join(block.plain for block in episode_view(record, Look(tokenizer=load_tokenizer(MODEL))))
    assert "user: go" in text
    assert "x> 12" in text


def test_images_are_shown_small(run):
    record = transcript(episode("e", trajectory("x", turn("which?", "4", image=True))))
    blocks = list(episode_view(record, Look(tokenizer=load_tokenizer(MODEL))))
    rows = [line for block in blocks for line in block.plain.splitlines() if "▀" in line]
    assert len(rows) == 16
    assert {row.strip() for row in rows} == {"▀" * 32}
    plain = list(episode_view(record, Look(tokenizer=load_tokenizer(MODEL), colours=False)))
    assert not any("▀" in block.plain for block in plain)


def test_what_a_record_holds_is_bounded():
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    images = Message(role="user", parts=tuple(Image.of(noise) for _ in range(MOST_IMAGES + 2)))
    long = Turn(
        observation=ModelInput.of([5] * MOST_TOKENS),
        action=(5,),
        logprobs=(-1.0,),
        end=TurnEnd.STOP,
        messages=(images,),
        text="x",
    )
    record = transcript(episode("e", trajectory("x", turn("go", "1"), long)))
    short, cut = record["seats"][0]["turns"]
    assert short["action_ids"]
    assert (cut["observation_ids"], cut["action_ids"], cut["text"]) == (None, None, "x")
    pictures = cut["messages"][0]["images"]
    assert ["png" in entry for entry in pictures] == [True] * MOST_IMAGES + [False] * 2
    assert pictures[0]["width"] == 400
    small = Image.of(base64.b64decode(pictures[0]["png"]))
    assert max(small.width, small.height) == 64
    text = "\n".join(block.plain for block in episode_view(record, Look(tokenizer=load_tokenizer(MODEL))))
    assert "its tokens are left out" in text


def test_nothing_is_wider_than_the_terminal(run):
    for width in (40, 80, 200):
        console = Console(file=StringIO(), width=width, force_terminal=True, color_system="truecolor")
        lines = [
            line for block in episode_view(first(run), Look(tokenizer=None)) for line in console.render_lines(block)
        ]
        assert all(sum(part.cell_length for part in line) <= width for line in lines)


def test_the_pager_goes_through_episodes_seats_and_colours(run):
    screen = Screen("rollouts", run)
    assert "log-prob" in screen.until("1/3")
    screen.press("n")
    assert "train-2-0-0" in screen.until("2/3")
    screen.press("c")
    screen.until("advantage")
    screen.press("s")
    screen.press("s")
    screen.until("o>")
    screen.press("v")
    screen.until("{")
    screen.press("\x1b[D")
    assert "train-1-0-0" in screen.until("1/3")
    screen.press("q")
    assert screen.end() == 0


def test_ctrl_c_leaves_the_pager(run):
    screen = Screen("rollouts", run)
    screen.until("1/3")
    screen.press("\x03")
    assert screen.end() == 130
