"""The configuration tree: read, written, overridden, and refused by name."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from envs_jax.errors import ConfigError
from ragen_jax.models.lora import LoraConfig
from ragen_jax.training.config import (
    Config,
    config_from_dict,
    config_to_dict,
    config_to_yaml,
    load_config,
    off_policy_warning,
    with_overrides,
)

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_shipped_configs_are_read_and_written_back_equal(path: Path) -> None:
    config = load_config(path)
    assert yaml.safe_load(path.read_text())  # some field is set
    assert config_from_dict(yaml.safe_load(config_to_yaml(config))) == config


def test_every_field_survives_a_round_trip() -> None:
    """Each leaf is set to a value that is not its default, one at a time."""
    other = {
        bool: lambda x: not x,
        int: lambda x: 2 * x + 2,
        str: lambda x: f"{x}x",
        float: lambda x: x / 2 + 0.1,
    }
    changed = 0
    for section, fields in config_to_dict(Config()).items():
        for name, value in fields.items():
            if type(value) not in other:
                continue
            try:
                config = load_config(None, [f"{section}.{name}={yaml.safe_dump(other[type(value)](value))}"])
            except ValueError:
                continue  # a choice, or a number bound to another
            assert config_to_dict(config)[section][name] == other[type(value)](value)
            assert config_from_dict(yaml.safe_load(config_to_yaml(config))) == config
            changed += 1
    assert changed > 50


def test_values_take_the_type_of_their_field() -> None:
    config = load_config(
        None,
        [
            "optim.lr=1e-5",
            "optim.betas=[0.8, 0.95]",
            "rollout.temperature=1",
            "model.lora={rank: 4, targets: [q, v]}",
            "env.dim_room=[6, 7]",
            "model.path=null",
            "env.chat=plain",
        ],
    )
    assert config.optim.lr == 1e-5
    assert config.optim.betas == (0.8, 0.95)
    assert isinstance(config.rollout.temperature, float)
    assert config.model.lora == LoraConfig(rank=4, targets=("q", "v"))
    assert config.env.overrides == {"dim_room": (6, 7)}
    assert config.env.chat == "plain"
    hash(config.model)


def test_overrides_come_after_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("rollout: {env_groups: 4, group_size: 8}\nenv: {tag: FrozenLake, size: 5}\n")
    config = load_config(path, ["rollout.group_size=16", "env.p=0.5", "rollout.group_size=4"])
    assert (config.rollout.env_groups, config.rollout.group_size) == (4, 4)
    assert config.env.overrides == {"size": 5, "p": 0.5}
    path.write_text("")
    assert load_config(path) == Config()


PRESETS = ("ppo", "grpo", "dapo", "dr_grpo")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_goes_over_a_task(name: str) -> None:
    folder = CONFIGS[0].parent
    task, preset = load_config(folder / "quickstart.yaml"), load_config(folder / f"{name}.yaml")
    both = load_config([folder / "quickstart.yaml", folder / f"{name}.yaml"], ["rollout.env_groups=4"])
    for field in yaml.safe_load((folder / f"{name}.yaml").read_text())["algorithm"]:
        assert getattr(both.algorithm, field) == getattr(preset.algorithm, field)
    assert (both.env, both.model, both.rollout.group_size) == (task.env, task.model, task.rollout.group_size)
    assert both.rollout.env_groups == 4
    assert both.rollout.max_num_gen_batches == (10 if name == "dapo" else 1)


def test_presets_are_different_algorithms() -> None:
    folder = CONFIGS[0].parent
    found = [load_config(folder / f"{name}.yaml").algorithm for name in PRESETS]
    assert len(set(found)) == len(PRESETS)
    ppo, grpo, dapo, dr_grpo = found
    assert ppo.uses_critic
    assert not any(o.uses_critic for o in (grpo, dapo, dr_grpo))
    assert dapo.clip_ratio_high > dapo.clip_ratio_low
    assert dapo.overlong_buffer_share > 0
    assert dr_grpo.loss_agg_mode == "seq-mean-token-sum-norm"


def test_truncated_sampling_is_warned_of() -> None:
    assert off_policy_warning(Config()) is None
    cut = load_config(None, ["rollout.top_p=0.9", "rollout.top_k=20"])
    warning = off_policy_warning(cut)
    assert warning is not None
    assert warning.startswith("rollout.top_p=0.9, rollout.top_k=20: ")
    assert "algorithm.rollout_is=token corrects for it" in warning
    assert "min_p" not in warning


def test_another_tag_drops_the_settings_of_the_old_one() -> None:
    config = load_config(None, ["env.tag=FrozenLake", "env.size=5"])
    assert with_overrides(config, ["env.tag=Bandit"]).env.overrides == {}
    assert with_overrides(config, ["env.tag=FrozenLake", "env.p=0.5"]).env.overrides == {"size": 5, "p": 0.5}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("run.name=a/b", "run.name = 'a/b': it names one folder"),
        ("run.name=''", "run.name"),
        ("run.save_freq=-1", "run.save_freq = -1: it must be at least 0"),
        ("run.keep_checkpoints=0", "run.keep_checkpoints"),
        ("run.seed=1.5", "run.seed = 1.5: must be a whole number"),
        ("run.tensorboard=1", "run.tensorboard = 1: must be true or false"),
        ("env.tag=3", "env.tag = 3: must be text"),
        ("model.hidden_size=true", "model.hidden_size = True: must be a whole number"),
        ("model.lora.rank=0", "lora.rank is 0"),
        ("model.lora={targets: [q, x]}", "lora.targets holds 'x'"),
        ("model.lora=3", "model.lora = 3: must be a section"),
        ("rollout.env_groups=0", "rollout.env_groups = 0: it must be at least 1"),
        ("rollout.temperature=0", "rollout.temperature = 0.0: training needs a positive temperature"),
        ("rollout.rollout_filter_strategy=top_q", "use one of top_p, top_k, top_k_abs, min_p"),
        ("rollout.rollout_filter_value=0", "rollout.rollout_filter_value = 0.0: it must be positive"),
        ("rollout.rollout_filter_value=.nan", "must not be NaN"),
        ("rollout.rollout_filter_selection_eps=-1", "rollout.rollout_filter_selection_eps"),
        ("rollout.group_size=1", "one member has no reward variance to filter on"),
        ("algorithm.adv_estimator=ppo", "algorithm.adv_estimator = 'ppo': use one of grpo, dr_grpo, rloo, "),
        ("algorithm.gamma=1.5", "algorithm.gamma is 1.5"),
        ("algorithm.clip_ratio_low=0", "algorithm.clip_ratio_low"),
        ("algorithm.clip_ratio_c=1", "algorithm.clip_ratio_c"),
        ("algorithm.entropy_coeff=-1", "algorithm.entropy_coeff"),
        ("optim.lr=0", "optim.lr"),
        ("optim.betas=[0.9]", "optim.betas = [0.9]: must be a list of 2"),
        ("optim.betas=[0.9, 1.0]", "optim.betas"),
        ("optim.weight_decay=-1", "optim.weight_decay"),
        ("optim.schedule=linear", "optim.decay_steps"),
        ("optim.schedule=cosine", "optim.decay_steps"),
        ("warm_start.steps=-1", "warm_start.steps"),
        ("warm_start.skill=2", "warm_start.skill"),
        ("warm_start.reading_steps=9", "warm_start.reading_steps"),
        ("warm_start.lr=0", "warm_start.lr"),
        (
            "training.micro_batch_size=3",
            "training.micro_batch_size = 3: it must divide training.mini_batch_size (32)",
        ),
        ("training.ppo_epochs=0", "training.ppo_epochs"),
        ("training.remat=some", "use one of none, full, dots"),
        ("diagnosis.num_samples=1", "diagnosis.num_samples"),
        ("diagnosis.ema_decay=1", "diagnosis.ema_decay"),
        ("diagnosis.compute_freq=-1", "diagnosis.compute_freq"),
        ("evaluation.levels=0", "evaluation.levels"),
        ("evaluation.levels=500", "evaluation.batch_size = 128: it must divide evaluation.levels (500)"),
        ("evaluation.batch_size=0", "evaluation.batch_size"),
        ("evaluation.temperature=-1", "evaluation.temperature"),
        ("evaluation=null", "evaluation = None: must be a section"),
        ("evaluatoin.levels=3", "did you mean 'evaluation'?"),
        ("evaluation.levles=3", "evaluation.levles = 3: no such field; did you mean 'levels'?"),
        ("evaluation.levels.more=3", "levels"),
        ("evaluation", "write it as section.field=value"),
    ],
)
def test_bad_values_are_refused_by_name(override: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        load_config(None, [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rollout.env_groups=3", "rollout.group_size=2"], "it must divide the batch of 6 episodes"),
        (
            [
                "rollout.group_size=1",
                "rollout.rollout_filter_value=1",
                "rollout.rollout_filter_include_zero=true",
            ],
            "grpo compares the members of a group",
        ),
        (
            ["rollout.rollout_filter_strategy=top_k_abs", "rollout.rollout_filter_value=9"],
            "top_k_abs keeps that many groups, but rollout.env_groups is 8",
        ),
    ],
)
def test_contradictions_are_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load_config(None, overrides)


def test_one_member_is_allowed_where_nothing_compares_members() -> None:
    config = load_config(
        None,
        [
            "algorithm.adv_estimator=gae",
            "rollout.group_size=1",
            "rollout.rollout_filter_value=1",
            "rollout.rollout_filter_include_zero=true",
        ],
    )
    assert not config.rollout.filters


def test_config_is_frozen_and_has_no_open_dictionary_but_env() -> None:
    for section in dataclasses.fields(Config):
        value = getattr(Config(), section.name)
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, dataclasses.fields(value)[0].name, 0)
        dicts = [f.name for f in dataclasses.fields(value) if isinstance(getattr(value, f.name), dict)]
        assert sorted(dicts) == (["by_tag", "overrides"] if section.name == "env" else [])
