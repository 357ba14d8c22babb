"""The update in PyTorch, eager, on transformers' Llama: what `ragen_jax.rl.update` does, written as one would there.

Formulas as published: PPO's clip with separate bounds and dual clip, GRPO's advantages, GAE, whitening over the batch,
clipped value loss, token-mean over the minibatch, AdamW after a clip of the gradient's norm, one for the policy and one
for the critic. Log-probs are made of the sampled positions alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from ragen_jax.models import ModelConfig, Params
from ragen_jax.models.hf import config_dict
from ragen_jax.models.weights import named_tensors
from ragen_jax.rl import UpdateSpec


def _llama(cfg: ModelConfig, params: Params) -> transformers.LlamaForCausalLM:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config_dict(cfg)))
    state = {name: torch.from_numpy(np.array(tensor)) for name, tensor in named_tensors(params, cfg)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model


class _Critic(nn.Module):
    def __init__(self, cfg: ModelConfig, params: Params) -> None:
        super().__init__()
        self.trunk = _llama(cfg, params).model
        self.head = nn.Linear(cfg.hidden_size, 1)
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(np.array(params["value"]["weight"]))[None])
            self.head.bias.copy_(torch.tensor(float(params["value"]["bias"])))

    def forward(self, ids: Tensor, given: int) -> Tensor:
        return self.head(self.trunk(ids, use_cache=False).last_hidden_state[:, given - 1 : -1])[..., 0]


def _whiten(x: Tensor) -> Tensor:
    return (x - x.mean()) * torch.rsqrt(x.var() + 1e-8)


class TorchUpdate:
    """Policy, critic where the objective has one, and their optimisers. A call is one update on some groups.

    tokens i64[B, L], the first `given` of each row not sampled; reward f32[B], on each row's last token; group-major.
    """

    def __init__(
        self, spec: UpdateSpec, trainable: dict[str, Any], tokens: np.ndarray, given: int, reward: np.ndarray,
        members: int,
    ) -> None:  # fmt: skip
        self.spec, self.given, self.members = spec, given, members
        self.tokens, self.reward = torch.from_numpy(tokens).long(), torch.from_numpy(reward).float()
        self.parts: dict[str, nn.Module] = {"actor": _llama(spec.model, trainable["policy"])}
        if "critic" in trainable:
            self.parts["critic"] = _Critic(spec.model, trainable["critic"])
        optim = spec.optim
        rates = {"actor": optim.lr, "critic": optim.critic_lr}
        self.optimisers = {
            name: torch.optim.AdamW(
                part.parameters(), lr=rates[name], betas=optim.betas, eps=1e-8, weight_decay=optim.weight_decay,
                fused=True,
            )
            for name, part in self.parts.items()
        }  # fmt: skip

    def _logprobs(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Of the sampled tokens, and the entropies there: [rows, sampled]."""
        policy = self.parts["actor"]
        hidden = policy.model(ids, use_cache=False).last_hidden_state[:, self.given - 1 : -1]
        logp = policy.lm_head(hidden).log_softmax(-1)
        return logp.gather(-1, ids[:, self.given :, None])[..., 0], -(logp.exp() * logp).sum(-1)

    def _advantages(self, rows: Tensor, value: Tensor | None, sampled: int) -> tuple[Tensor, Tensor]:
        if value is None:
            scores = self.reward.reshape(-1, self.members)
            std = scores.std(dim=1, keepdim=True)
            each = (scores - scores.mean(dim=1, keepdim=True)) / (std + 1e-6)
            advantage = each.reshape(-1)[rows][:, None].expand(-1, sampled)
            return advantage, torch.zeros_like(advantage)
        gamma, lam = self.spec.objective.gamma, self.spec.objective.lam
        reward = torch.zeros(len(rows), sampled)
        reward[:, -1] = self.reward[rows]
        following = torch.zeros(len(rows))
        advantage, ahead = torch.zeros_like(value), following
        for t in range(sampled - 1, -1, -1):
            following = reward[:, t] + gamma * ahead - value[:, t] + gamma * lam * following
            advantage[:, t], ahead = following, value[:, t]
        return _whiten(advantage), advantage + value

    def __call__(self, groups: np.ndarray) -> dict[str, float]:
        """Learns from the groups that are true in bool[P]; means by the names that the update gives them."""
        spec = self.spec
        rows = torch.from_numpy(np.flatnonzero(np.repeat(groups, self.members)))
        with torch.no_grad():
            chunks = rows.split(spec.micro_batch_size)
            old = torch.cat([self._logprobs(self.tokens[c])[0] for c in chunks])
            value = None
            if "critic" in self.parts:
                value = torch.cat([self.parts["critic"](self.tokens[c], self.given) for c in chunks])
            advantage, returns = self._advantages(rows, value, old.shape[1])
        steps = -(-len(rows) // spec.mini_batch_size)
        means: dict[str, list[float]] = {}
        for place in torch.arange(len(rows)).tensor_split(steps):
            found = self._minibatch(rows, place, old, value, advantage, returns)
            for name, x in found.items():
                means.setdefault(name, []).append(x)
        return {name: float(np.mean(x)) for name, x in means.items()}

    def _minibatch(
        self,
        rows: Tensor,
        place: Tensor,
        old: Tensor,
        value: Tensor | None,
        advantage: Tensor,
        returns: Tensor,
    ) -> dict[str, float]:
        o = self.spec.objective
        count = len(place) * old.shape[1]
        sums = {"actor/pg_loss": 0.0, "actor/entropy": 0.0, "actor/pg_clipfrac": 0.0}
        sums |= {} if value is None else {"critic/vf_loss": 0.0}
        for i in place.split(self.spec.micro_batch_size):
            ids, a = self.tokens[rows[i]], advantage[i]
            logprob, entropy = self._logprobs(ids)
            ratio = (logprob - old[i]).clamp(-20, 20).exp()
            unclipped, clipped = -a * ratio, -a * ratio.clamp(1 - o.clip_ratio_low, 1 + o.clip_ratio_high)
            pg = torch.maximum(unclipped, clipped)
            pg = torch.where(a < 0, torch.minimum(pg, -a * o.clip_ratio_c), pg)
            loss = (pg.sum() - o.entropy_coeff * entropy.sum()) / count
            terms = {"actor/pg_loss": pg, "actor/entropy": entropy, "actor/pg_clipfrac": clipped > unclipped}
            if value is not None:
                v, r = self.parts["critic"](ids, self.given), returns[i]
                bounded = v.clamp(value[i] - o.cliprange_value, value[i] + o.cliprange_value)
                vf = 0.5 * torch.maximum((v - r) ** 2, (bounded - r) ** 2)
                loss = loss + vf.sum() / count
                terms["critic/vf_loss"] = vf
            loss.backward()
            for name, term in terms.items():
                sums[name] += float(term.detach().sum())
        out = {name: total / count for name, total in sums.items()}
        for name, part in self.parts.items():
            norm = nn.utils.clip_grad_norm_(part.parameters(), self.spec.optim.grad_clip)
            out[f"{name}/grad_norm"] = float(norm)
            self.optimisers[name].step()
            self.optimisers[name].zero_grad(set_to_none=True)
        return out
