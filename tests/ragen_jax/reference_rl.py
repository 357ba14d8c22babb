"""Advantages of ragged batches in plain NumPy loops, written from the formulas, in double precision."""

from __future__ import annotations

import numpy as np

from ragen_jax.rl import Objective
from ragen_jax.rollout import SAMPLED, Trajectories


def slots_of(traj: Trajectories, row: int) -> list[int]:
    return [int(s) for s in np.flatnonzero(np.asarray(traj.role[row]) == SAMPLED)]


def turn_ends(traj: Trajectories, row: int) -> list[int]:
    return [int(traj.turn_end[row, t]) for t in range(int(traj.turns[row]))]


def rewards_by_slot(traj: Trajectories, row: int, objective: Objective) -> dict[int, float]:
    """Reward of each sampled slot."""
    total = np.asarray(traj.reward, np.float64) + np.asarray(traj.penalty, np.float64)
    out = dict.fromkeys(slots_of(traj, row), 0.0)
    ends = turn_ends(traj, row)
    for t, end in enumerate(ends):
        out[end if objective.use_turn_scores else ends[-1]] += total[row, t]
    return out


def gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """The definition: discounted sums of temporal differences."""
    n = len(rewards)
    after = [*values[1:], 0.0]
    deltas = [rewards[i] + gamma * after[i] - values[i] for i in range(n)]
    return [sum((gamma * lam) ** (k - i) * deltas[k] for k in range(i, n)) for i in range(n)]


def row_advantages(
    traj: Trajectories, row: int, values: np.ndarray, objective: Objective
) -> dict[int, float]:
    """Of estimators that need nothing but the row, before whitening."""
    slots, rewards = slots_of(traj, row), rewards_by_slot(traj, row, objective)
    if objective.adv_estimator == "reinforce_plus_plus":
        r = [rewards[s] for s in slots]
        n = len(slots)
        return {s: sum(objective.gamma ** (k - i) * r[k] for k in range(i, n)) for i, s in enumerate(slots)}
    value = {s: float(values[row, s]) for s in slots}
    if objective.adv_estimator == "gae":
        out = gae([rewards[s] for s in slots], [value[s] for s in slots], objective.gamma, objective.lam)
        return dict(zip(slots, out, strict=True))
    ends = turn_ends(traj, row)
    by_turn = gae(
        [rewards[e] for e in ends], [value[e] for e in ends], objective.high_level_gamma, objective.lam
    )
    found: dict[int, float] = {}
    for t, end in enumerate(ends):
        inside = [s for s in slots if int(traj.turn[row, s]) == t]
        r = [rewards[s] for s in inside]
        assert inside[-1] == end
        r[-1] = by_turn[t] + value[end]
        out = gae(r, [value[s] for s in inside], objective.gamma, objective.lam)
        found |= dict(zip(inside, out, strict=True))
    return found


def group_advantages(scores: np.ndarray, objective: Objective) -> np.ndarray:
    """Of estimators that compare the members of a group, [P, G], before whitening."""
    out = np.zeros(scores.shape)
    for i, group in enumerate(np.asarray(scores, np.float64)):
        n = len(group)
        if n == 1:
            out[i] = group / (1 + 1e-6) if objective.adv_estimator == "grpo" else group
        elif group.max() - group.min() <= objective.constant_reward_tol:
            out[i] = 0
        elif objective.adv_estimator == "rloo":
            out[i] = [r - (group.sum() - r) / (n - 1) for r in group]
        elif objective.adv_estimator == "grpo" and objective.norm_adv_by_std_in_grpo:
            out[i] = (group - group.mean()) / (np.std(group, ddof=1) + 1e-6)
        else:
            out[i] = group - group.mean()
    return out


def advantages(traj: Trajectories, values: np.ndarray, objective: Objective, kept: np.ndarray) -> np.ndarray:
    """[B, L]: the whole, whitened where the estimator is."""
    batch, slots = traj.tokens.shape
    out, mask = np.zeros((batch, slots)), np.zeros((batch, slots), bool)
    scores = np.array(
        [
            float(
                sum(float(traj.reward[b, t]) + float(traj.penalty[b, t]) for t in range(int(traj.turns[b])))
            )
            for b in range(batch)
        ]
    )
    if objective.group_relative:
        grouped = group_advantages(scores.reshape(-1, traj.group_size), objective).reshape(-1)
    for b in range(batch):
        if not kept[b]:
            continue
        mask[b, slots_of(traj, b)] = True
        if objective.group_relative:
            out[b, mask[b]] = grouped[b]
        else:
            for s, a in row_advantages(traj, b, values, objective).items():
                out[b, s] = a
    whitens = objective.adv_estimator.startswith("reinforce") or (
        objective.uses_critic and objective.whiten_advantages
    )
    if whitens and mask.sum():
        x = out[mask]
        var = ((x - x.mean()) ** 2).sum() / max(len(x) - 1, 1)
        out[mask] = (x - x.mean()) / np.sqrt(var + 1e-8)
    return out
