"""The accelerator's benchmark at its tiny size: it runs anywhere, and its checks can fail."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks import _gpu_work, gpu


def test_flops_are_those_of_matrix_products() -> None:
    """Counted by hand for one layer, one row, no attention to speak of."""
    cfg = dataclasses.replace(_gpu_work.TINY, num_hidden_layers=1, vocab_size=10)
    size = dataclasses.replace(_gpu_work.SMALL, model=cfg, update_rows=1, slots=2)
    d, f, kv = 64, 96, 32
    layer = 2 * (d * d + 2 * d * kv + d * d + 3 * d * f) + 4 * d * 1
    assert _gpu_work.update_flops(size) == 3 * (2 * layer + 2 * d * 10)


@pytest.mark.slow
def test_tiny_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert gpu.main(["--tiny", "--no-torch", "--minutes", "60"]) == 0
    out = capsys.readouterr().out
    for part in (
        "decoding over the cache",
        "gradient's norm",
        "decode",
        "cross-scoring",
        "iteration",
        "diagnosis",
    ):
        assert part in out
    assert "Left out" not in out


@pytest.mark.slow
def test_a_wrong_program_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = gpu.cross_score
    calls = []

    def wrong(*args: object, **kwargs: object) -> object:
        calls.append(1)
        return right(*args, **kwargs) * (1.0 if len(calls) == 1 else 1.02)  # the first call is the CPU's

    monkeypatch.setattr(gpu, "cross_score", wrong)
    rows = gpu.correctness(_gpu_work.SMALL)
    assert [row[0] for row in rows if not row[-1]] == ["cross-scores, a token"]
    assert all(np.isfinite(row[1]) for row in rows)


@pytest.mark.parity
@pytest.mark.slow
def test_tiny_run_of_transformers() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks._gpu_torch import torch_rows

    rows = torch_rows(_gpu_work.SMALL, 1e9, lambda part: False)
    assert [row[0].partition(", ")[2].partition(" ")[0] for row in rows] == [
        "update",
        "decode",
        "cross-scoring",
    ]
    assert all(row[1] > 0 for row in rows)
