"""What a rollout leaves behind: the very ids that were seen and sampled, with a role for every slot."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, UInt8

PADDING, GIVEN, SAMPLED = 0, 1, 2


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Trajectories:
    """A batch of episodes, group-major: row b is member b % G of group b // G. B rows, L slots, T turns.

    Slots: `role` is 0 for padding, 1 for given text (system, environment), 2 for what the policy sampled; the loss
    mask is role == 2. `turn` is the turn a slot belongs to. `logprob` is what the id was drawn with, under
    softmax(logits / temperature) over the ids that top-p, top-k and min-p left, and 0 elsewhere.

    Turns: X of turn t is tokens[:prompt_end]; it includes the opening think tag. Z is tokens[think_start:think_end],
    both tags excluded; an empty span means that the turn has no valid reasoning. `turn_end` is the last sampled slot.
    Entries of turns that were not taken (t >= turns) are 0.

    A context that is not the whole dialogue is X of turn t as runs of the row's own ids: run k is
    tokens[run_start : run_start + run_length]. Without these (None) X is as above.
    """

    tokens: Int[Array, "B L"]
    length: Int[Array, "B"]
    role: UInt8[Array, "B L"]
    turn: Int[Array, "B L"]
    logprob: Float[Array, "B L"]
    prompt_end: Int[Array, "B T"]
    think_start: Int[Array, "B T"]
    think_end: Int[Array, "B T"]
    turn_end: Int[Array, "B T"]
    reward: Float[Array, "B T"]
    penalty: Float[Array, "B T"]
    format_ok: Bool[Array, "B T"]
    executed: Int[Array, "B T"]
    effective: Int[Array, "B T"]
    turns: Int[Array, "B"]
    terminated: Bool[Array, "B"]
    truncated: Bool[Array, "B"]
    success: Bool[Array, "B"]
    overflow: Bool[Array, "B"]  # a fixed-length buffer was too short somewhere in the episode
    level: Int[Array, "B"]
    run_start: Int[Array, "B T K"] | None = None
    run_length: Int[Array, "B T K"] | None = None
    group_size: int = field(default=1, metadata={"static": True})
    prompt_slots: int = field(
        default=0, metadata={"static": True}
    )  # that hold any prompt, of a limited context
    turn_slots: int = field(
        default=0, metadata={"static": True}
    )  # that hold any response, of a limited context

    @property
    def windowed(self) -> bool:
        """Whether turns have contexts of their own."""
        return self.run_start is not None

    @property
    def loss_mask(self) -> Bool[Array, "B L"]:
        return self.role == SAMPLED

    @property
    def taken(self) -> Bool[Array, "B T"]:
        """Which turns took place."""
        return jnp.arange(self.reward.shape[1]) < self.turns[:, None]

    @property
    def score(self) -> Float[Array, "B"]:
        """Episode reward with the format penalties, as the filter and the outcome advantages see it."""
        return jnp.sum(jnp.where(self.taken, self.reward + self.penalty, 0.0), axis=1)
