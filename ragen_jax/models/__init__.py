"""The policy network: configuration, parameters, training and incremental forward passes."""

from ragen_jax.models.config import Llama3Rope, ModelConfig, WeightSpec, weight_specs
from ragen_jax.models.errors import ModelFileError
from ragen_jax.models.export import save_adapter, save_pretrained
from ragen_jax.models.hub import pull
from ragen_jax.models.load import load_model
from ragen_jax.models.lora import LoraConfig, init_lora, merge
from ragen_jax.models.transformer import (
    Cache,
    KVLayer,
    Params,
    abstract_params,
    attend_cache,
    block,
    embed,
    extend,
    forward,
    gathered,
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
    "LoraConfig",
    "ModelConfig",
    "ModelFileError",
    "Params",
    "WeightSpec",
    "abstract_params",
    "attend_cache",
    "block",
    "embed",
    "extend",
    "forward",
    "gathered",
    "init_cache",
    "init_lora",
    "init_params",
    "load_model",
    "merge",
    "pull",
    "rms_norm",
    "rope_angles",
    "save_adapter",
    "save_pretrained",
    "unembedding",
    "unstack",
    "weight_specs",
]
