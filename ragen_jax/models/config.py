"""Shape of a decoder, and the one description of each of its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array

from ragen_jax.parallel.rules import Placement, check_rules


@dataclass(frozen=True)
class Llama3Rope:
    """Frequency scaling of Llama 3.1 and later (Hugging Face `rope_scaling` of type "llama3")."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama and Qwen2 family. Field names are those of a Hugging Face config.json.

    `dtype` is the compute dtype; parameters, norms, rotary angles, softmax and log-probs are always float32.
    `attention` is how attention is computed: "xla"; "cudnn", the fused kernel of NVIDIA GPUs for the training forward,
    which needs bfloat16; or "pallas", kernels of TPUs for the training forward and, where layers are scanned, for
    decoding. On other backends the last two compute what "xla" does.
    `scan_layers`: decoding loops over its layers, so that its program is as large as that of one layer, rather than
    having each layer written out, which is faster on a CPU. None: on TPUs alone.
    `placement` says how programs over this model are split over devices; None: one device.
    Raises ValueError, naming the field, when the numbers do not fit each other.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    head_dim: int = 0  # 0: hidden_size // num_attention_heads
    rope_theta: float = 10_000.0
    rope_scaling: Llama3Rope | None = None
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    attention_bias: bool = False  # on q, k and v (Qwen2)
    max_position_embeddings: int = 4096
    dtype: str = "float32"
    attention: str = "xla"
    scan_layers: bool | None = None
    placement: Placement | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in (
            "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "intermediate_size", "max_position_embeddings",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"model.num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"model.num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim == 0:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(
                    f"model.hidden_size ({self.hidden_size}) is not a multiple of model.num_attention_heads "
                    f"({self.num_attention_heads}); set model.head_dim"
                )
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.head_dim % 2:
            raise ValueError(f"model.head_dim is {self.head_dim}; rotary embeddings need an even number")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"model.dtype is {self.dtype!r}; use 'float32' or 'bfloat16'")
        if self.attention not in ("xla", "cudnn", "pallas"):
            raise ValueError(f"model.attention is {self.attention!r}; use 'xla', 'cudnn' or 'pallas'")
        if self.attention == "cudnn" and self.dtype != "bfloat16":
            raise ValueError(
                f"model.attention is 'cudnn', which needs model.dtype bfloat16, not {self.dtype}"
            )
        if self.attention == "cudnn" and (self.head_dim % 8 or self.head_dim > 128):
            raise ValueError(
                f"model.attention is 'cudnn', which needs heads of a multiple of 8 up to 128, not {self.head_dim}"
            )
        if self.attention == "pallas" and self.head_dim % 64:
            raise ValueError(
                f"model.attention is 'pallas', which needs heads of a multiple of 64, not {self.head_dim}; use 'xla'"
            )
        if self.placement is not None:
            weights = {".".join(path): (spec.shape, spec.axes) for path, spec in weight_specs(self).items()}
            check_rules(self.placement.rules, self.placement.mesh.shape, self, weights)

    @property
    def kv_copies(self) -> int:
        """How often each key-value head is repeated among the devices that share the heads; 1 on one device."""
        return 1 if self.placement is None else self.placement.kv_copies(self.num_key_value_heads)

    def constrain(self, x: Array, *axes: str | None, gathered: bool = False) -> Array:
        """x with the layout that the placement gives to these logical axes; x itself on one device."""
        return x if self.placement is None else self.placement.constrain(x, axes, gathered=gathered)

    def by_device(
        self,
        kernel: Callable[..., Array],
        arrays: tuple[Array, ...],
        axes: tuple[tuple[str | None, ...], ...],
        out_shape: tuple[int, ...],
        out_axes: tuple[str | None, ...],
    ) -> Array:
        """`kernel(*arrays)`, run by each device on its part of arrays with these logical axes."""
        if self.placement is None:
            return kernel(*arrays)
        return self.placement.by_device(kernel, arrays, axes, out_shape, out_axes)

    @property
    def platform(self) -> str:
        """Of the devices that run programs over this model: "cpu", "gpu" or "tpu"."""
        return jax.default_backend() if self.placement is None else self.placement.platform

    @property
    def stacks_cache(self) -> bool:
        """Whether decoding loops over its layers, with a cache that stacks them."""
        return self.platform == "tpu" if self.scan_layers is None else self.scan_layers

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)

    @property
    def num_parameters(self) -> int:
        total = 0
        for spec in weight_specs(self).values():
            size = self.num_hidden_layers if spec.per_layer else 1
            for n in spec.shape:
                size *= n
            total += size
        return total


@dataclass(frozen=True)
class WeightSpec:
    """One weight: shape and logical axes in our layout (inputs first), initial scale, and its names elsewhere.

    `shape` and `axes` leave out the leading layer axis that `per_layer` weights are stacked on. `init` is a standard
    deviation, or 1.0 with `ones` for norms. Names hold `{layer}`; files store matrices outputs first (`transpose`).
    """

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    init: float
    hf_name: str
    gguf_name: str
    per_layer: bool = False
    ones: bool = False
    transpose: bool = False


def weight_specs(cfg: ModelConfig) -> dict[tuple[str, str], WeightSpec]:
    """Every weight of the model by its path in the parameter tree, e.g. ("layers", "q")."""
    d, f, v = cfg.hidden_size, cfg.intermediate_size, cfg.vocab_size
    q, kv = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim
    std = d**-0.5
    residual = (
        2 * cfg.num_hidden_layers
    ) ** -0.5  # keeps the residual stream's variance independent of depth

    def matrix(shape: tuple[int, int], axes: tuple[str, str], init: float, hf: str, gguf: str) -> WeightSpec:
        return WeightSpec(
            shape, axes, init, f"model.layers.{{layer}}.{hf}.weight", f"blk.{{layer}}.{gguf}.weight",
            per_layer=True, transpose=True,
        )  # fmt: skip

    def vector(n: int, axis: str, hf: str, gguf: str, *, ones: bool) -> WeightSpec:
        return WeightSpec(
            (n,),
            (axis,),
            0.0,
            f"model.layers.{{layer}}.{hf}",
            f"blk.{{layer}}.{gguf}",
            per_layer=True,
            ones=ones,
        )

    specs = {
        ("embed", "weight"): WeightSpec(
            (v, d), ("vocab", "embed"), std, "model.embed_tokens.weight", "token_embd.weight"
        ),
        ("layers", "attn_norm"): vector(d, "norm", "input_layernorm.weight", "attn_norm.weight", ones=True),
        ("layers", "q"): matrix((d, q), ("embed", "heads"), std, "self_attn.q_proj", "attn_q"),
        ("layers", "k"): matrix((d, kv), ("embed", "kv_heads"), std, "self_attn.k_proj", "attn_k"),
        ("layers", "v"): matrix((d, kv), ("embed", "kv_heads"), std, "self_attn.v_proj", "attn_v"),
        ("layers", "o"): matrix(
            (q, d), ("heads", "embed"), q**-0.5 * residual, "self_attn.o_proj", "attn_output"
        ),
        ("layers", "mlp_norm"): vector(
            d, "norm", "post_attention_layernorm.weight", "ffn_norm.weight", ones=True
        ),
        ("layers", "gate"): matrix((d, f), ("embed", "mlp"), std, "mlp.gate_proj", "ffn_gate"),
        ("layers", "up"): matrix((d, f), ("embed", "mlp"), std, "mlp.up_proj", "ffn_up"),
        ("layers", "down"): matrix((f, d), ("mlp", "embed"), f**-0.5 * residual, "mlp.down_proj", "ffn_down"),
        ("norm", "weight"): WeightSpec(
            (d,), ("norm",), 0.0, "model.norm.weight", "output_norm.weight", ones=True
        ),
    }
    if cfg.attention_bias:
        for name, n, axis in (("q", q, "heads"), ("k", kv, "kv_heads"), ("v", kv, "kv_heads")):
            specs["layers", f"{name}_bias"] = vector(
                n, axis, f"self_attn.{name}_proj.bias", f"attn_{name}.bias", ones=False
            )
    if not cfg.tie_word_embeddings:
        specs["lm_head", "weight"] = WeightSpec(
            (v, d), ("vocab", "embed"), std, "lm_head.weight", "output.weight"
        )
    return specs
