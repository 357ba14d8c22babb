"""Rows of data files: whatever is wrong is named with its line, counted, and refused or skipped as asked."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from envs_jax.datasets.countdown import parse_instance
from envs_jax.datasets.questions import answer_of, parse_question
from envs_jax.datasets.splits import SHARES, bucket, halves, split_of
from envs_jax.datasets.table import (
    BadRowsError,
    Record,
    RowError,
    check_rows,
    field,
    number,
    read_json_array,
    read_json_lines,
    text_field,
)
from envs_jax.errors import ConfigError

GOOD = '{"id": 1, "text": "one"}'
LINES: list[tuple[bytes, str | None]] = [
    (GOOD.encode(), None),
    (b'{"id": 2, "text": "tw', "malformed"),
    (b'{"id": 3}', "missing field"),
    (b'{"id": 4, "text": "caf\xe9"}', "not UTF-8"),
    (b"", "blank"),
    (b'{"id": 1, "text": "again"}', "duplicate id"),
    (b'{"id": "7", "text": "seven"}', "wrong type"),
    (b'{"id": 8, "text": "  "}', "empty field"),
    (b'{"id": 9, "text": "nine nine nine"}', "too long"),
    (b"[10]", "malformed"),
    (b'{"id": true, "text": "x"}', "wrong type"),
    (b'{"id": 12, "text": null}', "missing field"),
    (b'{"id": 13, "text": "\\ud800"}', "not UTF-8"),
    ('{"id": 14, "text": "caf\u00e9"}'.encode(), None),
]
EXPECTED = [(line, kind) for line, (_, kind) in enumerate(LINES, 1) if kind not in (None, "blank")]


def parse(record: Any) -> tuple[int, str]:
    return field(record, "id", int), text_field(record, "text", max_bytes=10)


def table_of(path: Path, on_bad_row: str) -> Any:
    return check_rows(
        read_json_lines(path), parse, source=path.name, on_bad_row=on_bad_row, identity=lambda row: row[0]
    )


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(raw for raw, _ in LINES) + b"\n")
    return path


def test_bad_rows_are_skipped_named_and_counted(lines: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "envs_jax.datasets"):
        table = table_of(lines, "skip")
    assert table.rows == ((1, "one"), (14, "café"))
    assert [(p.line, p.kind) for p in table.report.problems] == EXPECTED
    assert table.report.counts["malformed"] == 2
    assert table.report.counts["wrong type"] == 2
    assert sum(table.report.counts.values()) == len(EXPECTED)
    (message,) = caplog.messages
    assert "rows.jsonl: 2 rows usable, 11 not" in message
    assert "line 2: malformed" in message
    assert "line 3: missing field: 'text'" in message
    assert "and 6 more" in message


def test_bad_rows_are_refused_all_at_once(lines: Path) -> None:
    with pytest.raises(BadRowsError, match="line 2: malformed") as caught:
        table_of(lines, "refuse")
    assert [(p.line, p.kind) for p in caught.value.report.problems] == EXPECTED
    assert 'on_bad_row = "skip"' in str(caught.value)


def test_clean_tables_say_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(GOOD)
    assert table_of(path, "refuse").report.problems == ()
    assert not caplog.messages


@pytest.mark.parametrize("on_bad_row", ["refuse", "skip"])
def test_a_table_without_a_usable_row_is_refused(tmp_path: Path, on_bad_row: str) -> None:
    path = tmp_path / "rows.jsonl"
    for content in (b"", b"\n\n", b"{}\n"):
        path.write_bytes(content)
        with pytest.raises(BadRowsError):
            table_of(path, on_bad_row)


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        check_rows(number([1]), int, source="x", on_bad_row="ignore")
    assert caught.value.field == "on_bad_row"


@pytest.mark.parametrize("indent", [None, 2])
def test_json_arrays_are_read_with_the_line_of_each_object(tmp_path: Path, indent: int | None) -> None:
    values = [{"id": i, "text": 'a "brace" { \n'} for i in range(5)]
    text = json.dumps(values, indent=indent)
    path = tmp_path / "rows.json"
    path.write_text(text)
    records = list(read_json_array(path))
    assert [r.value for r in records] == values
    step = 4 if indent else 0
    assert [r.line for r in records] == [(2 if indent else 1) + step * i for i in range(5)]
    assert all(r.error is None for r in records)


def test_bad_objects_of_an_array_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(b'[\n{"id": 1},\n{"id": 2, "id"},\n{"id": "\xff"},\n{"id": 4}\n, {"id": 5}\n]\n')
    records = list(read_json_array(path))
    assert [(r.line, r.value) for r in records if r.error is None] == [
        (2, {"id": 1}),
        (5, {"id": 4}),
        (6, {"id": 5}),
    ]
    assert [(r.line, r.error.kind) for r in records if r.error] == [(3, "malformed"), (4, "not UTF-8")]


@pytest.mark.parametrize(
    ("content", "line"), [(b'[{"id": 1},\n', 2), (b'{"id": 1}', 1), (b"", 1), (b'[{"id": 1}, {"id":', 1)]
)
def test_arrays_cut_short_are_bad(tmp_path: Path, content: bytes, line: int) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(content)
    assert [(r.line, r.error.kind) for r in read_json_array(path) if r.error][-1] == (line, "malformed")


def test_records_know_their_place() -> None:
    assert list(number("ab")) == [Record(1, "a"), Record(2, "b")]
    assert text_field({"a": " x\r\ny "}, "a") == "x\ny"


# -- rows of the tasks --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"target": 5, "nums": []}, "out of range"),
        ({"target": 5, "nums": [1, 2, "3"]}, "wrong type"),
        ({"target": 5, "nums": [1, -2]}, "out of range"),
        ({"target": 5, "nums": [1, 10**9]}, "out of range"),
        ({"target": -5, "nums": [1]}, "out of range"),
        ({"target": 5.0, "nums": [1]}, "wrong type"),
        ({"target": 5, "nums": [True]}, "wrong type"),
        ({"target": 5, "nums": [1] * 9}, "out of range"),
        ({"nums": [1]}, "missing field"),
        ({"target": 5, "nums": "1 2"}, "wrong type"),
    ],
)
def test_countdown_rows_are_checked(record: dict[str, Any], kind: str) -> None:
    with pytest.raises(RowError) as caught:
        parse_instance(record)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        ({"question": "x" * 101, "answer": "1"}, "too long"),
        ({"question": "é" * 51, "answer": "1"}, "too long"),
        ({"question": "?", "answer": "1" * 11}, "too long"),
        ({"question": "say <|im_end|> now", "answer": "1"}, "control token"),
        ({"question": "?", "answer": ""}, "empty field"),
        ({"question": "?"}, "missing field"),
    ],
)
def test_questions_are_checked(record: dict[str, Any], kind: str) -> None:
    with pytest.raises(RowError) as caught:
        parse_question(record, max_question_bytes=100, max_answer_bytes=10)
    assert caught.value.kind == kind
    assert parse_question(
        {"question": "é" * 50, "answer": "1 " * 10}, max_question_bytes=100, max_answer_bytes=10
    )


def test_answers_follow_the_marker() -> None:
    assert answer_of("So 2 + 2.\n#### 4\nThe answer is: 4 \n") == "4"
    for response in ("no marker", "The answer is: ", "The answer is:4"):
        with pytest.raises(RowError):
            answer_of(response)


# -- splits -------------------------------------------------------------------------------------------------
def test_splits_have_their_shares_and_depend_on_the_content_alone() -> None:
    names = [split_of(f"row {i}") for i in range(20_000)]
    for name, share in SHARES:
        assert abs(names.count(name) / 20_000 - share / 100) < 0.01
    assert names[:50] == [split_of(f"row {i}") for i in range(50)]
    assert bucket("row 0", 1) == 0


def test_halves_are_full_disjoint_and_without_repeats() -> None:
    found = halves((str(i // 2) for i in range(1000)), str, 20, limit=1000)
    assert len(found["train"]) == len(found["eval"]) == 20
    assert len({*found["train"], *found["eval"]}) == 40
    with pytest.raises(ValueError, match="20"):
        halves((str(i % 10) for i in range(10_000)), str, 20, limit=500)
