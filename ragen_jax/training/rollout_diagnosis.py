"""The diagnosis of rollouts that come from a file, with any model as the scorer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ragen_jax.estimators import collapse_metrics_rows, pair_scores, reward_variance, spread_stats
from ragen_jax.scoring import Contexts, Traces, cross_score
from ragen_jax.training.policy import Diagnosis, Weights
from ragen_jax.training.rollout_files import Pair, Rollout, RolloutFileError


def diagnose_rollouts(
    rollouts: Sequence[Rollout],
    weights: Weights,
    *,
    samples: int = 128,
    temperature: float = 1.0,
    seed: int = 0,
    show: int = 8,
) -> Diagnosis:
    """Cross-scores at most `samples` of the reasoning traces under each other's contexts.

    Columns are the distinct contexts of the drawn traces, each weighted by how many traces have it; so the
    mixture is over the traces' own contexts, and a prompt's copies are one prompt. Metrics: `collapse/..` with
    the names of `collapse_metrics`, `rollouts/..` counts and mean reward, and `reward_variance/..` over groups
    of at least two rewards, where there are any. Raises RolloutFileError when nothing can be estimated.
    """
    pairs = [pair for rollout in rollouts for pair in rollout.pairs]
    if not pairs:
        raise RolloutFileError(
            "no response has reasoning between the tags; name the tags, or take whole responses"
        )
    drawn = np.sort(np.random.default_rng(seed).permutation(len(pairs))[:samples])
    chosen = [pairs[i] for i in drawn]
    columns = Counter(pair.context for pair in chosen)
    if len(columns) < 2:
        raise RolloutFileError("all reasoning has the same context; the measures compare at least two")
    contexts = list(columns)
    _check_lengths(chosen, weights.model.max_position_embeddings)
    tokens, length = _rows(contexts)
    trace_tokens, trace_length = _rows([pair.trace for pair in chosen])
    assert weights.tokenizer is not None
    scores = cross_score(
        weights.merged(), weights.model, Contexts(tokens, length),
        Traces(trace_tokens[:, None], trace_length[:, None]), temperature=temperature,
        valid_vocab=weights.tokenizer.vocab_size,
    )[:, 0]  # fmt: skip
    place = {context: i for i, context in enumerate(contexts)}
    own = [place[pair.context] for pair in chosen]
    table = pair_scores(
        scores,
        jnp.asarray(own),
        trace_length,
        column_weight=jnp.asarray([float(columns[c]) for c in contexts]),
    )
    values, _ = collapse_metrics_rows(table, bootstrap_key=jax.random.key(seed))
    found = {f"collapse/{name}": float(value) for name, value in jax.device_get(values).items()}
    host = np.asarray(scores)
    number = {group: i for i, group in enumerate(dict.fromkeys(rollout.group for rollout in rollouts))}
    group_of = {rollout.line: number[rollout.group] for rollout in rollouts}
    traces = [
        {
            "line": pair.line,
            "turn": pair.turn,
            "group": group_of[pair.line],
            "tokens": len(pair.trace),
            "reasoning": weights.tokenizer.decode(pair.trace),
            "own_logprob": float(host[i, own[i]]),
            "best_line": chosen[own.index(int(np.argmax(host[i])))].line,
        }
        for i, pair in enumerate(chosen[:show])
    ]
    return Diagnosis(found | _counts(rollouts, pairs) | reward_metrics(rollouts), traces)


def reward_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean reward, and the spread of rewards within groups of any size from two on. Empty without rewards."""
    rewards: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.reward is not None:
            rewards[rollout.group].append(rollout.reward)
    if not rewards:
        return {}
    out = {"rollouts/reward_mean": float(np.mean([r for group in rewards.values() for r in group]))}
    by_size: dict[int, list[list[float]]] = defaultdict(list)
    for group in rewards.values():
        by_size[len(group)].append(group)
    singles = by_size.pop(1, [])
    out["rollouts/groups_of_one_reward"] = float(len(singles))
    if by_size:
        spread = jnp.concatenate([reward_variance(jnp.asarray(same)) for same in by_size.values()])
        stats = jax.device_get(spread_stats(spread))
        out |= {f"reward_variance/{name}": float(value) for name, value in stats.items()}
        out["reward_variance/groups"] = float(len(spread))
    return out


def _counts(rollouts: Sequence[Rollout], pairs: Sequence[Pair]) -> dict[str, float]:
    invalid = sum(rollout.invalid for rollout in rollouts)
    return {
        "rollouts/lines": float(len(rollouts)),
        "rollouts/groups": float(len({rollout.group for rollout in rollouts})),
        "rollouts/valid_thinking_rate": len(pairs) / (len(pairs) + invalid),
        "rollouts/reasoning_length": float(np.mean([len(pair.trace) for pair in pairs])),
    }


def _check_lengths(pairs: Sequence[Pair], limit: int) -> None:
    """Every trace is read under every context, so the longest of both must fit together."""
    context = max(pairs, key=lambda pair: len(pair.context))
    trace = max(pairs, key=lambda pair: len(pair.trace))
    needed = len(context.context) + len(trace.trace)
    if needed > limit:
        raise RolloutFileError(
            f"line {context.line} has a context of {len(context.context)} tokens and line {trace.line} reasoning of "
            f"{len(trace.trace)}; together they exceed the scorer's {limit} positions. Leave such lines out"
        )


def _rows(rows: Sequence[Sequence[int]]) -> tuple[Any, Any]:
    """Padded ids and lengths, int32."""
    length = np.asarray([len(row) for row in rows], np.int32)
    out = np.zeros((len(rows), int(length.max())), np.int32)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return jnp.asarray(out), jnp.asarray(length)
