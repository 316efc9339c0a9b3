"""Statements of the papers: the general kinds, and what is said of them by recorded results with other numbers."""

import copy

import pytest

from gpzoo.reproductions import judge
from gpzoo.reproductions.answers import Answers
from gpzoo.reproductions.experiment import all_experiments
from gpzoo.reproductions.judge import Found, holding
from gpzoo.reproductions.papers import PAPERS
from gpzoo.reproductions.papers.convolutional import rank
from gpzoo.reproductions.records import Ours, Records
from tests.conftest import ROOT
from tests.reproductions.test_verdicts import recorded as runs_of

CLEAR, NOISE, AGAINST = Ours(1.0, 0.1), Ours(-0.1, 0.1), Ours(-1.0, 0.1)


@pytest.mark.parametrize(
    ("leads", "options", "holds"),
    [
        ([CLEAR, CLEAR], {}, True),
        ([CLEAR, NOISE], {}, None),
        ([CLEAR, AGAINST], {}, False),
        ([CLEAR, NOISE], {"allow": "level"}, True),
        ([CLEAR, Ours(-0.25, 0.1), *[CLEAR] * 30], {"allow": "level"}, None),  # as chance explains among so many
        ([Ours(-0.25, 0.1)], {"allow": "level"}, False),
        ([NOISE], {"allow": "equal"}, True),
        ([CLEAR], {"allow": "equal"}, False),
        ([Ours(0.1)], {}, None),
        ([Ours(0.1)], {"tie": 0.05}, True),
        ([Ours(-0.01)], {"tie": 0.05}, None),
        ([Ours(-0.1)], {"tie": 0.05}, False),
        ([Ours(0.5, 0.15, "3 splits", 2)], {}, None),
    ],
)
def test_leads_count_by_two_standard_errors(leads, options, holds):
    assert holding(leads, **options) is holds


def found(**errors):
    each = {
        name: runs_of({"metrics": {"error": e, "elbo": -100 * e, "a_error": e, "b_error": 0.2}})
        for name, e in errors.items()
    }
    return Found(each, None)


def test_the_kinds_of_statements():
    runs = found(rbf=0.10, plain=0.07, best=0.02)
    assert judge.better(runs, "error", "rbf").holds and judge.better(runs, "error", "plain").holds is False
    assert judge.better(runs, "error", "rbf", share=0.25).holds
    assert judge.better(runs, "error", "rbf", share=0.5).holds is False
    assert judge.best(runs, "error", "best").holds and judge.best(runs, "error", "rbf").holds is False
    assert judge.order(runs, "error", ["best", "plain", "rbf"]).holds
    assert judge.order(runs, "error", ["plain", "best", "rbf"]).holds is False
    pairs = judge.pairs(runs, "error", ["a"], than="b")
    assert pairs.holds and pairs.pairs == 3
    assert judge.same_order(runs, "elbo", "error").holds
    assert judge.at_most(runs, 0.10, ["error"]).holds and judge.at_most(runs, 0.09, ["error"]).holds is False
    assert judge.near(runs, "error", 0.06, 0.05).holds and judge.near(runs, "error", 0.06, 0.03).holds is False


def test_the_rank_of_a_convolutional_kernel_counts_the_blank_patch():
    assert rank(None, images=10, most=9).holds is False and rank(None, images=11, most=10).holds


@pytest.fixture(scope="module")
def recorded():
    return Records(ROOT / "reproductions" / "results", all_experiments())


@pytest.fixture
def answer(recorded):
    """``answer(paper, words, change)`` answers the claim with these words by files whose numbers ``change`` changes."""

    def answer(key, words, change=None):
        records = copy.copy(recorded)
        records.found = copy.deepcopy(recorded.found)
        for run, result in records.found.items():
            if change is not None and run.paper == key and run.preset != "quick":
                change(run, result)
        (paper,) = [paper for paper in PAPERS if paper.key == key]
        (one,) = [each for each in Answers(paper, records, all_experiments()).all if words in each.claim.what]
        return one

    return answer


def test_the_toy_of_our_own_never_counts(answer):
    for words in ("fits the training data", "higher bound", "lower test RMSE"):
        assert str(answer("invariant", words).verdict) == "stand-in, matched"


@pytest.mark.parametrize(
    ("error", "bound", "said"),
    [(0.0232, None, "undecided"), (0.0290, 7.8, "short"), (0.0225, 7.8, "matched"), (0.0200, 7.8, "matched")],
)
def test_errors_and_bounds_that_hardly_differ_are_in_no_order(answer, error, bound, said):
    def change(run, result):
        if run.experiment == "mnist" and run.variant == "local" and run.preset == "tuned":
            result["metrics"]["error"] = error
            result["metrics"]["bound_per_point"] = bound or result["metrics"]["bound_per_point"]

    assert str(answer("invariant", "the bound orders the models", change).verdict) == said


@pytest.mark.parametrize(
    ("variant", "error", "said"),
    [
        ("rbf", 0.0353, "undecided"),  # as recorded: rotation gains 0.69 points, the best 0.73 more
        ("rbf", 0.0325, "undecided"),  # rotation's own gain is within its error
        ("rbf", 0.0450, "short"),  # rotation gains far more than the best on it
        ("rbf", 0.0200, "short"),  # rotation is worse
        ("affine", 0.0050, "matched"),
    ],
)
def test_slightly_better_is_decided_by_more_than_the_errors(answer, variant, error, said):
    def change(run, result):
        if run.experiment == "mnist" and run.variant == variant and run.preset == "tuned":
            result["metrics"]["error"] = error

    assert str(answer("invariant", "only slightly better", change).verdict) == said


@pytest.mark.parametrize(
    ("truth", "angle", "said"),
    [
        (90, 95.0, "matched"),
        (90, 91.5, "undecided"),  # its distance from the truth is no larger than what it moved at the end
        (90, 85.0, "short"),
        (180, 175.0, "matched"),
        (180, 181.5, "undecided"),
        (180, 190.0, "short"),
    ],
)
def test_an_angle_is_on_a_side_of_the_truth_by_more_than_it_still_moves(answer, truth, angle, said):
    def change(run, result):
        if (
            run.experiment == "rotated-binary"
            and run.preset == "tuned"
            and "learned_angle_degrees" in result["metrics"]
        ):
            result["metrics"]["learned_angle_degrees"] = angle
            steps = ((50, 0.0), (75, angle - 2.0), (100, angle))
            result["curve"] = [{"step": step, "learned_angle_degrees": value} for step, value in steps]
            result["steps"] = 100

    which = "is at least the truth" if truth == 90 else "is below the truth"
    assert str(answer("invariant", which, change).verdict) == said


def test_an_angle_of_104_does_not_recover_90(answer):
    assert str(answer("invariant", "truth 90 degrees: the angle is approximately").verdict) == "short"
    assert str(answer("invariant", "truth 180 degrees: the angle is approximately").verdict) == "matched"
