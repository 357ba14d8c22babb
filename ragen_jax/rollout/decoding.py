"""One turn's responses, sampled token by token for all rows at once."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, UInt8

from envs_jax.core import TimeStep
from ragen_jax.models import Cache, Params, extend, unembedding
from ragen_jax.rollout.sampling import fold, sample, stopped
from ragen_jax.rollout.shares import any_row
from ragen_jax.rollout.spec import RolloutSpec, StopTable


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState:
    """Invariant: cache slots [0, length) hold the row's text; `hidden` is the network's output at slot length - 1."""

    cache: Cache
    hidden: Float[Array, "B D"]
    length: Int[Array, "B"]
    response: Int[Array, "B R"]
    logprob: Float[Array, "B R"]
    count: Int[Array, "B"]  # tokens sampled in this turn
    automaton: UInt8[Array, "B"]
    position: Int[Array, ""]


def decode(
    params: Params,
    spec: RolloutSpec,
    limits: Int[Array, "B"],
    stops: StopTable,
    keys: Array,
    temperature: Array,
    live: Bool[Array, "B"],
    cache: Cache,
    hidden: Array,
    length: Array,
) -> DecodeState:
    """Samples one response for every live row, of at most `limits` tokens; other rows keep their state."""
    limit = max(env.config.max_response_tokens for env in spec.parts)
    batch = length.shape[0]
    zeros = jnp.zeros((batch, limit), jnp.int32)
    init = DecodeState(
        cache, hidden, length, zeros, jnp.zeros((batch, limit), jnp.float32), jnp.zeros(batch, jnp.int32),
        jnp.zeros(batch, jnp.uint8), jnp.int32(0),
    )  # fmt: skip
    head = unembedding(params, spec.model)

    def active(s: DecodeState) -> Array:
        return live & ~stopped(stops.automaton, s.automaton) & (s.count < limits)

    def unfinished(s: DecodeState) -> Array:
        return (s.position < limit) & any_row(active(s), spec.model)

    def body(s: DecodeState) -> DecodeState:
        on = active(s)
        logits = jnp.einsum("bd,vd->bv", s.hidden, head, preferred_element_type=jnp.float32)
        ids, logprob = sample(fold(keys, s.position), logits, temperature, spec.valid_vocab, spec.truncation)
        hidden, cache = extend(params, spec.model, ids[:, None], s.length, s.cache)
        return DecodeState(
            cache=cache,
            hidden=jnp.where(on[:, None], hidden[:, 0], s.hidden),
            length=s.length + on,
            response=s.response.at[:, s.position].set(jnp.where(on, ids, 0)),
            logprob=s.logprob.at[:, s.position].set(jnp.where(on, logprob, 0.0)),
            count=s.count + on,
            automaton=jnp.where(on, stops.automaton[ids, s.automaton], s.automaton),
            position=s.position + 1,
        )

    return jax.lax.while_loop(unfinished, body, init)


def without_sampled_eos(step: TimeStep, d: DecodeState, stops: StopTable) -> tuple[Array, Array]:
    """The observation, less its first id where that id closes the turn and the policy has just sampled it."""
    last = jnp.take_along_axis(d.response, jnp.maximum(d.count - 1, 0)[:, None], axis=1)[:, 0]
    first = step.obs_tokens[:, 0]
    drop = (d.count > 0) & (last == first) & stops.is_eos[last] & (step.obs_len > 0)
    shifted = jnp.roll(step.obs_tokens, -1, axis=1)
    return jnp.where(drop[:, None], shifted, step.obs_tokens), step.obs_len - drop
