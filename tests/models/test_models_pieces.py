"""Tokens as pieces of text: whole characters, control tokens, images."""

from itertools import pairwise

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.decoders import Metaspace as MetaspaceDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from tinker_actors.models import load_tokenizer
from tinker_actors.models.pieces import pieces
from tinker_actors.models.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def bytewise():
    """A byte-level tokenizer that has a token for every byte and no merges: each character is as many as its bytes."""
    vocabulary = {sign: index for index, sign in enumerate(sorted(ByteLevel.alphabet()))}
    backend = Backend(BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken("<|end|>", special=True)])
    return Tokenizer(backend, eos_token="<|end|>")


def test_characters_of_several_tokens_are_one_piece(bytewise):
    ids = bytewise.encode("né€😀!<|end|>")
    found = pieces(bytewise, ids)
    assert [piece.text for piece in found] == ["n", "é", "€", "😀", "!", "<|end|>"]
    assert [piece.stop - piece.start for piece in found] == [1, 2, 3, 4, 1, 1]
    assert [piece.special for piece in found] == [False] * 5 + [True]


def test_what_is_no_whole_character_stays_apart_and_loses_no_token(bytewise):
    euro = bytewise.encode("€")
    ids = [*euro[:2], *bytewise.encode("<|end|>"), *euro, euro[1], *bytewise.encode("a")]
    found = pieces(bytewise, ids)
    assert [piece.text for piece in found if "\ufffd" not in piece.text] == ["<|end|>", "€", "a"]
    assert found[0].start == 0
    assert all(one.stop == other.start for one, other in pairwise(found))
    assert found[-1].stop == len(ids)


def test_no_piece_goes_over_a_cut(bytewise):
    ids = bytewise.encode("€")
    assert [(piece.start, piece.stop) for piece in pieces(bytewise, ids, cuts=[1])] == [(0, 1), (1, 2), (2, 3)]


def test_an_images_positions_are_one_piece():
    tokenizer = load_tokenizer("tiny-qwen2-vl")
    image = tokenizer.images.placeholder
    found = pieces(tokenizer, [*tokenizer.encode("a"), image, image, image, *tokenizer.encode("b")])
    assert [piece.text for piece in found] == ["a", "[image: 3 tokens]", "b"]


def test_an_id_outside_the_vocabulary_is_named(bytewise):
    assert pieces(bytewise, [10_000])[0].text == "[token 10000]"


def test_pieces_read_as_the_whole_does(bytewise):
    text = "Wörter und 漢字, naïve 🙂👍🏽  two  spaces\n\ttab"
    assert "".join(piece.text for piece in pieces(bytewise, bytewise.encode(text))) == text


def test_a_space_before_a_word_stays_where_a_decoder_drops_the_first_one():
    vocabulary = {"▁one": 0, "▁two": 1, "<unk>": 2}
    backend = Backend(BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    backend.decoder = MetaspaceDecoder()
    assert [piece.text for piece in pieces(Tokenizer(backend), [0, 1])] == ["one", " two"]
