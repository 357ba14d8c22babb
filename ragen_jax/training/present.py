"""What the command line prints: tables, a level with its prompt, and an environment to play by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import envs_jax
from envs_jax.errors import ConfigError
from ragen_jax.models.hub import MODELS, pulled
from ragen_jax.training.config import load_config
from ragen_jax.training.diagnosis import FAMILIES
from ragen_jax.training.evaluation import Evaluation
from ragen_jax.training.policy import Diagnosis
from ragen_jax.training.setup import Setup

_TABLE_1 = (
    ("Retrieval-Acc", "retrieval_accuracy"),
    ("Recall@2", "retrieval_accuracy@2"),
    ("Recall@4", "retrieval_accuracy@4"),
    ("Recall@8", "retrieval_accuracy@8"),
    ("chance", "retrieval_chance_level"),
    ("MI-Est (nats/token)", "mi_estimate"),
    ("MI-Seq-Est (nats)", "mi_seq_estimate"),
    ("MI upper bound (nats)", "mi_upper_bound"),
    ("MI-ZScore", "mi_zscore"),
    ("MI-ZScore-EMA", "mi_zscore_ema"),
    ("H(Z|X) (nats/token)", "conditional_entropy_est"),
    ("H(Z) (nats/token)", "reasoning_entropy_est"),
    ("traces", "num_rows"),
    ("distinct prompts", "num_distinct_prompts"),
)


def _rate(x: dict[str, float]) -> str:
    return f"{x['success']:.3f} [{x['low']:.3f}, {x['high']:.3f}]"


def summary_table(summary: dict[str, Any]) -> Table:
    """Success before and after RL beside the baselines, and first and last values of the measures."""
    table = Table(title=f"{summary['tag']}, {summary['steps']} steps", title_justify="left")
    table.add_column("measure")
    table.add_column("before RL", justify="right")
    table.add_column("after", justify="right")
    if summary["before"] and summary["after"]:
        table.add_row("success on held-out levels [95%]", _rate(summary["before"]), _rate(summary["after"]))
    for name, value in summary["baselines"].items():
        table.add_row(f"  {name} policy", "", _rate(value))
    for name, ends in summary["metrics"].items():
        if ends is not None:
            table.add_row(name.replace("_", " "), f"{ends['first']:.3f}", f"{ends['last']:.3f}")
    return table


def evaluation_table(setup: Setup, result: Evaluation, baselines: dict[str, dict[str, float]]) -> Table:
    section = setup.config.evaluation
    table = Table(
        title=f"{setup.env.tag}: {section.levels} held-out levels, temperature {section.temperature}", title_justify="left"
    )
    table.add_column("policy")
    table.add_column("success [95%]", justify="right")
    table.add_row("this policy", _rate(result.success(setup.env.tag)))
    for name, value in baselines.items():
        table.add_row(name, _rate(value))
    for name, measure in result.metrics.items():
        short = name.removeprefix(f"val-env/{setup.env.tag}/")
        if not short.startswith("success"):
            table.add_row(f"  {short}", f"{measure:.3f}")
    return table


def diagnosis_tables(setup: Setup, diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The paper's Table 1 for each sampling family, the rollout's own figures, and the traces scored."""
    config = setup.config.rollout
    table = Table(
        title=f"{setup.env.tag}: {config.env_groups} prompts x {config.group_size} members", title_justify="left"
    )
    table.add_column("measure")
    families = [f for f in FAMILIES if f"{FAMILIES[f]}/mi_estimate" in diagnosis.metrics]
    for family in families:
        table.add_column(family.replace("_", " "), justify="right")
    for label, name in _TABLE_1:
        table.add_row(label, *(f"{diagnosis.metrics[f'{FAMILIES[f]}/{name}']:.4f}" for f in families))
    for name in ("collapse/valid_thinking_rate", "collapse/reasoning_length", "train/success", "train/format_ok"):
        table.add_row(name.partition("/")[2].replace("_", " "), f"{diagnosis.metrics[name]:.3f}")
    yield table
    for trace in diagnosis.traces:
        title = (
            f"prompt {trace['group']}, member {trace['member']}: log p = {trace['own_logprob']:.1f} under its own prompt, "
            f"most likely under prompt {trace['best_prompt']} ({trace['tokens']} tokens)"
        )
        yield Panel(Text(trace["reasoning"]), title=title, title_align="left")


def env_table() -> Table:
    """Every registered tag with its main settings."""
    table = Table(title="Environments", title_justify="left")
    for column in ("tag", "class", "actions", "turns", "actions a turn", "actions in all", "settings"):
        table.add_column(column)
    for tag in envs_jax.registered():
        spec = envs_jax.spec(tag)
        env, turn = spec.factory(**spec.env), envs_jax.TurnConfig(**spec.turn)
        settings = ", ".join(f"{k}={v}" for k, v in spec.env.items())
        table.add_row(
            tag, type(env).__name__, ", ".join(env.action_names) or "free text", str(turn.max_turns),
            str(turn.max_actions_per_turn), str(turn.max_actions_per_traj), settings,
        )  # fmt: skip
    return table


def _named_env(tag: str, model: str | None, overrides: list[str]) -> tuple[Any, Any, Any]:
    section = load_config(None, [*overrides, f"env.tag={tag}"]).env
    tokenizer = None
    if model is not None:
        from ragen_jax.models.hub import pulled
        from ragen_jax.tokenizers import load_tokenizer

        tokenizer = load_tokenizer(pulled(model) or model)
    env, params = envs_jax.make(tag, tokenizer, seed=section.seed, chat=section.chat, **section.overrides)
    return env, params, tokenizer


def _level(env: Any, seed: int) -> jax.Array:
    if not 0 <= seed < env.num_levels:
        raise ConfigError("seed", seed, f"{env.tag} has levels 0 to {env.num_levels - 1}")
    return jnp.int32(seed)


def show_level(tag: str, seed: int, model: str | None, overrides: list[str]) -> Iterator[str]:
    """The state as text, then the exact prompt with its number of tokens."""
    env, params, tokenizer = _named_env(tag, model, overrides)
    state, step = jax.jit(env.reset)(_level(env, seed), params)
    count = int(step.obs_len)
    yield f"# {tag}, level {seed}"
    yield env.render(state, params)
    kind = "bytes" if tokenizer is None else f"tokens of {model}"
    yield f"# The prompt, {count} {kind}, chat format {env.chat.name}"
    yield env.text_of(params, step.obs_tokens[:count])


def play(tag: str, seed: int, overrides: list[str]) -> int:
    """A person types answers; ends at the end of the episode, at end of input, or on 'quit'."""
    from envs_jax.text.byte_tokenizer import ByteTokenizer

    env, params, _ = _named_env(tag, None, overrides)
    tokenizer = ByteTokenizer()
    key = jax.random.key(seed)
    state, _ = jax.jit(env.reset)(_level(env, seed), params)
    step_fn = jax.jit(env.step)
    print(env.env.instruction())
    if env.env.action_names:
        print(f"Actions: {', '.join(env.env.action_names)}; up to {env.config.max_actions_per_turn} in one answer, "
              f"joined by {env.config.action_sep}. 'quit' ends.")  # fmt: skip
    total = 0.0
    for turn in range(env.config.max_turns):
        print(f"\nTurn {turn + 1} of {env.config.max_turns}, {int(state.actions_left)} actions left")
        print(env.render(state, params), end="")
        try:
            answer = input("> ")
        except EOFError:
            print()
            break
        if answer.strip().lower() == "quit":
            break
        opening = "-</think><answer>" if env.config.enable_think else ""
        ids = tokenizer.encode(f"{opening}{answer}</answer>")[: env.config.max_response_tokens]
        tokens = jnp.zeros(env.config.max_response_tokens, jnp.int32).at[: len(ids)].set(jnp.array(ids))
        state, step = step_fn(jax.random.fold_in(key, turn), state, tokens, jnp.int32(len(ids)), params)
        total += float(step.reward) + float(step.penalty)
        note = "" if int(step.info.n_valid) else "  (no valid action)"
        print(f"reward {float(step.reward):+.1f}{note}")
        if bool(step.terminated | step.truncated):
            print(env.render(state, params), end="")
            print("Success." if bool(step.success) else "The episode is over without success.")
            break
    print(f"Total {total:+.1f}")
    sys.stdout.flush()
    return 0


def model_table() -> Table:
    table = Table(title="Models", title_justify="left")
    for column in ("name", "from", "megabytes", "licence", "here"):
        table.add_column(column)
    for name, model in MODELS.items():
        try:
            here = str(pulled(name))
        except ValueError:
            here = "no"
        table.add_row(name, model.requirement, f"{model.size / 1e6:.0f}", model.license, here)
    return table
