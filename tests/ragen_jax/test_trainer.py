"""A run as a whole: what it leaves, what interrupts it, and that going on equals never having stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from micro_run import PPO, UNTRAINED, micro_config, run

from envs_jax.errors import ConfigError
from ragen_jax.report import write_report
from ragen_jax.rl import init_state
from ragen_jax.training import programs, trainer
from ragen_jax.training.checkpoints import CheckpointError, Checkpoints, RunState
from ragen_jax.training.diagnosis import empty_ema
from ragen_jax.training.early_stop import RULES
from ragen_jax.training.evaluation import evaluate
from ragen_jax.training.gradients import probe
from ragen_jax.training.metrics import read_jsonl
from ragen_jax.training.policy import diagnose_policy, load_policy, load_weights
from ragen_jax.training.run_dir import read_run_config, resumed_config
from ragen_jax.training.setup import build

COMPILED = (
    programs.rollout_program, programs.filter_program, programs.diagnosis_program, programs.update_program,
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A run of three steps, and how many programs of each kind it compiled."""
    folder = tmp_path_factory.mktemp("runs")
    before = [program._cache_size() for program in COMPILED]
    result = run(micro_config(folder))
    assert result.stopped is None
    return result.run_dir, [p._cache_size() - n for p, n in zip(COMPILED, before, strict=True)]


@pytest.fixture
def copy(finished: tuple[Path, list[int]], tmp_path: Path) -> Path:
    """The finished run, to change."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def arrays(run_dir: Path, step: int) -> list[np.ndarray]:
    """Every array of a checkpoint."""
    config = read_run_config(run_dir)
    setup = build(config, run_dir=run_dir)
    critic, key = config.algorithm.uses_critic, jax.random.key(0)
    state = init_state(setup.model, setup.params, config.optim, lora=None, critic=critic, key=key)
    like = RunState(state, empty_ema(setup.diagnosis_spec.families))
    checkpoints = Checkpoints(run_dir, read_only=True)
    restored, host = checkpoints.restore(like, step)
    checkpoints.close()
    assert host.step == step
    return [np.asarray(x) for x in jax.tree.leaves(restored)]


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """Metrics without what the clock says."""
    return [
        {n: v for n, v in row.items() if n != "time" and not n.startswith("timing_s/")}
        for row in read_jsonl(run_dir / "metrics.jsonl")
    ]


def without_success(row: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n, v in row.items() if not n.startswith("val-env/")}


def assert_same_run(a: Path, b: Path, step: int) -> None:
    for x, y in zip(rows(a), rows(b), strict=True):
        assert x == y
    for x, y in zip(arrays(a, step), arrays(b, step), strict=True):
        np.testing.assert_array_equal(x, y)
    groups = [read_jsonl(run_dir / "groups.jsonl") for run_dir in (a, b)]
    assert groups[0] == groups[1]
    assert [row["step"] for row in groups[0]] == [row["step"] for row in rows(a)[1:]]


def failing_at(step: int, error: BaseException) -> Any:
    """`_Run._step` that raises `error` in place of that step."""
    real = trainer._Run._step

    def step_or_fail(self: Any, state: Any, host: Any, now: int) -> Any:
        if now == step:
            raise error
        return real(self, state, host, now)

    return step_or_fail


# -- what a run leaves ---------------------------------------------------------------------------------
def test_run_leaves_its_files(finished: tuple[Path, list[int]]) -> None:
    run_dir, _ = finished
    found = {
        str(p.relative_to(run_dir))
        for p in run_dir.rglob("*")
        if p.is_file() and "checkpoints" not in p.parts
    }
    assert found == {
        "config.yaml", "metrics.jsonl", "groups.jsonl", "baselines.json", "summary.json",
        "tokenizer/small_tokenizer.json",
        "rollouts/eval_000000.jsonl", "rollouts/eval_000002.jsonl", "rollouts/eval_000003.jsonl",
        "rollouts/train_000001.jsonl", "rollouts/train_000002.jsonl",
    }  # fmt: skip
    assert [row["step"] for row in rows(run_dir)] == [0, 1, 2, 3]
    assert {p.name for p in (run_dir / "checkpoints").iterdir()} == {"2", "3"}  # the newest two
    assert read_run_config(run_dir) == micro_config(run_dir.parent)
    (record, *_) = records = read_jsonl(run_dir / "rollouts" / "train_000001.jsonl")
    assert len(records) == 3
    assert record.keys() == {
        "step", "split", "tag", "group", "member", "level", "success", "reward", "kept", "turns",
    }  # fmt: skip
    assert record["turns"][0]["prompt"].endswith("<think>")
    assert any(turn["actions"] and turn["reasoning"] for r in records for turn in r["turns"])
    assert rows(run_dir)[-1]["train/updates"] == 3
    regimes = [
        (r["collapse/regime"], r["collapse/mi_threshold"]) for r in rows(run_dir) if "collapse/regime" in r
    ]
    assert len(regimes) == 2  # of steps 1 and 2
    assert all(code >= 0 and low == regimes[0][1] > 0 for code, low in regimes)
    assert record["kept"] is True


def test_each_program_compiles_once(finished: tuple[Path, list[int]], tmp_path: Path) -> None:
    # The rollout has two shapes: training and evaluation. Another test may have compiled them before.
    assert all(n <= most for n, most in zip(finished[1], [2, 1, 1, 1], strict=True))
    before = [program._cache_size() for program in COMPILED]
    assert min(before) >= 1
    run(
        micro_config(tmp_path, run={"seed": 1}, training={"total_training_steps": 1})
    )  # other keys and weights
    assert [program._cache_size() for program in COMPILED] == before


def test_summary_and_report_agree_with_the_metrics(finished: tuple[Path, list[int]], tmp_path: Path) -> None:
    run_dir, _ = finished
    summary = json.loads((run_dir / "summary.json").read_text())
    table = rows(run_dir)
    for when, row in (("before", table[0]), ("after", table[-1])):
        names = {"success": "", "low": "_low", "high": "_high"}
        assert summary[when] == {n: row[f"val-env/FrozenLake/success{end}"] for n, end in names.items()}
    assert summary["baselines"] == json.loads((run_dir / "baselines.json").read_text())
    assert summary["metrics"]["kept_ratio"] == {"first": 1.0, "last": 1.0, "last_step": 3}
    assert summary["stopped"] is None
    page = write_report(shutil.copytree(run_dir, tmp_path / "run")).read_text()
    for when in ("before", "after"):
        level = summary[when]
        assert f"{level['success']:.3f} [{level['low']:.3f}, {level['high']:.3f}]" in page
    for name, level in summary["baselines"].items():
        assert f"{name} {level['success']:.3f} [{level['low']:.3f}, {level['high']:.3f}]" in page


@pytest.mark.slow
def test_metrics_page_lists_every_name(finished: tuple[Path, list[int]], finished_ppo: Path) -> None:
    logged = {
        name
        for run_dir in (finished[0], finished_ppo)
        for row in read_jsonl(run_dir / "metrics.jsonl")
        for name in row
    } - {"step"} | {f"early_stopped/{rule}" for rule in RULES[:3]}  # these are tested with their rules
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    listed = re.findall(r"^\| `([^`]+)` \|", page, re.M)
    assert len(listed) == len(set(listed))
    mixture = {"train/<tag>/<name>", "train/<tag>/pass@<n>"}  # in test_mixture
    assert mixture <= set(listed)
    names = {
        name.replace("<tag>", "FrozenLake")
        .replace("<family>", "collapse_first_turn_sample")
        .replace("@k", f"@{k}")
        .replace("<bucket>", bucket)
        for name in set(listed) - mixture
        for k in (2, 4, 8)
        for bucket in ("bucket_1", "bucket_2", "all")
    }
    assert names == logged


# -- going on ------------------------------------------------------------------------------------------
def test_stopped_and_resumed_equals_never_stopped(finished: tuple[Path, list[int]], tmp_path: Path) -> None:
    short = run(micro_config(tmp_path, training={"total_training_steps": 1}))
    again = run(resumed_config(short.run_dir, ["training.total_training_steps=3"]), resume=short.run_dir)
    expected, found = rows(finished[0]), rows(again.run_dir)
    assert "val-env/FrozenLake/success" in found[1]  # the short run's end
    found[1] = without_success(found[1])
    assert found == expected
    for x, y in zip(arrays(finished[0], 3), arrays(again.run_dir, 3), strict=True):
        np.testing.assert_array_equal(x, y)
    assert read_run_config(again.run_dir).training.total_training_steps == 3
    times = [row["time"] for row in read_jsonl(again.run_dir / "metrics.jsonl")]
    assert times == sorted(times)


# With everything that logs names of its own.
PPO_RUN: dict[str, Any] = {
    "algorithm": {
        **PPO["algorithm"], "use_kl_in_reward": True, "rollout_is": "token", "soft_advantage_reweight": True,
    },
    "warm_start": PPO["warm_start"],
    "rollout": {"group_size": 4, "rollout_filter_adaptive": 0.01},
    "gradients": {"every": 2, "num_buckets": 2, "sketch_size": 64, "bootstrap": 20},
    "run": {"save_freq": 2},
    "training": {"total_training_steps": 4},
}  # fmt: skip


@pytest.fixture(scope="module")
def finished_ppo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps with a critic, a reference policy and a warm start."""
    return run(micro_config(tmp_path_factory.mktemp("ppo"), **PPO_RUN)).run_dir


def test_killed_ppo_resumes_from_its_last_checkpoint(
    finished_ppo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after a step that no checkpoint holds, in the middle of writing."""
    with monkeypatch.context() as patch:
        patch.setattr(trainer._Run, "_step", failing_at(4, MemoryError()))
        with pytest.raises(MemoryError):
            run(micro_config(tmp_path, **PPO_RUN))
    killed = tmp_path / "run"
    assert [row["step"] for row in rows(killed)] == [0, 1, 2, 3]
    with (killed / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "tr')
    (killed / "checkpoints" / "3.orbax-checkpoint-tmp-0").mkdir()
    run(resume=killed)
    assert_same_run(finished_ppo, killed, 4)
    assert rows(killed)[0]["warm_start/loss"] > 0


def test_interrupt_writes_a_checkpoint(
    finished: tuple[Path, list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    real = trainer._Run._step

    def interrupted(self: Any, state: Any, host: Any, step: int) -> Any:
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(self, state, host, step)

    before = signal.getsignal(signal.SIGINT)  # ignored, where a shell started the tests in the background
    with monkeypatch.context() as patch:
        patch.setattr(trainer._Run, "_step", interrupted)
        result = run(micro_config(tmp_path, run={"save_freq": 0}))
    assert result.stopped == "interrupted"
    assert "Stopping after this step" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    assert [row["step"] for row in rows(result.run_dir)] == [0, 1, 2]
    run(resume=result.run_dir)
    assert_same_run(finished[0], result.run_dir, 3)


def test_killed_before_the_first_checkpoint_starts_again(
    finished: tuple[Path, list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "evaluate", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(micro_config(tmp_path))
    assert rows(tmp_path / "run") == []
    run(resume=tmp_path / "run")
    assert_same_run(finished[0], tmp_path / "run", 3)


# -- what stops a run ----------------------------------------------------------------------------------
@pytest.mark.parametrize("what", ["reward", "logprob"])
def test_values_that_are_not_finite_stop_the_run(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = trainer.rollout_program

    def spoiled(*args: Any, group_size: int, **kwargs: Any) -> Any:
        traj = real(*args, group_size=group_size, **kwargs)
        if group_size == 1:
            return traj  # evaluation
        value = getattr(traj, what)
        slot = 0 if what == "reward" else int(traj.prompt_end[2, 0])
        return replace(traj, **{what: value.at[2, slot].set(jnp.nan)})

    monkeypatch.setattr(trainer, "rollout_program", spoiled)
    result = run(micro_config(tmp_path))
    assert result.stopped is not None
    assert "1 episodes have a reward or log-prob that is not finite" in result.stopped
    assert json.loads((result.run_dir / "summary.json").read_text())["stopped"] == result.stopped
    (kept,) = read_jsonl(result.run_dir / "rollouts" / "nonfinite_000001.jsonl")
    assert (kept["group"], kept["member"], kept["nonfinite"]) == (1, 0, [what])
    assert (kept["reward"] is None) == (what == "reward")
    assert all(np.isfinite(x).all() for x in arrays(result.run_dir, 1))
    write_report(result.run_dir)


def test_nothing_kept_changes_nothing_and_stops(tmp_path: Path) -> None:
    """An untrained policy never answers, so every reward is the same and the filter leaves nothing."""
    filters = {
        "rollout_filter_value": 0.9,
        "rollout_filter_include_zero": False,
        "rollout_filter_empty_stop_steps": 2,
    }
    result = run(micro_config(tmp_path, rollout=filters, **UNTRAINED))
    assert result.stopped == "the filter kept nothing for 2 steps (rollout.rollout_filter_empty_stop_steps)"
    last = rows(result.run_dir)[-1]
    assert last["step"] == 2
    assert last["train/updates"] == 0
    assert last["rollout/empty_after_filter"] == 1
    assert "actor/grad_norm" not in last  # not an invented 0
    policy = load_policy(str(result.run_dir), [])
    config = read_run_config(result.run_dir)
    setup = build(config)
    jax.tree.map(np.testing.assert_array_equal, policy.trainable["policy"], setup.params)
    # Neither the optimiser's moments and counters nor the diagnosis's moving averages have moved.
    state = init_state(
        setup.model, setup.params, config.optim, lora=None, critic=False, key=jax.random.key(0)
    )
    fresh = jax.tree.leaves(RunState(state, empty_ema(setup.diagnosis_spec.families)))
    for x, y in zip(arrays(result.run_dir, 2), fresh, strict=True):
        np.testing.assert_array_equal(x, y)
    assert last["early_stopped/empty_filtered_steps"] == 1


def test_gradients_that_are_not_finite_are_skipped_and_their_episodes_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference policy of NaN makes every gradient NaN."""
    real = trainer.load_tree
    monkeypatch.setattr(
        trainer, "load_tree", lambda *a: jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), real(*a))
    )
    sections = {
        "algorithm": {"use_kl_loss": True}, "training": {"max_skipped_updates": 2, "mini_batch_size": 4},
        **UNTRAINED,
    }  # fmt: skip
    result = run(micro_config(tmp_path, **sections))
    assert result.stopped is not None
    assert "training.max_skipped_updates); see rollouts/gradient_000002.jsonl" in result.stopped
    assert [row["train/skipped_updates"] for row in rows(result.run_dir)[1:]] == [1, 2]
    for step in (1, 2):
        kept = read_jsonl(result.run_dir / "rollouts" / f"gradient_{step:06d}.jsonl")
        assert [(k["group"], k["member"]) for k in kept] == [(0, 0), (0, 1), (1, 0)]  # rollouts_kept is 3
    policy = load_policy(str(result.run_dir), [])
    start = build(read_run_config(result.run_dir)).params
    jax.tree.map(np.testing.assert_array_equal, policy.trainable["policy"], start)


def test_dynamic_sampling_replaces_dropped_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter is made to keep: nothing; the second group; both. A step takes at most three batches."""
    real, decisions = trainer.filter_program, [[False, False], [False, True], [True, True]]
    calls = []

    def decided(traj: Any, entropy: Any, **settings: Any) -> Any:
        _, metrics, groups = real(traj, entropy, **settings)
        keep = np.repeat(decisions[len(calls)], 2)
        calls.append(np.asarray(traj.level))
        return jnp.asarray(keep), metrics, groups

    updates = []
    update = trainer.update_program

    def noted(state: Any, traj: Any, keep: Any, **kwargs: Any) -> Any:
        updates.append((np.asarray(traj.level), np.asarray(keep)))
        return update(state, traj, keep, **kwargs)

    monkeypatch.setattr(trainer, "filter_program", decided)
    monkeypatch.setattr(trainer, "update_program", noted)
    sections = {
        "rollout": {"rollout_filter_include_zero": False, "max_num_gen_batches": 3},
        "training": {"total_training_steps": 1},
        **UNTRAINED,
    }
    result = run(micro_config(tmp_path, **sections))
    last = rows(result.run_dir)[-1]
    assert last["rollout/num_gen_batches"] == 3
    assert last["rollout/effective_kept_ratio"] == pytest.approx(4 / 12)
    levels, keep = updates[0]
    assert keep.all()
    np.testing.assert_array_equal(levels, [*calls[1][2:], *calls[2][:2]])
    (row,) = read_jsonl(result.run_dir / "groups.jsonl")
    np.testing.assert_array_equal(row["level"], np.concatenate(calls)[::2])


# -- refusals ------------------------------------------------------------------------------------------
def test_existing_run_is_not_touched(copy: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in copy.rglob("*")}
    with pytest.raises(ConfigError, match=r"holds a run already; .*--resume"):
        run(micro_config(copy.parent))
    assert {p: p.stat().st_mtime_ns for p in copy.rglob("*")} == before


def test_folder_of_other_things_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("words")
    with pytest.raises(ConfigError, match="exists and is no run"):
        run(micro_config(tmp_path))


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"env": {"siz": 3}}, "env.siz = 3: no such field; did you mean 'size'"),
        ({"env": {"tag": "FrozenLak"}}, "env.tag = 'FrozenLak': did you mean 'FrozenLake'"),
        ({"env": {"size": "big"}}, "env.size = 'big': must be a whole number"),
        ({"env": {"prompt_capacity": 3}}, "env.prompt_capacity = 3: observations have up to"),
        ({"env": {"max_response_tokens": 3000}}, "model.max_position_embeddings"),
        ({"env": {"max_response_tokens": 6}}, "env.max_response_tokens = 6: a demonstration has"),
        ({"env": {"tag": "Bandit", "size": 3}}, "env.size"),
        ({"model": {"hidden_size": 15}}, "model.hidden_size"),
        ({"model": {"lora": {"rank": 2}}, **UNTRAINED}, "model.lora"),
        ({"model": {"path": "nowhere.gguf"}}, "nowhere.gguf: no such file"),
        ({"run": {"wandb": True}}, "wandb is not installed"),
    ],
)
def test_bad_settings_leave_no_directory(sections: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        run(micro_config(tmp_path, **sections))
    assert list(tmp_path.iterdir()) == []


def test_resume_takes_only_what_leaves_the_past_as_it_is(copy: Path) -> None:
    with pytest.raises(ConfigError, match=r"optim\.lr = '1': cannot change in a resumed run"):
        resumed_config(copy, ["optim.lr=1"])
    with pytest.raises(ConfigError, match="is not a run directory"):
        resumed_config(copy / "rollouts", [])


# -- what can be done with a run -----------------------------------------------------------------------
def test_policy_of_a_run_scores_as_it_did(finished: tuple[Path, list[int]]) -> None:
    run_dir, _ = finished
    for step, row in ((None, -1), (2, 2)):
        policy = load_policy(str(run_dir), [], step=step)
        again = evaluate(policy.setup, policy.trainable, policy.base)
        logged = rows(run_dir)[row]
        assert again.metrics == {n: logged[n] for n in again.metrics}


def test_diagnose_a_run(finished: tuple[Path, list[int]]) -> None:
    policy = load_policy(str(finished[0]), ["diagnosis.num_samples=3"])
    found = diagnose_policy(policy, show=2)
    assert 2 <= found.metrics["collapse_first_turn_sample/num_rows"] <= 3
    low, high = (
        found.metrics[f"collapse_first_turn_sample/mi_seq_estimate_{end}"] for end in ("low", "high")
    )
    assert low <= found.metrics["collapse_first_turn_sample/mi_seq_estimate"] <= high
    assert len(found.traces) == 2
    for trace in found.traces:
        assert trace["own_logprob"] == pytest.approx(trace["logprobs"][trace["group"]], abs=1e-3)


def test_probe_of_a_checkpoint_leaves_it_untouched(finished: tuple[Path, list[int]]) -> None:
    run_dir, _ = finished
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")}
    sizes = ["gradients.group_size=4", "gradients.num_buckets=2", "gradients.sketch_size=64"]
    buckets = probe(load_policy(str(run_dir), sizes))
    assert [(b.name, len(b.prompts)) for b in buckets] == [("bucket_1", 1), ("bucket_2", 1), ("all", 2)]
    assert buckets[0].reward_std[0] <= buckets[1].reward_std[0]
    assert all(b.norms["kl"] == 0 < b.norms["entropy"] for b in buckets)
    assert {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")} == before
    with pytest.raises(ConfigError, match="kept no reference policy"):
        probe(load_policy(str(run_dir), [*sizes, "algorithm.use_kl_loss=true"]))
    with pytest.raises(ConfigError, match="comes without a critic"):
        probe(load_policy(str(run_dir), [*sizes, "algorithm.adv_estimator=gae"]))


def test_policy_of_a_run_elsewhere(finished: tuple[Path, list[int]]) -> None:
    policy = load_policy(str(finished[0]), ["env.size=4", "evaluation.levels=2", "evaluation.batch_size=2"])
    assert policy.setup.env.env.size == 4
    with pytest.raises(CheckpointError, match="no checkpoint of step 1; there are: 2, 3"):
        load_policy(str(finished[0]), [], step=1)
    with pytest.raises(CheckpointError, match=r"holds \d+ arrays that are not those of this model"):
        load_policy(str(finished[0]), ["model.hidden_size=48"])


# Orbax's threads complain after it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damaged_checkpoint_is_named(copy: Path) -> None:
    for path in (copy / "checkpoints" / "3" / "state").rglob("*"):
        if path.is_file() and path.name != "_METADATA":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(
        CheckpointError, match=r"step 3: cannot be read .*; delete the folder of that step"
    ) as caught:
        load_policy(str(copy), [])
    assert "\n" not in str(caught.value)
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(CheckpointError, match="no checkpoints are there"):
        load_policy(str(copy), [])
    assert not (copy / "checkpoints").exists()


# -- a run from another ------------------------------------------------------------------------------------------------
def test_a_run_begins_where_another_ended(finished: tuple[Path, list[int]], tmp_path: Path) -> None:
    source = finished[0]
    config = micro_config(
        tmp_path, "next", model={"path": str(source)}, training={"total_training_steps": 0}, **UNTRAINED
    )
    result = run(config)
    assert result.stopped is None
    (row,) = read_jsonl(result.run_dir / "metrics.jsonl")
    last = read_jsonl(source / "metrics.jsonl")[-1]
    compared = [n for n in last if n.startswith("val-env/")]
    assert {n: row[n] for n in compared} == {n: last[n] for n in compared}
    ours, theirs = (load_policy(str(d), []) for d in (result.run_dir, source))
    for a, b in zip(*(jax.tree.leaves(p.trainable["policy"]) for p in (ours, theirs)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert ours.setup.model == theirs.setup.model
    assert ours.setup.tokenizer.encode("Go Left.") == theirs.setup.tokenizer.encode("Go Left.")
    assert write_report(result.run_dir).exists()  # also of a run without a step


@pytest.mark.slow
def test_adapters_on_the_policy_of_another_run(finished: tuple[Path, list[int]], tmp_path: Path) -> None:
    source = {"path": str(finished[0]), "lora": {"rank": 2, "alpha": 4.0}}
    first = run(
        micro_config(tmp_path, "adapted", model=source, training={"total_training_steps": 1}, **UNTRAINED)
    )
    merged = load_weights(str(first.run_dir))
    assert merged.adapters is not None
    assert merged.origin is None  # its model has no files of its own
    second = build(micro_config(tmp_path, "again", model={"path": str(first.run_dir)}, **UNTRAINED))
    for a, b in zip(*(jax.tree.leaves(p) for p in (second.params, merged.merged())), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_source_without_a_checkpoint_is_refused(copy: Path, tmp_path: Path) -> None:
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(CheckpointError, match="no checkpoints are there"):
        run(micro_config(tmp_path, "next", model={"path": str(copy)}, **UNTRAINED))
    assert not (tmp_path / "next").exists()
