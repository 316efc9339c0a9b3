"""Derive every numeric row and the counts of the result pages again, from TOML and JSON alone.

It imports nothing of the project: ``python tests/reproductions/rederive.py`` in a checkout prints what differs.
"""

import json
import math
import re
import sys
import tomllib
from pathlib import Path

from scipy.special import ndtri, stdtrit

PAPERS = ("convolutional", "deep", "deep_kernel", "invariant")
LOWER, HIGHER = ("error", "nlpp", "rmse"), ("accuracy", "test_log_likelihood", "auc")
CAPS = dict.fromkeys(("error", "accuracy", "auc"), 0.0015) | {"nlpp": 0.02, "test_log_likelihood": 0.02}
SHARES = {"nlpp": 0.1, "rmse": 0.02}


def numbers(paper):
    """Every printed number that has an answer: where, what, text, experiment, variant, metric, reading, baseline."""
    for table in paper.get("tables", ()):
        for row in table["rows"]:
            row = row if isinstance(row, dict) else dict(zip(("title", "key", "numbers"), row, strict=True))
            for column, text in zip(table["columns"], row["numbers"].split(), strict=True):
                if text != "-" and "key" in column:
                    heading = "" if column.get("metric") else column["title"]
                    parts = filter(None, (table.get("title"), row["title"], heading))
                    what = f"{', '.join(parts)}: {column.get('metric') or table.get('metric', '')}"
                    answer = table["answer"].format(row=row["key"], column=column["key"]).split()
                    baseline = row.get("baseline") or column.get("baseline", False)
                    yield table["where"], what, text + " %" * column.get("percent", False), answer, False, baseline
    for claim in paper.get("claims", ()):
        if "answer" in claim:
            reading, baseline = claim.get("reading", False), claim.get("baseline", False)
            yield claim["where"], claim["what"], claim["printed"], claim["answer"].split(), reading, baseline


def ours(results, metric):
    """The mean over seeds, and two standard errors of it if they are known; ``None`` without the metric."""
    first, values = results[0], [result["metrics"].get(metric) for result in results]
    if metric == "hours":
        return first["seconds_training"] / 3600, None
    if values[0] is None:
        return None
    settings, folds = first.get("settings") or {}, first.get("folds") or {}
    splits = folds.get("count") or settings.get("splits") or settings.get("folds") or 1
    error, degrees = first["metrics"].get(f"{metric}_se"), splits - 1 if splits > 1 else math.inf
    if error is None and splits == 1 and re.search("(^|_)(error|accuracy)$", metric):
        error = math.sqrt(values[0] * (1 - values[0]) / first["data"]["sizes"]["test"])
    mean = math.fsum(values) / len(values)
    if len(values) > 1:
        seeds = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))
        if seeds >= (error or 0):
            error, degrees = seeds, len(values) - 1
    share = 1 - ndtri_of_two()
    return mean, None if error is None else error * (ndtri(share) if degrees == math.inf else stdtrit(degrees, share))


def ndtri_of_two():
    """The probability beyond two standard deviations."""
    return 0.5 * math.erfc(2 / math.sqrt(2))


def limit(result, facts, reading):
    """What keeps a result from being scored."""
    sizes, folds, settings = result["data"]["sizes"], result.get("folds") or {}, result.get("settings") or {}
    part, stands_in = result.get("subset"), facts.get("stands_in", result.get("stands_in"))
    count = folds.get("count") or settings.get("splits") or settings.get("folds") or 1
    other = result["variant"] in stands_in if isinstance(stands_in, list) else stands_in
    other = other or result["preset"] == "quick"
    few = count < (folds.get("of") or facts.get("folds") or 0)
    small = part or sizes["train"] + sizes["test"] < facts.get("rows", 0)
    own = "stand-in" if other else "subset" if small else "fewer folds" if few else ""
    return own, "reading" if reading else own


def verdict(metric, mean, wide, text, limited):
    """The words of a row's last cell."""
    kind = next((name for name in LOWER + HIGHER if re.search(f"(^|_){name}$", metric)), "")
    if limited in ("stand-in", "reading") or not kind:
        return limited or "not scored"
    scale, digits = (100 if text.endswith("%") else 1), text.removesuffix("%").strip().partition("±")[0]
    paper, rounding = float(digits) / scale, 0.5 * 10.0 ** -len(digits.partition(".")[2]) / scale
    better = (mean - paper) * (1 if kind in HIGHER else -1)
    caps = [CAPS.get(kind, math.inf), SHARES.get(kind, math.inf) * abs(paper)]
    word = "undecided"
    if wide is not None and abs(better) > rounding + wide:
        word = "exceeded" if better > 0 else "short"
    elif wide is not None and wide <= 2 * min(caps):
        word = "matched"
    return f"{limited}, {word}" if limited else word


def rederived(root):
    """Of every number with a result: paper, where, what, its text, our mean, the words of the verdict, baseline."""
    for name in PAPERS:
        paper = tomllib.loads((root / f"reproductions/papers/{name}.toml").read_text())
        for where, what, text, (experiment, variant, metric), reading, baseline in numbers(paper):
            facts, found = paper["experiments"].get(experiment, {}), []
            for preset in ("paper", "tuned", "cpu") if facts["presets"] != ["quick"] else ("quick",):
                folder = root / "reproductions/results" / name
                paths = sorted(folder.glob(f"{experiment}-{variant}-{preset}.json"))
                paths += sorted(folder.glob(f"{experiment}-{variant}-{preset}-seed*.json"))
                results = [json.loads(path.read_text()) for path in paths]
                if results and (number := ours(results, metric)) is not None:
                    own, limited = limit(results[0], facts, reading)
                    words = verdict(metric, *number, text, limited)
                    order = ("", "fewer folds", "subset", "stand-in").index(own)
                    last = words.split(", ")[-1]
                    ranks = ("matched", "exceeded", "undecided", "short", last)
                    found.append((order, ranks.index(last), number[0], words))
            if found:
                _, _, mean, words = min(found, key=lambda each: each[:2])
                yield name, where, what, text, mean, words, baseline


def differences(root):
    """Every row of a page that says something else, and every row that is not there."""
    for name, where, what, text, mean, words, _ in rederived(root):
        lines = (root / f"docs/results/{name}.md").read_text().splitlines()
        rows = [line.split(" | ") for line in lines if line.startswith(f"| {what} | {where} | ")]
        if len(rows) != 1:
            yield f"{name}: {len(rows)} rows of '{what}'"
            continue
        cell, said = rows[0][3], rows[0][5].replace("**", "")
        shown = re.match(r"-?[\d.]+", cell)
        scale, decimals = (100 if text.endswith("%") else 1), len(cell.split()[0].partition(".")[2])
        if not shown or abs(float(shown[0]) - scale * mean) > 0.5001 * 10**-decimals:
            yield f"{name}: '{what}' shows {cell}, and its files have {scale * mean}"
        if not said.startswith(words):
            yield f"{name}: '{what}' says {said}, and its files say {words}"


def miscounted(root):
    """Every page whose line of counts is not that of its rows and of its paper's TOML."""
    for name in PAPERS:
        page = (root / f"docs/results/{name}.md").read_text()
        total, counted = re.search(r"\*\*Of (\d+) claims: (.*?)\.\*\*", page).groups()
        counts = {word: int(number) for number, word in (part.split(" ", 1) for part in counted.split(", "))}
        own = page.partition("## The paper's own methods")[2].partition("Standard errors are ours")[0]
        cells = [line.split(" | ")[-1].strip("* |") for line in own.splitlines()[4:] if line.startswith("| ")]
        for word, said in (("matched", "matched|it holds"), ("exceeded", "exceeded"),
                           ("short", "short|it does not hold"), ("undecided", "undecided")):  # fmt: skip
            rows = sum(bool(re.match(said, cell)) for cell in cells)
            if rows != counts.get(word, 0):
                yield f"{name}: {rows} rows are {word}, and the page counts {counts.get(word, 0)}"
        paper = tomllib.loads((root / f"reproductions/papers/{name}.toml").read_text())
        claims = len(paper["claims"])
        for table in paper["tables"] if "tables" in paper else ():
            for row in table["rows"]:
                texts = (row["numbers"] if isinstance(row, dict) else row[2]).split()
                claims += sum(text != "-" and bool({"key", "why"} & {*column})
                              for column, text in zip(table["columns"], texts, strict=True))  # fmt: skip
        if not int(total) == claims == sum(counts.values()):
            yield f"{name}: {claims} claims, the page has {total}, and its counts add up to {sum(counts.values())}"


if __name__ == "__main__":
    root = Path(sys.argv[1] if sys.argv[1:] else ".")
    found = [*differences(root), *miscounted(root)]
    print("\n".join(found) or f"{len(list(rederived(root)))} rows agree")
    sys.exit(bool(found))
