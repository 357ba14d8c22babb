"""The command line. A command is a few lines over the library; bad input ends in one line and exit code 2."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envs_jax.errors import suggestion
from ragen_jax.arguments import command_parser, split_overrides

if TYPE_CHECKING:
    from rich.console import Console


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code: 0, 2 for bad input, 130 when interrupted."""
    try:
        others, overrides = split_overrides(sys.argv[1:] if argv is None else argv)
        if others and not others[0].startswith("-") and others[0] not in _COMMANDS:
            raise ValueError(f"no command {others[0]!r}; {suggestion(others[0], _COMMANDS)}")
        args = command_parser().parse_args(others)
        takes = (
            args.command in ("train", "eval", "diagnose", "gradients", "play")
            or getattr(args, "action", "") == "show"
        )
        if overrides and not takes:
            raise ValueError(f"{args.command} takes no --{overrides[0].partition('=')[0]}")
        _quiet_and_cached()
        return int(_COMMANDS[args.command](args, overrides) or 0)
    except ValueError as e:
        print(f"ragen-jax: {' '.join(str(e).split())}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as e:
        print(f"ragen-jax: {e.filename or 'file'}: {e.strerror or e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ragen-jax: interrupted", file=sys.stderr)
        return 130


def _quiet_and_cached() -> None:
    """Keeps compiled programs between runs, in the cache folder, and libraries' own talk off the terminal."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    logging.getLogger("absl").setLevel(logging.ERROR)
    import jax

    from ragen_jax.models.hub import cache_dir

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _console() -> Console:
    """The terminal; what goes to a pipe or a file gets room for a table."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)


# -- commands --------------------------------------------------------------------------------------
def _train(args: argparse.Namespace, overrides: list[str]) -> int:
    from ragen_jax.training.trainer import LostProcess

    if args.distributed:
        from ragen_jax.parallel import start

        start(coordinator=args.coordinator, processes=args.processes, process=args.process)
    elif args.coordinator or args.processes is not None or args.process is not None:
        raise ValueError("--coordinator, --processes and --process belong to --distributed")
    try:
        return _trained(args, overrides)
    except LostProcess as e:
        print(f"ragen-jax: {e}", file=sys.stderr, flush=True)
        os._exit(3)  # what JAX does at exit would wait for the lost process


def _trained(args: argparse.Namespace, overrides: list[str]) -> int:
    from ragen_jax.console import summary_table
    from ragen_jax.parallel import is_first
    from ragen_jax.report import write_report
    from ragen_jax.training.config import load_config
    from ragen_jax.training.run_dir import resumed_config
    from ragen_jax.training.trainer import train

    console = _console()
    if args.resume is not None:
        if args.config is not None:
            raise ValueError("--resume takes the run's own configuration; leave --config out")
        result = train(resumed_config(args.resume, overrides), resume=args.resume, console=console)
    else:
        result = train(load_config(args.config, overrides), console=console)
    if not is_first():
        return 130 if result.stopped == "interrupted" else 0
    if result.stopped == "interrupted":
        print(f"Interrupted after step {result.summary['steps']}. Go on with:")
        print(f"  ragen-jax train --resume {shlex.quote(str(result.run_dir))}")
        return 130
    if result.stopped:
        print(f"Stopped early: {result.stopped}")
    console.print(summary_table(result.summary))
    print(f"Report: {write_report(result.run_dir)}")
    return 0


def _compile(args: argparse.Namespace, overrides: list[str]) -> int:
    import json
    from dataclasses import asdict, replace

    import jax

    jax.config.update("jax_platforms", "cpu")  # the TPU's compiler is a library here, not a device
    from ragen_jax.console import compiled_table
    from ragen_jax.parallel import ahead

    model = replace(ahead.preset(args.model), attention=args.attention)
    groups, members = _numbers("--batch", args.batch, 2)
    names = ahead.PROGRAMS if args.programs is None else tuple(args.programs.split(","))
    for name in names:
        if name not in ahead.PROGRAMS:
            raise ValueError(f"--programs {name!r}: {suggestion(name, ahead.PROGRAMS)}")
    work = ahead.Workload(
        groups, members, args.turns, args.tokens, args.micro, critic=not args.grpo, reference=not args.grpo
    )
    chip, devices = ahead.topology(args.topology)

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if args.search:
        section, work = ahead.search(model, work, chip, devices, say)
    else:
        shape = (
            (1, len(devices) // args.tensor, args.tensor)
            if args.mesh is None
            else _numbers("--mesh", args.mesh, 3)
        )
        section = ahead.ParallelSection(*shape)
        if shape[2] > model.num_key_value_heads:
            section = replace(section, replicate=("kv_heads",))
    job = ahead.Job(model, work, section, chip, devices)
    found = []
    for name in names:
        say(f"compiling {name} ...")
        found.append(job.compile(name))
    if args.json:
        rows = [asdict(c) | {"total": c.total, "fits": c.fits(chip)} for c in found]
        print(
            json.dumps(
                {"model": args.model, "topology": args.topology, "mesh": asdict(section), "programs": rows}
            )
        )
    else:
        _console().print(compiled_table(args.model, args.topology, job, chip, found))
    return 0 if all(c.fits(chip) for c in found) else 1


def _numbers(option: str, text: str, count: int) -> tuple[int, ...]:
    parts = text.lower().split("x")
    if len(parts) != count or not all(p.isdigit() and int(p) > 0 for p in parts):
        raise ValueError(f"{option} {text!r}: write {count} positive numbers with x between them")
    return tuple(int(p) for p in parts)


def _eval(args: argparse.Namespace, overrides: list[str]) -> int:
    import json

    from ragen_jax.console import evaluation_table
    from ragen_jax.training.evaluation import baselines, evaluate
    from ragen_jax.training.metrics import finite
    from ragen_jax.training.policy import load_policy

    policy = load_policy(args.source, overrides, step=args.step)
    found = baselines(policy.setup)
    result = evaluate(policy.setup, policy.trainable, policy.base)
    if args.json:
        print(json.dumps(finite({"source": args.source, "metrics": result.metrics, "baselines": found})))
    else:
        _console().print(evaluation_table(policy.setup, result, found))
    return 0


def _diagnose(args: argparse.Namespace, overrides: list[str]) -> int:
    import json

    from ragen_jax.console import diagnosis_tables
    from ragen_jax.training.metrics import finite
    from ragen_jax.training.policy import diagnose_policy, load_policy

    if args.rollouts is not None:
        return _diagnose_rollouts(args, overrides)
    for name in ("samples", "temperature", "chat", "tags", "whole"):
        if getattr(args, name):
            raise ValueError(f"--{name} belongs to --rollouts FILE")
    policy = load_policy(args.source, overrides, step=args.step)
    diagnosis = diagnose_policy(policy, show=args.show)
    if args.json:
        out = {"source": args.source, "metrics": diagnosis.metrics, "traces": diagnosis.traces}
        print(json.dumps(finite(out)))
    else:
        for part in diagnosis_tables(policy.setup, diagnosis):
            _console().print(part)
    return 0


def _diagnose_rollouts(args: argparse.Namespace, overrides: list[str]) -> int:
    import json

    from ragen_jax.console import rollouts_tables
    from ragen_jax.training.metrics import finite
    from ragen_jax.training.policy import load_weights
    from ragen_jax.training.rollout_diagnosis import diagnose_rollouts
    from ragen_jax.training.rollout_files import Reader, chat_format

    if overrides:
        raise ValueError(f"--rollouts uses no setting of a configuration; leave --{overrides[0]} out")
    if args.whole and args.tags:
        raise ValueError("--whole takes no tags; leave --tags out")
    samples = 128 if args.samples is None else args.samples
    temperature = 1.0 if args.temperature is None else args.temperature
    if samples < 2:
        raise ValueError(f"--samples is {samples}; at least 2 traces are compared")
    if not 0 < temperature < float("inf"):
        raise ValueError(f"--temperature is {temperature}; it must be positive")
    if not args.rollouts.is_file():
        raise ValueError(f"{args.rollouts}: no such file; give a JSON-lines file")
    weights = load_weights(args.source, step=args.step)
    if weights.tokenizer is None:
        raise ValueError(f"{args.source} has no tokenizer (tokenizer.json)")
    opening, closing = args.tags or ("<think>", "</think>")
    if not opening or not closing:
        raise ValueError("--tags must not be empty")
    tags = None if args.whole else (opening, closing)
    reader = Reader(weights.tokenizer, chat_format(weights.tokenizer, args.chat), tags)
    diagnosis = diagnose_rollouts(
        reader.read(args.rollouts), weights, samples=samples, temperature=temperature, show=args.show
    )
    if args.json:
        out = {"source": args.source, "rollouts": str(args.rollouts)}
        print(json.dumps(finite(out | {"metrics": diagnosis.metrics, "traces": diagnosis.traces})))
    else:
        for part in rollouts_tables(str(args.rollouts), diagnosis):
            _console().print(part)
    return 0


def _gradients(args: argparse.Namespace, overrides: list[str]) -> int:
    import json

    from ragen_jax.console import gradient_table
    from ragen_jax.training.gradients import as_metrics, probe, write_plots
    from ragen_jax.training.metrics import finite
    from ragen_jax.training.policy import load_policy

    policy = load_policy(args.source, overrides, step=args.step)
    buckets = probe(policy)
    paths = write_plots(buckets, args.plots, str(args.source)) if args.plots is not None else []
    if args.json:
        print(json.dumps(finite({"source": args.source, "metrics": as_metrics(buckets)})))
        return 0
    _console().print(gradient_table(policy.setup, buckets))
    for path in paths:
        print(path)
    return 0


def _report(args: argparse.Namespace, overrides: list[str]) -> int:
    from ragen_jax.report import write_report

    if not any((args.run / name).is_file() for name in ("config.yaml", "metrics.jsonl")):
        raise ValueError(f"{args.run} is not a run directory (no config.yaml, no metrics.jsonl)")
    print(write_report(args.run))
    return 0


def _envs(args: argparse.Namespace, overrides: list[str]) -> int:
    from ragen_jax.console import env_table
    from ragen_jax.play import show_level

    if args.action == "list":
        _console().print(env_table())
        return 0
    for line in show_level(args.tag, args.seed, args.model, overrides):
        print(line)
    return 0


def _play(args: argparse.Namespace, overrides: list[str]) -> int:
    from ragen_jax.play import play

    play(args.tag, args.seed, overrides)
    return 0


def _models(args: argparse.Namespace, overrides: list[str]) -> int:
    from ragen_jax.console import comparison_table, model_table
    from ragen_jax.models import pull

    if args.action == "list":
        _console().print(model_table())
    elif args.action == "pull":
        print(pull(args.name, args.dest, progress=lambda line: print(line, file=sys.stderr)))
    elif args.action == "export":
        print(_export(args))
    else:
        from ragen_jax.models.check import compare

        found = compare(args.dir)
        _console().print(comparison_table(str(args.dir), found, args.tolerance))
        return 0 if found.logit_difference <= args.tolerance and found.same_ids is not False else 1
    return 0


def _export(args: argparse.Namespace) -> Path:
    from ragen_jax.models import save_adapter, save_pretrained
    from ragen_jax.tokenizers import SmallTokenizer
    from ragen_jax.training.policy import load_weights

    if args.dest.exists() and (not args.dest.is_dir() or any(args.dest.iterdir())):
        raise ValueError(f"{args.dest}: already there and not empty; choose another folder or delete it")
    weights = load_weights(args.source, step=args.step)
    if isinstance(weights.tokenizer, SmallTokenizer):
        words = "transformers reads the model, but has no tokenizer of this kind: keep small_tokenizer.json for ids"
        print(f"note: {words}", file=sys.stderr)
    if args.adapter:
        if weights.adapters is None or weights.lora is None:
            raise ValueError(f"{args.source} has no adapters (model.lora is not set); leave --adapter out")
        if args.dtype != "float32":
            raise ValueError("adapters are written in float32; leave --dtype out")
        return save_adapter(
            weights.adapters, weights.model, weights.lora, args.dest, weights.tokenizer,
            base=str(weights.origin), origin=weights.origin,
        )  # fmt: skip
    return save_pretrained(
        weights.params, weights.model, args.dest, weights.tokenizer, adapters=weights.adapters, lora=weights.lora,
        origin=weights.origin, dtype=args.dtype,
    )  # fmt: skip


_COMMANDS = {
    "train": _train, "eval": _eval, "diagnose": _diagnose, "gradients": _gradients, "report": _report,
    "compile": _compile, "envs": _envs, "play": _play, "models": _models,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
