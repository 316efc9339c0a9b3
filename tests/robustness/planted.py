"""Defects planted into the source, one at a time, each of which the quick tests must find; run by ``make planted``."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def is_found(defect: dict) -> bool:
    """Whether a test fails with the defect in its file, which is as it was afterwards."""
    path = ROOT / defect["file"]
    source = path.read_text()
    if source.count(defect["old"]) != 1:
        print(f"{defect['file']} does not have this text once: plant something else.\n{defect['old']}")
        return False
    path.write_text(source.replace(defect["old"], defect["new"]))
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
        done = subprocess.run([*command, *defect["tests"]], cwd=ROOT, capture_output=True, check=False)
    finally:
        path.write_text(source)
    return done.returncode == 1


def main() -> None:
    """Plant the defects whose kind holds a word of the command line, or all."""
    defects = tomllib.loads((ROOT / "tests/robustness/planted.toml").read_text())["defect"]
    wanted = [d for d in defects if not sys.argv[1:] or any(word in d["kind"] for word in sys.argv[1:])]
    missed = []
    for defect in wanted:
        found = is_found(defect)
        print("found " if found else "MISSED", defect["kind"], f"({defect['file']})", flush=True)
        if not found:
            missed.append(defect["kind"])
    print(f"{len(wanted) - len(missed)} of {len(wanted)} found")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
