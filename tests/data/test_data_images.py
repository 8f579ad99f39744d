"""Images in messages, model inputs and datums."""

import io
import os
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image as Pillow
from PIL import ImageFile

from tinker_actors.data import (
    EpisodeEnd,
    Image,
    ImageChunk,
    Message,
    ModelInput,
    Trajectory,
    Turn,
    TurnEnd,
    rl_datums,
    sft_datums,
)
from tinker_actors.data.datums import Datum
from tinker_actors.data.images import MOST_PIXELS
from tinker_actors.errors import DataError

PAD = 9


def chunk(tokens, data=b"x"):
    return ImageChunk(data=data, format="png", token_count=tokens, placeholder=PAD)


def encoded(pixels, format):
    written = io.BytesIO()
    Pillow.fromarray(pixels).save(written, format=format)
    return written.getvalue()


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (5, 7, 4)])
def test_an_array_keeps_every_pixel(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    image = Image.of(pixels)
    assert (image.format, image.width, image.height) == ("png", 7, 5)
    assert np.array_equal(np.asarray(Pillow.open(io.BytesIO(image.data))), pixels)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_encoded_bytes_stay_as_they_are(format):
    data = encoded(np.zeros((4, 6, 3), np.uint8), format)
    image = Image.of(data)
    assert (image.data, image.format, image.width, image.height) == (data, format.lower(), 6, 4)


def test_a_pillow_image_of_any_mode_is_taken():
    for mode in ("L", "RGB", "RGBA", "P", "CMYK"):
        assert (Image.of(Pillow.new(mode, (3, 2))).width, Image.of(Pillow.new(mode, (3, 2))).height) == (3, 2)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"no image", "8 bytes were given as an image"),
        (encoded(np.zeros((64, 64, 3), np.uint8), "PNG")[:-20], "can't be read"),
        (np.zeros((4, 4), np.float32), "float32 and shape"),
        (np.zeros((4, 4, 2), np.uint8), r"\(4, 4, 2\)"),
        (np.zeros((0, 4), np.uint8), r"\(0, 4\)"),
        (7, "given as int"),
    ],
)
def test_what_is_no_image_is_refused(source, message):
    with pytest.raises(DataError, match=message):
        Image.of(source)


def test_no_image_has_a_program_of_the_host_run(tmp_path):
    """Pillow has Ghostscript draw PostScript."""
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o700)
    code = (
        "from tinker_actors.data import Image\n"
        "from tinker_actors.errors import DataError\n"
        "try:\n    Image.of(b'%!PS-Adobe-3.0 EPSF-3.0\\n%%BoundingBox: 0 0 9 9\\n%%EndComments\\nshowpage\\n')\n"
        "except DataError as error:\n    print(error)\n"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert "can't be read as one of PNG" in ran.stdout, ran.stderr
    assert not (tmp_path / "ran").exists()


def blank_png(width, height):
    """A PNG of one bit a pixel, which packs a thousandfold."""

    def part(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = part(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    rows = part(b"IDAT", zlib.compress(bytes(1 + (width + 7) // 8) * height))
    return b"\x89PNG\r\n\x1a\n" + head + rows + part(b"IEND", b"")


def test_an_image_of_too_many_pixels_is_refused_before_any_is_unpacked(monkeypatch):
    assert Image.of(blank_png(30, 20)).width == 30
    monkeypatch.setattr(ImageFile.ImageFile, "load", None)
    with pytest.raises(DataError, match=f"8000x7000 pixels; at most {MOST_PIXELS}"):
        Image.of(blank_png(8000, 7000))


def test_whatever_a_decoder_runs_into_is_told_as_an_unreadable_image(monkeypatch):
    def load(_):
        raise IndexError("beyond the end")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with pytest.raises(DataError, match=r"can't be read as one of .*: beyond the end"):
        Image.of(blank_png(3, 2))


def test_a_message_keeps_text_and_images_in_order():
    image = Image.of(np.zeros((8, 4), np.uint8))
    message = Message.of("left ", image, " right", role="tool")
    assert message.parts == ("left ", image, " right")
    assert (message.role, message.content, message.images) == ("tool", "left  right", (image,))
    assert message.shown == "left [image 4x8] right"


def test_text_alone_makes_a_plain_message():
    assert Message.of("a", "b") == Message(role="user", content="ab")
    with pytest.raises(DataError, match="parts say 'b'"):
        Message(role="user", content="a", parts=("b",))


def test_an_input_is_put_together_from_ids_and_images():
    images = (chunk(2, b"1"), chunk(3, b"2"))
    made = ModelInput.of([1, PAD, PAD, PAD, PAD, PAD, 2], images)
    assert [len(part) for part in made.chunks] == [1, 2, 3, 1]
    assert made.images == images
    assert made.tokens == (1, *[PAD] * 5, 2)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, PAD, PAD], "image 0 of 1 has 3 tokens"),
        ([1, 2], "no placeholder 9 left"),
        ([PAD] * 4, "position 3 holds the placeholder 9"),
    ],
)
def test_placeholders_that_do_not_fit_the_images_are_refused(ids, message):
    with pytest.raises(DataError, match=message):
        ModelInput.of(ids, [chunk(3)])


def test_an_input_is_never_cut_through_an_image():
    made = ModelInput.of([1, 2, PAD, PAD, PAD, 3], [chunk(3)])
    assert made.last(4).tokens == (PAD, PAD, PAD, 3)
    assert made.last(1).tokens == (3,)
    assert made.first(1).tokens == (1,)
    assert made.first(5) + made.last(1) == made
    for cut in (made.last, made.first):
        with pytest.raises(DataError, match="goes through an image at 2 to 5"):
            cut(3)


def two_turns():
    """Case T10: an image of 4 positions in turn 1, a tool's image of 6 in turn 2."""
    first = ModelInput.of([1, *[PAD] * 4, 2], [chunk(4, b"1")])
    second = ModelInput.of([4, *[PAD] * 6, 5], [chunk(6, b"2")])
    turns = (
        Turn(observation=first, action=(3,), logprobs=(-0.5,), end=TurnEnd.STOP),
        Turn(observation=second, action=(6, 7), logprobs=(-0.25, -0.125), end=TurnEnd.STOP),
    )
    return Trajectory(seat="agent", policy="p", turns=turns, end=EpisodeEnd.TERMINATED)


def test_a_datum_counts_expanded_images_and_masks_them():
    (datum,) = rl_datums(two_turns(), 1.0)
    assert len(datum) + 1 == 4 + 3 + 4 + 6  # text, actions, images
    assert datum.model_input.images == (chunk(4, b"1"), chunk(6, b"2"))
    assert [index for index, bit in enumerate(datum.mask) if bit] == [5, 14, 15]
    assert all(not bit for bit, target in zip(datum.mask, datum.targets, strict=True) if target == PAD)
    (supervised,) = sft_datums(two_turns())
    assert [index for index, weight in enumerate(supervised.weights) if weight] == [5, 14, 15]


@pytest.mark.parametrize("index", [0, 3])
def test_a_datum_that_trains_a_position_of_an_image_is_refused(index):
    weights = [0.0] * 5
    weights[index] = 1.0
    model_input = ModelInput.of([1, *[PAD] * 4], [chunk(4)])
    with pytest.raises(DataError, match=rf"weights\[{index}\] is 1.0, but that target is a position of an image"):
        Datum(model_input=model_input, targets=(*[PAD] * 4, 2), weights=tuple(weights))


def test_reading_a_size_loads_no_torch():
    code = (
        "import sys, numpy as np\n"
        "from tinker_actors.data import Image\n"
        "from tinker_actors.models import Renderer, load_tokenizer\n"
        "Renderer(load_tokenizer('tiny-qwen2-vl')).tokenizer.images.chunk(Image.of(np.zeros((8, 8), np.uint8)))\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)
