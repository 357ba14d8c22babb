"""Several environments in one batch: one vmapped step a type, then one batch again.

Groups of the same environment stand together, in the order of `parts`. A batch is group-major: row b is a member of
group b // group_size. Under `vmap` a switch over types would make every row pay for all of them; slices do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from envs_jax.core import TimeStep
from envs_jax.errors import ConfigError
from envs_jax.turn import TurnEnv, TurnParams, TurnState

States = tuple[TurnState, ...]
MixtureParams = tuple[TurnParams, ...]


@dataclass(frozen=True)
class Mixture:
    """Environments and how many groups of a batch each has. Static and hashable.

    `params` of its methods is a tuple, one `TurnParams` a part; a state is a tuple likewise. `TimeStep`s have the
    widest part's buffers, and metrics of the one with the most.
    """

    parts: tuple[TurnEnv, ...]
    n_groups: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.parts or len(self.parts) != len(self.n_groups):
            raise ConfigError(
                "n_groups", self.n_groups, f"give one number for each of {len(self.parts)} environments"
            )
        if min(self.n_groups) < 1:
            raise ConfigError("n_groups", self.n_groups, "every environment needs at least one group")

    @property
    def tag(self) -> str:
        """The parts' tags, joined by "+"."""
        return "+".join(part.tag for part in self.parts)

    @property
    def shares(self) -> tuple[tuple[str, int], ...]:
        """Each part's tag and its number of groups."""
        return tuple((part.tag, count) for part, count in zip(self.parts, self.n_groups, strict=True))

    @property
    def prompt_capacity(self) -> int:
        """L0, slots of the longest first observation."""
        return max(part.prompt_capacity for part in self.parts)

    @property
    def obs_capacity(self) -> int:
        """L1, slots of the longest later one."""
        return max(part.obs_capacity for part in self.parts)

    @property
    def max_turns(self) -> int:
        """T, turns of the longest episode."""
        return max(part.config.max_turns for part in self.parts)

    @property
    def max_response_tokens(self) -> int:
        """R, slots of the longest response."""
        return max(part.config.max_response_tokens for part in self.parts)

    def part_of(self, group: int) -> TurnEnv:
        """The environment of a group."""
        ends = itertools.accumulate(self.n_groups)
        return next(part for part, end in zip(self.parts, ends, strict=True) if group < end)

    def response_limits(self, group_size: int) -> np.ndarray:
        """Tokens that each row's response may have, i32[B]."""
        limits = [part.config.max_response_tokens for part in self.parts]
        return np.repeat(np.asarray(limits, np.int32), np.asarray(self.n_groups) * group_size)

    def split(self, x: Any, group_size: int = 1) -> list[Any]:
        """A batch's arrays (leading axis groups x group_size) as one pytree a part."""
        ends = list(itertools.accumulate(count * group_size for count in self.n_groups))
        starts = [0, *ends[:-1]]
        return [jax.tree.map(lambda a, i=i, j=j: a[i:j], x) for i, j in zip(starts, ends, strict=True)]

    def reset(self, levels: Int[Array, " P"], params: MixtureParams) -> tuple[States, TimeStep]:
        """Starts an episode a group; `levels` are indices into the pool of the group's own environment."""
        out = [
            jax.vmap(part.reset, in_axes=(0, None))(own, p)
            for part, own, p in zip(self.parts, self.split(levels), params, strict=True)
        ]
        return tuple(state for state, _ in out), _together([step for _, step in out])

    def step(
        self,
        keys: Array,
        states: States,
        tokens: Int[Array, "B R"],
        length: Int[Array, " B"],
        params: MixtureParams,
        group_size: int,
    ) -> tuple[States, TimeStep]:
        """Plays one response of every row, as `TurnEnv.step` does of one."""
        rows = self.split((keys, tokens, length), group_size)
        out = [
            jax.vmap(part.step, in_axes=(0, 0, 0, 0, None))(k, state, t, n, p)
            for part, state, (k, t, n), p in zip(self.parts, states, rows, params, strict=True)
        ]
        return tuple(state for state, _ in out), _together([step for _, step in out])

    def text_of(self, params: MixtureParams, tokens: Sequence[int] | np.ndarray | Array) -> str:
        """Text of token ids."""
        return self.parts[0].text_of(params[0], tokens)


def as_mixture(env: TurnEnv | Mixture, groups: int) -> Mixture:
    """The environment as a mixture of `groups` groups. Raises ValueError if it is one of another number."""
    if isinstance(env, TurnEnv):
        return Mixture((env,), (groups,))
    if sum(env.n_groups) != groups:
        raise ValueError(f"a mixture of {sum(env.n_groups)} groups cannot play {groups}")
    return env


def share_vocabulary(params: Sequence[TurnParams]) -> MixtureParams:
    """The parameters with one copy of the tokenizer's table, which is the same for all."""
    return tuple(replace(p, vocab=params[0].vocab) for p in params)


def _together(steps: list[TimeStep]) -> TimeStep:
    """One batch of all parts' rows; shorter buffers are padded with zeros."""
    if len(steps) == 1:
        return steps[0]
    slots = max(s.obs_tokens.shape[1] for s in steps)
    width = max(s.info.metrics.shape[1] for s in steps)

    def wide(x: Array, columns: int) -> Array:
        return jnp.pad(x, ((0, 0), (0, columns - x.shape[1])))

    padded = [
        replace(
            s, obs_tokens=wide(s.obs_tokens, slots), info=replace(s.info, metrics=wide(s.info.metrics, width))
        )
        for s in steps
    ]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *padded)
