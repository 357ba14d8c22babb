"""Writes docs/configuration.md from the dataclasses: `make docs`. A test fails while the page is out of date.

The meaning of a field is the comment beside or above it, or its entry ("name: text", several names joined by
commas) in the docstring of its class.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import envs_jax
from ragen_jax.models.lora import LoraConfig
from ragen_jax.training.config import Config, config_to_dict

PAGE = Path(__file__).with_name("configuration.md")

INTRODUCTION = """\
# Configuration

A run is described by one tree of settings. A YAML file holds what differs from the defaults; on the command
line any field is set by its dotted name:

    ragen-jax train --config configs/quickstart.yaml --rollout.group_size 16 --env.p 0.8 --optim.lr 1e-4

`--config` may be given again: fields of a later file go over those of the files before it, so a preset follows a task
(`--config configs/quickstart.yaml --config configs/dapo.yaml`). [algorithms.md](algorithms.md) explains presets and the
settings of `algorithm`, with their names in verl, RAGEN-2 and TRL.

Values are in YAML syntax. An unknown name, a value of another type and settings that contradict each other
are refused before a run directory is made. A run keeps its resolved configuration in `config.yaml`;
`ragen-jax train --resume RUN` takes it from there, and only `training.total_training_steps`,
`evaluation.test_freq`, `run.save_freq` and `run.rollout_freq` can change then. `ragen-jax eval` and
`diagnose` take the same settings, over those of the run or the model that they look at.

This page is made from the source by `make docs`.
"""

# Name here: names in verl (with RAGEN-2's own where it has them) and in TRL's GRPOConfig.
OTHER_NAMES = {
    "rollout.env_groups": ("es_manager.train.env_groups", "(prompts of a batch)"),
    "rollout.group_size": ("es_manager.train.group_size; rollout.n", "num_generations"),
    "rollout.temperature": ("actor_rollout_ref.rollout.temperature", "temperature"),
    "rollout.context_window_mode, max_context_window": (
        "agent_proxy.context_window_mode, max_context_window",
        "",
    ),
    "rollout.max_model_len": ("actor_rollout_ref.rollout.max_model_len", "max_prompt_length"),
    "rollout.rollout_filter_*": ("actor_rollout_ref.rollout.rollout_filter_*", ""),
    "env.max_turns": ("agent_proxy.max_turn", "max_tool_calling_iterations"),
    "env.max_actions_per_turn": ("agent_proxy.max_actions_per_turn", ""),
    "env.action_sep": ("agent_proxy.action_sep", ""),
    "env.enable_think": ("agent_proxy.enable_think", ""),
    "env.format_penalty": ("es_manager.format_penalty", ""),
    "env.max_response_tokens": ("actor_rollout_ref.rollout.response_length", "max_completion_length"),
    "algorithm.adv_estimator": ("algorithm.adv_estimator", "(GRPO)"),
    "algorithm.norm_adv_by_std_in_grpo": ("algorithm.norm_adv_by_std_in_grpo", "scale_rewards"),
    "algorithm.gamma, lam": ("algorithm.gamma, lam", ""),
    "algorithm.clip_ratio_low, clip_ratio_high": (
        "actor.clip_ratio_low, clip_ratio_high",
        "epsilon, epsilon_high",
    ),
    "algorithm.clip_ratio_c": ("actor.clip_ratio_c", "delta"),
    "algorithm.entropy_coeff": ("actor.entropy_coeff", ""),
    "algorithm.use_kl_loss, kl_loss_coef": ("actor.use_kl_loss, kl_loss_coef", "beta"),
    "algorithm.kl_loss_type": ("actor.kl_loss_type (kl, mse, low_var_kl)", "(k3)"),
    "algorithm.loss_agg_mode": ("actor.loss_agg_mode", "loss_type"),
    "algorithm.cliprange_value": ("critic.cliprange_value", ""),
    "critic.lora": ("critic.model.lora_rank", ""),
    "critic.vf_coef": ("", "vf_coef (PPOConfig)"),
    "optim.lr": ("actor.optim.lr", "learning_rate"),
    "optim.critic_lr": ("critic.optim.lr", ""),
    "optim.grad_clip": ("actor.grad_clip", "max_grad_norm"),
    "training.total_training_steps": ("trainer.total_training_steps", "max_steps"),
    "training.mini_batch_size": (
        "actor.ppo_mini_batch_size",
        "per_device_train_batch_size x accumulation x devices",
    ),
    "training.micro_batch_size": ("actor.ppo_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    "training.ppo_epochs": ("actor.ppo_epochs", "num_iterations"),
    "training.remat": ("model.enable_gradient_checkpointing", "gradient_checkpointing"),
    "model.path": ("actor_rollout_ref.model.path", "model"),
    "model.lora.rank, alpha": ("model.lora_rank, lora_alpha", "peft_config.r, lora_alpha"),
    "diagnosis.compute_freq, num_samples": ("collapse_detection.compute_freq, num_samples", ""),
    "diagnosis.std_eps, ema_decay": ("collapse_detection.std_eps, ema_decay", ""),
    "evaluation.test_freq": ("trainer.test_freq", "eval_steps"),
    "run.save_freq": ("trainer.save_freq", "save_steps"),
    "run.name": ("trainer.experiment_name", "run_name"),
    "run.seed": ("seed", "seed"),
}


def meanings(cls: Any) -> dict[str, str]:
    """Meaning of each field that the class, or one that it inherits from, declares."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        entry = re.compile(r"^( {4,8})(\w+(?:, \w+)*): (.+(?:\n\1 +\S.*)*)$", re.M)
        for match in entry.finditer(base.__doc__ or ""):
            for name in match.group(2).split(", "):
                found[name] = " ".join(match.group(3).split())
        above = ""
        for line in inspect.getsource(base).splitlines():
            field = re.match(r"    (\w+): [^#]+?(?:  # (.*))?$", line)
            if field and (text := field.group(2) or above):
                found[field.group(1)] = text
            above = line.strip().removeprefix("# ") if line.startswith("    # ") else ""
    return found


def default(value: Any) -> str:
    """A default as YAML writes it."""
    if isinstance(value, tuple):
        value = list(value)
    return (
        yaml.safe_dump(value, default_flow_style=True, width=1000, allow_unicode=True)
        .removesuffix("...\n")
        .strip()
    )


def rows(cls: Any, values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Table lines of a class's fields."""
    known = meanings(cls)
    yield "| field | default | meaning |"
    yield "| --- | --- | --- |"
    for name, value in values.items():
        text = known[name].rstrip(".").replace("|", "\\|")
        shown = default(value).replace("|", "\\|")
        yield f"| `{prefix}{name}` | `{shown}` | {text} |"


def summary(cls: Any) -> str:
    """The docstring without its list of fields and its errors."""
    text = re.split(r"\n\s*\n(?=(?:Fields|Attributes):|\w+(?:, \w+)*: )", inspect.getdoc(cls) or "")[0]
    return re.sub(r"\s*\bRaises ValueError[^.]*\.", "", text)


def build() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    tree = config_to_dict(Config())
    for section in dataclasses.fields(Config):
        cls = type(getattr(Config(), section.name))
        parts += [
            f"## {section.name}",
            summary(cls),
            "\n".join(rows(cls, tree[section.name], f"{section.name}.")),
        ]
        if section.name == "env":
            parts += list(environments())
        if section.name == "model":
            parts += ["### model.lora", summary(LoraConfig)]
            parts += ["\n".join(rows(LoraConfig, dataclasses.asdict(LoraConfig()), "model.lora."))]
    parts += [
        "## Names elsewhere",
        "Settings keep the names of RAGEN-2 and verl where the meaning is the same. `actor` stands for "
        "`actor_rollout_ref.actor`.",
    ]
    table = ["| here | RAGEN-2, verl | TRL (GRPO) |", "| --- | --- | --- |"]
    table += [f"| `{here}` | {verl} | {trl} |" for here, (verl, trl) in OTHER_NAMES.items()]
    return "\n\n".join(p.strip() for p in [*parts, "\n".join(table)]) + "\n"


def environments() -> Iterator[str]:
    """Fields of `env` beyond its own: those of the protocol and of each class of environments."""
    yield "The turn protocol (a tag may have other defaults, see `ragen-jax envs list`):"
    yield "\n".join(rows(envs_jax.TurnConfig, dataclasses.asdict(envs_jax.TurnConfig()), "env."))
    yield (
        "`env.prompt_capacity` and `env.obs_capacity` are the token slots of the first and of later "
        "observations; by default they are measured."
    )
    tags: dict[Any, list[str]] = {}
    for tag in envs_jax.registered():
        tags.setdefault(envs_jax.spec(tag).factory, []).append(tag)
    for cls, names in tags.items():
        yield f"{', '.join(names)}:"
        yield "\n".join(rows(cls, dataclasses.asdict(cls()), "env."))


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(build(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != build():
        sys.exit(f"{PAGE} is out of date: run `make docs`")
