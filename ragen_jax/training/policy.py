"""A policy to look at: from a run's checkpoint or from a model file, with or without an environment around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ragen_jax.models import LoraConfig, ModelConfig, Params, load_model
from ragen_jax.models.load import locate
from ragen_jax.parallel import ParallelSection
from ragen_jax.rl import init_state, policy_params
from ragen_jax.rl.layout import abstract
from ragen_jax.training.checkpoints import CheckpointError, Checkpoints, RunState, is_run
from ragen_jax.training.config import Config, load_config, with_overrides
from ragen_jax.training.diagnosis import empty_ema
from ragen_jax.training.programs import diagnosis_program, episode_metrics, rollout_program, tag_metrics
from ragen_jax.training.setup import AnyTokenizer, Setup, build, draw_levels


@dataclass(frozen=True)
class Policy:
    """`trainable` (the policy's part) and `base` as in `TrainState`; `critic` and `run_dir` where it is a run's."""

    setup: Setup
    trainable: dict[str, Any]
    base: Params | None
    critic: Params | None = None
    run_dir: Path | None = None


def load_policy(source: str, overrides: list[str], *, step: int | None = None) -> Policy:
    """A run directory (its checkpoint `step`, default the newest) or a model; `overrides` change the configuration.

    Raises ValueError naming what is wrong: no such run or model, no such step, a model of other shapes.
    """
    run_dir = Path(source)
    if not is_run(run_dir):
        if step is not None:
            raise CheckpointError(f"{source}: --step belongs to a run directory, and this is none")
        setup = build(_as_it_is(load_config(None, [f"model.path={source}", *overrides])))
        return Policy(setup, {"policy": setup.params}, None)
    stored: Config = load_config(run_dir / "config.yaml")
    # The mesh is that of the devices at hand, not the one of training.
    config = _as_it_is(with_overrides(replace(stored, parallel=ParallelSection()), overrides))
    setup = build(config, run_dir=run_dir)
    # What is restored has the shapes of the run as it was trained, whatever environment it is now put in.
    families = [f for f in ("first_turn", "trajectory", "turn") if getattr(stored.diagnosis, f"{f}_enabled")]

    def fresh(params: Params, key: jax.Array) -> RunState:
        state = init_state(
            setup.model,
            params,
            stored.optim,
            lora=stored.model.lora,
            critic=stored.algorithm.uses_critic,
            key=key,
            form=stored.critic,
        )
        return RunState(state, empty_ema(tuple(families)))

    like = abstract(jax.eval_shape(fresh, setup.params, jax.random.key(0)), setup.model)
    checkpoints = Checkpoints(run_dir, read_only=True)
    try:
        restored, _ = checkpoints.restore(like, step, base=setup.base_fingerprint)
    finally:
        checkpoints.close()
    base = setup.params if stored.model.lora is not None else None
    parts = restored.train.trainable
    return Policy(setup, {"policy": parts["policy"]}, base, parts.get("critic"), run_dir)


def _as_it_is(config: Config) -> Config:
    """Without the warm start, which is over or never will be: not every environment has the teacher that it needs."""
    return replace(config, warm_start=replace(config.warm_start, steps=0, reading_steps=0))


@dataclass(frozen=True)
class Weights:
    """A policy without an environment: parameters, adapters over them (or None), and where the model came from."""

    model: ModelConfig
    params: Params
    tokenizer: AnyTokenizer | None
    adapters: dict[str, Any] | None = None
    lora: LoraConfig | None = None
    origin: Path | None = None  # folder or GGUF file that the model, or the run's model, was read from

    def merged(self) -> Params:
        """The policy's full parameters."""
        trainable = {"policy": self.params if self.lora is None else self.adapters}
        return policy_params(trainable, self.params, self.lora)


def load_weights(source: str, *, step: int | None = None, dtype: str = "float32") -> Weights:
    """A run directory (its checkpoint `step`, default the newest) or a model. Errors as of `load_policy`.

    `dtype` is the compute dtype of a model; a run keeps its own.
    """
    if is_run(source):
        policy = load_policy(source, [], step=step)
        setup, section = policy.setup, policy.setup.config.model
        origin = _origin(section.path)
        trained = policy.trainable["policy"]
        if section.lora is None:
            return Weights(setup.model, trained, setup.tokenizer, origin=origin)
        return Weights(setup.model, setup.params, setup.tokenizer, trained, section.lora, origin)
    if step is not None:
        raise CheckpointError(f"{source}: --step belongs to a run directory, and this is none")
    origin = locate(source)
    model, params, tokenizer = load_model(origin, dtype=dtype)
    return Weights(model, params, tokenizer, origin=origin)


def _origin(path: str | None) -> Path | None:
    """The files behind `model.path`, through any runs between; None for a policy from scratch."""
    while path is not None and is_run(path):
        path = load_config(Path(path) / "config.yaml").model.path
    return None if path is None else locate(path)


@dataclass(frozen=True)
class Diagnosis:
    """Metrics by name, and traces: each with its prompt's group, its text and its log-probs under every prompt."""

    metrics: dict[str, float]
    traces: list[dict[str, Any]]


def diagnose_policy(policy: Policy, *, show: int = 8) -> Diagnosis:
    """Rolls out one training-shaped batch and diagnoses it, every family."""
    setup = policy.setup
    config, lora = setup.config, setup.config.model.lora
    key = jax.random.fold_in(jax.random.key(config.run.seed), 1)
    temperature = config.rollout.temperature
    traj = rollout_program(
        policy.trainable, policy.base, *setup.tables("train"), key, draw_levels(setup, 1), temperature,
        spec=setup.rollout_spec, group_size=config.rollout.group_size, lora=lora,
    )  # fmt: skip
    metrics, _, samples = diagnosis_program(
        policy.trainable, policy.base, traj, jax.random.fold_in(key, 7), empty_ema(setup.diagnosis_spec.families),
        temperature, spec=setup.diagnosis_spec, lora=lora,
    )  # fmt: skip
    measured = metrics | episode_metrics(traj) | tag_metrics(traj, setup.shares)
    values = {n: float(v) for n, v in jax.device_get(measured).items()}
    traces: list[dict[str, Any]] = []
    if "first_turn" in samples:
        part = setup.parts[0]  # token ids are the same in all
        sample, scores = jax.device_get(samples["first_turn"])
        host = jax.device_get(traj)
        for row in np.flatnonzero(sample.chosen)[:show]:
            episode = int(sample.episode[row])
            start, end = int(host.think_start[episode, 0]), int(host.think_end[episode, 0])
            group = episode // traj.group_size
            traces.append(
                {
                    "group": group,
                    "member": episode % traj.group_size,
                    "tokens": end - start,
                    "reasoning": part.env.text_of(part.train, host.tokens[episode, start:end]),
                    "own_logprob": float(scores[row, group]),
                    "best_prompt": int(np.argmax(scores[row])),
                    "logprobs": [round(float(s), 3) for s in scores[row]],
                }
            )
    return Diagnosis(values, traces)
