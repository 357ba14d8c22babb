"""The smallest run with every part: a few episodes of FrozenLake, a policy of some thousand parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from ragen_jax.training.config import Config, config_from_dict
from ragen_jax.training.trainer import RunResult, train

TREE: dict[str, dict[str, Any]] = {
    "run": {"save_freq": 1, "rollout_freq": 2, "rollouts_kept": 3, "tensorboard": False},
    "env": {
        "tag": "FrozenLake", "size": 3, "p": 0.8, "success_rate": 1.0, "style": "brief", "max_turns": 2,
        "max_response_tokens": 64, "num_levels": 16,
    },
    "model": {
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 64,
    },
    # Enough to answer in the right form, and now and then to win.
    "warm_start": {"steps": 120, "batch_size": 16, "demonstrations": 16, "lr": 2e-2, "skill": 0.7},
    "rollout": {
        "env_groups": 2, "group_size": 2, "rollout_filter_value": 1.0, "rollout_filter_include_zero": True,
    },
    "optim": {"lr": 1e-3, "critic_lr": 1e-3},
    "training": {"total_training_steps": 3, "mini_batch_size": 4, "micro_batch_size": 2, "length_buckets": 1},
    "diagnosis": {"compute_freq": 2, "num_samples": 4, "trajectory_enabled": False},
    "evaluation": {"levels": 4, "batch_size": 4, "test_freq": 2},
}  # fmt: skip

PPO = {"algorithm": {"adv_estimator": "gae", "use_kl_loss": True}, "warm_start": {"steps": 3}}
UNTRAINED = {"warm_start": {"steps": 0}}


def micro_config(folder: Path, name: str = "run", **sections: dict[str, Any]) -> Config:
    """`TREE` in `folder`/`name`, with fields of some sections replaced."""
    tree = {s: {**TREE.get(s, {}), **sections.get(s, {})} for s in {**TREE, **sections}}
    tree["run"] |= {"dir": str(folder), "name": name}
    return config_from_dict(tree)


def run(config: Config | None = None, **kwargs: Any) -> RunResult:
    """Trains without printing."""
    return train(config, console=Console(quiet=True), **kwargs)
