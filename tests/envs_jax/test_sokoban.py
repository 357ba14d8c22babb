"""Sokoban against gym-sokoban, a plain search and a plain formatter."""

from __future__ import annotations

import canonical
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sokoban_reference as reference

from envs_jax.core import Span
from envs_jax.games.sokoban import Sokoban, SokobanState

OTHER_SYMBOLS = ("W", ".", "G", "C", "B", "A", "@")
SMALL: dict = {"num_levels": 600}  # pools are drawn and compiled once for each room
TWO: dict = {"dim_room": (8, 7), "num_boxes": 2, "search_depth": 20, "num_levels": 250}
WIDE: dict = {"dim_room": (7, 12), "num_boxes": 3, "search_depth": 40, "num_levels": 150}


def states_of(env: Sokoban, params, lanes: int, steps: int, seed: int = 0):
    """States, actions and transitions of `lanes` random plays from levels 0, 1, .. ; axes [steps, lanes]."""

    def run(key, params):
        def step(state, key):
            action = jax.random.randint(key, (lanes,), 0, 4, jnp.int32)
            keys = jax.random.split(key, lanes)
            out = jax.vmap(env.transition, in_axes=(0, 0, 0, None))(keys, state, action, params)
            return out.state, (state, action, out)

        start = jax.vmap(env.level, in_axes=(0, None))(jnp.arange(lanes, dtype=jnp.int32), params)
        return jax.lax.scan(step, start, jax.random.split(key, steps))[1]

    return jax.device_get(jax.jit(run)(jax.random.key(seed), params))


def at(tree, *index):
    return jax.tree.map(lambda leaf: leaf[index], tree)


@pytest.mark.parity
@pytest.mark.parametrize("room", [SMALL, TWO, WIDE], ids=["6x6", "8x7", "7x12"])
def test_steps_equal_gym_sokoban(room: dict) -> None:
    """1,000 rooms: both play the same actions; state, reward, end and effect agree at each step."""
    env = Sokoban(max_steps=25, **room)
    rooms, boxes = env.num_levels, env.num_boxes
    params = env.init_params(jax.random.key(0))
    gym = reference.gym_env(*env.dim_room, boxes, env.max_steps)
    states, actions, out = states_of(env, params, rooms, env.max_steps, seed=boxes)
    rewards, pushes = set(), 0
    for lane in range(rooms):
        reference.gym_load(gym, *reference.room_arrays(env, params, at(states, 0, lane)))
        for step in range(env.max_steps):
            there = at(out, step, lane)
            _, reward, done, info = gym.step(int(actions[step, lane]) + 1)
            _, room = reference.room_arrays(env, params, there.state)
            np.testing.assert_array_equal(room, gym.room_state)
            assert there.reward == pytest.approx(reward, abs=1e-6)
            assert there.terminated == done
            assert there.success == gym._check_if_all_boxes_on_target()
            assert there.effective == info["action.moved_player"]
            assert there.valid
            assert there.metrics[0] == gym.boxes_on_target
            rewards.add(round(float(reward), 1))
            pushes += info["action.moved_box"]
            if done:
                break
    assert pushes > rooms / 4
    assert {-0.1, 0.9, -1.1} <= rewards or boxes == 1
    assert 10.9 in rewards or boxes == 3  # random play is lucky often enough with few boxes


def test_distances_equal_a_plain_search() -> None:
    env = Sokoban(**SMALL)
    params = env.init_params(jax.random.key(1))
    states, _, out = states_of(env, params, 40, 12)
    for step in range(12):
        for lane in range(40):
            there = at(out, step, lane)
            want = reference.shortest(*reference.room_arrays(env, params, there.state))
            assert there.metrics[2] == want
            if step == 0:
                start = reference.shortest(*reference.room_arrays(env, params, at(states, 0, lane)))
                assert there.metrics[1] == start
    assert np.any(np.asarray(out.metrics[..., 2]) == -1), "a dead end among the states"


def test_optimal_play_solves_and_earns_the_stated_reward() -> None:
    """Going down the distance table solves every level; one box in n actions gives 11 - 0.1 n."""
    env = Sokoban(**SMALL)
    params = env.init_params(jax.random.key(2))
    key = jax.random.key(0)

    def best_step(carry, _):
        state, total, done, count = carry
        outs = jax.vmap(env.transition, in_axes=(None, None, 0, None))(
            key, state, jnp.arange(4, dtype=jnp.int32), params
        )
        left = jax.vmap(env.distance_left, in_axes=(0, None))(outs.state, params)
        out = jax.tree.map(lambda leaf: leaf[jnp.argmin(jnp.where(left < 0, 999, left))], outs)
        state = jax.tree.map(lambda old, new: jnp.where(done, old, new), state, out.state)
        total = total + jnp.where(done, 0.0, out.reward)
        return (state, total, done | out.success, count + ~done), None

    def play(index):
        start = env.level(index, params)
        carry = (start, jnp.float32(0), jnp.bool_(False), jnp.int32(0))
        (_, total, done, count), _ = jax.lax.scan(best_step, carry, None, 20)
        return total, done, count, env.distance_left(start, params)

    total, done, count, optimal = jax.jit(jax.vmap(play))(jnp.arange(64, dtype=jnp.int32))
    assert bool(done.all())
    np.testing.assert_array_equal(count, optimal)
    np.testing.assert_allclose(total, 11 - 0.1 * np.asarray(count), atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"observation_format": "grid", **SMALL},
        {"observation_format": "coord", **SMALL},
        {"observation_format": "grid_coord", "symbols": OTHER_SYMBOLS, **SMALL},
        {"observation_format": "grid_coord", **TWO},
        {"observation_format": "coord", **WIDE},
        {"observation_format": "grid", **WIDE},
    ],
    ids=lambda o: f"{o['observation_format']}-{o.get('num_boxes', 1)}",
)
def test_text_equals_a_plain_formatter(options: dict) -> None:
    env = Sokoban(**options)
    params = env.init_params(jax.random.key(3))
    phrases = env.phrases()
    assert len(set(phrases)) == len(phrases)
    states, _, _ = states_of(env, params, 24, 15)
    observe = jax.jit(jax.vmap(jax.vmap(env.observe, in_axes=(0, None)), in_axes=(0, None)))
    ids = np.asarray(observe(states, params))
    assert ids.dtype == np.int32
    assert ids.max() < len(phrases)
    for step in range(15):
        for lane in range(24):
            row = ids[step, lane]
            used = row[row >= 0]
            np.testing.assert_array_equal(row, np.pad(used, (0, len(row) - len(used)), constant_values=-1))
            pieces = [phrases[i] for i in used]
            arrays = reference.room_arrays(env, params, at(states, step, lane))
            assert "".join(pieces) == reference.text(*arrays, env.symbols, env.observation_format)
            if env.dim_room[1] <= 8:
                canonical.assert_borders(pieces)


@pytest.mark.parity
def test_fragments_are_canonical_qwen() -> None:
    canonical.qwen_ranks()
    for options in (SMALL, {"symbols": OTHER_SYMBOLS, **SMALL}, TWO):
        env = Sokoban(observation_format="grid_coord", **options)
        params = env.init_params(jax.random.key(4))
        phrases = env.phrases()
        states, _, _ = states_of(env, params, 24, 15)
        observe = jax.jit(jax.vmap(env.observe, in_axes=(0, None)))
        for step in (0, 3, 9):
            for row in np.asarray(observe(at(states, step), params)):
                pieces = [phrases[i] for i in row if i >= 0]
                apart = [token for piece in pieces for token in canonical.qwen_encode(piece)]
                assert apart == canonical.qwen_encode("".join(pieces))


def test_instruction_tells_the_truth() -> None:
    text = Sokoban(symbols=OTHER_SYMBOLS, observation_format="grid_coord", dim_room=(7, 9)).instruction()
    assert "W wall" in text
    assert "@ player on target" in text
    assert "(6, 8)" in text
    assert "wall," not in Sokoban(observation_format="coord").instruction()
    assert "row" not in Sokoban(observation_format="grid").instruction()
    assert "every box" in Sokoban(num_boxes=2).instruction()


def test_rooms_from_arrays_round_trip() -> None:
    env = Sokoban(**SMALL)
    params = env.init_params(jax.random.key(5))
    levels = [jax.tree.map(np.asarray, env.level(i, params)) for i in range(env.num_levels)]
    fixed, rooms = (
        np.stack(x) for x in zip(*(reference.room_arrays(env, params, s) for s in levels), strict=True)
    )
    again = env.params_from_rooms(env.rooms_from_arrays(fixed, rooms))
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="walls"):
        env.rooms_from_arrays(np.ones_like(fixed), rooms)
    with pytest.raises(ValueError, match="1 boxes"):
        env.rooms_from_arrays(fixed, np.where(rooms == reference.BOX, reference.FLOOR, rooms))


def test_parse() -> None:
    env = Sokoban(**SMALL)
    params = env.init_params(jax.random.key(0))
    state, width = env.level(jnp.int32(0), params), env.answer_bytes
    known = {}
    for word in ("up", "down", "left", "right", "push", "", "u", "downs", "right now"):
        raw = word.encode()[:width]
        data = np.zeros(width, np.uint8)
        data[: len(raw)] = list(raw)
        action, ok = env.parse(Span(jnp.asarray(data), jnp.int32(len(word))), state, params)
        known[word] = int(action) if ok else None
    assert list(known.values()) == [0, 1, 2, 3, None, None, None, None, None]


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("room", [SMALL, TWO], ids=["6x6", "8x7"])
def test_dtypes_and_scan_do_not_depend_on_x64(x64: bool, room: dict) -> None:
    with jax.enable_x64(x64):
        env = Sokoban(observation_format="grid_coord", **room)
        params = env.init_params(jax.random.key(0))
        _, _, out = states_of(env, params, 4, 3)
        ids = jax.jit(jax.vmap(env.observe, in_axes=(0, None)))(at(out.state, 0), params)
        kinds = {leaf.dtype.name for leaf in jax.tree.leaves((out, ids, params))}
        assert kinds == {"int32", "float32", "bool", "uint8", "int16"}
        assert out.metrics.shape == (3, 4, len(env.metric_names))


def test_params_are_traced_not_closed_over() -> None:
    """One compiled step serves other pools; the program holds no pool."""
    env = Sokoban(**SMALL)
    traces = []

    @jax.jit
    def step(key, state, action, params):
        traces.append(1)
        return env.transition(key, state, action, params), env.observe(state, params)

    for seed in range(2):
        params = env.init_params(jax.random.key(seed))
        step(jax.random.key(0), env.level(jnp.int32(0), params), jnp.int32(1), params)
    assert len(traces) == 1
    state = SokobanState(*(jnp.int32(0),) * 2, jnp.zeros(1, jnp.int32), jnp.int32(0))
    program = jax.make_jaxpr(step)(jax.random.key(0), state, jnp.int32(1), params)
    assert all(np.size(constant) < 100 for constant in program.consts)


@pytest.mark.parametrize(
    "bad",
    [
        {"dim_room": (3, 6)},
        {"num_boxes": 0},
        {"symbols": "#_O√XPP"},
        {"symbols": "#_O√XP "},
        {"max_steps": 0},
        {"search_depth": 0},
        {"difficulty": (5, 2)},
        {"difficulty": (1, 4), "num_boxes": 2},
        {"observation_format": "rgb"},
    ],
)
def test_bad_configuration_names_the_field(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sokoban(**bad)


def test_lists_of_a_configuration_file_are_hashable() -> None:
    env = Sokoban(dim_room=[6, 7], symbols="W.GCBA@", difficulty=[1, 3])  # type: ignore[arg-type]
    assert hash(env) == hash(Sokoban(dim_room=(6, 7), symbols=OTHER_SYMBOLS, difficulty=(1, 3)))
