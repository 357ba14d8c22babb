"""The configuration tree of a run: its sections put together and checked, read from YAML and dotted names.

`load_config("configs/quickstart.yaml", ["algorithm.adv_estimator=gae", "env.p=0.8"])`. Unknown keys are errors
with a suggestion; every value's type is checked; what contradicts is refused with the field's name.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from envs_jax.errors import ConfigError
from envs_jax.fields import read_fields
from ragen_jax.parallel.mesh import ParallelSection
from ragen_jax.rl.critic import CriticConfig
from ragen_jax.rl.objective import Objective
from ragen_jax.rl.state import OptimConfig
from ragen_jax.training.sections import (
    DiagnosisSection,
    EarlyStopSection,
    EnvConfig,
    EvaluationSection,
    GradientSection,
    ModelSection,
    RolloutSection,
    RunSection,
    TrainingSection,
    WarmStartSection,
)


@dataclass(frozen=True)
class Config:
    """Everything about a run."""

    run: RunSection = field(default_factory=RunSection)
    env: EnvConfig = field(default_factory=EnvConfig)
    model: ModelSection = field(default_factory=ModelSection)
    rollout: RolloutSection = field(default_factory=RolloutSection)
    algorithm: Objective = field(default_factory=Objective)
    critic: CriticConfig = field(default_factory=CriticConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    warm_start: WarmStartSection = field(default_factory=WarmStartSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    diagnosis: DiagnosisSection = field(default_factory=DiagnosisSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    early_stop: EarlyStopSection = field(default_factory=EarlyStopSection)
    gradients: GradientSection = field(default_factory=GradientSection)
    parallel: ParallelSection = field(default_factory=ParallelSection)

    def __post_init__(self) -> None:
        self.env.groups(self.rollout.env_groups)
        if self.env.tags is not None:
            fixed = "the groups of a mixture (env.tags) have fixed places in the batch; use"
            if self.rollout.max_num_gen_batches > 1:
                raise ConfigError(
                    "rollout.max_num_gen_batches", self.rollout.max_num_gen_batches, f"{fixed} 1"
                )
            if self.gradients.env_groups is not None:
                raise ConfigError("gradients.env_groups", self.gradients.env_groups, f"{fixed} null")
        if self.rollout.windowed:
            self._check_windowed()
        if self.critic.kind != "separate" and not self.algorithm.uses_critic:
            raise ConfigError(
                "critic.kind", self.critic.kind,
                f"algorithm.adv_estimator {self.algorithm.adv_estimator} has no critic; use gae or bi_level_gae",
            )  # fmt: skip
        self.critic.check_adapters(self.model.lora)
        rows = self.rollout.env_groups * self.rollout.group_size
        if rows % self.training.micro_batch_size:
            raise ConfigError(
                "training.micro_batch_size", self.training.micro_batch_size,
                f"it must divide the batch of {rows} episodes (rollout.env_groups x rollout.group_size)",
            )  # fmt: skip
        size = self.rollout.group_size
        if size == 1 and (self.algorithm.group_relative or self.algorithm.soft_advantage_reweight):
            kind = (
                self.algorithm.adv_estimator if self.algorithm.group_relative else "soft_advantage_reweight"
            )
            raise ConfigError(
                "rollout.group_size", 1, f"{kind} compares the members of a group; use at least 2"
            )
        if self.gradients.every:
            members = self.gradients.group_size or size
            least = 4 if self.algorithm.group_relative else 2
            if members < least:
                raise ConfigError(
                    "gradients.group_size", members,
                    f"each half of a group needs {least // 2} episodes with {self.algorithm.adv_estimator}; "
                    f"use at least {least}",
                )  # fmt: skip

    def _check_windowed(self) -> None:
        """Refuses what learns from whole episodes as rows."""
        remedy = "it needs rollout.context_window_mode full, and no rollout.max_model_len"
        if self.env.tags is not None:
            raise ConfigError("env.tags", list(self.env.tags), remedy)
        if self.gradients.every:
            raise ConfigError("gradients.every", self.gradients.every, remedy)
        if self.algorithm.rollout_is == "sequence":
            raise ConfigError("algorithm.rollout_is", "sequence", f"{remedy}; or use token")


def off_policy_warning(config: Config) -> str | None:
    """What to know about sampling from less than the whole policy; None where nothing is cut off."""
    if config.rollout.truncation.off:
        return None
    cut = [f"rollout.{n}={getattr(config.rollout, n)}" for n in ("top_p", "top_k", "min_p")]
    chosen = ", ".join(c for c, n in zip(cut, ("1.0", "-1", "0.0"), strict=True) if not c.endswith(f"={n}"))
    kind = config.algorithm.rollout_is
    if kind == "none":
        cure = "algorithm.rollout_is=token corrects for it"
    else:
        cure = f"algorithm.rollout_is={kind} corrects for it up to {config.algorithm.rollout_is_threshold:g}"
    return (
        f"{chosen}: episodes are not drawn from the policy that is updated, so updates are off-policy by the "
        f"probability that was cut off ({cure})"
    )


# -- reading ------------------------------------------------------------------------------------------
def load_config(path: str | Path | Sequence[str | Path] | None, overrides: Sequence[str] = ()) -> Config:
    """Reads YAML files (or nothing) and applies `a.b=value` overrides, values in YAML syntax.

    Of several files a later one sets single fields over those before it, so that a preset such as configs/dapo.yaml
    can follow the configuration of a task. Raises ConfigError (a ValueError) naming the key, the value and the remedy.
    """
    paths = [] if path is None else [path] if isinstance(path, (str, Path)) else list(path)
    tree: dict[str, Any] = {}
    for one in paths:
        for section, fields in _read_yaml(one).items():
            below = tree.get(section)
            merges = isinstance(below, dict) and isinstance(fields, dict)
            tree[section] = {**below, **fields} if merges else fields  # type: ignore[dict-item]
    return config_from_dict(_overridden(tree, overrides))


def _read_yaml(path: str | Path) -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as e:
        raise ConfigError("config", str(path), f"cannot be read ({e.strerror}); give a YAML file") from e
    except UnicodeDecodeError as e:
        raise ConfigError("config", str(path), "is not text; give a YAML file") from e
    try:
        tree = yaml.safe_load(text) or {}
    except yaml.YAMLError as e:
        raise ConfigError("config", str(path), f"is not YAML: {' '.join(str(e).split())}") from e
    if not isinstance(tree, dict):
        raise ConfigError("config", str(path), "must hold a mapping of sections")
    return tree


def with_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """The configuration with `a.b=value` overrides applied.

    Another `env.tag`, and any `env.tags`, drops the old environment's settings.
    """
    tree = config_to_dict(config)
    given = {name: value for name, _, value in (o.partition("=") for o in overrides)}
    one = given.get("env.tag")
    if "env.tags" in given or (one is not None and (one != config.env.tag or config.env.tags)):
        tree["env"] = {}
    return config_from_dict(_overridden(tree, overrides))


def _overridden(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for item in overrides:
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigError("override", item, "write it as section.field=value")
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError as e:
            raise ConfigError(name, value, "is not a YAML value; put it in quotes") from e
        _set(tree, name.split("."), parsed)
    return tree


def config_from_dict(tree: Mapping[str, Any]) -> Config:
    """Builds and checks a configuration from plain data."""
    return _build(tree)


def config_to_dict(config: Config) -> dict[str, Any]:
    """Plain data that `config_from_dict` reads back equal."""
    tree = dataclasses.asdict(config)
    tree["env"] |= tree["env"].pop("overrides")
    return typing.cast(dict[str, Any], _plain(tree))


def config_to_yaml(config: Config) -> str:
    return yaml.safe_dump(config_to_dict(config), sort_keys=False)


def _plain(x: Any) -> Any:
    if isinstance(x, dict):
        return {k: _plain(v) for k, v in x.items()}
    return [_plain(v) for v in x] if isinstance(x, (list, tuple)) else x


def _set(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        below = tree.setdefault(part, {})
        if below is None:
            below = tree[part] = {}
        if not isinstance(below, dict):
            raise ConfigError(".".join(path), value, f"{part} is not a section")
        tree = below
    tree[path[-1]] = value


def _build(tree: Any) -> Config:
    if not isinstance(tree, Mapping):
        raise ConfigError("config", tree, "must be a mapping of sections")
    env = tree.get("env", {})
    if not isinstance(env, Mapping):
        raise ConfigError("env", env, "must be a section of named fields")
    own = {f.name for f in dataclasses.fields(EnvConfig)} - {"overrides"}
    section = {k: v for k, v in env.items() if k in own}
    # The rest are fields of the environment and of its protocol, which only envs_jax.make knows.
    others = {str(k): tuple(v) if isinstance(v, list) else v for k, v in env.items() if k not in own}
    return Config(**read_fields(Config, {**tree, "env": {**section, "overrides": others}}))
