"""A word-and-byte tokenizer for policies from scratch: few ids, short turns, nothing it cannot encode."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from ragen_jax.tokenizers.errors import TokenizerError
from ragen_jax.tokenizers.files import read_json, write_text

FILE_NAME = "small_tokenizer.json"
FORMAT = "ragen-jax small tokenizer"
VERSION = 1

PAD = "<|pad|>"
END = "<|end|>"
SPECIALS = (PAD, END)
# The agent's protocol: ordinary tokens that stand for their own text, so parsing in bytes sees them.
TAGS = ("<think>", "</think>", "<answer>", "</answer>", "||")

_WORD = r" ?[^\W\d_]+"  # letters with at most one space before them
_FIRST_BYTE = len(SPECIALS)
_FIRST_TAG = _FIRST_BYTE + 256
_FIRST_PIECE = _FIRST_TAG + len(TAGS)
_SPLIT = re.compile("|".join([*map(re.escape, SPECIALS), *map(re.escape, TAGS), _WORD, "."]), re.DOTALL)
_PIECE = re.compile(f"(?:{_WORD}|.)", re.DOTALL)


class SmallTokenizer:
    """Ids: `<|pad|>`, `<|end|>`, the 256 bytes, the tags and the separator, then `pieces`.

    Text is cut into tags, words (a run of letters with the space before it) and single characters. A part
    that is a known piece is one id; a word whose form without its space is known is the space and that piece;
    anything else is its UTF-8 bytes. So digits and ASCII symbols are always single, and encoding texts apart
    equals encoding them joined where the border is not inside a word, between a space and a letter, or inside
    a tag.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        """`pieces`: distinct words (letters, maybe a space before) or single non-ASCII characters, by id."""
        self.pieces = tuple(pieces)
        for piece in self.pieces:
            if not isinstance(piece, str) or not _is_piece(piece):
                raise TokenizerError(
                    f"piece {piece!r}: expected letters with at most one space before them, "
                    "or one character outside ASCII"
                )
        if len(set(self.pieces)) != len(self.pieces):
            twice = next(p for p in self.pieces if self.pieces.count(p) > 1)
            raise TokenizerError(f"piece {twice!r} is given twice")
        self._ids: dict[str, tuple[int, ...]] = {p: (_FIRST_PIECE + i,) for i, p in enumerate(self.pieces)}
        self._ids |= {tag: (_FIRST_TAG + i,) for i, tag in enumerate(TAGS)}
        self._ids |= {special: (i,) for i, special in enumerate(SPECIALS)}
        self._ids |= {chr(b): (_FIRST_BYTE + b,) for b in range(128)}

    @classmethod
    def build(cls, texts: Iterable[str], extra_words: Iterable[str] = ()) -> SmallTokenizer:
        """Pieces are the words and the non-ASCII characters of `texts`, and `extra_words`.

        A word seen only after a space is known only in that form: " up" is not "up". Order does not matter.
        """
        found = {part for text in texts for part in _SPLIT.findall(text) if _is_piece(part)}
        for word in extra_words:
            if _is_piece(word):
                found.add(word)
            elif not (len(word) == 1 and word.isascii()) and word not in SPECIALS + TAGS:
                raise TokenizerError(
                    f"extra word {word!r} is not one piece; give letters with at most one space before them"
                )
        return cls(sorted(found))

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return _FIRST_PIECE + len(self.pieces)

    @property
    def pad_id(self) -> int:
        """Id of `<|pad|>`; it never ends a turn."""
        return 0

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Id of `<|end|>`."""
        return (1,)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the saved form, in hex: equal exactly for tokenizers that encode alike."""
        return hashlib.sha256(self._dump().encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Canonical ids of `text`. `<|pad|>` and `<|end|>` written out become their ids."""
        ids: list[int] = []
        known = self._ids
        for part in _SPLIT.findall(text):
            piece = known.get(part)
            ids.extend(self._spell(part) if piece is None else piece)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens written out, invalid UTF-8 replaced. Unknown ids raise IndexError."""
        text = self._text
        if any(not 0 <= i < len(text) for i in ids):
            bad = next(i for i in ids if not 0 <= i < len(text))
            raise IndexError(f"id {bad} is outside the vocabulary of {len(text)}")
        return b"".join(text[i] for i in ids).decode("utf-8", errors="replace")

    def token_bytes(self) -> list[bytes]:
        """Bytes that each id stands for; b"" for `<|pad|>` and `<|end|>`."""
        return [b""] * len(SPECIALS) + self._text[len(SPECIALS) :]

    def special_ids(self) -> dict[str, int]:
        """`<|pad|>` and `<|end|>` with their ids."""
        return {special: i for i, special in enumerate(SPECIALS)}

    def save(self, directory: str | Path) -> Path:
        """Writes `small_tokenizer.json` into `directory` (made if missing) and returns its path."""
        path = Path(directory) / FILE_NAME
        write_text(path, self._dump())
        return path

    @classmethod
    def load(cls, path: str | Path) -> SmallTokenizer:
        """Reads what `save` wrote: the file or the folder that holds it."""
        path = Path(path)
        if path.is_dir():
            path = path / FILE_NAME
        content = read_json(path, kind=f"a {FORMAT}")
        if content.get("format") != FORMAT:
            raise TokenizerError(f'{path}: not a {FORMAT}: its "format" is {content.get("format")!r}')
        if content.get("version") != VERSION:
            raise TokenizerError(f"{path}: version {content.get('version')!r}, this release reads {VERSION}")
        if not isinstance(content.get("pieces"), list):
            raise TokenizerError(f'{path}: has no list "pieces"; save the tokenizer again')
        try:
            return cls(content["pieces"])
        except TokenizerError as error:
            raise TokenizerError(f"{path}: {error}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SmallTokenizer) and other.pieces == self.pieces

    def __hash__(self) -> int:
        return hash(self.pieces)

    def __repr__(self) -> str:
        return f"SmallTokenizer(vocab_size={self.vocab_size})"

    @cached_property
    def _text(self) -> list[bytes]:
        return [
            *(special.encode() for special in SPECIALS),
            *(bytes([b]) for b in range(256)),
            *(tag.encode() for tag in TAGS),
            *(piece.encode() for piece in self.pieces),
        ]

    def _spell(self, part: str) -> list[int]:
        if part[0] == " " and part[1:] in self._ids:
            return [*self._ids[" "], *self._ids[part[1:]]]
        return [_FIRST_BYTE + b for b in part.encode()]

    def _dump(self) -> str:
        content = {"format": FORMAT, "version": VERSION, "pieces": self.pieces}
        return json.dumps(content, ensure_ascii=False, indent=0) + "\n"


def _is_piece(part: str) -> bool:
    """Whether `part` may be a piece: a word or one character, and not already a byte."""
    return len(part.encode()) > 1 and part not in SPECIALS + TAGS and _PIECE.fullmatch(part) is not None
