"""How the rows of a rollout are shared out over devices, and played there by themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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


@dataclass(frozen=True)
class Division:
    """The rows of a batch in equal shares for devices."""

    members: int  # of each share
    n_groups: tuple[int, ...]  # shares of each part of the batch that a device has
    shares: Shares  # of one device after the other
    places: np.ndarray  # [B] of each row of the batch among the rows of these shares


def share_out(
    levels: Int[Array, "P"],
    group_ids: Int[Array, "P"],
    group_size: int,
    devices: int,
    n_groups: tuple[int, ...] | None = None,
) -> Division:
    """Divides groups so that `devices` get equally many rows of each part of the batch.

    `n_groups`: groups of each part (of a mixture), one part after the other; default one part. A device has its shares
    in the order of parts too. Groups stay whole where their numbers allow it, else all are cut into as few equal pieces
    as it takes. Raises ValueError when the rows do not come out even.
    """
    n_groups = (levels.shape[0],) if n_groups is None else n_groups
    cuts = math.lcm(*(devices // math.gcd(n, devices) for n in n_groups))
    if group_size % cuts:
        groups = " + ".join(map(str, n_groups))
        raise ValueError(
            f"{groups} groups of {group_size} cannot be shared out over data x fsdp = {devices} devices; make groups x "
            f"members a multiple of {devices}"
        )
    members = group_size // cuts
    ends = np.cumsum(n_groups) * cuts
    by_part = [
        np.arange(end - n * cuts, end).reshape(devices, -1) for n, end in zip(n_groups, ends, strict=True)
    ]
    order = np.concatenate(by_part, axis=1).reshape(-1)
    first = jnp.tile(jnp.arange(cuts) * members, levels.shape[0])
    shares = Shares(jnp.repeat(levels, cuts), jnp.repeat(group_ids, cuts), first)
    if len(n_groups) > 1:
        shares = jax.tree.map(lambda x: x[order], shares)
    places = np.argsort(order)[:, None] * members + np.arange(members)
    return Division(members, tuple(x.shape[1] for x in by_part), shares, places.reshape(-1))


def play_shares(
    play: Callable[..., Trajectories],
    inputs: tuple[Any, ...],
    division: Division,
    group_size: int,
    placement: Placement,
) -> Trajectories:
    """`play(*inputs, shares)` with the shares split over the devices that rows are split over.

    `inputs` are whole on these devices. The result has all rows of the batch in its order, on every device.
    """
    if not placement.row_axes:
        return play(*inputs, division.shares)
    rows = jax.P(placement.row_axes)
    # Rows never meet, and nothing is differentiated: there is no replication for the types to keep track of.
    played = jax.shard_map(
        lambda inputs, shares: play(*inputs, shares), mesh=placement.mesh, in_specs=(jax.P(), rows), out_specs=rows,
        axis_names=set(placement.row_axes), check_vma=False,
    )(inputs, division.shares)  # fmt: skip
    whole: Trajectories = placement.replicate(played)
    if len(division.n_groups) > 1:
        whole = jax.tree.map(lambda x: x[division.places], whole)
    return replace(whole, group_size=group_size)
