"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): a second parameter tree, merged into the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ragen_jax.models.config import ModelConfig, WeightSpec, weight_specs

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class LoraConfig:
    """W becomes W + alpha / rank * A B for each matrix in `targets`, in every layer.

    Raises ValueError, naming the field, for a rank below 1, an alpha that is not positive, an unknown target.
    """

    rank: int = 16  # of A B
    alpha: float = 32.0  # scale is alpha / rank
    targets: tuple[str, ...] = MATRICES  # matrices to adapt

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"lora.rank is {self.rank}; it must be at least 1")
        if not 0 < self.alpha < float("inf"):
            raise ValueError(f"lora.alpha is {self.alpha}; it must be positive")
        object.__setattr__(self, "targets", tuple(self.targets))
        if not self.targets:
            raise ValueError(f"lora.targets is empty; choose from {', '.join(MATRICES)}")
        for target in self.targets:
            if target not in MATRICES:
                raise ValueError(f"lora.targets holds {target!r}; choose from {', '.join(MATRICES)}")
        if len(set(self.targets)) != len(self.targets):
            raise ValueError(f"lora.targets names a matrix twice: {self.targets}")

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return self.alpha / self.rank


def lora_specs(cfg: ModelConfig, lora: LoraConfig) -> dict[tuple[str, str, str], WeightSpec]:
    """Every adapter weight by its path, e.g. ("layers", "q", "a"): A [in, rank], B [rank, out], per layer.

    Logical axes are those of the adapted matrix, the rank being unnamed; Hugging Face names are PEFT's.
    Raises ValueError when the rank exceeds a side of an adapted matrix.
    """
    specs = {}
    weights = weight_specs(cfg)
    for target in lora.targets:
        base = weights["layers", target]
        (n_in, n_out), (in_axis, out_axis) = base.shape, base.axes
        if lora.rank > min(n_in, n_out):
            raise ValueError(f"lora.rank is {lora.rank}, but {target} is only {n_in} x {n_out}")
        stem = "base_model.model." + base.hf_name.removesuffix(".weight")
        specs["layers", target, "a"] = WeightSpec(
            shape=(n_in, lora.rank),
            axes=(in_axis, None),
            init=n_in**-0.5,
            hf_name=f"{stem}.lora_A.weight",
            gguf_name="",
            per_layer=True,
            transpose=True,
        )
        specs["layers", target, "b"] = WeightSpec(
            shape=(lora.rank, n_out),
            axes=(None, out_axis),
            init=0.0,
            hf_name=f"{stem}.lora_B.weight",
            gguf_name="",
            per_layer=True,
            transpose=True,
        )
    return specs


def init_lora(cfg: ModelConfig, lora: LoraConfig, key: Array) -> dict[str, Any]:
    """Fresh adapters, float32: {"layers": {target: {"a": [L, in, rank], "b": [L, rank, out]}}}.

    A is uniform within +-1/sqrt(in) (as in PEFT), B is zero, so the merged model equals the base.
    """
    tree: dict[str, Any] = {"layers": {}}
    for i, ((group, target, part), spec) in enumerate(lora_specs(cfg, lora).items()):
        shape = (cfg.num_hidden_layers, *spec.shape)
        leaf = jax.random.uniform(jax.random.fold_in(key, i), shape, jnp.float32, -spec.init, spec.init)
        tree[group].setdefault(target, {})[part] = leaf if spec.init else jnp.zeros(shape, jnp.float32)
    return tree


def merge(params: dict[str, Any], adapters: dict[str, Any], lora: LoraConfig) -> dict[str, Any]:
    """The parameters with W + alpha / rank * A B in place of each adapted W. Pure, float32; call it inside
    jit.

    The gradient with respect to `adapters` alone trains them; pass `params` as a constant of differentiation.
    """
    layers = dict(params["layers"])
    for target in lora.targets:
        ab = adapters["layers"][target]
        delta = jnp.einsum("lir,lro->lio", ab["a"], ab["b"], preferred_element_type=jnp.float32)
        layers[target] = layers[target] + lora.scale * delta
    return {**params, "layers": layers}
