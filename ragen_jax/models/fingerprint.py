"""A short name for a set of weights: equal weights have equal fingerprints, whatever mesh they lie on."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def fingerprint(params: Any) -> str:
    """16 hex digits of a tree of float arrays: of its paths, shapes and the float32 bits of every element by place.

    The elements are hashed where they lie and summed as integers, so neither a layout nor the order of a reduction
    changes the result, and nothing but two numbers a leaf comes to the host. It tells weights apart by accident, not
    against an adversary.
    """
    leaves = jax.device_get(_digests(params))
    whole = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        whole.update(f"{jax.tree_util.keystr(path)} {leaf.shape}\n".encode())
    for digest in jax.tree.leaves(leaves):
        whole.update(digest.astype("<u4").tobytes())
    return whole.hexdigest()[:16]


@jax.jit
def _digests(params: Any) -> Any:
    return jax.tree.map(_digest, params)


def _digest(x: Array) -> Array:
    """Two sums modulo 2^32 of hashes of (bits, place), uint32[2]."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    place = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    mixed = _mix(bits ^ _mix(place + jnp.uint32(0x9E3779B9)))
    return jnp.stack([jnp.sum(mixed, dtype=jnp.uint32), jnp.sum(_mix(mixed + bits), dtype=jnp.uint32)])


def _mix(h: Array) -> Array:
    """The finaliser of MurmurHash3 (Appleby 2011): a bijection of 32 bits in which every bit depends on all."""
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
