"""Byte-level BPE tokenizers: files, special tokens, bytes, and equality with transformers."""

from __future__ import annotations

import json
import random
import unicodedata
from pathlib import Path

import gguf
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen_jax.gguf_file import GGUFError
from ragen_jax.tokenizers import BPETokenizer, TokenizerError, load_tokenizer

TEXTS = [
    "You are solving the Sokoban puzzle. Push the box √ to the goal.\n#P_√X#\n<answer>Up || Down</answer>",
    "Turn 1: the player (P) is at 3, 4; nothing changed.",
]


# -- byte-level BPE from a folder ----------------------------------------------------------------------------
def tiny_backend(prefix_space: bool = False) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.normalizer = tokenizers.normalizers.NFC()
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS * 3, trainer)
    backend.add_tokens([tokenizers.AddedToken("<tool>", special=False, normalized=False)])
    return backend


@pytest.fixture(scope="module")
def backend() -> tokenizers.Tokenizer:
    return tiny_backend()


def write_folder(folder: Path, backend: tokenizers.Tokenizer, **configs: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    for name, content in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_folder_ends_turns_as_its_files_say(tmp_path: Path, backend: tokenizers.Tokenizer) -> None:
    end, im_end = backend.token_to_id("<|endoftext|>"), backend.token_to_id("<|im_end|>")
    both = {"generation_config": {"eos_token_id": [im_end, end]}, "config": {"eos_token_id": im_end}}
    configs = {"tokenizer_config": {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>"}}
    assert BPETokenizer.from_folder(write_folder(tmp_path / "a", backend, **both)).eos_ids == (im_end, end)
    second = BPETokenizer.from_folder(write_folder(tmp_path / "b", backend, **configs))
    assert (second.eos_ids, second.pad_id) == ((im_end,), end)
    third = load_tokenizer(tmp_path / "a" / "tokenizer.json", eos=("<|endoftext|>",))
    assert (third.eos_ids, third.pad_id) == ((end,), end)
    with pytest.raises(TokenizerError, match="eos="):
        BPETokenizer.from_folder(write_folder(tmp_path / "c", backend))
    with pytest.raises(TokenizerError, match=r"<\|stop\|>"):
        BPETokenizer.from_folder(
            write_folder(tmp_path / "d", backend, tokenizer_config={"eos_token": "<|stop|>"})
        )


def test_folder_protocol_and_saving(tmp_path: Path, backend: tokenizers.Tokenizer) -> None:
    folder = write_folder(tmp_path / "a", backend, generation_config={"eos_token_id": [2, 0]})
    tokenizer = load_tokenizer(folder)
    assert isinstance(tokenizer, BPETokenizer)
    pieces = tokenizer.token_bytes()
    tool = backend.token_to_id("<tool>")
    assert tokenizer.vocab_size == len(pieces) == tool + 1
    assert pieces[tool] == b"<tool>", "an added token that is not special is text"
    assert [i for i, b in enumerate(pieces) if not b] == [0, 1, 2] == sorted(tokenizer.special_ids().values())
    assert {bytes([b]) for b in range(256)} <= set(pieces)
    text = "<|im_start|>Up\n<tool> the box √ é\x00<|im_end|>"
    ids = tokenizer.encode(text)
    assert ids[0] == 1
    assert ids[-1] == 2
    assert tool in ids
    assert tokenizer.decode(ids) == text
    assert b"".join(pieces[i] for i in ids).decode() == text[len("<|im_start|>") : -len("<|im_end|>")]
    with pytest.raises(IndexError, match="id 9999"):
        tokenizer.decode([9999])
    tokenizer.save(tmp_path / "b")
    again = load_tokenizer(tmp_path / "b")
    assert again == tokenizer
    assert again.fingerprint == tokenizer.fingerprint
    assert again.fingerprint != load_tokenizer(folder, eos=("<|im_end|>",)).fingerprint


@given(st.text(max_size=40))
@settings(deadline=None)
def test_bytes_are_the_normalised_text(text: str) -> None:
    tokenizer = BPETokenizer(TINY, eos_ids=[2])
    pieces = tokenizer.token_bytes()
    assert b"".join(pieces[i] for i in tokenizer.encode(text)) == unicodedata.normalize("NFC", text).encode()


TINY = tiny_backend()


def test_folder_files_refused(tmp_path: Path, backend: tokenizers.Tokenizer) -> None:
    path = write_folder(tmp_path, backend, config={"eos_token_id": 2}) / "tokenizer.json"
    whole = path.read_text()
    foreign = json.loads(whole)
    foreign["model"]["vocab"] = {"a": 0}
    for content, words in [
        (whole[: len(whole) // 2], "broken JSON"),
        ("{}", "no model"),
        (json.dumps(foreign), "refuses it"),
        ("\x00" * 10, "broken JSON"),
    ]:
        path.write_text(content)
        with pytest.raises(TokenizerError, match=words) as error:
            load_tokenizer(tmp_path)
        assert str(path) in str(error.value)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TokenizerError, match="not a text file"):
        load_tokenizer(tmp_path)


def test_other_tokenizers_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="space before every text"):
        BPETokenizer(tiny_backend(prefix_space=True), eos_ids=[2])
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    with pytest.raises(TokenizerError, match="WordLevel"):
        BPETokenizer(words, eos_ids=[0])
    with pytest.raises(TokenizerError, match="no end-of-turn token"):
        BPETokenizer(TINY, eos_ids=[])
    with pytest.raises(TokenizerError, match="eos id 5000"):
        BPETokenizer(TINY, eos_ids=[5000])
    with pytest.raises(TokenizerError, match="holds neither"):
        load_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match="no such file"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "vocab.txt").write_text("a")
    with pytest.raises(TokenizerError, match="expected a"):
        load_tokenizer(tmp_path / "vocab.txt")


# -- byte-level BPE from GGUF --------------------------------------------------------------------------------
def write_gguf(path: Path, backend: tokenizers.Tokenizer, pre: str, **replace: object) -> Path:
    content = json.loads(backend.to_str())
    vocab = backend.get_vocab()
    tokens = [t for t, _ in sorted(vocab.items(), key=lambda item: item[1])]
    special = {t["content"]: t["special"] for t in content["added_tokens"]}
    kinds = [1 if t not in special else 3 if special[t] else 4 for t in tokens]
    fields: dict = {
        "tokens": [*tokens, "[PAD0]"],
        "types": [*kinds, 5],
        "merges": [" ".join(pair) for pair in content["model"]["merges"]],
        "model": "gpt2",
    } | replace
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(fields["model"])
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(fields["tokens"])
    writer.add_token_types(fields["types"])
    writer.add_token_merges(fields["merges"])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_tokenizer(tmp_path: Path, backend: tokenizers.Tokenizer) -> None:
    smol = load_tokenizer(write_gguf(tmp_path / "a.gguf", backend, "smollm"))
    assert isinstance(smol, BPETokenizer)
    assert (smol.eos_ids, smol.pad_id) == ((2,), 0)
    assert smol.vocab_size == backend.get_vocab_size(), "the unused token is left out"
    assert smol.special_ids() == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert smol.token_bytes()[smol.encode("<tool>")[0]] == b"<tool>"
    qwen = load_tokenizer(write_gguf(tmp_path / "b.gguf", backend, "qwen2"))
    llama = load_tokenizer(write_gguf(tmp_path / "c.gguf", backend, "llama-bpe"), eos=("<|endoftext|>",))
    assert llama.eos_ids == (0,)
    text = "Turn 1: the player's box (P) is at 31415, 4;\n\n  e\u0301 \u00e9 <|im_end|>"
    for tokenizer in (smol, llama):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert qwen.decode(qwen.encode(text)) == unicodedata.normalize("NFC", text)
    assert load_tokenizer(smol.save(tmp_path / "saved")) == smol


def test_gguf_digit_rules(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    backend.train_from_iterator(["1111111111"] * 5, trainer)
    count = {}
    for pre in ("smollm", "qwen2", "llama-bpe"):
        tokenizer = load_tokenizer(write_gguf(tmp_path / f"{pre}.gguf", backend, pre))
        assert isinstance(tokenizer, BPETokenizer)
        count[pre] = [len(tokenizer.token_bytes()[i]) for i in tokenizer.encode("1111111")]
    assert set(count["smollm"]) == set(count["qwen2"]) == {1}
    assert max(count["llama-bpe"]) in (2, 3)
    assert sum(count["llama-bpe"]) == 7


def test_gguf_tokenizers_refused(tmp_path: Path, backend: tokenizers.Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="'llama'; only"):
        load_tokenizer(write_gguf(tmp_path / "a.gguf", backend, "smollm", model="llama"))
    with pytest.raises(TokenizerError, match="'tekken'"):
        load_tokenizer(write_gguf(tmp_path / "b.gguf", backend, "tekken"))
    with pytest.raises(TokenizerError, match="do not fit"):
        load_tokenizer(write_gguf(tmp_path / "c.gguf", backend, "qwen2", merges=["zz yy"]))
    with pytest.raises(TokenizerError, match="token types"):
        load_tokenizer(write_gguf(tmp_path / "d.gguf", backend, "qwen2", types=[1, 1]))
    with pytest.raises(GGUFError, match="no such file"):
        load_tokenizer(tmp_path / "e.gguf")
    whole = write_gguf(tmp_path / "f.gguf", backend, "qwen2").read_bytes()
    (tmp_path / "g.gguf").write_bytes(b"PK" + whole)
    with pytest.raises(GGUFError, match="not a GGUF file"):
        load_tokenizer(tmp_path / "g.gguf")
    for size in (5, 20, 100, len(whole) // 2):
        (tmp_path / "h.gguf").write_bytes(whole[:size])
        with pytest.raises(GGUFError, match="cut short"):
            load_tokenizer(tmp_path / "h.gguf")


# -- parity --------------------------------------------------------------------------------------------------
def random_strings(count: int, seed: int) -> list[str]:
    """Text of many kinds: words, numbers, runs of spaces, code, scripts, emoji, control characters."""
    rng = random.Random(seed)
    words = ["the", "Up", "state", "I'm", "don't", "we'll", "it's", "naïve", "Grüße", "Ωmega", "привет"]
    words += ["世界", "你好", "こんにちは", "مرحبا", "हिन्दी"]
    code = [
        "def f(x):",
        "    return x**2",
        "\tif a != b && c:",
        "{'k': [1, 2]}",
        "</think>",
        "<answer>",
        "||",
        "#P_√#",
    ]
    odd = [
        "½",
        "Ⅷ",
        "٣",
        "²",
        "🙂",
        "👩‍👩‍👧",
        "e\u0301",
        "\u00a0",
        "\u3000",
        "\r\n",
        "\x04",
        "\x7f",
        "\ufeff",
        "𝟘",
    ]

    def piece() -> str:
        kind = rng.randrange(8)
        if kind == 0:
            return rng.choice(words)
        if kind == 1:
            return str(rng.randrange(10 ** rng.randrange(1, 9)))
        if kind == 2:
            return rng.choice([" ", "\n", "\t"]) * rng.randrange(1, 5)
        if kind == 3:
            return rng.choice(code)
        if kind == 4:
            return rng.choice(odd)
        if kind == 5:
            return "".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(1, 8)))
        if kind == 6:
            return rng.choice(["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_", "|>"])
        planes = (rng.randrange(0x20, 0x3000), rng.randrange(0x3000, 0xD800), rng.randrange(0xE000, 0x1FFFF))
        return "".join(chr(rng.choice(planes)) for _ in range(rng.randrange(1, 4)))

    return [
        "".join(piece() + rng.choice(["", " "]) for _ in range(rng.randrange(1, 12))) for _ in range(count)
    ]


@pytest.mark.parity
def test_smollm2_equals_transformers(smollm2: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = load_tokenizer(smollm2)
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    assert ours.eos_ids == (theirs.eos_token_id,)
    strings = random_strings(10_000, seed=0)
    # transformers' conversion leaves out the rule "each digit apart" that the file names ("smollm"): equal as
    # it is on text without numerals, and equal on all text once the rule is put back.
    parts = tokenizers.pre_tokenizers
    digits = parts.Digits(individual_digits=True)
    plain = ["".join(c for c in s if len(digits.pre_tokenize_str(f"a{c}")) == 1) for s in strings]
    assert sum(map(len, plain)) > 0.7 * sum(map(len, strings))
    assert [ours.encode(s) for s in plain] == theirs(plain, add_special_tokens=False)["input_ids"]
    theirs.backend_tokenizer.pre_tokenizer = parts.Sequence([digits, parts.ByteLevel(add_prefix_space=False)])
    ids = [ours.encode(s) for s in strings]
    assert ids == theirs(strings, add_special_tokens=False)["input_ids"]
    assert [ours.decode(i) for i in ids] == theirs.batch_decode(ids, clean_up_tokenization_spaces=False)
    rng = random.Random(1)
    noise = [[rng.randrange(ours.vocab_size) for _ in range(20)] for _ in range(500)]
    assert [ours.decode(i) for i in noise] == theirs.batch_decode(noise, clean_up_tokenization_spaces=False)


@pytest.mark.parity
def test_qwen2_rules_equal_transformers(tmp_path: Path, backend: tokenizers.Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    content = json.loads(backend.to_str())["model"]
    theirs = transformers.Qwen2Tokenizer(
        vocab=content["vocab"], merges=[tuple(m) for m in content["merges"]], unk_token=None
    )
    ours = load_tokenizer(write_gguf(tmp_path / "a.gguf", backend, "qwen2"))
    strings = [s for s in random_strings(3000, seed=2) if "<|" not in s]
    assert [ours.encode(s) for s in strings] == theirs(strings, add_special_tokens=False)["input_ids"]


@pytest.mark.parity
def test_saved_tokenizer_loads_in_transformers(tmp_path: Path, backend: tokenizers.Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    ours = BPETokenizer(TINY, eos_ids=[2, 0], pad_id=0)
    ours.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (theirs.eos_token_id, theirs.pad_token_id) == (2, 0)
    strings = random_strings(500, seed=3)
    assert [ours.encode(s) for s in strings] == theirs(strings, add_special_tokens=False)["input_ids"]
