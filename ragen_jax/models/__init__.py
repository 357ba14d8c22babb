"""The policy network: configuration, parameters, training and incremental forward passes."""

from ragen_jax.models.config import Llama3Rope, ModelConfig, WeightSpec, weight_specs
from ragen_jax.models.errors import ModelFileError
from ragen_jax.models.export import save_adapter, save_pretrained
from ragen_jax.models.hub import pull
from ragen_jax.models.incremental import (
    Cache,
    KVLayer,
    KVStack,
    attend_cache,
    decoding_params,
    extend,
    init_cache,
    spread_cache,
)
from ragen_jax.models.load import load_model
from ragen_jax.models.lora import LoraConfig, init_lora, merge
from ragen_jax.models.transformer import (
    Params,
    abstract_params,
    block,
    embed,
    forward,
    gathered,
    init_params,
    rms_norm,
    rope_angles,
    unembedding,
    unstack,
)

__all__ = [
    "Cache",
    "KVLayer",
    "KVStack",
    "Llama3Rope",
    "LoraConfig",
    "ModelConfig",
    "ModelFileError",
    "Params",
    "WeightSpec",
    "abstract_params",
    "attend_cache",
    "block",
    "decoding_params",
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
    "spread_cache",
    "unembedding",
    "unstack",
    "weight_specs",
]
