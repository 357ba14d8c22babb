"""How the rows of a rollout are shared out over devices, and played there by themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from ragen_jax.models import ModelConfig
from ragen_jax.parallel.rules import Placement
from ragen_jax.rollout.trajectories import Trajectories


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Shares:
    """Groups, or equal parts of groups: level, address for random numbers, and number of the first member."""

    levels: Int[Array, "S"]
    group_ids: Int[Array, "S"]
    first_member: Int[Array, "S"]


def any_row(flag: Bool[Array, "B"], model: ModelConfig) -> Bool[Array, ""]:
    """Whether any row has the flag: of those that must take a branch or end a loop together."""
    return jnp.any(flag) if model.placement is None else model.placement.anywhere(flag)


def longest_row(length: Int[Array, "B"], model: ModelConfig) -> Int[Array, ""]:
    """The greatest length: of the rows that must leave a loop together."""
    return jnp.max(length) if model.placement is None else model.placement.greatest(length)


def share_out(
    levels: Int[Array, "P"], group_ids: Int[Array, "P"], group_size: int, devices: int
) -> tuple[int, Shares]:
    """(members of a share, shares) so that `devices` get equally many, in the order of rows.

    Groups stay whole where their number allows it, else each is cut into as few equal parts as it takes. Raises
    ValueError when the rows do not come out even.
    """
    groups = levels.shape[0]
    cuts = devices // math.gcd(groups, devices)
    if group_size % cuts:
        raise ValueError(
            f"{groups} groups of {group_size} cannot be shared out over data x fsdp = {devices} devices; make groups "
            f"x members a multiple of {devices}"
        )
    members = group_size // cuts
    first = jnp.tile(jnp.arange(cuts) * members, groups)
    return members, Shares(jnp.repeat(levels, cuts), jnp.repeat(group_ids, cuts), first)


def play_shares(
    play: Callable[..., Trajectories],
    inputs: tuple[Any, ...],
    shares: Shares,
    group_size: int,
    placement: Placement,
) -> Trajectories:
    """`play(*inputs, shares)` with the shares split over the devices that rows are split over.

    `inputs` are whole on these devices. The result has all rows, on every device.
    """
    if not placement.row_axes:
        return play(*inputs, shares)
    rows = jax.P(placement.row_axes)
    # Rows never meet, and nothing is differentiated: there is no replication for the types to keep track of.
    played = jax.shard_map(
        lambda inputs, shares: play(*inputs, shares), mesh=placement.mesh, in_specs=(jax.P(), rows), out_specs=rows,
        axis_names=set(placement.row_axes), check_vma=False,
    )(inputs, shares)  # fmt: skip
    whole: Trajectories = placement.replicate(played)
    return replace(whole, group_size=group_size)
