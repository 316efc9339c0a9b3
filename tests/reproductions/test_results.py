"""The pages of results say what the recorded files say, and nothing else; claims are answered by what is there."""

import json
import re

import pytest

from gpzoo.reproductions import kept
from gpzoo.reproductions.answers import Answers
from gpzoo.reproductions.checking import check
from gpzoo.reproductions.claims import Answer, Claim, Column, Judged, Paper, Table
from gpzoo.reproductions.experiment import ReproductionError, Run, all_experiments
from gpzoo.reproductions.page import listed
from gpzoo.reproductions.pages import pages
from gpzoo.reproductions.papers import PAPERS
from gpzoo.reproductions.printed import Printed
from gpzoo.reproductions.records import Key, Records, result_path
from tests.conftest import ROOT
from tests.reproductions.test_execute import experiment, record

RESULTS = ROOT / "reproductions" / "results"


def test_the_pages_are_those_of_the_files():
    assert "say what the files say" in check(RESULTS, ROOT, all_experiments(), PAPERS)


def test_every_number_of_a_row_is_in_its_file():
    """Read again without the code of the pages: of every claim with a number, the file has it, as it is rounded."""
    rows = 0
    for paper in PAPERS:
        answers = Answers(paper, Records(RESULTS, all_experiments()), all_experiments())
        text = (ROOT / f"docs/results/{paper.key}.md").read_text(encoding="utf-8")
        for each in answers.all:
            if each.number is None:
                continue
            answer = each.claim.answer
            seeds = [json.loads(result_path(RESULTS, *key).read_text())["metrics"][answer.metric] for key in each.runs]
            (row,) = [
                line.split(" | ")
                for line in text.splitlines()
                if line.startswith(f"| {each.claim.what} | {each.claim.where} |")
            ]
            printed, ours = (float(re.match(r"-?[\d.]+", cell)[0]) for cell in row[2:4])
            scale = 100 if "%" in row[2] else 1
            decimals = len(re.match(r"-?\d+\.?(\d*)", row[3])[1])
            assert ours == pytest.approx(scale * sum(seeds) / len(seeds), abs=0.5001 * 10**-decimals), row
            worse = ours - printed if re.search("error|nlpp|rmse", answer.metric) else printed - ours
            most = 0.02 if re.search("nlpp|likelihood", answer.metric) else 0.0015 * scale
            if "**reached**" in row[-1]:
                assert worse <= most + each.claim.printed.rounding * scale + 10**-decimals, row
            if row[-1].startswith("short"):
                assert worse > 0, row
            rows += 1
    assert rows > 40


def test_the_claims_are_those_of_the_papers():
    """As many as there are numbers and statements in the four papers, and as many lines that are open as allowed."""
    assert {paper.key: len(paper.claims) for paper in PAPERS} == {
        "convolutional": 25, "deep": 60, "deep_kernel": 74, "invariant": 16,
    }  # fmt: skip
    printed = {
        claim.what: claim.printed.text for paper in PAPERS for claim in paper.claims if claim.printed is not None
    }
    assert printed["MNIST, weighted + RBF: error"] == "1.17 %" and printed["year, DGP 5: RMSE"] == "8.87"
    assert printed["Connect-4, SV-DKL: nlpp"] == "0.449±0.002" and printed["HIGGS, SGP 500: AUC"] == "0.794"
    texts = [(ROOT / f"docs/results/{paper.key}.md").read_text(encoding="utf-8") for paper in PAPERS]
    assert (
        sum(bool(re.match(r"\| \d+ (not run|no experiment)", line)) for text in texts for line in text.splitlines())
        <= 90
    )
    assert len((ROOT / "RESULTS.md").read_text(encoding="utf-8").splitlines()) <= 60


# -- a toy paper -------------------------------------------------------------------------------------------------------


def judge(records):
    key = Key("toy", "squares", "plain", "paper", 3)
    return Judged("0.03", True, [key]) if key in records.found else None


TOY = Paper(
    key="toy",
    title="Toys",
    source="Nobody 2000",
    about="Squares.",
    tables=(
        Table("table 1", "squares", "squares {row} {column}",
              (Column("error (%)", "error", True, metric="error"), Column("of others")),
              (("plain", "plain", "3.1 7.5"), ("fancy", "fancy", "1.0 -"))),
        Table("table 2", "steps on a GPU", "", (Column("plain", why="needs an accelerator"),),
              (("", "", "0.1"),), "seconds"),
    ),
    others=(
        Claim("figure 1", "squares are square", judge=judge, needs=("squares", ("plain",))),
        Claim("figure 2", "nlpp of plain", Printed("0.05"), Answer("squares", "plain", "nlpp"), reading=True),
    ),
    reasons={"squares": "no data at hand"},
)  # fmt: skip


@pytest.fixture
def toy(tmp_path):
    """``toy(**changes)`` records a result of the toy paper, and returns its page."""

    def page(**changes):
        changes = {"preset": "paper", "data": {"name": "squares", "sizes": {"train": 12, "test": 50_000}}} | changes
        run = Run("toy", "squares", "plain", changes["preset"], 3, tmp_path / "out")
        record(tmp_path, run, **changes)
        return pages(tmp_path, [experiment()], [TOY])["docs/results/toy.md"].splitlines()

    return page


def test_a_page_has_claims_tables_and_what_was_not_run(toy):
    lines = toy()
    size = "12 + 50,000 rows, the paper's settings"
    row = "| squares, plain: error | table 1 | 3.1 % | 3.000 ± 0.076 % (binomial) | "
    assert f"{row}{size} | **reached** |" in lines
    assert f"| squares are square | figure 1 |  | 0.03 | {size} | **reached** |" in lines
    assert f"| nlpp of plain | figure 2 | 0.05 | 0.100 | {size} | reading |" in lines
    assert "| plain | **3.00** (3.1) | 7.5 |" in lines and "| fancy | – (1.0) |  |" in lines
    command = "`gpzoo compare toy squares --variants fancy --preset paper`"
    assert f"| 1 not run | *table 1:* squares, error: fancy 1.0 % | no data at hand | {command} |" in lines
    assert "| 1 no experiment | *table 2:* steps on a GPU, seconds: plain 0.1 | needs an accelerator | – |" in lines
    assert "**Of 5 claims: 2 reached, 1 reading, 1 not run, 1 no experiment.**" in lines


#: Fields that older files lack.
NEW_FIELDS = {
    "schema", "commit", "clean", "commits", "command", "resumed_from", "subset", "folds", "selection", "stands_in",
}  # fmt: skip

SMALL = {"name": "squares", "sizes": {"train": 1, "test": 100}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stands_in": True}, "stand-in |"),
        ({"subset": {"train": 12, "of": 24, "test": 9, "of_test": 9, "rule": ""}}, "subset, as good or better |"),
        ({"folds": {"count": 2, "of": 5, "seeds": [0, 1]}}, "fewer folds, as good or better |"),
        ({"metrics": {"error": 0.09, "nlpp": 0.1}}, "short by 5.90 points |"),
        ({"metrics": {"error": 0.0322, "nlpp": 0.1}, "data": SMALL}, "undecided |"),
    ],
)  # fmt: skip
def test_verdicts_of_a_row(toy, changes, said):
    (row,) = [line for line in toy(**changes) if line.startswith("| squares, plain: error")]
    assert row.endswith(said)
    assert "**" not in next(line for line in toy(**changes) if line.startswith("| plain | "))


def test_small_runs_are_not_set_against_the_paper(toy):
    lines = toy(preset="quick")
    assert not any(line.startswith("| squares, plain") for line in lines)
    assert "Small runs (`quick`) check the program, and never count as reached." in lines
    assert any(line.startswith("| 4 not run |") for line in lines)


def test_a_quick_run_is_never_scored_even_if_there_is_no_other(tmp_path):
    alone = experiment(presets=("quick",))
    record(tmp_path, Run("toy", "squares", "plain", "quick", 0, tmp_path / "out"))
    lines = pages(tmp_path, [alone], [TOY])["docs/results/toy.md"].splitlines()
    (row,) = [line for line in lines if line.startswith("| squares, plain: error")]
    assert row.endswith("| stand-in |")
    assert "**Of 5 claims: 1 stand-in, 1 reading, 2 not run, 1 no experiment.**" in lines


CURVE = [{"step": step, "error": error} for step, error in ((100, 0.2), (150, 0.12), (200, 0.09))]


def test_a_short_row_says_whether_its_training_had_converged(toy):
    short, undecided = ({"error": value, "nlpp": 0.1} for value in (0.09, 0.0322))
    (row,) = [line for line in toy(metrics=short, curve=CURVE) if line.startswith("| squares, plain: error")]
    assert row.endswith("| short by 5.90 points; not converged: better by 3.00 points in the last 50 of 200 steps |")
    level = [{"step": 100, "error": 0.0322}, {"step": 200, "error": 0.0322}]
    (row,) = [
        line for line in toy(metrics=undecided, curve=level, data=SMALL) if line.startswith("| squares, plain: error")
    ]
    assert row.endswith("| undecided; level, within the error, in the last 100 of 200 steps |")
    assert not any("converged:" in line for line in toy(curve=CURVE))


def test_every_large_run_is_in_a_table(tmp_path):
    """One that answers no claim is shown beside the others of its preset, with whose settings they have."""
    for variant in ("plain", "other"):
        run = Run("toy", "squares", variant, "paper", 0, tmp_path / "out")
        path = record(tmp_path, run, data={"name": "squares", "sizes": {"train": 1, "test": 9, "classes": 2}})
    old = {key: value for key, value in kept.read_json(path).items() if key not in NEW_FIELDS}
    kept.write_json(path, old | {"metrics": {"error": 0.5, "nlpp": 0.7}})
    found = [experiment(variants={name: {} for name in ("plain", "fancy", "other")})]
    lines = pages(tmp_path, found, [TOY])["docs/results/toy.md"].splitlines()
    assert "## Numbers without a claim" in lines
    assert "| variant | error (%) | nlpp | angle degrees | settings |" in lines
    assert "| other | 50 ± 17 | 0.7 | - | settings of ours |" in lines
    assert any(line.startswith("The nlpp of other is worse than ln 2 = 0.69") for line in lines)


def test_models_of_a_run_are_named_and_have_their_errors(tmp_path):
    """A metric's standard error is in its cell, in as many digits as it supports."""
    found = [experiment(variants={"plain": {}, "other": {}})]
    values = {"dgp2-natural_test_log_likelihood": 1.33471, "dgp2-natural_test_log_likelihood_se": 0.00386}
    values |= {"nlpp": 0.97, "nlpp_standard_error": 0.04}
    record(tmp_path, Run("toy", "squares", "other", "paper", 0, tmp_path / "out"), metrics=values)
    lines = pages(tmp_path, found, [TOY])["docs/results/toy.md"].splitlines()
    assert "| variant | dgp2-natural: test log likelihood | nlpp | nlpp standard error |" in lines
    assert "| other | 1.3347 ± 0.0039 | 0.97 | 0.04 |" in lines


def test_the_steps_of_several_models_and_splits_are_a_sum(toy):
    settings = {"models": {"a": {}, "b": {}}, "splits": 5}
    assert any("| 200 in all (2 models, 5 splits) |" in line for line in toy(settings=settings))
    assert not any("in all" in line for line in toy())


def test_seeds_are_averaged_and_have_their_own_error(tmp_path):
    for seed, error in ((0, 0.02), (1, 0.03), (2, 0.04)):
        run = Run("toy", "squares", "plain", "paper", seed, tmp_path / "out")
        path = record(tmp_path, run, metrics={"error": error, "nlpp": 0.1})
        if seed:
            path.rename(result_path(tmp_path, "toy", "squares", "plain", "paper", seed))
        else:
            first = path.read_bytes()
    result_path(tmp_path, "toy", "squares", "plain", "paper").write_bytes(first)
    records = Records(tmp_path, [experiment()])
    (runs,) = records.compared("toy", "squares", "plain", ("quick", "paper"))
    ours = records.ours(runs, "error")
    assert ours.value == pytest.approx(0.03) and ours.error == pytest.approx(0.01 / 3**0.5) and ours.source == "3 seeds"
    result_path(tmp_path, "toy", "squares", "plain", "paper", 5).write_bytes(first)
    with pytest.raises(ReproductionError, match="are both of seed 0"):
        Records(tmp_path, [experiment()])


def test_variants_are_compared_on_the_same_data(tmp_path):
    """Those of one preset, even if some of them have a better one."""
    for variant, preset in (("plain", "paper"), ("plain", "cpu"), ("fancy", "cpu")):
        record(tmp_path, Run("toy", "squares", variant, preset, 0, tmp_path / "out"))
    presets = ("cpu", "paper")
    records = Records(tmp_path, [experiment(presets=presets)])
    found = records.together("toy", "squares", ("plain", "fancy"), presets)
    assert {key.preset for key in found.values()} == {"cpu"}
    assert records.together("toy", "squares", ("plain",), presets)["plain"].preset == "paper"
    assert records.together("toy", "squares", ("plain", "other"), presets) is None


def test_a_check_finds_what_is_wrong(toy, tmp_path):
    toy()
    for name, text in pages(tmp_path, [experiment()], [TOY]).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert check(tmp_path, tmp_path, [experiment()], [TOY]).startswith("1 files, 5 claims, 3 of them with a result")
    path = result_path(tmp_path, "toy", "squares", "plain", "paper")
    kept.write_json(path, kept.read_json(path) | {"metrics": {"error": 0.5, "nlpp": 0.1}})
    with pytest.raises(ReproductionError, match=r"toy\.md, line 5: .*2 reached.* instead of .*1 reached"):
        check(tmp_path, tmp_path, [experiment()], [TOY])
    with pytest.raises(
        ReproductionError, match="'squares, fancy: error' is answered by squares fancy, which is not there"
    ):
        check(tmp_path, tmp_path, [experiment(variants={"plain": {}})], [TOY])


def test_files_that_cannot_be_placed_are_refused(toy, tmp_path):
    toy(preset="quick")
    path = result_path(tmp_path, "toy", "squares", "plain", "quick")
    whole = kept.read_json(path)
    for damage, told in (
        (b"{", "is damaged"),
        (b"\xff\xfe{}", "is damaged"),
        (b"[" * 100_000, "is damaged"),
        (b"[1]", "not a result file: it holds no fields"),
        (b"{}", "not a result file: it lacks data, device"),
        (json.dumps(whole | {"variant": "fancy"}).encode(), "holds the result of toy squares fancy quick"),
        (json.dumps(whole | {"data": None}).encode(), "data and metrics must have names"),
        (json.dumps(whole | {"metrics": {"error": None}}).encode(), "error must be finite numbers"),
        (json.dumps(whole | {"schema": 99}).encode(), "schema 99, and this version of gpzoo reads 1"),
        (json.dumps({k: v for k, v in whole.items() if k != "folds"}).encode(), "it lacks folds"),
    ):
        path.write_bytes(damage)
        with pytest.raises(ReproductionError, match=told):
            Records(tmp_path, [experiment()])
    path.rename(path.with_name("squares-plane-quick.json"))
    with pytest.raises(ReproductionError, match=r"squares-plane-quick\.json"):
        Records(tmp_path, [experiment()])


def test_files_without_a_schema_are_settings_of_ours(toy, tmp_path):
    toy()
    path = result_path(tmp_path, "toy", "squares", "plain", "paper")
    kept.write_json(path, {key: value for key, value in kept.read_json(path).items() if key not in NEW_FIELDS})
    lines = pages(tmp_path, [experiment()], [TOY])["docs/results/toy.md"].splitlines()
    (row,) = [line for line in lines if line.startswith("| squares, plain: error")]
    assert row.endswith("12 + 50,000 rows | **reached** |")
    assert sum(line.endswith("| not kept |") for line in lines) == 1


def test_claims_of_one_row_are_listed_together():
    claims = [claim for claim in TOY.claims if claim.printed is not None]
    assert listed((claim, claim.printed.text) for claim in claims) == (
        "squares, error: plain 3.1 %, fancy 1.0 %; steps on a GPU, seconds: plain 0.1; nlpp of plain: 0.05"
    )
    assert listed([(TOY.others[0], "")]) == "squares are square"
