"""What a rollout is told: the static description, and the tables of the tokenizer that decoding reads."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, UInt8

from envs_jax.core import Tokenizer
from envs_jax.mixture import Mixture
from envs_jax.turn import TurnEnv
from ragen_jax.models import ModelConfig
from ragen_jax.rollout.sampling import Truncation, stop_table
from ragen_jax.rollout.windows import Window


@dataclass(frozen=True)
class RolloutSpec:
    """Static description of a rollout; one compiled program each."""

    model: ModelConfig
    env: TurnEnv | Mixture
    valid_vocab: int  # ids at or above are padding rows of the embedding and are never sampled
    truncation: Truncation = field(default_factory=Truncation)
    window: Window | None = None  # None: every turn is sampled under all that came before

    @property
    def capacity(self) -> int:
        """L: slots of the longest dialogue that the environment's fixed buffers allow, and of what a window inserts."""
        joints = 0 if self.window is None else len(self.window.answer) + len(self.window.result)
        return max(dialogue_slots(env) for env in self.parts) + joints

    @property
    def parts(self) -> tuple[TurnEnv, ...]:
        """The environments of the batch."""
        return self.env.parts if isinstance(self.env, Mixture) else (self.env,)

    def __post_init__(self) -> None:
        if self.window is not None:
            self._check_window(self.window)
        for env in self.parts if self.window is None else ():
            c = env.config
            if dialogue_slots(env) > self.model.max_position_embeddings:
                raise ValueError(
                    f"an episode of {env.tag} may need {dialogue_slots(env)} tokens (prompt {env.prompt_capacity} + "
                    f"{c.max_turns} turns of {c.max_response_tokens} sampled + {env.obs_capacity} given), but "
                    f"model.max_position_embeddings is {self.model.max_position_embeddings}; lower env.max_turns or "
                    "env.max_response_tokens, or show less of it (rollout.max_model_len, rollout.context_window_mode)"
                )
        if self.valid_vocab > self.model.vocab_size:
            raise ValueError(
                f"the tokenizer has {self.valid_vocab} ids but model.vocab_size is {self.model.vocab_size}; "
                "the model and the tokenizer do not belong together"
            )

    def _check_window(self, window: Window) -> None:
        if not isinstance(self.env, TurnEnv):
            raise ValueError("rollout.context_window_mode: a mixture (env.tags) needs full contexts")
        needed = window.prompt_slots(self.env) + self.env.config.max_response_tokens
        if needed > self.model.max_position_embeddings:
            raise ValueError(
                f"a turn of {self.env.tag} may need {needed} tokens under {window.turns} turns of context, but "
                f"model.max_position_embeddings is {self.model.max_position_embeddings}; lower "
                "rollout.max_context_window or rollout.max_model_len"
            )


def dialogue_slots(env: TurnEnv) -> int:
    """Slots of the longest dialogue that an environment's fixed buffers allow."""
    turns = env.config.max_turns
    return env.prompt_capacity + turns * env.config.max_response_tokens + (turns - 1) * env.obs_capacity


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StopTable:
    """Tables of the tokenizer that decoding needs; traced, so a program holds no copy of them."""

    automaton: UInt8[Array, "V S"]
    is_eos: Bool[Array, "V"]


def make_stop_table(tokenizer: Tokenizer, tag: str = "</answer>") -> StopTable:
    """Stops on the tokenizer's eos ids and on `tag` wherever it appears in the sampled bytes."""
    table = stop_table(tokenizer.token_bytes(), tokenizer.eos_ids, tag.encode())
    is_eos = jnp.zeros(tokenizer.vocab_size, bool).at[jnp.array(tokenizer.eos_ids)].set(True)
    return StopTable(table, is_eos)
