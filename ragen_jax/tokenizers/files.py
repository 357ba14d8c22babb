"""Reading and writing the JSON files of tokenizers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ragen_jax.tokenizers.errors import TokenizerError


def read_json(path: Path, *, kind: str) -> dict[str, Any]:
    """JSON object held by `path`. `kind` says in errors what the file should be."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TokenizerError(f"{path}: no such file; expected {kind}") from None
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: not a text file ({error.reason}); expected {kind}") from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise TokenizerError(
            f"{path}: broken JSON at character {error.pos} of {len(text)} ({error.msg}); "
            f"expected {kind}. If the file was cut short, copy or download it again"
        ) from None
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: holds a JSON {type(value).__name__}, expected {kind}")
    return value


def write_text(path: Path, text: str) -> None:
    """Writes `text` so that `path` holds either its old or its new content, never a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
