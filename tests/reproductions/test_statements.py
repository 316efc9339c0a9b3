"""Statements of the papers: the general kinds, and what is said of them by recorded results with other numbers."""

import copy

import pytest

from gpzoo.reproductions import deep, deep_kernel, judge
from gpzoo.reproductions.claims import load
from gpzoo.reproductions.convolutional import rank
from gpzoo.reproductions.experiment import all_experiments
from gpzoo.reproductions.judge import Answers, Found, holding
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
        ([], {"allow": "level"}, None),  # nothing was compared
        ([Ours(float("nan"))], {"tie": 0.05}, None),
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


def errors(variant, error, bound=None):
    """Another error, and another bound, of a variant on MNIST."""

    def change(run, result):
        if (run.experiment, run.variant, run.preset) == ("mnist", variant, "tuned"):
            changed = {"error": error} if bound is None else {"error": error, "bound_per_point": bound}
            result["metrics"].update(changed)

    return change


def angle(degrees):
    """Another learned angle, which moved by two degrees at the end of its training."""

    def change(run, result):
        if (run.experiment, run.preset) == ("rotated-binary", "tuned") and "learned_angle_degrees" in result["metrics"]:
            result["metrics"]["learned_angle_degrees"] = degrees
            steps = ((50, 0.0), (75, degrees - 2.0), (100, degrees))
            result["curve"] = [{"step": step, "learned_angle_degrees": value} for step, value in steps]
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


SLIGHTLY, ORDERS = "only slightly better", "the bound orders the models"
FROM_90, FROM_180 = "is at least the truth", "is below the truth"


@pytest.mark.parametrize(
    ("paper", "words", "change", "said"),
    [
        # A toy of our own never counts, and a part of the data is no stand-in.
        ("invariant", "higher bound", None, "stand-in, matched"),
        ("deep_kernel", "a step with 70 grid points costs", None, "stand-in, matched"),
        ("deep_kernel", "Diabetes, SV-DKL: accuracy", None, "stand-in"),
        ("deep_kernel", "DNN+GP consistently improves", None, "stand-in, undecided"),
        # A lead over a model that had not converged decides nothing, nor one within its errors.
        ("deep", "the deepest DGP is best", None, "fewer folds, undecided"),
        ("deep", "the deepest DGP is best", trained_longer("sgpr"), "fewer folds, matched"),
        ("deep", "a DGP is never worse than the SGP", None, "fewer folds, undecided"),
        ("deep", "a DGP is never worse than the SGP", trained_longer("sgpr"), "fewer folds, matched"),
        ("deep", "power, protein and kin8nm every DGP", None, "fewer folds, undecided"),
        ("deep", "power, protein and kin8nm every DGP", trained_longer("dgp2"), "fewer folds, short"),
        ("deep", "MNIST: accuracy rises", None, "undecided"),
        ("deep", "recovers the single-layer", None, "fewer folds, short"),
        # Of many pairs, one fails by more than chance.
        ("deep", "a DGP is never worse than the SGP", worse, "fewer folds, short"),
        ("deep", "no overfitting", worse, "fewer folds, short"),
        ("deep", "no overfitting", None, "fewer folds, matched"),
        # Errors and bounds that hardly differ are in no order.
        ("invariant", ORDERS, errors("local", 0.0232), "undecided"),
        ("invariant", ORDERS, errors("local", 0.0290, 7.8), "short"),
        ("invariant", ORDERS, errors("local", 0.0225, 7.8), "matched"),
        ("invariant", SLIGHTLY, None, "undecided"),  # rotation gains 0.69 points, the best 0.73 more
        ("invariant", SLIGHTLY, errors("rbf", 0.0450), "short"),  # rotation gains far more than the best on it
        ("invariant", SLIGHTLY, errors("rbf", 0.0200), "short"),  # rotation is worse
        ("invariant", SLIGHTLY, errors("affine", 0.0050), "matched"),
        # An angle is on a side of the truth by more than it still moves.
        ("invariant", FROM_90, angle(95.0), "matched"),
        ("invariant", FROM_90, angle(91.5), "undecided"),
        ("invariant", FROM_90, angle(85.0), "short"),
        ("invariant", FROM_180, angle(175.0), "matched"),
        ("invariant", FROM_180, angle(181.5), "undecided"),
        ("invariant", FROM_180, angle(190.0), "short"),
        ("invariant", "truth 90 degrees: the angle is approximately", None, "short"),  # 104 degrees
        ("invariant", "truth 180 degrees: the angle is approximately", None, "matched"),
    ],
)
def test_recorded_and_changed_results_decide_the_statements(answer, paper, words, change, said):
    assert str(answer(paper, words, change).verdict) == said


def test_few_rows_are_judged_by_the_accuracy_of_another_method(answer, recorded):
    """The run on covtype in place of that on airline, whose data are not recorded."""
    run = answer("deep_kernel", "a step with 70 grid points costs").runs[0]
    runs = next(recorded.compared("deep_kernel", run.experiment, run.variant, ("cpu",)))
    found = deep_kernel.Found({"airline": runs}, None)
    assert deep_kernel.with_few_rows(found, 0.04, 0.70).holds is True
    assert deep_kernel.with_few_rows(found, 0.04, 0.71).holds is False
    assert deep_kernel.with_few_rows(found, 0.02, 0.70).holds is None


def test_leads_of_pages_say_what_the_files_say(answer, recorded):
    found = deep_kernel.facts(recorded)
    assert (found["better"], found["worse"], found["level"]) == ([], ["diabetes"], ["adult", "connect4"])
    (close,) = found["close"]
    assert (close["set"], close["splits"]) == ("covtype", 3) and 3.3 < close["errors"] < 3.4 and close["always"]
    layers = {"above": ["kin8nm", "power", "protein"], "undecided": ["boston", "energy"], "below": ["naval"]}
    assert deep.facts(recorded)["layers"] == layers
    exceeded = answer("deep_kernel", "Connect-4, SV-DKL: nlpp")
    assert [each.name for each in deep_kernel.as_well(recorded, exceeded)] == ["after as many steps"]
    assert deep_kernel.as_well(recorded, answer("deep_kernel", "CIFAR-10, SV-DKL: accuracy")) == []


def test_nothing_is_told_without_results(recorded):
    none = copy.copy(recorded)
    none.found, none.folder = {}, ROOT / "nowhere" / "at" / "all"
    assert deep.facts(none)["figure_1"] == [] and deep_kernel.facts(none)["gain"] == []
    assert deep_kernel.pictures(none) == {}
