"""Greedy decoding of SmolLM2-135M in float32: tokens a second of this package against transformers.

`python -m benchmarks.decode [--record]`. Both sides encode the same prompts into a KV cache and then decode
the same number of tokens, never stopping early. Runs are interleaved and the medians are compared;
compilation is not timed.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from benchmarks._table import report
from ragen_jax.models import ModelConfig, extend, init_cache, load_model, pull, unembedding, unstack
from ragen_jax.models.gguf import cached_folder

TEXT = (
    "You are solving a puzzle on a grid of six rows and six columns. Walls are written #, floor _, the box "
    "X, the goal O and the player P. Say where the player should go, and why, before you answer. "
)


@functools.partial(jax.jit, static_argnums=(1, 3))
def generate(
    unstacked: dict[str, Any], cfg: ModelConfig, prompts: Int[Array, "B L"], new: int
) -> Int[Array, "B N"]:
    """The `new` most likely tokens after each prompt, one at a time over a KV cache."""
    batch, length = prompts.shape

    def most_likely(hidden: Array) -> Array:
        return jnp.argmax(hidden @ unembedding(unstacked, cfg).T.astype(hidden.dtype), axis=-1).astype(
            jnp.int32
        )

    start = jnp.zeros(batch, jnp.int32)
    hidden, cache = extend(unstacked, cfg, prompts, start, init_cache(cfg, batch, length + new))

    def step(carry: Any, position: Array) -> tuple[Any, Array]:
        token, cache = carry
        hidden, cache = extend(unstacked, cfg, token[:, None], jnp.full(batch, position), cache)
        following = most_likely(hidden[:, 0])
        return (following, cache), following

    first = most_likely(hidden[:, -1])
    _, rest = jax.lax.scan(step, (first, cache), length + jnp.arange(new - 1))
    return jnp.concatenate([first[:, None], rest.T], axis=1)


def seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    """Wall time of one call and its result."""
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def compare(batches: list[int], length: int, new: int, repeats: int) -> list[list[Any]]:
    """One row a batch size: tokens/s of both sides, their ratio, share of prompts continued alike."""
    import torch
    import transformers

    path = pull("smollm2-135m", progress=print)
    cfg, params, tokenizer = load_model(path)
    assert tokenizer is not None
    unstacked = jax.device_put(unstack(params, cfg))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        cached_folder(path), dtype=torch.float32
    ).eval()
    ids = tokenizer.encode(TEXT * (1 + length // 20))
    rows = []
    for batch in batches:
        prompts = np.asarray([ids[3 * b % 40 :][:length] for b in range(batch)], np.int32)
        torch_prompts = torch.from_numpy(prompts).long()

        def ours_run(prompts: np.ndarray = prompts) -> np.ndarray:
            return np.asarray(generate(unstacked, cfg, prompts, new))

        def theirs_run(prompts: Any = torch_prompts) -> np.ndarray:
            with torch.inference_mode():
                mask = torch.ones_like(prompts)
                out = theirs.generate(
                    prompts, attention_mask=mask, do_sample=False, max_new_tokens=new, min_new_tokens=new,
                    eos_token_id=None, pad_token_id=0, use_cache=True,
                )  # fmt: skip
            return out[:, prompts.shape[1] :].numpy()

        ours_run(), theirs_run()
        times: list[tuple[float, float]] = []
        for _ in range(repeats):
            ours_time, ours_tokens = seconds(ours_run)
            theirs_time, theirs_tokens = seconds(theirs_run)
            times.append((ours_time, theirs_time))
        assert ours_tokens.shape == theirs_tokens.shape == (batch, new)
        alike = float((ours_tokens == theirs_tokens).all(axis=1).mean())
        ours_rate, theirs_rate = (batch * new / statistics.median(t) for t in zip(*times, strict=True))
        rows.append([batch, ours_rate, theirs_rate, ours_rate / theirs_rate, alike])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=32, help="prompt tokens")
    parser.add_argument("--new", type=int, default=64, help="decoded tokens a row")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", action="store_true", help="append to benchmarks/RESULTS.md")
    args = parser.parse_args()
    report(
        "Greedy decoding, SmolLM2-135M, float32",
        ["batch", "ragen-jax tokens/s", "transformers tokens/s", "ratio", "rows with equal tokens"],
        compare(args.batch, args.prompt, args.new, args.repeats),
        notes=f"Prompt of {args.prompt} tokens and {args.new} decoded tokens a row, the prompt included in "
        f"the time; medians of {args.repeats} interleaved runs after one warm-up.",
        record=args.record,
    )


if __name__ == "__main__":
    main()
