"""Sudoku: the environment, its puzzles, and a solver by logic."""

from envs_jax.games.sudoku.env import Placement, Sudoku, SudokuParams, SudokuState
from envs_jax.games.sudoku.generator import generate_puzzles
from envs_jax.games.sudoku.solver import fill_singles

__all__ = ["Placement", "Sudoku", "SudokuParams", "SudokuState", "fill_singles", "generate_puzzles"]
