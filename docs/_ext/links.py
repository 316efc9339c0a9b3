"""``python docs/_ext/links.py build/docs``: links and anchors of the built site are there, and nothing is fetched."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

#: Attributes that make a browser fetch something.
_FETCHED = {("img", "src"), ("script", "src"), ("link", "href"), ("source", "src"), ("iframe", "src")}


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.faults: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note anchors, links, pictures without an alternative text, and what a browser would fetch from elsewhere."""
        found = dict(attrs)
        self.anchors |= {found[name] or "" for name in ("id", "name") if name in found}
        for name in ("href", "src"):
            value = found.get(name)
            if value is None:
                continue
            if value.startswith(("http:", "https:", "//")):
                if (tag, name) in _FETCHED and found.get("rel") != "canonical":
                    self.faults.append(f"fetches {value}")
            elif not value.startswith(("data:", "mailto:", "javascript:")):
                self.links.append(value)
        alternative = (found.get("alt") or "").strip()
        if tag == "img" and (not alternative or alternative.endswith((".png", ".svg"))):
            self.faults.append(f"picture without an alternative text: {found.get('src')}")


def faults(site: Path) -> list[str]:
    """What is wrong, a line for each."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        found += [f"{path.relative_to(site)}: {fault}" for fault in page.faults]
        for link in page.links:
            address, anchor = urldefrag(link)
            target = (path.parent / unquote(address.split("?")[0])).resolve() if address else path.resolve()
            if not target.exists():
                found.append(f"{path.relative_to(site)}: no such file: {link}")
            elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                found.append(f"{path.relative_to(site)}: no such anchor: {link}")
    return found


if __name__ == "__main__":
    lines = faults(Path(sys.argv[1]).resolve())
    print(*lines, sep="\n")
    sys.exit(bool(lines))
