"""Statements of the papers: the general kinds, and what is said of them by recorded results with other numbers."""

import copy

import pytest

from gpzoo.reproductions import judge
from gpzoo.reproductions.answers import Answers
from gpzoo.reproductions.claims import load
from gpzoo.reproductions.experiment import all_experiments
from gpzoo.reproductions.judge import Found, holding
from gpzoo.reproductions.papers import deep, deep_kernel
from gpzoo.reproductions.papers.convolutional import rank
from gpzoo.reproductions.records import Ours, Records
from tests.conftest import ROOT
from tests.reproductions.test_verdicts import SPLITS
from tests.reproductions.test_verdicts import recorded as runs_of

CLEAR, NOISE, AGAINST, NEAR = Ours(1.0, 0.1), Ours(-0.1, 0.1), Ours(-1.0, 0.1), Ours(-0.25, 0.1)
LEADS = [
    ([CLEAR, CLEAR], {}, True),
    ([CLEAR, NOISE], {}, None),
    ([CLEAR, AGAINST], {}, False),
    ([CLEAR, NOISE], {"allow": "level"}, True),
    ([CLEAR, NEAR, *[CLEAR] * 30], {"allow": "level"}, None),  # as chance explains among so many
    ([NEAR], {"allow": "level"}, False),
    ([NOISE], {"allow": "equal"}, True),
    ([CLEAR], {"allow": "equal"}, False),
    ([Ours(0.1)], {}, None),
    ([Ours(0.1)], {"tie": 0.05}, True),
    ([Ours(-0.01)], {"tie": 0.05}, None),
    ([Ours(-0.1)], {"tie": 0.05}, False),
    ([Ours(0.5, 0.15, *SPLITS)], {}, None),
    ([], {"allow": "level"}, None),  # nothing was compared
    ([Ours(float("nan"))], {"tie": 0.05}, None),
]


@pytest.mark.parametrize("leads, options, holds", LEADS)
def test_leads_count_by_two_standard_errors(leads, options, holds):
    assert holding(leads, **options) is holds


#: Of three runs with errors of 0.10, 0.07 and 0.02: the kind of a statement, its arguments, and whether it holds.
KINDS = [
    (judge.better, {"metric": "error", "than": "rbf"}, True),
    (judge.better, {"metric": "error", "than": "plain"}, False),
    (judge.better, {"metric": "error", "than": "rbf", "share": 0.25}, True),
    (judge.better, {"metric": "error", "than": "rbf", "share": 0.5}, False),
    (judge.best, {"metric": "error", "name": "best"}, True),
    (judge.best, {"metric": "error", "name": "rbf"}, False),
    (judge.order, {"metric": "error", "variants": ["best", "plain", "rbf"]}, True),
    (judge.order, {"metric": "error", "variants": ["plain", "best", "rbf"]}, False),
    (judge.pairs, {"metric": "error", "models": ["a"], "than": "b"}, True),
    (judge.pairs, {"metric": "error", "models": ["a", "b"]}, False),
    (judge.same_order, {"by": "elbo", "metric": "error"}, True),
    (judge.same_order, {"by": "worse_elbo", "metric": "error"}, False),
    (judge.at_most, {"limit": 0.10, "metrics": ["error"]}, True),
    (judge.at_most, {"limit": 0.09, "metrics": ["error"]}, False),
    (judge.above, {"metric": "error", "numbers": {"rbf": 0.2, "best": 0.1}}, True),
    (judge.above, {"metric": "error", "numbers": {"rbf": 0.2, "best": 0.01}}, False),
    (judge.near, {"metric": "error", "value": 0.06, "within": 0.05}, True),
    (judge.near, {"metric": "error", "value": 0.06, "within": 0.03}, False),
]


@pytest.mark.parametrize("kind, arguments, holds", KINDS)
def test_the_kinds_of_statements(kind, arguments, holds):
    each = {
        name: runs_of({"metrics": {"error": e, "elbo": -100 * e, "worse_elbo": e, "a_error": e, "b_error": 0.2}})
        for name, e in {"rbf": 0.10, "plain": 0.07, "best": 0.02}.items()
    }
    found = kind(Found(each, None), **arguments)
    assert found.holds is holds and (kind is not judge.pairs or found.pairs == 3)


def test_the_rank_of_a_convolutional_kernel_counts_the_blank_patch():
    assert rank(None, images=10, most=9).holds is False and rank(None, images=11, most=10).holds


@pytest.fixture(scope="module")
def recorded():
    return Records(ROOT / "reproductions" / "results", all_experiments())


@pytest.fixture
def answer(recorded):
    """``answer(paper, words, change)`` answers the claim with these words by files that ``change`` changes."""

    def answer(key, words, change=None):
        records = copy.copy(recorded)
        records.found = copy.deepcopy(recorded.found)
        for run, result in records.found.items():
            if change is not None and run.paper == key and run.preset != "quick":
                change(run, result)
        (one,) = [each for each in Answers(load(key), records, all_experiments()).all if words in each.claim.what]
        return one

    return answer


def errors(variant, **metrics):
    """Another error, and another bound, of a variant on MNIST."""
    return lambda run, result: result["metrics"].update(metrics if run[1:4] == ("mnist", variant, "tuned") else {})


def angle(degrees):
    """Another learned angle, which moved by two degrees at the end of its training."""

    def change(run, result):
        if (run.experiment, run.preset) == ("rotated-binary", "tuned") and "learned_angle_degrees" in result["metrics"]:
            result["metrics"]["learned_angle_degrees"] = degrees
            steps = {50: 0.0, 75: degrees - 2.0, 100: degrees}
            result["curve"] = [{"step": step, "learned_angle_degrees": value} for step, value in steps.items()]
            result["steps"] = 100

    return change


def trained_longer(model):
    """Every model beats the same one trained for longer: all had converged."""

    def change(run, result):
        if run.experiment == "uci-natural" and run.preset == "cpu":
            result["settings"]["by_fold"][model]["test_log_likelihood"] = [-10.0] * result["folds"]["count"]

    return change


def worse(run, result):
    """Three layers far below one on Boston."""
    if run.experiment == "uci" and run.variant == "boston":
        of = result["settings"]["by_fold"]
        of["dgp3"]["test_log_likelihood"] = [value - 1.0 for value in of["sgp"]["test_log_likelihood"]]


SLIGHTLY, ORDERS, NEVER = "only slightly better", "the bound orders the models", "a DGP is never worse than the SGP"
FROM_90, FROM_180 = "is at least the truth", "is below the truth"
#: What is said of the files as they are, the pages say, too.
STATEMENTS = [
    # A lead over a model that had not converged decides nothing, nor one within its errors.
    ("deep", "the deepest DGP is best", None, "fewer folds, undecided"),
    ("deep", "the deepest DGP is best", trained_longer("sgpr"), "fewer folds, matched"),
    ("deep", NEVER, trained_longer("sgpr"), "fewer folds, matched"),
    ("deep", "power, protein and kin8nm every DGP", trained_longer("dgp2"), "fewer folds, short"),
    # Of many pairs, one fails by more than chance.
    ("deep", NEVER, worse, "fewer folds, short"),
    ("deep", "no overfitting", worse, "fewer folds, short"),
    # Errors and bounds that hardly differ are in no order.
    ("invariant", ORDERS, errors("local", error=0.0232), "undecided"),
    ("invariant", ORDERS, errors("local", error=0.0290, bound_per_point=7.8), "short"),
    ("invariant", ORDERS, errors("local", error=0.0225, bound_per_point=7.8), "matched"),
    ("invariant", SLIGHTLY, None, "undecided"),  # rotation gains 0.69 points, the best 0.73 more
    ("invariant", SLIGHTLY, errors("rbf", error=0.0450), "short"),  # rotation gains far more than the best on it
    ("invariant", SLIGHTLY, errors("rbf", error=0.0200), "short"),  # rotation is worse
    ("invariant", SLIGHTLY, errors("affine", error=0.0050), "matched"),
    # An angle is on a side of the truth by more than it still moves.
    ("invariant", FROM_90, angle(95.0), "matched"),
    ("invariant", FROM_90, angle(91.5), "undecided"),
    ("invariant", FROM_90, angle(85.0), "short"),
    ("invariant", FROM_180, angle(175.0), "matched"),
    ("invariant", FROM_180, angle(181.5), "undecided"),
    ("invariant", FROM_180, angle(190.0), "short"),
]


@pytest.mark.parametrize("paper, words, change, said", STATEMENTS)
def test_recorded_and_changed_results_decide_the_statements(answer, paper, words, change, said):
    assert str(answer(paper, words, change).verdict) == said


def test_few_rows_are_judged_by_the_accuracy_of_another_method(answer, recorded):
    """The run on covtype in place of that on airline, whose data are not recorded."""
    run = answer("deep_kernel", "a step with 70 grid points costs").runs[0]
    found = Found({"airline": next(recorded.compared("deep_kernel", run.experiment, run.variant, ("cpu",)))}, None)
    for holds, *arguments in ((True, 0.04, 0.70), (False, 0.04, 0.71), (None, 0.02, 0.70)):
        assert deep_kernel.with_few_rows(found, *arguments).holds is holds


def test_nothing_is_told_without_results(recorded):
    none = copy.copy(recorded)
    none.found, none.folder = {}, ROOT / "nowhere" / "at" / "all"
    assert deep.facts(none)["figure_1"] == [] and deep_kernel.facts(none)["gain"] == []
    assert deep_kernel.pictures(none) == {}
