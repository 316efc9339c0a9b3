"""One rule decides whether a number of ours matches the paper's."""

import math

import pytest

from gpzoo.reproductions.answers import training
from gpzoo.reproductions.judge import FEWER_FOLDS, READING, STAND_IN, SUBSET, limit_of, verdict
from gpzoo.reproductions.printed import Printed, as_printed, beside
from gpzoo.reproductions.records import Key, Ours, Recorded, error_of

PRINTED = [
    ("1.22 %", 0.0122, 100, 2, 0.00005),
    ("0.781±0.001", 0.781, 1, 3, 0.0005),
    ("-0.493", -0.493, 1, 3, 0.0005),
]


@pytest.mark.parametrize("text, value, scale, decimals, rounding", PRINTED)
def test_printed_numbers_know_their_last_digit(text, value, scale, decimals, rounding):
    found = Printed(text)
    assert (found, found.scale, found.decimals) == (value, scale, decimals)
    assert found.rounding == pytest.approx(rounding) and as_printed(found) is found
    assert as_printed(0.0122).rounding == pytest.approx(0.00005)


def test_ours_is_written_with_as_many_digits_as_its_error_supports():
    assert beside(0.0157, 0.00124, Printed("1.22 %")) == "1.57 ± 0.12 %"
    assert beside(0.2552, None, Printed("0.258")) == "0.2552"


SPLITS = ("3 splits", 2)
RULE = [
    ("error", Ours(0.0122, 0.0005), "1.22 %", "matched"),
    ("error", Ours(0.0130, 0.0005), "1.22 %", "matched"),
    ("error", Ours(0.0157, 0.0012), "1.22 %", "short by 0.35 points"),
    ("error", Ours(0.0110, 0.0005), "1.22 %", "exceeded by 0.12 points"),
    # Two standard errors either way, and an error that is small enough.
    ("error", Ours(0.0140, 0.0012), "1.22 %", "matched"),
    ("error", Ours(0.0140, 0.0016), "1.22 %", "undecided"),
    # An error that is not known decides nothing, nor do three splits by Student's t with two degrees of freedom.
    ("nlpp", Ours(0.028), "0.028", "undecided"),
    ("accuracy", Ours(0.7, 0.01, *SPLITS), "0.734", "undecided"),
    # A tolerance is a share of what is small, or in units of the data.
    ("nlpp", Ours(0.019, 0.0015), "0.018", "matched"),
    ("nlpp", Ours(0.019, 0.0020), "0.018", "undecided"),
    ("rmse", Ours(8.9, 0.15), "8.87", "matched"),
    ("seconds_per_step", Ours(9.0), "0.14", "not scored"),
]


@pytest.mark.parametrize("metric, ours, paper, said", RULE)
def test_the_rule(metric, ours, paper, said):
    assert str(verdict(metric, ours, Printed(paper))) == said


@pytest.mark.parametrize("ours", [0.5, 0.0])
@pytest.mark.parametrize("limit", [FEWER_FOLDS, SUBSET, STAND_IN, READING])
def test_what_cannot_be_compared_is_never_scored(limit, ours):
    found = verdict("error", Ours(ours, 0.001), Printed("1.22 %"), limit)
    assert found.limit == limit and bool(found.word) == (limit in (FEWER_FOLDS, SUBSET))
    if found.word:
        assert str(found) == f"{limit}, " + ("short by 48.78 points" if ours else "exceeded by 1.22 points")


def recorded(*results):
    base = {"data": {"name": "a", "sizes": {"train": 1, "test": 10_000}}, "settings": {}, "steps": 10, "curve": []}
    keys = tuple(Key("p", "e", "v", "paper", seed) for seed in range(len(results)))
    return Recorded(keys, tuple(base | result for result in results))


def test_standard_errors():
    one = recorded({"metrics": {"error": 0.02, "nlpp": 0.1, "sgp_rmse": 1.0, "sgp_rmse_se": 0.2}}).result
    assert error_of(one, "error")[1:3] == (pytest.approx(math.sqrt(0.02 * 0.98 / 10_000)), "binomial")
    assert error_of(one, "nlpp").error is None and error_of(one, "sgp_rmse").source == "test rows"
    splits = one | {"folds": {"count": 3, "of": 5}}
    assert error_of(splits, "error").error is None and error_of(splits, "sgp_rmse")[1:] == (0.2, *SPLITS)
    assert Ours(0.0, 1.0).wide() == pytest.approx(2.0) and Ours(0.0).wide() is None
    assert Ours(0.0, 1.0, *SPLITS).wide() == pytest.approx(4.527, abs=1e-3)
    assert Ours(0.0, 1.0).wide(among=32) == pytest.approx(3.19, abs=0.02)
    # Seeds share their test rows, and are no surer than one.
    near = recorded({"metrics": {"error": 0.00012}}, {"metrics": {"error": 0.00014}}).ours("error")
    assert near.value == pytest.approx(0.00013) and near.source == "binomial" and near.error > 1e-4
    far = recorded({"metrics": {"error": 0.02}}, {"metrics": {"error": 0.04}}).ours("error")
    assert (far.source, far.degrees, far.error) == ("2 seeds", 1, pytest.approx(0.01))


def test_whether_a_training_had_converged():
    printed = Printed("1.2 %")

    def told(errors, metric="error"):
        curve = [{"step": step, metric: error} for step, error in zip((5, 7, 8, 10), errors, strict=True)]
        return training(recorded({"metrics": {metric: errors[-1]}, "curve": curve}), metric, printed)

    assert told((0.05, 0.04, 0.031, 0.03)).word == "not converged"
    assert told((0.05, 0.031, 0.031, 0.03)).word == "level"
    past = told((0.08, 0.074, 0.0671, 0.0691), "nlpp")
    assert (past.word, past.best.value, past.step) == ("past its best", 0.0671, 8)
    assert training(recorded({"metrics": {"error": 0.1}}), "error", printed) is None
    longer = recorded({"metrics": {"dnn_accuracy": 0.9, "dnn-long_accuracy": 0.92}})
    assert training(longer, "dnn_accuracy", Printed("0.95")).word == "not converged"


#: What a result holds besides 15 rows, the facts of its experiment, and what limits it.
LIMITS = [
    ({}, {}, None),
    ({}, {"rows": 16}, SUBSET),
    ({"subset": {"train": 10}}, {}, SUBSET),
    ({"stands_in": True}, {"stands_in": False, "rows": 16}, SUBSET),
    ({"settings": {"splits": 3}}, {"folds": 5}, FEWER_FOLDS),
    ({"folds": {"count": 5, "of": 20}}, {}, FEWER_FOLDS),
    ({"stands_in": True}, {}, STAND_IN),
    ({}, {"stands_in": True}, STAND_IN),
    ({"variant": "a"}, {"stands_in": ["a"]}, STAND_IN),
    ({"variant": "b"}, {"stands_in": ["a"]}, None),
    ({"preset": "quick"}, {}, STAND_IN),
]


@pytest.mark.parametrize("content, facts, limit", LIMITS)
def test_what_limits_a_result(content, facts, limit):
    rows = {"metrics": {}, "data": {"name": "all", "sizes": {"train": 10, "test": 5}}, "settings": {}}
    assert limit_of(rows | content, facts) == limit


def test_differences_are_paired():
    ours, theirs = [1.0, 2.0, 3.0], [0.5, 1.6, 2.4]
    by_split = [{"a_nlpp": a, "b_nlpp": b} for a, b in zip(ours, theirs, strict=True)]
    for by in ({"by_split": by_split}, {"by_fold": {"a": {"nlpp": ours}, "b": {"nlpp": theirs}}}):
        run = recorded({"metrics": {}, "settings": by, "folds": {"count": 3, "of": 3}})
        assert run.lead("nlpp", "a", "b")[:2] == (pytest.approx(-0.5), pytest.approx(0.1 / math.sqrt(3)))
