"""What a model reads: chunks of tokens and images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
        grid: Rows and columns of those positions, where the model arranges them so; else None.
    """

    data: bytes
    format: str
    token_count: int
    placeholder: int
    grid: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.token_count < 1:
            raise DataError(f"token_count of an image is {self.token_count}; an image expands to at least 1 token")
        if self.grid is not None and self.grid[0] * self.grid[1] != self.token_count:
            raise DataError(f"token_count of an image is {self.token_count}, but its grid is {self.grid}")

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
    def of(cls, tokens: Iterable[int], images: Sequence[ImageChunk] = ()) -> ModelInput:
        """An input from its ids, one for each expanded position.

        >>> image = ImageChunk(data=b"...", format="png", token_count=2, placeholder=9)
        >>> [len(chunk) for chunk in ModelInput.of([1, 9, 9, 2], [image]).chunks]
        [1, 2, 1]

        Args:
            tokens: The ids.
            images: The images that their placeholders stand for, in order.

        Raises:
            DataError: The placeholders are not those of the images.
        """
        ids = tuple(tokens)
        if images:
            return cls(chunks=tuple(_with_images(ids, images)))
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

    @property
    def images(self) -> tuple[ImageChunk, ...]:
        """The images, in order."""
        return tuple(chunk for chunk in self.chunks if isinstance(chunk, ImageChunk))

    def first(self, count: int) -> ModelInput:
        """The first `count` positions.

        Raises:
            DataError: The cut would go through an image.
        """
        return ModelInput(chunks=tuple(self._between(0, count)))

    def last(self, count: int) -> ModelInput:
        """The last `count` positions.

        Raises:
            DataError: The cut would go through an image.
        """
        return ModelInput(chunks=tuple(self._between(max(len(self) - count, 0), len(self))))

    def _between(self, start: int, stop: int) -> Iterator[Chunk]:
        end = 0
        for chunk in self.chunks:
            begin, end = end, end + len(chunk)
            low, high = max(start, begin), min(stop, end)
            if low >= high:
                continue
            if isinstance(chunk, TextChunk):
                yield chunk if high - low == len(chunk) else TextChunk(tokens=chunk.tokens[low - begin : high - begin])
            elif high - low == len(chunk):
                yield chunk
            else:
                raise DataError(f"a cut at positions {low} to {high} goes through an image at {begin} to {end}")

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


def _with_images(ids: tuple[int, ...], images: Sequence[ImageChunk]) -> Iterator[Chunk]:
    start = 0
    for number, image in enumerate(images):
        try:
            place = ids.index(image.placeholder, start)
        except ValueError:
            raise DataError(f"image {number} of {len(images)} has no placeholder {image.placeholder} left") from None
        stop = place + image.token_count
        if ids[place:stop] != (image.placeholder,) * image.token_count:
            raise DataError(
                f"image {number} of {len(images)} has {image.token_count} tokens, but not that many placeholders "
                f"{image.placeholder} stand at position {place}"
            )
        if place > start:
            yield TextChunk(tokens=ids[start:place])
        yield image
        start = stop
    if images[0].placeholder in ids[start:]:
        place = ids.index(images[0].placeholder, start)
        raise DataError(f"position {place} holds the placeholder {images[0].placeholder}, but no image is left for it")
    if ids[start:]:
        yield TextChunk(tokens=ids[start:])


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
