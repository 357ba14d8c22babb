"""Log-probabilities of given tokens, and of every trace under every prompt."""

from ragen_jax.scoring.cross import CrossMarginals, cross_marginals, cross_score
from ragen_jax.scoring.logprobs import token_logprobs
from ragen_jax.scoring.packing import Contexts, Traces
from ragen_jax.scoring.policy import policy_logprobs

__all__ = [
    "Contexts",
    "CrossMarginals",
    "Traces",
    "cross_marginals",
    "cross_score",
    "policy_logprobs",
    "token_logprobs",
]
