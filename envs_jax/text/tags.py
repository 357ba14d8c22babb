"""Finds the reasoning and the answer in a response, in bytes."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int, UInt8

from envs_jax.text.scan import first_true, is_space, occurrences, running_max

THINK_OPEN, THINK_CLOSE = b"<think>", b"</think>"
ANSWER_OPEN, ANSWER_CLOSE = b"<answer>", b"</answer>"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TagSpans:
    """Byte positions in a response: the think span is [0, think_stop), the answer [answer_start,
    answer_stop).

    `format_ok`: the whole form was found; without it the answer span is empty. `think_closed`: the think
    span is closed, whatever follows it; without it `think_stop` is 0.
    """

    format_ok: Bool[Array, ""]
    think_closed: Bool[Array, ""]
    think_stop: Int[Array, ""]
    answer_start: Int[Array, ""]
    answer_stop: Int[Array, ""]


def find_tags(data: UInt8[Array, " N"], length: Int[Array, ""], *, think: bool) -> TagSpans:
    r"""First match of the response form, as Python's `re` finds it with DOTALL.

    With `think`, the form is `<think>(.*?)</think>\s*<answer>(.*?)</answer>` and `data` begins after the
    opening `<think>`, which the prompt has supplied; otherwise it is `<answer>(.*?)</answer>` and `data`
    begins after the opening `<answer>`. Since the opening tag stands at position 0, the match can only
    start there: the first closing tag that is followed by an opening answer tag decides, and if no closing
    answer tag comes after it, none comes after a later one. `\s` is ASCII whitespace. Where the whole form
    is missing, the think span ends at the first closing tag.

    Args:
        data: bytes of the response, zeros from `length` on. Zero bytes match no tag, so only the data are
        needed.
        length: number of bytes.
        think: whether a think span comes first.
    """
    del length
    n = data.shape[0]
    closes = occurrences(data, ANSWER_CLOSE)
    zero = jnp.zeros((), jnp.int32)
    if not think:
        stop = first_true(closes)
        found = stop < n
        return TagSpans(found, jnp.zeros((), bool), zero, zero, jnp.where(found, stop, 0))

    slots = jnp.arange(n, dtype=jnp.int32)
    think_closes = occurrences(data, THINK_CLOSE)
    width = len(THINK_CLOSE)
    ends_close = jnp.pad(think_closes, (width - 1, 0))[:n]  # position of the closing tag's last byte
    # The last non-space byte so far, doubled, plus one where it ends a closing think tag.
    last = running_max(jnp.where(is_space(data), -1, 2 * slots + ends_close))
    before = jnp.pad(last[:-1], (1, 0), constant_values=-1)
    opens = occurrences(data, ANSWER_OPEN) & (before >= 0) & (before % 2 == 1)
    at = first_true(opens)
    start = at + len(ANSWER_OPEN)
    stop = first_true(closes & (slots >= start))
    found = stop < n

    matched = before[jnp.minimum(at, n - 1)] // 2 - (width - 1)
    first_close = first_true(think_closes)
    closed = first_close < n
    return TagSpans(
        format_ok=found,
        think_closed=closed,
        think_stop=jnp.where(found, matched, jnp.where(closed, first_close, 0)),
        answer_start=jnp.where(found, start, 0),
        answer_stop=jnp.where(found, stop, 0),
    )
