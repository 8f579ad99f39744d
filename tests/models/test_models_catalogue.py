from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tinker_actors.errors import ModelError, ModelNotFoundError
from tinker_actors.models import ModelSpec, available_models, hub, load_tokenizer, register_model, resolve
from tinker_actors.models.tokenizer import Tokenizer


def test_tokenizer_and_renderer_need_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, tinker_actors.models as m\n"
        "m.Renderer(m.load_tokenizer('tiny-llama')).start([])\n"
        "print([name for name in ('torch', 'transformers', 'huggingface_hub', 'zmq') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_every_spelling_of_the_same_weights_has_one_name() -> None:
    assert resolve("tiny-llama").name == resolve("tiny-llama:seed=0").name == "tiny-llama"
    assert resolve("tiny-llama", seed=3).name == resolve("tiny-llama:layers=2,seed=3").name == "tiny-llama:seed=3"
    assert resolve("tiny-qwen3:hidden=32", seed=1).name == "tiny-qwen3:seed=1,hidden=32"


@pytest.mark.parametrize("options", ["sed=1", "seed=x", "seed=1,seed=2", "hidden=30", "layers=0", "seed"])
def test_wrong_option_of_a_tiny_model_is_refused(options: str) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(f"tiny-llama:{options}")
    assert not isinstance(caught.value, ModelNotFoundError)


def test_unknown_name_says_what_was_tried_and_what_was_near() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("tiny-lama")
    said = str(caught.value)
    assert "did you mean 'tiny-llama'?" in said
    assert "smollm2-135m" in said
    assert "does not exist" in said


def test_hub_id_without_a_hub_fails_at_once_with_the_reason() -> None:
    # a process of its own: the hub client reads the setting once, at import
    code = (
        "import time, tinker_actors.models as m\nbegan = time.perf_counter()\n"
        "try: m.resolve('someone/nothing')\n"
        "except m.catalogue.ModelNotFoundError as error: print(error, time.perf_counter() - began < 10)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "HF_HUB_OFFLINE" in out.stdout
    assert "the catalogue" in out.stdout
    assert out.stdout.strip().endswith("True")


@pytest.mark.parametrize("missing", ["model-2-of-2.safetensors", "model-1-of-2.safetensors", None])
def test_weights_whose_download_was_cut_short_are_fetched_again(missing, tmp_path, monkeypatch) -> None:
    shards = [f"model-{place}-of-2.safetensors" for place in (1, 2)]
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict(zip("ab", shards, strict=True))})
    )
    for name in shards:
        if name != missing:
            (tmp_path / name).touch()
    fetched: list[str] = []
    monkeypatch.setattr(hub, "_cached", lambda name, patterns: tmp_path)
    monkeypatch.setattr(hub, "_download", lambda name, patterns: fetched.append(name) or tmp_path)
    monkeypatch.setattr("tinker_actors.models.base.load_directory", lambda folder, dtype: folder)
    hub._load("someone/large", "float32")
    assert fetched == (["someone/large"] if missing else [])


def test_model_not_fetched_yet_names_the_command(empty_cache) -> None:
    with pytest.raises(ModelNotFoundError, match="tinker-actors models fetch smollm2-135m"):
        resolve("smollm2-135m")


def test_directory_without_weights_says_what_it_lacks(tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match=r"lacks tokenizer\.json, \*\.safetensors"):
        resolve(str(tmp_path))


def test_registered_model_resolves_with_its_options() -> None:
    asked: list[str] = []

    def builder(name: str) -> ModelSpec:
        asked.append(name)
        return resolve("tiny-llama:seed=9")

    register_model("my-model", builder)
    assert resolve("my-model:fast").name == "tiny-llama:seed=9"
    assert asked == ["my-model:fast"]
    assert "my-model" in available_models()
    with pytest.raises(ModelError, match="taken"):
        register_model("my-model", builder)
    with pytest.raises(ModelError, match="taken"):
        register_model("tiny-llama", builder)
    with pytest.raises(ModelError, match="bad model name"):
        register_model("a/b", builder)


def test_tiny_tokenizer_spells_every_character_and_keeps_pad_apart_from_end() -> None:
    tokenizer = load_tokenizer("tiny-llama")
    text = "Guess 1-7:\n{higher} ~lower~"
    assert len(tokenizer.encode(text)) == len(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|end|>") == [tokenizer.eos_id]
    assert tokenizer.pad_id != tokenizer.eos_id
    assert tokenizer.stop_ids == (tokenizer.eos_id,)
    assert tokenizer.decode(tokenizer.encode("a<|end|>"), skip_special=True) == "a"
    assert tokenizer.token_text(tokenizer.encode("7")[0]) == "7"
    with pytest.raises(ModelError, match="not in the vocabulary"):
        tokenizer.token_text(tokenizer.vocab_size)


def test_tokenizer_is_read_once_until_its_file_changes(tmp_path) -> None:
    from tinker_actors.models.catalogue import load_tokenizer as load

    assert load("tiny-llama") is load("tiny-qwen3")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    for name, content in _tiny_files().items():
        (tmp_path / name).write_text(content)
    first = load(str(tmp_path))
    assert load(str(tmp_path)) is first
    os.utime(tmp_path / "tokenizer.json", ns=(1, 1))
    assert load(str(tmp_path)) is not first


def test_tokenizer_falls_back_to_a_temporary_folder_where_the_cache_is_a_file(tmp_path, monkeypatch) -> None:
    from tinker_actors.models import tiny

    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TINKER_ACTORS_CACHE", str(blocked))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    for _ in range(2):  # as two processes would
        tiny.tokenizer_directory.cache_clear()
        assert load_tokenizer("tiny-llama").encode("a")
    tiny.tokenizer_directory.cache_clear()
    (folder,) = temporary.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_temporary_folder_that_others_made_is_not_used_for_tokenizers(kind, tmp_path, monkeypatch) -> None:
    from tinker_actors.models import tiny

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINKER_ACTORS_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    theirs.chmod(0o777 if kind == "folder" else 0o700)
    planted = tmp_path / f"tinker-actors-tokenizers-{os.getuid()}"
    if kind == "folder":
        theirs = theirs.rename(planted)
    elif kind == "link":
        planted.symlink_to(theirs)
    else:
        planted.touch()
    assert tiny.written_directory({"tokenizer.json": "{}"}).parent not in (planted, theirs)
    assert not list(theirs.iterdir())


def test_generation_config_adds_stop_tokens_and_templates_are_found(tmp_path) -> None:
    import json

    for name, content in _tiny_files().items():
        (tmp_path / name).write_text(content)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    assert Tokenizer.from_directory(tmp_path).stop_ids == (2, 0)
    (tmp_path / "chat_template.jinja").unlink()
    assert Tokenizer.from_directory(tmp_path).chat_template is None
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    config["eos_token"] = {"content": "<|end|>", "special": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert (tokenizer.chat_template, tokenizer.eos_id) == ("D", 2)


def test_unreadable_tokenizer_is_an_error_that_names_the_file(tmp_path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a tokenizer"):
        Tokenizer.from_directory(tmp_path)


def _tiny_files() -> dict[str, str]:
    from tinker_actors.models.tiny import tokenizer_files

    return tokenizer_files()
