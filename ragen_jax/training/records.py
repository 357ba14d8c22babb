"""Trajectories as text for people: one JSON object an episode."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from envs_jax.turn import TurnEnv, TurnParams
from ragen_jax.rollout import Trajectories
from ragen_jax.training.metrics import finite, write_atomically


def episode_records(
    traj: Trajectories,
    env: TurnEnv,
    params: TurnParams,
    rows: Sequence[int],
    *,
    step: int,
    split: str,
    keep: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """The given rows as dictionaries; the text is that of the ids. `keep`: what the filter kept, by row."""
    host = jax.device_get(jax.tree.map(lambda x: x[np.asarray(rows)], traj))
    separator = env.config.action_sep
    records = []
    for i, row in enumerate(rows):

        def text(start: int, stop: int, i: int = i) -> str:
            return env.text_of(params, host.tokens[i, start:stop])

        turns, given_from = [], 0
        for t in range(int(host.turns[i])):
            begin, end = int(host.prompt_end[i, t]), int(host.turn_end[i, t]) + 1
            response = text(begin, end)
            answer = (
                response.partition("<answer>")[2].partition("</answer>")[0] if host.format_ok[i, t] else ""
            )
            turns.append(
                {
                    "prompt": text(given_from, begin),
                    "reasoning": text(int(host.think_start[i, t]), int(host.think_end[i, t])),
                    "answer": answer.strip(),
                    "response": response,
                    "actions": [a.strip() for a in answer.split(separator) if a.strip()][
                        : env.config.max_actions_per_turn
                    ],
                    "reward": float(host.reward[i, t]),
                    "penalty": float(host.penalty[i, t]),
                    "valid": bool(host.think_end[i, t] > host.think_start[i, t]),
                }
            )
            given_from = end
        group = row // traj.group_size
        records.append(
            {
                "step": step,
                "split": split,
                "tag": env.tag,
                "group": int(group),
                "member": int(row % traj.group_size),
                "level": int(host.level[i]),
                "success": bool(host.success[i]),
                "reward": float(np.sum(host.reward[i]) + np.sum(host.penalty[i])),
                "kept": None if keep is None else bool(keep[row]),
                "turns": turns,
            }
        )
    return records


def write_records(run_dir: Path, records: list[dict[str, Any]]) -> Path:
    """Writes records of one split and step to rollouts/<split>_<step>.jsonl."""
    first = records[0]
    path = run_dir / "rollouts" / f"{first['split']}_{first['step']:06d}.jsonl"
    write_atomically(path, "".join(json.dumps(finite(r), ensure_ascii=False) + "\n" for r in records))
    return path
