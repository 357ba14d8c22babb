"""A model folder read here and by transformers: the same logits, the same ids, the same chat text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ragen_jax.models.errors import ModelFileError
from ragen_jax.models.export import CHAT_TEMPLATE
from ragen_jax.models.hf import read_config
from ragen_jax.models.load import load_model
from ragen_jax.models.transformer import forward, unembedding
from ragen_jax.tokenizers import BPETokenizer

TEXT = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\nIt is Paris. 12 + 30 = "
    "42;\n#P_√X#\ndef f(x):\n    return x**2\n<think>Up, then Left.</think><answer>Up || Left</answer>\n"
)
MESSAGES = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "Up"}]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. Differences are the largest over all positions and ids, in float32."""

    tokens: int
    logit_difference: float
    logprob_difference: float
    same_best: float  # share of positions with the same most likely id
    largest_logit: float
    same_ids: bool | None  # of a sample text; None without a tokenizer that transformers reads
    chat_template: bool  # whether transformers finds one and can use it


def compare(folder: str | Path, *, rows: int = 2, length: int = 96, seed: int = 0) -> Comparison:
    """Runs random ids, and the ids of a sample text, through both libraries in float32 on this machine.

    Needs memory for the model twice. Raises ModelFileError without torch and transformers (extra `parity`),
    and for a folder that cannot be loaded here.
    """
    folder = Path(folder)
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise ModelFileError(f"{folder}: holds adapters alone; export the merged model to compare its logits")
    config = read_config(folder)
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ModelFileError(
            f"the comparison needs torch and transformers ({error}): pip install 'ragen-jax[parity]'"
        ) from None
    length = min(length, config.max_position_embeddings)
    cfg, params, tokenizer = load_model(folder)
    valid = cfg.vocab_size if tokenizer is None else tokenizer.vocab_size
    ids = np.random.default_rng(seed).integers(0, valid, (rows, length)).astype(np.int32)
    if tokenizer is not None:
        text = tokenizer.encode(TEXT)[:length]
        ids[0, : len(text)] = text

    @jax.jit
    def run(params: Any) -> jax.Array:
        return forward(params, cfg, jnp.asarray(ids)) @ unembedding(params, cfg).T

    ours = np.asarray(run(params))
    del params
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.no_grad():
            theirs = model(torch.from_numpy(ids).long()).logits.float().numpy()
        same_ids, chat = _text(transformers, folder, tokenizer)
    finally:
        transformers.logging.set_verbosity(verbosity)
    logprobs = [x - np.logaddexp.reduce(x.astype(np.float64), axis=-1, keepdims=True) for x in (ours, theirs)]
    return Comparison(
        tokens=ids.size,
        logit_difference=float(np.abs(ours - theirs).max()),
        logprob_difference=float(np.abs(logprobs[0] - logprobs[1]).max()),
        same_best=float((ours.argmax(-1) == theirs.argmax(-1)).mean()),
        largest_logit=float(np.abs(theirs).max()),
        same_ids=same_ids,
        chat_template=chat,
    )


def _text(transformers: Any, folder: Path, tokenizer: Any) -> tuple[bool | None, bool]:
    if not isinstance(tokenizer, BPETokenizer):
        return None, (folder / CHAT_TEMPLATE).exists()
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    same = list(theirs(TEXT, add_special_tokens=False)["input_ids"]) == tokenizer.encode(TEXT)
    if theirs.chat_template is None:
        return same, False
    return same, "Up" in theirs.apply_chat_template(MESSAGES, tokenize=False)
