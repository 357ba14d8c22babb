"""The supervised start: what its phases see."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from envs_jax.text.byte_tokenizer import ByteTokenizer
from ragen_jax.models import ModelConfig, init_params
from ragen_jax.training.teachers import demonstrations, descriptions
from ragen_jax.training.warm_start import Dialogues, Phase, imitate, read_aloud


def test_read_aloud_is_the_first_observation_and_what_is_seen() -> None:
    env, params = envs_jax.make("FrozenLake", p=0.6, style="brief", num_levels=16, max_response_tokens=200)
    tokenizer = ByteTokenizer()
    levels = jnp.arange(16)
    states, _ = jax.vmap(env.reset, in_axes=(0, None))(levels, params)
    seen = read_aloud(
        env,
        params,
        tokenizer,
        lambda states, key: descriptions(env, params, states, key),
        states,
        jax.random.key(3),
    )
    for row in range(16):
        _, first = env.reset(levels[row], params)
        size = int(first.obs_len)
        length = int(np.flatnonzero(seen.sampled[row])[-1]) + 1
        np.testing.assert_array_equal(seen.tokens[row, :size], first.obs_tokens[:size])
        assert seen.sampled[row].nonzero()[0].tolist() == list(range(size, length))
        said = env.text_of(params, seen.tokens[row, size:length])
        assert all(f"{name} " in said for name in ("Left", "Down", "Right", "Up"))
        assert said.endswith(".")


def test_descriptions_are_the_part_of_a_demonstration_without_moves() -> None:
    env, params = envs_jax.make("SimpleSokoban", num_levels=24)
    states = jax.vmap(env.reset, in_axes=(0, None))(jnp.arange(24), params)[0]
    for seed in range(3):
        key = jax.random.key(seed)
        seen = descriptions(env, params, states, key)
        whole = demonstrations(env, params, states, key, 0.5)
        assert len({text.split()[0] for text in seen}) == 3
        # Draws differ, so compare with every demonstration of the same wording and state.
        for a, b in zip(seen, whole, strict=True):
            if a.split()[0] == b.split()[0]:
                assert b.startswith(a)
                assert b[len(a) :].startswith((" Go ", " So ", " I choose "))


def test_phases_see_their_own_dialogues_in_order() -> None:
    """Parameters after the first phase do not depend on the second's tokens, later ones do."""
    cfg = ModelConfig(
        vocab_size=24, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=16,
    )  # fmt: skip
    rng = np.random.default_rng(0)

    def dialogues(seed: int) -> Dialogues:
        tokens = np.random.default_rng(seed).integers(1, 24, (13, 16)).astype(np.int32)
        return Dialogues(tokens, np.arange(16) >= rng.integers(2, 9, (13, 1)), np.ones(13, bool))

    first, second, other = dialogues(0), dialogues(1), dialogues(2)

    def run(later: Dialogues) -> list[np.ndarray]:
        phases = [Phase(first, 3, 5), Phase(later, 2, 4)]
        steps = imitate(init_params(cfg, jax.random.key(0)), cfg, phases, lr=1e-2, valid_vocab=24, seed=0)
        return [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)]) for params, _ in steps]

    one, two = run(second), run(other)
    assert len(one) == 5
    assert all(np.array_equal(a, b) for a, b in zip(one[:3], two[:3], strict=True))
    assert not np.array_equal(one[3], two[3])
