"""From a configuration to everything that a run is made of. Used by training, evaluation and diagnosis alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from envs_jax.core import Tokenizer
from envs_jax.errors import ConfigError, suggestion
from envs_jax.mixture import Mixture, MixtureParams, share_vocabulary
from envs_jax.turn import TurnConfig, TurnEnv, TurnParams
from ragen_jax.models import ModelConfig, Params, abstract_params, init_params
from ragen_jax.models.fingerprint import fingerprint
from ragen_jax.models.load import load_model
from ragen_jax.models.lora import lora_specs
from ragen_jax.parallel import Placement, check_rows, everywhere, make_placement
from ragen_jax.rl import UpdateSpec
from ragen_jax.rl.gradient_analysis import GradientSpec
from ragen_jax.rl.layout import shardings
from ragen_jax.rollout import RolloutSpec, StopTable, make_stop_table
from ragen_jax.rollout.sampling import LEVEL
from ragen_jax.rollout.windows import make_window
from ragen_jax.tokenizers import BPETokenizer, SmallTokenizer, load_tokenizer
from ragen_jax.training.checkpoints import is_run
from ragen_jax.training.config import Config, EnvConfig, ModelSection
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
    env: TurnEnv | Mixture
    train: TurnParams | MixtureParams
    eval: TurnParams | MixtureParams
    stops: StopTable
    rollout_spec: RolloutSpec
    diagnosis_spec: DiagnosisSpec
    update_spec: UpdateSpec
    gradient_spec: GradientSpec

    @property
    def parts(self) -> tuple[Part, ...]:
        """The environments by themselves; one, unless the batch is a mixture."""
        if isinstance(self.env, TurnEnv):
            assert isinstance(self.train, TurnParams)
            assert isinstance(self.eval, TurnParams)
            return (Part(self.env, self.train, self.eval, self.config.rollout.env_groups),)
        assert isinstance(self.train, tuple)
        assert isinstance(self.eval, tuple)
        columns = (self.env.parts, self.train, self.eval, self.env.n_groups)
        return tuple(Part(*row) for row in zip(*columns, strict=True))

    @property
    def shares(self) -> tuple[tuple[str, int], ...]:
        """Tag and groups of each part of a mixture; empty for one environment."""
        return self.env.shares if isinstance(self.env, Mixture) else ()

    def everywhere(self, tree: Any) -> Any:
        """Small inputs of programs as every process needs them."""
        return everywhere(tree, self.model.placement)

    def tables(self, split: str) -> tuple[TurnParams | MixtureParams, StopTable]:
        """What a rollout reads, as every process needs it."""
        train, held_out, stops = self._tables
        return (train if split == "train" else held_out), stops

    @cached_property
    def base_fingerprint(self) -> str | None:
        """Of the frozen weights under adapters; None without adapters."""
        return None if self.config.model.lora is None else fingerprint(self.params)

    @cached_property
    def _tables(self) -> tuple[Any, Any, StopTable]:
        return self.everywhere((self.train, self.eval, self.stops))


@dataclass(frozen=True)
class Part:
    """One environment of a batch: its parameters for training and evaluation, and how many groups it has."""

    env: TurnEnv
    train: TurnParams
    eval: TurnParams
    groups: int


def build_tokenizer(config: Config) -> SmallTokenizer:
    """A small tokenizer that knows the words of the environment and of its teacher; board rows stay single symbols."""
    words: list[str] = []
    symbols: set[str] = set()
    for section in sections(config.env):  # measured in bytes here
        env, params = make_env(section, None, prompt_capacity=None, obs_capacity=None)
        words += [p for p in env.phrases() if any(c.islower() for c in p)]
        words += [*vocabulary(env, params), *env.env.action_names]
        symbols |= {c for p in env.phrases() for c in p if not c.isascii()}
    return SmallTokenizer.build([*words, *sorted(symbols)])


def sections(section: EnvConfig) -> tuple[EnvConfig, ...]:
    """The section of each environment of a batch. A shared field goes to the tags that have it; one must.

    Raises ConfigError for a tag that is not registered and for a field that no tag has.
    """
    if section.tags is None:
        return (section,)
    turn = {f.name for f in dataclasses.fields(TurnConfig)} | {"prompt_capacity", "obs_capacity"}
    known = {tag: turn | {f.name for f in dataclasses.fields(_factory(tag))} for tag in section.tags}
    for name, value in section.overrides.items():
        if not any(name in fields for fields in known.values()):
            remedy = f"no tag has such a field; {suggestion(name, set().union(*known.values()))}"
            raise ConfigError(f"env.{name}", value, remedy)
    out = []
    for tag in section.tags:
        own = {str(n): tuple(v) if isinstance(v, list) else v for n, v in section.by_tag.get(tag, {}).items()}
        shared = {n: v for n, v in section.overrides.items() if n in known[tag]}
        out.append(
            replace(section, tag=tag, tags=None, n_groups=None, by_tag={}, overrides={**shared, **own})
        )
    return tuple(out)


def _factory(tag: str) -> Any:
    try:
        return envs_jax.spec(tag).factory
    except ConfigError as e:
        raise ConfigError("env.tags", e.value, e.remedy) from e


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


def make_batch(
    config: Config, tokenizer: Tokenizer
) -> tuple[TurnEnv | Mixture, TurnParams | MixtureParams, TurnParams | MixtureParams]:
    """The environment or the mixture of a configuration, and its parameters for training and for evaluation."""
    envs, train, held_out = [], [], []
    for section in sections(config.env):
        env, params = make_env(section, tokenizer)
        capacity = {"prompt_capacity": env.prompt_capacity, "obs_capacity": env.obs_capacity}
        envs.append(env)
        train.append(params)
        held_out.append(make_env(section, tokenizer, split="eval", **capacity)[1])
    if config.env.tags is None:
        return envs[0], train[0], held_out[0]
    shared = share_vocabulary([*train, *held_out])
    mixture = Mixture(tuple(envs), config.env.groups(config.rollout.env_groups))
    return mixture, shared[: len(envs)], shared[len(envs) :]


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
            rope_theta=section.rope_theta, dtype=section.dtype, attention=section.attention,
            scan_layers=section.scan_layers, placement=placement,
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

        model, params, found = _load(section, placement)
        if found is None:
            raise ConfigError("model.path", section.path, "the folder has no tokenizer (tokenizer.json)")
        tokenizer = found
    for adapters in (section.lora, config.critic.adapters(section.lora)):
        if adapters is not None:
            lora_specs(model, adapters)  # refuses a rank that the matrices do not have
    env, train, held_out = make_batch(config, tokenizer)
    for part in env.parts if isinstance(env, Mixture) else (env,):
        if config.warm_start.steps and not has_teacher(part):
            steps = config.warm_start.steps
            raise ConfigError("warm_start.steps", steps, f"{part.tag} has no scripted teacher; set it to 0")
    window = None
    if isinstance(env, TurnEnv):
        assert isinstance(train, TurnParams)
        rollout = config.rollout
        window = make_window(
            env,
            train,
            tokenizer,
            rollout.context_window_mode,
            rollout.max_context_window,
            rollout.max_model_len,
        )
    rollout_spec = RolloutSpec(model, env, tokenizer.vocab_size, config.rollout.truncation, window)
    diagnosis, training = config.diagnosis, config.training
    families = {
        "first_turn": diagnosis.first_turn_enabled,
        "trajectory": diagnosis.trajectory_enabled,
        "turn": diagnosis.turn_enabled,
    }
    update_spec = UpdateSpec(
        model, config.algorithm, config.optim, tokenizer.vocab_size,
        max_sampled=max(p.config.max_turns * p.config.max_response_tokens for p in rollout_spec.parts),
        mini_batch_size=training.mini_batch_size, micro_batch_size=training.micro_batch_size,
        ppo_epochs=training.ppo_epochs, length_buckets=training.length_buckets, lora=section.lora,
        remat=training.remat, critic=config.critic,
    )  # fmt: skip
    return Setup(
        config=config, tokenizer=tokenizer, model=model, params=params, env=env, train=train, eval=held_out,
        stops=make_stop_table(tokenizer),
        rollout_spec=rollout_spec,
        diagnosis_spec=DiagnosisSpec(
            model, tokenizer.vocab_size, env.prompt_capacity,
            max(p.config.max_response_tokens for p in rollout_spec.parts), diagnosis.num_samples,
            tuple(f for f, on in families.items() if on), diagnosis.ema_decay, diagnosis.std_eps,
        ),
        update_spec=update_spec,
        gradient_spec=GradientSpec(
            update_spec, config.gradients.num_buckets, config.gradients.bucket_mode, config.gradients.method,
            config.gradients.sketch_size, config.gradients.bootstrap,
        ),
    )  # fmt: skip


def _load(
    section: ModelSection, placement: Placement | None
) -> tuple[ModelConfig, Params, AnyTokenizer | None]:
    """The model of `section.path`: the policy of a run as its newest checkpoint has it, or a model's files."""
    assert section.path is not None

    def layout(model: ModelConfig) -> Any:
        model = replace(model, placement=placement)
        return shardings(abstract_params(model), model)

    if is_run(section.path):
        from ragen_jax.training.policy import load_weights  # builds the other run's setup with this module

        weights = load_weights(section.path)
        model, params, found = weights.model, weights.merged(), weights.tokenizer
        params = params if placement is None else jax.device_put(params, layout(model))
    else:
        model, params, found = load_model(
            section.path, dtype=section.dtype, shardings=None if placement is None else layout
        )
    model = replace(
        model, dtype=section.dtype, placement=placement, attention=section.attention, scan_layers=section.scan_layers
    )  # fmt: skip
    return model, params, found


def _check_rows(config: Config, placement: Placement | None) -> None:
    """Refuses batches whose rows cannot be shared out over the mesh, by name."""
    warm, training, rollout, gradients = config.warm_start, config.training, config.rollout, config.gradients
    for groups in config.env.groups(rollout.env_groups):  # of each tag
        check_rows(placement, rollout__group_size=groups * rollout.group_size)
        if gradients.every:
            own = (gradients.env_groups or groups) * (gradients.group_size or rollout.group_size)
            check_rows(placement, gradients__group_size=own)
    check_rows(
        placement, training__micro_batch_size=training.micro_batch_size,
        evaluation__batch_size=config.evaluation.batch_size,
    )  # fmt: skip
    if warm.steps:
        check_rows(placement, warm_start__batch_size=warm.batch_size)
    if warm.reading_steps:
        check_rows(placement, warm_start__reading_batch_size=warm.reading_batch_size)


def draw_levels(setup: Setup, step: int, batch: int = 0, groups: int | None = None) -> jax.Array:
    """Indices of one step's training levels, by (seed, step, batch of the step); without repeats when the pool is large
    enough. `groups`: how many, by default those of a training batch.

    A mixture's are those of its parts one after another.
    """
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(setup.config.run.seed), step), LEVEL)
    key = jax.random.fold_in(key, batch) if batch else key
    drawn = []
    for index, part in enumerate(setup.parts):
        own = jax.random.fold_in(key, index) if setup.shares else key
        count, pool = part.groups if setup.shares else groups or part.groups, part.env.num_levels
        drawn.append(jax.random.choice(own, pool, (count,), replace=count > pool))
    return jnp.concatenate(drawn).astype(jnp.int32)
