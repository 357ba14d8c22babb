"""Multi-turn episodes on device."""

from ragen_jax.rollout.episodes import RolloutSpec, StopTable, make_stop_table, rollout
from ragen_jax.rollout.sampling import Truncation
from ragen_jax.rollout.trajectories import GIVEN, PADDING, SAMPLED, Trajectories

__all__ = [
    "GIVEN",
    "PADDING",
    "SAMPLED",
    "RolloutSpec",
    "StopTable",
    "Trajectories",
    "Truncation",
    "make_stop_table",
    "rollout",
]
