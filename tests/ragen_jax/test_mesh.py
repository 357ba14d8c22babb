"""The whole iteration on eight simulated devices equals one device's, whatever the mesh."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from child import child_environment


def on_eight_devices(*arguments: str) -> str:
    """Output of mesh_iteration.py in a process with eight CPU devices."""
    here = Path(__file__).parent
    env = child_environment(8)
    command = [sys.executable, str(here / "mesh_iteration.py"), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_cross_scoring_moves_no_keys():
    assert "cross-scoring moves no keys" in on_eight_devices("cross")


@pytest.mark.slow
def test_an_iteration_on_any_mesh_equals_one_device():
    """Ids exactly, losses and first moments to 1e-5; one compilation a program."""
    meshes = ["8x1x1", "2x4x1", "2x2x2", "1x1x8"]
    assert on_eight_devices("plain", *meshes).split("\n")[:-1] == [f"{mesh} equal" for mesh in meshes]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["limited", "mixture"])
def test_limited_contexts_and_mixtures_too(kind):
    """On a mesh whose devices have rows of their own, share weights, and must leave loops together."""
    assert on_eight_devices(kind, "2x2x2").strip() == "2x2x2 equal"
