"""The tables that the command line prints. Text from files and models is never read as markup."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import envs_jax
from ragen_jax.models.check import Comparison
from ragen_jax.models.hub import MODELS, pulled
from ragen_jax.parallel.ahead import GIB, Chip, Compiled, Job
from ragen_jax.rl.gradient_analysis import Bucket
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


def _rate(x: dict[str, float]) -> Text:
    return Text(f"{x['success']:.3f} [{x['low']:.3f}, {x['high']:.3f}]")


def _number(x: float, places: int = 3) -> str:
    return f"{x:.{places}f}" if math.isfinite(x) else "none"


def _interval(metrics: dict[str, float], name: str) -> Text:
    """A metric with its bootstrap interval, where it has one."""
    value, low, high = (metrics.get(f"{name}{end}", math.nan) for end in ("", "_low", "_high"))
    interval = f" [{low:.3f}, {high:.3f}]" if math.isfinite(low) and math.isfinite(high) else ""
    return Text(_number(value, 4) + interval)


def _table(title: str, *columns: str) -> Table:
    """A table with its title and first column at the left, the other columns at the right."""
    table = Table(title=Text(title), title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if index else "left", overflow="fold")
    return table


def compiled_table(model: str, topology: str, job: Job, chip: Chip, found: list[Compiled]) -> Table:
    """What each program needs of a chip, in GiB, against what it has, with its collectives in MiB."""
    shape, work = job.placement.mesh.shape, job.work
    table = _table(
        f"{model} on {topology}, data x fsdp x tensor = {' x '.join(str(n) for n in shape.values())}; "
        f"{work.groups} groups x {work.members}, {work.turns} turns, {work.tokens} tokens, microbatches of "
        f"{work.micro_batch_size}; {chip.hbm / GIB:.0f} GiB a chip",
        "program", "arguments", "outputs", "temporaries", "other state", "total", "fits", "seconds", "floor s",
        "collectives*",
    )  # fmt: skip
    for c in found:
        name, floor = c.name, f"{c.floor_flops / chip.peak:.3f}"
        if c.refused is not None:
            table.add_row(name, "", "", "", "", "", Text(f"no: {c.refused}"), "", floor, "")
            continue
        sizes = (c.arguments, c.outputs, c.temporaries, c.other, c.total)
        moves = ", ".join(f"{n} {kind} {size / 2**20:.0f}" for kind, (n, size) in c.collectives.items())
        table.add_row(
            name, *(f"{s / GIB:.2f}" for s in sizes), "yes" if c.fits(chip) else "no", f"{c.seconds:.3f}", floor,
            moves or "none",
        )  # fmt: skip
    table.caption = Text(
        "GiB and MiB a chip. seconds: the compiler's estimate with all loops run to their bounds, without collectives "
        "and Pallas kernels. floor: matrix products of the whole batch at the chip's peak. * one round of each loop."
    )
    return table


def summary_table(summary: dict[str, Any]) -> Table:
    """Success before and after RL beside the baselines, and first and last values of the measures."""
    table = _table(f"{summary['tag']}, {summary['steps']} steps", "measure", "before RL", "after")
    if summary["before"] and summary["after"]:
        table.add_row(
            "success on held-out levels, with 95% interval", _rate(summary["before"]), _rate(summary["after"])
        )
    for name, value in summary["baselines"].items():
        table.add_row(f"  {escape(name)} policy", "", _rate(value))
    for name, ends in summary["metrics"].items():
        if ends is not None:
            table.add_row(name.replace("_", " "), f"{ends['first']:.3f}", f"{ends['last']:.3f}")
    return table


def evaluation_table(setup: Setup, result: Evaluation, baselines: dict[str, dict[str, float]]) -> Table:
    """Success of a policy beside the baselines on the same levels."""
    section = setup.config.evaluation
    table = _table(
        f"{setup.env.tag}: {section.levels} held-out levels, temperature {section.temperature}",
        "policy",
        "success, with 95% interval",
    )
    table.add_row("this policy", _rate(result.success(setup.env.tag)))
    for name, value in baselines.items():
        table.add_row(escape(name), _rate(value))
    for name, measure in result.metrics.items():
        short = name.removeprefix(f"val-env/{setup.env.tag}/")
        if not short.startswith("success"):
            table.add_row(f"  {short.replace('_', ' ')}", _number(measure))
    return table


def diagnosis_tables(setup: Setup, diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The paper's Table 1 for each sampling family, the rollout's own figures, and the traces scored."""
    config = setup.config.rollout
    families = [f for f in FAMILIES if f"{FAMILIES[f]}/mi_estimate" in diagnosis.metrics]
    table = _table(
        f"{setup.env.tag}: {config.env_groups} prompts x {config.group_size} members",
        "measure",
        *(family.replace("_", " ") for family in families),
    )

    for label, name in _TABLE_1:
        table.add_row(label, *(_interval(diagnosis.metrics, f"{FAMILIES[f]}/{name}") for f in families))
    yield table
    rest = _table("The episodes", "measure", "value")
    shown = ("train/success", "train/format_ok", "collapse/valid_thinking_rate", "collapse/reasoning_length")
    for name in shown:
        rest.add_row(name.partition("/")[2].replace("_", " "), _number(diagnosis.metrics[name]))
    yield rest
    for trace in diagnosis.traces:
        title = (
            f"prompt {trace['group']}, member {trace['member']}, {trace['tokens']} tokens: "
            f"log p = {trace['own_logprob']:.1f} under its prompt, most likely under {trace['best_prompt']}"
        )
        yield Panel(Text(trace["reasoning"]), title=Text(title), title_align="left")


def rollouts_tables(name: str, diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """The paper's Table 1 of rollouts from a file, their rewards, and the traces scored."""
    table = _table(name, "measure", "value")
    for label, key in _TABLE_1:
        table.add_row(label, _interval(diagnosis.metrics, f"collapse/{key}"))
    yield table
    rest = _table("The rollouts", "measure", "value")
    for key, value in diagnosis.metrics.items():
        section, _, measure = key.partition("/")
        if section != "collapse":
            label = f"reward variance: {measure}" if section == "reward_variance" else measure
            rest.add_row(label.replace("_", " "), _number(value))
    yield rest
    for trace in diagnosis.traces:
        title = (
            f"line {trace['line']}, turn {trace['turn']}, {trace['tokens']} tokens: log p = "
            f"{trace['own_logprob']:.1f} after its context, most likely after that of line {trace['best_line']}"
        )
        yield Panel(Text(trace["reasoning"]), title=Text(title), title_align="left")


def gradient_table(setup: Setup, buckets: list[Bucket]) -> Table:
    """Norms, signal and noise of each bucket of prompts."""
    columns = (
        "prompts",
        "reward std",
        "|task|",
        "|KL|",
        "|entropy|",
        "signal^2",
        "noise",
        "reg^2",
        "signal^2 / noise",
    )
    kind = setup.config.algorithm.adv_estimator
    table = _table(f"{setup.env.tag}: gradients by reward variance, {kind}", "bucket", *columns)

    def interval(x: tuple[float, float, float]) -> str:
        return f"{x[0]:.3g} [{x[1]:.2g}, {x[2]:.2g}]"

    for b in buckets:
        low, high = b.reward_std[1:]
        table.add_row(
            b.name, str(len(b.prompts)), f"{b.reward_std[0]:.3g} ({low:.2g} to {high:.2g})",
            *(f"{b.norms[p]:.3g}" for p in ("task", "kl", "entropy")),
            *(interval(x) for x in (b.signal, b.noise, b.reg, b.snr)),
        )  # fmt: skip
    return table


def env_table() -> Table:
    """Every registered tag with its limits and settings."""
    table = Table(title="Environments", title_justify="left")
    table.add_column("tag", no_wrap=True)
    for column in ("actions", "turns x actions a turn, in all", "settings"):
        table.add_column(column, overflow="fold")
    for tag in envs_jax.registered():
        spec = envs_jax.spec(tag)
        env, turn = spec.factory(**spec.env), envs_jax.TurnConfig(**spec.turn)
        limits = f"{turn.max_turns} x {turn.max_actions_per_turn}, {turn.max_actions_per_traj}"
        settings = ", ".join(f"{k}={v}" for k, v in spec.env.items())
        table.add_row(
            escape(tag),
            escape(", ".join(env.action_names)) or "text, as the prompt says",
            limits,
            escape(settings),
        )
    return table


def comparison_table(name: str, found: Comparison, tolerance: float) -> Table:
    """What `models check` found, and whether it is within the tolerance."""
    table = _table(f"{name} here and in transformers, float32, {found.tokens} tokens", "measure", "value")
    verdict = "equal" if found.logit_difference <= tolerance else "NOT EQUAL"
    table.add_row(
        "largest difference of a logit", f"{found.logit_difference:.2e}, {verdict} at {tolerance:g}"
    )
    table.add_row("largest difference of a log-prob", f"{found.logprob_difference:.2e}")
    table.add_row("largest logit", f"{found.largest_logit:.2f}")
    table.add_row("positions with the same most likely id", f"{found.same_best:.2%}")
    ids = {True: "equal", False: "NOT EQUAL", None: "no tokenizer that transformers reads"}[found.same_ids]
    table.add_row("ids of a sample text", ids)
    table.add_row("chat template", "yes" if found.chat_template else "no")
    return table


def model_table() -> Table:
    """Every model that `models pull` knows, and where it lies if it has been fetched."""
    table = Table(title="Models", title_justify="left")
    for column in ("name", "from", "megabytes", "licence", "here"):
        table.add_column(column, overflow="fold")
    for name, model in MODELS.items():
        try:
            here = str(pulled(name))
        except ValueError:
            here = "no"
        table.add_row(name, model.requirement, f"{model.size / 1e6:.0f}", model.license, escape(here))
    return table
