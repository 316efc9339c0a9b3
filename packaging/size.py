"""``make size`` prints how large the project is: files, lines, tests and their seconds, by folder.

Code is what is neither blank, comment nor docstring. Seconds are those of the last ``make test``, of all its workers.
"""

import ast
import io
import subprocess
import sys
import tokenize
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "build" / "tests.xml"
QUIET = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code(source: str) -> int:
    """Number of lines of code."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    bodies = (node.body for node in ast.walk(ast.parse(source)) if isinstance(node, documented) and node.body)
    first = (body[0] for body in bodies)
    said = (each for each in first if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
    docstrings = {line for each in said for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)}
    tokens = (token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in QUIET)
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - docstrings)


def _output(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, check=True, cwd=ROOT, text=True).stdout.splitlines()


def main() -> None:
    """Print the table."""
    files, lines, coded, tests, seconds = (Counter() for _ in range(5))
    for name in _output("git", "ls-files"):
        folder, kind = name.split("/")[0], Path(name).suffix
        if "/" in name and kind in (".py", ".md"):
            text = (ROOT / name).read_text(encoding="utf-8")
            files[folder] += 1
            lines[folder] += text.count("\n")
            coded[folder] += code(text) if kind == ".py" else 0
    for line in _output(sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts="):
        tests["/".join(line.split("/")[:2]) if line.count("/") > 1 else "tests"] += "::" in line
    if REPORT.exists():
        for case in ElementTree.parse(REPORT).iter("testcase"):
            parts = case.attrib["classname"].split(".")
            seconds["/".join(parts[:2]) if len(parts) > 2 else "tests"] += float(case.attrib["time"])
    print(f"{'folder':20}{'files':>8}{'lines':>9}{'code':>9}")
    for folder in sorted(files):
        print(f"{folder:20}{files[folder]:8,}{lines[folder]:9,}{coded[folder]:9,}")
    print(f"{'all':20}{files.total():8,}{lines.total():9,}{coded.total():9,}\n")
    print(f"{'tests of':20}{'tests':>8}{'seconds':>9}")
    for folder in sorted(tests):
        print(f"{folder:20}{tests[folder]:8,}{seconds[folder]:9,.0f}")
    print(f"{'all':20}{tests.total():8,}{seconds.total():9,.0f}")


if __name__ == "__main__":
    main()
