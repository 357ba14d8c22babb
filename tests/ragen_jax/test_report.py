"""The report of a run, over a run directory made up here: whole, interrupted, hostile and empty."""

import html
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from ragen_jax.estimators import regime, regime_thresholds
from ragen_jax.report import FIGURES, MetricsTable, read_run, save_plots, write_report
from ragen_jax.report.gradients import gradient_norms, gradient_snr
from ragen_jax.report.overview import final_table, number, sentences
from ragen_jax.report.page import embed_json, render, rollout_note
from ragen_jax.report.regime_plane import regime_path
from ragen_jax.report.rollouts import MAX_TEXT, choose, read_rollouts, spread
from ragen_jax.report.run_directory import Run, read_json_lines

TAG = "CoordFrozenLake"
HOSTILE = '</script><script>alert("x")</script><!-- <b>&amp; \u2028 \U0001f600 {{title}}'


def metrics(steps=60, collapse=True):
    """A run that learns while its reasoning loses its input (`collapse`) or keeps it."""
    rng = np.random.default_rng(0)
    for step in range(steps + 1):
        t = step / steps
        line = {"step": step, "time": 4.0 * step + 9}
        if step % 10 == 0:
            p = 0.12 + 0.62 / (1 + math.exp(-9 * (t - 0.45)))
            half = 1.96 * math.sqrt(p * (1 - p) / 512)
            name = f"val-env/{TAG}/success"
            line |= {name: p, f"{name}_low": p - half, f"{name}_high": p + half}
        if step % 5 == 0:
            for family, columns in (("collapse_first_turn_sample", 8), ("collapse_trajectory_sample", 60)):
                ceiling = math.log(columns)
                keep = (1 - 0.95 * t) if collapse else (1 - 0.2 * t)
                mi = ceiling * 0.9 * keep + 0.03 * rng.normal()
                h = 1.4 - 0.3 * t
                line |= {
                    f"{family}/mi_seq_estimate": mi,
                    f"{family}/mi_seq_estimate_low": mi - 0.15,
                    f"{family}/mi_seq_estimate_high": mi + 0.12,
                    f"{family}/mi_estimate": mi / 20,
                    f"{family}/mi_upper_bound": ceiling,
                    f"{family}/mi_upper_bound_per_token": ceiling / 20,
                    f"{family}/mi_zscore_ema": mi / 0.8,
                    f"{family}/retrieval_accuracy": max(1 / columns, keep * 0.9),
                    f"{family}/retrieval_chance_level": 1 / columns,
                    f"{family}/conditional_entropy_est": h,
                    f"{family}/reasoning_entropy_est": h + mi / 20,
                }
            line["collapse/regime"] = 0
        if step:
            spread_of = 2.4 * (1 - 0.5 * t) + 0.2 * rng.normal()
            line |= {
                "actor/entropy": 1.1 * (1 - 0.6 * t) + 0.03 * rng.normal(),
                "actor/grad_norm": 1 + abs(rng.normal()),
                "actor/ppo_kl": abs(0.001 * rng.normal()),
                "actor/pg_clipfrac": 0.02 * rng.random(),
                "reward_variance/mean": spread_of,
                "reward_variance/std": 0.9,
                "reward_variance/min": 0.0,
                "reward_variance/max": spread_of + 2,
                "rollout/in_group_reward_std": spread_of,
                "rollout/in_group_reward_mean": -1 + 6 * t,
                "rollout/in_group_reward_max": 3 + 6 * t,
                "rollout/filter_kept_ratio": 1 - rng.integers(0, 5) / 8,
                "rollout/filter_kept_count": 6.0,
                "rollout/filter_zero_count": float(rng.integers(0, 3)),
                "collapse/reasoning_length": 24 - 8 * t + rng.normal(),
                "collapse/valid_thinking_rate": min(1.0, 0.9 + 0.1 * t),
                "timing_s/rollout": 2 + 0.1 * rng.random() + (8 if step == 1 else 0),
                "timing_s/diagnosis": 0.8 if step % 5 == 0 else 0.0,
                "timing_s/update": 1.1,
                "timing_s/eval": 3.0 if step % 10 == 0 else 0.0,
            }
            line["rollout/filter_kept_count"] = 8 * line["rollout/filter_kept_ratio"]
            line["rollout/effective_kept_ratio"] = line["rollout/filter_kept_ratio"] / 2
        if step and step % 10 == 0:
            line |= gradients(t)
        yield line


def gradients(t):
    """A gradient analysis whose signal grows with reward variance and fades with time."""
    out = {}
    ends = {"": 0.0, "_low": -0.1, "_high": 0.1}
    for rank, bucket in enumerate(("bucket_1", "bucket_2", "bucket_3", "all"), 1):
        signal, noise = rank * (1 - 0.9 * t), 4.0 * rank
        out |= {f"grad_norm/{bucket}/{part}": x for part, x in (("task", signal**0.5), ("reg", 0.2))}
        out[f"grad_norm/{bucket}/reward_std_mean"] = rank / 2
        for name, x in (
            ("signal_sq", signal),
            ("noise_trace", noise),
            ("reg_sq", 0.04),
            ("snr", signal / noise),
        ):
            out |= {f"grad_snr/{bucket}/{name}{end}": x + shift for end, shift in ends.items()}
    return out


def episode(step, split, group, member):
    won = (group + member + step // 10) % 3 != 0
    board = "_ P _ _\n_ O _ _\n_ _ _ O\nO _ _ G"
    turns = [
        {
            "prompt": f"Turn {t + 1}. State:\n{board}\nYou have {10 - 2 * t} actions left.",
            "reasoning": f"Player at (0, 1), goal at (3, 3), group {group}. I go down and then right.",
            "answer": "Down || Right",
            "response": "Player at ..</think><answer>Down || Right</answer>",
            "actions": ["Down", "Right"] if t or member else [],
            "reward": 0.0 if t == 0 else float(won),
            "penalty": 0.0 if t or member else -0.1,
            "valid": bool(t or member),
        }
        for t in range(2)
    ]
    return {
        "step": step,
        "split": split,
        "tag": TAG,
        "group": group,
        "member": member,
        "level": 1000 + group,
        "success": won,
        "reward": float(won) - 0.1,
        "kept": (group % 2 == 0) if split == "train" else None,
        "turns": turns,
    }


def build(folder, *, collapse=True, hostile=False, steps=60):
    """Writes a run directory with everything that a run leaves."""
    (folder / "rollouts").mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w") as file:
        for line in metrics(steps, collapse):
            file.write(json.dumps(line) + "\n")
    with (folder / "groups.jsonl").open("w") as file:
        for step in range(1, steps + 1):
            won = min(step, 8)
            row = {"mean": [1.0] * won + [0.3] * (9 - won), "std": [0.0] * won + [0.4] * (9 - won)}
            file.write(json.dumps({"step": step, "level": [0.0] * 9, "kept": [1.0] * 9, **row}) + "\n")
    for split in ("train", "eval"):
        for step in range(0, steps + 1, 10):
            rows = [episode(step, split, g, m) for g in range(4) for m in range(4)]
            if hostile:
                rows[0]["turns"][0]["reasoning"] = HOSTILE
                rows[0]["tag"] = HOSTILE
            text = "".join(json.dumps(r) + "\n" for r in rows)
            (folder / "rollouts" / f"{split}_{step:06d}.jsonl").write_text(text)
    levels = {
        "random": {"success": 0.21, "low": 0.18, "high": 0.25, "n": 512},
        "blind": {"success": 0.6, "low": 0.56, "high": 0.64, "n": 512},
        "teacher": {"success": 0.97, "low": 0.95, "high": 0.98, "n": 512},
    }
    (folder / "baselines.json").write_text(json.dumps(levels))
    (folder / "summary.json").write_text(
        json.dumps(
            {"steps": steps, "after": {"success": 0.74}, "stopped": "kept nothing", "note": "<b>done</b>"}
        )
    )
    (folder / "config.yaml").write_text(
        f"run: {{name: demo, seed: 3}}\nenv: {{tag: {TAG}}}\nmodel: {{path: null, hidden_size: 64}}\n"
        "algorithm: {adv_estimator: grpo}\nrollout: {env_groups: 8, group_size: 16}\n"
    )
    return folder


class Page(HTMLParser):
    """Elements, scripts and text as a browser sees them."""

    def __init__(self, text):
        super().__init__()
        self.scripts, self.tags, self.ids, self.text = [], [], [], []
        self.inside = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        if "id" in attrs:
            self.ids.append(attrs["id"])
        self.inside = tag
        if tag == "script":
            self.scripts.append((attrs, []))

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1][1].append(data)
        elif self.inside != "style":
            self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())

    @property
    def rollouts(self):
        (data,) = ["".join(d) for a, d in self.scripts if a.get("id") == "rollout-data"]
        return json.loads(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = build(tmp_path_factory.mktemp("whole") / "demo")
    return folder, Page(write_report(folder).read_text(encoding="utf-8"))


def test_page_is_one_file_that_loads_nothing(whole):
    folder, page = whole
    assert [p.name for p in folder.glob("report*")] == ["report.html"]
    for tag, attrs in page.tags:
        assert tag not in ("link", "img", "iframe")
        assert "src" not in attrs
        for name in ("href", "xlink:href"):
            assert attrs.get(name, "#").startswith(("#", "data:image/png;base64,"))
    text = (folder / "report.html").read_text(encoding="utf-8")
    outside = set(re.findall(r"(?:https?:)?//[\w.]+", text)) - {"http://www.w3.org"}
    assert not outside
    assert "url(#" in text  # clip paths, of which
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | {
        attrs["xlink:href"][1:] for tag, attrs in page.tags if tag == "use"
    }
    assert used <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))


def test_page_says_what_the_run_was_and_how_it_ended(whole):
    _, page = whole
    for piece in ("demo", TAG, "grpo", "before", "blind", "teacher", "random"):
        assert piece in page.words, piece
    assert "a rise that the 95 % intervals bear out" in page.words
    assert "clear of the blind baseline (0.600 [0.560, 0.640])" in page.words
    assert "Reasoning moved from diverse reasoning to template collapse" in page.words
    assert "ceiling 2.08" in page.words
    assert "chance 0.125" in page.words
    assert "Not recorded" not in page.words
    assert "Read with care" not in page.words
    assert page.words.count("<b>done</b>") == 1
    assert "The run ended early: kept nothing." in page.words
    assert "after.success 0.74" in page.words
    for figure in FIGURES:
        assert figure.key in page.ids


def test_phases_count_prompts_without_variance(whole):
    """groups.jsonl: of 9 prompts min(step, 8) are won by all, in 60 steps; thirds of 20 steps."""
    _, page = whole
    for share in (sum(min(s, 8) for s in range(1, 21)) / 180, 8 / 9, 8 / 9):
        assert f"{share:.0%} without variance" in page.words
    assert "first third (steps 1 to 20)" in page.words
    assert "last third (steps 41 to 60)" in page.words


def test_rows_of_groups_of_another_form_are_noted(tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    good = {"step": 2, "mean": [1, None], "std": [0.5, 0]}
    (folder / "groups.jsonl").write_text(f'{json.dumps(good)}\n{{"step": 1, "mean": [1], "std": []}}\n')
    run = read_run(folder)
    assert [row["step"] for row in run.groups] == [2]
    assert "groups.jsonl: 1 line(s) are of another form and were left out." in run.notes
    assert "middle third (steps 2 to 2): 0% without variance" in Page(render(run)).words


def test_gradient_figures_of_one_step_are_by_bucket(tmp_path):
    table = MetricsTable.from_records([{"step": 0, **gradients(0.0)}])
    left, right = gradient_snr(table).axes
    assert [t.get_text() for t in left.get_xticklabels()] == ["Q1", "Q2", "Q3"]
    np.testing.assert_allclose(left.lines[0].get_ydata(), [0.25, 0.25, 0.25])
    assert right.get_yscale() == "symlog"
    task, reg = gradient_norms(table).axes
    np.testing.assert_allclose(task.lines[0].get_xydata(), [[b / 2, b**0.5] for b in (1, 2, 3)])
    np.testing.assert_allclose(reg.lines[0].get_ydata(), 0.2)
    assert task.get_ylim() == reg.get_ylim()


def test_every_colour_follows_the_theme(whole):
    folder, _ = whole
    text = (folder / "report.html").read_text(encoding="utf-8")
    svgs = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(svgs) == len(FIGURES)
    for figure, svg in zip(FIGURES, svgs, strict=True):
        assert "var(--muted" in svg
        bare = re.sub(r"var\(--\w+, #\w{6}\)", "", svg)
        assert figure.key == "regime_plane" or not re.search(r"(?:fill|stroke): #\w{6}", bare), figure.key


def test_report_is_the_same_twice(whole):
    folder, _ = whole
    first = (folder / "report.html").read_bytes()
    write_report(folder)
    assert (folder / "report.html").read_bytes() == first


# -- what the sentences may say --
def run_of(success=(), baselines=None, extra=()):
    records = [
        {"step": s, "val-env/A/success": v, "val-env/A/success_low": low, "val-env/A/success_high": high}
        for s, (v, low, high) in enumerate(success)
    ]
    return Run("r", table=MetricsTable.from_records([*records, *extra]), baselines=baselines or {})


def test_overlapping_intervals_are_no_rise_and_blind_is_no_reading():
    blind = {"blind": {"success": 0.5, "low": 0.45, "high": 0.55}}
    overlap = " ".join(sentences(run_of([(0.4, 0.35, 0.45), (0.44, 0.4, 0.5)], blind)))
    assert "the 95 % intervals overlap" in overlap
    assert "not clear of the blind baseline" in overlap
    fell = " ".join(sentences(run_of([(0.4, 0.35, 0.45), (0.2, 0.15, 0.3)])))
    assert "a fall that the 95 % intervals bear out" in fell
    assert "blind" not in fell
    unknown = " ".join(sentences(run_of([(0.4, None, None), (0.6, None, None)], blind)))
    assert "0.400 at step 0 to 0.600 at step 1." in unknown
    assert "nothing to compare" in " ".join(sentences(run_of([(0.4, 0.3, 0.5)])))
    assert sentences(run_of()) == []


def test_regime_of_a_run_that_keeps_its_input(tmp_path):
    run = read_run(build(tmp_path / "kept", collapse=False))
    assert "Reasoning is in the regime of diverse reasoning from step 0 to step 60." in sentences(run)


def test_regime_is_the_run_s_own():
    family = "collapse_first_turn_sample"
    values = [(2.0, 0.2), (0.9, 0.3), (2.0, 0.05), (0.5, 0.01)]
    first = regime_thresholds(*values[0])

    def path(**extra):
        records = [
            {"step": s, f"{family}/mi_estimate": m, f"{family}/conditional_entropy_est": h, **extra}
            for s, (h, m) in enumerate(values)
        ]
        return regime_path(MetricsTable.from_records(records))

    codes = [int(regime(h, m, entropy_threshold=first[0], mi_threshold=first[1])) for h, m in values]
    assert codes == [0, 2, 1, 3]
    assert [path().code(i) for i in range(4)] == codes
    recorded = path(**{"collapse/entropy_threshold": 0.6, "collapse/mi_threshold": 0.04})
    assert [recorded.code(i) for i in range(4)] == [0, 0, 0, 3]
    assert regime_path(MetricsTable.from_records([{"step": 0, f"{family}/mi_estimate": 1.0}])) is None


# -- incomplete runs --
def test_empty_directory_gives_a_page_that_says_so(tmp_path):
    folder = tmp_path / "empty"
    folder.mkdir()
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    shown = [figure for figure in FIGURES if not figure.needs]
    assert page.words.count("Not recorded") >= len(shown) - 1
    assert not {figure.key for figure in FIGURES if figure.needs} & set(page.ids)
    for name in ("metrics.jsonl", "config.yaml", "baselines.json", "summary.json"):
        assert f"{name} is missing" in page.words
    assert "No rollouts were found" in page.words
    assert page.rollouts == []
    with pytest.raises(FileNotFoundError, match="no run directory"):
        write_report(tmp_path / "nowhere")


def test_interrupted_run_is_read_up_to_the_cut(tmp_path):
    folder = build(tmp_path / "cut")
    whole = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(whole[:-40])
    path = folder / "rollouts" / "eval_000060.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    (folder / "summary.json").write_text('{"steps": 6')
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert "metrics.jsonl: the last line is cut short" in page.words
    assert "eval_000060.jsonl: the last line is cut short" in page.words
    assert "summary.json could not be read" in page.words
    assert read_run(folder).table.last_step == 59
    assert "last step 59" in page.words


def test_nan_null_and_broken_lines(tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    lines = [
        '{"step": 1, "actor/entropy": 1.0, "collapse_first_turn_sample/mi_seq_estimate": NaN}',
        "this is no JSON",
        "[1, 2]",
        "",
        '{"step": 2, "actor/entropy": null, "text": "words", "actor/grad_norm": Infinity}',
        '{"step": 3, "actor/entropy": 0.5}',
        '{"step": 2, "actor/entropy": 0.75}',
        '{"actor/entropy": 99}',
        '{"step": Infinity, "actor/entropy": 99}',
        '{"step": 1.5, "actor/entropy": 99}',
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    run = read_run(folder)
    series = run.table.series("actor/entropy")
    assert series.steps.tolist() == [1, 2, 3]
    assert series.values.tolist() == [1.0, 0.75, 0.5]  # the resumed run's value of step 2
    assert run.table.gaps == {"collapse_first_turn_sample/mi_seq_estimate": 1, "actor/grad_norm": 1}
    notes = " ".join(run.notes)
    assert "2 line(s) could not be read" in notes
    assert "actor/grad_norm: 1 value(s) are missing or not finite" in notes
    assert "Not recorded: actor/grad_norm" in render(run)
    assert "nan" not in " ".join(r.first + r.last for r in final_table(run)).lower()


@pytest.mark.parametrize(
    "missing", ["val-env", "collapse_first", "collapse_", "rollout/", "actor/", "timing_s/"]
)
def test_any_family_of_metrics_may_be_missing(tmp_path, missing):
    folder = tmp_path / "run"
    folder.mkdir()
    with (folder / "metrics.jsonl").open("w") as file:
        for line in metrics(10):
            file.write(json.dumps({k: v for k, v in line.items() if not k.startswith(missing)}) + "\n")
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert ("Not recorded" in page.words) == (missing != "collapse_first")


def test_a_single_step_is_drawn(tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    record = {k: v for line in metrics(1) for k, v in line.items()}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    assert "Not recorded" not in Page(write_report(folder).read_text(encoding="utf-8")).words


# -- rollouts --
def test_reader_holds_the_rollouts(whole):
    folder, page = whole
    assert len(page.rollouts) <= 200
    assert {r["split"] for r in page.rollouts} == {"train", "eval"}
    assert {r["step"] for r in page.rollouts} >= {0, 60}
    assert {r["success"] for r in page.rollouts} == {True, False}
    on_disk = [json.loads(line) for p in folder.glob("rollouts/*.jsonl") for line in p.open()]
    assert all(r in on_disk for r in page.rollouts)
    assert f"{len(page.rollouts)} of the 224 rollouts in 14 files" in page.words


def test_rollouts_are_capped_evenly_and_the_page_says_so(tmp_path):
    folder = build(tmp_path / "many")
    sample = read_run(folder, max_rollouts=24).rollouts
    assert 12 <= len(sample.rollouts) <= 24
    assert {r["step"] for r in sample.rollouts} >= {0, 60}
    note = rollout_note(sample)
    assert "of 14 files, evenly over the steps" in note
    assert "half successes and half failures" in note
    assert read_run(folder, max_rollouts=0).rollouts.rollouts == ()
    little = read_rollouts(folder / "rollouts", read_json_lines, notes := [], max_total=4000).rollouts
    assert 0 < len(little) < 10
    assert "the page is at its limit of text" in notes[0]


def test_hostile_text_stays_text(tmp_path):
    folder = build(tmp_path / "hostile", hostile=True)
    (folder / "config.yaml").write_text(
        json.dumps({"run": {"name": HOSTILE + "\ud800"}, "env": {"tag": HOSTILE}})
    )
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 61, "val-env/<script>$x$</script>/success": 0.5}) + "\n")
    text = write_report(folder).read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.scripts) == 2
    assert "alert" not in "".join(page.scripts[1][1])
    assert any(t["reasoning"] == HOSTILE for r in page.rollouts for t in r["turns"])
    assert "<script>alert" not in text
    assert "<script>$x$" not in text
    assert html.escape("<script>$x$</script>", quote=False) in text


def test_embedded_json_survives_a_script_element():
    value = [HOSTILE, {"k</script>": [1, None, True, "\u2029", "\ud800"]}]
    text = embed_json(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text)[0] == HOSTILE
    assert "k</script>" in json.loads(text)[1]

    with pytest.raises(ValueError, match="JSON"):
        embed_json([float("nan")])


def test_long_texts_and_nan_rewards_are_cut_and_said(tmp_path):
    folder = tmp_path / "long"
    (folder / "rollouts").mkdir(parents=True)
    row = episode(0, "train", 0, 0)
    row["turns"][0]["prompt"] = "x" * (MAX_TEXT + 7)
    row["reward"] = float("nan")
    (folder / "rollouts" / "train_000000.jsonl").write_text(json.dumps(row) + "\n")
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert page.rollouts[0]["turns"][0]["prompt"].endswith("[7 more characters are not in this page]")
    assert page.rollouts[0]["reward"] is None
    assert "1 long texts are cut short" in page.words


def test_choice_of_rollouts():
    rows = [{"i": i, "success": i % 5 == 0} for i in range(20)]
    picked = choose(rows, 6)
    assert [r["i"] for r in picked] == [0, 1, 2, 3, 5, 10]
    assert len(choose(rows, 12)) == 12
    assert sum(r["success"] for r in choose(rows, 12)) == 4
    assert choose(rows, 99) == rows
    assert choose(rows, 0) == []
    assert spread(list(range(11)), 3) == [0, 5, 10]
    assert spread([1, 2], 5) == [1, 2]
    assert spread([1, 2, 3], 1) == [3]


# -- in a browser, where there is one --
def in_browser(folder, script):
    """The page's elements after `script` has run."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    path = folder / "probe.html"
    text = (folder / "report.html").read_text(encoding="utf-8")
    path.write_text(text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return Page(done.stdout)


@pytest.mark.slow
def test_reader_in_a_browser(tmp_path):
    folder = build(tmp_path / "browser", hostile=True, steps=10)
    write_report(folder)
    press = 'document.dispatchEvent(new KeyboardEvent("keydown", {key: "%s", bubbles: true}));'
    page = in_browser(folder, press % "ArrowRight" * 3 + press % "ArrowLeft")
    assert "3 of 64" in page.words
    assert "Turn 2" in page.words
    first = in_browser(folder, "")
    assert "1 of 64" in first.words
    assert 'alert("x")' in first.words  # as text, in the reader
    assert len(first.scripts) == 3
    pick = (
        'f = document.getElementById("f-outcome"); f.value = "failure"; f.dispatchEvent(new Event("change"));'
    )
    failures = in_browser(folder, pick)
    lost = sum(not r["success"] for r in failures.rollouts)
    assert f"1 of {lost}" in failures.words
    pick = 'f = document.getElementById("f-view"); f.value = "compare"; f.dispatchEvent(new Event("change"));'
    assert in_browser(folder, pick).words.count("I go down and then right.") >= 60


# -- the rest --
def test_plots_as_png(tmp_path):
    folder = build(tmp_path / "png", steps=10)
    paths = save_plots(folder)
    assert [p.name for p in paths] == [f"{f.key}.png" for f in FIGURES]
    assert all(p.read_bytes().startswith(b"\x89PNG") and p.stat().st_size > 5000 for p in paths)
    assert paths[0].parent == folder / "plots"


def test_table_joins_only_where_all_are_finite():
    table = MetricsTable.from_records(
        [
            {"step": 0, "a": 1, "b": 2},
            {"step": 1, "a": 1},
            {"step": 2, "a": 3, "b": float("nan")},
            {"step": 3.0, "b": 1},
        ]
    )
    steps, a, b = table.together("a", "b")
    assert (steps.tolist(), a.tolist(), b.tolist()) == ([0], [1], [2])
    assert table.names("[ab]") == ["a", "b"]
    assert table.last_step == 3
    assert len(table.series("c")) == 0
    assert table.series("c").first is None
    assert MetricsTable().together("a")[0].tolist() == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.123"),
        (3.0, "3"),
        (12345.6, "12346"),
        (float("nan"), "not finite"),
        (True, "True"),
        ("x", "x"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text
