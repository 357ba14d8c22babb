"""Opening GGUF files (the container of llama.cpp), checked before anything is read from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf


class GGUFError(ValueError):
    """A GGUF file is missing, foreign, cut short or lacks a field. The message names file and remedy."""


class GGUFFile:
    """A GGUF file whose header was parsed and whose tensors all lie inside the file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise GGUFError(f"{self.path}: no such file; expected a GGUF model")
        with self.path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise GGUFError(f"{self.path}: not a GGUF file (it does not start with the letters GGUF)")
        again = "the file was probably cut short; download it again (ragen-jax models pull)"
        try:
            self._reader = gguf.GGUFReader(self.path)
            self.tensors = {t.name: t for t in self._reader.tensors}
        except Exception as error:  # the parser fails in many ways on damaged bytes, MemoryError among them
            raise GGUFError(
                f"{self.path}: unreadable GGUF ({type(error).__name__}: {error}); {again}"
            ) from None

    def has(self, name: str) -> bool:
        """Whether the metadata hold field `name`."""
        return name in self._reader.fields

    def field(self, name: str) -> Any:
        """Metadata field `name` as a Python value. Raises GGUFError if it is absent."""
        if not self.has(name):
            raise GGUFError(f"{self.path}: has no field {name}; convert the model to GGUF again")
        return self._reader.fields[name].contents()
