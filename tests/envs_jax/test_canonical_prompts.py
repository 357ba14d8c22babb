"""Whole prompts and later observations are tokenised on device as the tokenizer encodes their joined text."""

from __future__ import annotations

import functools
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import canonical
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.core import Tokenizer
from envs_jax.text.byte_tokenizer import ByteTokenizer
from envs_jax.text.chat import CHAT_FORMATS
from envs_jax.turn import TurnEnv

LLAMA_SPECIALS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CHATML_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("Bandit", "CoordFrozenLake", "FrozenLake", "CoordSokoban", "SokobanDifferentGridVocab")
T = 64
ROWS = 24


class Qwen:
    """Qwen's ranks with both families of special tokens, so that every chat format can be tried."""

    specials = CHATML_SPECIALS + LLAMA_SPECIALS

    def __init__(self) -> None:
        self.ranks = canonical.qwen_ranks()
        self.vocab_size = len(self.ranks) + len(self.specials)
        self.eos_ids = (self.special_ids()["<|im_end|>"], self.special_ids()["<|eot_id|>"])

    def special_ids(self) -> dict[str, int]:
        return {s: len(self.ranks) + i for i, s in enumerate(self.specials)}

    def encode(self, text: str) -> list[int]:
        special = self.special_ids()
        ids: list[int] = []
        for piece in re.split("(" + "|".join(map(re.escape, self.specials)) + ")", text):
            ids += [special[piece]] if piece in special else canonical.qwen_encode(piece)
        return ids

    def decode(self, ids: Any) -> str:
        table = [*self.token_bytes()[: len(self.ranks)], *(s.encode() for s in self.specials)]
        return b"".join(table[i] for i in ids).decode(errors="replace")

    def token_bytes(self) -> list[bytes]:
        table = [b""] * self.vocab_size
        for token, rank in self.ranks.items():
            table[rank] = token
        return table


@functools.cache
def tokenizer(name: str) -> Tokenizer:
    if name == "bytes":
        return ByteTokenizer(specials=CHATML_SPECIALS + LLAMA_SPECIALS, stops=("<|im_end|>", "<|eot_id|>"))
    if name == "qwen":
        return Qwen()  # type: ignore[return-value]
    if name == "small":
        small = pytest.importorskip("ragen_jax.tokenizers.small")
        texts = []
        for tag in TAGS:
            env, _ = envs_jax.make(tag, num_levels=2, chat="plain")
            texts += env.phrases()
        return small.SmallTokenizer.build(texts)
    hub = pytest.importorskip("ragen_jax.models.hub")
    load = pytest.importorskip("ragen_jax.tokenizers.load")
    path: Path = hub.cache_dir() / "models" / Path(hub.MODELS["smollm2-135m"].member).name
    if not path.exists():
        pytest.skip("SmolLM2 has not been pulled")
    return load.load_tokenizer(path)


@functools.cache
def episodes(tag: str) -> tuple[Any, list[tuple[Any, Any, Any]], Any]:
    """First states; (state, reward, valid actions) of the live rows after each turn; parameters."""
    env, params = envs_jax.make(tag, style="brief", chat="plain", num_levels=ROWS, max_response_tokens=T)
    rng, speaker = random.Random(tag), ByteTokenizer()
    names = env.env.action_names or ("Teacher", "Trader", "Nurse", "Investor")
    first = state = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jnp.arange(ROWS), params)[0]
    step = jax.jit(jax.vmap(env.step, in_axes=(0, 0, 0, 0, None)))
    after = []
    for turn in range(3):
        tokens, lengths = np.zeros((ROWS, T), np.int32), np.zeros(ROWS, np.int32)
        for row in range(ROWS):
            answer = "||".join(rng.choice((*names, "fly")) for _ in range(rng.randint(0, 2)))
            ids = speaker.encode(f"</think><answer>{answer}</answer>")
            tokens[row, : len(ids)], lengths[row] = ids, len(ids)
        state, out = step(jax.random.split(jax.random.key(turn), ROWS), state, tokens, lengths, params)
        live = ~np.asarray(out.terminated | out.truncated)
        after.append(jax.tree.map(lambda x, k=live: x[k], (state, out.reward, out.info.n_valid)))
    assert any(len(valid) for _, _, valid in after)
    return first, after, params


def observations(tag: str, style: str, chat: str, think: bool) -> tuple[TurnEnv, list[list[int]]]:
    """Fragments of what the agent is shown in those episodes."""
    first, after, params = episodes(tag)
    env, _ = envs_jax.make(tag, style="brief", chat="plain", num_levels=ROWS, max_response_tokens=T)
    config = replace(env.config, style=style, enable_think=think)
    env = replace(env, config=config, chat=CHAT_FORMATS[chat])
    rows = list(jax.vmap(env.first_fragments, in_axes=(0, None))(first, params))
    for state, reward, valid in after:
        rows += list(
            jax.vmap(env.later_fragments, in_axes=(0, 0, 0, None))(state, reward, valid == 0, params)[0]
        )
    return env, [np.asarray(row).tolist() for row in rows]


def check(tag: str, style: str, chat: str, name: str, think: bool = True) -> None:
    spoken = tokenizer(name)
    assert set(CHAT_FORMATS[chat].required) <= set(spoken.special_ids())
    env, rows = observations(tag, style, chat, think)
    phrases = env.phrases()
    encoded = functools.cache(lambda i: spoken.encode(phrases[i]))
    for fragments in rows:
        text = env.fragment_text(fragments)
        assert [t for i in fragments if i >= 0 for t in encoded(i)] == spoken.encode(text), text
    assert len(rows) > ROWS


SPOKEN = {  # the chat formats whose special tokens each tokenizer has
    "bytes": ("chatml", "llama3", "plain"),
    "small": ("plain",),
    "qwen": ("chatml", "llama3", "plain"),
    "smollm2": ("chatml", "plain"),
}


@pytest.mark.parametrize("style", ["full", "brief"])
@pytest.mark.parametrize("tag", ["Bandit", "CoordFrozenLake", "CoordSokoban"])
@pytest.mark.parametrize(
    ("name", "chat"),
    [
        pytest.param(name, chat, marks=[pytest.mark.parity] if name == "qwen" else [])
        for name, chats in SPOKEN.items()
        for chat in chats
    ],
)
def test_fragments_are_canonical(tag: str, style: str, chat: str, name: str) -> None:
    check(tag, style, chat, name)


@pytest.mark.parity
@pytest.mark.parametrize("tag", ["FrozenLake", "SokobanDifferentGridVocab"])
def test_grids_and_answers_alone_are_canonical(tag: str) -> None:
    check(tag, "full", "chatml", "qwen", think=False)


@pytest.mark.parametrize("name", ["bytes", pytest.param("qwen", marks=pytest.mark.parity)])
def test_device_gives_the_tokens_of_the_text(name: str) -> None:
    spoken = tokenizer(name)
    env, params = envs_jax.make("CoordSokoban", spoken, num_levels=ROWS, max_response_tokens=T)

    @jax.jit
    def run(levels: jax.Array, tokens: jax.Array, lengths: jax.Array) -> Any:
        state, first = jax.vmap(env.reset, in_axes=(0, None))(levels, params)
        keys = jax.random.split(jax.random.key(0), ROWS)
        return first, jax.vmap(env.step, in_axes=(0, 0, 0, 0, None))(keys, state, tokens, lengths, params)[1]

    tokens, lengths = np.zeros((ROWS, T), np.int32), np.zeros(ROWS, np.int32)
    for row in range(ROWS):
        ids = spoken.encode(f"so</think> <answer>{env.env.action_names[row % 4]}||Up</answer>")
        tokens[row, : len(ids)], lengths[row] = ids, len(ids)
    for out in run(jnp.arange(ROWS), tokens, lengths):
        assert int(out.obs_len.max()) > 0
        for row in range(ROWS):
            ids = out.obs_tokens[row, : out.obs_len[row]].tolist()
            assert ids == spoken.encode(spoken.decode(ids))
            assert env.text_of(params, ids) == spoken.decode(ids)


@pytest.mark.parametrize("chat", ["chatml", "llama3", "plain"])
@pytest.mark.parametrize("style", ["full", "brief"])
def test_borders_are_pretoken_borders(style: str, chat: str) -> None:
    """Holds for any byte-level BPE behind the three published pre-tokenisers."""
    env, rows = observations("CoordSokoban", style, chat, True)
    phrases = env.phrases()
    # The Llama 3 format begins a message with two newlines; only GPT-2's pattern cuts between them.
    kinds = ["qwen2", "llama3"] if chat == "llama3" and style == "brief" else list(canonical.PRETOKENIZERS)
    specials = "|".join(re.escape(s) for s in CHATML_SPECIALS + LLAMA_SPECIALS)
    for fragments in rows:
        runs: list[list[str]] = [[]]
        for i in fragments:
            if i >= 0:
                head, *others = re.split(specials, phrases[i])
                runs[-1].append(head)
                runs += [[part] for part in others]
        for kind in kinds:
            for run in runs:
                assert canonical.split(kind, "".join(run)) == [
                    p for part in run for p in canonical.split(kind, part)
                ]
