"""The policy network: configuration, parameters, training and incremental forward passes."""

from ragen_jax.models.config import Llama3Rope, ModelConfig, WeightSpec, weight_specs
from ragen_jax.models.transformer import (
    Cache,
    KVLayer,
    Params,
    abstract_params,
    attend_cache,
    block,
    extend,
    forward,
    init_cache,
    init_params,
    rms_norm,
    rope_angles,
    unembedding,
    unstack,
)

__all__ = [
    "Cache",
    "KVLayer",
    "Llama3Rope",
    "ModelConfig",
    "Params",
    "WeightSpec",
    "abstract_params",
    "attend_cache",
    "block",
    "extend",
    "forward",
    "init_cache",
    "init_params",
    "rms_norm",
    "rope_angles",
    "unembedding",
    "unstack",
    "weight_specs",
]
