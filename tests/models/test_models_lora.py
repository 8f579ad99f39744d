from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from tinker_actors.errors import ModelError
from tinker_actors.kernels import NO_ADAPTER, KernelError
from tinker_actors.models import MultiLoraModel, load_base

BASE = "tiny-llama"
TOKENS = torch.arange(5 * 7).view(5, 7) % 100
SETTINGS = {
    "small": {"r": 4, "lora_alpha": 32, "target_modules": "all-linear"},
    "large": {"r": 8, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "stable": {"r": 3, "lora_alpha": 5, "target_modules": r".*\.mlp\.(up|down)_proj", "use_rslora": True},
    "patterns": {
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q_proj", "o_proj"],
        "rank_pattern": {"q_proj": 5, r"layers\.1\.self_attn\.o_proj": 3},
        "alpha_pattern": {"o_proj": 9},
    },
}


def write_adapter(folder: Path, seed: int, base: str = BASE, **settings) -> Path:
    torch.manual_seed(seed)
    model = get_peft_model(load_base(base).skeleton(), LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: write_adapter(root / name, seed, **given) for seed, (name, given) in enumerate(SETTINGS.items())}


@pytest.fixture
def lora() -> MultiLoraModel:
    return MultiLoraModel(load_base(BASE).skeleton())


@torch.inference_mode()
def test_mixed_batch_equals_peft_with_each_adapter_alone(lora, directories) -> None:
    slots = {name: lora.load(path) for name, path in directories.items()}
    batch = [slots["patterns"], slots["small"], NO_ADAPTER, slots["stable"], slots["large"]]
    with lora.using(batch, tokens_per_row=TOKENS.shape[1]):
        mixed = lora.model(TOKENS).logits
    base = load_base(BASE).model(TOKENS).logits
    assert torch.equal(mixed[2], base[2])
    for name, path in directories.items():
        alone = PeftModel.from_pretrained(load_base(BASE).skeleton(), path)(TOKENS).logits
        row = batch.index(slots[name])
        torch.testing.assert_close(mixed[row], alone[row], rtol=0, atol=1e-5)
        assert (mixed[row] - base[row]).abs().max() > 1e-2
    assert torch.equal(lora.model(TOKENS).logits, base)  # outside `using` the base answers


@torch.inference_mode()
def test_bfloat16_base_agrees_with_peft_to_its_rounding(directories) -> None:
    lora = MultiLoraModel(load_base(BASE, "bfloat16").skeleton())
    slot = lora.load(directories["small"])
    with lora.using([slot] * 5, tokens_per_row=TOKENS.shape[1]):
        ours = lora.model(TOKENS).logits
    theirs = PeftModel.from_pretrained(load_base(BASE, "bfloat16").skeleton(), directories["small"])(TOKENS).logits
    exact = PeftModel.from_pretrained(load_base(BASE).skeleton(), directories["small"])(TOKENS).logits
    error, their_error = (ours - exact).abs().mean(), (theirs - exact).abs().mean()
    assert error < 1.2 * their_error


@torch.inference_mode()
def test_qwen_style_model_takes_adapters_too(tmp_path) -> None:
    path = write_adapter(tmp_path / "a", 5, base="tiny-qwen3", r=4, lora_alpha=8, target_modules="all-linear")
    lora = MultiLoraModel(load_base("tiny-qwen3").skeleton())
    with lora.using([lora.load(path)] * 5, tokens_per_row=TOKENS.shape[1]):
        ours = lora.model(TOKENS).logits
    theirs = PeftModel.from_pretrained(load_base("tiny-qwen3").skeleton(), path)(TOKENS).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_slot_given_out_again_holds_nothing_of_the_one_before(lora, directories) -> None:
    kept = lora.load(directories["stable"])
    slot = lora.load(directories["small"])
    lora.unload(slot)
    assert lora.load(directories["large"]) == slot
    with lora.using([slot] * 5, tokens_per_row=TOKENS.shape[1]):
        ours = lora.model(TOKENS).logits
    alone = PeftModel.from_pretrained(load_base(BASE).skeleton(), directories["large"])(TOKENS).logits
    torch.testing.assert_close(ours, alone, rtol=0, atol=1e-5)
    assert lora.slots == (kept, slot)


def test_many_adapters_pass_through_two_slots(directories) -> None:  # case A7
    lora = MultiLoraModel(load_base(BASE).skeleton(), capacity=2)
    for _ in range(50):
        pair = lora.load(directories["small"]), lora.load(directories["large"])
        assert pair == (0, 1)
        with pytest.raises(ModelError, match="all 2 adapter slots"):
            lora.load(directories["stable"])
        for slot in pair:
            lora.unload(slot)
    assert lora.resident == 0


def test_empty_slot_and_overlapping_use_are_refused(lora, directories) -> None:
    slot = lora.load(directories["small"])
    with pytest.raises(ModelError, match=r"\[3\] hold no adapter"), lora.using([slot, 3]):
        pass
    with pytest.raises(ModelError, match="slot 1 holds no adapter"):
        lora.unload(1)
    with lora.using([slot]):
        with pytest.raises(ModelError, match="in use"):
            lora.unload(slot)
        with pytest.raises(ModelError, match="under way"), lora.using([slot]):
            pass
    lora.unload(slot)


def test_plan_for_other_rows_is_refused(lora, directories) -> None:
    slot = lora.load(directories["small"])
    with lora.using([slot] * 5, tokens_per_row=3), pytest.raises(KernelError, match="15 rows"):
        lora.model(TOKENS)


def test_base_weights_are_shared_and_stay_bit_identical(lora, directories) -> None:
    base = load_base(BASE)
    before = {name: parameter.clone() for name, parameter in base.model.named_parameters()}
    with torch.inference_mode(), lora.using([lora.load(directories["small"])] * 5, tokens_per_row=TOKENS.shape[1]):
        lora.model(TOKENS)
    assert all(torch.equal(parameter, before[name]) for name, parameter in base.model.named_parameters())
    layer = lora.model.model.layers[0].mlp.up_proj
    assert layer.weight.data_ptr() == base.model.model.layers[0].mlp.up_proj.weight.data_ptr()


def damaged(source: Path, folder: Path, *, config: dict | None = None, weights=None) -> Path:
    folder.mkdir()
    settings = json.loads((source / "adapter_config.json").read_text()) | (config or {})
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    tensors = load_file(source / "adapter_model.safetensors")
    save_file(weights(tensors) if weights else tensors, folder / "adapter_model.safetensors")
    return folder


UP = "base_model.model.model.layers.0.mlp.up_proj"


def without(*keys: str):
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key not in keys}


def having(**extra: torch.Tensor):
    return lambda tensors: tensors | {key.replace("__", "."): tensor for key, tensor in extra.items()}


@pytest.mark.parametrize(
    ("config", "weights", "said"),
    [
        ({"peft_type": "IA3"}, None, "'IA3'"),
        ({"use_dora": True, "bias": "all"}, None, "use_dora, bias"),
        ({"r": 5}, None, "do not fit rank 5"),
        ({"lora_alpha": None}, None, "lacks lora_alpha"),
        ({"r": 0}, None, "r is 0; an integer of at least 1 is needed"),
        ({"r": "8"}, None, "r is '8'; an integer of at least 1 is needed"),
        ({"r": True}, None, "r is True; an integer"),
        ({"rank_pattern": {"up_proj": 0}}, None, r"rank_pattern\['up_proj'\] is 0; an integer of at least 1"),
        ({"rank_pattern": {"up_(": 4}}, None, r"the key 'up_\(' of rank_pattern is no regular expression \(missing"),
        ({"rank_pattern": [4]}, None, r"rank_pattern is \[4\]; an object"),
        ({"lora_alpha": "much"}, None, "lora_alpha is 'much'; a finite number is needed"),
        ({"lora_alpha": float("inf")}, None, "lora_alpha is inf; a finite number is needed"),
        ({"lora_alpha": 10**400}, None, "lora_alpha is 1000.*; a finite number is needed"),
        ({"alpha_pattern": {"*": 4}}, None, r"the key '\*' of alpha_pattern is no regular expression"),
        ({"alpha_pattern": {"up_proj": None}}, None, r"alpha_pattern\['up_proj'\] is None; a finite number"),
        ({"init_lora_weights": "pissa_niter_4"}, None, "init_lora_weights 'pissa_niter_4', which changes the base's"),
        ({"target_modules": "[up"}, None, r"target_modules, which is '\[up', is no regular expression \(unterminated"),
        ({"target_modules": {"up_proj": 1}}, None, "target_modules is .*; a list of modules' names, or one regular"),
        ({"exclude_modules": [1]}, None, r"exclude_modules is \[1\]; a list of modules' names"),
        ({}, without(f"{UP}.lora_A.weight"), r"only lora_B for model\.layers\.0\.mlp\.up_proj"),
        ({}, without(f"{UP}.lora_A.weight", f"{UP}.lora_B.weight"), r"no weights for model\.layers\.0\.mlp\.up_proj"),
        ({}, having(surprise=torch.zeros(1)), "not understood: surprise"),
        ({}, having(base_model__model__model__norm__lora_A__weight=torch.zeros(4, 64)), r"adapts model\.norm"),
        ({"target_modules": []}, lambda _: {}, "holds no weights|lacks"),
    ],
)
def test_directory_that_is_not_an_adapter_of_this_base_is_refused(
    lora, directories, tmp_path, config, weights, said
) -> None:
    path = damaged(directories["small"], tmp_path / "bad", config=config, weights=weights)
    with pytest.raises(ModelError, match=said):
        lora.load(path)
    assert lora.resident == 0


@torch.inference_mode()
@pytest.mark.parametrize("initial", ["gaussian", "orthogonal", "pissa"])
def test_an_adapter_means_what_peft_takes_it_for_or_is_refused(lora, tmp_path, initial) -> None:
    path = write_adapter(tmp_path / "adapter", 7, r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=initial)
    if initial == "pissa":  # PEFT takes the adapter's initial values off the base's weights
        with pytest.raises(ModelError, match="changes the base's weights too"):
            lora.load(path)
        return
    with lora.using([lora.load(path)] * 5, tokens_per_row=TOKENS.shape[1]):
        ours = lora.model(TOKENS).logits
    alone = PeftModel.from_pretrained(load_base(BASE).skeleton(), path)(TOKENS).logits
    torch.testing.assert_close(ours, alone, rtol=0, atol=1e-5)


def test_missing_and_torn_files_are_named(lora, directories, tmp_path) -> None:
    with pytest.raises(ModelError, match=r"no adapter_config\.json"):
        lora.load(tmp_path)
    torn = damaged(directories["small"], tmp_path / "torn")
    whole = (torn / "adapter_model.safetensors").read_bytes()
    (torn / "adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="can't be read"):
        lora.load(torn)
    (torn / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no adapter_model\.safetensors"):
        lora.load(torn)
