"""Many devices and many hosts: mesh, sharding rules, start of processes, compilation ahead of time."""

from ragen_jax.parallel.mesh import ParallelSection, check_rows, make_mesh, make_placement
from ragen_jax.parallel.rules import Placement, ShardingRules, check_rules, manual_axes

__all__ = [
    "ParallelSection",
    "Placement",
    "ShardingRules",
    "check_rows",
    "check_rules",
    "make_mesh",
    "make_placement",
    "manual_axes",
]
