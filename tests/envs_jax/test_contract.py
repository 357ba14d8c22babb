"""Every registered environment keeps the contract, and the check finds environments that do not."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import canonical
import dial
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_canonical_prompts import tokenizer

import envs_jax
from envs_jax import testing
from envs_jax.testing import RULES, ContractError, check_environment
from envs_jax.text.byte_tokenizer import ByteTokenizer
from envs_jax.text.chat import PLAIN
from envs_jax.turn import TurnConfig, build

TAGS = envs_jax.registered()


def word(rng: random.Random, state: str) -> str:
    return rng.choice(re.findall(r"\w+", state))


def sudoku(rng: random.Random, state: str) -> str:
    return f"{rng.randint(1, 9)},{rng.randint(1, 9)},{rng.randint(1, 9)}"


# Answers by tag, for those whose actions are neither a fixed set of names nor words of the state's text.
def shop(rng: random.Random, state: str) -> str:
    return rng.choice([f"search[{word(rng, state)}]", "click[buy now]", "click[next >]"])


ANSWERS: dict[str, Callable[[random.Random, str], str]] = {
    "SimpleSudoku": sudoku,
    "MediumSudoku": sudoku,
    "Countdown": lambda rng, state: "+".join(re.findall(r"\d+", state)[: rng.randint(1, 4)]),
    "MetaMathQA": lambda rng, state: str(rng.randint(0, 20)),
    "SearchQA": lambda rng, state: f"{rng.choice(['search', 'search', 'finish'])}[{word(rng, state)}]",
    "WebShop": shop,
    "WebShopFull": shop,
    "DeepCoder": lambda rng, state: "print(1)",
}


def classes_once() -> list[Any]:
    """One tag of each class of environments at once, the others as slow tests."""
    seen, out = set(), []
    for tag in TAGS:
        factory = envs_jax.spec(tag).factory
        out.append(pytest.param(tag, marks=[pytest.mark.slow] if factory in seen else []))
        seen.add(factory)
    return out


@pytest.mark.parametrize("tag", classes_once())
def test_registered_environment(tag: str) -> None:
    done = check_environment(tag, answers=ANSWERS.get(tag))
    assert done.executed > 0, f"no answer of {tag} was an action; add to ANSWERS what an agent would say"
    assert done.finished >= 2
    # Lane 1 says nothing and so reads a numbered turn after each of its own but the last; its first state, and those of
    # other lanes, of which at least three show other levels.
    assert done.texts >= 4 + min(4, envs_jax.spec(tag).turn.get("max_turns", 5) - 1)


@pytest.mark.parametrize("name", ["small", "smollm2", pytest.param("qwen", marks=pytest.mark.parity)])
@pytest.mark.parametrize("tag", ["SimpleSudoku", "Simple2048", "rubikscube"])
def test_games_are_canonical(tag: str, name: str) -> None:
    """In episodes of many lanes; `test_canonical_prompts` has the other environments."""
    env, _ = envs_jax.make(tag, num_levels=16, max_response_tokens=160)
    spoken = tokenizer(name)
    done = played(env, tag)
    phrases = replace(env, chat=envs_jax.registry.choose_chat(spoken)).phrases()
    for row in done:
        text = "".join(phrases[i] for i in row)
        assert [t for i in row for t in spoken.encode(phrases[i])] == spoken.encode(text), text
        specials = "|".join(map(re.escape, spoken.special_ids())) or "$^"
        parts = [re.split(specials, phrases[i]) for i in row]
        if not any(len(p) > 1 for p in parts):
            canonical.assert_borders([phrases[i] for i in row])
    assert len(done) > 24


_PLAYED: dict[str, list[list[int]]] = {}


def played(env: Any, tag: str) -> list[list[int]]:
    """Fragments of first observations, and of those after one turn of two random actions."""
    if tag not in _PLAYED:
        _, params = envs_jax.make(tag, num_levels=16, max_response_tokens=160)
        rng, speaker = random.Random(tag), ByteTokenizer()
        tokens, lengths = np.zeros((16, 160), np.int32), np.zeros(16, np.int32)
        for row in range(16):
            says = ANSWERS.get(tag) or (lambda rng, state: rng.choice(env.env.action_names))
            ids = speaker.encode(f"so</think><answer>{says(rng, '')}||{says(rng, '')}</answer>")
            tokens[row, : len(ids)], lengths[row] = ids, len(ids)

        def run(tokens: Any, lengths: Any, params: Any) -> Any:
            state, _ = jax.vmap(env.reset, in_axes=(0, None))(jnp.arange(16), params)
            keys = jax.random.split(jax.random.key(0), 16)
            after, out = jax.vmap(env.step, in_axes=(0, 0, 0, 0, None))(keys, state, tokens, lengths, params)
            first = jax.vmap(env.first_fragments, in_axes=(0, None))(state, params)
            later = jax.vmap(env.later_fragments, in_axes=(0, 0, 0, None))
            return first, later(after, out.reward, out.info.n_valid == 0, params)[0]

        first, later = jax.device_get(jax.jit(run)(tokens, lengths, params))
        _PLAYED[tag] = [[i for i in row if i >= 0] for row in (*first.tolist(), *later.tolist())]
    return _PLAYED[tag]


# -- environments that break a rule ----------------------------------------------------------------------
class KeyTwice(dial.Dial):
    def transition(self, key, state, action, params):
        out = super().transition(key, state, action, params)
        more = jax.random.uniform(key, (), jnp.float32)
        again = jax.random.uniform(key, (), jnp.float32)
        return replace(out, metrics=out.metrics + more - again)


class StateChangesShape(dial.Dial):
    def transition(self, key, state, action, params):
        out = super().transition(key, state, action, params)
        return replace(out, state=dial.DialState(out.state.value.astype(jnp.float32), state.level))


class BranchesOnValues(dial.Dial):
    def transition(self, key, state, action, params):
        return super().transition(key, state, action + (1 if state.value > 5 else 0), params)


TABLE = jnp.arange(10_000, dtype=jnp.int32)


class ClosesOverATable(dial.Dial):
    def transition(self, key, state, action, params):
        out = super().transition(key, state, action, params)
        return replace(out, metrics=out.metrics + TABLE[state.level])


class InheritsX64(dial.Dial):
    def transition(self, key, state, action, params):
        out = super().transition(key, state, action, params)
        value = out.state.value + jnp.arange(3)[0]  # int64 with x64 on
        return replace(out, state=dial.DialState(value, out.state.level))


class PaysTooMuch(dial.Dial):
    def transition(self, key, state, action, params):
        out = super().transition(key, state, action, params)
        return replace(out, reward=out.reward + 2)


class PaysHundredths(dial.Dial):
    def transition(self, key, state, action, params):
        out = super().transition(key, state, action, params)
        return replace(out, reward=jnp.float32(0.25))


class SpaceBeforeBorder(dial.Dial):
    def phrases(self):
        return ["The dial is at ", *(f"{v}.\n" for v in range(-9, 10))]


class PhraseTwice(dial.Dial):
    def phrases(self):
        return ["The dial is at", *(f" {abs(v)}.\n" for v in range(-9, 10))]


class NoNewline(dial.Dial):
    def observe(self, state, params):
        again = jnp.where(state.value == state.level, -1, 0)
        return jnp.stack([jnp.int32(0), state.value + 10, again])


class AnotherPoolEachTime(dial.Dial):
    def init_params(self, key, split="train"):
        names, _ = super().init_params(key, split)
        return names, jnp.float32(random.random())


class EqualToNothing(dial.Dial):
    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


class Words(ByteTokenizer):
    """Ids of the pieces that Qwen2's pre-tokenisation cuts text into, written for `re`.

    A letter's piece takes the space or sign before it, punctuation the space before it and the newlines after it, and
    white space what follows of it; so a border inside of any of these changes the ids.
    """

    PIECES = re.compile(r"[^\r\n\w]?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

    def encode(self, text: str) -> list[int]:
        pieces = self.PIECES.findall(text)
        assert "".join(pieces) == text
        return [hash(piece) for piece in pieces]


def dialled(cls: type = dial.Dial) -> Any:
    config = TurnConfig(max_response_tokens=160, max_turns=5, response_bytes=160)
    return build("Dial", cls(num_levels=3), config, PLAIN, ByteTokenizer(), jax.random.key(0))


def test_an_environment_that_keeps_the_contract() -> None:
    env, params = dialled()
    done = check_environment((env, params), tokenizers=[Words()])
    # The same texts played in plain Python.
    rng, lanes, turns = random.Random("Dial 0"), 8, 4
    refs = [dial.Reference(rng.randrange(3), 5, 2, 10, -0.1, "||", True) for _ in range(lanes)]
    states = [env.render(env.reset(jnp.int32(r.level), params)[0], params) for r in refs]
    for lane in (3, 7):
        refs[lane].turn = 4  # their last
    live = executed = effective = observed = 0
    different = {(r.level,) for r in refs}  # texts that differ whatever Draw has paid
    for turn in range(turns):
        for lane, ref in enumerate(refs):
            said = testing._response(rng, env, turn, lane, states[lane], None)
            live += not (ref.terminated or ref.truncated)
            played = ref.play(said, [0.0, 0.0])
            executed, effective = executed + played["executed"], effective + played["effective"]
            if played["shown"]:
                observed += 1
                different.add((turn, ref.value, ref.used, played["warn"]))
    finished = sum(r.terminated or r.truncated for r in refs)
    assert (done.turns, done.executed, done.effective, done.finished) == (live, executed, effective, finished)
    assert effective > 5
    assert 2 * len(different) <= done.texts <= 2 * (3 + observed)


@pytest.mark.parametrize(
    ("cls", "rule", "seen"),
    [
        (EqualToNothing, "make", "unequal"),
        (AnotherPoolEachTime, "deterministic", "another tree for the same key"),
        (KeyTwice, "keys", "consumed"),
        (StateChangesShape, "scan", "carry"),
        (BranchesOnValues, "jit", "traced"),
        (ClosesOverATable, "constants", "int32[10000] (40000 bytes)"),
        (InheritsX64, "dtypes", "x64 on"),
        (PaysTooMuch, "reward", "outside of [-0.4, 1.3]"),
        (PaysHundredths, "overflow", "not the one shown"),
        (SpaceBeforeBorder, "canonical", "Words joins phrases"),
        (PhraseTwice, "text", "twice"),
        (NoNewline, "text", "a state reads 'The dial is at"),
    ],
)
def test_a_broken_rule_is_named(cls: type, rule: str, seen: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_environment(dialled(cls), tokenizers=[Words()])
    assert isinstance(caught.value, ContractError)
    assert caught.value.rule == rule, str(caught.value)
    assert seen.lower() in str(caught.value).lower()
    assert RULES[rule] in str(caught.value)
