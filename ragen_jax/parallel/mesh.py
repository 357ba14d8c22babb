"""From the `parallel` section of a configuration to a mesh, checked before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import AxisType, Mesh

from envs_jax.errors import ConfigError
from ragen_jax.parallel.rules import MESH_AXES, Placement, ShardingRules

REPLICABLE = ("kv_heads", "vocab")


@dataclass(frozen=True)
class ParallelSection:
    """How the devices share the work. Rows of a batch are split over data x fsdp. One device in all: no mesh."""

    data: int | None = None  # ways that rows are split; null: what fsdp and tensor leave of the devices
    fsdp: int = 1  # ways that rows, weights, gradients and moments are split
    tensor: int = 1  # ways that heads, feed-forward width and vocabulary are split
    # what stays whole over tensor: kv_heads (each device then has a copy of those it needs), vocab
    replicate: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "replicate", tuple(self.replicate))
        for name in MESH_AXES:
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ConfigError(f"parallel.{name}", size, "it must be at least 1")
        for name in self.replicate:
            if name not in REPLICABLE:
                raise ConfigError(
                    "parallel.replicate", list(self.replicate), f"choose from {', '.join(REPLICABLE)}"
                )

    @property
    def rules(self) -> ShardingRules:
        whole: dict[str, Any] = dict.fromkeys(self.replicate, ())
        return replace(ShardingRules(), **whole)

    def shape(self, devices: int) -> tuple[int, int, int]:
        """(data, fsdp, tensor). Raises ConfigError unless their product is the number of devices."""
        rest = self.fsdp * self.tensor
        data = self.data if self.data is not None else max(devices // rest, 1)
        if data * rest != devices:
            shape = f"{data} x {self.fsdp} x {self.tensor}"
            name = "data" if self.data is not None else "fsdp" if self.fsdp > 1 else "tensor"
            raise ConfigError(
                f"parallel.{name}", getattr(self, name),
                f"data x fsdp x tensor = {shape} = {data * rest}, but there are {devices} devices",
            )  # fmt: skip
        return data, self.fsdp, self.tensor


def make_placement(section: ParallelSection, devices: Sequence[Any] | None = None) -> Placement | None:
    """The mesh of `devices` (default: all of every process) with the section's rules; None for a single device."""
    devices = jax.devices() if devices is None else devices
    shape = section.shape(len(devices))
    if math.prod(shape) == 1:
        return None
    return Placement(make_mesh(shape, devices), section.rules)


def make_mesh(shape: tuple[int, int, int], devices: Sequence[Any]) -> Mesh:
    """A mesh with the axes data, fsdp, tensor; devices near each other in the network near in it."""
    return jax.make_mesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * 3, devices=list(devices))


def check_rows(placement: Placement | None, **rows: int) -> None:
    """Raises ConfigError naming the first setting whose rows cannot be shared out evenly (`__` stands for a dot)."""
    if placement is None:
        return
    for name, count in rows.items():
        if count % placement.rows:
            raise ConfigError(
                name.replace("__", "."), count,
                f"rows are split over data x fsdp = {placement.rows} devices; use a multiple of {placement.rows}",
            )  # fmt: skip
