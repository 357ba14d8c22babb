"""Assembles report.html: one file, no other files or network needed, with everything from disk escaped."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from ragen_jax.report.figures import FigureOf, figures_of, save_plots
from ragen_jax.report.overview import final_table, number, sentences, settings
from ragen_jax.report.plots import MANY
from ragen_jax.report.rollouts import RolloutSample
from ragen_jax.report.run_directory import Run, read_run
from ragen_jax.report.style import style, to_svg


def write_report(run_dir: str | Path, *, max_rollouts: int = 200, png: bool = False) -> Path:
    """Writes report.html into a run directory, whole or interrupted, and returns its path.

    Args:
        run_dir: holds any of metrics.jsonl, rollouts/*.jsonl, baselines.json, summary.json, config.yaml. What
            is missing or cannot be read is said in the page.
        max_rollouts: most rollouts to embed in the page's reader.
        png: also write every figure to plots/*.png.

    Raises:
        FileNotFoundError: the directory does not exist.
    """
    run = read_run(run_dir, max_rollouts=max_rollouts)
    path = Path(run_dir) / "report.html"
    scratch = path.with_suffix(".html.tmp")
    scratch.write_bytes(render(run).encode("utf-8", "replace"))  # lone surrogates become "?"
    os.replace(scratch, path)
    if png:
        save_plots(run_dir)
    return path


def render(run: Run) -> str:
    """The page of a run."""
    with style():
        drawn = {figure.key: _figure(figure, run) for figure in figures_of(run)}
    parts = {
        "title": html.escape(_title(run)),
        "css": _asset("page.css"),
        "js": _asset("page.js"),
        "settings": _settings(run),
        "sentences": "".join(f"<p>{html.escape(s)}</p>" for s in sentences(run)),
        "table": _table(run),
        "success_summary": drawn.pop("success_summary"),
        "figures": "\n".join(drawn.values()),
        "average_note": f"Where a curve has more than {MANY} points, the faint line is every point and the "
        "strong one a centred moving average.",
        "rollout_note": html.escape(rollout_note(run.rollouts)),
        "rollouts": embed_json(list(run.rollouts.rollouts)),
        "config": html.escape(yaml.safe_dump(dict(run.config), sort_keys=False) if run.config else "none"),
        "summary": _summary(run.summary),
        "notes": _notes(run.notes),
    }
    template = _asset("page.html")
    return re.sub(r"\{\{(\w+)\}\}", lambda m: parts[m.group(1)], template)


def embed_json(value: Any) -> str:
    """JSON that can stand in a <script> element: no `<`, `>` or `&`, no line separator.

    Raises:
        ValueError: a number that is not finite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def rollout_note(sample: RolloutSample) -> str:
    """How much of what is on disk the page holds."""
    if not sample.total:
        return "No rollouts were found in this run directory."
    note = f"{len(sample.rollouts):,} of the {sample.total:,} rollouts in {sample.files_read:,} files"
    if sample.files_read < sample.files:
        note += f" (of {sample.files:,} files, evenly over the steps)"
    if len(sample.rollouts) < sample.total:
        note += ", half successes and half failures where there are enough"
    if sample.cut_texts:
        note += f"; {sample.cut_texts:,} long texts are cut short"
    return note + "."


def _title(run: Run) -> str:
    name = run.setting("run.name")
    return str(name) if name not in (None, "", "run") else run.name


def _settings(run: Run) -> str:
    chips = (f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd></div>" for k, v in settings(run))
    return "".join(chips)


def _table(run: Run) -> str:
    rows = final_table(run)
    if not rows:
        return "<p class=muted>No metrics to tabulate.</p>"
    body = "".join(
        f"<tr><th scope=row>{html.escape(r.name)}</th><td>{html.escape(r.first)}</td>"
        f"<td>{html.escape(r.last)}</td><td class=beside>{html.escape(r.beside)}</td></tr>"
        for r in rows
    )
    return (
        "<table><thead><tr><th scope=col>measure</th><th scope=col>first</th><th scope=col>last</th>"
        f"<th scope=col>beside</th></tr></thead><tbody>{body}</tbody></table>"
    )


def _figure(figure: FigureOf, run: Run) -> str:
    svg = to_svg(figure.draw(run), figure.key)
    title = html.escape(figure.title)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
    wide = ' class="wide"' if figure.wide else ""
    return (
        f'<figure id="{figure.key}"{wide}><h3>{title}</h3>{svg}'
        f"<figcaption>{html.escape(figure.caption)}</figcaption></figure>"
    )


def _summary(summary: Mapping[str, Any]) -> str:
    if not summary:
        return "<p class=muted>none</p>"
    rows = [
        f"<tr><th scope=row>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in _leaves(summary)
    ]
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, text) of every value of a nested mapping; what is None is left out."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        elif value is not None:
            text = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else number(value)
            yield f"{prefix}{key}", text


def _notes(notes: tuple[str, ...]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
    return f'<aside class="notes"><h2>Read with care</h2><ul>{items}</ul></aside>'


def _asset(name: str) -> str:
    return resources.files("ragen_jax.report").joinpath(name).read_text(encoding="utf-8")
