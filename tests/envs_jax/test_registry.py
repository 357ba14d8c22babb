"""Tags, overrides and their errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import envs_jax
from envs_jax.core import Environment
from envs_jax.errors import ConfigError, suggestion
from envs_jax.games.bandit import Bandit
from envs_jax.registry import EnvSpec, choose_chat
from envs_jax.text.byte_tokenizer import ByteTokenizer
from envs_jax.text.chat import CHATML, LLAMA3, PLAIN

LLAMA_SPECIALS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


# The published values: max actions per trajectory, length hint, and what tells the environments apart.
@pytest.mark.parametrize(
    ("tag", "actions", "hint", "fields"),
    [
        ("Bandit", 1, 100, {"names": "train", "lo_arm_score": 0.1, "hi_arm_hiscore_prob": 0.25}),
        ("BanditTest", 1, 100, {"names": "test", "num_levels": 16}),
        ("FrozenLake", 10, 100, {"size": 4, "success_rate": 0.8, "observation_format": "grid"}),
        ("CoordFrozenLake", 10, 120, {"size": 4, "success_rate": 0.8, "observation_format": "grid_coord"}),
        ("SimpleSokoban", 10, 100, {"dim_room": (6, 6), "num_boxes": 1, "observation_format": "grid"}),
        ("LargerSokoban", 10, 100, {"dim_room": (8, 8), "num_boxes": 2, "search_depth": 10}),
        (
            "SokobanDifferentGridVocab",
            10,
            100,
            {"search_depth": 30, "num_boxes": 1, "symbols": ("W", ".", "G", "C", "B", "A", "@")},
        ),
        ("CoordSokoban", 10, 120, {"dim_room": (6, 6), "num_boxes": 1, "observation_format": "grid_coord"}),
    ],
)
def test_published_tags(tag: str, actions: int, hint: int, fields: dict[str, Any]) -> None:
    assert tag in envs_jax.registered()
    few = {} if "num_levels" in fields else {"num_levels": 2}
    env, _ = envs_jax.make(tag, **few)
    assert env.tag == tag
    assert env.config.max_actions_per_traj == actions
    assert env.config.length_hint == hint
    assert (env.config.max_turns, env.config.max_actions_per_turn, env.config.action_sep) == (5, 2, "||")
    assert (env.config.format_penalty, env.config.enable_think) == (-0.1, True)
    assert {name: getattr(env.env, name) for name in fields} == fields


def test_overrides_reach_environment_and_protocol() -> None:
    env, params = envs_jax.make("Bandit", lo_arm_score=0.2, max_turns=3, format_penalty=-0.5, style="brief")
    assert isinstance(env.env, Bandit)
    assert (env.env.lo_arm_score, env.config.max_turns, env.config.style) == (0.2, 3, "brief")
    assert float(params.env.lo_arm_score) == pytest.approx(0.2)
    assert float(params.format_penalty) == -0.5


@pytest.mark.parametrize(
    ("arguments", "field", "hint"),
    [
        (("bandit",), "tag", "did you mean 'Bandit'?"),
        (("FrozenLakes",), "tag", "did you mean 'FrozenLake'?"),
        (("zzzzzzz",), "tag", "CoordSokoban, "),
        (("Bandit", {"max_turn": 3}), "max_turn", "did you mean 'max_turns'?"),
        (("Bandit", {"lo_arm_scor": 3}), "lo_arm_scor", "did you mean 'lo_arm_score'?"),
        (("Bandit", {"split": "test"}), "split", "train, eval"),
        (("Bandit", {"chat": "chatlm"}), "chat", "did you mean 'chatml'?"),
        (("Bandit", {"chat": "llama3"}), "chat", "lacks <|begin_of_text|>"),
        (("Bandit", {"names": "dev"}), "names", '"train" or "test"'),
        (("Bandit", {"hi_arm_hiscore_prob": 1.5}), "hi_arm_hiscore_prob", "probability"),
    ],
)
def test_errors_name_field_value_and_remedy(arguments: Any, field: str, hint: str) -> None:
    tag, overrides = arguments[0], arguments[1] if len(arguments) > 1 else {}
    with pytest.raises(ConfigError) as caught:
        envs_jax.make(tag, **overrides)
    assert isinstance(caught.value, ValueError)
    assert caught.value.field == field
    assert hint in caught.value.remedy
    assert repr(caught.value.value) in str(caught.value)


def test_suggestion_lists_all_when_nothing_is_close() -> None:
    assert suggestion("qqq", ["b", "a"]) == "known: a, b"


def test_register_adds_a_tag_once() -> None:
    envs_jax.register("ThirdParty", EnvSpec(Bandit, {"lo_arm_score": 0.3}, {"max_turns": 2}))
    env, _ = envs_jax.make("ThirdParty")
    assert env.config.max_turns == 2
    assert "ThirdParty" in envs_jax.registered()
    with pytest.raises(ConfigError, match="registered already"):
        envs_jax.register("ThirdParty", Bandit)
    envs_jax.register("ThirdPartyClass", Bandit)
    assert (
        envs_jax.make("ThirdPartyClass")[0].config
        == envs_jax.make("Bandit", max_actions_per_traj=10)[0].config
    )


def test_an_environment_without_a_function_cannot_be_made() -> None:
    class Mute(Bandit):
        observe = Environment.observe  # still the contract's own, which does nothing

    envs_jax.register("Mute", Mute)
    with pytest.raises(TypeError, match="observe"):
        envs_jax.make("Mute")


def test_chat_is_chosen_by_the_special_tokens() -> None:
    assert choose_chat(ByteTokenizer()) is CHATML
    llama = ByteTokenizer(specials=LLAMA_SPECIALS, stops=("<|eot_id|>",))
    assert choose_chat(llama) is LLAMA3
    assert choose_chat(ByteTokenizer(specials=("<end>",), stops=("<end>",))) is PLAIN
    assert envs_jax.make("Bandit", llama)[0].chat is LLAMA3
    assert envs_jax.make("Bandit", llama, chat="plain")[0].chat is PLAIN
    with pytest.raises(ValueError, match="stops"):
        ByteTokenizer(specials=("<end>",), stops=("<other>",))


def test_splits_and_seeds_give_other_levels() -> None:
    (env, params), *others = [
        envs_jax.make("FrozenLake", num_levels=32, **kind)
        for kind in ({}, {"split": "train", "seed": 0}, {"split": "eval"}, {"seed": 1})
    ]
    boards = [np.asarray(p.env.hole_rows) for _, p in others]
    assert np.array_equal(params.env.hole_rows, boards[0])
    assert not np.array_equal(boards[0], boards[1])
    assert not np.array_equal(boards[0], boards[2])
    assert not np.array_equal(boards[1], boards[2])
    again = envs_jax.new_levels(env, params, split="eval", seed=0)
    assert np.array_equal(again.env.hole_rows, boards[1])
    assert again.phrases is params.phrases
    with pytest.raises(ConfigError, match="split"):
        envs_jax.new_levels(env, params, split="test", seed=0)
