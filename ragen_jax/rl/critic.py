"""The critic: where its values come from, what of it is learned, and how its parameters lie beside the policy's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from ragen_jax.models import ModelConfig, Params, forward
from ragen_jax.models.lora import LoraConfig, init_lora, merge


@dataclass(frozen=True)
class CriticConfig:
    """Where the values of gae and bi_level_gae come from. Raises ValueError naming the field.

    kind: separate: a model of its own, which starts from the policy's trunk; shared: a value head on the policy's last
        hidden states, in the same forward, and the value loss trains the policy's trunk too; lora: adapters of its own
        and a value head over the weights that the policy has, which the value loss leaves as they are.
    lora: adapters of kind lora, fields as of model.lora; null: those of model.lora.
    vf_coef: weight of the value loss in the sum of losses; it matters where the trunk is shared, and else to the
        gradient clip alone.
    """

    kind: Literal["separate", "shared", "lora"] = "separate"
    lora: LoraConfig | None = None
    vf_coef: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in ("separate", "shared", "lora"):
            raise ValueError(f"critic.kind is {self.kind!r}; use separate, shared or lora")
        if self.lora is not None and self.kind != "lora":
            raise ValueError(f"critic.lora is set, but critic.kind is {self.kind}; set critic.kind to lora")
        if not self.vf_coef > 0:
            raise ValueError(f"critic.vf_coef is {self.vf_coef}; it must be positive")

    def adapters(self, policy: LoraConfig | None) -> LoraConfig | None:
        """The critic's adapters, `policy` being the policy's; None where it has none."""
        return (self.lora or policy) if self.kind == "lora" else None

    def check_adapters(self, policy: LoraConfig | None) -> None:
        """Raises ValueError for adapters of no rank: neither the critic's nor the policy's are given."""
        if self.kind == "lora" and self.adapters(policy) is None:
            raise ValueError(
                "critic.lora is None; critic.kind lora needs adapters: give critic.lora.rank, or use model.lora"
            )


def init_critic(
    cfg: ModelConfig, policy: Params, form: CriticConfig, lora: LoraConfig | None, key: Array
) -> dict[str, Any]:
    """What is learned of a critic around the policy's initial parameters: a scalar head at zero under "value", beside
    a copy of the trunk (separate), nothing (shared), or fresh adapters under "adapters" (lora).

    `lora`: the policy's adapters.
    """
    head = {"weight": jnp.zeros(cfg.hidden_size, jnp.float32), "bias": jnp.zeros((), jnp.float32)}
    form.check_adapters(lora)
    if form.kind == "shared":
        return {"value": head}
    if (adapters := form.adapters(lora)) is not None:
        return {"adapters": init_lora(cfg, adapters, jax.random.fold_in(key, 1 << 20)), "value": head}
    trunk = {group: leaves for group, leaves in policy.items() if group != "lm_head"}
    return {**jax.tree.map(jnp.array, trunk), "value": head}


def critic_hidden(
    trainable: dict[str, Any],
    base: Params | None,
    policy_hidden: Float[Array, "B L D"],
    cfg: ModelConfig,
    tokens: Int[Array, "B L"],
    *,
    form: CriticConfig,
    lora: LoraConfig | None,
    remat: str = "none",
) -> Float[Array, "B L D"]:
    """The states that values are read from. `policy_hidden`: those of the policy's own forward; `base`: the frozen
    weights under its adapters `lora`.

    The weights under a critic's adapters are constants of differentiation, and no copy of them is kept.
    """
    critic = trainable["critic"]
    if form.kind == "shared":
        return policy_hidden
    if (adapters := form.adapters(lora)) is not None:
        under = trainable["policy"] if lora is None else base
        if under is None:
            raise ValueError("LoRA needs the frozen base parameters: pass base=")
        critic = merge(jax.lax.stop_gradient(under), critic["adapters"], adapters)
    return forward(critic, cfg, tokens, remat=remat)


def critic_values(critic: dict[str, Any], hidden: Float[Array, "... D"]) -> Float[Array, "..."]:
    """Scalar value of each hidden state, float32."""
    head = critic["value"]
    return hidden.astype(jnp.float32) @ head["weight"] + head["bias"]
