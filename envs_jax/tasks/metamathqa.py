"""MetaMathQA: one mathematical question; a wrong answer may be tried again for half the reward.

Check and reward are RAGEN's: the answer in lower case and without whitespace must be the same text, and try k (from 0)
pays 1 / 2 ** k. `answer_check: numeric` also takes other ways to write the same number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int, UInt8, UInt32

from envs_jax.core import Span, Transition
from envs_jax.datasets.questions import DATASETS, Question, load_questions, normalised
from envs_jax.datasets.table import check_on_bad_row
from envs_jax.errors import ConfigError, suggestion
from envs_jax.tasks.answering import AnswerTask
from envs_jax.text.actions import lower
from envs_jax.text.numbers import Number, read_number, same_number
from envs_jax.text.scan import if_any, is_space, words

CHECKS = ("string", "numeric")
UNANSWERED, WRONG, RIGHT = range(3)  # outcomes
LABEL_BYTES = 64


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MetaMathQAParams:
    """Traced parameters: N questions with answers of at most 4 W bytes."""

    phrase: Int[Array, " N"]  # i32, phrase of the question
    label: UInt32[Array, "N W"]  # bytes of the normalised answer, four to a word, zeros beyond its end
    label_length: Int[Array, " N"]  # i32
    number: Number  # what the answer is as a number; leaves [N, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MetaMathQAState:
    """Which question, and what became of the answers so far."""

    level: Int[Array, ""]  # i32
    tries: Int[Array, ""]  # i32, answers given
    outcome: Int[Array, ""]  # i32: UNANSWERED, WRONG or RIGHT


_read_numbers = jax.jit(jax.vmap(read_number))


@dataclass(frozen=True)
class MetaMathQA(AnswerTask):
    """Mathematical questions with one answer each. The action is the answer's text (a `Span`).

    Reward 1 / 2 ** k for the right answer as try k, counted from 0, which ends the episode (success); else 0, and the
    question may be tried again. `metric_names`: answers given before this one; whether an answer was too long to be
    judged (it then counts as wrong) or had too many digits to be read as a number.

    Fields:
        dataset: "generated" (word problems from a seed), "reasoning_gym/gsm_symbolic", or "tfds/metamathqa" (the
            published file, prepared by tensorflow-datasets). A split with fewer rows than `num_levels` is gone
            through again.
        data_dir: of tensorflow-datasets; None for its default.
        on_bad_row: "refuse" or "skip" rows that cannot be used.
        data_seed: of generated questions; the pool's own seed changes nothing here.
        answer_check: "string" (the published one), or "numeric": equal as strings, or equal as numbers.
        max_question_bytes: longer questions are bad rows.
    """

    dataset: str = "generated"
    data_dir: str | None = None
    on_bad_row: str = "refuse"
    data_seed: int = 0
    answer_check: str = "string"
    max_question_bytes: int = 2048

    def __post_init__(self) -> None:
        self._check_least(num_levels=1, max_question_bytes=1)
        if self.dataset not in DATASETS:
            raise ConfigError("dataset", self.dataset, suggestion(self.dataset, DATASETS))
        if self.answer_check not in CHECKS:
            raise ConfigError("answer_check", self.answer_check, f"use one of {', '.join(CHECKS)}")
        check_on_bad_row(self.on_bad_row)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("tries_before", "not_judged")

    @property
    def answer_bytes(self) -> int:
        return 2 * LABEL_BYTES

    # -- text ----------------------------------------------------------------------------------------------
    @cached_property
    def _questions(self) -> dict[str, tuple[Question, ...]]:
        return load_questions(
            self.dataset,
            self.data_dir,
            self.num_levels,
            self.data_seed,
            self.max_question_bytes,
            LABEL_BYTES,
            self.on_bad_row,
        )

    def instruction(self) -> str:
        return (
            "You are solving a mathematical problem. Answer with the result alone: a number or expression, without "
            "units or words, decimals without zeros at the end, fractions in lowest terms. After a wrong answer you "
            "may try again for half of the points."
        )

    @cached_property
    def _text(self) -> dict[str, int]:
        """Phrases and their ids: the line after a wrong and a right answer, then the questions of both splits."""
        texts = ["Your answer is incorrect. Think again.\n", "Your answer is correct.\n"]
        texts += [row.question + "\n" for rows in self._questions.values() for row in rows]
        return {text: i for i, text in enumerate(dict.fromkeys(texts))}

    def phrases(self) -> Sequence[str]:
        return list(self._text)

    def state_tokens(self, lengths: np.ndarray, params: MetaMathQAParams) -> tuple[int, int]:
        return int(lengths[RIGHT - WRONG + 1 :].max()), int(
            lengths.max()
        )  # over the questions of every split

    # -- pure functions ------------------------------------------------------------------------------------
    def init_params(self, key: Array, split: str = "train") -> MetaMathQAParams:
        """Takes the questions of `split`; level i is row i, over again where rows run out."""
        rows = self._questions[split]
        answers = [normalised(row.answer).encode() for row in rows]
        label = np.zeros((len(rows), LABEL_BYTES), np.uint8)
        for line, answer in zip(label, answers, strict=True):
            line[: len(answer)] = np.frombuffer(answer, np.uint8)
        length = np.asarray([len(a) for a in answers], np.int32)
        phrase = np.asarray([self._text[row.question + "\n"] for row in rows], np.int32)
        at = np.arange(self.num_levels) % len(rows)
        labels, lengths = jnp.asarray(label[at]), jnp.asarray(length[at])
        return MetaMathQAParams(
            phrase=jnp.asarray(phrase[at]),
            label=jax.vmap(words)(labels),
            label_length=lengths,
            number=_read_numbers(labels, lengths),
        )

    def level(self, index: Int[Array, ""], params: MetaMathQAParams) -> MetaMathQAState:
        zero = jnp.zeros((), jnp.int32)
        return MetaMathQAState(level=jnp.asarray(index, jnp.int32), tries=zero, outcome=zero)

    def observe(self, state: MetaMathQAState, params: MetaMathQAParams) -> Int[Array, " F"]:
        first = jnp.where(state.outcome == UNANSWERED, params.phrase[state.level], state.outcome - WRONG)
        return first.astype(jnp.int32)[None]

    def parse(
        self, span: Span, state: MetaMathQAState, params: MetaMathQAParams
    ) -> tuple[Span, Bool[Array, ""]]:
        return span, span.length > 0

    def transition(
        self, key: Array, state: MetaMathQAState, action: Span, params: MetaMathQAParams
    ) -> Transition:
        level = state.level
        too_long = action.length > self.answer_bytes
        label = jax.lax.bitcast_convert_type(params.label[level], jnp.uint8).reshape(-1)
        right = same_text(action, label, params.label_length[level])
        digits = jnp.zeros((), bool)
        if self.answer_check == "numeric":
            said = read_number(action.data, action.length)
            right |= same_number(said, jax.tree.map(lambda x: x[level], params.number))
            digits = said.overflow & ~right
        right &= ~too_long
        reward = jnp.where(right, jnp.exp2(-state.tries.astype(jnp.float32)), 0.0).astype(jnp.float32)
        metrics = [state.tries, too_long | digits]
        return Transition(
            state=MetaMathQAState(
                level=level,
                tries=state.tries + 1,
                outcome=jnp.where(right, RIGHT, WRONG).astype(jnp.int32),
            ),
            reward=reward,
            terminated=right,
            success=right,
            valid=action.length > 0,
            effective=right,
            metrics=jnp.stack([jnp.asarray(m, jnp.float32) for m in metrics]),
        )


def same_text(span: Span, label: UInt8[Array, " W"], label_length: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether the span without whitespace and in lower case (ASCII) is `label[:label_length]`, zeros beyond.

    Text without whitespace is compared where it stands. Whitespace is taken out only where there is some: under
    `jax.vmap` a batch in which no row has any does not pay for it.
    """
    width = label.shape[0]
    inside = jnp.arange(width, dtype=jnp.int32) < span.length
    head = span.data[:width]
    differs = jnp.where(inside, lower(head) ^ label, jnp.uint8(0))
    equal = (span.length == label_length) & ~jnp.any(words(differs))
    spaced = jnp.any(words((is_space(head) & inside).astype(jnp.uint8))) | (span.length > width)
    return jnp.where(spaced, _same_without_space(spaced, span, label, label_length), equal)


@if_any
def _same_without_space(
    span: Span, label: UInt8[Array, " W"], label_length: Int[Array, ""]
) -> Bool[Array, ""]:
    kept = ~is_space(span.data) & (jnp.arange(span.data.shape[0], dtype=jnp.int32) < span.length)
    count = jnp.cumsum(kept, dtype=jnp.int32)
    wanted = label.at[count - 1].get(mode="clip")  # beyond the label's end the counts differ
    return (count[-1] == label_length) & jnp.all(~kept | (lower(span.data) == wanted))
