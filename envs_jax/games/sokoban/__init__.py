"""Sokoban: rooms of any size and number of boxes, generated on device."""

from envs_jax.games.sokoban.env import Sokoban, SokobanParams, SokobanState
from envs_jax.games.sokoban.generator import Rooms

__all__ = ["Rooms", "Sokoban", "SokobanParams", "SokobanState"]
