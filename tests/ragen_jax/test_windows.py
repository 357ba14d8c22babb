"""Limited contexts: every turn's prompt against a plain rebuilding from the episode, and the trainer on these rows."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs_jax
from envs_jax.errors import ConfigError
from envs_jax.turn import TurnEnv
from ragen_jax.models import ModelConfig, forward, init_params, unembedding
from ragen_jax.rl import Objective, OptimConfig, TrainState, UpdateSpec, grpo_advantages, update
from ragen_jax.rl.forward_pass import score
from ragen_jax.rl.rows import kept_first, row_count
from ragen_jax.rollout import RolloutSpec, Trajectories, make_stop_table, rollout
from ragen_jax.rollout.windows import Window, gather_runs, make_window
from ragen_jax.tokenizers import SmallTokenizer
from ragen_jax.training.config import config_from_dict

TURNS, RESPONSE, GROUPS, MEMBERS = 4, 8, 3, 4
jitted = jax.jit(rollout, static_argnames=("spec", "group_size"))

# style, mode, turns shown, most tokens beyond a first prompt's slots and a response
CASES: dict[str, tuple[str, str, int, int | None]] = {
    "limited": ("full", "limited_multi_turn", 2, None),
    "single": ("full", "single_turn", 3, None),
    "brief single": ("brief", "single_turn", 2, None),
    "cut": ("brief", "full", -1, 16),
    "all": ("brief", "limited_multi_turn", TURNS, None),
}


@cache
def parts(style: str) -> tuple[SmallTokenizer, TurnEnv, Any]:
    tokenizer = SmallTokenizer.build(["Left Right Up Down", " Left Right Up Down √"])
    env, params = envs_jax.make(
        "FrozenLake", tokenizer, size=3, p=0.9, success_rate=0.5, style=style, max_turns=TURNS,
        max_response_tokens=RESPONSE, num_levels=16,
    )  # fmt: skip
    return tokenizer, env, params


@cache
def policy(style: str) -> tuple[ModelConfig, Any]:
    """Random weights that mostly say tags, moves and the end of the turn (as in test_rollout)."""
    tokenizer = parts(style)[0]
    cfg = ModelConfig(
        vocab_size=tokenizer.vocab_size + 3, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=24, tie_word_embeddings=False,
    )  # fmt: skip
    params = init_params(cfg, jax.random.key(0))
    wanted = jnp.array([1, *tokenizer.encode("</think><answer></answer>||LeftRightx</answer>")])
    head = 2.0 * params["lm_head"]["weight"]
    head = head.at[:, 0].set(-2.0).at[wanted, 0].set(0.0)
    embed = params["embed"]["weight"].at[:, 0].set(1.0)
    return cfg, params | {"embed": {"weight": embed}, "lm_head": {"weight": head}}


@cache
def window(case: str) -> Window:
    style, mode, turns, more = CASES[case]
    tokenizer, env, params = parts(style)
    most = None if more is None else env.prompt_capacity + RESPONSE + more
    found = make_window(env, params, tokenizer, mode, turns, most)  # type: ignore[arg-type]
    assert found is not None
    return found


def play(style: str, shown: Window | None) -> Trajectories:
    tokenizer, env, params = parts(style)
    cfg, weights = policy(style)
    spec = RolloutSpec(cfg, env, tokenizer.vocab_size, window=shown)
    return jitted(
        weights, spec, params, make_stop_table(tokenizer), jax.random.key(7), jnp.arange(GROUPS), group_size=MEMBERS
    )  # fmt: skip


@cache
def played(case: str) -> Trajectories:
    return jax.device_get(play(CASES[case][0], window(case)))


class Oracle:
    """Prompts of one episode, from its ids and their text alone."""

    def __init__(self, case: str, traj: Any, row: int) -> None:
        style, self.mode, self.turns, _ = CASES[case]
        self.tokenizer, self.env, self.params = parts(style)
        self.brief, self.most = style == "brief", window(case).max_len
        self.given, self.said, at = [], [], 0
        for t in range(int(traj.turns[row])):
            begin, end = int(traj.prompt_end[row, t]), int(traj.turn_end[row, t]) + 1
            self.given.append(traj.tokens[row, at:begin].tolist())
            self.said.append(traj.tokens[row, begin:end].tolist())
            at = end

    def text(self, ids: list[int]) -> str:
        return self.env.text_of(self.params, ids)

    def after(self, ids: list[int], text: str) -> list[int]:
        """The ids after those that are the text up to and with its first occurrence."""
        whole = self.text(ids)
        wanted = whole[: whole.index(text) + len(text)]
        (cut,) = [n for n in range(len(ids) + 1) if self.text(ids[:n]) == wanted][-1:]
        return ids[cut:]

    def before(self, ids: list[int], text: str) -> list[int]:
        rest = self.after(ids, text)
        whole = ids[: len(ids) - len(rest)]
        (cut,) = [n for n in range(len(whole) + 1) if self.text(whole[n:]) == text][:1]
        return whole[:cut]

    @property
    def system(self) -> list[int]:
        if self.brief:
            return self.tokenizer.encode(self.env.chat.begin + self.env.chat.user_open)
        return self.before(self.given[0], "Turn 1:\nState:\n")

    def own(self, t: int) -> list[int]:
        """A turn's part of its message."""
        if t == 0:
            return self.given[0][len(self.system) :]
        if not self.brief:
            return self.after(self.given[t], "Reward:\n")[len(self.shown_reward(t)) :]
        later = self.tokenizer.encode(self.env.chat.assistant_close + self.env.chat.user_open)
        closed = self.said[t - 1][-1] == later[0] and self.said[t - 1][-1] in self.tokenizer.eos_ids
        assert self.given[t][: len(later) - closed] == later[closed:]
        return self.given[t][len(later) - closed :]

    def shown_reward(self, t: int) -> list[int]:
        rest = self.after(self.given[t], "Reward:\n")
        return self.before(rest, f"Turn {t + 1}:")

    def state(self, ids: list[int]) -> list[int]:
        """Less what closes the message."""
        if not self.brief:
            return self.before(ids, "You have ")
        chat = self.env.chat
        tail = self.tokenizer.encode(chat.user_close.removeprefix("\n") + chat.assistant_open + "<think>")
        assert ids[-len(tail) :] == tail
        return ids[: -len(tail)]

    def dialogue(self, first: int, t: int) -> list[int]:
        out = self.system + self.own(first)
        for i in range(first, t):
            out = out + self.said[i] + self.given[i + 1]
        return out

    def message(self, first: int, t: int) -> list[int]:
        def with_reward(i: int) -> list[int]:
            return self.own(i) if self.brief or i == first else self.after(self.given[i], "Reward:\n")

        joint = self.tokenizer.encode(("" if self.brief else "Your answer:\n") + "<think>")
        result = self.tokenizer.encode("\n" if self.brief else "\nReward:\n")
        out = list(self.system)
        for i in range(first, t):
            said = self.said[i][: -1 if self.said[i][-1] in self.tokenizer.eos_ids else None]
            out = out + self.state(with_reward(i)) + joint + said + result
        return out + with_reward(t)

    def prompt(self, t: int) -> list[int]:
        if self.mode == "single_turn":
            return self.message(max(0, t - self.turns + 1), t)
        first = 0 if self.turns < 0 else max(0, t - self.turns + 1)
        while self.most is not None and len(self.dialogue(first, t)) + RESPONSE > self.most:
            first += 1
        return self.dialogue(first, t)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case == "brief single" else case for case in CASES]
)
def test_prompts_equal_a_plain_rebuilding(case: str) -> None:
    traj = played(case)
    batch = GROUPS * MEMBERS
    flat = traj.run_start.shape[-1]
    repeated = jnp.repeat(traj.tokens, TURNS, axis=0)
    runs = (jnp.asarray(x).reshape(-1, flat) for x in (traj.run_start, traj.run_length))
    prompts = np.asarray(gather_runs(repeated, *runs, traj.prompt_slots)).reshape(batch, TURNS, -1)
    assert (traj.turns > 2).sum() > 3, "most of the test is in later turns"
    dropped = 0
    for b in range(batch):
        oracle = Oracle(case, traj, b)
        for t in range(int(traj.turns[b])):
            expected = oracle.prompt(t)
            n = int(traj.run_length[b, t].sum())
            assert prompts[b, t, :n].tolist() == expected, oracle.text(expected)
            assert not prompts[b, t, n:].any()
            dropped += n < int(traj.prompt_end[b, t])
        assert not traj.run_length[b, int(traj.turns[b]) :].any()
        assert (traj.role[b] == 2).sum() == sum(len(said) for said in oracle.said)
    assert (dropped > 0) == (case != "all")
    assert not traj.overflow.any()


def trained_on(case: str, objective: Objective, **sizes: int) -> UpdateSpec:
    tokenizer = parts(CASES[case][0])[0]
    return UpdateSpec(
        policy(CASES[case][0])[0], objective, OptimConfig(), tokenizer.vocab_size, max_sampled=TURNS * RESPONSE,
        **{"mini_batch_size": 12, "micro_batch_size": 5, "length_buckets": 2} | sizes,
    )  # fmt: skip


@pytest.mark.parametrize("case", ["single", "cut"])
def test_log_probs_of_sampler_and_trainer_agree(case: str) -> None:
    traj = jax.tree.map(jnp.asarray, played(case))
    spec = trained_on(case, Objective(), mini_batch_size=5)
    everyone, none = jnp.ones(GROUPS * MEMBERS, bool), jnp.zeros(GROUPS * MEMBERS, jnp.int32)
    found = jax.jit(score, static_argnames="spec")(
        {"policy": policy(CASES[case][0])[1]}, None, None, traj, kept_first(traj, everyone, none),
        row_count(traj, everyone), spec=spec, temperature=jnp.float32(1),
    ).old  # fmt: skip
    np.testing.assert_allclose(found, traj.logprob, atol=1e-4)
    assert (np.asarray(found) != 0).sum() > 0.9 * np.asarray(traj.loss_mask).sum()


def test_the_whole_dialogue_rebuilt_is_the_whole_dialogue() -> None:
    """Encoding anew each turn draws what a cache that lives through the episode draws."""
    plain, rebuilt = jax.device_get(play("brief", None)), played("all")
    same = (plain.tokens == rebuilt.tokens[:, : plain.tokens.shape[1]]).all(axis=1)
    assert same.mean() > 0.9, "only a near-tie may fall the other way"
    for name in ("length", "prompt_end", "turn_end", "think_end", "reward", "turns", "terminated", "success"):
        np.testing.assert_array_equal(getattr(plain, name)[same], getattr(rebuilt, name)[same])
    np.testing.assert_allclose(plain.logprob[same], rebuilt.logprob[same], atol=1e-4)


@pytest.mark.parametrize("mode", ["seq-mean-token-mean", pytest.param("token-mean", marks=pytest.mark.slow)])
def test_gradient_equals_turns_one_by_one(mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row a turn, each under its rebuilt prompt; advantages and denominators are those of episodes."""
    case = "cut"
    traj = played(case)
    reward = np.where(np.arange(TURNS) < traj.turns[:, None], np.sin(np.arange(48).reshape(12, TURNS)), 0)
    traj = replace(traj, reward=reward.astype(np.float32))
    cfg, params = policy("brief")
    keep = np.array([True, False, True])
    kept = [b for b in range(12) if keep[b // MEMBERS]]
    adv = np.asarray(grpo_advantages(traj.score.reshape(GROUPS, MEMBERS))).reshape(-1)
    own = {b: int((traj.role[b] == 2).sum()) for b in kept}
    rows = [(b, t) for b in kept for t in range(int(traj.turns[b]))]
    longest = window(case).prompt_slots(parts("brief")[1]) + RESPONSE
    ids, weight = np.zeros((len(rows), longest), np.int32), np.zeros((len(rows), longest))
    for i, (b, t) in enumerate(rows):
        oracle = Oracle(case, traj, b)
        prompt, said = oracle.prompt(t), oracle.said[t]
        ids[i, : len(prompt) + len(said)] = prompt + said
        share = sum(own.values()) if mode == "token-mean" else len(kept) * own[b]
        weight[i, len(prompt) : len(prompt) + len(said)] = adv[b] / share

    def loss(params: Any) -> Any:
        logits = forward(params, cfg, jnp.asarray(ids)) @ unembedding(params, cfg).T
        logits = jnp.where(jnp.arange(logits.shape[-1]) < parts("brief")[0].vocab_size, logits, -jnp.inf)
        logp = jax.nn.log_softmax(logits[:, :-1])
        return -jnp.sum(jnp.take_along_axis(logp, ids[:, 1:, None], axis=-1)[..., 0] * weight[:, 1:])

    expected = jax.jit(jax.grad(loss))(params)
    sgd = optax.sgd(1.0)  # so that the change of the parameters is the gradient
    monkeypatch.setattr("ragen_jax.rl.learner.optimiser", lambda cfg: sgd)
    state = TrainState({"policy": params}, sgd.init({"policy": params}), jnp.int32(0), jnp.int32(0))
    spec = trained_on(case, Objective(entropy_coeff=0.0, loss_agg_mode=mode), mini_batch_size=15)
    after, tally = jax.jit(update, static_argnames="spec")(
        state, jax.tree.map(jnp.asarray, traj), jnp.asarray(keep), spec=spec
    )
    change = jax.tree.map(lambda x, y: x - y, params, after.trainable["policy"])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), change, expected)
    assert tally.means()["rollout/sampler_logprob_diff_max"] < 1e-4


# -- what is refused, and what becomes possible -----------------------------------------------------------------
@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"rollout": {"max_context_window": 5}}, "rollout.max_context_window"),
        ({"rollout": {"context_window_mode": "single_turn"}}, "rollout.max_context_window"),
        (
            {"rollout": {"context_window_mode": "single_turn", "max_context_window": 1, "max_model_len": 99}},
            "rollout.max_model_len",
        ),
        ({"rollout": {"max_model_len": 99}, "gradients": {"every": 5}}, "gradients.every"),
        ({"rollout": {"max_model_len": 99}, "algorithm": {"rollout_is": "sequence"}}, "algorithm.rollout_is"),
        ({"rollout": {"max_model_len": 99}, "env": {"tags": ["FrozenLake", "Bandit"]}}, "env.tags"),
    ],
)
def test_contradictions_are_refused_by_name(sections: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_from_dict(sections)
    assert error.value.field == named


def test_a_turn_that_does_not_fit_is_refused() -> None:
    tokenizer, env, params = parts("brief")
    with pytest.raises(ConfigError, match=r"rollout\.max_model_len"):
        make_window(env, params, tokenizer, "full", -1, env.prompt_capacity)
    shown = window("cut")
    assert shown.max_len is not None
    short = replace(policy("brief")[0], max_position_embeddings=shown.max_len - 1)
    with pytest.raises(ValueError, match="max_position_embeddings"):
        RolloutSpec(short, env, tokenizer.vocab_size, window=shown)


def test_2048_fits_with_a_limited_window() -> None:
    tokenizer = SmallTokenizer.build(["Up Right Down Left"])
    env, params = envs_jax.make("game_2048", tokenizer, num_levels=4, max_response_tokens=32)
    assert env.config.max_turns == 700
    cfg = replace(policy("brief")[0], vocab_size=tokenizer.vocab_size, max_position_embeddings=4096)
    with pytest.raises(ValueError, match=r"rollout\.context_window_mode"):
        RolloutSpec(cfg, env, tokenizer.vocab_size)
    shown = make_window(env, params, tokenizer, "limited_multi_turn", 3, None)
    spec = RolloutSpec(cfg, env, tokenizer.vocab_size, window=shown)
    assert spec.capacity > 10 * cfg.max_position_embeddings


@pytest.mark.slow
def test_a_run_with_limited_contexts_learns_diagnoses_and_evaluates(tmp_path: Any) -> None:
    from micro_run import UNTRAINED, micro_config, run

    from ragen_jax.training.metrics import read_jsonl

    config = micro_config(
        tmp_path, algorithm={"adv_estimator": "bi_level_gae", "use_kl_loss": True}, critic={"kind": "shared"},
        rollout={
            "context_window_mode": "limited_multi_turn", "max_context_window": 1,
            "rollout_filter_metric": "entropy", "rollout_filter_value": 0.99,
        },
        diagnosis={"trajectory_enabled": True, "turn_enabled": True, "compute_freq": 1}, env={"max_turns": 3},
        **UNTRAINED,
    )  # fmt: skip
    table = read_jsonl(run(config).run_dir / "metrics.jsonl")
    assert table[-1]["train/updates"] == 3
    assert table[-1]["rollout/sampler_logprob_diff_max"] < 1e-3
    assert "val-env/FrozenLake/success" in table[-1]


@pytest.mark.slow
def test_2048_is_played_to_its_end() -> None:
    tokenizer = SmallTokenizer.build(["Up Right Down Left"])
    env, params = envs_jax.make("game_2048", tokenizer, num_levels=4, style="brief", max_response_tokens=4)
    cfg = replace(policy("brief")[0], vocab_size=tokenizer.vocab_size)
    shown = make_window(env, params, tokenizer, "limited_multi_turn", 2, None)
    spec = RolloutSpec(cfg, env, tokenizer.vocab_size, window=shown)
    weights = init_params(cfg, jax.random.key(0))
    traj = jitted(
        weights, spec, params, make_stop_table(tokenizer), jax.random.key(1), jnp.arange(2), group_size=1
    )
    assert traj.turns.tolist() == [700, 700], "a policy that never answers uses all turns"
    assert int(traj.length.min()) > 8 * (traj.prompt_slots + traj.turn_slots)
    assert not np.asarray(traj.overflow).any()
