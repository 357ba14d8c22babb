"""What the loop over turns carries and leaves, whatever the policy is shown: each id of an episode once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, UInt8

from envs_jax.core import TimeStep
from envs_jax.mixture import Mixture, MixtureParams, States
from ragen_jax.rollout.decoding import DecodeState
from ragen_jax.rollout.sampling import row_keys
from ragen_jax.rollout.shares import Shares
from ragen_jax.rollout.trajectories import GIVEN, SAMPLED, Trajectories


def write(target: Array, start: Array, count: Array, values: Array) -> Array:
    """target[b, start[b] : start[b] + count[b]] = values[b, :count[b]]; what would fall outside is dropped."""
    offsets = jnp.arange(values.shape[1])
    slots = jnp.where(offsets < count[:, None], start[:, None] + offsets, target.shape[1])
    return target.at[jnp.arange(target.shape[0])[:, None], slots].set(
        values.astype(target.dtype), mode="drop"
    )


def each_member(x: Array, group_size: int) -> Array:
    """What is said of each share, said of each of its rows."""
    return jnp.repeat(x, group_size, axis=0)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Record:
    """The episodes so far; of ended ones nothing changes."""

    env_state: States
    live: Bool[Array, "B"]
    length: Int[Array, "B"]
    tokens: Int[Array, "B L"]
    role: UInt8[Array, "B L"]
    turn: Int[Array, "B L"]
    logprob: Float[Array, "B L"]
    turns: Int[Array, "B"]
    terminated: Bool[Array, "B"]
    truncated: Bool[Array, "B"]
    success: Bool[Array, "B"]
    overflow: Bool[Array, "B"]

    def given(self, tokens: Int[Array, "B n"], count: Int[Array, "B"], turn: Array | int) -> Record:
        """With the first `count` tokens of an observation, which is shown in `turn`."""
        return self._append(tokens, count, GIVEN, turn)

    def played(self, env_state: States, step: TimeStep, d: DecodeState, turn: Array) -> Record:
        """With the responses of a turn, and where they led."""
        e, live = self._append(d.response, d.count, SAMPLED, turn), self.live
        return replace(
            e,
            env_state=env_state,
            logprob=write(self.logprob, self.length, d.count, d.logprob),
            turns=self.turns + live,
            terminated=jnp.where(live, step.terminated, self.terminated),
            truncated=jnp.where(live, step.truncated, self.truncated),
            success=jnp.where(live, step.success, self.success),
            overflow=self.overflow | (live & (step.info.text_overflow | step.info.obs_overflow)),
            live=live & ~step.terminated & ~step.truncated,
        )

    def _append(self, tokens: Array, count: Array, role: int, turn: Array | int) -> Record:
        return replace(
            self,
            length=self.length + count,
            tokens=write(self.tokens, self.length, count, tokens),
            role=write(self.role, self.length, count, jnp.full_like(tokens, role)),
            turn=write(self.turn, self.length, count, jnp.full_like(tokens, turn)),
        )

    def columns(self, step: TimeStep, d: DecodeState, **more: Array) -> dict[str, Array]:
        """What `Trajectories` says of the turn that begins after this record; 0 where there is none."""
        of_turn = {
            "prompt_end": self.length, "think_start": self.length, "think_end": self.length + step.info.think_end,
            "turn_end": self.length + d.count - 1, "reward": step.reward, "penalty": step.penalty,
            "format_ok": step.info.format_ok, "executed": step.info.n_executed, "effective": step.info.n_effective,
        } | more  # fmt: skip
        return {
            name: jnp.where(jnp.expand_dims(self.live, tuple(range(1, x.ndim))), x, jnp.zeros_like(x))
            for name, x in of_turn.items()
        }

    def trajectories(
        self, columns: dict[str, Array], levels: Int[Array, "S"], group_size: int, **static: Any
    ) -> Trajectories:
        """`columns`: those of all turns, [T, B, ..]."""
        by_row: dict[str, Any] = {name: jnp.swapaxes(x, 0, 1) for name, x in columns.items()}
        return Trajectories(
            tokens=self.tokens, length=self.length, role=self.role, turn=self.turn, logprob=self.logprob,
            turns=self.turns, terminated=self.terminated, truncated=self.truncated, success=self.success,
            overflow=self.overflow, level=each_member(levels, group_size), group_size=group_size, **by_row, **static,
        )  # fmt: skip


def begin(
    env: Mixture, tables: MixtureParams, key: Array, shares: Shares, group_size: int, slots: int
) -> tuple[Record, TimeStep, Array]:
    """(records with the first observations, these by share, keys of the rows)."""
    batch = shares.levels.shape[0] * group_size
    first_member = each_member(shares.first_member, group_size)
    members = first_member + jnp.tile(jnp.arange(group_size), shares.levels.shape[0])
    keys = row_keys(key, each_member(shares.group_ids, group_size), members)
    state, first = env.reset(shares.levels, tables)
    state, prompt, count, overflow = jax.tree.map(
        lambda x: each_member(x, group_size),
        (state, first.obs_tokens, first.obs_len, first.info.obs_overflow),
    )
    blank = jnp.zeros((batch, slots), jnp.int32)
    zero, off = jnp.zeros(batch, jnp.int32), jnp.zeros(batch, bool)
    record = Record(
        env_state=state, live=~off, length=zero, tokens=blank, role=blank.astype(jnp.uint8), turn=blank,
        logprob=blank.astype(jnp.float32), turns=zero, terminated=off, truncated=off, success=off, overflow=overflow,
    )  # fmt: skip
    return record.given(prompt, count, 0), first, keys
