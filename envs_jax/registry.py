"""Environments by tag."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax

from envs_jax.core import Environment, Tokenizer
from envs_jax.errors import ConfigError, suggestion
from envs_jax.fields import convert, read_fields
from envs_jax.games.bandit import TEST_PAIRS, Bandit
from envs_jax.games.frozen_lake import FrozenLake
from envs_jax.games.game_2048 import Game2048
from envs_jax.games.rubiks_cube import RubiksCube
from envs_jax.games.sokoban import Sokoban
from envs_jax.games.sudoku import Sudoku
from envs_jax.tasks.countdown import Countdown
from envs_jax.tasks.deepcoder.env import DeepCoder
from envs_jax.tasks.metamathqa import MetaMathQA
from envs_jax.tasks.search_qa import SearchQA
from envs_jax.tasks.webshop import WebShop
from envs_jax.text.byte_tokenizer import ByteTokenizer
from envs_jax.text.chat import CHAT_FORMATS, CHATML, LLAMA3, PLAIN, ChatFormat
from envs_jax.turn import TurnConfig, TurnEnv, TurnParams, build

SPLITS = ("train", "eval")


@dataclass(frozen=True)
class EnvSpec:
    """What a tag stands for: a class of environments, its field values, and those of the protocol."""

    factory: Callable[..., Environment]
    env: Mapping[str, Any] = field(default_factory=dict)
    turn: Mapping[str, Any] = field(default_factory=dict)


_REGISTRY: dict[str, EnvSpec] = {}


def register(tag: str, spec: EnvSpec | Callable[..., Environment]) -> None:
    """Adds `tag`. `spec` may be a dataclass of environments by itself. A tag cannot be registered twice."""
    if tag in _REGISTRY:
        raise ConfigError("tag", tag, "it is registered already; choose another name")
    _REGISTRY[tag] = spec if isinstance(spec, EnvSpec) else EnvSpec(spec)


def registered() -> tuple[str, ...]:
    """All tags, sorted."""
    return tuple(sorted(_REGISTRY))


def spec(tag: str) -> EnvSpec:
    """What `tag` stands for. Raises ConfigError for a tag that is not registered."""
    if tag not in _REGISTRY:
        raise ConfigError("tag", tag, suggestion(tag, _REGISTRY))
    return _REGISTRY[tag]


def choose_chat(tokenizer: Tokenizer) -> ChatFormat:
    """ChatML if the tokenizer has its special tokens, else Llama 3 if it has those, else plain."""
    specials = tokenizer.special_ids()
    return next(c for c in (CHATML, LLAMA3, PLAIN) if all(s in specials for s in c.required))


def _chat(chat: ChatFormat | str | None, tokenizer: Tokenizer) -> ChatFormat:
    if chat is None:
        return choose_chat(tokenizer)
    if isinstance(chat, str):
        if chat not in CHAT_FORMATS:
            raise ConfigError("chat", chat, suggestion(chat, CHAT_FORMATS))
        return CHAT_FORMATS[chat]
    return chat


def pool_key(split: str, seed: int) -> jax.Array:
    """Key of the level pool of a split."""
    if split not in SPLITS:
        raise ConfigError("split", split, f"use one of {', '.join(SPLITS)}")
    return jax.random.fold_in(jax.random.key(seed), SPLITS.index(split))


def new_levels(env: TurnEnv, params: TurnParams, *, split: str = "train", seed: int = 0) -> TurnParams:
    """`params` with another level pool; `env` stays, so nothing compiles again.

    The pool is that of `make(..., split=split, seed=seed)`. The observation buffers were measured on the old
    pool; a level that needs more is flagged by `StepInfo.obs_overflow`.
    """
    return replace(params, env=env.env.init_params(pool_key(split, seed), split))


def make(
    tag: str,
    tokenizer: Tokenizer | None = None,
    *,
    split: str = "train",
    seed: int = 0,
    chat: ChatFormat | str | None = None,
    prompt_capacity: int | None = None,
    obs_capacity: int | None = None,
    **overrides: Any,
) -> tuple[TurnEnv, TurnParams]:
    """An environment behind the agent's protocol, and its traced parameters.

    Args:
        tag: one of `registered()`.
        tokenizer: whose ids are spoken; None for `ByteTokenizer`.
        split: "train" or "eval"; their level pools come from different keys.
        seed: of the level pool.
        chat: message format or its name; None to choose by the tokenizer's special tokens.
        prompt_capacity: slots of the first observation; None to measure.
        obs_capacity: slots of later observations; None to measure.
        **overrides: fields of the environment's dataclass or of `TurnConfig`.

    Raises:
        ConfigError: for an unknown tag, split, chat format or override, or a value of another type or out of range.

    Two calls with equal arguments give equal environments of equal hash, so compiled functions are reused.
    """
    found = spec(tag)
    for name, slots in (("prompt_capacity", prompt_capacity), ("obs_capacity", obs_capacity)):
        if slots is not None and convert(int, slots, name) < 1:
            raise ConfigError(name, slots, "use a number of at least 1, or None")
    key = pool_key(split, seed)
    env_fields = {f.name for f in fields(found.factory)}  # type: ignore[arg-type]
    turn_fields = {f.name for f in fields(TurnConfig)}
    for name, value in overrides.items():
        if name not in env_fields | turn_fields:
            raise ConfigError(name, value, f"no such field; {suggestion(name, env_fields | turn_fields)}")
    given_env = {n: v for n, v in overrides.items() if n in env_fields}
    given_turn = {n: v for n, v in overrides.items() if n not in env_fields}
    env_values = {**found.env, **read_fields(found.factory, given_env)}
    turn_values = {**found.turn, **read_fields(TurnConfig, given_turn)}
    if tokenizer is None:
        tokenizer = ByteTokenizer()
    return build(
        tag,
        found.factory(**env_values),
        TurnConfig(**turn_values),
        _chat(chat, tokenizer),
        tokenizer,
        key,
        split=split,
        prompt_capacity=prompt_capacity,
        obs_capacity=obs_capacity,
    )


# Values of the published tags. The Coord tags quote a length of 120.
register("Bandit", EnvSpec(Bandit, turn={"max_actions_per_traj": 1}))
register(
    "BanditTest",
    EnvSpec(Bandit, {"names": "test", "num_levels": 2 * len(TEST_PAIRS)}, turn={"max_actions_per_traj": 1}),
)
register("FrozenLake", EnvSpec(FrozenLake, {"success_rate": 0.8}))
register(
    "CoordFrozenLake",
    EnvSpec(FrozenLake, {"success_rate": 0.8, "observation_format": "grid_coord"}, {"length_hint": 120}),
)
register("SimpleSokoban", EnvSpec(Sokoban, {"dim_room": (6, 6), "num_boxes": 1}))
register("LargerSokoban", EnvSpec(Sokoban, {"dim_room": (8, 8), "num_boxes": 2, "search_depth": 10}))
register(
    "SokobanDifferentGridVocab",
    EnvSpec(
        Sokoban,
        {
            "dim_room": (6, 6),
            "num_boxes": 1,
            "search_depth": 30,
            "symbols": ("W", ".", "G", "C", "B", "A", "@"),
        },
    ),
)
register(
    "CoordSokoban",
    EnvSpec(
        Sokoban,
        {"dim_room": (6, 6), "num_boxes": 1, "observation_format": "grid_coord"},
        {"length_hint": 120},
    ),
)
# RAGEN's limits of the next tags do not let an episode succeed (see the classes); these do.
register(
    "game_2048",
    EnvSpec(Game2048, turn={"max_turns": 700, "max_actions_per_turn": 1, "max_actions_per_traj": 700}),
)
register(
    "Simple2048",
    EnvSpec(
        Game2048,
        {"target_tile": 16},
        {"max_turns": 16, "max_actions_per_turn": 1, "max_actions_per_traj": 16, "max_response_tokens": 200},
    ),
)
register(
    "rubikscube",
    EnvSpec(
        RubiksCube,
        {"scramble_depth": 1},
        {"max_actions_per_turn": 4, "max_actions_per_traj": 20, "length_hint": 96},
    ),
)
register(
    "SimpleSudoku",
    EnvSpec(Sudoku, turn={"max_actions_per_turn": 8, "max_actions_per_traj": 40, "length_hint": 150}),
)
register(
    "MediumSudoku",
    EnvSpec(
        Sudoku,
        {"difficulty": "medium"},
        {"max_actions_per_turn": 10, "max_actions_per_traj": 50, "length_hint": 150},
    ),
)
register("Countdown", EnvSpec(Countdown, turn={"max_actions_per_traj": 1, "max_actions_per_turn": 1}))
# The published tag allows a single action, with which its rewards for later tries could never be had.
register("MetaMathQA", EnvSpec(MetaMathQA, turn={"max_actions_per_traj": 5, "max_actions_per_turn": 1}))
register("SearchQA", EnvSpec(SearchQA, turn={"max_actions_per_turn": 1, "length_hint": 300}))
register(
    "WebShop",
    EnvSpec(
        WebShop,
        turn={"max_turns": 9, "max_actions_per_turn": 1, "max_actions_per_traj": 9, "length_hint": 200},
    ),
)
register(
    "WebShopFull",
    EnvSpec(
        WebShop,
        {"num_products": 4000},
        {"max_turns": 15, "max_actions_per_turn": 1, "max_actions_per_traj": 15, "length_hint": 200},
    ),
)
register(
    "DeepCoder",
    EnvSpec(
        DeepCoder,
        turn={
            "max_turns": 1,
            "max_actions_per_turn": 1,
            "max_actions_per_traj": 1,
            "max_response_tokens": 1024,
            "length_hint": 800,
        },
    ),
)
