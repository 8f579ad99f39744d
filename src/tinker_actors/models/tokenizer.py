"""A tokenizer as rollout workers need it: the Rust `tokenizers` library and nothing heavier.

Encoding never adds special tokens by itself: what a prompt holds is decided by the chat template, so a template that
writes the beginning-of-sequence token yields exactly one of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from tinker_actors.errors import ModelError
from tinker_actors.models.images import ImageRule, read_image_rule
from tinker_actors.models.json_files import read_json


def _letters_of_bytes() -> dict[str, int]:
    """Byte-level tokenizers write each byte as a letter: itself where it is one that can be seen, else one above 255.

    Source: Radford et al. 2019, the `bytes_to_unicode` table of GPT-2.
    """
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), 256)]
    others = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _letters_of_bytes()
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How tokenizers with a fallback to bytes write one."""


def half_pair(text: str) -> str | None:
    """The first half of a surrogate pair in a text, which no tokenizer takes; None in Unicode text."""
    return next((letter for letter in text if "\ud800" <= letter <= "\udfff"), None)


class Tokenizer:
    """Token ids to text and back, with the special tokens and the chat template of one model.

    Attributes:
        eos_id: The token that ends a text, or None.
        bos_id: The token that begins a text, or None.
        pad_id: The padding token, or None; never a reason to mask anything.
        adds_bos: Whether the model expects plain text to begin with `bos_id`.
        special_ids: Ids of the control tokens, which are not part of an action's text.
        stop_ids: Tokens that end generation by the model's own configuration, `eos_id` first.
        chat_template: The model's own chat template (Jinja), or None.
        images: How the model counts images; None if it reads none.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        eos_token: str | None = None,
        bos_token: str | None = None,
        pad_token: str | None = None,
        chat_template: str | None = None,
        extra_stop_ids: Iterable[int] = (),
        images: ImageRule | None = None,
    ) -> None:
        self._backend = backend
        self.eos_token, self.bos_token, self.pad_token = eos_token, bos_token, pad_token
        self.eos_id = self._id_of("eos", eos_token)
        self.bos_id = self._id_of("bos", bos_token)
        self.pad_id = self._id_of("pad", pad_token)
        self.chat_template = chat_template
        self.images = images
        added = backend.get_added_tokens_decoder()
        self._bytewise = backend.decoder is not None and b"ByteLevel" in backend.decoder.__getstate__()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        eos = () if self.eos_id is None else (self.eos_id,)
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys((*eos, *extra_stop_ids)))
        self.adds_bos = self.bos_id is not None and backend.encode("").ids[:1] == [self.bos_id]

    @classmethod
    def from_directory(cls, path: str | Path) -> Tokenizer:
        """Load `tokenizer.json` with its configuration, its chat template and the way in which images are counted.

        Raises:
            ModelError: A file is missing or can't be read.
        """
        folder = Path(path)
        source = folder / "tokenizer.json"
        if not source.is_file():
            raise ModelError(f"{folder} has no tokenizer.json; a tokenizer directory with one is needed")
        try:
            backend = Backend.from_file(str(source))
        except Exception as error:  # the Rust library raises bare Exception for every kind of bad file
            raise ModelError(f"{source} is not a tokenizer that can be read: {error}") from error
        config = read_json(folder / "tokenizer_config.json")
        fallback = read_json(folder / "special_tokens_map.json")
        tokens = {
            key: _token_text(config.get(key, fallback.get(key))) for key in ("eos_token", "bos_token", "pad_token")
        }
        return cls(
            backend,
            eos_token=tokens["eos_token"],
            bos_token=tokens["bos_token"],
            pad_token=tokens["pad_token"],
            chat_template=read_chat_template(folder),
            extra_stop_ids=_generation_stop_ids(folder),
            images=read_image_rule(folder),
        )

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; a model's embedding may have more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def to_json(self) -> str:
        """The contents of a `tokenizer.json` that makes this tokenizer."""
        return self._backend.to_str()

    def encode(self, text: str, *, after: str = "") -> list[int]:
        """Ids of `text`. Special tokens written in the text become their ids; none are added.

        Args:
            text: The text.
            after: What it goes on from. Some tokenizers begin a text with a space, which has no place amid one.

        Raises:
            ModelError: UTF-8 can't write the text: half of a surrogate pair is in it.
        """
        try:
            ids = self._backend.encode(after + text, add_special_tokens=False).ids
        except TypeError:
            half = half_pair(text)
            if half is None:
                raise
            raise ModelError(f"the text holds {half!r}, half of a surrogate pair; Unicode text is needed") from None
        if not after:
            return ids
        before = self.encode(after)
        # where a token lies across the boundary, the text has ids of its own all the same
        return ids[len(before) :] if ids[: len(before)] == before else self.encode(text)

    def encode_from_start(self, text: str) -> list[int]:
        """Ids of a text as the model expects texts to begin: with `bos_id` once, if it does."""
        ids = self.encode(text)
        return [self.bos_id, *ids] if self.adds_bos and self.bos_id is not None and ids[:1] != [self.bos_id] else ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Text of `ids`; special tokens are written out unless `skip_special`."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special)

    def token_text(self, token: int) -> str:
        """Text of one token; a token of part of a character reads as the replacement character.

        Raises:
            ModelError: The vocabulary has no such id.
        """
        if self._backend.id_to_token(token) is None:
            raise ModelError(f"token id {token} is not in the vocabulary of {self.vocab_size} tokens")
        return self._backend.decode([token], skip_special_tokens=False)

    def token_bytes(self, token: int) -> bytes:
        """Bytes of one token, which may be part of a character.

        Raises:
            ModelError: The vocabulary has no such id.
        """
        written = self._backend.id_to_token(token) or ""
        if written and token not in self.special_ids:
            if self._bytewise and all(letter in _BYTES for letter in written):
                return bytes(_BYTES[letter] for letter in written)
            if (found := _BYTE.fullmatch(written)) is not None:
                return bytes.fromhex(found[1])
        return self.token_text(token).encode()

    def token_id(self, token: str) -> int | None:
        """Id of the one token spelled `token`, or None."""
        return self._backend.token_to_id(token)

    def _id_of(self, role: str, token: str | None) -> int | None:
        if token is None:
            return None
        index = self._backend.token_to_id(token)
        if index is None:
            raise ModelError(f"the {role} token {token!r} is not in the tokenizer's vocabulary")
        return index


def read_chat_template(folder: Path) -> str | None:
    """The chat template of a model directory: its own file first, then the tokenizer's configuration."""
    own = folder / "chat_template.jinja"
    if own.is_file():
        return own.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = read_json(folder / name).get("chat_template")
        if isinstance(template, list):  # several named ones
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default", next(iter(named.values()), None))
        if template:
            return template
    return None


def _token_text(entry: Any) -> str | None:
    if isinstance(entry, dict):
        return entry.get("content")
    return entry


def _generation_stop_ids(folder: Path) -> tuple[int, ...]:
    eos = read_json(folder / "generation_config.json").get("eos_token_id")
    if eos is None:
        return ()
    return tuple(eos) if isinstance(eos, list) else (eos,)
