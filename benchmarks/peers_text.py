"""Answers to the tasks of numbers, and the Python loops that judge them, for the table in environments.py.

Each peer is `(run, steps)`: a call of `run` judges `steps` answers, one after another, and with a tokenizer encodes the
instance again, or what is said of an answer, after each.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import itertools
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax

from envs_jax.core import Tokenizer
from envs_jax.tasks.countdown import Countdown
from envs_jax.tasks.metamathqa import MetaMathQA

Peer = tuple[Callable[[], None], int]


# -- Countdown ----------------------------------------------------------------------------------------------
def countdown_answers(count: int) -> tuple[Countdown, Any, list[str]]:
    """An environment of `count` levels, its parameters, and an answer a level: right ones and others in turn."""
    env = Countdown(num_levels=count)
    params = env.init_params(jax.random.key(0))
    texts = []
    for index, (numbers, target) in enumerate(_instances(params)):
        signs = next(
            s
            for s in itertools.product((1, -1), repeat=len(numbers))
            if sum(a * b for a, b in zip(s, numbers, strict=True)) == target
        )
        right = " ".join(f"{'+' if s > 0 else '-'} {n}" for s, n in zip(signs, numbers, strict=True))
        first, *others = numbers
        texts.append((right, f"({first} + {' * '.join(map(str, others))})", str(numbers))[index % 3])
    return env, params, texts


def _instances(params: Any) -> list[tuple[list[int], int]]:
    numbers, count, target = jax.device_get((params.numbers, params.count, params.target))
    return [(n[:c].tolist(), int(t)) for n, c, t in zip(numbers, count, target, strict=True)]


def countdown_python(tokenizer: Tokenizer | None, count: int = 256) -> Peer:
    """The rules of envs_jax in plain Python: numbers by a regular expression, value by `ast` with fractions."""
    _, params, texts = countdown_answers(count)
    cases = list(zip(texts, _instances(params), strict=True))

    def value(node: ast.AST) -> Fraction:
        match node:
            case ast.Constant(int(number)):
                return Fraction(number)
            case ast.UnaryOp(op, operand):
                return -value(operand) if isinstance(op, ast.USub) else value(operand)
            case ast.BinOp(left, op, right):
                a, b = value(left), value(right)
                match op:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.Div():
                        return a / b
        raise ValueError(node)

    def run() -> None:
        for text, (numbers, target) in cases:
            if tokenizer is not None:
                tokenizer.encode(f"Target: {target}, nums: {numbers}\n")
            if sorted(map(int, re.findall("[0-9]+", text))) == sorted(numbers):
                with contextlib.suppress(SyntaxError, ValueError, ZeroDivisionError):
                    _ = value(ast.parse(text, mode="eval").body) == target

    return run, count


def countdown_reasoning_gym(tokenizer: Tokenizer | None, count: int = 64) -> Peer | None:
    """reasoning-gym's own judge of the same answers; None where it is not installed."""
    if importlib.util.find_spec("reasoning_gym") is None:
        return None
    import reasoning_gym

    data = reasoning_gym.create_dataset("countdown", size=1, seed=0)
    _, params, texts = countdown_answers(count)
    cases = [
        (text, {"answer": "", "metadata": {"numbers": numbers, "target": target}})
        for text, (numbers, target) in zip(texts, _instances(params), strict=True)
    ]

    def run() -> None:
        for text, entry in cases:
            if tokenizer is not None:
                tokenizer.encode("Target: {target}, nums: {numbers}\n".format(**entry["metadata"]))
            data.score_answer(text, entry)

    return run, count


# -- MetaMathQA ---------------------------------------------------------------------------------------------
def metamathqa_answers(count: int, answer_check: str = "string") -> tuple[MetaMathQA, Any, list[str]]:
    """An environment of `count` levels, its parameters, and an answer a level: right ones and others in turn."""
    env = MetaMathQA(num_levels=count, answer_check=answer_check)
    params = env.init_params(jax.random.key(0))
    labels, lengths = jax.device_get((params.label, params.label_length))
    right = [row.tobytes()[:length].decode() for row, length in zip(labels, lengths, strict=True)]
    return env, params, [(text, f"\\boxed{{{text}}}", text + "1")[i % 3] for i, text in enumerate(right)]


def metamathqa_python(tokenizer: Tokenizer | None, count: int = 256) -> Peer:
    """The published environment in plain Python: lower case, no whitespace, equality, half the points a try."""
    env, params, texts = metamathqa_answers(count)
    phrases = env.phrases()
    labels, lengths = jax.device_get((params.label, params.label_length))
    cases = [
        (text, row.tobytes()[:length].decode())
        for text, row, length in zip(texts, labels, lengths, strict=True)
    ]

    def run() -> None:
        for text, label in cases:
            right = re.sub(r"\s+", "", text.lower()) == re.sub(r"\s+", "", label.lower())
            if tokenizer is not None:
                tokenizer.encode(phrases[1] if right else phrases[0])

    return run, count


def metamathqa_reasoning_gym(tokenizer: Tokenizer | None, count: int = 256) -> Peer | None:
    """reasoning-gym's own judge of the same answers; None where it is not installed."""
    if importlib.util.find_spec("reasoning_gym") is None:
        return None
    import reasoning_gym

    data = reasoning_gym.create_dataset("gsm_symbolic", size=1, seed=0)
    env, params, texts = metamathqa_answers(count)
    phrases = env.phrases()
    labels, lengths, asked = jax.device_get((params.label, params.label_length, params.phrase))
    cases = [
        (text, {"answer": row.tobytes()[:length].decode(), "question": phrases[phrase], "metadata": {}})
        for text, row, length, phrase in zip(texts, labels, lengths, asked, strict=True)
    ]

    def run() -> None:
        for text, entry in cases:
            score = data.score_answer(text, entry)
            if tokenizer is not None:
                tokenizer.encode(phrases[1] if score == 1.0 else phrases[0])

    return run, count


def metamathqa_skyrl_gym(tokenizer: Tokenizer | None, count: int = 256) -> Peer | None:
    """skyrl-gym's word problems of several turns, an answer an episode; None where it is not installed."""
    if importlib.util.find_spec("skyrl_gym") is None:
        return None
    from skyrl_gym.envs.gsm8k.multi_turn_env import GSM8kMultiTurnEnv

    env, params, texts = metamathqa_answers(count)
    phrases = env.phrases()
    labels, lengths, asked = jax.device_get((params.label, params.label_length, params.phrase))
    cases = [
        (f"#### {text}", row.tobytes()[:length].decode(), phrases[phrase])
        for text, row, length, phrase in zip(texts, labels, lengths, asked, strict=True)
    ]

    def run() -> None:
        for text, label, question in cases:
            task = {"reward_spec": {"ground_truth": label}, "max_turns": 5}
            game = GSM8kMultiTurnEnv(extras=task)
            game.init([{"role": "user", "content": question}])
            said = game.step(text)["observations"]
            if tokenizer is not None:
                for line in said:
                    tokenizer.encode(line["content"])

    return run, count
