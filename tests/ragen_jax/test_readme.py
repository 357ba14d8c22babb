"""Every Python block of the README runs, and says what the text around it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def test_there_are_examples() -> None:
    assert len(BLOCKS) == 2


@pytest.mark.parametrize("block", BLOCKS)
def test_example(block: str) -> None:
    names: dict = {}
    exec(compile(block, "README.md", "exec"), names)
    if "metrics" in names:
        assert float(names["metrics"]["retrieval_accuracy"]) == 1.0
        assert 0 < float(names["metrics"]["mi_seq_estimate"]) <= float(names["metrics"]["mi_upper_bound"])
        assert not bool(names["keep"][0]), "a group that always fails has no variance"
    else:
        assert names["step"].obs_tokens.shape[0] == 32


def test_every_file_that_the_readme_links_to_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), target
