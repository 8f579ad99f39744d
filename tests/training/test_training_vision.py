"""Training with images: layout, which modules learn, and what plain PEFT makes of a snapshot."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel

from tinker_actors.data import EpisodeEnd, Image, ImageChunk, Message, ModelInput, Trajectory, Turn, TurnEnd, sft_datums
from tinker_actors.errors import ConfigError, DataError
from tinker_actors.models import Renderer, load_base, load_tokenizer
from tinker_actors.policies import PolicySpec
from tinker_actors.training import LOSS_DEFAULTS, AdamParams, LossConfig
from tinker_actors.training.engine import TrainingEngine

NAME = "tiny-qwen2-vl"
SFT = LossConfig(name="cross_entropy")
RENDERER = Renderer(load_tokenizer(NAME))


@pytest.fixture
def engine(tmp_path):
    return TrainingEngine(NAME, tmp_path / "store")


def image(height, width, seed):
    return Image.of(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def datum(*parts, answer="7"):
    observation = RENDERER.start([Message.of(*parts)]).input
    turn = Turn(observation=observation, action=RENDERER.encode_action(answer), logprobs=None, end=TurnEnd.STOP)
    (made,) = sft_datums(Trajectory(seat="a", policy=None, turns=(turn,), end=EpisodeEnd.TERMINATED))
    return made


def ragged():
    return [
        datum(image(32, 32, 0), "?"),
        datum("compare ", image(32, 48, 1), " and ", image(48, 32, 2), answer="first"),
        datum("no image at all", answer="no"),
        datum(image(32, 32, 0), image(32, 32, 0), "twice", answer="12"),
        datum(image(64, 64, 3), "big"),
    ]


@pytest.mark.parametrize("kind", ["lora", "full"])
@pytest.mark.parametrize("name", [NAME, "tiny-qwen2.5-vl", "tiny-qwen3-vl"])
def test_padding_and_splitting_change_nothing(tmp_path, name, kind):
    engine = TrainingEngine(name, tmp_path / "store")
    datums, found = ragged(), []
    for budget in (1, 60, 4096):
        policy = engine.create(PolicySpec(base_model=name, name=f"p{budget}", kind=kind, seed=3))
        loss = dataclasses.replace(SFT, micro_batch_tokens=budget)
        result = engine.forward_backward(policy, datums, loss)
        gradients = engine._policies[policy].gradients()
        found.append((torch.tensor([value for row in result.logprobs for value in row]), gradients))
    for logprobs, gradients in found[1:]:
        torch.testing.assert_close(logprobs, found[0][0], atol=1e-5, rtol=1e-5)
        for key, value in gradients.items():
            torch.testing.assert_close(value, found[0][1][key], atol=2e-4, rtol=1e-3, msg=key)


def test_logprobs_are_those_of_the_model_called_by_its_own_processor_s_arguments(engine):
    policy = engine.create(PolicySpec(base_model=NAME, name="p", kind="full"))
    result = engine.forward(policy, ragged(), SFT)
    base = load_base(NAME)
    for made, row in zip(ragged(), result.logprobs, strict=True):
        ids = torch.tensor([made.model_input.tokens])
        pixels = [base.vision.pixels(chunk) for chunk in made.model_input.images]
        extra = {}
        if pixels:
            extra = {
                "pixel_values": torch.cat([entry.patches for entry in pixels]),
                "image_grid_thw": torch.stack([entry.grid for entry in pixels]),
                "mm_token_type_ids": (ids == base.vision.rule.placeholder).int(),
            }
        with torch.no_grad():
            logits = base.model(input_ids=ids, **extra).logits[0]
        logits[:, list(base.vision.rule.unsampled)] = -torch.inf
        wanted = torch.log_softmax(logits, -1).gather(1, torch.tensor(made.targets)[:, None])[:, 0]
        trained = torch.tensor(made.weights) != 0
        torch.testing.assert_close(torch.tensor(row)[trained], wanted[trained], atol=1e-5, rtol=0)


def test_every_target_but_those_of_images_gets_a_logprob(engine):
    policy = engine.create(PolicySpec(base_model=NAME, name="p"))
    made = ragged()[1]
    (row,) = engine.forward(policy, [made], SFT, every_target=True).logprobs
    unsampled = load_base(NAME).vision.rule.unsampled
    assert all((value == 0) == (target in unsampled) for value, target in zip(row, made.targets, strict=True))


def test_a_custom_loss_over_whole_rows_trains_all_targets_but_those_of_images(engine):
    one, two = (engine.create(PolicySpec(base_model=NAME, name=name, seed=1)) for name in "ab")
    made = ragged()[1]
    unsampled = load_base(NAME).vision.rule.unsampled
    found = engine.forward_backward_custom(one, [made], lambda datums, rows: (-rows[0].sum(), {}))
    text = dataclasses.replace(made, weights=tuple(float(token not in unsampled) for token in made.targets))
    expected = engine.forward_backward(two, [text], SFT)
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    other = engine._policies[two].gradients()
    for key, value in engine._policies[one].gradients().items():
        torch.testing.assert_close(value, other[key], atol=1e-6, rtol=1e-4, msg=key)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_on_policy_the_ratio_is_1_for_every_loss_with_images_too(engine, temperature):
    policy = engine.create(PolicySpec(base_model=NAME, name="p"))
    datums = []
    for made in ragged():
        warm = dataclasses.replace(made, temperature=temperature)
        mask = tuple(int(weight != 0) for weight in made.weights)
        (row,) = engine.forward(policy, [warm], dataclasses.replace(SFT, micro_batch_tokens=1)).logprobs
        rl = {"weights": None, "mask": mask, "logprobs": row, "advantages": (1.0,) * len(row)}
        datums.append(dataclasses.replace(warm, **rl, sampled_tokens=sum(mask)))
    for name in sorted(set(LOSS_DEFAULTS) - {"cross_entropy"}):
        metrics = engine.forward(policy, datums, LossConfig(name=name)).metrics
        assert max(abs(metrics["ratio_min"] - 1), abs(metrics["ratio_max"] - 1)) < 1e-6


def test_lora_adapts_the_language_model_and_leaves_the_vision_tower(tmp_path):
    # the tower of this family has gate_proj, up_proj and down_proj too
    engine = TrainingEngine("tiny-qwen2.5-vl", tmp_path / "store")
    for name, targets in (("all", "all-linear"), ("some", ("q_proj", "gate_proj"))):
        policy = engine.create(PolicySpec(base_model="tiny-qwen2.5-vl", name=name, target_modules=targets))
        learned = {key.partition(".lora_")[0] for key in engine._policies[policy].parameters}
        assert all(key.startswith("model.language_model.layers.") for key in learned)
        kinds = {key.rpartition(".")[2] for key in learned}
        assert kinds == ({"q_proj", "gate_proj"} if name == "some" else ALL_LINEAR)
    with pytest.raises(ConfigError, match="target_modules has 'qkv'"):
        engine.create(PolicySpec(base_model="tiny-qwen2.5-vl", target_modules=("qkv",)))


ALL_LINEAR = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def test_a_full_policy_trains_the_vision_tower_too_and_the_base_stays(engine):
    before = {key: value.clone() for key, value in load_base(NAME).model.state_dict().items()}
    policy = engine.create(PolicySpec(base_model=NAME, name="p", kind="full"))
    losses = []
    for _ in range(12):
        losses.append(engine.forward_backward(policy, ragged(), SFT).loss)
        engine.optim_step(policy, AdamParams(learning_rate=2e-3, grad_clip_norm=1.0))
    assert losses[-1] < losses[0] / 3
    own = engine._policies[policy].weights()
    tower = [key for key in own if key.startswith("model.visual.") and "weight" in key]
    assert tower
    assert all(not torch.equal(own[key], before[key]) for key in tower)
    assert all(torch.equal(value, before[key]) for key, value in load_base(NAME).model.state_dict().items())


@pytest.mark.parametrize("name", [NAME, "tiny-qwen2.5-vl", "tiny-qwen3-vl"])
def test_a_snapshot_loads_in_plain_peft(tmp_path, name):
    engine = TrainingEngine(name, tmp_path / "store")
    policy = engine.create(PolicySpec(base_model=name, name="p", rank=4))
    for _ in range(2):
        engine.forward_backward(policy, ragged(), SFT)
        engine.optim_step(policy, AdamParams(learning_rate=1e-2))
    path = Path(engine.publish(policy).path)
    assert json.loads((path / "adapter_config.json").read_text())["exclude_modules"] == r"model\.visual\..*"
    base = load_base(name)
    theirs = PeftModel.from_pretrained(base.skeleton(), path).eval()
    made = ragged()[1]
    ids = torch.tensor([made.model_input.tokens])
    positions, _ = base.vision.positions([made.model_input])
    logits = []
    for model in (theirs.get_base_model(), engine._policies[policy].model):
        with torch.no_grad():
            extra = base.vision.arguments(model, [made.model_input])
            logits.append(model(ids, position_ids=positions, **extra).logits)
    assert torch.equal(*logits)
    exported = engine.export_base(policy, tmp_path / "merged")
    merged = load_base(exported)
    with torch.no_grad():
        extra = merged.vision.arguments(merged.model, [made.model_input])
        again = merged.model(ids, position_ids=positions, **extra).logits
    torch.testing.assert_close(again, logits[0], atol=2e-5, rtol=0)
    merged.release()


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_an_export_of_an_adapted_head_says_to_every_reader_that_it_is_untied(engine, tmp_path):
    assert engine.base.config.get_text_config().tie_word_embeddings
    policy = engine.create(PolicySpec(base_model=NAME, rank=2, target_modules=("lm_head",)))
    saved = json.loads((Path(engine.export_base(policy, tmp_path / "merged")) / "config.json").read_text())
    assert (saved["tie_word_embeddings"], saved["text_config"]["tie_word_embeddings"]) == (False, False)
    assert engine.base.config.get_text_config().tie_word_embeddings


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_gradient_checkpointing_computes_layers_again_and_changes_no_gradient(engine, kind):
    gradients, calls = [], []
    for checkpointing in (False, True):
        policy = engine.create(PolicySpec(base_model=NAME, name=f"p{checkpointing}", kind=kind, seed=3))
        layer = engine._policies[policy].model.model.language_model.layers[0].mlp
        count = [0]
        layer.register_forward_pre_hook(lambda *_, count=count: count.__setitem__(0, count[0] + 1))
        engine.forward_backward(policy, ragged(), dataclasses.replace(SFT, gradient_checkpointing=checkpointing))
        gradients.append(engine._policies[policy].gradients())
        calls.append(count[0])
    assert calls[1] == 2 * calls[0]
    for key, value in gradients[0].items():
        torch.testing.assert_close(gradients[1][key], value, atol=1e-6, rtol=1e-5, msg=key)


def test_images_that_can_not_be_trained_on_are_refused_by_name(engine, tmp_path):
    policy = engine.create(PolicySpec(base_model=NAME, name="p"))
    good = ragged()[0]
    torn = tuple(
        ImageChunk(data=b"torn", format="png", token_count=4, placeholder=9) if isinstance(chunk, ImageChunk) else chunk
        for chunk in good.model_input.chunks
    )
    bad = dataclasses.replace(good, model_input=ModelInput(chunks=torn))
    with pytest.raises(DataError, match=r"datum 1 \(.*\): an image of 4 bytes"):
        engine.forward_backward(policy, [good, bad], SFT)
    bare = dataclasses.replace(good, model_input=ModelInput.of(good.model_input.tokens))
    with pytest.raises(DataError, match="holds token 9, which stands for an image"):
        engine.forward_backward(policy, [bare], SFT)
    marked = datum("x", answer="<|vision_start|>")
    with pytest.raises(DataError, match=r"trains token 7 as target \d+, which belongs to images"):
        engine.forward_backward(policy, [marked], SFT)
    text_only = TrainingEngine("tiny-llama", tmp_path / "other")
    other = text_only.create(PolicySpec(base_model="tiny-llama", name="p"))
    with pytest.raises(DataError, match="has an image; the base model reads none"):
        text_only.forward_backward(other, [good], SFT)
