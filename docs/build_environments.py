"""Writes the table of tags in docs/environments.md: `make docs`. A test fails while it is out of date.

What cannot be read from the registry (the state, chance, the data) is written here, by class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import envs_jax

PAGE = Path(__file__).with_name("environments.md")
BEGIN, END = "<!-- table of tags, made by build_environments.py -->\n", "<!-- end of table -->\n"

# Class: what the state is, what is drawn in a step, where the levels come from.
FACTS = {
    "Bandit": ("a pair of trades, the arm pulled", "the risky arm's pay", "20 pairs of names"),
    "FrozenLake": ("the player's cell on a board of holes", "slipping", "random solvable boards"),
    "Sokoban": ("player and boxes in a room", "nothing", "random solvable rooms"),
    "Game2048": ("16 exponents, the score", "the new tile", "random boards of two tiles"),
    "RubiksCube": ("24 stickers", "nothing", "random scrambles"),
    "Sudoku": ("the grid, the last action's fate", "nothing", "random puzzles with one solution, by logic"),
    "Countdown": ("numbers and a target", "nothing", "random solvable instances, or a table"),
    "MetaMathQA": ("a question, tries so far", "nothing", "word problems made here, or a table"),
    "SearchQA": ("a question, the last passages found", "nothing", "an encyclopedia made here, or a corpus"),
    "WebShop": ("the shop's page, options chosen", "nothing", "a catalogue made here, or the public one"),
    "DeepCoder": ("a programming problem", "nothing", "problems made here, or a table"),
}
# What an action without a fixed set of names looks like.
FORMS = {
    "Bandit": "the arm's name",
    "Sudoku": "`place 5 at row 1 col 2`, `1,2,5`, `clear row 1 col 2`",
    "Countdown": "`(1 + 2) * 3`",
    "MetaMathQA": "the answer",
    "SearchQA": "`search[words]`, `finish[answer]`",
    "WebShop": "`search[words]`, `click[what the page shows]`",
    "DeepCoder": "a Python program",
}


def number(value: float) -> str:
    return f"{value:g}".replace("-", "\u2212")


def rows() -> Iterator[str]:
    """Lines of the table."""
    yield "| tag | state | actions | reward of an action | turns \u00d7 actions, in all | chance | levels |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for tag in envs_jax.registered():
        spec = envs_jax.spec(tag)
        env, turn = spec.factory(**spec.env), envs_jax.TurnConfig(**spec.turn)
        name = type(env).__name__
        if name not in FACTS:
            raise SystemExit(f"{tag}: add {name} to FACTS in {Path(__file__).name}")
        state, chance, levels = FACTS[name]
        actions = ", ".join(env.action_names) or FORMS.get(name, "text")
        low, high = map(number, env.reward_range)
        limits = f"{turn.max_turns} \u00d7 {turn.max_actions_per_turn}, {turn.max_actions_per_traj}"
        cells = (f"`{tag}`", state, actions, f"{low} to {high}", limits, chance, levels)
        yield f"| {' | '.join(cells)} |"


def build(page: str) -> str:
    """The page with its table made anew."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + "\n" + "\n".join(rows()) + "\n\n" + END + tail


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    if "--check" not in sys.argv:
        PAGE.write_text(build(page), encoding="utf-8")
    elif page != build(page):
        sys.exit(f"{PAGE} is out of date: run `make docs`")
