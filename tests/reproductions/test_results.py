"""The pages of results say what the recorded files say, and nothing else; claims are answered by what there is."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpzoo.reproductions import kept
from gpzoo.reproductions.claims import METRICS, Claim, kind, load, toward
from gpzoo.reproductions.experiment import ReproductionError, Run, all_experiments
from gpzoo.reproductions.pages import check, pages
from gpzoo.reproductions.papers import PAPERS
from gpzoo.reproductions.records import Records, result_path
from tests.conftest import ROOT
from tests.reproductions.rederive import differences, miscounted, rederived
from tests.reproductions.test_execute import experiment, record


def test_the_pages_are_those_of_the_files():
    assert "say what the files say" in check(ROOT / "reproductions" / "results", ROOT, all_experiments(), PAPERS)


def test_rows_and_counts_are_those_that_a_script_derives_from_the_files_alone():
    assert [*differences(ROOT), *miscounted(ROOT)] == [] and len(list(rederived(ROOT))) > 60


def test_a_page_is_read_in_three_minutes():
    """At most 1,200 words that are not folded."""
    for page in (ROOT / "RESULTS.md", *(ROOT / "docs/results").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        assert len(re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL).split()) <= 1_200, page
        assert text.count("<details>") == text.count("</details>") == text.count("<summary>")


# -- a toy paper -------------------------------------------------------------------------------------------------------

PAPER = load(Path(__file__).with_name("toy.toml"))
LARGE = {"name": "squares", "sizes": {"train": 12, "test": 50_000}}


@pytest.fixture
def toy(tmp_path):
    """``toy(**changes)`` records a result of the toy paper, and returns all pages."""

    def written(variant="plain", preset="paper", **changes):
        run = Run("toy", "squares", variant, preset, 0, tmp_path / "run")
        record(tmp_path / "out", run, data=LARGE, **changes)
        return pages(tmp_path / "out", [experiment(presets=("quick", "cpu", "tuned", "paper"))], [PAPER])

    return written


def path_of(folder, seed=0):
    return result_path(folder / "out", "toy", "squares", "plain", "paper", seed)


def test_a_page_has_claims_tables_and_what_was_not_run(toy):
    lines = toy()["docs/results/toy.md"].splitlines()
    size = "12 + 50,000, the paper's settings"
    row = "| squares, plain: error | table 1 | 3.0 % | 3.000 ± 0.076 % (binomial) | "
    for said in (
        f"{row}{size} | **matched** (-0.27…+0.27 points) |",
        f"| squares are square | figure 1 |  | 3.000 ± 0.076 % | {size} | **it holds** |",
        "| plain | **3.00** (3.0) | 7.5 |",
        "| fancy | – (1.0) | – |",
        "* squares, fancy: error 1.0 %. `gpzoo compare toy squares --preset paper --paper toy.py`",
        "**Verdicts of 5 claims: 2 matched (numbers: 1), 1 reading, 1 not run, 1 no experiment.**",
    ):
        assert said in lines
    # Baselines are counted apart and folded.
    lines = toy("fancy", metrics={"error": 0.0101})["docs/results/toy.md"].splitlines()
    assert "**Verdicts of 5 claims: 2 matched (numbers: 1), 1 baseline, 1 reading, 1 no experiment.**" in lines
    (row,) = [i for i, line in enumerate(lines) if line.startswith("| squares, fancy: error")]
    assert "<summary>Baselines of the paper: 1 row</summary>" in lines[:row] and "| **matched** (" in lines[row]


def test_runs_by_settings_of_ours_that_do_better_are_named(toy, tmp_path):
    """The page's row, and the list of pages, say what the paper's settings alone would give."""
    toy(metrics={"error": 0.09, "nlpp": 0.1})
    found = toy(preset="tuned", metrics={"error": 0.0302, "nlpp": 0.1})
    short = "short (-6.35…-5.65 points)"
    assert f"| **matched** (-0.29…+0.25 points); with the paper's settings: {short} |" in found["docs/results/toy.md"]
    changed = f"this changes the verdict on *squares, plain: error*, which would be {short}"
    assert changed in found["docs/results/index.md"]
    path_of(tmp_path).unlink()
    found = toy(preset="cpu", metrics={"error": 0.09, "nlpp": 0.1})
    assert "| **matched** (-0.29…+0.25 points) |" in found["docs/results/toy.md"]
    assert not any("with the paper's settings" in page and "which would be" in page for page in found.values())


PART = {"train": 6, "of": 12, "test": 5, "of_test": 5, "rule": "random, seed 0"}
UNLIKE = [
    (1, "stands_in", {"stands_in": True}),
    (7, "subset", {"subset": PART | {"rule": "the first"}}),
    (8, "subset", {"subset": PART | {"test": 4}}),
    (3, "subset", {"subset": None}),
    (2, "folds", {"folds": {"count": 2, "of": 2}}),
    (1, "data", {"data": LARGE | {"name": "circles"}}),
    (3, "data", {"data": {"name": "squares", "sizes": {"train": 12, "test": 40_000}}}),
]


@pytest.mark.parametrize("seed, what, changes", UNLIKE)
def test_seeds_that_differ_in_more_than_their_seed_are_not_averaged(toy, tmp_path, seed, what, changes):
    toy()
    one, other = kept.read_json(path_of(tmp_path)) | {"subset": PART}, path_of(tmp_path, seed)
    kept.write_json(path_of(tmp_path), one)
    rows = {"subset": PART | {"rule": f"random, seed {seed}"}}
    kept.write_json(other, one | {"seed": seed, "metrics": {"error": 0.02, "nlpp": 0.1}} | rows)
    assert len(Records(tmp_path / "out", [experiment()]).found) == 2
    kept.write_json(other, one | {"seed": seed} | changes)
    with pytest.raises(ReproductionError, match=f", seed ., whose {what} is not that of seed .: seeds cannot be"):
        Records(tmp_path / "out", [experiment()])


def test_runs_with_other_settings_in_their_folders_are_not_averaged(toy, tmp_path):
    toy()
    one, runs = kept.read_json(path_of(tmp_path)), tmp_path / "runs"
    for settings in (None, {"rate": 0.1}, {"rate": 0.2}):
        for seed in (0, 1):
            (folder := runs / str(seed)).mkdir(parents=True, exist_ok=True)
            kept.write_json(folder / "result.json", one | {"seed": seed})
            kept.write_json(folder / "run.json", {"settings": {"rate": 0.1} if seed else settings})
        if settings == {"rate": 0.2}:
            with pytest.raises(ReproductionError, match="seed 1, whose settings is not that of seed 0"):
                Records(runs, [experiment()])
        else:
            assert len(Records(runs, [experiment()]).found) == 2


def test_reasons_are_counted_with_their_words(tmp_path):
    """Not run, and without an experiment, for one reason."""
    claims = [*PAPER.others, Claim("figure 9", "nothing answers this")]
    paper = replace(PAPER, others=claims, experiments={"squares": {}})
    page = pages(tmp_path, [experiment(presets=("paper",))], [paper])["docs/results/toy.md"]
    (row,) = [line for line in page.splitlines() if "| not done |" in line and line.endswith("; figure 9 |")]
    assert re.match(r"\| \d not run, 1 no experiment \|", row), row


@pytest.mark.parametrize("key", ["parts", "totals", "summary", "convolutional"])
def test_an_own_paper_may_be_named_like_a_template(toy, tmp_path, key):
    toy()
    own = replace(experiment(), paper=key)
    page = pages(tmp_path / "empty", [own], [replace(PAPER, key=key)])[f"docs/results/{key}.md"]
    assert page.startswith("# Toys\n") and "**Verdicts of 5 claims: " in page


WRONG_CLAIMS = [
    ({"judge": "nobody"}, "'squares are square' is judged by nobody, which is not there"),
    ({"arguments": {"metric": "eror", "value": 1.0, "within": 1.0}}, "No run of plain has the metric 'eror'"),
    ({"arguments": {"metrik": "error"}}, "'squares are square' cannot be judged by near: TypeError: .*'metrik'"),
    ({"judge": "better", "arguments": {"metric": "error", "than": "fancy"}}, "cannot be judged by better: KeyError"),
    ({"judge": "at_most", "arguments": {"metrics": ["eror"], "limit": 1.0}}, "has one of the metrics eror"),
    (
        {"judge": "order", "arguments": {"metric": "sides", "variants": ["plain", "plain"]}},
        "No number leads by 'sides'",
    ),
    ({"needs": {"experiment": "circles", "variants": ["plain"]}}, "is answered by circles plain, which is not there"),
]


@pytest.mark.parametrize("changes, told", WRONG_CLAIMS)
def test_a_claim_that_cannot_be_judged_is_one_error(toy, tmp_path, changes, told):
    toy(metrics={"error": 0.03, "nlpp": 0.1, "sides": 4.0})
    near = {"judge": "near", "needs": {"experiment": "squares", "variants": ["plain"]}}
    claims = [replace(each, **near | changes) if each.judge else each for each in PAPER.others]
    with pytest.raises(ReproductionError, match=told):
        pages(tmp_path / "out", [experiment()], [replace(PAPER, others=claims)])


WRONG_FACTS = [
    ("[[claims]]\nwhere = 'x'\nwhat = 'y'\nprinted = '7.5'\nanswer = 'a b error'", "'y': 7.5 is no share. Write '%'"),
    ("[[claims]]\nwhere = 'x'\nwhat = 'y'\njudge = 'better'\nneeds = {experiment = 'a'}", "needs names experiment and"),
    ("[metrics.mae]\nbetter = 'lower'", r"\[metrics.mae\] must say what it means"),
    ("[metrics.error]\nmeans = 'x'", r"\[metrics.error\] must say what it means, and be no metric of gpzoo"),
    (
        "[[tables]]\nwhere = 'table 1'\nanswer = 'a {row} {column}'\nmargin = 0.5\nrows = [['x', 'x', '7 1']]\n"
        "columns = [{title = 'error', key = 'error', percent = true}, {title = 'nlpp', key = 'nlpp'}]",
        "table 1: one margin cannot be for error, nlpp",
    ),
]


@pytest.mark.parametrize("text, told", WRONG_FACTS)
def test_facts_that_make_no_sense_are_refused(tmp_path, text, told):
    path = tmp_path / "own.toml"
    path.write_text(f"title = 'x'\n{text}")
    with pytest.raises(ValueError, match=told):
        _ = load(path).claims


def test_a_paper_has_metrics_of_its_own(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("gpzoo.reproductions.claims.METRICS", {**METRICS})
    path = tmp_path / "own.toml"
    path.write_text("title = 'x'\n[metrics.mae]\nmeans = 'mean absolute error'\nbetter = 'lower'\nmargin = 0.1\n")
    assert toward("b_mae") == 0
    load(path), load(path)
    assert toward("b_mae") == -1 and kind("b_mae") == "mae"


def test_a_few_wrong_images_are_counted_and_small_runs_not_set_against_the_paper(toy):
    assert "| squares, plain" not in toy(preset="quick")["docs/results/toy.md"]
    assert "(binomial, 5 of 50,000)" in toy(metrics={"error": 0.0001, "nlpp": 0.1})["docs/results/toy.md"]


@pytest.mark.parametrize(
    "remarks, said",
    [
        ({}, ""),
        ({"plain": "by hand"}, "; by hand (plain)"),
        ({"fancy": "twice"}, "; twice (fancy)"),
        ({"plain": "by hand", "fancy": "by hand"}, "; by hand"),
        ({"fancy": "twice", "plain": "by hand"}, "; by hand (plain); twice (fancy)"),
    ],
)
def test_remarks_stand_beside_statements_too(tmp_path, remarks, said):
    """A statement on two variants names those whose remark it is. Two seeds are one variant."""
    for variant, seed in (("plain", 0), ("plain", 1), ("fancy", 0)):
        run = Run("toy", "squares", variant, "paper", seed, tmp_path / f"{variant}{seed}")
        record(tmp_path / "out", run, data=LARGE)
    both = {"experiment": "squares", "variants": ["plain", "fancy"]}
    claims = [replace(each, needs=both) if each.what == "squares are square" else each for each in PAPER.others]
    own = {"squares": PAPER.experiments["squares"] | {"remarks": remarks}}
    paper = replace(PAPER, others=claims, experiments=own)
    page = pages(tmp_path / "out", [experiment(presets=("paper",))], [paper])["docs/results/toy.md"].splitlines()
    (statement,) = [line for line in page if line.startswith("| squares are square")]
    (number,) = [line for line in page if line.startswith("| squares, plain: error")]
    assert statement.endswith(f"| **it holds**{said} |")
    assert number.endswith(f"points){'; ' * ('plain' in remarks)}{remarks.get('plain', '')} |")


def test_a_check_finds_what_is_wrong(toy, tmp_path):
    toy()
    folder, path = tmp_path / "out", path_of(tmp_path)
    for name, text in pages(folder, [experiment()], [PAPER], tmp_path).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert check(folder, tmp_path, [experiment()], [PAPER]).startswith("1 files, 5 claims, 3 of them with a result")
    # Lines that differ far from their beginning are shown where they do.
    page = tmp_path / "docs/results/index.md"
    page.write_text((whole := page.read_text()).replace("between trainings", "among trainings"))
    with pytest.raises(ReproductionError, match=r'among trainings.* instead of "\.\.\. .*between trainings. The'):
        check(folder, tmp_path, [experiment()], [PAPER])
    page.write_text(whole)
    kept.write_json(path, kept.read_json(path) | {"metrics": {"error": 0.5, "nlpp": 0.1}})
    with pytest.raises(ReproductionError, match=r"toy\.md, line 5: .*2 matched.* instead of .*2 short"):
        check(folder, tmp_path, [experiment()], [PAPER])
    with pytest.raises(ReproductionError, match="'squares, fancy: error' is answered by squares fancy, which is not"):
        check(folder, tmp_path, [experiment(variants={"plain": {}})], [PAPER])


def test_folders_of_runs_are_read_as_they_are_and_changed_settings_never_answer_a_claim(toy, tmp_path):
    toy()
    whole = kept.read_json(path_of(tmp_path))
    runs, of_toy = tmp_path / "runs", [experiment()]

    def left(name, **changes):
        (runs / name).mkdir(parents=True)
        kept.write_json(runs / name / "result.json", whole | changes)
        kept.write_json(runs / name / "run.json", {})

    left("plain")
    left("other", paper="another")
    left("changed", changes={"steps": 5}, metrics={"error": 0.0, "nlpp": 0.0})
    found = Records(runs, of_toy)
    assert [path.parent.name for path in found.paths.values()] == ["plain"]
    assert "3.000 ± 0.076 %" in pages(runs, of_toy, [PAPER], tmp_path)["docs/results/toy.md"]
    left("again")
    with pytest.raises(ReproductionError, match="and so does "):
        Records(runs, of_toy)


#: What a file holds, or what it holds instead of a part of its result.
DAMAGES = [
    (b"{", "is damaged"),
    (b"[1]", "not a result file: it holds no fields"),
    (b"{}", "not a result file: it lacks clean, command"),
    ({"variant": "fancy"}, "holds the result of toy squares fancy paper"),
    ({"data": None}, "data and metrics must have names"),
    ({"metrics": {"error": None}}, "error must be finite numbers"),
    ({"schema": 99}, "schema 99, and this version of gpzoo reads 1"),
    ({"changes": {"steps": 5}}, r"with changed settings \(steps\)"),
]


def test_files_that_cannot_be_placed_are_refused(toy, tmp_path):
    toy()
    path = path_of(tmp_path)
    whole = kept.read_json(path)
    for damage, told in DAMAGES:
        path.write_bytes(damage if isinstance(damage, bytes) else json.dumps(whole | damage).encode())
        with pytest.raises(ReproductionError, match=told):
            Records(tmp_path / "out", [experiment()])
    path.write_text(json.dumps(whole))
    path_of(tmp_path, seed=5).write_text(json.dumps(whole))
    with pytest.raises(ReproductionError, match="seed 0: no such run, or another name"):
        Records(tmp_path / "out", [experiment()])
    path_of(tmp_path, seed=5).unlink()
    path.rename(path.with_name("squares-plane-paper.json"))
    with pytest.raises(ReproductionError, match=r"squares-plane-paper\.json"):
        Records(tmp_path / "out", [experiment()])
