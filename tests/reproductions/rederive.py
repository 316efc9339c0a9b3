"""Derive every numeric row and the counts of the result pages again, from TOML and JSON alone.

It imports nothing of the project: ``python tests/reproductions/rederive.py`` in a checkout prints what differs.
"""

import json
import math
import re
import sys
import tomllib
from collections import Counter
from pathlib import Path

from scipy.special import stdtrit

PAPERS = ("convolutional", "deep", "deep_kernel", "invariant")
LOWER, HIGHER = ("error", "nlpp", "rmse"), ("accuracy", "test_log_likelihood", "auc")
MARGINS = dict.fromkeys(("error", "accuracy", "auc"), 0.003) | {"nlpp": 0.04, "test_log_likelihood": 0.04}
SHARES = {"nlpp": 0.2, "rmse": 0.04}
#: The probability that a normal variable is within two standard deviations, or below them.
BELOW_TWO = 1 - 0.5 * math.erfc(2 / math.sqrt(2))


def papers(root):
    """Every paper's name, its TOML, and the text of its page."""
    for name in PAPERS:
        paper = tomllib.loads((root / f"reproductions/papers/{name}.toml").read_text())
        yield name, paper, (root / f"docs/results/{name}.md").read_text()


def cells(paper):
    """Every number in a table, with its row and its column."""
    for table in paper.get("tables", ()):
        for row in table["rows"]:
            row = row if isinstance(row, dict) else dict(zip(("title", "key", "numbers"), row, strict=True))
            for column, text in zip(table["columns"], row["numbers"].split(), strict=True):
                if text != "-":
                    yield table, row, column, text


def numbers(paper):
    """Every printed number that has an answer: where, what, text, answer, if it is a reading, margin, test rows."""
    for table, row, column, text in cells(paper):
        if "key" in column:
            parts = filter(None, (table.get("title"), row["title"], "" if column.get("metric") else column["title"]))
            what = f"{', '.join(parts)}: {column.get('metric') or table.get('metric', '')}"
            answer = table["answer"].format(row=row["key"], column=column["key"]).split()
            text += " %" * column.get("percent", False)
            yield table["where"], what, text, answer, False, table.get("margin"), table.get("test_rows")
    for claim in paper["claims"]:
        if "answer" in claim:
            answer, reading = claim["answer"].split(), claim.get("reading", False)
            yield claim["where"], claim["what"], claim["printed"], answer, reading, claim.get("margin"), None


def splits_of(result):
    """The number of splits that a result averages."""
    return result["folds"]["count"] if result["folds"] else 1


def overlap(result):
    """Test rows for each training row: splits share the other rows, so their numbers are not independent."""
    return result["data"]["sizes"]["test"] / result["data"]["sizes"]["train"]


def ours(results, metric):
    """The mean over seeds, its standard error if known, its degrees, and the deviation between seeds; or ``None``."""
    first, values = results[0], [result["metrics"].get(metric) for result in results]
    if metric == "hours":
        return first["seconds_training"] / 3600, None, 0, 0.0
    if values[0] is None:
        return None
    splits, errors = splits_of(first), [result["metrics"].get(f"{metric}_se") for result in results]
    degrees, mean = splits - 1, math.fsum(values) / len(values)
    errors = [error and error * math.sqrt(1 + (splits > 1) * splits * overlap(first)) for error in errors]
    if not any(errors) and is_share(first, metric):
        errors = [math.sqrt(value * (1 - value) / first["data"]["sizes"]["test"]) for value in values]
    error = max((each for each in errors if each is not None), default=None)
    between = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0
    if between:
        error, others = error or 0.0, between**4 / (len(values) - 1)
        others += error**4 / degrees if degrees else 0.0
        degrees = (error**2 + between**2) ** 2 / others  # of one training
        error = math.sqrt(error**2 + between**2 / len(values))
    return mean, error, degrees, between


def is_share(result, metric):
    """Whether a metric is a share of test rows: whole rows are right or wrong."""
    if not re.search("(^|_)(error|accuracy)$", metric) or splits_of(result) > 1:
        return False
    number = result["metrics"][metric] * result["data"]["sizes"]["test"]
    return 0 <= result["metrics"][metric] <= 1 and abs(number - round(number)) < 0.01


def error_of_paper(metric, error, text, result, rows=None, between=0.0):
    """The standard error of the paper's number: by its deviation, binomially, or as ours, on its test rows.

    The paper has one training, which varies as our seeds do.
    """
    scale, (digits, _, deviation) = (100 if text.endswith("%") else 1), text.removesuffix("%").strip().partition("±")
    if deviation:
        shared = overlap(result) if splits_of(result) > 1 else 0
        return float(deviation) / scale * math.sqrt(1 / (result["folds"]["of"] if result["folds"] else 1) + shared)
    share, own = float(digits) / scale, result["data"]["sizes"]["test"]
    if is_share(result, metric) and 0 <= share <= 1:
        return math.sqrt(between**2 + share * (1 - share) / (rows or own))
    if between:
        error = result["metrics"].get(f"{metric}_se", 0.0)
    return None if error is None else math.sqrt(between**2 + error**2 * own / (rows or own))


def limit(result):
    """What keeps a result from being scored."""
    if result["stands_in"] or result["preset"] == "quick":
        return "stand-in"
    if result["subset"]:
        return "subset"
    return "fewer folds" if result["folds"] and splits_of(result) < result["folds"]["of"] else ""


def verdict(metric, number, text, limited, paper_error=None, margin=None):
    """The words of a row's last cell."""
    kind = next((name for name in LOWER + HIGHER if re.search(f"(^|_){name}$", metric)), "")
    if limited in ("stand-in", "reading") or not kind:
        return limited or "not scored"
    mean, error, degrees, *_ = number
    scale, digits = (100 if text.endswith("%") else 1), text.removesuffix("%").partition("±")[0].strip()
    paper, rounding = float(digits) / scale, 0.5 * 10.0 ** -len(digits.partition(".")[2]) / scale
    better = (mean - paper) * (1 if kind in HIGHER else -1)
    least = min(MARGINS.get(kind, math.inf), SHARES.get(kind, math.inf) * abs(paper))
    margin = least if margin is None else margin / scale
    word = "undecided"
    if error is not None:
        both = math.hypot(error, error if paper_error is None else paper_error)
        two, tested = (stdtrit(degrees or math.inf, share) for share in (BELOW_TWO, 0.95))
        word = "not told apart"
        if abs(better) + tested * both + rounding <= margin:
            word = "matched"
        elif abs(better) > rounding + two * both:
            word = "exceeded" if better > 0 else "short"
    return f"{limited}, {word}" if limited else word


def rederived(root):
    """Of every number with a result: paper, where, what, its text, our mean, the words of the verdict."""
    for name, paper, _ in papers(root):
        for where, what, text, (experiment, variant, metric), reading, margin, rows in numbers(paper):
            presets, found = paper["experiments"][experiment]["presets"], []
            for preset in ("paper", "tuned", "cpu") if presets != ["quick"] else ("quick",):
                first = root / f"reproductions/results/{name}/{experiment}-{variant}-{preset}.json"
                paths = [
                    path for path in (first, *sorted(first.parent.glob(f"{first.stem}-seed*.json"))) if path.exists()
                ]
                results = [json.loads(path.read_text()) for path in paths]
                if results and (number := ours(results, metric)) is not None:
                    own = limit(results[0])
                    theirs = error_of_paper(metric, number[1], text, results[0], rows, number[3])
                    words = verdict(metric, number, text, "reading" if reading else own, theirs, margin)
                    last = words.split(", ")[-1]
                    ranks = ["matched", "exceeded", "not told apart", "undecided", "short", last]
                    order = ("", "fewer folds", "subset", "stand-in").index(own)
                    found.append((order, ranks.index(last), number[0], words))
            if found:
                yield name, where, what, text, *min(found, key=lambda each: each[:2])[2:]


def differences(root):
    """Every row of a page that says something else, and every row that is not there."""
    pages = {name: page.splitlines() for name, _, page in papers(root)}
    for name, where, what, text, mean, words in rederived(root):
        rows = [line.split(" | ") for line in pages[name] if line.startswith(f"| {what} | {where} | ")]
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
    """Every page whose line of counts is not that of its rows and of its paper's TOML, or a lead that is not theirs."""
    totals = Counter()
    for name, paper, page in papers(root):
        total, counted = re.search(r"\*\*Verdicts of (\d+) claims: (.*?)\.\*\*", page).groups()
        counted, numbers = re.sub(r" \(numbers: \d+\)", "", counted), re.findall(r"numbers: (\d+)", counted)
        counts = {word: int(number) for number, word in (part.split(" ", 1) for part in counted.split(", "))}
        totals.update(counts)
        own = page.partition("## The paper's own methods")[2].partition("Standard errors are ours")[0]
        verdicts = [line.split(" | ")[-1].strip("* |") for line in own.splitlines()[4:] if line.startswith("| ")]
        words = {"matched": "matched|it holds", "exceeded": "exceeded", "short": "short|it does not hold"}
        for word, said in (words | {"undecided": "undecided", "not told apart": "not told apart"}).items():
            rows = sum(bool(re.match(said, cell)) for cell in verdicts)
            if rows != counts.get(word, 0):
                yield f"{name}: {rows} rows are {word}, and the page counts {counts.get(word, 0)}"
        matched = sum(cell.startswith("matched") for cell in verdicts)
        due = [str(matched)] if 0 < matched < counts.get("matched", 0) else []
        if numbers != due:
            yield f"{name}: {matched} matched rows are numbers, and the page says {numbers}"
        claims = len(paper["claims"]) + sum(bool({"key", "why"} & {*column}) for _, _, column, _ in cells(paper))
        if not int(total) == claims == sum(counts.values()):
            yield f"{name}: {claims} claims, the page has {total}, and its counts add up to {sum(counts.values())}"
    good = totals["matched"] + totals["exceeded"]
    scored = good + sum(totals[word] for word in ("not told apart", "undecided", "short"))
    said = f"**Of {scored} claims on the papers' own methods that could be scored, "
    for page in ("RESULTS.md", "docs/results/index.md"):
        text, ran = (root / page).read_text(), f"{totals['not run']} of all {sum(totals.values())} were not run"
        if f"{said}{good} are matched or exceeded" not in text or ran not in text:
            yield f"{page}: its lead is not that of the papers' pages, {good} matched or exceeded, and {ran}"


if __name__ == "__main__":
    root = Path(sys.argv[1] if sys.argv[1:] else ".")
    found = [*differences(root), *miscounted(root)]
    print("\n".join(found) or f"{len(list(rederived(root)))} rows agree")
    sys.exit(bool(found))
