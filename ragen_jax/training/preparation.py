"""What a run from the start does before RL: the baselines, and the warm start on a scripted teacher's words."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from rich.progress import Progress

from envs_jax.turn import TurnState
from ragen_jax.models import Params
from ragen_jax.training.evaluation import baselines
from ragen_jax.training.setup import Part, Setup
from ragen_jax.training.teachers import demonstrations, descriptions
from ragen_jax.training.warm_start import Dialogues, Phase, imitate, merge_dialogues, play, read_aloud


@dataclass(frozen=True)
class Preparation:
    """What a run from the start needs besides its setup: the part that can still be refused for bad settings."""

    baselines: dict[str, dict[str, float]]
    phases: list[Phase]  # of the warm start


def prepare(setup: Setup) -> Preparation:
    """Plays the baselines, and the teacher's demonstrations where there is a warm start."""
    section = setup.config.warm_start
    found = baselines(setup)
    if not section.steps:
        return Preparation(found, [])

    key = jax.random.fold_in(jax.random.key(setup.config.run.seed), 0)
    lessons = [_lessons(setup, part, key) for part in setup.parts]
    phases = [
        Phase(
            merge_dialogues([read for read, _ in lessons]), section.reading_steps, section.reading_batch_size
        ),
        Phase(merge_dialogues([played for _, played in lessons]), section.steps, section.batch_size),
    ]
    return Preparation(found, phases)


def _lessons(setup: Setup, part: Part, key: jax.Array) -> tuple[Dialogues, Dialogues]:
    """What the teacher sees in the states that it meets, each read by itself, and its dialogues, in one environment.

    Without reading steps its dialogues twice. The environment's share of all demonstrations is that of its groups.
    """
    section = setup.config.warm_start
    met: list[TurnState] = []

    def speak(states: TurnState, key: jax.Array) -> list[str]:
        met.append(states)
        return demonstrations(part.env, part.train, states, key, section.skill)

    def see(states: TurnState, key: jax.Array) -> list[str]:
        return descriptions(part.env, part.train, states, key)

    count = max(1, section.demonstrations * part.groups // setup.config.rollout.env_groups)
    world = part.env, part.train, setup.tokenizer
    played = play(*world, speak, jnp.arange(count) % part.env.num_levels, key)
    if not section.reading_steps:
        return played, played
    states = jax.tree.map(lambda *turns: np.concatenate(turns), *met)
    live = ~(states.terminated | states.truncated)
    states = jax.tree.map(lambda x: x[live], states)
    return read_aloud(*world, see, states, key), played


def warm_start(setup: Setup, phases: list[Phase], progress: Progress) -> tuple[Params, float]:
    """Imitates the demonstrations; returns the parameters and the last loss in nats a token."""
    section = setup.config.warm_start
    params, loss = setup.params, jnp.float32(math.nan)
    task = progress.add_task("warm start", total=sum(phase.steps for phase in phases), note="")
    for params, loss in imitate(  # noqa: B007
        setup.params, setup.model, phases, lr=section.lr,
        valid_vocab=setup.tokenizer.vocab_size, seed=setup.config.run.seed,
    ):  # fmt: skip
        progress.advance(task)
    progress.update(task, note=f"loss {float(loss):.3f}")
    return params, float(loss)
