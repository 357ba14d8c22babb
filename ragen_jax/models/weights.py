"""From named tensors of a file to the parameter tree, and back: stacking, transposing, checking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from ragen_jax.models.config import ModelConfig, WeightSpec, weight_specs
from ragen_jax.models.errors import ModelFileError

Index = tuple[slice, ...]
Read = Callable[[str, Index], np.ndarray]


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


def assemble(cfg: ModelConfig, read: Read, shardings: Any = None) -> dict[str, Any]:
    """The parameter tree, float32, from `read(name, index)`, which returns a slice of one named tensor.

    `shardings`: None, or a tree like the parameters of `jax.sharding.Sharding`, or a function from the
    configuration to such a tree; then each process reads only the slices that its own devices hold.
    """
    if callable(shardings):
        shardings = shardings(cfg)
    params: dict[str, Any] = {}
    for (group, name), spec in weight_specs(cfg).items():
        shape = (cfg.num_hidden_layers, *spec.shape) if spec.per_layer else spec.shape

        def block(index: Index | None, spec: WeightSpec = spec, shape: tuple[int, ...] = shape) -> np.ndarray:
            assert index is not None
            bounds = [s.indices(n) for s, n in zip(index, shape, strict=True)]
            inner = tuple(slice(start, stop) for start, stop, _ in bounds[1 if spec.per_layer else 0 :])
            stored = inner[::-1] if spec.transpose else inner
            out = np.empty([stop - start for start, stop, _ in bounds], np.float32)
            layers = range(*bounds[0][:2]) if spec.per_layer else range(1)
            for row, layer in enumerate(layers):
                value = read(spec.hf_name.format(layer=layer), stored)
                (out[row] if spec.per_layer else out)[...] = value.T if spec.transpose else value
            return out

        if shardings is None:
            leaf = jax.numpy.asarray(block((slice(None),) * len(shape)))
        else:
            leaf = jax.make_array_from_callback(shape, shardings[group][name], block)
        params.setdefault(group, {})[name] = leaf
    return params


def named_tensors(params: dict[str, Any], cfg: ModelConfig) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor under its Hugging Face name, float32, contiguous, outputs first."""
    for (group, name), spec in weight_specs(cfg).items():
        leaf = params[group][name]
        for layer in _layers(spec, cfg):
            value = np.asarray(leaf[layer] if spec.per_layer else leaf, np.float32)
            yield spec.hf_name.format(layer=layer), np.ascontiguousarray(value.T if spec.transpose else value)


def _layers(spec: WeightSpec, cfg: ModelConfig) -> range:
    return range(cfg.num_hidden_layers if spec.per_layer else 1)


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
