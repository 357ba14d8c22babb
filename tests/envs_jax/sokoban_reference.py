"""Plain Python Sokoban for the tests: rooms as arrays of cell codes, search, text; and gym-sokoban itself."""

from __future__ import annotations

import sys
import types
from collections import deque
from typing import Any

import numpy as np
import pytest

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)


def room_arrays(env, params, state) -> tuple[np.ndarray, np.ndarray]:
    """`room_fixed` and `room_state` of one state, with the codes of gym-sokoban (no code 6)."""
    level = int(state.level)
    fixed = np.where(np.asarray(params.wall[level]), WALL, FLOOR)
    fixed[np.asarray(params.target[level])] = TARGET
    room = fixed.copy()
    for box in np.asarray(state.box):
        room[box] = BOX_ON_TARGET if fixed[box] == TARGET else BOX
    room[int(state.player)] = PLAYER
    return fixed.reshape(env.dim_room), room.reshape(env.dim_room)


def shortest(fixed: np.ndarray, room: np.ndarray, limit: int = 200_000) -> int:
    """Fewest moves that bring every box onto a target; -1 if there is no way."""
    targets = frozenset(map(tuple, np.argwhere(fixed == TARGET).tolist()))
    boxes = frozenset(map(tuple, np.argwhere((room == BOX) | (room == BOX_ON_TARGET)).tolist()))
    player = tuple(np.argwhere(room == PLAYER)[0].tolist())
    queue, seen = deque([(player, boxes, 0)]), {(player, boxes)}
    while queue:
        player, boxes, depth = queue.popleft()
        if boxes == targets:
            return depth
        for dr, dc in MOVES:
            ahead = (player[0] + dr, player[1] + dc)
            if fixed[ahead] == WALL:
                continue
            moved = boxes
            if ahead in boxes:
                beyond = (ahead[0] + dr, ahead[1] + dc)
                if fixed[beyond] == WALL or beyond in boxes:
                    continue
                moved = boxes - {ahead} | {beyond}
            if (ahead, moved) not in seen:
                seen.add((ahead, moved))
                queue.append((ahead, moved, depth + 1))
        assert len(seen) < limit
    return -1


def text(fixed: np.ndarray, room: np.ndarray, symbols: tuple[str, ...], form: str) -> str:
    """The state as a person reads it."""
    shown = np.where((room == PLAYER) & (fixed == TARGET), PLAYER_ON_TARGET, room)
    grid = "".join("".join(symbols[code] for code in row) + "\n" for row in shown)
    block = f"Board size: {room.shape[0]} rows x {room.shape[1]} cols (zero-indexed).\n"
    names = {
        TARGET: "Targets",
        BOX: "Boxes",
        BOX_ON_TARGET: "Boxes on target",
        PLAYER: "Player",
        PLAYER_ON_TARGET: "Player on target",
    }
    for code, name in names.items():
        cells = [tuple(map(int, cell)) for cell in np.argwhere(shown == code)]
        if cells:
            block += f"{name}: {', '.join(map(str, cells))}\n"
    return {"grid": grid, "coord": block, "grid_coord": f"Coordinates:\n{block}Grid Map:\n{grid}"}[form]


def gym_env(rows: int, cols: int, boxes: int, max_steps: int) -> Any:
    """gym-sokoban's environment without a room and without drawing; skips the test where it is missing."""
    if "pkg_resources" not in sys.modules:  # needed at import only, and gone from new setuptools
        stub = types.ModuleType("pkg_resources")
        stub.resource_filename = lambda package, name: str(  # type: ignore[attr-defined]
            __import__("pathlib").Path(sys.modules[package].__file__ or "").parent / name
        )
        sys.modules["pkg_resources"] = stub
    module = pytest.importorskip("gym_sokoban.envs.sokoban_env")
    env = module.SokobanEnv((rows, cols), max_steps=max_steps, num_boxes=boxes, reset=False)
    env.render = lambda mode="rgb_array", **_: None
    return env


def gym_load(env: Any, fixed: np.ndarray, room: np.ndarray) -> None:
    """Puts a room into gym-sokoban's environment, as its `reset` does."""
    env.room_fixed, env.room_state = fixed.copy(), room.copy()
    env.player_position = np.argwhere(room == PLAYER)[0]
    env.num_env_steps, env.reward_last = 0, 0
    env.boxes_on_target = int((room == BOX_ON_TARGET).sum())
