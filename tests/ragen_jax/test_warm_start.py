"""The supervised start: what its steps see."""

from __future__ import annotations

import jax
import numpy as np

from ragen_jax.models import ModelConfig, init_params
from ragen_jax.training.warm_start import Dialogues, imitate


def ragged(
    rng: np.random.Generator, count: int = 13, width: int = 40
) -> tuple[Dialogues, list[list[list[int]]]]:
    """Random dialogues, and the same as lists: for each row, given and sampled pieces in turn."""
    tokens, sampled, pieces = np.zeros((count, width), np.int32), np.zeros((count, width), bool), []
    for row in range(count):
        at, said = 0, []
        for piece in range(2 * rng.integers(1, 4)):
            ids = rng.integers(1, 20, rng.integers(1, 7)).tolist()
            tokens[row, at : at + len(ids)] = ids
            sampled[row, at : at + len(ids)] = piece % 2 == 1
            said.append(ids)
            at += len(ids)
        pieces.append(said)
    return Dialogues(tokens, sampled, np.ones(count, bool)), pieces


def test_first_turns_are_the_first_observation_and_response() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        dialogues, pieces = ragged(rng)
        first = dialogues.first_turns()
        for row, (given, said, *_) in enumerate(pieces):
            assert first.tokens[row].tolist() == given + said + [0] * (
                first.tokens.shape[1] - len(given) - len(said)
            )
            assert first.sampled[row].nonzero()[0].tolist() == list(range(len(given), len(given) + len(said)))
        assert first.tokens.shape[1] == max(len(g) + len(s) for g, s, *_ in pieces)


def test_first_phase_never_sees_a_later_turn() -> None:
    """Later turns changed, or later turns as they are: parameters after the first phase are the same."""
    cfg = ModelConfig(
        vocab_size=24, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        intermediate_size=16,
    )  # fmt: skip
    dialogues, _ = ragged(np.random.default_rng(1))
    width = dialogues.first_turns().tokens.shape[1]
    later = ~np.pad(dialogues.first_turns().tokens > 0, ((0, 0), (0, 40 - width))) & (dialogues.tokens > 0)
    other = Dialogues(np.where(later, 23, dialogues.tokens), dialogues.sampled, dialogues.success)

    def run(seen: Dialogues, steps: int) -> list[np.ndarray]:
        params = init_params(cfg, jax.random.key(0))
        out = list(
            imitate(
                params, cfg, seen, steps=steps, batch_size=4, first_turn_steps=3, first_turn_batch_size=5, lr=1e-2,
                valid_vocab=24, seed=0,
            )
        )  # fmt: skip
        assert len(out) == steps
        return [np.asarray(leaf) for leaf in jax.tree.leaves(out[-1][0])]

    def equal(steps: int) -> bool:
        return all(
            np.array_equal(a, b) for a, b in zip(run(dialogues, steps), run(other, steps), strict=True)
        )

    # The schedule depends on the number of steps, so both runs have the same.
    assert equal(3)
    assert not equal(5)
