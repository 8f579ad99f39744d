"""Rows of chat data: what is read from them, and what is said of those that can't be used."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinker_actors.data import Image
from tinker_actors.data.chat_datasets import check_names, open_rows
from tinker_actors.data.chat_files import JsonlFile
from tinker_actors.data.chat_rows import read_chat_row
from tinker_actors.errors import ConfigError, DataError


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def test_messages_are_read_up_to_the_last_assistant_message():
    row = read_chat_row({"messages": [user("a"), assistant("b"), user("c"), assistant("d"), user("e")], "id": 7})
    assert [(message.role, message.content) for message in row.messages] == [
        *(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")),
    ]
    assert row.trained == (False, True, False, True)


def test_what_is_in_the_prompt_or_has_weight_0_is_not_learned():
    row = read_chat_row({"prompt": [user("a"), assistant("b"), user("c")], "completion": [assistant("d")]})
    assert row.trained == (False, False, False, True)
    row = read_chat_row({"messages": [user("a"), assistant("b", weight=0), user("c"), assistant("d", weight=1)]})
    assert row.trained == (False, False, False, True)


def test_tool_calls_and_tools_are_read():
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    row = read_chat_row(
        {
            "messages": [
                user("1+1"),
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "2", "tool_call_id": "x"},
                assistant("2"),
            ],
            "tools": [{"type": "function", "function": {"name": "add"}}],
        }
    )
    (read,) = row.messages[1].tool_calls
    assert (read.id, read.name, json.loads(read.arguments)) == ("x", "add", {"a": 1})
    assert row.messages[2].tool_call_id == "x"
    assert row.tools[0]["function"]["name"] == "add"


def test_a_row_of_a_data_set_with_tools_may_have_none():
    assert read_chat_row({"messages": [user("a"), assistant("b")], "tools": []}).tools == ()


@pytest.mark.parametrize("how", ["path", "data_url", "image_url", "bytes"])
def test_images_are_read_wherever_they_are(tmp_path: Path, how: str):
    image = Image.of(np.arange(64, dtype=np.uint8).reshape(8, 8))
    (tmp_path / "picture.png").write_bytes(image.data)
    url = "data:image/png;base64," + base64.b64encode(image.data).decode()
    part = {
        "path": {"type": "image", "image": "picture.png"},
        "data_url": {"type": "image", "image": url},
        "image_url": {"type": "image_url", "image_url": {"url": url}},
        "bytes": {"type": "image", "image": {"bytes": image.data, "path": None}},
    }[how]
    content = [part, {"type": "text", "text": "which?"}]
    row = read_chat_row({"messages": [{"role": "user", "content": content}, assistant("7")]}, folder=tmp_path)
    assert row.messages[0].parts == (image, "which?")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1], "a row is [1]; an object"),
        ({"text": "a"}, "the row's keys are: text"),
        ({"messages": []}, "messages is []; a list of at least one message"),
        ({"messages": [{"content": "a"}]}, "messages[0] has no role; one of system, user, assistant, tool"),
        ({"messages": [{"role": "bot", "content": "a"}]}, "messages[0].role is 'bot'; one of"),
        ({"messages": [user("a"), assistant("")]}, "messages[1].content is empty; the assistant's text"),
        ({"messages": [user(""), assistant("a")]}, "messages[0].content is empty; the user's text"),
        ({"messages": [user("a")]}, "there is no assistant message to learn; the roles are: user"),
        ({"messages": [user("a"), assistant("b", weight=0)]}, "no assistant message is left to learn"),
        ({"messages": [user("a"), assistant("b", weight=0.5)]}, "messages[1].weight is 0.5; 0 or 1"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content is 3; a text or a list of parts"),
        (
            {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
            "messages[0].content[0] is {'type': 'video'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "image": "gone.png"}]}]},
            "gone.png can't be read: No such file",
        ),
        ({"prompt": "a", "completion": ""}, "completion[0].content is empty"),
    ],
)
def test_what_can_not_be_used_is_named(row: object, message: str):
    with pytest.raises(DataError) as caught:
        read_chat_row(row)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lines_are_found_by_their_number_in_any_order(tmp_path: Path):
    path = tmp_path / "chat.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": "\xc3\xa9"}\n{"a": 3}')
    lines = JsonlFile(path)
    assert len(lines) == 3
    assert [lines.row(index) for index in (2, 0, 1)] == [{"a": 3}, {"a": 1}, {"a": "é"}]
    assert [lines.where(index) for index in range(3)] == [f"{path}:1", f"{path}:4", f"{path}:5"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": }', "not valid JSON: Expecting value at column 7"),
        (b'{"a": "\xff"}', "not UTF-8: byte 7 is 0xff"),
    ],
)
def test_a_line_that_is_not_json_says_what_it_is(tmp_path: Path, line: bytes, message: str):
    (tmp_path / "chat.jsonl").write_bytes(line)
    with pytest.raises(DataError, match=message):
        JsonlFile(tmp_path / "chat.jsonl").row(0)


def test_data_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"gone\.jsonl: no such file"):
        check_names((str(tmp_path / "gone.jsonl"),))
    for name in ("", "chat.csv", "chat", str(tmp_path / "folder"), "./chat"):
        with pytest.raises(ConfigError, match=f"'{name}': no such file or folder, and data sets on a hub are named"):
            check_names((name,))
    check_names(("organisation/name", "organisation/name:config", str(tmp_path)))
    pytest.importorskip("datasets")
    with pytest.raises(ConfigError, match="neither a JSONL, parquet or arrow file nor a folder"):
        open_rows((str(tmp_path),), "train")


def test_data_sets_are_read_from_disk_and_from_parquet(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    rows = [{"messages": [user(f"{number}"), assistant("a")]} for number in range(5)]
    saved, parquet = tmp_path / "saved", tmp_path / "chat.parquet"
    made = datasets.Dataset.from_list(rows)
    datasets.DatasetDict({"train": made, "test": made.select([4])}).save_to_disk(str(saved))
    made.to_parquet(str(parquet))
    (tmp_path / "one.jsonl").write_text(json.dumps(rows[0]) + "\n")
    joined = open_rows((str(saved), str(parquet), str(tmp_path / "one.jsonl")), "train")
    assert len(joined) == 11
    found = [source.row(index) for source, index in map(joined.at, range(11))]
    assert [read_chat_row(row).messages[0].content for row in found] == [*"01234", *"01234", "0"]
    source, index = joined.at(3)
    assert source.where(index) == f"{saved}[3]"
    assert len(open_rows((str(saved),), "test")) == 1
    with pytest.raises(ConfigError, match="has no split 'dev'; it has test, train"):
        open_rows((str(saved),), "dev")


def test_pictures_of_a_data_set_are_read(tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    image = Image.of(np.zeros((4, 4), np.uint8))
    from PIL import Image as Pillow

    picture = Pillow.open(io.BytesIO(image.data))
    made = datasets.Dataset.from_list([{"picture": picture}], features=datasets.Features({"picture": datasets.Image()}))
    content = [{"type": "image", "image": made[0]["picture"]}]
    row = read_chat_row({"messages": [{"role": "user", "content": content}, assistant("0")]})
    assert (row.messages[0].images[0].width, row.messages[0].images[0].height) == (4, 4)
