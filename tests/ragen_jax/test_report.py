"""The report of a run, over run directories made up in `report_run`: whole, interrupted, hostile and empty."""

import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from report_run import HOSTILE, TAG, Page, build, episode, gradients, metrics

from ragen_jax.estimators import regime, regime_thresholds
from ragen_jax.report import FIGURES, MetricsTable, read_run, save_plots, write_report
from ragen_jax.report.gradients import gradient_norms, gradient_snr
from ragen_jax.report.overview import final_table, number, sentences
from ragen_jax.report.page import embed_json, render, rollout_note
from ragen_jax.report.plots import success_summary
from ragen_jax.report.regime_plane import regime_path
from ragen_jax.report.rollouts import MAX_TEXT, choose, read_rollouts, spread
from ragen_jax.report.run_directory import Run, read_json_lines


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
    odd = [{"step": 1, "mean": [1], "std": []}, {"step": 3, "mean": 1, "std": 0}, {"mean": [1], "std": [0]}]
    (folder / "groups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (good, *odd)))
    run = read_run(folder)
    assert [row["step"] for row in run.groups] == [2]
    assert "groups.jsonl: 3 line(s) are of another form and were left out." in run.notes
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


def test_only_the_ends_of_several_buckets_are_named():
    records = [{"step": s, **gradients(s / 2)} for s in range(3)]
    names = [
        t.get_text() for t in gradient_snr(MetricsTable.from_records(records)).axes[0].get_legend().texts
    ]
    assert names == ["Q1 (lowest)", "Q2", "Q3 (highest)"]
    one = [{k: v for k, v in r.items() if "bucket_" not in k or "bucket_2" in k} for r in records]
    names = [t.get_text() for t in gradient_snr(MetricsTable.from_records(one)).axes[0].get_legend().texts]
    assert names == ["Q2"]


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


def test_a_level_without_an_interval_is_a_point():
    levels = {"blind": {"success": 0.5, "low": None, "high": None}}
    run = run_of([(0.4, 0.35, 0.45), (0.9, None, None)], levels)
    axes = success_summary(run.table, run.baselines).axes[0]
    assert [t.get_text() for t in axes.texts] == ["0.50", "0.40", "0.90"]
    np.testing.assert_allclose([t.xy[0] for t in axes.texts], [0.5, 0.45, 0.9])
    assert sum(line.get_marker() == "None" for line in axes.lines) == 1  # one interval
    assert "0.900 at step 1." in " ".join(sentences(run))


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


NO_GROUPS = "Not recorded: groups.jsonl"  # a file of its own, which these runs lack


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
    assert ("Not recorded" in page.words.replace(NO_GROUPS, "")) == (missing != "collapse_first")


def test_a_single_step_is_drawn(tmp_path):
    folder = tmp_path / "one"
    folder.mkdir()
    record = {k: v for line in metrics(1) for k, v in line.items()}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    words = Page(write_report(folder).read_text(encoding="utf-8")).words
    assert NO_GROUPS in words
    assert "Not recorded" not in words.replace(NO_GROUPS, "")


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


def test_long_texts_and_rewards_that_are_not_finite_are_cut_and_said(tmp_path):
    folder = tmp_path / "long"
    (folder / "rollouts").mkdir(parents=True)
    row = episode(0, "train", 0, 0)
    row["turns"][0]["prompt"] = "x" * (MAX_TEXT + 7)
    row["reward"], row["turns"][0]["reward"] = float("nan"), float("-inf")
    (folder / "rollouts" / "train_000000.jsonl").write_text(json.dumps(row) + "\n")
    page = Page(write_report(folder).read_text(encoding="utf-8"))
    assert page.rollouts[0]["turns"][0]["prompt"].endswith("[7 more characters are not in this page]")
    assert page.rollouts[0]["reward"] is None
    assert page.rollouts[0]["turns"][0]["reward"] is None
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
