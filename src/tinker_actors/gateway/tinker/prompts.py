"""Prompts as clients send them: chunks of tokens, and images as bytes."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from tinker_actors.data import Image, ImageChunk
from tinker_actors.gateway.refusals import RefusalError
from tinker_actors.gateway.tinker.shared import Body, Small
from tinker_actors.models import load_tokenizer
from tinker_actors.models.images import ImageRule

MOST_PARTS = 4096
"""Of a prompt; those that hold nothing take room and time as others do."""


class TextPart(Body):
    """Tokens."""

    type: Literal["encoded_text"]
    tokens: list[Small]


class ImagePart(Body):
    """An image, its bytes in base64."""

    type: Literal["image"]
    data: str
    format: Literal["png", "jpeg"]
    expected_tokens: int | None = None


class AssetPart(Body):
    """An image that lies elsewhere; refused, since the service fetches nothing for its clients."""

    type: Literal["image_asset_pointer"]


class AudioPart(Body):
    """Audio; refused, since no model here takes it."""

    type: Literal["dmel"]


Part: TypeAlias = Annotated[TextPart | ImagePart | AssetPart | AudioPart, Field(discriminator="type")]


class Prompt(Body):
    """A prompt's parts in order."""

    chunks: Annotated[list[Part], Field(max_length=MOST_PARTS)]

    @property
    def has_images(self) -> bool:
        """Whether reading it takes a while."""
        return any(isinstance(part, ImagePart) for part in self.chunks)


Read: TypeAlias = tuple[tuple[int, ...], tuple[ImageChunk, ...]]
"""Token ids, one for each position, and the images whose placeholders are among them."""


def read_text(prompt: Prompt) -> Read:
    """The tokens of a prompt without images; errors as of `read_prompt`."""
    return _read(prompt.chunks, None)


async def read_prompt(prompt: Prompt, base_model: str) -> Read:
    """The tokens and images of a prompt for a base model.

    Args:
        prompt: As it was sent.
        base_model: Its name in the catalogue.

    Raises:
        RefusalError: A part is of a kind that can't be read, or an image takes more positions than the client thought.
        DataError: An image's bytes are none.
        ModelError: The image is too narrow.
    """
    rule = (await asyncio.to_thread(load_tokenizer, base_model)).images
    return await asyncio.to_thread(_read, prompt.chunks, rule)


def _read(parts: Sequence[Part], rule: ImageRule | None) -> Read:
    tokens: list[int] = []
    images: list[ImageChunk] = []
    for place, part in enumerate(parts):
        name = f"prompt.chunks[{place}]"
        if isinstance(part, TextPart):
            tokens += part.tokens
        elif isinstance(part, ImagePart):
            chunk = _image(part, rule, name)
            images.append(chunk)
            tokens += [chunk.placeholder] * chunk.token_count
        else:
            raise _unreadable(f"{name} is of type {part.type!r}; encoded_text or image is needed")
    return tuple(tokens), tuple(images)


def _image(part: ImagePart, rule: ImageRule | None, name: str) -> ImageChunk:
    if rule is None:
        raise _unreadable(f"{name} is an image; this base model reads none")
    try:
        data = base64.b64decode(part.data, validate=True)
    except binascii.Error as error:
        raise _unreadable(f"{name}.data is no base64: {error}") from error
    image = Image.of(data)
    if image.format != part.format:
        raise _unreadable(f"{name}.format is {part.format!r}, but its data is {image.format!r}")
    chunk = rule.chunk(image)
    if part.expected_tokens not in (None, chunk.token_count):
        raise _unreadable(
            f"{name}.expected_tokens is {part.expected_tokens}; the image takes {chunk.token_count} positions"
        )
    return chunk


def _unreadable(detail: str) -> RefusalError:
    return RefusalError(400, detail, code="invalid_request")
