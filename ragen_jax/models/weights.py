"""From named tensors of a file to the parameter tree, and back: stacking, transposing, checking."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

from ragen_jax.models.config import ModelConfig, WeightSpec, weight_specs
from ragen_jax.models.errors import ModelFileError

Index = tuple[slice, ...]
Read = Callable[[str, Index], np.ndarray]
Shardings = Mapping[str, Any] | Callable[[ModelConfig], Mapping[str, Any]] | None
"""Where weights go: a tree of shardings like the parameters, or a function from the configuration to such a
tree. None, for all or for one, is the default device."""


def expected_shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape in a Hugging Face file (matrices outputs first) of every tensor, by its name there."""
    return {
        spec.hf_name.format(layer=layer): spec.shape[::-1] if spec.transpose else spec.shape
        for spec in weight_specs(cfg).values()
        for layer in _layers(spec, cfg)
    }


def check_shapes(cfg: ModelConfig, found: Mapping[str, tuple[int, ...]], where: str) -> None:
    """Raises ModelFileError, naming the first tensors at fault, unless `found` is what `cfg` needs.

    Stored rotary frequencies and, in a tied model, a stored copy of the head are allowed.
    """
    expected = expected_shapes(cfg)
    missing = [name for name in expected if name not in found]
    if missing:
        raise ModelFileError(f"{where}: lacks {_few(missing)}; get the model's files again")
    for name, shape in expected.items():
        if tuple(found[name]) != shape:
            raise ModelFileError(
                f"{where}: {name} has shape {tuple(found[name])}, its configuration asks for {shape}; "
                "the configuration and the weights do not belong together"
            )
    extra = [
        name
        for name in found
        if name not in expected
        and not name.endswith("rotary_emb.inv_freq")
        and not (cfg.tie_word_embeddings and name == "lm_head.weight")
    ]
    if extra:
        raise ModelFileError(f"{where}: has weights that this architecture does not use: {_few(extra)}")


def assemble(cfg: ModelConfig, read: Read, shardings: Shardings = None) -> dict[str, Any]:
    """The parameter tree, float32, from `read(name, index)`, which returns a slice of one stored tensor.

    With `shardings`, each process reads only the slices that its own devices hold. Tensors go to their devices
    one after the other and are stacked there, so beyond the parameters the host holds no more than one slice of
    one tensor, in the type in which it is stored. Raises ModelFileError, before anything is read, for a sharding
    that does not divide a weight.
    """
    specs = weight_specs(cfg)
    shapes = {p: (cfg.num_hidden_layers, *s.shape) if s.per_layer else s.shape for p, s in specs.items()}
    tree = shardings(cfg) if callable(shardings) else shardings
    placed = {path: None if tree is None else tree[path[0]][path[1]] for path in specs}
    for path, sharding in placed.items():
        try:
            if sharding is not None:
                sharding.shard_shape(shapes[path])
        except ValueError as error:
            raise ModelFileError(
                f"{'.'.join(path)} of shape {shapes[path]} cannot be split as asked: {error}"
            ) from None
    params: dict[str, Any] = {}
    for (group, name), spec in specs.items():
        leaf = _place(spec, shapes[group, name], read, placed[group, name])
        params.setdefault(group, {})[name] = leaf
    return params


def _place(spec: WeightSpec, shape: tuple[int, ...], read: Read, sharding: Sharding | None) -> jax.Array:
    """One weight on the devices of `sharding` (None: the default device, uncommitted)."""
    if sharding is None:
        return _stack(spec, [(0, n) for n in shape], read, [None])[0]
    holders: dict[tuple[tuple[int, int], ...], list[Any]] = {}  # devices by the part that they hold
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        assert index is not None
        bounds = tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
        holders.setdefault(bounds, []).append(device)
    parts = [part for bounds, devices in holders.items() for part in _stack(spec, bounds, read, devices)]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts)


def _stack(
    spec: WeightSpec, bounds: Sequence[tuple[int, int]], read: Read, devices: Sequence[Any]
) -> list[jax.Array]:
    """The part of a weight within `bounds`, on each device; every slice is read once."""
    inner = tuple(slice(*b) for b in (bounds[1:] if spec.per_layer else bounds))
    stored = inner[::-1] if spec.transpose else inner
    layers = range(*bounds[0]) if spec.per_layer else range(1)
    shape = (len(layers), *(s.stop - s.start for s in inner))
    stacks: list[jax.Array] = []
    for row, layer in enumerate(layers):
        piece = read(spec.hf_name.format(layer=layer), stored)
        if piece.dtype.itemsize > 4:
            piece = piece.astype(np.float32)
        on_device = [jnp.asarray(piece) if d is None else jax.device_put(piece, d) for d in devices]
        if not spec.per_layer:
            stacks = [_cast(p, transpose=spec.transpose) for p in on_device]
        else:
            stacks = stacks or [jnp.zeros(shape, jnp.float32, device=d) for d in devices]
            pairs = zip(stacks, on_device, strict=True)
            stacks = [_write(s, p, row, transpose=spec.transpose) for s, p in pairs]
        jax.block_until_ready(stacks)  # or pieces not yet taken pile up on the host
    return stacks


@functools.partial(jax.jit, static_argnames="transpose")
def _cast(piece: jax.Array, *, transpose: bool) -> jax.Array:
    return (piece.T if transpose else piece).astype(jnp.float32)


@functools.partial(jax.jit, donate_argnums=0, static_argnames="transpose")
def _write(stack: jax.Array, piece: jax.Array, row: int, *, transpose: bool) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(stack, _cast(piece, transpose=transpose), row, 0)


def named_tensors(
    params: dict[str, Any], cfg: ModelConfig, leaf: Callable[[str, str], Any] | None = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor under its Hugging Face name, float32, contiguous, outputs first.

    `leaf(group, name)` gives a weight in place of `params[group][name]`, when its turn comes.
    """
    for (group, name), spec in weight_specs(cfg).items():
        value = params[group][name] if leaf is None else leaf(group, name)
        yield from named_layers(spec, value, cfg)


def named_layers(spec: WeightSpec, leaf: Any, cfg: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """The stored tensors of one weight, as `named_tensors` gives them."""
    for layer in _layers(spec, cfg):
        value = np.asarray(leaf[layer] if spec.per_layer else leaf, np.float32)
        yield spec.hf_name.format(layer=layer), np.ascontiguousarray(value.T if spec.transpose else value)


def _layers(spec: WeightSpec, cfg: ModelConfig) -> range:
    return range(cfg.num_hidden_layers if spec.per_layer else 1)


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
