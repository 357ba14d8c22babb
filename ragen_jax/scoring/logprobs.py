"""Log-probability and entropy of given tokens, over a vocabulary that is never held whole.

The logits of N rows over V ids are made one block at a time, rows by vocabulary, in the forward and in the
backward pass. Across vocabulary blocks the forward keeps, for each row, log Z (the log of the softmax's
denominator) and the entropy H of the ids so far. Two sets of ids a and b join as log Z = log(Z_a + Z_b) and
H = w (H_a - log w) + (1 - w) (H_b - log(1 - w)), where w = Z_a / Z.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from ragen_jax.scoring.variation import same_variation, varies, vary

BLOCK_BYTES = 64 * 2**20
"""Default size of one float32 block of logits."""

_Rows = tuple[Array, Array, Array]  # one number a row, each

_NEGATIVE = -1e30  # stands for -inf where a product with zero must stay finite


def token_logprobs(
    hidden: Float[Array, "N D"],
    unembedding: Float[Array, "V D"],
    targets: Int[Array, " N"],
    *,
    temperature: float | Float[Array, ""] = 1.0,
    valid_vocab: int | None = None,
    vocab_block: int | None = None,
    row_block: int | None = None,
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Log-probability of each target, and entropy, of softmax(hidden @ unembedding.T / temperature).

    Both results are float32 and differentiable (once) in `hidden` and `unembedding`, not in `temperature`.
    Products are accumulated in float32 whatever the inputs' dtype; inputs of different dtypes are promoted.

    Args:
        hidden: final hidden states.
        unembedding: output weights, one row an id.
        targets: ids in 0 .. valid_vocab - 1. Any other id has log-probability -inf.
        temperature: positive; may be traced, so that changing it does not recompile.
        valid_vocab: ids from here on have probability zero (rows that only pad the table). Default V.
        vocab_block: ids a block. Default: what keeps a block of logits within `BLOCK_BYTES`. When all logits
            fit in one block, they are kept for the backward pass instead of being made again.
        row_block: rows a block, likewise.

    Returns:
        logprob f32[N] <= 0, and entropy f32[N] in nats, 0 .. log(valid_vocab).

    Raises:
        ValueError: for shapes that do not fit, or a block or `valid_vocab` out of range.
    """
    if hidden.ndim != 2 or unembedding.ndim != 2 or hidden.shape[1] != unembedding.shape[1]:
        raise ValueError(
            f"hidden {hidden.shape} and unembedding {unembedding.shape} must be [N, D] and [V, D]"
        )
    if targets.shape != hidden.shape[:1]:
        raise ValueError(f"targets {targets.shape} must have one id a row of hidden {hidden.shape}")
    blocks = _plan(hidden.shape[0], unembedding.shape[0], valid_vocab, row_block, vocab_block)
    if hidden.shape[0] == 0:
        empty = jnp.zeros(0, jnp.float32)
        return empty, empty
    scale = jax.lax.stop_gradient(1.0 / jnp.asarray(temperature, jnp.float32))
    hidden, unembedding, targets, scale = same_variation(hidden, unembedding, targets, scale)
    logprob, entropy, _ = _scores(blocks, hidden, unembedding, targets, scale)
    return logprob, entropy


def row_statistics(
    hidden: Float[Array, "N D"],
    unembedding: Float[Array, "V D"],
    targets: Int[Array, " N"],
    *,
    temperature: float | Float[Array, ""] = 1.0,
    valid_vocab: int | None = None,
    vocab_block: int | None = None,
    row_block: int | None = None,
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """As `token_logprobs`, with log Z in the place of the entropy, which is not computed. No gradient."""
    blocks = _plan(hidden.shape[0], unembedding.shape[0], valid_vocab, row_block, vocab_block)
    scale = 1.0 / jnp.asarray(temperature, jnp.float32)
    arrays = jax.lax.stop_gradient((hidden, unembedding, targets, scale))
    logprob, _, log_z = _scores(replace(blocks, entropy=False), *same_variation(*arrays))
    return logprob, log_z


@dataclass(frozen=True)
class _Blocks:
    rows: int
    row_blocks: int
    vocab: int
    vocab_blocks: int
    valid: int  # ids from here on are masked
    entropy: bool = True  # False: zeros in its place

    @property
    def single(self) -> bool:
        return self.row_blocks == self.vocab_blocks == 1


def _plan(n: int, v: int, valid_vocab: int | None, row_block: int | None, vocab_block: int | None) -> _Blocks:
    """Blocks of at most BLOCK_BYTES: everything if it fits, else up to 1024 rows and as many ids."""
    valid = v if valid_vocab is None else valid_vocab
    if not 0 < valid <= v:
        raise ValueError(f"valid_vocab={valid_vocab} must be in 1 .. {v}")
    for name, size in (("row_block", row_block), ("vocab_block", vocab_block)):
        if size is not None and size < 1:
            raise ValueError(f"{name}={size} must be positive")
    n = max(n, 1)
    room = BLOCK_BYTES // 4
    rows = row_block or (n if n * min(v, vocab_block or v) <= room else max(min(n, 1024), room // v))
    rows = min(rows, n)
    ids = min(vocab_block or max(room // rows, 1), v)
    row_blocks, vocab_blocks = -(-n // rows), -(-v // ids)
    if vocab_block is None and vocab_blocks > 1:  # even blocks
        ids = min(128 * math.ceil(v / vocab_blocks / 128), ids)
        vocab_blocks = -(-v // ids)
    if row_block is None:
        rows = -(-n // row_blocks)
    return _Blocks(rows, row_blocks, ids, vocab_blocks, valid)


def _by_rows(blocks: _Blocks, x: Array) -> Array:
    """[N, ...] -> [row_blocks, rows, ...], padded with zeros.

    Row r goes to block r % row_blocks, so that an array sharded over its rows stays so within every block.
    """
    pad = blocks.rows * blocks.row_blocks - x.shape[0]
    x = jnp.pad(x, [(0, pad)] + [(0, 0)] * (x.ndim - 1)) if pad else x
    return x.reshape(blocks.rows, blocks.row_blocks, *x.shape[1:]).swapaxes(0, 1)


def _flat(n: int, x: Array) -> Array:
    """The inverse of `_by_rows`."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])[:n]


def _start(blocks: _Blocks, v: int, block: Any) -> tuple[Any, Any]:
    """A vocabulary block's first id, and its first that no earlier block holds (the last is moved back)."""
    fresh = block * blocks.vocab
    return jnp.minimum(fresh, v - blocks.vocab), fresh


def _logits(blocks: _Blocks, hidden: Array, weight: Array, start: Any, fresh: Any) -> Array:
    """Logits [rows, vocab] of one block before the temperature, ids that do not count masked."""
    logits = jnp.einsum("nd,vd->nv", hidden, weight, preferred_element_type=jnp.float32)
    if blocks.valid >= blocks.vocab * blocks.vocab_blocks:  # every block whole, nothing to mask
        return logits
    ids = start + jax.lax.broadcasted_iota(jnp.int32, (1, blocks.vocab), 1)
    return jnp.where((ids >= fresh) & (ids < blocks.valid), logits, _NEGATIVE)


def _picked(blocks: _Blocks, logits: Array, targets: Array, start: Any, fresh: Any) -> Array:
    """The target's logit where this block holds it, else -inf."""
    local = jnp.clip(targets - start, 0, blocks.vocab - 1)
    value = jnp.take_along_axis(logits, local[:, None], axis=1)[:, 0]
    here = (targets >= fresh) & (targets < jnp.minimum(start + blocks.vocab, blocks.valid))
    return jnp.where(here, value, -jnp.inf)


def _statistics(blocks: _Blocks, logits: Array, scale: Array) -> tuple[Array, Array]:
    """log Z and entropy of one block's scaled logits."""
    top = jnp.max(logits, axis=1)
    shifted = (logits - top[:, None]) * scale
    log_sum = jnp.log(jnp.sum(jnp.exp(shifted), axis=1))
    if not blocks.entropy:
        return top * scale + log_sum, jnp.zeros_like(top)
    logp = shifted - log_sum[:, None]  # exp is taken again: cheaper than keeping it for two sums
    entropy = -jnp.sum(jnp.exp(logp) * logp, axis=1)
    return top * scale + log_sum, jnp.maximum(entropy, 0.0)


def _join(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    """log Z and entropy of two sets of ids together."""
    log_z = jnp.logaddexp(a[0], b[0])
    parts = (jnp.exp(part - log_z) * (entropy - (part - log_z)) for part, entropy in (a, b))
    return log_z, sum(parts, jnp.zeros_like(log_z))


def _forward_rows(blocks: _Blocks, hidden: Array, unembedding: Array, targets: Array, scale: Array) -> _Rows:
    """Logprob, entropy and log Z of one block of rows, over all vocabulary blocks."""
    v = unembedding.shape[0]

    def one(block: Any) -> _Rows:
        start, fresh = (0, 0) if blocks.vocab_blocks == 1 else _start(blocks, v, block)
        weight = jax.lax.dynamic_slice_in_dim(unembedding, start, blocks.vocab)
        logits = _logits(blocks, hidden, weight, start, fresh)
        picked = _picked(blocks, logits, targets, start, fresh)
        return picked * scale, *_statistics(blocks, logits, scale)

    def step(block: Any, carry: _Rows) -> _Rows:
        picked, log_z, entropy = one(block)
        return jnp.maximum(carry[0], picked), *_join(carry[1:], (log_z, entropy))

    picked, log_z, entropy = jax.lax.fori_loop(1, blocks.vocab_blocks, step, one(0))
    return picked - log_z, entropy, log_z


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scores(blocks: _Blocks, hidden: Array, unembedding: Array, targets: Array, scale: Array) -> _Rows:
    """Logprob, entropy and log Z."""
    return _scores_fwd(blocks, hidden, unembedding, targets, scale)[0]


def _scores_fwd(blocks: _Blocks, hidden: Array, unembedding: Array, targets: Array, scale: Array) -> Any:
    n = hidden.shape[0]
    logits = None
    if blocks.single:
        logits = _logits(blocks, hidden, unembedding, 0, 0)
        log_z, entropy = _statistics(blocks, logits, scale)
        out = _picked(blocks, logits, targets, 0, 0) * scale - log_z, entropy, log_z
    else:
        rows = (_by_rows(blocks, hidden), _by_rows(blocks, targets))
        score = partial(_forward_rows, blocks)
        mapped = jax.lax.map(lambda block: score(block[0], unembedding, block[1], scale), rows)
        out = jax.tree.map(partial(_flat, n), mapped)
    return out, (hidden, unembedding, targets, scale, logits, out[1], out[2])


def _logit_cotangent(
    blocks: _Blocks, logits: Array, rows: tuple[Array, ...], scale: Array, start: Any, fresh: Any
) -> Array:
    """Cotangent of hidden @ weight.T for one block.

    With p = exp(l - log Z): d logprob / d l_v = [v = target] - p_v, d log Z / d l_v = p_v, and
    d entropy / d l_v = -p_v (log p_v + entropy).
    """
    targets, entropy, log_z, g_logprob, g_entropy, g_log_z = (x[:, None] for x in rows)
    logp = logits * scale - log_z
    ids = start + jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1)
    hit = (ids == targets) & (ids >= fresh) & (ids < blocks.valid)
    slope = g_log_z - g_logprob - g_entropy * (logp + entropy)
    return (jnp.where(hit, g_logprob, 0.0) + jnp.exp(logp) * slope) * scale


def _scores_bwd(blocks: _Blocks, residuals: Any, cotangents: tuple[Array, Array, Array]) -> Any:
    hidden, unembedding, targets, scale, logits, entropy, log_z = residuals
    n, v = hidden.shape[0], unembedding.shape[0]
    per_row = (targets, entropy, log_z, *cotangents)
    multiply = partial(jnp.einsum, preferred_element_type=jnp.float32)
    if logits is not None:
        g = _logit_cotangent(blocks, logits, per_row, scale, 0, 0)
        g_hidden = multiply("nv,vd->nd", g, unembedding)
        g_weight = multiply("nv,nd->vd", g, hidden)
    else:
        rows = tuple(_by_rows(blocks, x) for x in (hidden, *per_row))

        def by_vocab(block: Any, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            g_hidden, g_weight = carry
            start, fresh = _start(blocks, v, block)
            weight = jax.lax.dynamic_slice_in_dim(unembedding, start, blocks.vocab)

            def by_rows(g_weight: Array, xs: Any) -> tuple[Array, Array]:
                (h, *row), g_h = xs
                g = _logits(blocks, h, weight, start, fresh)
                g = _logit_cotangent(blocks, g, tuple(row), scale, start, fresh)
                g_h = g_h + multiply("nv,vd->nd", g, weight)
                return g_weight + multiply("nv,nd->vd", g, h), g_h

            # the last block may begin with ids that were done before: their cotangent is zero, so add
            old = jax.lax.dynamic_slice_in_dim(g_weight, start, blocks.vocab)
            new, g_hidden = jax.lax.scan(by_rows, old, (rows, g_hidden))
            return g_hidden, jax.lax.dynamic_update_slice_in_dim(g_weight, new, start, 0)

        axes = varies(hidden)
        zeros = (
            vary(jnp.zeros(rows[0].shape, jnp.float32), axes),
            vary(jnp.zeros(unembedding.shape, jnp.float32), axes),
        )
        g_rows, g_weight = jax.lax.fori_loop(0, blocks.vocab_blocks, by_vocab, zeros)
        g_hidden = _flat(n, g_rows)
    g_targets = np.zeros(targets.shape, jax.dtypes.float0)
    return (
        g_hidden.astype(hidden.dtype),
        g_weight.astype(unembedding.dtype),
        g_targets,
        jnp.zeros_like(scale),
    )


_scores.defvjp(_scores_fwd, _scores_bwd)
