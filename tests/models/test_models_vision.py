"""Vision-language models: counting, positions, pixels, and chat templates with images."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedTokenizerFast

from tinker_actors.data import Image, ImageChunk, Message, ModelInput
from tinker_actors.errors import ModelError
from tinker_actors.models import MultiLoraModel, Renderer, load_base, load_tokenizer, resolve, save_model_directory
from tinker_actors.models.images import ImageRule, read_image_rule
from tinker_actors.models.tiny_vision import MODEL_TYPES
from tinker_actors.models.vision import Vision

NAMES = [f"tiny-{name}" for name in MODEL_TYPES]
PAD = 9


def image(height, width, seed=0):
    return Image.of(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def rendered(*parts, name="tiny-qwen2-vl"):
    return Renderer(load_tokenizer(name)).start([Message.of(*parts)]).input


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 4000),
    st.integers(1, 4000),
    st.sampled_from([(14, 2), (16, 2), (8, 2), (14, 1)]),
    st.sampled_from([(56 * 56, 28 * 28 * 1280), (1024, 4096), (65536, 16777216)]),
)
def test_images_are_counted_as_the_processor_counts_them(width, height, cell, pixels):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    patch, merge = cell
    rule = ImageRule(
        placeholder=1, reserved=frozenset(), unsampled=(), patch=patch, merge=merge, min_pixels=pixels[0],
        max_pixels=pixels[1],
    )  # fmt: skip
    size = {"shortest_edge": pixels[0], "longest_edge": pixels[1]}
    theirs = Qwen2VLImageProcessorPil(patch_size=patch, merge_size=merge, size=size)
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(ModelError, match="too narrow"):
            rule.grid(width, height)
        return
    rows, columns = rule.grid(width, height)
    assert rows * columns == theirs.get_number_of_image_patches(height, width) // merge**2


@pytest.mark.parametrize("name", NAMES)
def test_positions_features_and_logits_are_the_models_own(name):
    base = load_base(name)
    row = rendered("see ", image(32, 32), " and ", image(40, 60, 1), image(32, 32), "?", name=name)
    ids = torch.tensor([row.tokens])
    assert [len(chunk) for chunk in row.images] == [4, 8, 4]
    kinds = (ids == PAD).int()
    grids = torch.stack([base.vision.pixels(chunk).grid for chunk in row.images])
    patches = torch.cat([base.vision.pixels(chunk).patches for chunk in row.images])
    positions, following = base.vision.positions([row])
    theirs, delta = base.model.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grids)
    assert torch.equal(positions, theirs)
    assert following.item() == len(row) + delta.item()
    with torch.no_grad():
        ours = base.model(ids, position_ids=positions, **base.vision.arguments(base.model, [row])).logits
        whole = base.model(ids, mm_token_type_ids=kinds, image_grid_thw=grids, pixel_values=patches).logits
    torch.testing.assert_close(ours, whole, atol=1e-5, rtol=0)
    other = rendered("see ", image(32, 32, 5), " and ", image(40, 60, 1), image(32, 32), "?", name=name)
    with torch.no_grad():
        changed = base.model(ids, position_ids=positions, **base.vision.arguments(base.model, [other])).logits
    assert (changed - ours)[0, -1].abs().max() > 1e-2  # the first image matters to the last position


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_takes_no_features_gets_the_pixels(name, monkeypatch):
    base = load_base(name)
    rows = [rendered("a", image(32, 32), image(32, 48, 1), name=name), rendered(image(32, 32), "bc", name=name)]
    vision = base.vision
    skeleton = base.skeleton()
    features = vision.arguments(skeleton, rows)
    plain = skeleton.forward
    skeleton.forward = lambda input_ids, position_ids, pixel_values, image_grid_thw, attention_mask: plain(
        input_ids, attention_mask, position_ids, pixel_values=pixel_values, image_grid_thw=image_grid_thw
    )
    pixels = vision.arguments(skeleton, rows)
    assert set(pixels) == {"pixel_values", "image_grid_thw"}
    width = max(map(len, rows))
    ids = torch.tensor([row.tokens + (0,) * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    positions, _ = vision.positions(rows)
    with torch.no_grad():
        one = base.model(input_ids=ids, attention_mask=mask, position_ids=positions, **features).logits
        other = skeleton(input_ids=ids, attention_mask=mask, position_ids=positions, **pixels).logits
    torch.testing.assert_close(one[mask.bool()], other[mask.bool()], atol=1e-5, rtol=0)


def test_an_image_expands_as_the_processor_expands_its_placeholder():
    spec = resolve("tiny-qwen2-vl")
    theirs = PreTrainedTokenizerFast.from_pretrained(spec.tokenizer_path)
    row = rendered("is ", image(32, 48), " it?")
    content = [{"type": "text", "text": "is "}, {"type": "image"}, {"type": "text", "text": " it?"}]
    text = theirs.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    expanded = text.replace("<|image_pad|>", "<|image_pad|>" * 6)
    assert list(row.tokens) == theirs(expanded, add_special_tokens=False)["input_ids"]


def test_history_is_appended_to_and_its_image_never_expanded_again():  # T10
    renderer = Renderer(load_tokenizer("tiny-qwen2-vl"))
    conversation = [Message.of(image(32, 32), "look")]
    held = renderer.start(conversation).input
    sampled = renderer.encode_action("call")
    held = held + ModelInput.of(sampled)
    conversation.append(Message(role="assistant", content="call"))
    more = renderer.extend(held.tokens, conversation, [Message.of(image(32, 48, 1), role="tool")], sampled)
    assert not more.restarts
    assert [len(chunk) for chunk in more.input.images] == [6]
    whole = held + more.input
    assert [len(chunk) for chunk in whole.images] == [4, 6]
    assert len(whole) == len([token for token in whole.tokens if token != PAD]) + 10
    again = renderer.start([*conversation, Message.of(image(32, 48, 1), role="tool")]).input
    assert whole == again


def test_text_that_spells_an_image_token_is_refused():
    renderer = Renderer(load_tokenizer("tiny-qwen2-vl"))
    with pytest.raises(ModelError, match=r"'<\|image_pad\|>' 1 times for 0 images"):
        renderer.start([Message(role="user", content="a <|image_pad|>")])
    with pytest.raises(ModelError, match="2 times for 1 images"):
        renderer.start([Message.of("a <|image_pad|>", image(32, 32))])


def test_a_model_or_template_that_takes_no_image_says_so():
    takes = "{% for m in messages %}{{ m.content | string }}{% endfor %}"
    for template in (None, takes):
        with pytest.raises(ModelError, match="a message has an image of 32x32; the model reads text alone"):
            Renderer(load_tokenizer("tiny-llama"), template).start([Message.of(image(32, 32))])
    refuses = "{% for m in messages %}{{ '<|user|>' + m.content }}{% endfor %}"
    with pytest.raises(ModelError, match=r"the chat template can.t render .*an image is among them"):
        Renderer(load_tokenizer("tiny-qwen2-vl"), refuses).start([Message.of(image(32, 32))])


def test_inputs_that_the_model_would_misread_are_refused():
    vision = load_base("tiny-qwen2-vl").vision
    right = vision.rule.chunk(image(32, 32))
    vision.check(ModelInput(chunks=(right,)))

    def wrong(**changes):
        fields = {"data": right.data, "format": "png", "token_count": 4, "placeholder": PAD, **changes}
        return ModelInput(chunks=(ImageChunk(**fields),))

    for changes, message in (
        ({"placeholder": 8}, "placeholder 8; this model's is 9"),
        ({"token_count": 5}, "token_count 5 .* reads it as 2x2 = 4 positions"),
        ({"grid": (1, 4)}, r"grid \(1, 4\); this model reads it as 2x2"),
        ({"data": b"torn"}, r"image of 4 bytes \(png\) can't be read"),
    ):
        with pytest.raises(ModelError, match=message):
            vision.check(wrong(**changes))
    for tokens, reserved in (([1, 2, 10], 10), ([1, 2, 10, 9], 10), ([1, 2, 9, 10], 9)):
        with pytest.raises(ModelError, match=f"position 2 holds token {reserved}, which stands for an image"):
            vision.check(ModelInput.of(tokens))
    with pytest.raises(ModelError, match="token_count 5; this model reads it as 2x2"):
        vision.positions([wrong(token_count=5)])


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(monkeypatch):
    vision = Vision.read(resolve("tiny-qwen2-vl").tokenizer_path)
    chunk = vision.rule.chunk(image(32, 32))
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ModelError, match=r"can't be read: .*Image size \(1024 pixels\) exceeds limit"):
        vision.check(ModelInput(chunks=(chunk,)))


def test_pixels_that_a_sampler_prepared_can_be_trained_on():
    spec = resolve("tiny-qwen2-vl")
    vision = Vision.read(spec.tokenizer_path)
    with torch.inference_mode():
        first = vision.pixels(vision.rule.chunk(image(32, 32)))
    assert not first.patches.is_inference()
    assert vision.pixels(vision.rule.chunk(image(32, 32))) is first  # kept, not prepared again


def test_an_adapter_of_the_vision_tower_is_refused(tmp_path):
    base = load_base("tiny-qwen2-vl")
    config = LoraConfig(r=2, target_modules=["qkv"], task_type="CAUSAL_LM")
    get_peft_model(base.skeleton(), config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"adapts model\.visual\.blocks\.0\.attn\.qkv, which the base does not have"):
        MultiLoraModel(base.skeleton()).load(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_loads_with_its_image_rule(name, tmp_path):
    base = load_base(name)
    path = save_model_directory(base.model, name, tmp_path / "saved")
    again = load_base(str(path))
    assert again.vision.rule == base.vision.rule
    assert type(again.model) is type(base.model)
    row = rendered(image(32, 48), "x", name=str(path))
    assert row == rendered(image(32, 48), "x", name=name)
    positions, _ = again.vision.positions([row])
    logits = []
    for entry in (base, again):
        images = entry.vision.arguments(entry.model, [row])
        logits.append(entry.model(torch.tensor([row.tokens]), position_ids=positions, **images).logits)
    torch.testing.assert_close(*logits, atol=1e-6, rtol=0)
    again.release()


QWEN2_5 = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "merge_size": 2}
QWEN3 = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16}
SAVED = {"image_processor": {"patch_size": 16, "size": {"shortest_edge": 4096, "longest_edge": 9216}}}


@pytest.mark.parametrize(
    ("processor", "wanted"),
    [
        ({"preprocessor_config.json": QWEN2_5}, (14, 3136, 12845056)),
        ({"preprocessor_config.json": QWEN3}, (16, 65536, 16777216)),
        ({"processor_config.json": SAVED}, (16, 4096, 9216)),
        ({}, (14, 3136, 1003520)),
    ],
)
def test_the_rule_is_read_from_every_layout_of_published_models(tmp_path, processor, wanted):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl", "image_token_id": 151655}))
    for name, content in processor.items():
        (tmp_path / name).write_text(json.dumps(content))
    rule = read_image_rule(tmp_path)
    assert (rule.patch, rule.min_pixels, rule.max_pixels) == wanted
    grid = rule.grid(300, 200)
    shown = Image.of(np.zeros((200, 300, 3), np.uint8))
    assert tuple(Vision(rule, tmp_path).pixels(rule.chunk(shown)).grid.tolist()) == (1, 2 * grid[0], 2 * grid[1])
    assert rule.reserved == {151655, 151656}
    assert rule.unsampled == (151652, 151653, 151655, 151656)
