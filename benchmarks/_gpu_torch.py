"""The accelerator's benchmark with transformers: generate, loss and AdamW under autocast, concatenated scoring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from benchmarks._gpu_work import Size, cross_flops, decode_flops, row, timed, update_flops
from ragen_jax.models.hf import config_dict


def torch_rows(size: Size, peak: float, late: Callable[[str], bool]) -> list[list[Any]]:
    """Update, decoding and cross-scoring, as far as `late` leaves time; `peak` is that of matrix products, FLOP/s."""
    cfg = size.model
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if cfg.dtype == "bfloat16" else torch.float32
    settings = transformers.Qwen2Config(**config_dict(cfg))
    with torch.device(device):
        model = transformers.Qwen2ForCausalLM(settings).to(torch.float32)
    torch.manual_seed(0)

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def clock(run: Callable[[], Any]) -> tuple[float, float]:
        def whole() -> int:
            run()
            finish()
            return 0

        return timed(whole, size.repeats)

    def random_ids(*shape: int) -> Any:
        return torch.randint(0, cfg.vocab_size, shape, device=device)

    rows: list[list[Any]] = []
    if not late("transformers, update"):
        model.train()
        if size.remat != "none":
            model.gradient_checkpointing_enable()
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6)
        ids, half = random_ids(size.update_rows, size.slots), size.slots // 2

        def step() -> None:
            for batch in ids.split(size.micro):
                with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                    hidden = model.model(batch, use_cache=False).last_hidden_state[:, half - 1 : -1]
                    logits = model.lm_head(hidden).float()
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, half:].flatten())
                (loss * len(batch) / len(ids)).backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        times = clock(step)
        rows.append(
            row("transformers, update", size.update_rows * size.slots, update_flops(size), peak, *times)
        )
        del optimiser
        if size.remat != "none":
            model.gradient_checkpointing_disable()
    model = model.to(dtype).eval()
    if not late("transformers, decode"):
        prompts = random_ids(size.decode_rows, size.prompt)

        def generate() -> None:
            with torch.inference_mode():
                model.generate(
                    prompts, attention_mask=torch.ones_like(prompts), do_sample=True, max_new_tokens=size.new,
                    min_new_tokens=size.new, eos_token_id=None, pad_token_id=0,
                )  # fmt: skip

        times = clock(generate)
        rows.append(
            row("transformers, decode", size.decode_rows * size.new, decode_flops(size), peak, *times)
        )
    if not late("transformers, cross-scoring"):
        context = random_ids(1, size.context)
        traces = random_ids(size.prompts * size.group, size.trace)

        def score() -> None:  # under one context; the others cost the same
            with torch.inference_mode():
                for batch in traces.split(size.group):
                    ids = torch.cat([context.expand(len(batch), -1), batch], dim=1)
                    hidden = model.model(ids, use_cache=False).last_hidden_state[:, size.context - 1 : -1]
                    logits = model.lm_head(hidden).float()
                    logits.log_softmax(-1).gather(-1, batch[..., None]).sum(1)

        seconds, first = clock(score)
        tokens = size.prompts**2 * size.group * size.trace
        times = seconds * size.prompts, first
        rows.append(
            row("transformers, cross-scoring (concatenated)", tokens, cross_flops(size), peak, *times)
        )
    return rows
