"""``python docs/_ext/recorded.py docs/tutorials/deep.md`` keeps what a page finds in data that not everyone has.

A page whose data are missing shows ``found`` as it was here, from ``docs/_static/<page>.json``, and says so.
"""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from uses import DOCS, cells


def main(page: Path) -> None:
    """Run a page's code, from a checkout without changes, and write what it found."""
    if subprocess.run(["git", "status", "--porcelain"], capture_output=True, check=True, cwd=DOCS).stdout:
        sys.exit("There are changes that are not committed: the commit would not say what ran.")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, check=True, cwd=DOCS, text=True).stdout
    names: dict = {}
    for cell in cells(page):
        exec(cell, names)
    kept = {
        "page": page.resolve().relative_to(DOCS).as_posix(),
        "commit": commit.strip(),
        "versions": ", ".join(f"{name} {version(name)}" for name in ("gpzoo", "jax", "numpyro")),
        "found": names["found"],
    }
    (DOCS / "_static" / f"{page.stem}.json").write_text(json.dumps(kept) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
