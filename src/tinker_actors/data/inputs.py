"""What a model reads: chunks of tokens and images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from tinker_actors.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChunk:
    """A run of token ids."""

    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        for position, token in enumerate(self.tokens):
            if token < 0:
                raise DataError(f"token {position} of a text chunk is {token}; token ids are not negative")

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageChunk:
    """An encoded image and the exact number of positions that it expands to.

    Attributes:
        data: The encoded bytes.
        format: The encoding, such as "png" or "jpeg".
        token_count: Positions in the model's input once expanded.
        placeholder: The token id that stands at each of those positions.
    """

    data: bytes
    format: str
    token_count: int
    placeholder: int

    def __post_init__(self) -> None:
        if self.token_count < 1:
            raise DataError(f"token_count of an image is {self.token_count}; an image expands to at least 1 token")

    def __len__(self) -> int:
        return self.token_count


Chunk = TextChunk | ImageChunk


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """Chunks in order. `len` counts expanded positions.

    >>> ModelInput.of([1, 2]) + ModelInput.of([3])
    ModelInput(chunks=(TextChunk(tokens=(1, 2, 3)),))
    """

    chunks: tuple[Chunk, ...] = ()

    @classmethod
    def of(cls, tokens: Iterable[int]) -> ModelInput:
        """A text-only input."""
        ids = tuple(tokens)
        return cls(chunks=(TextChunk(tokens=ids),)) if ids else cls()

    def __len__(self) -> int:
        return sum(len(chunk) for chunk in self.chunks)

    def __add__(self, other: ModelInput) -> ModelInput:
        left, right = self.chunks, other.chunks
        if left and right and isinstance(left[-1], TextChunk) and isinstance(right[0], TextChunk):
            joined = TextChunk(tokens=left[-1].tokens + right[0].tokens)
            return ModelInput(chunks=(*left[:-1], joined, *right[1:]))
        return ModelInput(chunks=left + right)

    @property
    def is_text(self) -> bool:
        """Whether every chunk is text."""
        return all(isinstance(chunk, TextChunk) for chunk in self.chunks)

    @property
    def tokens(self) -> tuple[int, ...]:
        """One id per expanded position; an image's positions hold its placeholder. Shape (n,)."""
        return tuple(
            chain.from_iterable(
                chunk.tokens if isinstance(chunk, TextChunk) else (chunk.placeholder,) * chunk.token_count
                for chunk in self.chunks
            )
        )

    def without_last(self) -> ModelInput:
        """Everything but the last position, which must be text.

        Raises:
            DataError: The input is empty or ends in an image.
        """
        last = self.chunks[-1] if self.chunks else None
        if not isinstance(last, TextChunk):
            raise DataError("the last position of a model input must be a text token to be a target")
        rest, kept = self.chunks[:-1], last.tokens[:-1]
        return ModelInput(chunks=(*rest, TextChunk(tokens=kept)) if kept else rest)


def concatenate(inputs: Sequence[ModelInput]) -> ModelInput:
    """Join inputs in order, merging text that meets; linear in the total length."""
    chunks: list[Chunk] = []
    pending: list[int] = []
    for chunk in chain.from_iterable(part.chunks for part in inputs):
        if isinstance(chunk, TextChunk):
            pending.extend(chunk.tokens)
            continue
        if pending:
            chunks.append(TextChunk(tokens=tuple(pending)))
            pending.clear()
        chunks.append(chunk)
    if pending:
        chunks.append(TextChunk(tokens=tuple(pending)))
    return ModelInput(chunks=tuple(chunks))
