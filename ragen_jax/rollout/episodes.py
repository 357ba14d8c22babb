"""Multi-turn episodes of a whole batch as one compiled program: decode, parse, step, append, repeat.

Nothing crosses to the host. Turns see all that came before (`dialogue`) or a part of it (`windowed`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from envs_jax.mixture import Mixture, MixtureParams, as_mixture
from envs_jax.turn import TurnParams
from ragen_jax.models import Params, decoding_params
from ragen_jax.rollout.dialogue import dialogues
from ragen_jax.rollout.shares import Shares, play_shares, share_out
from ragen_jax.rollout.spec import RolloutSpec, StopTable
from ragen_jax.rollout.trajectories import Trajectories
from ragen_jax.rollout.windowed import windowed_episodes


def rollout(
    params: Params,
    spec: RolloutSpec,
    env_params: TurnParams | MixtureParams,
    stops: StopTable,
    key: Array,
    levels: Int[Array, "P"],
    *,
    group_size: int,
    temperature: float | Array = 1.0,
    group_ids: Int[Array, "P"] | None = None,
) -> Trajectories:
    """Plays `group_size` episodes of each level. Pure; wrap it in `jax.jit` with `spec` and `group_size` static.

    `levels` are indices into the environment's pool; the members of a group share the level and the prompt, and differ
    in every random draw after it. In a mixture `levels` has the groups of its parts one after another, each an index
    into the pool of the group's own environment. `group_ids` (default 0 .. P - 1) are the groups' addresses for
    random numbers, so a batch may be split without changing what its members draw. At temperature 0 decoding is
    greedy.

    On several devices (`spec.model.placement`) each plays its share of the rows, whole groups or parts of one, of every
    part of a mixture equally many, and the result is then whole on every device. Raises ValueError unless the rows can
    be shared out evenly.
    """
    group_ids = jnp.arange(levels.shape[0]) if group_ids is None else group_ids
    tables = env_params if isinstance(env_params, tuple) else (env_params,)
    temperature = jnp.asarray(temperature, jnp.float32)
    inputs = decoding_params(params, spec.model), tables, stops, key, temperature
    play, placement = windowed_episodes if spec.window is not None else dialogues, spec.model.placement
    if placement is None:
        return play(spec, group_size, *inputs, Shares(levels, group_ids, jnp.zeros_like(levels)))
    parts = as_mixture(spec.env, levels.shape[0]).n_groups
    division = share_out(levels, group_ids, group_size, placement.rows, parts)
    if isinstance(spec.env, Mixture):
        spec = replace(spec, env=replace(spec.env, n_groups=division.n_groups))
    return play_shares(partial(play, spec, division.members), inputs, division, group_size, placement)
