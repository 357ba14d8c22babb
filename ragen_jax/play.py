"""An environment for a person: a level with the exact prompt, and episodes played in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from envs_jax.core import Tokenizer
from envs_jax.errors import ConfigError
from envs_jax.text.byte_tokenizer import ByteTokenizer
from envs_jax.turn import TurnEnv, TurnParams
from ragen_jax.models.hub import pulled
from ragen_jax.tokenizers import load_tokenizer
from ragen_jax.training.config import load_config
from ragen_jax.training.setup import make_env


def _make(tag: str, tokenizer: Tokenizer | None, overrides: Sequence[str]) -> tuple[TurnEnv, TurnParams]:
    for item in overrides:
        name = item.partition("=")[0]
        if not name.startswith("env.") or name in ("env.tag", "env.tags", "env.n_groups"):
            raise ConfigError(name, item.partition("=")[2], "here only the other fields of env can be set")
    return make_env(replace(load_config(None, overrides).env, tag=tag), tokenizer)


def _level(env: TurnEnv, seed: int) -> jax.Array:
    if not 0 <= seed < env.num_levels:
        raise ConfigError("seed", seed, f"{env.tag} has levels 0 to {env.num_levels - 1}")
    return jnp.int32(seed)


def show_level(tag: str, seed: int, model: str | None, overrides: Sequence[str]) -> Iterator[str]:
    """The state of level `seed` as text, then the exact prompt with its number of tokens.

    `model`: whose tokenizer and chat format to use; None for bytes. Raises ValueError for what is not known.
    """
    tokenizer = None if model is None else load_tokenizer(pulled(model) or model)
    env, params = _make(tag, tokenizer, overrides)
    state, step = jax.jit(env.reset)(_level(env, seed), params)
    count = int(step.obs_len)
    yield f"# {tag}, level {seed}"
    yield env.render(state, params)
    kind = "bytes" if tokenizer is None else f"tokens of {model}"
    yield f"# The prompt, {count} {kind}, chat format {env.chat.name}"
    yield env.text_of(params, step.obs_tokens[:count])


def play(
    tag: str,
    seed: int,
    overrides: Sequence[str],
    *,
    ask: Callable[[str], str] | None = None,
    say: Callable[[str], Any] = print,
) -> float:
    """A person types answers until the episode, or the input, ends, or "quit"; returns the sum of rewards.

    Answers go the way of a policy's: they are tokenised (in bytes), parsed and run on the device. `ask` and
    `say` are `input` and `print` unless given.
    """
    env, params = _make(tag, None, overrides)
    config = env.config
    limit = config.max_response_tokens
    tokenizer = ByteTokenizer()
    key = jax.random.key(seed)
    state, _ = jax.jit(env.reset)(_level(env, seed), params)
    step_fn = jax.jit(env.step)
    say(env.env.instruction())
    most = min(config.max_actions_per_turn, config.max_actions_per_traj) if env.env.splits_actions else 1
    holds = "one action" if most == 1 else f"up to {most} actions, joined by {config.action_sep}"
    names = f"Actions: {', '.join(env.env.action_names)}. " if env.env.action_names else ""
    say(f"{names}An answer holds {holds}. 'quit' ends.")
    total, turn = 0.0, 0
    while turn < config.max_turns:
        say(f"\nTurn {turn + 1} of {config.max_turns}, {int(state.actions_left)} actions left")
        say(env.render(state, params))
        try:
            answer = (ask or input)("> ")
        except EOFError:
            break
        if answer.strip().lower() == "quit":
            break
        opening = "-</think><answer>" if config.enable_think else ""
        ids = tokenizer.encode(f"{opening}{answer}</answer>")
        if len(ids) > limit:
            say(f"That is too long: {len(ids)} bytes with the tags, and env.max_response_tokens is {limit}.")
            continue
        tokens = jnp.zeros(limit, jnp.int32).at[: len(ids)].set(jnp.array(ids))
        state, step = step_fn(jax.random.fold_in(key, turn), state, tokens, jnp.int32(len(ids)), params)
        turn += 1
        total += float(step.reward) + float(step.penalty)
        note = "" if int(step.info.n_valid) else f", no valid action ({float(step.penalty):+.1f})"
        say(f"reward {float(step.reward):+.1f}{note}")
        if bool(step.terminated | step.truncated):
            say(env.render(state, params))
            say("Success." if bool(step.success) else "The episode is over without success.")
            break
    say(f"Total {total:+.1f}")
    return total
