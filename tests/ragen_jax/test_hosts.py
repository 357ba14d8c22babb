"""Two real processes over gloo: training, death and resumption, other numbers of processes, odd configurations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from child import together

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


def start(processes: int, folder: Path, *action: str) -> list[tuple[int, str]]:
    """(exit code, output) of every process."""
    script = str(HERE / "hosts_run.py")
    return together(processes, script, "PORT", str(processes), "PROCESS", str(folder), *action)


def digest(results: list[tuple[int, str]]) -> str:
    assert [code for code, _ in results] == [0] * len(results), "\n".join(out[-3000:] for _, out in results)
    return next(line.split()[1] for line in results[0][1].splitlines() if line.startswith("DIGEST"))


def rows(folder: Path) -> list[dict]:
    """Metrics of a run, less what is of the clock."""
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if "time" not in k and "timing" not in k} for line in lines
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two processes that nothing interrupts: its folder and its parameters' digest."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, digest(start(2, folder, "train", "3"))


def test_a_killed_run_resumes_to_the_same_end(whole, tmp_path):
    folder, wanted = whole
    ended = start(2, tmp_path, "train", "3", "2")
    assert ended[1][0] == -9
    code, out = ended[0]
    assert code not in (0, None), out[-2000:]  # the other one ends too, and says so
    assert (
        "another process of the run is gone" in out or "another task died" in out or "unavailable" in out
    ), out[-2000:]
    assert digest(start(2, tmp_path, "resume", "3")) == wanted
    assert rows(tmp_path) == rows(folder)


def test_a_checkpoint_moves_between_numbers_of_processes(whole, tmp_path):
    """Two processes' checkpoint goes on in one, and one's in two; ids of rollouts aside, rounding may differ."""
    two = start(2, tmp_path / "two", "train", "2")
    digest(two)
    digest(start(1, tmp_path / "two", "resume", "3"))
    digest(start(1, tmp_path / "one", "train", "2"))
    digest(start(2, tmp_path / "one", "resume", "3"))
    for name in ("two", "one"):
        assert [r["step"] for r in rows(tmp_path / name)] == [0, 1, 2, 3]


def test_configurations_that_differ_are_refused(tmp_path):
    for code, out in start(2, tmp_path, "differ", "1"):
        assert code == 2, out[-2000:]
        assert "REFUSED run = 'differs in process 1'" in out
    assert not (tmp_path / "run").exists()
