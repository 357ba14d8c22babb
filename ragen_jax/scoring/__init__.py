"""Log-probabilities of given tokens, and of every trace under every prompt."""

from ragen_jax.scoring.logprobs import token_logprobs

__all__ = ["token_logprobs"]
