"""Countdown: make an expression with the given numbers, each exactly once, that equals the target.

Task and scores are RAGEN's (`score` for the target, `format_score` for the right numbers alone). Its published checker
pays for any text that mentions the numbers and hands the answer to Python's `eval`; here an answer must be arithmetic
that `envs_jax.text.expressions` reads, unless `reference_rules` is set.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from envs_jax.core import Span, Transition
from envs_jax.datasets.countdown import DATASETS, LARGEST, MAX_NUMBERS, load_countdown
from envs_jax.datasets.table import check_on_bad_row
from envs_jax.errors import ConfigError, suggestion
from envs_jax.tasks.answering import AnswerTask
from envs_jax.tasks.countdown_instances import (
    MAX_ATTEMPTS,
    OPERATIONS,
    are_solvable,
    check_solver,
    generate,
    pad,
)
from envs_jax.text.expressions import evaluate, read
from envs_jax.text.rational import LIMB, equal, near, whole

TOLERANCE = 100_000  # the reference takes what is closer to the target than 1 / TOLERANCE
ROWS_READ = 20_000  # rows of a table among which the reference looks for solvable ones
UNANSWERED, WRONG, FORM, RIGHT = range(4)  # outcomes
_LOG = logging.getLogger("envs_jax.datasets")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CountdownParams:
    """Traced parameters: N instances of at most S numbers."""

    numbers: Int[Array, "N S"]  # i32, zero beyond the count
    count: Int[Array, " N"]  # i32
    target: Int[Array, " N"]  # i32
    fragments: Int[Array, "N S+1"]  # i32, phrases of the text, -1 beyond its end
    score: Float[Array, ""]
    format_score: Float[Array, ""]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CountdownState:
    """Which instance, and what became of the answer."""

    level: Int[Array, ""]  # i32
    outcome: Int[Array, ""]  # i32: UNANSWERED, WRONG, FORM or RIGHT


@dataclass(frozen=True)
class Countdown(AnswerTask):
    """Countdown. The action is the answer's text (a `Span`); one answer ends the episode.

    Reward: `score` if the answer is an expression of + - * / and parentheses that uses each number exactly once and
    equals the target (success); `format_score` if its value is another one; else 0. `metric_names`: whether the right
    numbers were used, whether the answer is an expression, and whether it was too long or large to be judged (it
    then counts as wrong).

    Fields:
        dataset: "generated", "tfds/countdown" or "reasoning_gym/countdown". A split with fewer rows than
            `num_levels` is gone through again.
        data_dir: of tensorflow-datasets; None for its default.
        on_bad_row: "refuse" or "skip" rows of a table that cannot be used.
        data_seed: of reasoning-gym's generator.
        operations: "+-" or "+-*/", with which every instance can be solved: drawn so if generated, else other rows
            are left out and counted. "any" takes a table as it is.
        size_range: how many numbers a generated instance has, closed.
        number_range, target_range: of generated instances, closed.
        score, format_score: see above.
        reference_rules: the published checker. Any text whose runs of digits are the right numbers earns
            `format_score`, and values within 1e-5 of the target `score`. What Python would evaluate beyond the
            grammar here (`**`, `//`, `%`, decimals) earns `format_score`.
    """

    dataset: str = "generated"
    data_dir: str | None = None
    on_bad_row: str = "refuse"
    data_seed: int = 0
    operations: str = "+-"
    size_range: tuple[int, int] = (3, 4)
    number_range: tuple[int, int] = (1, 99)
    target_range: tuple[int, int] = (10, 100)
    score: float = 1.0
    format_score: float = 0.1
    reference_rules: bool = False

    def __post_init__(self) -> None:
        self._check_least(num_levels=1)
        known = ("generated", *DATASETS)
        if self.dataset not in known:
            raise ConfigError("dataset", self.dataset, suggestion(self.dataset, known))
        check_on_bad_row(self.on_bad_row)
        if self.operations not in OPERATIONS or (self.generated and self.operations == "any"):
            raise ConfigError("operations", self.operations, 'use "+-" or "+-*/" (or "any" with a table)')
        for name, least, most in (
            ("size_range", 1, MAX_NUMBERS),
            ("number_range", 0, 10_000),
            ("target_range", 0, 10_000),
        ):
            low, high = getattr(self, name)
            if not least <= low <= high <= most:
                raise ConfigError(name, (low, high), f"give two numbers in {least}..{most}, the lower first")
        if not 0.0 <= self.format_score <= self.score:
            raise ConfigError("format_score", self.format_score, "must be in [0, score]")
        if self.generated and self.operations == "+-*/":
            check_solver(self.size_range, self.number_range[1])

    @property
    def generated(self) -> bool:
        return self.dataset == "generated"

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("right_numbers", "is_expression", "not_judged")

    @property
    def answer_bytes(self) -> int:
        return 128

    @property
    def reward_range(self) -> tuple[float, float]:
        return (0.0, self.score)

    # -- rows of a table -----------------------------------------------------------------------------------
    @cached_property
    def _rows(self) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Numbers, count and target of each split's usable rows."""
        filtered = self.dataset.startswith("tfds/") and self.operations != "any"
        wanted = max(self.num_levels, ROWS_READ) if filtered else self.num_levels
        tables = load_countdown(self.dataset, self.data_dir, wanted, self.data_seed, self.on_bad_row)
        width = max(len(row.numbers) for rows in tables.values() for row in rows)
        out = {}
        for split, rows in tables.items():
            numbers = pad([row.numbers for row in rows], width)
            count = np.asarray([len(row.numbers) for row in rows], np.int32)
            target = np.asarray([row.target for row in rows], np.int32)
            if self.operations != "any":
                sizes = (int(count.min()), int(count.max()))
                if self.operations == "+-*/":
                    check_solver(sizes, int(numbers.max()))
                elif int(numbers.max()) > LARGEST // MAX_NUMBERS:
                    raise ConfigError("operations", "+-", 'sums are too large; use "any"')
                kept = np.asarray(
                    are_solvable(numbers, count, target, operations=self.operations, sizes=sizes)
                )
                if not kept.all():
                    _LOG.warning(
                        "%s, %s: %d of %d rows cannot be solved with %s and are left out",
                        self.dataset, split, int((~kept).sum()), len(kept), self.operations,
                    )  # fmt: skip
                if not kept.any():
                    raise ConfigError("operations", self.operations, "no row is solvable so")
                numbers, count, target = numbers[kept], count[kept], target[kept]
            levels = self.num_levels
            out[split] = numbers[:levels], count[:levels], target[:levels]
        return out

    @cached_property
    def _vocabulary(self) -> tuple[np.ndarray, np.ndarray]:
        """Targets and numbers that the text may name, sorted."""
        if self.generated:
            return (
                np.arange(self.target_range[0], self.target_range[1] + 1, dtype=np.int32),
                np.arange(self.number_range[0], self.number_range[1] + 1, dtype=np.int32),
            )
        used = [n[np.arange(n.shape[1]) < c[:, None]] for n, c, _ in self._rows.values()]
        targets = np.unique(np.concatenate([t for _, _, t in self._rows.values()]))
        return targets, np.unique(np.concatenate(used))

    @property
    def _most_numbers(self) -> int:
        if self.generated:
            return self.size_range[1]
        return next(iter(self._rows.values()))[0].shape[1]

    @cached_property
    def _limbs(self) -> int:
        """Enough for every expression that uses the numbers of an instance once each."""
        most = self._most_numbers
        bits = most - 1 + most * math.log2(max(2, int(self._vocabulary[1].max())))
        return max(2, math.ceil((bits + 1) / LIMB))

    # -- text ----------------------------------------------------------------------------------------------
    def instruction(self) -> str:
        return (
            "You are solving a numbers puzzle. Use the given numbers, each exactly once, with +, -, *, / and "
            "parentheses to make an expression that equals the target. Answer with the expression alone, without "
            "an equals sign. Example: for Target: 21, nums: [3, 9, 4] the answer 3 * 4 + 9 is right."
        )

    @cached_property
    def _text(self) -> tuple[list[str], tuple[int, ...], tuple[int, ...]]:
        """Phrases, where targets, first, middle and last numbers begin, and the phrase of each outcome."""
        targets, numbers = self._vocabulary
        phrases = [f"Target: {t}" for t in targets]
        bases = [0]
        for form in (", nums: [{}", ", {}", ", {}]\n", ", nums: [{}]\n"):
            bases.append(len(phrases))
            phrases += [form.format(n) for n in numbers]
        told = [f"Your answer earned {points:g} points.\n" for points in (0.0, self.format_score, self.score)]
        known = {text: len(phrases) + i for i, text in enumerate(dict.fromkeys(told))}
        phrases += list(known)
        return phrases, tuple(bases), (-1, *(known[text] for text in told))

    def phrases(self) -> Sequence[str]:
        return self._text[0]

    def state_tokens(self, lengths: np.ndarray, params: CountdownParams) -> tuple[int, int]:
        """Of as many numbers as there can be, with the longest text each, so that it holds for every split."""
        _, (at_target, first, middle, last, only), told = self._text
        end = min(told[1:])
        head = lengths[at_target:first].max()
        numbers, most = lengths[only:end].max(), self._most_numbers
        if most > 1:
            several = lengths[first:middle].max() + lengths[last:only].max()
            numbers = max(numbers, several + (most - 2) * lengths[middle:last].max())
        start = int(head + numbers)
        return start, start + int(lengths[end:].max())

    def _fragments(self, numbers: Array, count: Array, target: Array) -> Int[Array, "N S+1"]:
        targets, known = self._vocabulary
        _, (at_target, first, middle, last, only), _ = self._text
        place = jnp.arange(numbers.shape[1], dtype=jnp.int32)
        count = count[:, None]
        base = jnp.where(place == 0, first, jnp.where(place == count - 1, last, middle))
        base = jnp.where(count == 1, only, base)
        ids = base + jnp.searchsorted(jnp.asarray(known), numbers).astype(jnp.int32)
        head = at_target + jnp.searchsorted(jnp.asarray(targets), target).astype(jnp.int32)
        return jnp.concatenate([head[:, None], jnp.where(place < count, ids, -1)], axis=1).astype(jnp.int32)

    # -- pure functions ------------------------------------------------------------------------------------
    def init_params(self, key: Array, split: str = "train") -> CountdownParams:
        """Draws the instances, or takes the rows of `split`; level i is row i, over again where rows run out.

        Raises RuntimeError if an instance stays unsolvable after MAX_ATTEMPTS draws.
        """
        if self.generated:
            numbers, count, target, valid = generate(
                key,
                levels=self.num_levels,
                sizes=self.size_range,
                number_range=self.number_range,
                target_range=self.target_range,
                operations=self.operations,
            )
            if not bool(jnp.all(valid)):
                raise RuntimeError(
                    f"{int(jnp.sum(~valid))} of {self.num_levels} instances were unsolvable in {MAX_ATTEMPTS} "
                    "draws each; choose a number_range and target_range that meet"
                )
        else:
            rows = np.arange(self.num_levels) % len(self._rows[split][2])
            numbers, count, target = (jnp.asarray(x[rows]) for x in self._rows[split])
        return CountdownParams(
            numbers=numbers,
            count=count,
            target=target,
            fragments=self._fragments(numbers, count, target),
            score=jnp.float32(self.score),
            format_score=jnp.float32(self.format_score),
        )

    def level(self, index: Int[Array, ""], params: CountdownParams) -> CountdownState:
        return CountdownState(level=jnp.asarray(index, jnp.int32), outcome=jnp.int32(UNANSWERED))

    def observe(self, state: CountdownState, params: CountdownParams) -> Int[Array, " F"]:
        told = jnp.asarray(self._text[2], jnp.int32)[state.outcome]
        return jnp.append(params.fragments[state.level], told)

    def parse(
        self, span: Span, state: CountdownState, params: CountdownParams
    ) -> tuple[Span, Bool[Array, ""]]:
        return span, span.length > 0

    def transition(
        self, key: Array, state: CountdownState, action: Span, params: CountdownParams
    ) -> Transition:
        level = state.level
        expression = read(action.data, action.length, max_numbers=self._most_numbers)
        right_numbers = self._uses(expression.numbers.value, expression.numbers.count, level, params)
        right_numbers &= action.length <= self.answer_bytes
        # Only what can still be right is evaluated.
        asked = replace(expression, valid=expression.valid & right_numbers)
        result = evaluate(asked, limbs=self._limbs)
        target = whole(params.target[level].astype(jnp.uint32), self._limbs)
        if self.reference_rules:
            hit = result.ok & near(result.value, target, TOLERANCE)
            earned = right_numbers
        else:
            hit = result.ok & equal(result.value, target)
            earned = result.ok
        outcome = jnp.where(hit, RIGHT, jnp.where(earned, FORM, WRONG)).astype(jnp.int32)
        reward = jnp.where(hit, params.score, jnp.where(earned, params.format_score, 0.0)).astype(jnp.float32)
        not_judged = (action.length > self.answer_bytes) | (right_numbers & result.overflow)
        return Transition(
            state=CountdownState(level=level, outcome=outcome),
            reward=reward,
            terminated=jnp.ones((), bool),
            success=hit,
            valid=expression.valid,
            effective=reward > 0,
            metrics=jnp.stack([right_numbers, expression.valid, not_judged]).astype(jnp.float32),
        )

    def _uses(self, used: Array, count: Array, level: Array, params: CountdownParams) -> Bool[Array, ""]:
        """Whether the numbers used are those of the level, each as often as there."""
        given = params.numbers[level].astype(jnp.uint32)
        there = jnp.sum(given[:, None] == given[None, :], axis=1)
        here = jnp.sum(given[:, None] == used[None, :], axis=1)
        return (count == params.count[level]) & jnp.all(there == here)
