"""The static description of an update."""

from __future__ import annotations

from dataclasses import dataclass, field

from ragen_jax.models import ModelConfig
from ragen_jax.models.lora import LoraConfig
from ragen_jax.rl.critic import CriticConfig
from ragen_jax.rl.objective import Objective
from ragen_jax.rl.state import OptimConfig


@dataclass(frozen=True)
class UpdateSpec:
    """Static description of an update. `mini_batch_size` and `micro_batch_size` count rows (trajectories)."""

    model: ModelConfig
    objective: Objective
    optim: OptimConfig
    valid_vocab: int
    max_sampled: int  # most tokens that one row can have sampled: turns x response tokens
    mini_batch_size: int = 32
    micro_batch_size: int = 4
    ppo_epochs: int = 1
    length_buckets: int = 4
    lora: LoraConfig | None = None
    remat: str = "none"
    critic: CriticConfig = field(default_factory=CriticConfig)

    def __post_init__(self) -> None:
        for name in ("mini_batch_size", "micro_batch_size", "ppo_epochs", "length_buckets"):
            if getattr(self, name) < 1:
                raise ValueError(f"training.{name} is {getattr(self, name)}; it must be at least 1")
        if self.mini_batch_size % self.micro_batch_size:
            raise ValueError(
                f"training.mini_batch_size ({self.mini_batch_size}) must be a multiple of "
                f"training.micro_batch_size ({self.micro_batch_size})"
            )

    @property
    def norm_length(self) -> float:
        """The constant length of seq-mean-token-sum-norm."""
        factor = self.objective.loss_scale_factor
        return float(self.max_sampled) if factor is None else factor
