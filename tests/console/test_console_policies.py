import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tinker_actors.cli import main
from tinker_actors.models import load_base
from tinker_actors.models.differences import change_norms
from tinker_actors.policies import PolicySpec, SnapshotStore
from tinker_actors.training.engine import TrainingEngine

TOKENS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.fixture
def engine(tmp_path):
    """A store with three snapshots of a policy: weights drawn, drawn again, and of one module changed."""
    engine = TrainingEngine("tiny-llama", tmp_path / "store")
    engine.create(PolicySpec(base_model="tiny-llama", rank=4, alpha=8.0, name="p"))
    generator = torch.Generator().manual_seed(0)
    held = engine._policies["p"]
    for name, value in held.weights().items():
        if name.endswith("lora_B.default.weight"):
            value.normal_(std=0.1, generator=generator)
    engine.publish("p")
    for name, value in held.weights().items():
        if "layers.1.mlp.up_proj.lora_B" in name:
            value.mul_(1.5)
    engine.publish("p")
    engine.save("p", "final")
    return engine


@torch.no_grad()
def logits_of(model):
    return model(input_ids=TOKENS).logits


def run(capfd, *arguments):
    code = main(["policies", *map(str, arguments)])
    return code, *capfd.readouterr()


def test_a_store_is_listed_and_shown(engine, capfd):
    root = engine.store.root
    engine.store.pin("tinker://p/sampler_weights/000001")
    code, output, _ = run(capfd, "ls", root)
    assert code == 0
    lines = [line for line in output.splitlines() if line.startswith("tinker://p/")]
    assert [line.split()[0].removeprefix("tinker://p/") for line in lines] == [
        "sampler_weights/000001",
        "sampler_weights/000002",
        "weights/final",
    ]
    assert ["pinned" in line for line in lines] == [True, False, False]
    code, output, _ = run(capfd, "ls", root, "p", "--json")
    assert [row["number"] for row in json.loads(output)] == [1, 2, 1]
    code, output, _ = run(capfd, "show", root, "p/1")
    assert code == 0
    assert "adapter_model.safetensors" in output
    assert "alpha" in output


def test_a_difference_is_that_of_the_weights_module_by_module(engine, capfd):
    first, second = engine.store.list("p")
    found = change_norms(engine.store.fetch(first), engine.store.fetch(second))
    changed = "model.layers.1.mlp.up_proj"
    assert [name for name, (change, _) in found.items() if change > 1e-6] == [changed]
    layer = engine._policies["p"].model.get_submodule(changed)
    whole = (layer.lora_B["default"].weight @ layer.lora_A["default"].weight * 2.0).detach()
    assert found[changed] == pytest.approx((float(whole.norm()) / 3, float(whole.norm())), rel=1e-4)
    code, output, _ = run(capfd, "diff", engine.store.root, "p/1", "p")
    assert code == 0
    assert "33.33%" in next(line for line in output.splitlines() if line.startswith(changed))


def test_exports_load_elsewhere_with_the_same_logits(engine, capfd, tmp_path):
    ours = logits_of(engine._policies["p"].model)
    assert run(capfd, "export", engine.store.root, "p", tmp_path / "peft")[0] == 0
    assert run(capfd, "export", engine.store.root, "p/weights/final", tmp_path / "merged", "--merged")[0] == 0
    assert sorted(path.name for path in (tmp_path / "peft").glob("*.json")) == ["adapter_config.json"]
    plain = PeftModel.from_pretrained(load_base("tiny-llama").skeleton(), tmp_path / "peft")
    assert torch.equal(logits_of(plain), ours)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(logits_of(merged), ours, rtol=0, atol=2e-5)


def test_what_may_go_is_deleted_and_the_newest_only_when_meant(engine, capfd):
    root = engine.store.root
    assert run(capfd, "rm", root, "p/1")[0] == 0
    code, _, errors = run(capfd, "rm", root, "p")
    assert code == 2
    assert "--newest deletes it" in errors
    assert run(capfd, "rm", root, "p", "p/weights/final", "--newest")[0] == 0
    assert SnapshotStore(root).list("p") == ()


def test_what_is_pinned_stays_until_it_is_unpinned(engine, capfd):
    root = engine.store.root
    assert run(capfd, "pin", root, "p/1", "p/weights/final")[1].splitlines() == [
        "pinned tinker://p/sampler_weights/000001",
        "pinned tinker://p/weights/final",
    ]
    assert "is pinned" in run(capfd, "rm", root, "p/1")[2]
    assert "nothing is over" in run(capfd, "rm", root, "--keep-last", "1")[1]
    assert run(capfd, "unpin", root, "p/1")[0] == 0
    assert run(capfd, "rm", root, "p/1")[0] == 0


def test_what_is_over_a_bound_is_deleted_of_the_policies_and_kinds_named(engine, capfd):
    root = engine.store.root
    engine.save("p", "later")
    assert "nothing is over" in run(capfd, "rm", root, "p", "--older-than", "1", "--keep-last", "2")[1]
    assert run(capfd, "rm", root, "p", "--older-than", "1e-9")[1] == "deleted tinker://p/sampler_weights/000001\n"
    assert run(capfd, "rm", root, "p/weights", "--keep-last", "1")[1] == "deleted tinker://p/weights/final\n"
    assert [snapshot.number for snapshot in SnapshotStore(root).list("p")] == [2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rm", "{root}"], "rm names nothing"),
        (["rm", "{root}", "--keep-last", "0"], "--keep-last is 0"),
        (["rm", "{root}", "--older-than", "nan"], "--older-than is nan; a positive number of days"),
        (["rm", "{root}", "q", "--keep-last", "1"], "policy 'q' is not in"),
        (["rm", "{root}", "p/1", "--keep-last", "1"], "'p/1' is a single one"),
        (["pin", "{root}", "p/9"], "000009 is not in the store"),
        (["ls", "{tmp}/absent"], "is no folder"),
        (["ls", "{root}", "q"], "policy 'q' is not in"),
        (["show", "{root}", "p/9"], "000009 is not in the store"),
        (["export", "{root}", "p", "{tmp}"], "exists already"),
        (["export", "{root}", "p/weights/final", "{tmp}/x"], "--merged"),
        (["diff", "{root}", "p", "p/weights/final"], "not training checkpoints"),
        (["show", "{root}", "p/sampler_weights/x/1"], "'p/sampler_weights/x/1' is no handle; POLICY, POLICY/NUMBER or"),
        (["ls", "nothing://x"], "can't be used"),
        (["ls", "ftp://127.0.0.1:1"], "the store ftp://127.0.0.1:1 can't be reached: "),
    ],
)
def test_what_cannot_work_is_one_line(engine, capfd, tmp_path, arguments, message):
    code, _, errors = run(capfd, *(part.format(tmp=tmp_path, root=engine.store.root) for part in arguments))
    assert code == 2
    assert message in errors
    assert errors.count("\n") == 1
