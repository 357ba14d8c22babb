"""Multi-turn episodes on device."""

from ragen_jax.rollout.episodes import rollout
from ragen_jax.rollout.sampling import Truncation
from ragen_jax.rollout.spec import RolloutSpec, StopTable, make_stop_table
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
