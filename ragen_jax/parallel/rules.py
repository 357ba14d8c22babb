"""Which mesh axis splits which dimension: one table for weights and activations, checked against the model.

Dimensions have logical names (`batch`, `embed`, `heads`, ...). A `ShardingRules` says over which mesh axes each is
split, a `Placement` ties the rules to a mesh. Weights have two layouts: stored (split over `fsdp` too, as the masters,
the gradients and the optimiser's moments are) and gathered (whole over `fsdp`, split over `tensor`), which is what
computing, decoding and scoring use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import jax
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from envs_jax.errors import ConfigError

MESH_AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")
"""Mesh axes that rows are split over, major to minor."""

Axes = Sequence[str | None]


@dataclass(frozen=True)
class ShardingRules:
    """Mesh axes of every logical axis; a name that is not here is never split.

    batch: rows of episodes and of what is made from them.
    embed: the hidden dimension of weights (of activations it is whole).
    heads: query heads. kv_heads: key and value heads. mlp: the feed-forward width. vocab: ids.
    gathered: mesh axes over which weights are whole while they are computed with.
    """

    batch: tuple[str, ...] = BATCH_AXES
    embed: tuple[str, ...] = ("fsdp",)
    heads: tuple[str, ...] = ("tensor",)
    kv_heads: tuple[str, ...] = ("tensor",)
    mlp: tuple[str, ...] = ("tensor",)
    vocab: tuple[str, ...] = ("tensor",)
    gathered: tuple[str, ...] = ("fsdp",)

    def spec(self, axes: Axes, *, gathered: bool = False) -> PartitionSpec:
        """The PartitionSpec of an array with these logical axes (None: whole), without trailing Nones."""
        parts: list[Any] = []
        for axis in axes:
            names = _known(self).get(axis or "", ())
            names = tuple(n for n in names if not (gathered and n in self.gathered))
            parts.append(names[0] if len(names) == 1 else names or None)
        while parts and parts[-1] is None:
            parts.pop()
        return PartitionSpec(*parts)


def _known(rules: ShardingRules) -> dict[str, tuple[str, ...]]:
    return {f.name: getattr(rules, f.name) for f in fields(rules) if f.name != "gathered"}


class _Model(Protocol):
    """What the rules ask of a model's configuration."""

    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...


Weights = Mapping[str, tuple[tuple[int, ...], Axes]]


def check_rules(rules: ShardingRules, sizes: Mapping[str, int], model: _Model, weights: Weights) -> None:
    """Raises ConfigError, naming the rule and the weight, unless the rules fit the mesh and the model.

    `sizes`: devices along each mesh axis. `weights`: shape and logical axes by name.
    """
    for name, axes in _known(rules).items():
        for axis in axes:
            if axis not in sizes:
                raise ConfigError(
                    f"parallel.rules.{name}",
                    axes,
                    f"the mesh has no axis {axis!r}; its axes: {', '.join(sizes)}",
                )

    def ways(logical: str) -> int:
        return math.prod(sizes[a] for a in _known(rules).get(logical, ()))

    heads, kv = model.num_attention_heads, model.num_key_value_heads
    if heads % ways("heads"):
        raise ConfigError(
            "parallel.tensor", ways("heads"),
            f"the model has {heads} query heads; use a size that divides them: {_divisors(heads)}",
        )  # fmt: skip
    if kv % ways("kv_heads"):
        remedy = f"use a size that divides them: {_divisors(kv)}"
        if ways("heads") % kv == 0:
            remedy += ", or let devices hold copies of them: parallel.replicate=[kv_heads]"
        raise ConfigError(
            "parallel.tensor", ways("kv_heads"), f"the model has {kv} key-value heads; {remedy}"
        )
    if ways("kv_heads") < ways("heads") and ways("heads") % kv and kv % ways("heads"):
        raise ConfigError(
            "parallel.tensor", ways("heads"),
            f"{kv} key-value heads cannot be copied evenly to as many devices; use a divisor or a multiple of {kv}",
        )  # fmt: skip
    for weight, (shape, logical_axes) in weights.items():
        taken: dict[str, str] = {}
        for size, logical in zip(shape, logical_axes, strict=True):
            for axis in _known(rules).get(logical or "", ()):
                if axis in taken:
                    raise ConfigError(
                        f"parallel.rules.{logical}", _known(rules)[logical or ""],
                        f"splits {weight} over {axis!r} twice, as {taken[axis]!r} is split over it too",
                    )  # fmt: skip
                taken[axis] = logical or ""
            if size % ways(logical or ""):
                over = " x ".join(_known(rules)[logical or ""])
                remedy = f"use a size that divides it: {_divisors(size)}"
                if logical == "vocab":
                    remedy += ", or keep it whole on every device: parallel.replicate=[vocab]"
                raise ConfigError(
                    f"parallel.{_known(rules)[logical or ''][0]}", ways(logical or ""),
                    f"{weight} has {logical} = {size}, which {over} does not divide; {remedy}",
                )  # fmt: skip


def _divisors(n: int) -> str:
    return ", ".join(str(d) for d in range(1, min(n, 64) + 1) if n % d == 0)


@dataclass(frozen=True)
class Placement:
    """Rules on a mesh. Hashable and static: it is part of a `ModelConfig`, and so of every program's identity."""

    mesh: Mesh
    rules: ShardingRules = ShardingRules()

    def ways(self, *logical: str) -> int:
        """Parts that dimensions of these logical axes are cut into together."""
        return math.prod(self.mesh.shape[a] for name in logical for a in _known(self.rules).get(name, ()))

    @property
    def rows(self) -> int:
        """Parts that a batch is cut into."""
        return self.ways("batch")

    @property
    def row_axes(self) -> tuple[str, ...]:
        """Mesh axes that rows are really split over, which `jax.shard_map` takes by hand; empty: none is."""
        return tuple(a for a in self.rules.batch if self.mesh.shape[a] > 1)

    def kv_copies(self, kv_heads: int) -> int:
        """How often each key-value head is repeated, so that every tensor shard of queries has its own."""
        return max(self.ways("heads") // kv_heads, 1) if self.ways("kv_heads") < self.ways("heads") else 1

    def sharding(self, axes: Axes = (), *, gathered: bool = False) -> NamedSharding:
        """Of an array with these logical axes; none: a copy on every device."""
        return NamedSharding(self.mesh, self.spec(axes, gathered=gathered))

    def spec(self, axes: Axes, *, gathered: bool = False) -> PartitionSpec:
        """The rules' spec without mesh axes of size 1, as XLA gives it back: one layout has one name, one program."""
        parts: list[str | tuple[str, ...] | None] = []
        for part in self.rules.spec(axes, gathered=gathered):
            names = tuple(
                n for n in ((part,) if isinstance(part, str) else part or ()) if self.mesh.shape[n] > 1
            )
            parts.append(names[0] if len(names) == 1 else names or None)
        while parts and parts[-1] is None:
            parts.pop()
        return PartitionSpec(*parts)

    def constrain(self, x: Array, axes: Axes, *, gathered: bool = False) -> Array:
        """x with its layout fixed; a dimension that its axes do not divide stays whole.

        Inside `jax.shard_map`, where rows are split by hand, by the other axes alone.
        """
        spec = self._fitting(x.shape, axes, gathered=gathered)
        manual = manual_axes()
        if not manual:
            return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))
        if all(self.mesh.shape[a] == 1 for a in self.mesh.axis_names if a not in manual):
            return x
        return jax.lax.with_sharding_constraint(x, _without(spec, manual))

    def _fitting(self, shape: Sequence[int], axes: Axes, *, gathered: bool = False) -> PartitionSpec:
        fitting = [a if a and n % self.ways(a) == 0 else None for n, a in zip(shape, axes, strict=False)]
        return self.spec(fitting, gathered=gathered)

    @property
    def platform(self) -> str:
        """Of the mesh's devices: "cpu", "gpu" or "tpu"."""
        return str(self.mesh.devices.flat[0].platform)

    def by_device(
        self,
        kernel: Callable[..., Array],
        arrays: tuple[Array, ...],
        axes: tuple[Axes, ...],
        out_shape: Sequence[int],
        out_axes: Axes,
    ) -> Array:
        """`kernel(*arrays)`, which knows nothing of meshes, run by each device on its part of the arrays.

        `axes`: logical axes of each array; a dimension that its axes do not divide is whole. Also inside
        `jax.shard_map`.
        """
        manual = manual_axes()
        left = {a for a in self.mesh.axis_names if a not in manual}
        if not left:
            return kernel(*arrays)
        specs = tuple(_without(self._fitting(x.shape, a), manual) for x, a in zip(arrays, axes, strict=True))
        # Inside a shard_map shapes are those of a device's own rows, which are not split again.
        split = jax.shard_map(
            kernel, mesh=None if manual else self.mesh, in_specs=specs,
            out_specs=_without(self._fitting(out_shape, out_axes), manual), axis_names=left, check_vma=False,
        )  # fmt: skip
        out: Array = split(*arrays)
        return out

    def constrain_tree(self, tree: Any, axes: Any, *, gathered: bool = False) -> Any:
        """Every leaf with the layout of its entry in `axes`, a tree of tuples of logical axes."""
        return jax.tree.map(lambda x, a: self.constrain(x, a, gathered=gathered), tree, axes)

    def replicate(self, tree: Any) -> Any:
        """Every leaf whole on every device, inside `jit`."""
        return jax.tree.map(lambda x: self.constrain(x, ()), tree)

    def anywhere(self, flag: Array) -> Array:
        """`jnp.any(flag)` over the rows of every device that must agree, as in `greatest`."""
        return self.greatest(flag.astype(jax.numpy.int32)) > 0

    def greatest(self, x: Array) -> Array:
        """`jnp.max(x)` over the rows of every device that must agree on a branch or on a loop's end.

        Rows split by hand need no agreement while each device computes alone. Where the other axes have collectives of
        their own, all devices must enter them equally often.
        """
        here = jax.numpy.max(x)
        manual = manual_axes()
        alone = all(self.mesh.shape[a] == 1 for a in self.mesh.axis_names if a not in manual)
        return here if not manual or alone else jax.lax.pmax(here, manual)


def _without(spec: PartitionSpec, manual: Sequence[str]) -> PartitionSpec:
    """The spec without these mesh axes."""
    left = []
    for part in spec:
        names = (part,) if isinstance(part, str) else part or ()
        left.append(tuple(n for n in names if n not in manual) or None)
    return PartitionSpec(*left)


def manual_axes() -> tuple[str, ...]:
    """Mesh axes of an enclosing `jax.shard_map`, in the mesh's order."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in kinds if kind == AxisType.Manual)
