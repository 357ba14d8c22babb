"""Text environments as pure functions of arrays: observations are token ids, actions are read from token ids.

`make(tag, tokenizer)` gives a `TurnEnv` and its parameters; `registered()` lists the tags.
"""

from envs_jax.core import Environment, Span, StepInfo, TimeStep, Tokenizer, Transition
from envs_jax.errors import ConfigError
from envs_jax.registry import EnvSpec, make, new_levels, register, registered, spec
from envs_jax.turn import TurnConfig, TurnEnv, TurnParams, TurnState

__all__ = [
    "ConfigError",
    "EnvSpec",
    "Environment",
    "Span",
    "StepInfo",
    "TimeStep",
    "Tokenizer",
    "Transition",
    "TurnConfig",
    "TurnEnv",
    "TurnParams",
    "TurnState",
    "make",
    "new_levels",
    "register",
    "registered",
    "spec",
]
