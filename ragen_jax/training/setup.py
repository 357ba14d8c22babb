"""From a configuration to everything that a run is made of. Used by training, evaluation and diagnosis alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from envs_jax.core import Tokenizer
from envs_jax.errors import ConfigError
from envs_jax.turn import TurnEnv, TurnParams
from ragen_jax.models import ModelConfig, Params, abstract_params, init_params
from ragen_jax.models.load import load_model
from ragen_jax.parallel import Placement, check_rows, everywhere, make_placement, several
from ragen_jax.rl import UpdateSpec
from ragen_jax.rl.gradient_analysis import GradientSpec
from ragen_jax.rl.layout import shardings
from ragen_jax.rollout import RolloutSpec, StopTable, make_stop_table
from ragen_jax.rollout.sampling import LEVEL
from ragen_jax.tokenizers import BPETokenizer, SmallTokenizer, load_tokenizer
from ragen_jax.training.config import Config, EnvConfig
from ragen_jax.training.diagnosis import DiagnosisSpec
from ragen_jax.training.teachers import has_teacher, vocabulary

AnyTokenizer = SmallTokenizer | BPETokenizer


@dataclass(frozen=True)
class Setup:
    """The static parts (specs), the tables, and the policy's initial parameters."""

    config: Config
    tokenizer: AnyTokenizer
    model: ModelConfig
    params: Params
    env: TurnEnv
    train: TurnParams
    eval: TurnParams
    stops: StopTable
    rollout_spec: RolloutSpec
    diagnosis_spec: DiagnosisSpec
    update_spec: UpdateSpec
    gradient_spec: GradientSpec

    def everywhere(self, tree: Any) -> Any:
        """Small inputs of programs as every process needs them."""
        return everywhere(tree, self.model.placement)

    def tables(self, split: str) -> tuple[TurnParams, StopTable]:
        """What a rollout reads, as every process needs it."""
        train, held_out, stops = self._tables
        return (train if split == "train" else held_out), stops

    @cached_property
    def _tables(self) -> tuple[TurnParams, TurnParams, StopTable]:
        return self.everywhere((self.train, self.eval, self.stops))  # type: ignore[no-any-return]


def build_tokenizer(config: Config) -> SmallTokenizer:
    """A small tokenizer that knows the words of the environment and of its teacher; board rows stay single symbols."""
    env, params = make_env(
        config.env, None, prompt_capacity=None, obs_capacity=None
    )  # measured in bytes here
    words = [p for p in env.phrases() if any(c.islower() for c in p)]
    symbols = sorted({c for p in env.phrases() for c in p if not c.isascii()})
    return SmallTokenizer.build([*words, *vocabulary(env, params), *env.env.action_names, *symbols])


def make_env(
    section: EnvConfig, tokenizer: Tokenizer | None, *, split: str = "train", **capacity: int | None
) -> tuple[TurnEnv, TurnParams]:
    """`envs_jax.make` of a configuration's section. Raises ConfigError naming the field as the configuration does."""
    try:
        return envs_jax.make(
            section.tag, tokenizer, split=split, seed=section.seed, chat=section.chat,
            **{**section.overrides, **capacity},
        )  # fmt: skip
    except ConfigError as e:
        raise ConfigError(f"env.{e.field}", e.value, e.remedy) from e


def build(config: Config, *, run_dir: Path | None = None, devices: Sequence[Any] | None = None) -> Setup:
    """Builds a run's parts. `run_dir`: take the tokenizer that was saved there. `devices`: to run on, default all.

    Raises ValueError before long work.
    """
    section = config.model
    placement = make_placement(config.parallel, devices)
    _check_rows(config, placement)
    if section.path is None:
        if section.lora is not None:
            raise ConfigError("model.lora", section.lora, "adapters need a pretrained model: set model.path")
        tokenizer: AnyTokenizer = (
            build_tokenizer(config) if run_dir is None else load_tokenizer(run_dir / "tokenizer")
        )
        model = ModelConfig(
            vocab_size=tokenizer.vocab_size, hidden_size=section.hidden_size,
            num_hidden_layers=section.num_hidden_layers, num_attention_heads=section.num_attention_heads,
            num_key_value_heads=section.num_key_value_heads, intermediate_size=section.intermediate_size,
            rope_theta=section.rope_theta, dtype=section.dtype, placement=placement,
        )  # fmt: skip
        draw = jax.jit(
            init_params, static_argnums=0,
            out_shardings=None if placement is None else shardings(abstract_params(model), model),
        )  # fmt: skip
        params = draw(model, everywhere(jax.random.key(config.run.seed), placement))
    else:
        if config.warm_start.steps and section.lora is not None:
            steps = config.warm_start.steps
            raise ConfigError("warm_start.steps", steps, "a warm start trains full weights; drop model.lora")

        def layout(model: ModelConfig) -> Any:
            model = replace(model, placement=placement)
            return shardings(abstract_params(model), model)

        model, params, found = load_model(
            section.path, dtype=section.dtype, shardings=None if placement is None else layout
        )
        model = replace(model, placement=placement)
        if found is None:
            raise ConfigError("model.path", section.path, "the folder has no tokenizer (tokenizer.json)")
        tokenizer = found
    env, train = make_env(config.env, tokenizer)
    capacity = {"prompt_capacity": env.prompt_capacity, "obs_capacity": env.obs_capacity}
    _, held_out = make_env(config.env, tokenizer, split="eval", **capacity)
    if config.warm_start.steps and not has_teacher(env):
        steps = config.warm_start.steps
        raise ConfigError("warm_start.steps", steps, f"{env.tag} has no scripted teacher; set it to 0")
    rollout_spec = RolloutSpec(model, env, tokenizer.vocab_size, config.rollout.truncation)
    diagnosis, training = config.diagnosis, config.training
    families = {
        "first_turn": diagnosis.first_turn_enabled,
        "trajectory": diagnosis.trajectory_enabled,
        "turn": diagnosis.turn_enabled,
    }
    update_spec = UpdateSpec(
        model, config.algorithm, config.optim, tokenizer.vocab_size,
        max_sampled=env.config.max_turns * env.config.max_response_tokens,
        mini_batch_size=training.mini_batch_size, micro_batch_size=training.micro_batch_size,
        ppo_epochs=training.ppo_epochs, length_buckets=training.length_buckets, lora=section.lora,
        remat=training.remat,
    )  # fmt: skip
    return Setup(
        config=config, tokenizer=tokenizer, model=model, params=params, env=env, train=train, eval=held_out,
        stops=make_stop_table(tokenizer),
        rollout_spec=rollout_spec,
        diagnosis_spec=DiagnosisSpec(
            model, tokenizer.vocab_size, env.prompt_capacity, env.config.max_response_tokens, diagnosis.num_samples,
            tuple(f for f, on in families.items() if on), diagnosis.ema_decay, diagnosis.std_eps,
        ),
        update_spec=update_spec,
        gradient_spec=GradientSpec(
            update_spec, config.gradients.num_buckets, config.gradients.bucket_mode, config.gradients.method,
            config.gradients.sketch_size, config.gradients.bootstrap,
        ),
    )  # fmt: skip


def _check_rows(config: Config, placement: Placement | None) -> None:
    """Refuses batches whose rows cannot be shared out over the mesh, by name."""
    warm, training = config.warm_start, config.training
    check_rows(
        placement, rollout__group_size=config.rollout.env_groups * config.rollout.group_size,
        training__micro_batch_size=training.micro_batch_size, evaluation__batch_size=config.evaluation.batch_size,
    )  # fmt: skip
    if warm.steps:
        check_rows(placement, warm_start__batch_size=warm.batch_size)
    if warm.first_turn_steps:
        check_rows(placement, warm_start__first_turn_batch_size=warm.first_turn_batch_size)
    if several() and config.gradients.every:
        raise ConfigError(
            "gradients.every", config.gradients.every, "the analysis runs in one process only; set it to 0"
        )


def draw_levels(setup: Setup, step: int, batch: int = 0, groups: int | None = None) -> jax.Array:
    """Indices of one step's training levels, by (seed, step, batch of the step); without repeats when the pool is large
    enough. `groups`: how many, by default those of a training batch."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(setup.config.run.seed), step), LEVEL)
    key = jax.random.fold_in(key, batch) if batch else key
    groups, pool = groups or setup.config.rollout.env_groups, setup.env.num_levels
    return jax.random.choice(key, pool, (groups,), replace=groups > pool).astype(jnp.int32)
