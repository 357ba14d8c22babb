"""Byte-level BPE tokenizers of published models, from a tokenizer.json or out of a GGUF file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from ragen_jax.gguf_file import GGUFFile
from ragen_jax.tokenizers.errors import TokenizerError
from ragen_jax.tokenizers.files import read_json, write_text

FILE_NAME = "tokenizer.json"

# How Qwen2 and Llama 3 split text; %s is their rule for digits.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # tokenizer.ggml.token_type


def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for a byte: printable Latin-1 itself, others from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(hidden)}


class BPETokenizer:
    """A byte-level BPE tokenizer behind the `tokenizers` package. No bos token is ever added to a text."""

    def __init__(
        self, backend: tokenizers.Tokenizer, *, eos_ids: Sequence[int], pad_id: int | None = None
    ) -> None:
        """`eos_ids` are distinct and not empty; `pad_id` defaults to the first of them.

        Raises TokenizerError for a tokenizer that is not byte-level BPE, or that puts a space before every
        text (its encoding of a dialogue would depend on where the dialogue is cut).
        """
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._definition = json.loads(backend.to_str())
        _require_byte_level(self._definition)
        self._vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = 1 + max(self._vocab.values())
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(eos_ids))
        if not self.eos_ids:
            raise TokenizerError("no end-of-turn token is known; pass eos=, e.g. eos=('<|im_end|>',)")
        self.pad_id: int = self.eos_ids[0] if pad_id is None else pad_id
        for name, i in (*(("eos", i) for i in self.eos_ids), ("pad", self.pad_id)):
            if not 0 <= i < self.vocab_size:
                raise TokenizerError(f"{name} id {i} is outside the vocabulary of {self.vocab_size}")

    # -- reading and writing -------------------------------------------------------------------------------
    @classmethod
    def from_folder(cls, folder: str | Path, *, eos: Sequence[str] | None = None) -> BPETokenizer:
        """Reads tokenizer.json in `folder`, and the ids that end a turn from the files beside it.

        These are the eos ids of generation_config.json (Qwen2.5 has two), tokenizer_config.json and
        config.json, in this order, each file being optional; `eos` gives them by text instead.
        """
        folder = Path(folder)
        backend = _read_backend(folder / FILE_NAME)
        configs = {
            name: read_json(folder / name, kind=f"a Hugging Face {name}") if (folder / name).exists() else {}
            for name in ("generation_config.json", "tokenizer_config.json", "config.json")
        }
        eos_ids: list[int] = []
        pad_id: int | None = None
        for name, config in configs.items():
            ids = config.get("eos_token_id")
            eos_ids.extend(ids if isinstance(ids, list) else [] if ids is None else [ids])
            if name == "tokenizer_config.json":
                if config.get("eos_token") is not None:
                    eos_ids.append(_token_id(backend, config["eos_token"], folder / name))
                if config.get("pad_token") is not None:
                    pad_id = _token_id(backend, config["pad_token"], folder / name)
        if eos is not None:
            eos_ids = [_token_id(backend, text, folder / FILE_NAME) for text in eos]
        elif not eos_ids:
            raise TokenizerError(
                f"{folder}: no file names the token that ends a turn; copy the model's tokenizer_config.json "
                "or generation_config.json here, or pass eos=, e.g. eos=('<|im_end|>',)"
            )
        return cls(backend, eos_ids=eos_ids, pad_id=pad_id)

    @classmethod
    def from_gguf(cls, path: str | Path | GGUFFile, *, eos: Sequence[str] | None = None) -> BPETokenizer:
        """Builds it from the vocabulary and merges inside a GGUF file (kinds smollm, qwen2, llama-bpe)."""
        file = path if isinstance(path, GGUFFile) else GGUFFile(path)
        backend = _backend_from_gguf(file)
        prefix = "tokenizer.ggml."
        names = [prefix + n for n in ("eos_token_id", "eot_token_id", "eom_token_id")]
        eos_ids = [int(file.field(name)) for name in names if file.has(name)]
        if eos is not None:
            eos_ids = [_token_id(backend, text, file.path) for text in eos]
        pad = prefix + "padding_token_id"
        return cls(backend, eos_ids=eos_ids, pad_id=int(file.field(pad)) if file.has(pad) else None)

    def save(self, directory: str | Path) -> Path:
        """Writes tokenizer.json and the two files that name its special tokens; `from_folder` reads them."""
        directory = Path(directory)
        text = {i: t for t, i in self._vocab.items()}
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": text[self.eos_ids[0]],
            "pad_token": text[self.pad_id],
            "clean_up_tokenization_spaces": False,
        }
        generation = {"eos_token_id": list(self.eos_ids), "pad_token_id": self.pad_id}
        write_text(directory / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
        write_text(directory / "generation_config.json", json.dumps(generation, indent=2) + "\n")
        write_text(directory / FILE_NAME, self._backend.to_str(pretty=True))
        return directory / FILE_NAME

    # -- the protocol --------------------------------------------------------------------------------------
    def encode(self, text: str) -> list[int]:
        """Canonical ids of `text`; special tokens written out become their ids.

        A byte that the vocabulary lacks is left out (SmolLM2 lacks the controls 4, 6, 19, 20, 22 and 29).
        """
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens written out, invalid UTF-8 replaced. Unknown ids raise IndexError."""
        pieces, specials = self._pieces, self._special_texts
        for i in ids:
            if not 0 <= i < len(pieces):
                raise IndexError(f"id {i} is outside the vocabulary of {len(pieces)}")
        return b"".join(specials.get(i, pieces[i]) for i in ids).decode("utf-8", errors="replace")

    def token_bytes(self) -> list[bytes]:
        """Bytes that each id stands for; b"" for special tokens and unused ids."""
        return list(self._pieces)

    def special_ids(self) -> dict[str, int]:
        """Special tokens by their text."""
        return {t["content"]: t["id"] for t in self._definition["added_tokens"] if t["special"]}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of the tokenizer's definition and of the ids that end a turn or pad."""
        content = {"definition": self._definition, "eos": self.eos_ids, "pad": self.pad_id}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BPETokenizer) and other.fingerprint == self.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"BPETokenizer(vocab_size={self.vocab_size}, eos_ids={self.eos_ids})"

    @cached_property
    def _special_texts(self) -> dict[int, bytes]:
        return {i: text.encode() for text, i in self.special_ids().items()}

    @cached_property
    def _pieces(self) -> list[bytes]:
        alphabet = _byte_alphabet()
        added = {t["id"]: t["content"].encode() for t in self._definition["added_tokens"]}
        pieces = [b""] * self.vocab_size
        for text, i in self._vocab.items():
            if i not in added:
                pieces[i] = bytes(alphabet[c] for c in text)
            elif i not in self._special_texts:
                pieces[i] = added[i]
        return pieces


def _read_backend(path: Path) -> tokenizers.Tokenizer:
    kind = "a Hugging Face tokenizer.json"
    content = read_json(path, kind=kind)
    missing = [key for key in ("model", "added_tokens", "pre_tokenizer") if key not in content]
    if missing:
        raise TokenizerError(f"{path}: not {kind}: it has no {' and no '.join(missing)}")
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the package raises the bare Exception
        raise TokenizerError(
            f"{path}: the tokenizers package {tokenizers.__version__} refuses it: {error}"
        ) from None


def _backend_from_gguf(file: GGUFFile) -> tokenizers.Tokenizer:
    kind = file.field("tokenizer.ggml.model")
    if kind != "gpt2":
        raise TokenizerError(
            f"{file.path}: its tokenizer is of kind {kind!r}; only byte-level BPE ('gpt2') can be used. "
            "Give a tokenizer.json instead"
        )
    pre = file.field("tokenizer.ggml.pre") if file.has("tokenizer.ggml.pre") else "default"
    known = ("smollm", "qwen2", "llama-bpe")
    if pre not in known:
        raise TokenizerError(
            f"{file.path}: splits words by the rule {pre!r}; known rules are {', '.join(known)}. "
            "Give a tokenizer.json instead"
        )
    tokens, kinds, merges = (file.field(f"tokenizer.ggml.{n}") for n in ("tokens", "token_type", "merges"))
    if len(tokens) != len(kinds):
        raise TokenizerError(
            f"{file.path}: {len(tokens)} tokens but {len(kinds)} token types; download it again"
        )
    used = {
        t: i
        for i, (t, k) in enumerate(zip(tokens, kinds, strict=True))
        if k in (_NORMAL, _CONTROL, _USER_DEFINED)
    }
    pairs: list[Any] = [tuple(merge.split(" ", 1)) for merge in merges]
    try:
        model = models.BPE(used, pairs, ignore_merges=pre == "llama-bpe")
    except Exception as error:  # the package raises the bare Exception
        raise TokenizerError(
            f"{file.path}: vocabulary and merges do not fit ({error}); download it again"
        ) from None
    backend = tokenizers.Tokenizer(model)
    if pre == "smollm":
        split: Any = pre_tokenizers.Digits(individual_digits=True)
        use_regex = True
    else:
        digits = r"\p{N}" if pre == "qwen2" else r"\p{N}{1,3}"
        split = pre_tokenizers.Split(tokenizers.Regex(_WORDS % digits), behavior="isolated")
        use_regex = False
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    backend.decoder = decoders.ByteLevel()
    for token_kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        backend.add_tokens(
            [
                tokenizers.AddedToken(t, special=special, normalized=False)
                for t, k in zip(tokens, kinds, strict=True)
                if k == token_kind
            ]
        )
    return backend


def _token_id(backend: tokenizers.Tokenizer, token: Any, path: Path) -> int:
    text = token.get("content") if isinstance(token, dict) else token
    found = backend.token_to_id(text) if isinstance(text, str) else None
    if found is None:
        raise TokenizerError(
            f"{path}: its special token {text!r} is not in the vocabulary; the files do not belong together"
        )
    return found


def _require_byte_level(definition: dict[str, Any]) -> None:
    kind = definition["model"]["type"]
    pre = definition["pre_tokenizer"] or {}
    steps = pre.get("pretokenizers", [pre])
    byte_level = next((s for s in steps if s.get("type") == "ByteLevel"), None)
    if kind != "BPE" or byte_level is None:
        raise TokenizerError(
            f"a tokenizer of model {kind} and pre-tokenizer {[s.get('type') for s in steps]} is not "
            "byte-level BPE; models of the Qwen2, Llama 3 and SmolLM2 families have one"
        )
    if byte_level["add_prefix_space"]:
        raise TokenizerError(
            "the tokenizer adds a space before every text, so a dialogue cannot be encoded in parts"
        )
