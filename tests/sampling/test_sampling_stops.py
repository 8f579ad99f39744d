from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tinker_actors.sampling.stops import StopStrings, cut_at_stop


class Pieces:
    """Decodes ids by a table of byte pieces, as byte-level tokenizers do."""

    def __init__(self, *pieces):
        self.pieces = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]
        self.longest = 0

    def decode(self, ids):
        self.longest = max(self.longest, len(ids))
        return b"".join(self.pieces[token] for token in ids).decode(errors="replace")


def stops_at(decoder, stops, tokens):
    watcher = StopStrings(decoder, stops)
    return next((position for position, token in enumerate(tokens) if watcher.push(token)), None)


def test_a_stop_string_inside_one_token_is_found():  # T11
    decoder = Pieces("a", "...")
    assert stops_at(decoder, ("..",), [0, 1]) == 1
    assert cut_at_stop(decoder.decode([0, 1]), ("..",)) == "a"


def test_a_stop_string_across_tokens_is_found_at_its_last_token():
    decoder = Pieces("xe", "n", "d", " ")
    assert stops_at(decoder, ("end",), [3, 0, 1, 2, 3]) == 3
    assert stops_at(decoder, ("end",), [0, 1, 3, 2]) is None


def test_the_earliest_of_several_stop_strings_cuts_the_text():
    assert cut_at_stop("one\ntwo END", ("END", "\n")) == "one"
    assert cut_at_stop("nothing here", ("END",)) == "nothing here"


def test_a_character_of_several_tokens_is_waited_for():
    euro = "€".encode()
    decoder = Pieces("a", euro[:1], euro[1:2], euro[2:], "b")
    assert stops_at(decoder, ("€",), [0, 1, 2, 3, 4]) == 3
    assert stops_at(decoder, ("€b",), [0, 1, 2, 3, 4]) == 4
    assert stops_at(decoder, ("ab",), [0, 1, 2, 3, 4]) is None


def test_a_long_sample_is_decoded_in_short_windows():
    decoder = Pieces("word ", "x")
    assert stops_at(decoder, ("dx",), [0] * 500 + [1]) is None
    assert decoder.longest <= 4


def test_a_decoder_that_drops_leading_spaces_still_shows_the_spaces_between_words():
    tokenizer = Tokenizer(models.WordLevel({"▁go": 0, "▁to": 1, "▁?": 2}, unk_token="▁?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    assert tokenizer.decode([0, 1]) == "go to"
    assert stops_at(tokenizer, ("o to",), [0, 1]) == 1
    assert stops_at(tokenizer, ("gogo",), [0, 0]) is None
