"""Many devices and many hosts: mesh, sharding rules, start of processes, compilation ahead of time."""

from ragen_jax.parallel.hosts import (
    Barrier,
    OthersFailed,
    anyone,
    check_same,
    everywhere,
    gathered,
    here,
    is_first,
    on_first,
    several,
    start,
)
from ragen_jax.parallel.mesh import ParallelSection, check_rows, make_mesh, make_placement
from ragen_jax.parallel.rules import Placement, ShardingRules, check_rules, manual_axes

__all__ = [
    "Barrier",
    "OthersFailed",
    "ParallelSection",
    "Placement",
    "ShardingRules",
    "anyone",
    "check_rows",
    "check_rules",
    "check_same",
    "everywhere",
    "gathered",
    "here",
    "is_first",
    "make_mesh",
    "make_placement",
    "manual_axes",
    "on_first",
    "several",
    "start",
]
