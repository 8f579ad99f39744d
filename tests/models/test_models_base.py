from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tinker_actors.errors import ModelError
from tinker_actors.models import load_base, load_tokenizer, resolve, save_model_directory
from tinker_actors.models.base import context_length_of

TINY = ("tiny-llama", "tiny-qwen3")
FINGERPRINTS = (
    "import sys, torch\nfrom tinker_actors.models import resolve\nsys.path.insert(0, sys.argv[1])\n"
    "from test_models_base import fingerprint\ntorch.manual_seed(11)\n"
    "print(*(fingerprint(name) for name in sys.argv[2:]), torch.rand(()).item())"
)


def fingerprint(name: str) -> str:
    digest = hashlib.sha256()
    for key, parameter in resolve(name, seed=3).load().named_parameters():
        digest.update(key.encode() + parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def test_name_fixes_the_weights_in_every_process_and_no_generator_moves() -> None:
    torch.manual_seed(11)
    drawn = torch.rand(()).item()
    command = [sys.executable, "-c", FINGERPRINTS, str(Path(__file__).parent), *TINY]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert out.stdout.split() == [*map(fingerprint, TINY), str(drawn)]


@pytest.mark.parametrize("name", TINY)
def test_tiny_model_is_small_tied_and_its_seed_matters(name: str) -> None:
    model = load_base(name).model
    assert 90_000 < sum(parameter.numel() for parameter in model.parameters()) < 130_000
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config._attn_implementation == "sdpa"
    assert model.config.vocab_size == load_tokenizer(name).vocab_size
    other = load_base(f"{name}:seed=1").model
    assert not torch.equal(model.model.embed_tokens.weight, other.model.embed_tokens.weight)
    assert abs(model.model.layers[0].mlp.up_proj.weight.std().item() - 0.1) < 0.01


def test_base_is_loaded_once_and_frozen() -> None:
    base = load_base("tiny-llama")
    assert load_base("tiny-llama:seed=0") is base
    assert not any(parameter.requires_grad for parameter in base.model.parameters())
    assert not base.model.training
    half = load_base("tiny-llama", "bfloat16")
    assert half is not base
    assert half.model.lm_head.weight.dtype == torch.bfloat16
    assert half.model.model.rotary_emb.inv_freq.dtype == torch.float32
    half.release()
    assert load_base("tiny-llama", "bfloat16") is not half
    with pytest.raises(ModelError, match="unknown dtype"):
        load_base("tiny-llama", "int8")


@pytest.mark.parametrize("name", TINY)
def test_skeleton_shares_storage_and_keeps_changes_to_itself(name: str) -> None:
    base = load_base(name)
    skeleton = base.skeleton()
    mine, theirs = dict(skeleton.named_parameters()), dict(base.model.named_parameters())
    assert mine.keys() == theirs.keys()
    assert all(mine[key].data_ptr() == theirs[key].data_ptr() and mine[key] is not theirs[key] for key in mine)
    assert skeleton.lm_head.weight is skeleton.model.embed_tokens.weight
    tokens = torch.arange(8)[None]
    assert torch.equal(skeleton(tokens).logits, base.model(tokens).logits)
    skeleton.model.layers[0].self_attn.q_proj = nn.Identity()
    skeleton.requires_grad_(True)
    assert isinstance(base.model.model.layers[0].self_attn.q_proj, nn.Linear)
    assert not any(parameter.requires_grad for parameter in base.model.parameters())


def test_a_base_that_is_first_loaded_amid_inference_can_be_trained_on() -> None:
    with torch.inference_mode():
        base = load_base("tiny-llama", "bfloat16")
    try:
        assert not any(parameter.is_inference() for parameter in base.model.parameters())
        base.skeleton().requires_grad_(True)
    finally:
        base.release()


def test_lora_injected_in_one_skeleton_is_not_seen_in_another() -> None:
    from peft import LoraConfig, get_peft_model

    base = load_base("tiny-llama")
    first, second = base.skeleton(), base.skeleton()
    get_peft_model(first, LoraConfig(r=2, target_modules="all-linear"))
    assert any("lora_A" in key for key, _ in first.named_parameters())
    assert not any("lora_A" in key for key, _ in second.named_parameters())
    assert first.model.layers[0].mlp.up_proj.base_layer.weight.data_ptr() == (
        second.model.layers[0].mlp.up_proj.weight.data_ptr()
    )


@pytest.mark.parametrize("name", TINY)
def test_saved_directory_resolves_to_the_same_model_and_tokenizer(name: str, tmp_path, capfd) -> None:
    base = load_base(name)
    folder = save_model_directory(base.model, name, tmp_path / "saved")
    spec = resolve(str(folder))
    tokens = torch.arange(8)[None]
    assert torch.equal(load_base(str(folder)).model(tokens).logits, base.model(tokens).logits)
    assert spec.chat_template == resolve(name).chat_template
    assert load_tokenizer(str(folder)).encode("Go<|end|>") == load_tokenizer(name).encode("Go<|end|>")
    with pytest.raises(ModelError, match="exists already"):
        save_model_directory(base.model, name, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved"]
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-qwen2-vl"])
def test_the_outline_of_a_directory_has_its_modules_and_reads_no_weights(name: str, tmp_path) -> None:
    base = load_base(name)
    folder = save_model_directory(base.model, name, tmp_path / "saved")
    for weights in folder.glob("*.safetensors"):
        weights.write_bytes(b"")
    outline = resolve(str(folder)).outline()
    assert [path for path, _ in outline.named_modules()] == [path for path, _ in base.model.named_modules()]
    assert context_length_of(outline) == base.context_length
    assert {parameter.device.type for parameter in outline.parameters()} == {"meta"}


def test_saved_directory_reads_the_same_in_transformers(tmp_path) -> None:
    from transformers import AutoTokenizer

    from tinker_actors.data import Message
    from tinker_actors.models import Renderer

    folder = save_model_directory(load_base("tiny-llama").model, "tiny-llama", tmp_path / "saved")
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(str(folder))
    conversation = [
        {"role": "user", "content": "guess 1-7"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "higher"},
    ]
    expected = theirs.apply_chat_template(conversation, add_generation_prompt=True)["input_ids"]
    assert list(Renderer(ours).start([Message(**entry) for entry in conversation]).tokens) == expected
    assert (theirs.eos_token_id, theirs.pad_token_id) == (ours.eos_id, ours.pad_id)


def test_directory_that_lacks_weights_for_a_layer_is_refused(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_model_directory(load_base("tiny-llama").model, "tiny-llama", tmp_path / "saved")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj"):
        resolve(str(folder)).load()


def test_loading_leaves_transformers_settings_as_they_were(tmp_path) -> None:
    from transformers.utils import logging as notices

    folder = save_model_directory(load_base("tiny-llama").model, "tiny-llama", tmp_path / "saved")
    before = (notices.get_verbosity(), notices.is_progress_bar_enabled())
    resolve(str(folder)).load()
    assert (notices.get_verbosity(), notices.is_progress_bar_enabled()) == before


def test_hub_model_in_the_local_hub_cache_loads_without_a_hub(tmp_path) -> None:
    revision = "0" * 40
    repository = tmp_path / "hub" / "models--someone--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    save_model_directory(load_base("tiny-llama").model, "tiny-llama", repository / "snapshots" / revision)
    code = (
        "from tinker_actors.models import load_base, load_tokenizer\n"
        "base = load_base('someone/small')\n"
        "print(base.name, base.model.lm_head.weight.sum().item(), load_tokenizer('someone/small').encode('7'))"
    )
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    total = load_base("tiny-llama").model.lm_head.weight.sum().item()
    assert out.stdout.strip() == f"someone/small {total} {load_tokenizer('tiny-llama').encode('7')}"
