"""The addresses of a published version, put where users and indices look for them.

    python packaging/publish.py https://github.com/OWNER/gpzoo https://OWNER.github.io/gpzoo/

Until then no file names a place that is not there, and installation begins with a checkout. Run it once, when the
repository, the site and the index have the name.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def publish(root: Path, repository: str, site: str) -> None:
    """Write both addresses into the metadata, and the index's command into README and front page."""
    urls = {"Homepage": repository, "Documentation": site}
    urls |= {"Changelog": f"{repository}/blob/main/CHANGELOG.md", "Issues": f"{repository}/issues"}
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    insert(root / "pyproject.toml", "[project.scripts]\n", f"[project.urls]\n{lines}\n")
    insert(root / "CITATION.cff", "keywords:\n", f"repository-code: {repository}\nurl: {site}\n")
    for name in ("README.md", "docs/index.md"):
        insert(root / name, "`pip install -e .` in a checkout", "`pip install gpzoo`, or ")
    archived = json.loads((root / ".zenodo.json").read_text(encoding="utf-8"))
    archived["related_identifiers"] = [{"identifier": site, "relation": "isDocumentedBy", "scheme": "url"}]
    (root / ".zenodo.json").write_text(json.dumps(archived, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def insert(path: Path, before: str, text: str) -> None:
    """Put text into a file, before some other that it has once."""
    old = path.read_text(encoding="utf-8")
    if old.count(before) != 1 or text in old:
        raise SystemExit(f"{path.name} has {before.strip()!r} {old.count(before)} times, or is published already.")
    path.write_text(old.replace(before, text + before), encoding="utf-8")


if __name__ == "__main__":
    publish(ROOT, *(address.rstrip("/") + "/" * (i == 1) for i, address in enumerate(sys.argv[1:3])))
