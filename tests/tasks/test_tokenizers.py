"""Tokenisers: text comes back, bytes are counted, and files of others can be used."""

import io

import numpy as np
import pytest

from recombine.cli.generate import decode_stream
from recombine.foundation.errors import InputError
from recombine.tasks.language.tokenizers import ByteTokenizer, load_tokenizer, read_tokenizer, train_sentencepiece

TEXT = "def  f(x):\n    return 'naïve 🙂'  # 12345\n"


@pytest.fixture(scope="module")
def sentencepiece():
    pytest.importorskip("sentencepiece")
    lines = (
        f"line {number} of a file, with words such as {number * 7919 % 997}\n    indented" for number in range(300)
    )
    return load_tokenizer(train_sentencepiece(lines, 512), 512)


@pytest.fixture(scope="module")
def from_file(tmp_path_factory):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet
    )
    model.train_from_iterator(["some text to train on, some text"], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    model.save(str(path))
    return load_tokenizer(read_tokenizer(str(path)))


@pytest.fixture(params=["bytes", "sentencepiece", "from_file"])
def tokenizer(request):
    return ByteTokenizer() if request.param == "bytes" else request.getfixturevalue(request.param)


def test_text_comes_back_and_its_bytes_are_counted(tokenizer):
    tokens = tokenizer.encode(TEXT)
    assert tokenizer.decode(tokens) == TEXT
    assert tokenizer.num_bytes[tokens].sum() == len(TEXT.encode())
    assert not tokenizer.num_bytes[[tokenizer.bos, tokenizer.eos]].any()
    assert tokenizer.decode([tokenizer.bos, *tokens, tokenizer.eos]) == TEXT
    assert max(*tokens, *tokenizer.rare) < tokenizer.size
    assert len(set(tokenizer.rare)) >= 128
    again = load_tokenizer(tokenizer.content, tokenizer.size)
    assert again.encode(TEXT) == tokens
    assert np.array_equal(again.num_bytes, tokenizer.num_bytes)


def test_what_is_no_tokenizer_is_an_error():
    with pytest.raises(
        InputError, match=r"tokenizer 'nothing' cannot be read .*: expected bytes, sentencepiece, or a file"
    ):
        read_tokenizer("nothing")
    pytest.importorskip("tokenizers")
    with pytest.raises(InputError, match=r"expected a working tokenizer\.json"):
        load_tokenizer(b"{}")
    pytest.importorskip("sentencepiece")
    with pytest.raises(InputError, match=r"expected a \.model file"):
        load_tokenizer(b"nothing")
    with pytest.raises(InputError, match="vocabulary is 100: expected at least 512"):
        train_sentencepiece(iter(["text"]), 100)


def test_bytes_of_characters_without_a_piece_are_counted():
    tokenizers = pytest.importorskip("tokenizers")
    pieces = ["<s>", "</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "\u2581a"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    model = tokenizers.models.BPE(vocabulary, [("\u2581", "a")], unk_token="<unk>", byte_fallback=True)
    whole = tokenizers.Tokenizer(model)
    whole.add_special_tokens(["<s>", "</s>", "<unk>"])
    whole.normalizer = tokenizers.normalizers.Replace(" ", "\u2581")
    tokenizer = load_tokenizer(whole.to_str().encode())
    text = " aa é\n"
    tokens = tokenizer.encode(text)
    assert tokenizer.num_bytes[tokens].sum() == len(text.encode())


def test_continuing_pieces_of_words_have_no_prefix_in_the_text():
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordPiece({"[UNK]": 0, "[SEP]": 1, "play": 2, "##ing": 3}, unk_token="[UNK]")
    tokenizer = load_tokenizer(tokenizers.Tokenizer(model).to_str().encode())
    assert tokenizer.num_bytes[tokenizer.encode("playing")].tolist() == [4, 3]


def test_a_stream_of_tokens_gives_whole_characters(tokenizer):
    tokens = tokenizer.encode(TEXT)
    pieces = list(decode_stream(tokens, tokenizer, prompt=[tokenizer.bos]))
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    assert len(pieces) > 5  # as they come, not at the end
    assert "".join(decode_stream(tokens[:-9], tokenizer, prompt=tokens)) == tokenizer.decode(tokens[:-9])


def test_a_generated_word_keeps_its_space_behind_the_prompt():
    """A SentencePiece model of the usual kind writes a space before every word and drops the first when it decodes."""
    package, written = pytest.importorskip("sentencepiece"), io.BytesIO()
    lines = [f"the cat sat on the mat and the dog ran to river {number}" for number in range(300)]
    package.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=written, vocab_size=330, model_type="bpe", minloglevel=2
    )
    tokenizer = load_tokenizer(written.getvalue())
    prompt = [tokenizer.bos, *tokenizer.encode("the cat")]
    generated = tokenizer.encode("sat on the mat")
    assert tokenizer.decode(generated) == "sat on the mat"
    assert "".join(decode_stream(generated, tokenizer, prompt)) == " sat on the mat"
