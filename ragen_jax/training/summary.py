"""A run in a few numbers: first and last values of what a reader asks for first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ragen_jax.training.diagnosis import FAMILIES
from ragen_jax.training.metrics import read_jsonl


def summarise(run_dir: Path, tag: str) -> dict[str, Any]:
    """First and last values of what a reader asks for first, from the run's own files."""
    rows = read_jsonl(run_dir / "metrics.jsonl")

    def ends(name: str) -> dict[str, float] | None:
        found = [(r["step"], r[name]) for r in rows if r.get(name) is not None]
        return {"first": found[0][1], "last": found[-1][1], "last_step": found[-1][0]} if found else None

    name = f"val-env/{tag}/success"
    evaluated = [r for r in rows if r.get(name) is not None]
    out: dict[str, Any] = {"tag": tag, "steps": rows[-1]["step"] if rows else 0}
    names = {"success": "", "low": "_low", "high": "_high"}
    for when, row in (("before", evaluated[:1]), ("after", evaluated[-1:])):
        out[when] = {n: row[0][f"{name}{end}"] for n, end in names.items()} if row else None
    path = run_dir / "baselines.json"
    out["baselines"] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    first_turn = FAMILIES["first_turn"]
    out["metrics"] = {
        label: ends(metric)
        for label, metric in {
            "mi_estimate": f"{first_turn}/mi_estimate",
            "mi_seq_estimate": f"{first_turn}/mi_seq_estimate",
            "mi_upper_bound": f"{first_turn}/mi_upper_bound",
            "retrieval_accuracy": f"{first_turn}/retrieval_accuracy",
            "conditional_entropy": f"{first_turn}/conditional_entropy_est",
            "token_entropy": "actor/entropy",
            "kept_ratio": "rollout/filter_kept_ratio",
            "reward_std": "rollout/in_group_reward_std",
            "reasoning_length": "collapse/reasoning_length",
            "valid_thinking_rate": "collapse/valid_thinking_rate",
        }.items()
    }
    return out
