"""Sudoku against a plain Python game, a plain Python solver that counts solutions, and jumanji."""

from __future__ import annotations

import functools
import re

import canonical
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import text_agent

import envs_jax
from envs_jax.core import Span
from envs_jax.games.sudoku import Placement, Sudoku, SudokuState, fill_singles, generate_puzzles

Grid = tuple[int, ...]


def related(n: int) -> list[list[int]]:
    """Cells that share a row, a column or a box with each cell."""
    b = int(n**0.5)
    out = []
    for r in range(n):
        for c in range(n):
            same = {(r, k) for k in range(n)} | {(k, c) for k in range(n)}
            same |= {(r // b * b + i, c // b * b + j) for i in range(b) for j in range(b)}
            out.append([i * n + j for i, j in same - {(r, c)}])
    return out


def solutions(grid: Grid, n: int, limit: int = 2) -> list[Grid]:
    """Up to `limit` solutions by backtracking on the cell with the fewest digits left."""
    cells, peers, found = list(grid), related(n), []

    def search() -> None:
        best: list[int] | None = None
        at = -1
        for cell in range(n * n):
            if not cells[cell]:
                held = {cells[p] for p in peers[cell]}
                left = [d for d in range(1, n + 1) if d not in held]
                if best is None or len(left) < len(best):
                    best, at = left, cell
        if best is None:
            found.append(tuple(cells))
            return
        for digit in best:
            cells[at] = digit
            search()
            cells[at] = 0
            if len(found) >= limit:
                return

    search()
    return found


@functools.cache
def made(n: int, difficulty: str, count: int):
    env = Sudoku(grid_size=n, difficulty=difficulty, num_levels=count)
    return env, env.init_params(jax.random.key(5))


@pytest.mark.parametrize(("n", "difficulty", "empty"), [(9, "easy", 32), (9, "hard", 48), (4, "hard", 9)])
def test_puzzles_have_one_solution(n: int, difficulty: str, empty: int) -> None:
    env, params = made(n, difficulty, 24)
    assert env.empty_cells == empty
    given, solution = np.asarray(params.given), np.asarray(params.solution)
    assert np.all((given == 0).sum(1) == empty)
    for puzzle, grid in zip(given, solution, strict=True):
        assert solutions(tuple(puzzle.tolist()), n) == [tuple(grid.tolist())]
    if n == 9:  # there are but 288 grids of 4 x 4
        assert len({tuple(g) for g in solution.tolist()}) == 24


def test_grids_are_not_images_of_one_pattern() -> None:
    """A random grid has bands whose rows cut into different sets of three; shifted patterns never do."""
    _, params = made(9, "easy", 24)
    bands = np.asarray(params.solution).reshape(24, 3, 3, 3, 3)  # band, row, stack, column
    kinds = [len({frozenset(p) for row in band for p in row.tolist()}) for grid in bands for band in grid]
    assert max(kinds) > 3
    assert np.mean(kinds) > 5


def test_puzzles_depend_on_key_and_index_only() -> None:
    draw = lambda seed, n: generate_puzzles(jax.random.key(seed), count=n, box=2, empty=8)[0]  # noqa: E731
    many, few = (
        np.asarray(draw(0, 700)),
        np.asarray(draw(0, 40)),
    )  # more and fewer than are drawn for at a time
    np.testing.assert_array_equal(many[:40], few)
    assert np.any(np.asarray(draw(1, 40)) != few)


def test_singles_fill_nothing_that_is_not_forced() -> None:
    """On puzzles with several solutions, every digit filled in is that of all of them."""
    _, params = made(9, "easy", 24)
    rng = np.random.default_rng(0)
    grids = np.asarray(params.solution, np.int32).copy()
    grids[rng.random(grids.shape) < np.linspace(0.6, 0.78, 24)[:, None]] = 0
    filled = np.asarray(jax.jit(fill_singles, static_argnums=1)(grids, 3))
    several = 0
    for grid, out in zip(grids, filled, strict=True):
        found = solutions(tuple(grid.tolist()), 9, 12)
        several += len(found) > 1
        for cell in np.flatnonzero(out):
            assert {s[cell] for s in found} == {int(out[cell])}
        assert (len(found) == 1) or (out == 0).any()
    assert several > 4


@pytest.mark.parametrize(("n", "difficulty"), [(9, "easy"), (4, "hard")])
def test_episodes_equal_plain_python_move_by_move(n: int, difficulty: str) -> None:
    env, params = made(n, difficulty, 24)
    step = jax.jit(jax.vmap(env.transition, in_axes=(None, 0, 0, None)))
    state = jax.vmap(env.level, in_axes=(0, None))(jnp.arange(24), params)
    rng, peers = np.random.default_rng(1), related(n)
    given, solution = np.asarray(params.given), np.asarray(params.solution)
    grids = given.astype(int).tolist()
    live = np.ones(24, bool)
    seen = dict.fromkeys(("given", "rule", "same", "right", "wrong", "spoilt", "cleared", "won"), 0)
    for t in range(160):
        cell = rng.integers(0, n * n, 24)
        digit = rng.integers(0, n + 1, 24)
        for i in range(24):  # mostly sensible, so that some end
            open_ = [c for c in range(n * n) if grids[i][c] != solution[i, c]]
            if open_ and rng.random() < 0.5:
                cell[i] = rng.choice(open_)
                digit[i] = solution[i, cell[i]]
            elif rng.random() < 0.2:  # a legal wrong digit, half of the time where the right one stands
                spoils = rng.random() < 0.5
                legal = [
                    (c, d)
                    for c in range(n * n)
                    for d in range(1, n + 1)
                    if not given[i, c] and (grids[i][c] == solution[i, c]) == spoils
                    if d not in (solution[i, c], grids[i][c])
                    if all(grids[i][p] != d for p in peers[c])
                ]
                if legal:
                    cell[i], digit[i] = legal[rng.integers(len(legal))]
        out = jax.device_get(
            step(jax.random.key(t), state, Placement(cell.astype(np.int32), digit.astype(np.int32)), params)
        )
        for i in np.flatnonzero(live):
            grid, c, d = grids[i], int(cell[i]), int(digit[i])
            old, target = grid[c], int(solution[i, c])
            if given[i, c]:
                kind = "given"
            elif old == d:
                kind = "same"
            elif d and any(grid[p] == d for p in peers[c]):
                kind = "rule"
            else:
                kind = (
                    "cleared"
                    if d == 0
                    else "right"
                    if d == target
                    else "spoilt"
                    if old == target
                    else "wrong"
                )
                grid[c] = d
            valid = kind not in ("given", "same", "rule")
            won = grid == solution[i].tolist()
            reward = (int(d == target) - int(old == target) + 10 * won) if valid else -0.1
            assert out.state.grid[i].tolist() == grid
            assert out.reward[i] == pytest.approx(reward, abs=1e-6)
            assert (out.valid[i], out.effective[i]) == (valid, valid)
            assert (out.terminated[i], out.success[i]) == (won, won)
            right = sum(g == s and not f for g, s, f in zip(grid, solution[i], given[i], strict=True))
            assert out.metrics[i].tolist() == [grid.count(0), right]
            assert out.state.feedback[i] == (1 if valid else {"given": 2, "rule": 3, "same": 4}[kind])
            assert env.reward_range[0] <= reward <= env.reward_range[1]
            seen[kind] += 1
            seen["won"] += won
            live[i] = not won
        state = jax.tree.map(jnp.asarray, out.state)
    assert min(seen.values()) > 2, seen


def test_alternating_digits_earns_nothing() -> None:
    """RAGEN pays 0.5 for every legal wrong digit and 1 for the right one each time that it is placed."""
    env, params = made(9, "easy", 24)
    state, total = env.level(jnp.int32(0), params), 0.0
    cell = int(np.flatnonzero(np.asarray(params.given)[0] == 0)[0])
    target = int(params.solution[0, cell])
    step = jax.jit(env.transition)
    for digit in (target, 0, target, 0, target, 0):
        out = step(jax.random.key(0), state, Placement(jnp.int32(cell), jnp.int32(digit)), params)
        state, total = out.state, total + float(out.reward)
        assert bool(out.valid)
    assert total == 0.0


@pytest.mark.parity
def test_legal_digits_equal_jumanji() -> None:
    utils = pytest.importorskip("jumanji.environments.logic.sudoku.utils")
    env, params = made(9, "hard", 24)
    given = np.asarray(params.given, np.int32)
    mask = np.asarray(jax.jit(jax.vmap(utils.get_action_mask))(given.reshape(-1, 9, 9) - 1)).reshape(
        24, 81, 9
    )
    cell, digit = (
        jnp.asarray(x.ravel(), jnp.int32) for x in np.meshgrid(np.arange(81), np.arange(1, 10), indexing="ij")
    )
    step = jax.vmap(env.transition, in_axes=(None, None, 0, None))
    state = jax.vmap(env.level, in_axes=(0, None))(jnp.arange(24), params)
    out = jax.jit(jax.vmap(step, in_axes=(None, 0, None, None)))(
        jax.random.key(0), state, Placement(cell, digit), params
    )
    np.testing.assert_array_equal(np.asarray(out.valid).reshape(24, 81, 9), mask)
    solved = jax.jit(jax.vmap(utils.is_puzzle_solved))(
        np.asarray(params.solution, np.int32).reshape(-1, 9, 9) - 1
    )
    assert np.all(solved)


@pytest.mark.parity
def test_jumanji_puzzles_are_solved_by_singles_as_by_search() -> None:
    pytest.importorskip("jumanji")
    from importlib.resources import files

    path = files("jumanji.environments.logic.sudoku") / "data" / "1000_very_easy_puzzles.npy"
    puzzles = np.load(str(path)).reshape(-1, 81)[:60].astype(np.int32)
    filled = np.asarray(jax.jit(fill_singles, static_argnums=1)(puzzles, 3))
    full = (filled > 0).all(1)
    assert full.mean() > 0.5
    for puzzle, grid in zip(puzzles[full][:20], filled[full], strict=False):
        assert solutions(tuple(puzzle.tolist()), 9) == [tuple(grid.tolist())]
    env = Sudoku(num_levels=3)
    params = env.params_from_puzzles(puzzles[full][:3])
    np.testing.assert_array_equal(params.solution, filled[full][:3])
    with pytest.raises(ValueError, match="singles"):
        env.params_from_puzzles(np.zeros((3, 81), int))
    with pytest.raises(ValueError, match="expected"):
        env.params_from_puzzles(puzzles[:2])


def text_of(grid: np.ndarray, given: np.ndarray, n: int) -> str:
    b, out = int(n**0.5), ""
    for r in range(n):
        if r and r % b == 0:
            out += ("------+-------+------" if n == 9 else "----+----") + "\n"
        cells = []
        for c in range(n):
            if c and c % b == 0:
                cells.append("|")
            d = grid[r * n + c]
            cells.append(f"[{d}]" if given[r * n + c] else str(d) if d else ".")
        out += " ".join(cells) + "\n"
    return f"{out}Empty cells: {int((grid == 0).sum())}.\n"


SAID = ("", "done", "refused, that cell is given", "refused, that digit is already in the row, column or box",
        "refused, it would change nothing")  # fmt: skip


@pytest.mark.parametrize("n", [9, 4])
def test_text_equals_independent_formatter(n: int) -> None:
    env, params = made(n, "easy" if n == 9 else "hard", 24)
    rng = np.random.default_rng(0)
    given, solution = np.asarray(params.given, np.int32), np.asarray(params.solution, np.int32)
    grids = np.where(rng.random(given.shape) < 0.5, given, solution)
    feedback = np.arange(24, dtype=np.int32) % 5
    state = SudokuState(jnp.arange(24, dtype=jnp.int32), jnp.asarray(grids), jnp.asarray(feedback))
    phrases = env.phrases()
    for i, ids in enumerate(np.asarray(jax.vmap(env.observe, in_axes=(0, None))(state, params))):
        pieces = [phrases[k] for k in ids if k >= 0]
        last = f"Last action: {SAID[feedback[i]]}.\n" if feedback[i] else ""
        assert "".join(pieces) == text_of(grids[i], given[i], n) + last
        canonical.assert_borders(pieces)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("place 5 at row 1 col 2", (1, 5)),
        ("place 9 at row 9 column 9", (80, 9)),
        ("place 5 at row 3, col 2", (19, 5)),
        ("place 5  at row 3 , column 2", (19, 5)),
        ("1,2,5", (1, 5)),
        ("1, 2 ,5", (1, 5)),
        ("clear row 2 col 1", (9, 0)),
        ("clear row 2, column 1", (9, 0)),
        ("place 0 at row 1 col 2", None),
        ("place 5 at row 0 col 2", None),
        ("0,2,5", None),
        ("1,2", None),
        ("1,2,5,6", None),
        ("12,2,5", None),
        ("1,2,5.", None),
        ("place five at row 1 col 2", None),
        ("place 5 at col 2 row 1", None),
        ("place 5 at row 1 col 2 and more of it, that is too long", None),
        ("", None),
        ("#,#,#", None),
    ],
)
def test_parse(text: str, want: tuple[int, int] | None) -> None:
    placement, known = parse_text(text)
    assert known == (want is not None)
    assert (placement == want) if want else placement == (0, 0)


@functools.cache
def _parser():
    env, params = made(9, "easy", 24)
    state = env.level(jnp.int32(0), params)
    return jax.jit(lambda data, length: env.parse(Span(data, length), state, params)), env.answer_bytes


def parse_text(text: str) -> tuple[tuple[int, int], bool]:
    parse, width = _parser()
    raw = text.encode()
    data = np.zeros(width, np.uint8)
    data[: min(len(raw), width)] = list(raw[:width])
    placement, known = parse(data, np.int32(len(raw)))
    return (int(placement.cell), int(placement.digit)), bool(known)


@pytest.mark.parametrize("tag", ["SimpleSudoku", "MediumSudoku"])
def test_a_solver_that_reads_the_text_fills_every_grid(tag: str) -> None:
    env, params = envs_jax.make(tag, num_levels=24)
    known: dict[Grid, Grid] = {}

    def agent(states: list[str]) -> list[str]:
        answers = []
        for state in states:
            rows = [line for line in state.splitlines() if re.fullmatch(r"[][ .|\d]+", line)]
            cells = [w for row in rows for w in row.replace("|", " ").split()]
            puzzle = tuple(int(w[1]) if w[0] == "[" else 0 for w in cells)
            known[puzzle] = known.get(puzzle) or solutions(puzzle, 9)[0]
            todo = [i for i, w in enumerate(cells) if w == "."][: env.config.max_actions_per_turn]
            forms = ("{r},{c},{d}", "place {d} at row {r} col {c}")
            form = forms[len(todo) <= 2]
            answers.append(
                " || ".join(form.format(r=i // 9 + 1, c=i % 9 + 1, d=known[puzzle][i]) for i in todo)
            )
        return answers

    played = text_agent.play(env, params, agent, 24)
    assert played["success"].mean() == 1.0
    assert played["executed"].tolist() == [env.env.empty_cells] * 24
    assert played["reward"].tolist() == pytest.approx([env.env.empty_cells + 10.0] * 24)


@pytest.mark.parametrize(
    "bad",
    [
        {"grid_size": 16},
        {"difficulty": "esay"},
        {"invalid_score": 1.0},
        {"correct_score": -1.0},
        {"num_levels": 0},
    ],
)
def test_bad_configuration_names_the_field(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sudoku(**bad)
