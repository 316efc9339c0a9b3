"""What does a benchmark keep of a run? A file of its numbers, with command, commit, device, load and versions."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def keep(path: Path, script: str, options: Sequence[object], **numbers: Any) -> None:
    """Write the numbers of a run as JSON.

    Args:
        path: of the file; its folder is made.
        script: the benchmark's ``__file__``.
        options: the command line, without what depends on the machine.
        **numbers: what was measured.
    """
    about = {
        **made_by(script, options),
        "device": f"{os.cpu_count()} CPU cores ({platform.machine()})",
        "load": os.getloadavg()[0],
        "versions": {name: version(name) for name in ("jax", "numpyro")} | {"python": platform.python_version()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(about | numbers, indent=2) + "\n", encoding="utf-8")


def made_by(script: str, options: Sequence[object]) -> dict[str, Any]:
    """The command, the commit of the script's folder, and whether nothing differs; both ``None`` without git."""
    changes = ("status", "--porcelain", "-uno", "--", ":/", ":!results")  # a run may write several times
    commit, changed = (_git(script, *given) for given in (("rev-parse", "HEAD"), changes))
    flags = f"XLA_FLAGS={shlex.quote(os.environ['XLA_FLAGS'])} " if os.environ.get("XLA_FLAGS") else ""
    command = f"{flags}python benchmarks/{Path(script).name} {shlex.join(map(str, options))}"
    return {"command": command, "commit": commit, "clean": None if changed is None else not changed}


def _git(script: str, *given: str) -> str | None:
    command = ["git", "-C", str(Path(script).resolve().parent), *given]
    found = subprocess.run(command, capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None
