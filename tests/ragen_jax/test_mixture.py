"""Several environments in one batch: the same episodes as apart, one program, metrics and records for each tag."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from micro_run import UNTRAINED, micro_config, run

import envs_jax
from envs_jax.errors import ConfigError
from envs_jax.mixture import Mixture, share_vocabulary
from ragen_jax.models import ModelConfig, init_params
from ragen_jax.report.overview import settings
from ragen_jax.report.run_directory import read_run
from ragen_jax.rollout import RolloutSpec, Trajectories, make_stop_table, rollout
from ragen_jax.tokenizers import SmallTokenizer
from ragen_jax.training.config import config_from_dict, config_to_dict, load_config, with_overrides
from ragen_jax.training.metrics import read_jsonl
from ragen_jax.training.programs import tag_metrics
from ragen_jax.training.records import first_rows
from ragen_jax.training.setup import sections

G = 4
GROUPS = (3, 2)
LEVELS = (1, 5, 9, 0, 7)
LIMITS = (12, 7)

jitted = jax.jit(rollout, static_argnames=("spec", "group_size"))


@cache
def parts() -> tuple[SmallTokenizer, Mixture, Any, ModelConfig, Any]:
    """FrozenLake of three turns and Bandit of one; a tiny untrained policy that mostly says tags and actions."""
    tokenizer = SmallTokenizer.build(
        ["Left Right Up Down √ Teacher Trader Nurse Engineer", " Left Right Up Down √"]
    )
    common: dict[str, Any] = {"style": "brief"}
    lake, lake_params = envs_jax.make(
        "FrozenLake",
        tokenizer,
        size=3,
        p=0.9,
        max_turns=3,
        max_response_tokens=LIMITS[0],
        num_levels=16,
        **common,
    )
    bandit, bandit_params = envs_jax.make(
        "Bandit", tokenizer, max_turns=1, max_response_tokens=LIMITS[1], **common
    )
    mixture = Mixture((lake, bandit), GROUPS)
    model = ModelConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, intermediate_size=24, tie_word_embeddings=False,
    )  # fmt: skip
    params = init_params(model, jax.random.key(0))
    wanted = jnp.array([1, *tokenizer.encode("</think><answer></answer>||LeftRightxTeacherTrader</answer>")])
    head = 2.0 * params["lm_head"]["weight"]
    head = head.at[:, 0].set(-2.0).at[wanted, 0].set(0.0)
    weights = params | {
        "embed": {"weight": params["embed"]["weight"].at[:, 0].set(1.0)}, "lm_head": {"weight": head},
    }  # fmt: skip
    return tokenizer, mixture, share_vocabulary([lake_params, bandit_params]), model, weights


@lru_cache
def together() -> Trajectories:
    tokenizer, mixture, params, model, weights = parts()
    spec = RolloutSpec(model, mixture, tokenizer.vocab_size)
    return jax.device_get(
        jitted(
            weights,
            spec,
            params,
            make_stop_table(tokenizer),
            jax.random.key(7),
            jnp.array(LEVELS),
            group_size=G,
        )
    )


def test_every_row_is_as_it_would_be_alone() -> None:
    """Draws are addressed by group and member, so only rounding can differ: buffers are longer in the mixture."""
    tokenizer, mixture, params, model, weights = parts()
    whole, start = together(), 0
    for env, table, groups in zip(mixture.parts, params, GROUPS, strict=True):
        spec = RolloutSpec(model, env, tokenizer.vocab_size)
        ids = jnp.arange(start, start + groups)
        alone = jax.device_get(
            jitted(
                weights, spec, table, make_stop_table(tokenizer), jax.random.key(7),
                jnp.array(LEVELS[start : start + groups]), group_size=G, group_ids=ids,
            )
        )  # fmt: skip
        rows = slice(start * G, (start + groups) * G)
        same = (whole.tokens[rows, : alone.tokens.shape[1]] == alone.tokens).all(axis=1)
        assert same.sum() >= len(same) - 1, "only a near-tie may fall the other way"
        for field in fields(Trajectories):
            if field.metadata.get("static") or getattr(whole, field.name) is None:
                continue
            ours, theirs = getattr(whole, field.name)[rows][same], getattr(alone, field.name)[same]
            if ours.ndim == 2:
                assert not ours[:, theirs.shape[1] :].any(), f"{field.name} beyond the part's own length"
                ours = ours[:, : theirs.shape[1]]
            np.testing.assert_allclose(ours, theirs, atol=1e-4, err_msg=field.name)
        start += groups
    assert (whole.turns[GROUPS[0] * G :] == 1).all()
    assert (whole.turns[: GROUPS[0] * G] > 1).any()


def test_each_environment_keeps_its_own_length_of_responses() -> None:
    whole = together()
    sampled = whole.turn_end - whole.prompt_end + 1
    taken = np.arange(sampled.shape[1]) < whole.turns[:, None]
    longest = [int(np.where(taken, sampled, 0)[rows].max()) for rows in (slice(0, 12), slice(12, 20))]
    assert longest == list(LIMITS)


def test_one_compilation_for_other_levels_and_keys() -> None:
    tokenizer, mixture, params, model, weights = parts()
    spec, stops, count = RolloutSpec(model, mixture, tokenizer.vocab_size), make_stop_table(tokenizer), 0

    def counted(key: jax.Array, levels: jax.Array, tables: Any) -> jax.Array:
        nonlocal count
        count += 1
        return rollout(weights, spec, tables, stops, key, levels, group_size=2).length

    f = jax.jit(counted)
    for seed in range(3):
        f(jax.random.key(seed), jnp.arange(5) + seed, params)
    assert count == 1
    again = Mixture(mixture.parts, mixture.n_groups)
    assert (again, hash(again)) == (mixture, hash(mixture))


def test_metrics_of_a_tag_are_those_of_its_rows() -> None:
    _, mixture, *_ = parts()
    whole = replace(together(), success=np.arange(20) % 7 == 3)
    found = jax.device_get(tag_metrics(whole, mixture.shares))
    for tag, rows in (("FrozenLake", slice(0, 12)), ("Bandit", slice(12, 20))):
        success = whole.success[rows]
        assert found[f"train/{tag}/success"] == pytest.approx(success.mean())
        assert found[f"train/{tag}/pass@4"] == pytest.approx(success.reshape(-1, G).any(axis=1).mean())
        assert found[f"train/{tag}/num_actions"] == pytest.approx(whole.executed[rows].sum() / len(success))
        reward = (whole.reward[rows] + whole.penalty[rows]).sum(axis=1)
        assert found[f"train/{tag}/reward"] == pytest.approx(reward.mean(), abs=1e-6)
    assert found["train/FrozenLake/pass@4"] != found["train/Bandit/pass@4"]


def test_kept_rows_come_from_every_part() -> None:
    _, mixture, *_ = parts()
    assert first_rows(mixture, together(), 6) == [0, 1, 2, 12, 13, 14]
    assert first_rows(mixture, together(), 100) == list(range(20))
    assert first_rows(mixture.parts[0], together(), 3) == [0, 1, 2]


def test_another_number_of_groups_is_refused() -> None:
    tokenizer, mixture, params, model, weights = parts()
    spec = RolloutSpec(model, mixture, tokenizer.vocab_size)
    with pytest.raises(ValueError, match="5 groups cannot play 4"):
        rollout(
            weights, spec, params, make_stop_table(tokenizer), jax.random.key(0), jnp.arange(4), group_size=2
        )
    with pytest.raises(ConfigError, match="n_groups"):
        Mixture(mixture.parts, (1,))
    with pytest.raises(ConfigError, match="at least one group"):
        Mixture(mixture.parts, (3, 0))
    with pytest.raises(ValueError, match="episode of FrozenLake"):
        RolloutSpec(replace(model, max_position_embeddings=48), mixture, tokenizer.vocab_size)


MIXED: dict[str, Any] = {"tags": ["FrozenLake", "Bandit"], "by_tag": {"Bandit": {"max_turns": 1}}}


@pytest.mark.parametrize(
    ("env", "field"),
    [
        ({"tags": []}, "env.tags"),
        ({"tags": ["Bandit", "Bandit"]}, "env.tags"),
        ({"tags": ["Bandit"], "n_groups": [1, 1]}, "env.n_groups"),
        ({"tags": ["Bandit", "FrozenLake"], "n_groups": [1, 4]}, "env.n_groups"),
        ({"tags": ["Bandit", "FrozenLake", "CoordSokoban"]}, "env.n_groups"),
        ({"tags": ["Bandit"], "by_tag": {"Bandits": {}}}, "env.by_tag.Bandits"),
        ({"tags": ["Bandit"], "by_tag": {"Bandit": 3}}, "env.by_tag.Bandit"),
        ({"n_groups": [2]}, "env.n_groups"),
    ],
)
def test_bad_mixtures_are_refused(env: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_dict({"env": env, "rollout": {"env_groups": 2}})
    assert caught.value.field == field


def test_fields_go_to_the_tags_that_have_them() -> None:
    env = {**MIXED, "p": 0.6, "max_response_tokens": 9, "by_tag": {"Bandit": {"max_turns": 1}}}
    config = config_from_dict({"env": env})
    lake, bandit = sections(config.env)
    assert (lake.tag, lake.overrides) == ("FrozenLake", {"p": 0.6, "max_response_tokens": 9})
    assert (bandit.tag, bandit.overrides) == ("Bandit", {"max_response_tokens": 9, "max_turns": 1})
    assert config.env.groups(8) == (4, 4)
    assert config_from_dict(config_to_dict(config)) == config
    for item, tags in (("env.tag=CoordSokoban", None), ("env.tags=[Bandit]", ("Bandit",))):
        assert (with_overrides(config, [item]).env.tags, with_overrides(config, [item]).env.overrides) == (
            tags,
            {},
        )
    with pytest.raises(ConfigError, match="no tag has such a field"):
        sections(config_from_dict({"env": {**MIXED, "nonsense": 1}}).env)
    with pytest.raises(ConfigError, match="did you mean 'Bandit'"):
        sections(config_from_dict({"env": {"tags": ["Bandits"]}}).env)


@pytest.mark.slow
def test_a_run_over_a_mixture(tmp_path: Path) -> None:
    """Rolls out, diagnoses, filters, updates, evaluates each tag, and resumes from its own configuration."""
    config = micro_config(
        tmp_path, env=MIXED, training={"total_training_steps": 2}, evaluation={"test_freq": 0}, **UNTRAINED
    )
    result = run(config)
    rows = read_jsonl(result.run_dir / "metrics.jsonl")
    assert [r["step"] for r in rows] == [0, 1, 2]
    for name in ("success", "reward", "num_actions", "format_ok", "pass@2"):
        assert {f"train/{tag}/{name}" for tag in MIXED["tags"]} <= rows[1].keys()
    for tag in (*MIXED["tags"], "FrozenLake+Bandit"):
        assert f"val-env/{tag}/success" in rows[0]
    both = [rows[0][f"val-env/{tag}/reward"] for tag in MIXED["tags"]]
    assert rows[0]["val-env/FrozenLake+Bandit/reward"] == pytest.approx(np.mean(both))
    assert "collapse_first_turn_sample/mi_estimate" in rows[2]
    for file in ("eval_000000.jsonl", "train_000002.jsonl"):
        records = [json.loads(x) for x in (result.run_dir / "rollouts" / file).read_text().splitlines()]
        assert {r["tag"] for r in records} == set(MIXED["tags"])
    assert settings(read_run(result.run_dir))[0] == ("environments", "FrozenLake, Bandit")
    again = run(with_overrides(config, ["training.total_training_steps=3"]), resume=result.run_dir)
    assert again.summary["steps"] == 3


@pytest.mark.slow
def test_the_preset_trains(tmp_path: Path) -> None:
    """configs/mixture.yaml with everything but its kinds of settings made small."""
    small = {
        "run.dir": tmp_path, "run.rollout_freq": 1, "run.tensorboard": False, "env.n_groups": [2, 1],
        "env.max_turns": 2, "env.by_tag.SimpleSokoban.num_levels": 16, "env.num_levels": 16, "model.hidden_size": 32,
        "model.num_hidden_layers": 1, "model.intermediate_size": 64, "rollout.env_groups": 3, "rollout.group_size": 2,
        "rollout.rollout_filter_include_zero": True, "warm_start.steps": 2, "warm_start.batch_size": 4,
        "warm_start.demonstrations": 8, "training.total_training_steps": 2, "training.mini_batch_size": 6,
        "training.micro_batch_size": 2, "training.length_buckets": 1, "diagnosis.compute_freq": 2,
        "evaluation.levels": 2, "evaluation.batch_size": 2, "evaluation.test_freq": 2,
    }  # fmt: skip
    preset = load_config(
        Path(__file__).parents[2] / "configs" / "mixture.yaml", [f"{k}={v}" for k, v in small.items()]
    )
    result = run(preset)
    rows = read_jsonl(result.run_dir / "metrics.jsonl")
    assert [r["step"] for r in rows] == [0, 1, 2]
    for tag in ("FrozenLake", "SimpleSokoban"):
        assert f"train/{tag}/success" in rows[2]
        assert f"val-env/{tag}/success" in rows[2]
    assert result.summary["steps"] == 2
