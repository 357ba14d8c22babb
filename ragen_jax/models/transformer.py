"""The policy network: a Flax description of one block, and pure functions over the parameter pytree.

Parameters are a nested dict. Under "layers" every weight is stacked on a leading layer axis, which is what training
scans over; `unstack` gives the list form that decoding unrolls by default.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Float, Int

from ragen_jax.models.attention import training_attention
from ragen_jax.models.config import ModelConfig, WeightSpec, weight_specs

Params = dict[str, Any]


# -- parameters ------------------------------------------------------------------------------------------------------
def abstract_params(cfg: ModelConfig) -> Params:
    """The parameter tree as ShapeDtypeStructs, float32."""
    tree: Params = {}
    for (group, name), spec in weight_specs(cfg).items():
        shape = (cfg.num_hidden_layers, *spec.shape) if spec.per_layer else spec.shape
        tree.setdefault(group, {})[name] = jax.ShapeDtypeStruct(shape, jnp.float32)
    return tree


def init_params(cfg: ModelConfig, key: Array) -> Params:
    """Random parameters, float32: normals of each weight's `init` scale, ones for norms, zero biases."""

    def initial(spec: WeightSpec, shape: tuple[int, ...], key: Array) -> Array:
        if spec.ones:
            return jnp.ones(shape, jnp.float32)
        return spec.init * jax.random.normal(key, shape, jnp.float32)

    tree = abstract_params(cfg)
    specs = weight_specs(cfg)
    return {
        group: {
            name: initial(
                specs[group, name], leaf.shape, jax.random.fold_in(key, list(specs).index((group, name)))
            )
            for name, leaf in leaves.items()
        }
        for group, leaves in tree.items()
    }


def unembedding(params: Params, cfg: ModelConfig) -> Float[Array, "V D"]:
    """The matrix whose product with the final hidden state gives the logits."""
    return params["embed" if cfg.tie_word_embeddings else "lm_head"]["weight"]


def embed(params: Params, cfg: ModelConfig, tokens: Int[Array, "B *n"]) -> Float[Array, "B *n D"]:
    """Embeddings of ids, in the compute dtype."""
    table = cfg.constrain(
        params["embed"]["weight"].astype(cfg.compute_dtype), "vocab", "embed", gathered=True
    )
    return cfg.constrain(table[tokens], "batch")


def unstack(params: Params, cfg: ModelConfig) -> Params:
    """The same parameters, cast to the compute dtype, with "layers" as a list of one dict per layer.

    On several devices the weights are brought into their gathered layout, each by itself.
    """
    cast = jax.tree.map(lambda w: w.astype(cfg.compute_dtype), params)
    layers = [{n: w[i] for n, w in cast["layers"].items()} for i in range(cfg.num_hidden_layers)]
    if cfg.placement is None:
        return {**cast, "layers": layers}
    whole = {group: leaves for group, leaves in cast.items() if group != "layers"}
    return {
        **{group: _gathered(cfg, group, leaves) for group, leaves in whole.items()},
        "layers": [_gathered(cfg, "layers", leaves) for leaves in layers],
    }


def gathered(params: Params, cfg: ModelConfig) -> Params:
    """The parameters, matrices in the compute dtype, in their gathered layout; layers stay stacked."""
    out = {}
    for group, leaves in params.items():
        cast = {n: w.astype(cfg.compute_dtype) if w.ndim > 1 else w for n, w in leaves.items()}
        out[group] = _gathered(cfg, group, cast, stacked=True)
    return out


def _gathered(
    cfg: ModelConfig, group: str, leaves: dict[str, Array], *, stacked: bool = False
) -> dict[str, Array]:
    specs = weight_specs(cfg)
    out = {}
    for name, leaf in leaves.items():
        spec = specs[group, name]
        axes = ("layers", *spec.axes) if stacked and spec.per_layer else spec.axes
        out[name] = cfg.constrain(leaf, *axes, gathered=True)
    return out


# -- one block -------------------------------------------------------------------------------------------------------
def rms_norm(x: Float[Array, "... D"], weight: Float[Array, "D"], eps: float) -> Float[Array, "... D"]:
    """x / rms(x) * weight in float32, returned in x's dtype."""
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (x32 * scale * weight.astype(jnp.float32)).astype(x.dtype)


def rope_angles(cfg: ModelConfig, positions: Int[Array, "..."]) -> tuple[Array, Array]:
    """cos and sin [..., head_dim / 2] float32 of the rotary embedding (Su et al. 2021; Llama-3 scaling if set)."""
    half = cfg.head_dim // 2
    freq = cfg.rope_theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    if (s := cfg.rope_scaling) is not None:
        wavelength = 2 * math.pi / freq
        smooth = (s.original_max_position_embeddings / wavelength - s.low_freq_factor) / (
            s.high_freq_factor - s.low_freq_factor
        )
        smooth = jnp.clip(smooth, 0.0, 1.0)
        freq = freq * (smooth + (1 - smooth) / s.factor)
    angles = positions[..., None].astype(jnp.float32) * freq
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Float[Array, "... H D"], cos: Float[Array, "... D2"], sin: Float[Array, "... D2"]) -> Array:
    """Applies rotary angles, pairing element i with i + D/2 (the Hugging Face layout)."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


class Block(nnx.Module):
    """One decoder block. Attention itself is the caller's: `project`, attend, `finish`."""

    attn_norm: nnx.Param
    mlp_norm: nnx.Param

    def __init__(self, cfg: ModelConfig):
        self.cfg = cfg
        for (group, name), spec in weight_specs(cfg).items():
            if group == "layers":
                setattr(self, name, nnx.Param(jnp.zeros(spec.shape, jnp.float32)))

    def _linear(self, x: Array, name: str) -> Array:
        weight = getattr(self, name)[...].astype(x.dtype)
        if self.cfg.placement is not None:
            weight = self.cfg.constrain(weight, *weight_specs(self.cfg)["layers", name].axes, gathered=True)
        y = x @ weight
        bias = getattr(self, f"{name}_bias", None)
        return y if bias is None else y + bias[...].astype(x.dtype)

    def project(self, x: Float[Array, "... D"], cos: Array, sin: Array) -> tuple[Array, Array, Array]:
        """Normed input to rotated queries [..., Hq, D], rotated keys and values [..., Hk, D].

        On several devices Hk counts the copies (`ModelConfig.kv_copies`) of each key-value head.
        """
        cfg = self.cfg
        h = rms_norm(x, self.attn_norm[...], cfg.rms_norm_eps)
        q, k, v = (self._linear(h, n).reshape(*x.shape[:-1], -1, cfg.head_dim) for n in ("q", "k", "v"))
        if cfg.kv_copies > 1:
            k, v = (jnp.repeat(a, cfg.kv_copies, axis=-2) for a in (k, v))
        between = (None,) * (x.ndim - 2)
        q, k, v = (cfg.constrain(a, "batch", *between, "heads") for a in (q, k, v))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, x: Float[Array, "... D"], attended: Float[Array, "... Hq H"]) -> Float[Array, "... D"]:
        """Adds the attention's output and the SwiGLU feed-forward to the residual stream."""
        x = self.cfg.constrain(x + self._linear(attended.reshape(*x.shape[:-1], -1), "o"), "batch")
        h = rms_norm(x, self.mlp_norm[...], self.cfg.rms_norm_eps)
        x = x + self._linear(jax.nn.silu(self._linear(h, "gate")) * self._linear(h, "up"), "down")
        return self.cfg.constrain(x, "batch")


@functools.cache
def _block_graph(cfg: ModelConfig) -> Any:
    with jax.ensure_compile_time_eval():
        return nnx.graphdef(nnx.eval_shape(lambda: Block(cfg)))


def block(cfg: ModelConfig, layer: dict[str, Array]) -> Block:
    """The Flax block over one layer's weights (a dict by name, without the layer axis)."""
    return nnx.merge(_block_graph(cfg), layer)


# -- training forward ------------------------------------------------------------------------------------------------
def _rematerialised(body: Any, remat: str) -> Any:
    if remat == "none":
        return body
    if remat == "full":
        return jax.checkpoint(body, prevent_cse=False)
    if remat == "dots":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        return jax.checkpoint(body, policy=policy, prevent_cse=False)
    if remat == "offload":
        policy = jax.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_saved=[], names_which_can_be_offloaded=["block_input"],
            offload_src="device", offload_dst="pinned_host",
        )  # fmt: skip
        return jax.checkpoint(body, policy=policy, prevent_cse=False)
    raise ValueError(f"remat is {remat!r}; use 'none', 'full', 'dots' or 'offload'")


def forward(
    params: Params, cfg: ModelConfig, tokens: Int[Array, "B L"], *, remat: str = "none"
) -> Float[Array, "B L D"]:
    """Causal forward pass over left-aligned rows; returns the final-normed hidden states in the compute dtype.

    Row b's first tokens are its text; what follows its end is right padding and, attention being causal, cannot
    change anything before it. `remat` is what the backward pass keeps: "none" everything, "full" each block's input,
    "dots" matrix products too, "offload" each block's input, in the host's memory (TPU and GPU).
    """
    x = embed(params, cfg, tokens)
    cos, sin = rope_angles(cfg, jnp.arange(tokens.shape[1]))

    def body(x: Array, layer: dict[str, Array]) -> tuple[Array, None]:
        b = block(cfg, layer)
        x = checkpoint_name(x, "block_input")
        q, k, v = b.project(x, cos, sin)
        return b.finish(x, training_attention(q, k, v, cfg)), None

    x, _ = jax.lax.scan(_rematerialised(body, remat), x, params["layers"])
    return rms_norm(x, params["norm"]["weight"], cfg.rms_norm_eps)
