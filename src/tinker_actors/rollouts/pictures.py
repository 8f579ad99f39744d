"""Images in records for people: small, as text of JSON."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

from tinker_actors.data import Image
from tinker_actors.data.images import opened

LONGEST = 64
"""Pixels of the longer side in a record; a larger image is shrunk."""


def picture(image: Image) -> dict[str, Any]:
    """A record of an image: its size, and a PNG of at most `LONGEST` pixels a side as base64 text.

    >>> import numpy as np
    >>> record = picture(Image.of(np.zeros((8, 128), np.uint8)))
    >>> record["width"], record["height"], unpacked(record)
    (128, 8, Image(png, 64x4))
    """
    with opened(image.data) as encoded:
        small = encoded.convert("RGB")
    small.thumbnail((LONGEST, LONGEST))
    written = io.BytesIO()
    small.save(written, format="PNG")
    data = base64.b64encode(written.getvalue()).decode()
    return {"width": image.width, "height": image.height, "png": data}


def unpacked(record: Mapping[str, Any]) -> Image:
    """The small image of a record of `picture`.

    Raises:
        DataError: It holds none that can be read.
    """
    return Image.of(base64.b64decode(record["png"]))
