"""FrozenLake against Gymnasium, an independent search and an independent formatter."""

from __future__ import annotations

import itertools
from collections import deque

import canonical
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.core import Span
from envs_jax.games.frozen_lake import ACTIONS, FrozenLake, FrozenLakeState, slip

MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))


def boards(env: FrozenLake, params) -> list[list[str]]:
    """Boards of the pool as rows of S, F, H, G."""
    n, out = env.size, []
    for holes, start, goal in zip(
        *map(np.asarray, (params.hole_rows, params.start, params.goal)), strict=True
    ):
        tiles = [["H" if holes[r] >> c & 1 else "F" for c in range(n)] for r in range(n)]
        tiles[start // n][start % n] = "S"
        tiles[goal // n][goal % n] = "G"
        out.append(["".join(row) for row in tiles])
    return out


def shortest(board: list[str]) -> int:
    """Moves from S to G around H; -1 if there is no way."""
    n = len(board)
    start = next((r, c) for r in range(n) for c in range(n) if board[r][c] == "S")
    queue, seen = deque([(start, 0)]), {start}
    while queue:
        (r, c), d = queue.popleft()
        if board[r][c] == "G":
            return d
        for dr, dc in MOVES:
            there = (r + dr, c + dc)
            if (
                0 <= there[0] < n
                and 0 <= there[1] < n
                and board[there[0]][there[1]] != "H"
                and there not in seen
            ):
                seen.add(there)
                queue.append((there, d + 1))
    return -1


def expected_text(env: FrozenLake, board: list[str], cell: int) -> str:
    n, player = env.size, divmod(cell, env.size)
    at = {k: [(r, c) for r in range(n) for c in range(n) if board[r][c] == k] for k in "SGH"}
    symbols = [[{"H": "O", "G": "G"}.get(t, "_") for t in row] for row in board]
    here = board[player[0]][player[1]]
    symbols[player[0]][player[1]] = {"H": "X", "G": "√"}.get(here, "P")
    grid = "".join("".join(row) + "\n" for row in symbols)
    label = {"H": "Player in hole", "G": "Player on goal"}.get(here, "Player")
    lines = [("Start", at["S"]), ("Goal", at["G"]), (label, [player]), ("Holes", at["H"])]
    coord = f"Board size: {n} rows x {n} cols (zero-indexed).\n"
    coord += "".join(f"{name}: {', '.join(map(str, cells))}\n" for name, cells in lines if cells)
    if env.observation_format == "grid":
        return grid
    return coord if env.observation_format == "coord" else f"Coordinates:\n{coord}Grid Map:\n{grid}"


def fragments(env, ids) -> list[str]:
    phrases, ids = env.phrases(), [int(i) for i in ids]
    used = [i for i in ids if i >= 0]
    assert ids == used + [-1] * (len(ids) - len(used)), "padding only at the end"
    return [phrases[i] for i in used]


@pytest.mark.parity
@pytest.mark.parametrize(("size", "rate"), [(4, 0.8), (4, 0.0), (4, 1.0), (5, 1 / 3)])
def test_every_transition_equals_gymnasium(size: int, rate: float) -> None:
    """All boards, live cells, actions and a grid of draws, with the draws put into Gymnasium's generator."""
    toy = pytest.importorskip("gymnasium.envs.toy_text.frozen_lake")
    env = FrozenLake(size=size, success_rate=rate, p=0.7, num_levels=12)
    params = env.init_params(jax.random.key(1))
    draws = np.asarray(
        [0.0, 0.05, 0.0999, 0.101, 0.3, 0.4999, 0.5, 0.65, 0.7501, 0.8999, 0.9001, 0.9999], np.float32
    )
    cases, expected = [], []

    class Given:
        def random(self) -> float:
            return float(self.value)

    generator = Given()
    for level, board in enumerate(boards(env, params)):
        reference = toy.FrozenLakeEnv(desc=board, is_slippery=True, success_rate=rate)
        reference.np_random = generator
        for cell, action, draw in itertools.product(range(size * size), range(4), draws):
            if board[cell // size][cell % size] in "GH":
                continue
            reference.s, generator.value = cell, draw
            there, reward, done, _, _ = reference.step(action)
            cases.append((level, cell, action, draw))
            expected.append((there, reward, done, board[there // size][there % size] == "G"))
    level, cell, action, draw = (np.asarray(x) for x in zip(*cases, strict=True))
    state = FrozenLakeState(jnp.asarray(level, jnp.int32), jnp.asarray(cell, jnp.int32))
    out = jax.jit(jax.vmap(env.move, in_axes=(0, 0, 0, None)))(
        state, jnp.asarray(action), jnp.asarray(draw), params
    )
    there, reward, done, success = (np.asarray(x) for x in zip(*expected, strict=True))
    np.testing.assert_array_equal(out.state.cell, there)
    np.testing.assert_array_equal(out.reward, reward)
    np.testing.assert_array_equal(out.terminated, done)
    np.testing.assert_array_equal(out.success, success)
    np.testing.assert_array_equal(out.effective, there != cell)
    assert bool(out.valid.all())


@pytest.mark.parametrize(
    ("rate", "share"),
    [(1.0, (0, 1, 0)), (0.0, (0.5, 0, 0.5)), (0.8, (0.1, 0.8, 0.1)), (0.9, (0.05, 0.9, 0.05))],
)
def test_slip_shares(rate: float, share: tuple[float, float, float]) -> None:
    uniform = jax.random.uniform(jax.random.key(0), (20_000,), jnp.float32)
    for action in range(4):
        got = np.bincount(
            (np.asarray(slip(jnp.int32(action), uniform, jnp.float32(rate))) - action) % 4, minlength=4
        )
        np.testing.assert_allclose(got / 20_000, (share[1], share[2], 0, share[0]), atol=0.012)
        assert all(
            count == 0 for count, p in zip(got, (share[1], share[2], 0, share[0]), strict=True) if p == 0
        )


@pytest.mark.parametrize(("size", "p"), [(8, 0.8), (4, 0.4), (2, 0.0)])
def test_pool_is_solvable_and_distances_are_exact(size: int, p: float) -> None:
    env = FrozenLake(size=size, p=p, num_levels=300)
    params = env.init_params(jax.random.key(2))
    found = [shortest(board) for board in boards(env, params)]
    assert min(found) >= 1
    np.testing.assert_array_equal(
        np.asarray(params.distance)[np.arange(300), np.asarray(params.start)], found
    )


def test_pool_follows_the_published_distribution() -> None:
    """RAGEN's 4x4 boards: shortest way 1..5 in 20, 27, 25, 17, 8 %, mean 2.74; 1.38 holes on average."""
    env = FrozenLake(num_levels=2000)
    params = env.init_params(jax.random.key(3))
    way = np.asarray(params.distance)[np.arange(2000), np.asarray(params.start)]
    np.testing.assert_allclose(
        np.bincount(way, minlength=6)[1:6] / 2000, (0.20, 0.27, 0.25, 0.17, 0.08), atol=0.03
    )
    assert abs(way.mean() - 2.74) < 0.12
    holes = np.asarray([sum(row.count("H") for row in board) for board in boards(env, params)])
    assert abs(holes.mean() - 1.38) < 0.1


def test_levels_depend_on_key_and_index_only() -> None:
    make = lambda key, n: FrozenLake(num_levels=n).init_params(jax.random.key(key))  # noqa: E731
    small, large, other = make(0, 40), make(0, 90), make(1, 40)
    np.testing.assert_array_equal(small.hole_rows, large.hole_rows[:40])
    np.testing.assert_array_equal(small.start, large.start[:40])
    assert np.any(np.asarray(small.start) != np.asarray(other.start))


@pytest.mark.parametrize("bounds", [(1, 1), (2, 16), (4, 5)])
def test_difficulty_bounds_the_shortest_way(bounds: tuple[int, int]) -> None:
    env = FrozenLake(p=0.6, num_levels=200, difficulty=bounds)
    params = env.init_params(jax.random.key(6))
    lengths = {shortest(board) for board in boards(env, params)}
    assert bounds[0] == min(lengths)
    assert max(lengths) <= bounds[1]


def test_unsolvable_request_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    import envs_jax.games.frozen_lake as module

    monkeypatch.setattr(module, "MAX_ATTEMPTS", 1)
    module.generate_boards.clear_cache()
    try:
        with pytest.raises(RuntimeError, match="unsolvable"):
            FrozenLake(size=7, p=0.0, num_levels=50).init_params(jax.random.key(0))
    finally:
        module.generate_boards.clear_cache()


@pytest.mark.parametrize("form", ["grid", "coord", "grid_coord"])
@pytest.mark.parametrize("size", [4, 7])
def test_text_equals_independent_formatter(size: int, form: str) -> None:
    env = FrozenLake(size=size, p=0.75, observation_format=form, num_levels=25)
    params = env.init_params(jax.random.key(4))
    phrases = env.phrases()
    assert len(set(phrases)) == len(phrases)
    cells = np.arange(size * size)
    level, cell = (np.ravel(x) for x in np.meshgrid(np.arange(25), cells, indexing="ij"))
    state = FrozenLakeState(jnp.asarray(level, jnp.int32), jnp.asarray(cell, jnp.int32))
    ids = np.asarray(jax.jit(jax.vmap(env.observe, in_axes=(0, None)))(state, params))
    assert ids.dtype == np.int32
    assert ids.max() < len(phrases)
    maps = boards(env, params)
    for row, one, where in zip(ids, level, cell, strict=True):
        pieces = fragments(env, row)
        assert "".join(pieces) == expected_text(env, maps[one], int(where))
        assert not pieces[0][0].isspace()
        canonical.assert_borders(pieces)


@pytest.mark.parity
def test_fragments_are_canonical_qwen() -> None:
    canonical.qwen_ranks()
    for form in ("grid", "coord", "grid_coord"):
        env = FrozenLake(p=0.7, observation_format=form, num_levels=60)
        params = env.init_params(jax.random.key(5))
        state = FrozenLakeState(jnp.arange(60, dtype=jnp.int32), jnp.arange(60, dtype=jnp.int32) % 16)
        for row in np.asarray(jax.vmap(env.observe, in_axes=(0, None))(state, params)):
            pieces = fragments(env, row)
            apart = [token for piece in pieces for token in canonical.qwen_encode(piece)]
            assert apart == canonical.qwen_encode("".join(pieces))


def test_instruction_tells_the_truth() -> None:
    text = FrozenLake(size=8, observation_format="grid_coord").instruction()
    assert "(7, 7)" in text
    assert "√" in text
    assert "(3, 3)" in FrozenLake(observation_format="coord").instruction()
    assert "√" not in FrozenLake(observation_format="coord").instruction()
    assert "row" not in FrozenLake(observation_format="grid").instruction()
    assert "slippery" in FrozenLake(success_rate=0.9).instruction()
    assert "slippery" not in FrozenLake(success_rate=1.0).instruction()


def test_parse() -> None:
    env = FrozenLake(num_levels=2)
    params = env.init_params(jax.random.key(0))
    state, width = env.level(jnp.int32(0), params), env.answer_bytes

    def parse(text: str) -> tuple[int, bool]:
        raw = text.encode()
        data = np.zeros(width, np.uint8)
        data[: len(raw)] = list(raw[:width])
        action, known = env.parse(Span(jnp.asarray(data), jnp.int32(len(raw))), state, params)
        assert action.dtype == jnp.int32
        return int(action), bool(known)

    for index, name in enumerate(ACTIONS):
        assert parse(name.lower()) == (index, True)
    for wrong in ("", "u", "upp", "lef", "x" * (width + 2)):
        assert parse(wrong)[1] is False


@pytest.mark.parametrize("x64", [False, True])
def test_dtypes_and_scan_do_not_depend_on_x64(x64: bool) -> None:
    with jax.enable_x64(x64):
        env = FrozenLake(observation_format="grid_coord", num_levels=4)
        params = env.init_params(jax.random.key(0))

        def step(state, key):
            action = jax.random.randint(key, (), 0, 4, jnp.int32)
            out = env.transition(key, state, action, params)
            return out.state, (out, env.observe(state, params))

        _, (out, ids) = jax.lax.scan(
            step, env.level(jnp.int32(1), params), jax.random.split(jax.random.key(1), 3)
        )
        kinds = {leaf.dtype.name for leaf in jax.tree.leaves((out, ids, params))}
        assert kinds <= {"int32", "float32", "bool", "uint8"}
        assert out.metrics.shape == (3, len(env.metric_names))


def test_params_are_traced_not_closed_over() -> None:
    """One compiled step serves other pools and other slips."""
    env = FrozenLake(num_levels=8)
    traces = []

    @jax.jit
    def step(key, state, action, params):
        traces.append(1)
        return env.transition(key, state, action, params)

    for seed in range(3):
        params = env.init_params(jax.random.key(seed))
        step(jax.random.key(0), env.level(jnp.int32(0), params), jnp.int32(1), params)
    assert len(traces) == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"size": 1},
        {"p": 1.5},
        {"success_rate": -0.1},
        {"observation_format": "image"},
        {"difficulty": (3, 2)},
        {"difficulty": (0, 2)},
    ],
)
def test_bad_configuration_names_the_field(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        FrozenLake(**bad)
