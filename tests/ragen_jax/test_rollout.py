"""Episodes: every slot accounted for, sampled ids scored as they were sampled, splitting and compiling."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.turn import TurnEnv, TurnParams
from ragen_jax.models import ModelConfig, forward, init_params, unembedding
from ragen_jax.rollout import GIVEN, SAMPLED, RolloutSpec, StopTable, Trajectories, make_stop_table, rollout
from ragen_jax.tokenizers import SmallTokenizer

jitted = jax.jit(rollout, static_argnames=("spec", "group_size"))


@cache
def parts() -> tuple[RolloutSpec, TurnEnv, TurnParams, StopTable, SmallTokenizer]:
    """A tiny untrained policy with a vocabulary in which tags are as likely as letters: turns end in all ways."""
    tokenizer = SmallTokenizer.build(["Left Right Up Down", " Left Right Up Down √"])
    env, params = envs_jax.make(
        "FrozenLake", tokenizer, size=3, p=0.9, success_rate=0.5, style="brief", max_turns=3, max_response_tokens=12,
        num_levels=16,
    )  # fmt: skip
    model = ModelConfig(
        vocab_size=tokenizer.vocab_size + 3, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=24, tie_word_embeddings=False,
    )  # fmt: skip
    return RolloutSpec(model, env, tokenizer.vocab_size), env, params, make_stop_table(tokenizer), tokenizer


@cache
def policy():
    """Random weights that mostly say tags, moves and the end of the turn.

    Every embedding has a large first component, so the first component of the final state is nearly constant and
    serves as a bias: it makes all other ids unlikely.
    """
    spec, _, _, _, tokenizer = parts()
    params = init_params(spec.model, jax.random.key(0))
    wanted = jnp.array([1, *tokenizer.encode("</think><answer></answer>||LeftRightx</answer>")])
    head = 2.0 * params["lm_head"]["weight"]
    head = head.at[:, 0].set(-2.0).at[wanted, 0].set(0.0)
    return params | {
        "embed": {"weight": params["embed"]["weight"].at[:, 0].set(1.0)},
        "lm_head": {"weight": head},
    }


@cache
def played(temperature: float = 1.0) -> Trajectories:
    spec, _, params, stops, _ = parts()
    return jitted(
        policy(),
        spec,
        params,
        stops,
        jax.random.key(7),
        jnp.arange(16),
        group_size=8,
        temperature=temperature,
    )


def test_slots_and_spans_fit_together() -> None:
    traj = jax.device_get(played())
    _, env, params, _, tokenizer = parts()
    eos = tokenizer.eos_ids[0]
    ends = {"eos": 0, "tag": 0, "limit": 0}
    for b in range(128):
        n = traj.length[b]
        assert (traj.role[b, :n] > 0).all()
        assert not traj.role[b, n:].any()
        assert not traj.logprob[b][traj.role[b] != SAMPLED].any()
        at = 0
        for t in range(traj.turns[b]):
            begin, end = traj.prompt_end[b, t], traj.turn_end[b, t] + 1
            assert (traj.role[b, at:begin] == GIVEN).all()
            assert (traj.role[b, begin:end] == SAMPLED).all()
            assert (traj.turn[b, at:end] == t).all()
            assert env.text_of(params, traj.tokens[b, :begin]).endswith("<think>")
            response = traj.tokens[b, begin:end]
            text = env.text_of(params, response)
            ends["eos" if response[-1] == eos else "tag" if text.endswith("</answer>") else "limit"] += 1
            if response[-1] != eos and not text.endswith("</answer>"):
                assert end - begin == 12
            assert "</answer>" not in text[:-9]
            assert eos not in response[:-1]
            reasoning = env.text_of(params, traj.tokens[b, traj.think_start[b, t] : traj.think_end[b, t]])
            if reasoning:
                assert text.startswith(f"{reasoning}</think>") or "</think>" in text
                assert "</think>" not in reasoning
            at = end
        assert at == n, "an episode ends with what was sampled last"
        assert traj.terminated[b] or traj.truncated[b]
        assert not (traj.terminated[b] and traj.truncated[b])
    assert all(count > 5 for count in ends.values()), ends
    assert (traj.think_end > traj.think_start).sum() > 20


def test_sampled_log_probs_are_the_training_forwards() -> None:
    """Decoding with a cache that survives between turns equals one forward over the finished dialogue."""
    spec = parts()[0]
    traj = played()
    logits = forward(policy(), spec.model, traj.tokens) @ unembedding(policy(), spec.model).T
    logits = jnp.where(jnp.arange(logits.shape[-1]) < spec.valid_vocab, logits, -jnp.inf)
    logp = jax.nn.log_softmax(logits[:, :-1])
    taken = jnp.take_along_axis(logp, traj.tokens[:, 1:, None], axis=-1)[..., 0]
    gap = jnp.where(traj.loss_mask[:, 1:], jnp.abs(taken - traj.logprob[:, 1:]), 0.0)
    assert float(gap.max()) < 1e-4


def test_members_share_the_prompt_and_differ_after_it() -> None:
    traj = jax.device_get(played())
    groups = traj.tokens.reshape(16, 8, -1)
    for g in range(16):
        end = traj.prompt_end[8 * g, 0]
        assert (groups[g, :, :end] == groups[g, 0, :end]).all()
        assert len({row.tobytes() for row in groups[g]}) > 1


def test_no_padding_row_of_the_vocabulary_is_sampled() -> None:
    assert int(played().tokens.max()) < parts()[0].valid_vocab


def test_splitting_the_batch_changes_no_draw() -> None:
    spec, _, params, stops, _ = parts()
    whole = jax.device_get(played())
    half = jax.device_get(
        jitted(
            policy(),
            spec,
            params,
            stops,
            jax.random.key(7),
            jnp.arange(8, 16),
            group_size=8,
            temperature=1.0,
            group_ids=jnp.arange(8, 16),
        )
    )
    same = (half.tokens == whole.tokens[64:]).all(axis=1)
    assert same.mean() > 0.95, "only a near-tie may fall the other way"
    np.testing.assert_allclose(half.logprob[same], whole.logprob[64:][same], atol=1e-4)


def test_greedy_decoding_is_the_same_for_every_member() -> None:
    traj = jax.device_get(played(0.0))
    first = traj.tokens.reshape(16, 8, -1)
    end = traj.turn_end[:, 0].reshape(16, 8)
    for g in range(16):
        assert (first[g, :, : end[g, 0] + 1] == first[g, 0, : end[g, 0] + 1]).all()


def test_one_compilation_for_other_levels_keys_and_temperatures() -> None:
    spec, _, params, stops, _ = parts()
    count = 0

    def counted(weights, key, levels, temperature):
        nonlocal count
        count += 1
        return rollout(
            weights, spec, params, stops, key, levels, group_size=2, temperature=temperature
        ).length

    f = jax.jit(counted)
    for seed in range(3):
        f(policy(), jax.random.key(seed), jnp.arange(2) + seed, 1.0 - 0.4 * seed)
    assert count == 1


def test_a_context_that_is_too_short_is_refused_before_anything_runs() -> None:
    spec, env, *_ = parts()
    with pytest.raises(ValueError, match="max_position_embeddings"):
        RolloutSpec(replace(spec.model, max_position_embeddings=32), env, spec.valid_vocab)
    with pytest.raises(ValueError, match="do not belong together"):
        RolloutSpec(spec.model, env, spec.model.vocab_size + 1)
