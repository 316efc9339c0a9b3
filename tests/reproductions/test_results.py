"""The pages of results say what the recorded files say, and nothing else; claims are answered by what there is."""

import json
import re
from collections import Counter

import pytest

from gpzoo.reproductions import kept
from gpzoo.reproductions.claims import load
from gpzoo.reproductions.experiment import ReproductionError, Run, all_experiments
from gpzoo.reproductions.pages import check, pages
from gpzoo.reproductions.papers import PAPERS
from gpzoo.reproductions.records import Records, result_path
from tests.conftest import ROOT
from tests.reproductions.rederive import differences, miscounted, rederived
from tests.reproductions.test_execute import experiment, record

RESULTS = ROOT / "reproductions" / "results"
PAGES = (*(f"docs/results/{each.key}.md" for each in PAPERS), "docs/results/index.md", "docs/results/more.md")


def test_the_pages_are_those_of_the_files():
    assert "say what the files say" in check(RESULTS, ROOT, all_experiments(), PAPERS)


def test_rows_and_counts_are_those_that_a_script_derives_from_the_files_alone():
    assert [*differences(ROOT), *miscounted(ROOT)] == [] and len(list(rederived(ROOT))) > 60


@pytest.mark.parametrize("page", [*PAGES, "RESULTS.md"])
def test_a_page_is_read_in_three_minutes(page):
    """At most 1,200 words that are not folded."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL).split()) <= 1_200
    assert text.count("<details>") == text.count("</details>") == text.count("<summary>")


@pytest.mark.parametrize("page", ["RESULTS.md", "docs/results/index.md"])
def test_the_lead_counts_what_the_pages_count(page):
    """Matched and exceeded beside undecided and short, of the papers' own methods; and what was not run."""
    counts = Counter()
    for each in PAPERS:
        line = re.search(r"\*\*Of \d+ claims: (.*?)\.\*\*", (ROOT / f"docs/results/{each.key}.md").read_text())[1]
        counts.update({word: int(number) for number, word in (part.split(" ", 1) for part in line.split(", "))})
    good = counts["matched"] + counts["exceeded"]
    scored = good + counts["undecided"] + counts["short"]
    said = (ROOT / page).read_text(encoding="utf-8")
    assert (
        f"**Of {scored} claims on the papers' own methods that could be scored, {good} are matched or exceeded" in said
    )
    assert f"{counts['not run']} of all {sum(counts.values())} were not run" in said


def test_the_summary_has_every_finding_and_asserts_no_statement_that_fails():
    said = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    assert "Does not hold: odd or even, truth 90 degrees: the angle is approximately recovered." in said
    assert said.count("\n**") >= 1 + len(PAPERS)


def test_what_was_chosen_on_which_data_is_told_of_old_files_too():
    lines = (ROOT / "docs/results/deep_kernel.md").read_text(encoding="utf-8").splitlines()
    (row,) = [line for line in lines if line.startswith("| `deep_kernel/covtype-all-cpu.json`")]
    assert ", subset |" in row and "on another random split, 7, of connect4 (also for covtype)" in row


def test_the_claims_are_those_of_the_papers():
    printed = {claim.what: claim.printed.text for each in PAPERS for claim in each.claims if claim.printed is not None}
    assert printed["MNIST, weighted + RBF: error"] == "1.17 %" and printed["year, DGP 5: RMSE"] == "8.87"
    assert printed["Connect-4, SV-DKL: nlpp"] == "0.449±0.002" and printed["HIGGS, SGP 500: AUC"] == "0.794"


# -- a toy paper -------------------------------------------------------------------------------------------------------

TOY = """
title = "Toys"
source = "Nobody 2000"
about = "Squares."
[telling]
figures = []
words = ""
[experiments.squares]
not_run = "no data at hand"
[[tables]]
where = "table 1"
title = "squares"
answer = "squares {row} {column}"
columns = [{title = "error (%)", key = "error", percent = true, metric = "error"}, {title = "of others"}]
rows = [["plain", "plain", "3.1 7.5"], {title = "fancy", key = "fancy", numbers = "1.0 -", baseline = true}]
[[tables]]
where = "table 2"
title = "steps on a GPU"
metric = "seconds"
columns = [{title = "plain", why = "needs an accelerator"}]
rows = [["", "", "0.1"]]
[[claims]]
where = "figure 1"
what = "squares are square"
judge = "at_most"
arguments = {limit = 0.05, metrics = ["error"]}
needs = {experiment = "squares", variants = ["plain"]}
[[claims]]
where = "figure 2"
what = "nlpp of plain"
printed = "0.05"
answer = "squares plain nlpp"
reading = true
"""


@pytest.fixture
def paper(tmp_path):
    (tmp_path / "toy.toml").write_text(TOY)
    return load(tmp_path / "toy.toml")


@pytest.fixture
def toy(tmp_path, paper):
    """``toy(**changes)`` records a result of the toy paper, and returns the lines of its page."""

    def page(variant="plain", **changes):
        changes = {"preset": "paper", "data": {"name": "squares", "sizes": {"train": 12, "test": 50_000}}} | changes
        record(tmp_path / "out", Run("toy", "squares", variant, changes["preset"], 3, tmp_path / "run"), **changes)
        return pages(tmp_path / "out", [experiment()], [paper])["docs/results/toy.md"].splitlines()

    return page


def test_a_page_has_claims_tables_and_what_was_not_run(toy):
    lines = toy()
    size = "12 + 50,000 rows, the paper's settings"
    row = "| squares, plain: error | table 1 | 3.1 % | 3.000 ± 0.076 % (binomial) | "
    assert f"{row}{size} | **matched** |" in lines
    assert f"| squares are square | figure 1 |  | largest 3.000 ± 0.076 % | {size} | **it holds** |" in lines
    assert f"| nlpp of plain | figure 2 | 0.05 | 0.100 | {size} | reading |" in lines
    assert "| plain | **3.00** (3.1) | 7.5 |" in lines and "| fancy | – (1.0) | – |" in lines
    assert "| 1 not run | no data at hand | squares: table 1 |" in lines
    assert "* squares, fancy: error 1.0 %. `gpzoo compare toy squares --preset paper`" in lines
    assert "| 1 no experiment | needs an accelerator | table 2 |" in lines
    assert "**Of 5 claims: 2 matched, 1 reading, 1 not run, 1 no experiment.**" in lines


def test_baselines_are_counted_apart_and_folded(toy):
    toy()
    lines = toy("fancy", metrics={"error": 0.0101})
    assert "**Of 5 claims: 2 matched, 1 baseline, 1 reading, 1 no experiment.**" in lines
    (row,) = [i for i, line in enumerate(lines) if line.startswith("| squares, fancy: error")]
    assert "<summary>Baselines of the paper: 1 rows</summary>" in lines[:row] and lines[row].endswith("**matched** |")


SMALL = {"name": "squares", "sizes": {"train": 1, "test": 100}}
CURVE = [{"step": step, "error": error} for step, error in ((100, 0.2), (150, 0.12), (200, 0.09))]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stands_in": True}, "| stand-in |"),
        ({"subset": {"train": 12, "of": 24, "test": 9, "of_test": 9, "rule": ""}}, "| subset, matched |"),
        ({"metrics": {"error": 0.09, "nlpp": 0.1}}, "| short by 5.90 points |"),
        ({"metrics": {"error": 0.0322, "nlpp": 0.1}, "data": SMALL}, "| undecided |"),
        (
            {"metrics": {"error": 0.09, "nlpp": 0.1}, "curve": CURVE},
            "| short by 5.90 points; not converged: best 9.00 % at step 200 of 200 |",
        ),
    ],
)
def test_verdicts_of_a_row(toy, changes, said):
    lines = toy(**changes)
    (row,) = [line for line in lines if line.startswith("| squares, plain: error")]
    assert row.endswith(said) and not any("| plain | **" in line for line in lines)


def test_runs_by_settings_of_ours_that_do_better_are_named(tmp_path, paper):
    """The page's row, and the list of pages, say what the paper's settings alone would give."""
    for preset, error in (("paper", 0.09), ("tuned", 0.031)):
        run, metrics = Run("toy", "squares", "plain", preset, 3, tmp_path / "run"), {"error": error, "nlpp": 0.1}
        sizes = {"name": "squares", "sizes": {"train": 12, "test": 50_000}}
        record(tmp_path / "out", run, preset=preset, metrics=metrics, data=sizes)
    found = pages(tmp_path / "out", [experiment(presets=("quick", "tuned", "paper"))], [paper])
    assert "| **matched**; short by 5.90 points by the paper's settings |" in found["docs/results/toy.md"]
    assert "this changes squares, plain: error, which would be short by 5.90 points" in found["docs/results/index.md"]


def test_a_few_wrong_images_are_counted(toy):
    lines = toy(metrics={"error": 0.0001, "nlpp": 0.1})
    assert any("(binomial, 5 of 50,000)" in line for line in lines)


def test_small_runs_are_not_set_against_the_paper(toy):
    lines = toy(preset="quick")
    assert not any(line.startswith("| squares, plain") for line in lines)
    assert any(line.startswith("**squares, quick.**") for line in lines)


def test_seeds_are_averaged_and_read_once(tmp_path, paper):
    for seed, error in ((2, 0.04), (1, 0.03), (0, 0.02)):
        run = Run("toy", "squares", "plain", "paper", seed, tmp_path / "run")
        path = record(tmp_path / "out", run, metrics={"error": error, "nlpp": 0.1})
        if seed:
            path.rename(result_path(tmp_path / "out", "toy", "squares", "plain", "paper", seed))
    records = Records(tmp_path / "out", [experiment()])
    (runs,) = records.compared("toy", "squares", "plain", ("quick", "paper"))
    ours = runs.ours("error")
    assert ours.value == pytest.approx(0.03) and len(runs.keys) == 3
    path = result_path(tmp_path / "out", "toy", "squares", "plain", "paper", 5)
    path.write_bytes(result_path(tmp_path / "out", "toy", "squares", "plain", "paper").read_bytes())
    with pytest.raises(ReproductionError, match="are both of seed 0"):
        Records(tmp_path / "out", [experiment()])


def test_a_check_finds_what_is_wrong(toy, tmp_path, paper):
    toy()
    folder = tmp_path / "out"
    for name, text in pages(folder, [experiment()], [paper]).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert check(folder, tmp_path, [experiment()], [paper]).startswith("1 files, 5 claims, 3 of them with a result")
    path = result_path(folder, "toy", "squares", "plain", "paper")
    kept.write_json(path, kept.read_json(path) | {"metrics": {"error": 0.5, "nlpp": 0.1}})
    with pytest.raises(ReproductionError, match=r"toy\.md, line 5: .*2 matched.* instead of .*2 short"):
        check(folder, tmp_path, [experiment()], [paper])
    with pytest.raises(ReproductionError, match="'squares, fancy: error' is answered by squares fancy, which is not"):
        check(folder, tmp_path, [experiment(variants={"plain": {}})], [paper])


def test_files_that_cannot_be_placed_are_refused(toy, tmp_path):
    toy(preset="quick")
    path = result_path(tmp_path / "out", "toy", "squares", "plain", "quick")
    whole = kept.read_json(path)
    for damage, told in (
        (b"{", "is damaged"),
        (b"[1]", "not a result file: it holds no fields"),
        (b"{}", "not a result file: it lacks data, device"),
        (json.dumps(whole | {"variant": "fancy"}).encode(), "holds the result of toy squares fancy quick"),
        (json.dumps(whole | {"data": None}).encode(), "data and metrics must have names"),
        (json.dumps(whole | {"metrics": {"error": None}}).encode(), "error must be finite numbers"),
        (json.dumps(whole | {"schema": 99}).encode(), "schema 99, and this version of gpzoo reads 1"),
    ):
        path.write_bytes(damage)
        with pytest.raises(ReproductionError, match=told):
            Records(tmp_path / "out", [experiment()])
    path.rename(path.with_name("squares-plane-quick.json"))
    with pytest.raises(ReproductionError, match=r"squares-plane-quick\.json"):
        Records(tmp_path / "out", [experiment()])
