"""The sections of a run's configuration: what can be set, its defaults, and what each refuses by itself.

The comment of a field is its meaning in docs/configuration.md. Sections that a layer below reads by itself stand
there: `Objective`, `CriticConfig`, `OptimConfig`, `ParallelSection`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from envs_jax.errors import ConfigError, suggestion
from ragen_jax.models.lora import LoraConfig
from ragen_jax.rollout.sampling import Truncation


@dataclass(frozen=True)
class EnvConfig:
    """The environment: a registered tag, and any field of its dataclass or of `TurnConfig`.

    Or several in one batch: `tags`; a field is then set for those that have it.
    """

    tag: str = "CoordSokoban"  # a tag of `ragen-jax envs list`
    tags: tuple[str, ...] | None = None  # several tags in one batch, in place of `tag`
    # groups of each of `tags`, `rollout.env_groups` in all; null: equal shares
    n_groups: tuple[int, ...] | None = None
    by_tag: dict[str, Any] = field(default_factory=dict)  # fields of single tags: {FrozenLake: {p: 0.8}}
    chat: str | None = None  # chatml, llama3 or plain; null: what the tokenizer has the tokens for
    seed: int = 10_000  # of the training level pool; the evaluation pool has keys of its own
    overrides: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tags = self.tags or ()
        if self.tags is not None and (not tags or len(set(tags)) < len(tags)):
            raise ConfigError("env.tags", list(tags), "name at least one tag, and none twice")
        if self.n_groups is not None and len(self.n_groups) != len(tags):
            raise ConfigError("env.n_groups", list(self.n_groups), "give one number for each of env.tags")
        for tag, fields in self.by_tag.items():
            if tag not in tags:
                raise ConfigError(
                    f"env.by_tag.{tag}", fields, f"not one of env.tags; {suggestion(tag, tags)}"
                )
            if not isinstance(fields, Mapping):
                raise ConfigError(f"env.by_tag.{tag}", fields, "must be a section of named fields")

    def groups(self, env_groups: int) -> tuple[int, ...]:
        """Groups of each tag in a batch of `env_groups`. Raises ConfigError where they do not add up."""
        if self.tags is None:
            return (env_groups,)
        if self.n_groups is None:
            if env_groups % len(self.tags):
                raise ConfigError(
                    "env.n_groups",
                    None,
                    f"{env_groups} groups have no equal shares for {len(self.tags)} tags; give them",
                )
            return (env_groups // len(self.tags),) * len(self.tags)
        if sum(self.n_groups) != env_groups or min(self.n_groups) < 1:
            remedy = f"they must be positive and add up to rollout.env_groups ({env_groups})"
            raise ConfigError("env.n_groups", list(self.n_groups), remedy)
        return self.n_groups


@dataclass(frozen=True)
class ModelSection:
    """A model file with its tokenizer, the policy of another run, or the size of one to build from scratch.

    A policy from scratch gets a small tokenizer made from the environment's text.

    attention: how attention is computed: xla; cudnn, the fused kernel of NVIDIA GPUs in training (bfloat16); pallas,
        kernels of TPUs in training (Splash) and, where layers are scanned, in decoding (heads of a multiple of 64).
        Elsewhere the last two are the same as xla.
    scan_layers: decode with the layers in a loop, which compiles in a time that their number does not change, rather
        than written out one by one, which is faster on a CPU; null: on TPUs alone.
    """

    # a GGUF file, a Hugging Face folder, a name of `ragen-jax models list`, or a run directory: its newest policy
    path: str | None = None
    hidden_size: int = 128  # this and the next five are those of a policy from scratch
    num_hidden_layers: int = 3  # blocks
    num_attention_heads: int = 4  # query heads
    num_key_value_heads: int = 2  # key and value heads; divides the query heads
    intermediate_size: int = 384  # width of the feed-forward layer
    rope_theta: float = 10_000.0  # base of the rotary embedding
    dtype: str = "float32"  # float32 or bfloat16, for computing; masters are float32
    attention: Literal["xla", "cudnn", "pallas"] = "xla"
    scan_layers: bool | None = None
    lora: LoraConfig | None = None  # adapters in place of full weights (see below); null: none


@dataclass(frozen=True)
class RolloutSection:
    """Sampling and the filter; names are RAGEN's. See `ragen_jax.estimators.select_groups` for the strategies.

    top_p, top_k, min_p: sampling of training episodes from the most likely ids alone, in this order top-k, top-p,
        min-p; 1, -1 and 0 leave all. Anything else makes updates off-policy: log-probs of the update are of the whole
        softmax (see algorithm.rollout_is).
    rollout_filter_metric: what is ranked: reward_variance (reward_std), reward, reward_sum, entropy, entropy_variance
        (entropy_std), length. The entropy ones cost a forward pass.
    rollout_filter_level: groups are ranked and kept as a whole ("prompt"), or single episodes ("trajectory").
    rollout_filter_eps_mode: absolute: the slack in units of the scores; relative: as a share of their sum.
    rollout_filter_adaptive: keep everything in a step where the Std/Mean of reward variance over prompts is below this.
    context_window_mode: what a turn is sampled and learned under: the whole dialogue; the dialogue of the last
        max_context_window turns (limited_multi_turn); one message that holds these (single_turn). The latter two, and a
        max_model_len, encode each turn's prompt anew and learn from each turn by itself.
    max_context_window: turns shown, the present one among them; of the two limited modes. -1: all, of full.
    max_model_len: most tokens of a prompt and its response: of a dialogue that outgrows it the oldest turns are left
        out. null: a dialogue that may outgrow the model's positions is refused.
    max_num_gen_batches: most batches that a step rolls out to replace groups that the filter dropped (DAPO's dynamic
        sampling); 1: none is replaced.
    """

    env_groups: int = 8  # prompts (levels) a step
    group_size: int = 16  # episodes a prompt, which share the level and differ in their draws
    temperature: float = 1.0  # of sampling and of every log-prob
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    # how groups are chosen by their scores
    rollout_filter_strategy: Literal["top_p", "top_k", "top_k_abs", "min_p", "quartile"] = "top_p"
    rollout_filter_value: float = 0.9  # share, count, ratio or number (1 to 4) of the strategy
    rollout_filter_type: Literal["largest", "smallest"] = "largest"  # which scores are kept
    rollout_filter_metric: Literal[
        "reward_variance",
        "reward_std",
        "reward",
        "reward_sum",
        "entropy",
        "entropy_variance",
        "entropy_std",
        "length",
    ] = "reward_variance"
    rollout_filter_level: Literal["prompt", "trajectory"] = "prompt"
    rollout_filter_include_zero: bool = False  # whether groups of score 0 (equal rewards) can be kept
    rollout_filter_top_p_prob_mode: Literal["linear", "softmax"] = "linear"  # weights of top_p
    rollout_filter_selection_eps: float = 0.01  # slack of linear top_p
    rollout_filter_eps_mode: Literal["absolute", "relative"] = "absolute"
    rollout_filter_adaptive: float = 0.0
    rollout_filter_empty_stop_steps: int = 5  # stop after so many steps on end with nothing kept; 0: never
    max_num_gen_batches: int = 1
    context_window_mode: Literal["full", "limited_multi_turn", "single_turn"] = "full"
    max_context_window: int = -1
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        _at_least("rollout.env_groups", self.env_groups, 1)
        _at_least("rollout.group_size", self.group_size, 1)
        _at_least("rollout.rollout_filter_selection_eps", self.rollout_filter_selection_eps, 0)
        _at_least("rollout.rollout_filter_adaptive", self.rollout_filter_adaptive, 0)
        _at_least("rollout.rollout_filter_empty_stop_steps", self.rollout_filter_empty_stop_steps, 0)
        _at_least("rollout.max_num_gen_batches", self.max_num_gen_batches, 1)
        self.truncation  # noqa: B018 (refuses what cannot be)
        if not self.temperature > 0:
            raise ConfigError(
                "rollout.temperature", self.temperature, "training needs a positive temperature"
            )
        self._check_value()
        self._check_context()
        if self.group_size == 1 and self.filters and not self._ranks_values:
            raise ConfigError(
                "rollout.group_size", 1,
                "one member has no reward variance to filter on; raise it, or keep every group with "
                "rollout.rollout_filter_value=1 and rollout.rollout_filter_include_zero=true",
            )  # fmt: skip
        if self.group_size < 3 and self.rollout_filter_adaptive:
            raise ConfigError(
                "rollout.rollout_filter_adaptive", self.rollout_filter_adaptive,
                f"the error of a reward variance needs groups of at least 3; rollout.group_size is {self.group_size}",
            )  # fmt: skip
        if self.max_num_gen_batches > 1:
            if not self.filters:
                raise ConfigError(
                    "rollout.max_num_gen_batches", self.max_num_gen_batches,
                    "the filter drops nothing, so there is nothing to replace; set "
                    "rollout.rollout_filter_include_zero=false",
                )  # fmt: skip
            if self.rollout_filter_level == "trajectory":
                raise ConfigError(
                    "rollout.max_num_gen_batches", self.max_num_gen_batches,
                    "whole groups are replaced; set rollout.rollout_filter_level=prompt",
                )  # fmt: skip

    def _check_context(self) -> None:
        mode, turns = self.context_window_mode, self.max_context_window
        if mode == "full" and turns != -1:
            raise ConfigError(
                "rollout.max_context_window", turns,
                "full contexts hold every turn; set rollout.context_window_mode to limited_multi_turn, or this to -1",
            )  # fmt: skip
        if mode != "full" and turns < 1:
            raise ConfigError("rollout.max_context_window", turns, f"{mode} shows at least 1 turn")
        if self.max_model_len is not None and mode == "single_turn":
            raise ConfigError(
                "rollout.max_model_len", self.max_model_len,
                "single_turn is bounded by rollout.max_context_window; leave it null",
            )  # fmt: skip

    def _check_value(self) -> None:
        value, strategy = self.rollout_filter_value, self.rollout_filter_strategy
        units = self.env_groups * (self.group_size if self.rollout_filter_level == "trajectory" else 1)
        remedy = None
        if value <= 0:
            remedy = "it must be positive"
        elif strategy == "top_k_abs" and value > units:
            what = (
                "groups, but rollout.env_groups is"
                if units == self.env_groups
                else "episodes, but a batch has"
            )
            remedy = f"top_k_abs keeps that many {what} {units}"
        elif strategy == "top_k" and value > 1:
            remedy = "top_k keeps that share of the batch; it must be at most 1 (top_k_abs takes a count)"
        elif strategy == "quartile" and value not in (1, 2, 3, 4):
            remedy = "it numbers a quartile: 1 (lowest scores), 2, 3 or 4"
        if remedy is not None:
            raise ConfigError("rollout.rollout_filter_value", value, remedy)

    @property
    def _ranks_values(self) -> bool:
        return self.rollout_filter_metric in ("reward", "reward_sum", "entropy", "length")

    @property
    def filters(self) -> bool:
        """Whether anything can be left out."""
        keeps_all = self.rollout_filter_strategy == "top_p" and self.rollout_filter_value >= 1
        return not (keeps_all and self.rollout_filter_include_zero)

    @property
    def windowed(self) -> bool:
        """Whether turns have contexts of their own."""
        return self.context_window_mode != "full" or self.max_model_len is not None

    @property
    def truncation(self) -> Truncation:
        return Truncation(self.top_p, self.top_k, self.min_p)


@dataclass(frozen=True)
class WarmStartSection:
    """Supervised start of a policy on a scripted teacher's demonstrations. `steps` 0 leaves it out."""

    steps: int = 0  # optimiser steps on whole dialogues; 0: no warm start
    batch_size: int = 128  # dialogues a step
    reading_steps: int = 0  # steps before these: single states, and what the teacher sees in them
    reading_batch_size: int = 128  # states a step
    lr: float = 2e-3  # peak of AdamW's learning rate
    skill: float = 0.5  # how often the teacher's move is the best one; its words are always true
    demonstrations: int = 16_384  # dialogues to draw once, and to cycle through

    def __post_init__(self) -> None:
        _at_least("warm_start.steps", self.steps, 0)
        _at_least("warm_start.batch_size", self.batch_size, 1)
        _at_least("warm_start.reading_batch_size", self.reading_batch_size, 1)
        _at_least("warm_start.reading_steps", self.reading_steps, 0)
        if self.reading_steps and not self.steps:
            raise ConfigError(
                "warm_start.reading_steps", self.reading_steps, "it needs warm_start.steps, for moves"
            )
        _at_least("warm_start.demonstrations", self.demonstrations, 1)
        if not self.lr > 0:
            raise ConfigError("warm_start.lr", self.lr, "it must be positive")
        if not 0 <= self.skill <= 1:
            raise ConfigError("warm_start.skill", self.skill, "it is a share and lies in [0, 1]")


@dataclass(frozen=True)
class TrainingSection:
    """The loop. Batch sizes count rows (episodes)."""

    total_training_steps: int = 200  # iterations of roll out, filter, update; 0: the warm start alone
    mini_batch_size: int = 32  # episodes of one optimiser step, at most
    micro_batch_size: int = 4  # episodes of one forward and backward; changes memory, not the result
    ppo_epochs: int = 1  # passes over a step's episodes
    length_buckets: int = 4  # static lengths of a microbatch; more cost compile time and save padding
    # what the backward recomputes: nothing, all, all but matrix products; offload: all, from inputs kept on the host
    remat: Literal["none", "full", "dots", "offload"] = "none"
    max_skipped_updates: int = 10  # stop after this many optimiser steps with a gradient that is not finite

    def __post_init__(self) -> None:
        _at_least("training.total_training_steps", self.total_training_steps, 0)
        for name in (
            "mini_batch_size", "micro_batch_size", "ppo_epochs", "length_buckets", "max_skipped_updates",
        ):  # fmt: skip
            _at_least(f"training.{name}", getattr(self, name), 1)
        if self.mini_batch_size % self.micro_batch_size:
            raise ConfigError(
                "training.micro_batch_size", self.micro_batch_size,
                f"it must divide training.mini_batch_size ({self.mini_batch_size})",
            )  # fmt: skip


@dataclass(frozen=True)
class DiagnosisSection:
    """Collapse metrics: on the first step and every `compute_freq` steps (0: never), before the filter."""

    compute_freq: int = 5  # steps between diagnoses; the first step has one too; 0: never
    num_samples: int = 64  # traces scored, at most, in each family
    first_turn_enabled: bool = True  # first reasonings under the groups' prompts
    trajectory_enabled: bool = True  # one turn of each of some episodes, each with its own context
    turn_enabled: bool = False  # turns drawn from all episodes, each with its own context
    ema_decay: float = 0.9  # of the spread that MI-ZScore-EMA divides by
    std_eps: float = 1e-3  # added to standard deviations that divide

    def __post_init__(self) -> None:
        _at_least("diagnosis.compute_freq", self.compute_freq, 0)
        _at_least("diagnosis.num_samples", self.num_samples, 2)
        _at_least("diagnosis.std_eps", self.std_eps, 0)
        if not 0 <= self.ema_decay < 1:
            raise ConfigError("diagnosis.ema_decay", self.ema_decay, "it must lie in [0, 1)")


@dataclass(frozen=True)
class EarlyStopSection:
    """When a run ends by itself, with a checkpoint. The rules are the reference's; 0 in the first field of one: never.

    A run also stops when the filter keeps nothing (rollout.rollout_filter_empty_stop_steps).
    """

    reward_variance_ratio: float = 0.1  # stop where reward variance stays below this share of its base ..
    reward_variance_base_steps: int = 10  # .. the mean over the first steps that kept something ..
    reward_variance_steps: int = 10  # .. for so many steps on end
    validation_success: float = 0.01  # stop where held-out success stays below this ..
    validation_count: int = 5  # .. in so many evaluations on end; the one before RL does not count

    def __post_init__(self) -> None:
        for name in ("reward_variance_ratio", "validation_success"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"early_stop.{name}", getattr(self, name), "it must lie in [0, 1); 0: never"
                )
        for name in ("reward_variance_base_steps", "reward_variance_steps", "validation_count"):
            _at_least(f"early_stop.{name}", getattr(self, name), 1)


@dataclass(frozen=True)
class GradientSection:
    """Gradients by bucket of reward variance, before the update, every `every` steps. See docs/algorithms.md.

    env_groups, group_size: of a batch of its own; null: those of training, on the step's own batch before the filter.
    method: full: inner products of whole gradients, and intervals from sketches; sketch: all from sketches.
    """

    every: int = 0  # steps between analyses; the first step has one too; 0: never
    env_groups: int | None = None
    group_size: int | None = None
    num_buckets: int = 4  # of equal numbers of prompts, the first of the lowest reward variance
    bucket_mode: Literal["quantile", "fixed_rv"] = "quantile"  # fixed_rv: [0, 1), [1, 2), .. up to [5, inf)
    method: Literal["full", "sketch"] = "full"
    sketch_size: int = 16_384  # numbers that stand for a gradient
    bootstrap: int = 1000  # resamples of prompts for the intervals

    def __post_init__(self) -> None:
        _at_least("gradients.every", self.every, 0)
        _at_least("gradients.num_buckets", self.num_buckets, 1)
        _at_least("gradients.sketch_size", self.sketch_size, 2)
        _at_least("gradients.bootstrap", self.bootstrap, 1)
        for name in ("env_groups", "group_size"):
            if getattr(self, name) is not None:
                _at_least(f"gradients.{name}", getattr(self, name), 1)


@dataclass(frozen=True)
class EvaluationSection:
    """Success on held-out levels, at the start, every `test_freq` steps (0: only at the ends) and at the end."""

    test_freq: int = 10  # steps between evaluations, besides those at both ends; 0: only these
    levels: int = 512  # held-out levels, each played once
    batch_size: int = 128  # levels played at once
    temperature: float = 0.5  # 0: greedy

    def __post_init__(self) -> None:
        _at_least("evaluation.test_freq", self.test_freq, 0)
        _at_least("evaluation.levels", self.levels, 1)
        _at_least("evaluation.batch_size", self.batch_size, 1)
        _at_least("evaluation.temperature", self.temperature, 0)
        if self.levels % self.batch_size:
            raise ConfigError(
                "evaluation.batch_size", self.batch_size, f"it must divide evaluation.levels ({self.levels})"
            )


@dataclass(frozen=True)
class RunSection:
    """Where a run lives and what it writes.

    keep_best_checkpoints: ones to keep besides the newest, those whose evaluation had most success; an evaluation
        better than all before it then writes a checkpoint; 0: none.
    """

    name: str = "run"  # folder in `dir`; must not hold a run yet
    dir: str = "runs"  # folder of runs
    seed: int = 0  # of everything drawn but the level pools
    save_freq: int = 50  # steps between checkpoints; one is always written at the end; 0: only there
    keep_checkpoints: int = 2  # newest ones to keep
    keep_best_checkpoints: int = 0
    rollout_freq: int = 10  # steps between samples of training episodes kept as text; 0: none
    rollouts_kept: int = 16  # episodes in each sample
    tensorboard: bool = True  # write tensorboard/ beside metrics.jsonl
    wandb: bool = False  # log to Weights & Biases too (extra wandb)

    def __post_init__(self) -> None:
        if not self.name or self.name in (".", "..") or any(c in self.name for c in "/\\\0"):
            raise ConfigError("run.name", self.name, "it names one folder in run.dir")
        _at_least("run.save_freq", self.save_freq, 0)
        _at_least("run.keep_checkpoints", self.keep_checkpoints, 1)
        _at_least("run.keep_best_checkpoints", self.keep_best_checkpoints, 0)
        _at_least("run.rollout_freq", self.rollout_freq, 0)
        _at_least("run.rollouts_kept", self.rollouts_kept, 1)


def _at_least(name: str, value: float, low: float) -> None:
    if value < low:
        raise ConfigError(name, value, f"it must be at least {low}")
