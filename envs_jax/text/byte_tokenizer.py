"""A tokenizer of single bytes: 256 ids for the bytes and a few special tokens. Needs no files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

PAD = "<|pad|>"
END_OF_TEXT = "<|endoftext|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"


@dataclass(frozen=True)
class ByteTokenizer:
    """Ids 0..255 are the bytes of UTF-8 text, ids from 256 the `specials` in order.

    `stops` are the specials that end a turn. Implements `envs_jax.core.Tokenizer`.
    """

    specials: tuple[str, ...] = (PAD, END_OF_TEXT, IM_START, IM_END)
    stops: tuple[str, ...] = (IM_END, END_OF_TEXT)

    def __post_init__(self) -> None:
        if not self.stops or not set(self.stops) <= set(self.specials):
            raise ValueError(f"stops {self.stops!r} must be some of the specials {self.specials!r}")

    @property
    def vocab_size(self) -> int:
        return 256 + len(self.specials)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return tuple(256 + self.specials.index(s) for s in self.stops)

    @property
    def pad_id(self) -> int:
        """Id of the padding token (the first stop where there is none)."""
        return 256 + self.specials.index(PAD) if PAD in self.specials else self.eos_ids[0]

    def special_ids(self) -> dict[str, int]:
        return {s: 256 + i for i, s in enumerate(self.specials)}

    def encode(self, text: str) -> list[int]:
        ids = self.special_ids()
        pattern = "|".join(re.escape(s) for s in sorted(self.specials, key=len, reverse=True))
        out: list[int] = []
        for piece in re.split(f"({pattern})", text):
            out.extend([ids[piece]] if piece in ids else piece.encode())
        return out

    def decode(self, ids: Sequence[int]) -> str:
        pieces = [bytes([i]) if i < 256 else self.specials[i - 256].encode() for i in ids]
        return b"".join(pieces).decode("utf-8", errors="replace")

    def token_bytes(self) -> list[bytes]:
        return [bytes([i]) for i in range(256)] + [b""] * len(self.specials)
