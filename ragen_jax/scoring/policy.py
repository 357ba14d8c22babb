"""Log-probabilities under a policy's parameters, rows split over devices where there are several."""

from __future__ import annotations

import jax
from jax import Array
from jaxtyping import Float, Int

from ragen_jax.models import ModelConfig, Params, unembedding
from ragen_jax.scoring.logprobs import BLOCK_BYTES, token_logprobs


def policy_logprobs(
    params: Params,
    cfg: ModelConfig,
    hidden: Float[Array, "N D"],
    targets: Int[Array, " N"],
    *,
    temperature: float | Float[Array, ""] = 1.0,
    valid_vocab: int | None = None,
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """`token_logprobs` with the policy's unembedding in the compute dtype.

    On several devices (`cfg.placement`) each runs its own rows in blocks of its own, and the unembedding's gradient is
    summed over devices once, not once a block. Rows that cannot be shared out evenly are run by all devices.
    """
    head = unembedding(params, cfg).astype(cfg.compute_dtype)
    placement = cfg.placement
    if placement is None or hidden.shape[0] % placement.rows:
        return token_logprobs(hidden, head, targets, temperature=temperature, valid_vocab=valid_vocab)
    head = cfg.constrain(head, "vocab", "embed", gathered=True)
    here, shards = hidden.shape[0] // placement.rows, placement.ways("vocab")
    # Blocks of rows alone where the vocabulary is split: a block of ids would lie on one device.
    blocks = {} if shards == 1 else {
        "vocab_block": cfg.vocab_size,
        "row_block": min(max(BLOCK_BYTES // 4 * shards // cfg.vocab_size, 8), here),
    }  # fmt: skip

    def local(hidden: Array, head: Array, targets: Array, temperature: Array) -> tuple[Array, Array]:
        return token_logprobs(
            hidden, head, targets, temperature=temperature, valid_vocab=valid_vocab, **blocks
        )

    inputs = hidden, head, targets, jax.numpy.asarray(temperature, jax.numpy.float32)
    if not placement.row_axes:
        return local(*inputs)
    rows, whole = jax.P(placement.row_axes), jax.P()
    return jax.shard_map(
        local, mesh=placement.mesh, in_specs=(rows, whole, rows, whole), out_specs=rows,
        axis_names=set(placement.row_axes),
    )(*inputs)  # fmt: skip
