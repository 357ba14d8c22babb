"""Where the arrays of training lie on a mesh: each leaf's logical axes, found by its path in the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding

from ragen_jax.models import ModelConfig, weight_specs


def logical_axes(path: tuple[Any, ...], ndim: int, cfg: ModelConfig) -> tuple[str | None, ...]:
    """Logical axes of the leaf at `path` of a tree of parameters, adapters, gradients, moments, or of a whole state.

    What ends in a weight's path (`.. layers q`) is laid out like the weight; adapters (`.. layers q a`) like the side
    of the matrix that they share; anything else (counters, a critic's head) is whole on every device.
    """
    names = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    specs = weight_specs(cfg)
    if spec := specs.get(tuple(names[-2:])):
        axes: tuple[str | None, ...] = spec.axes
    elif names[-1:] in (["a"], ["b"]) and (spec := specs.get(tuple(names[-3:-1]))):
        axes = (spec.axes[0], None) if names[-1] == "a" else (None, spec.axes[1])
    else:
        return ()
    axes = ("layers", *axes) if spec.per_layer else axes
    return axes if len(axes) == ndim else ()


def shardings(tree: Any, cfg: ModelConfig) -> Any:
    """The stored layout of every leaf of `tree` (arrays or ShapeDtypeStructs) as NamedShardings, on `cfg.placement`."""
    assert cfg.placement is not None

    def of(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        assert cfg.placement is not None
        return cfg.placement.sharding(logical_axes(path, leaf.ndim, cfg))

    return jax.tree_util.tree_map_with_path(of, tree)


def laid_out(make: Callable[..., Any], cfg: ModelConfig, *args: Any) -> Any:
    """`make(*args)` with every leaf of the result made where it is stored; `make(*args)` itself on one device."""
    if cfg.placement is None:
        return make(*args)
    shapes = jax.eval_shape(make, *args)
    return jax.jit(make, out_shardings=shardings(shapes, cfg))(*args)


def abstract(tree: Any, cfg: ModelConfig) -> Any:
    """`tree` (arrays or ShapeDtypeStructs) as ShapeDtypeStructs that say where each leaf is stored."""
    one = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    where = jax.tree.map(lambda _: one, tree) if cfg.placement is None else shardings(tree, cfg)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), tree, where)


def stored(tree: Any, cfg: ModelConfig) -> Any:
    """`tree` with every leaf in its stored layout, inside `jit`; as it is on one device."""
    if cfg.placement is None:
        return tree
    return jax.tree.map(jax.lax.with_sharding_constraint, tree, shardings(tree, cfg))


def whole_everywhere(tree: Any, cfg: ModelConfig) -> Any:
    """`tree` with every leaf whole on every device, inside `jit`; as it is on one device."""
    return tree if cfg.placement is None else cfg.placement.replicate(tree)
