"""From trajectories to collapse metrics: which reasoning is scored under which prompts, in one program."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from ragen_jax.estimators import (
    CollapseEma,
    PairSample,
    collapse_metrics_rows,
    pair_scores,
    sample_first_turn,
    sample_trajectories,
    sample_turns,
)
from ragen_jax.models import ModelConfig, Params
from ragen_jax.rl.layout import whole_everywhere
from ragen_jax.rollout import Trajectories
from ragen_jax.rollout.windows import gather_runs
from ragen_jax.scoring import Contexts, Traces, cross_score

FAMILIES = {
    "first_turn": "collapse_first_turn_sample",
    "trajectory": "collapse_trajectory_sample",
    "turn": "collapse_turn_sample",
}


@dataclass(frozen=True)
class DiagnosisSpec:
    """Static description of a diagnosis. `families` is a subset of first_turn, trajectory, turn."""

    model: ModelConfig
    valid_vocab: int
    prompt_capacity: int  # slots that hold any first prompt
    max_trace: int  # most tokens of one reasoning span
    num_samples: int = 64
    families: tuple[str, ...] = ("first_turn", "trajectory")
    ema_decay: float = 0.9
    std_eps: float = 1e-3


def empty_ema(families: tuple[str, ...]) -> dict[str, CollapseEma]:
    """The moving averages before the first diagnosis, one a family."""
    return {family: CollapseEma.empty() for family in families}


def equal_rows(tokens: Int[Array, "N L"], length: Int[Array, "N"]) -> Int[Array, "N"]:
    """For each row, the first row with the same length and the same tokens[:length]: the class of equal prompts."""
    inside = jnp.arange(tokens.shape[1]) < length[:, None]
    masked = jnp.where(inside, tokens, -1)
    same = jnp.all(masked[:, None] == masked[None], axis=-1)
    return jnp.argmax(same, axis=1)


def gather_traces(traj: Trajectories, sample: PairSample, most: int) -> Traces:
    """Reasoning spans of the sampled turns, [S, 1, most]; places not chosen have length 0."""
    start = traj.think_start[sample.episode, sample.turn]
    length = jnp.where(sample.chosen, traj.think_end[sample.episode, sample.turn] - start, 0)
    slots = start[:, None] + jnp.arange(most)
    tokens = jnp.take_along_axis(
        traj.tokens[sample.episode], jnp.minimum(slots, traj.tokens.shape[1] - 1), axis=1
    )
    inside = jnp.arange(most) < length[:, None]
    return Traces(jnp.where(inside, tokens, 0)[:, None], length[:, None])


def diagnose(
    params: Params,
    traj: Trajectories,
    key: Array,
    ema: dict[str, CollapseEma],
    *,
    spec: DiagnosisSpec,
    temperature: float | Array = 1.0,
) -> tuple[
    dict[str, Float[Array, ""]], dict[str, CollapseEma], dict[str, tuple[PairSample, Float[Array, "R N"]]]
]:
    """Cross-scores a sample of reasoning and estimates everything in the paper's Table 1. Pure; jit with `spec` static.

    The first-turn family scores first reasonings under the groups' prompts; the other two give each drawn turn its own
    column. X of a turn is everything that it was sampled under; Z its think span. Returns metrics under the reference's
    names, the new moving averages, and for each family the sample with its cross-scores.
    """
    traj = whole_everywhere(traj, spec.model)
    valid = (traj.think_end > traj.think_start) & traj.taken
    metrics: dict[str, Array] = {}
    new_ema, samples = {}, {}
    for index, family in enumerate(spec.families):
        family_key = jax.random.fold_in(key, index)
        if family == "first_turn":
            sample = sample_first_turn(family_key, valid, spec.num_samples)
            columns = jnp.arange(0, traj.tokens.shape[0], traj.group_size)
            contexts = Contexts(traj.tokens[columns, : spec.prompt_capacity], traj.prompt_end[columns, 0])
            own = sample.episode // traj.group_size
            column_valid = jnp.ones(len(columns), bool)
        else:
            draw = sample_trajectories if family == "trajectory" else sample_turns
            sample = draw(family_key, valid, spec.num_samples)
            prompt_end = jnp.maximum(
                traj.prompt_end[sample.episode, sample.turn], 1
            )  # 0 where nothing is chosen
            contexts = Contexts(traj.tokens[sample.episode], prompt_end)
            if traj.run_start is not None and traj.run_length is not None:
                runs = (x[sample.episode, sample.turn] for x in (traj.run_start, traj.run_length))
                start, count = (jnp.where(sample.chosen[:, None], x, 0) for x in runs)
                contexts = Contexts(
                    gather_runs(traj.tokens[sample.episode], start, count, traj.prompt_slots),
                    jnp.maximum(jnp.sum(count, axis=1), 1),
                )
            own = jnp.arange(len(sample.episode))
            column_valid = sample.chosen
        traces = gather_traces(traj, sample, spec.max_trace)
        scores = cross_score(
            params, spec.model, contexts, traces, temperature=temperature, valid_vocab=spec.valid_vocab
        )[:, 0]
        lengths = traces.length[:, 0]
        pairs = pair_scores(
            scores, own, lengths, sample.chosen, column_class=equal_rows(contexts.tokens, contexts.length),
            column_valid=column_valid,
        )  # fmt: skip
        values, new_ema[family] = collapse_metrics_rows(
            pairs, ema[family], std_eps=spec.std_eps, ema_decay=spec.ema_decay,
            bootstrap_key=jax.random.fold_in(family_key, 1),
        )  # fmt: skip
        metrics |= {f"{FAMILIES[family]}/{name}": value for name, value in values.items()}
        samples[family] = (sample, scores)
    return whole_everywhere((metrics | thinking_metrics(traj, valid), new_ema, samples), spec.model)


def thinking_metrics(traj: Trajectories, valid: Bool[Array, "B T"]) -> dict[str, Float[Array, ""]]:
    """Share of turns (and of first turns) with valid reasoning, and its mean length in tokens."""
    taken, first = jnp.sum(traj.taken), traj.tokens.shape[0]
    length = jnp.where(valid, traj.think_end - traj.think_start, 0)
    first_valid = jnp.sum(valid[:, 0])
    return {
        "collapse/valid_thinking_rate": jnp.sum(valid) / jnp.maximum(taken, 1),
        "collapse/reasoning_length": jnp.sum(length) / jnp.maximum(jnp.sum(valid), 1),
        "collapse/first_turn_num_total": jnp.float32(first),
        "collapse/first_turn_num_valid": first_valid.astype(jnp.float32),
        "collapse/first_turn_valid_rate": first_valid / first,
    }
