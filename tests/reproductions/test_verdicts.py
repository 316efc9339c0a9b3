"""When has a number of ours reached the paper's? The rule, at its edges."""

import copy
import math

import pytest

from gpzoo.reproductions.convergence import convergence
from gpzoo.reproductions.printed import Printed, as_printed, beside
from gpzoo.reproductions.records import error_of, paired
from gpzoo.reproductions.verdicts import FEWER_FOLDS, READING, STAND_IN, SUBSET, behind, limit_of, verdict


@pytest.mark.parametrize(
    ("text", "value", "rounding"),
    [
        ("1.22 %", 0.0122, 5e-5),
        ("0.9920", 0.992, 5e-5),
        ("0.781±0.001", 0.781, 5e-4),
        ("-0.460", -0.46, 5e-4),
        ("5 %", 0.05, 5e-3),
    ],
)
def test_a_printed_number_knows_its_last_digit(text, value, rounding):
    printed = Printed(text)
    assert printed == value and printed.rounding == pytest.approx(rounding) and copy.deepcopy(printed).text == text


def test_a_plain_number_has_the_digits_that_are_shown():
    assert as_printed(0.02).rounding == pytest.approx(0.005) and as_printed(Printed("0.020")).rounding < 0.001
    assert as_printed(1e-3).rounding == pytest.approx(5e-4)


@pytest.mark.parametrize(
    ("ours", "error", "text", "shown"),
    [
        (0.0173, 0.0013, "1.22 %", "1.73 ± 0.13 %"),
        (8e-5, 4e-5, "0.0 %", "0.0080 ± 0.0040 %"),
        (0.0762, None, "0.048", "0.0762"),
        (0.9915, 0.00092, "0.9920", "0.99150 ± 0.00092"),
    ],
)
def test_ours_has_the_papers_unit_and_two_digits_of_its_error(ours, error, text, shown):
    assert beside(ours, error, Printed(text)) == shown


@pytest.mark.parametrize(
    ("metric", "ours", "paper", "error", "said"),
    [
        # Better counts, whatever the error.
        ("error", 0.011, "1.22 %", 0.01, "reached"),
        ("svdkl_accuracy", 0.9, "0.85", None, "reached"),
        # Rounding: 4 of 50,000 images against a printed 0.0 %.
        ("error", 8e-5, "0.0 %", 4e-5, "reached"),
        ("nlpp", 0.0484, "0.048", None, "reached"),
        # One standard error, if it is small enough.
        ("accuracy", 0.9795, "98.06 %", 0.0014, "reached"),
        ("accuracy", 0.9795, "98.06 %", 0.0016, "undecided"),
        ("accuracy", 0.97, "98.06 %", 0.0016, "short by 1.06 points"),
        ("nlpp", 0.05, "0.048", 0.001, "short by 0.0020"),
        ("test_log_likelihood", -0.51, "-0.5", 0.03, "reached"),
        # An error that is not known could be 0.02 nats at most.
        ("nlpp", 0.0314, "0.028", None, "undecided"),
        ("nlpp", 0.0762, "0.048", None, "short by 0.0282"),
        ("rmse", 9.0, "8.87", None, "short by 0.130"),
        ("seconds_per_step", 9.0, "0.14", None, "not scored"),
        ("learned_angle_degrees", 10.0, "90", None, "not scored"),
    ],
)
def test_the_rule(metric, ours, paper, error, said):
    if said == "reached" and metric == "test_log_likelihood":
        # -0.5 is printed to one digit, so that -0.51 is within its rounding.
        assert Printed(paper).rounding == pytest.approx(0.05)
    assert str(verdict(metric, ours, Printed(paper), error)) == said


@pytest.mark.parametrize("ours", [0.5, 0.0])
@pytest.mark.parametrize("limit", [FEWER_FOLDS, SUBSET, STAND_IN, READING])
def test_what_cannot_be_compared_is_never_scored(limit, ours):
    found = verdict("error", ours, Printed("1.22 %"), 0.001, limit)
    assert found.word == limit
    words = {
        FEWER_FOLDS: ["short by 48.78 points", "as good or better"],
        SUBSET: ["short by 48.78 points", "as good or better"],
    }
    assert found.distance == words.get(limit, ["", ""])[ours == 0.0]


@pytest.mark.parametrize(
    ("ours", "error", "said"),
    [
        (0.312, 0.003, "as good or better"),
        (0.3124, 0.003, "within the rounding"),
        (0.3138, 0.0033, "within one standard error"),
        (0.3138, None, "undecided"),
        (0.333, 0.03, "undecided"),
        (0.3159, 0.0033, "short by 0.0039"),
    ],
)
def test_what_is_not_scored_is_judged_by_the_same_rule(ours, error, said):
    paper = Printed("0.312±0.003")
    assert verdict("nlpp", ours, paper, error, FEWER_FOLDS).distance == said
    scored = said.partition(" ")[0] if said.startswith(("short", "undecided")) else "reached"
    assert verdict("nlpp", ours, paper, error).word == scored


def test_whether_a_training_had_converged():
    curve = [{"step": step, "error": error} for step, error in ((5, 0.05), (7, 0.04), (8, 0.031), (10, 0.03))]
    result = {"metrics": {"error": 0.03}, "steps": 10, "curve": curve}
    printed = Printed("1.2 %")
    said = "not converged: better by 1.00 points in the last 3 of 10 steps"
    assert convergence(result, "error", printed, 0.005) == said
    falls = {"settings": {"learning_rate": "Adam, cosine from 0.01 to a hundredth of it"}}
    told = convergence(result | falls, "error", printed, 0.005)
    assert told == "better by 1.00 points in the last 3 of 10 steps, as the rate fell"
    assert convergence(result, "error", printed, 0.007) == "level, within the error, in the last 3 of 10 steps"
    told = convergence(result | falls, "error", printed, 0.007)
    assert told == "level, within the error, in the last 3 of 10 steps, where the rate is small"
    assert convergence(result | {"curve": curve[2:]}, "error", printed, None) == ""
    assert convergence(result | {"curve": []}, "error", printed, None) == ""
    longer = {"metrics": {"dnn_accuracy": 0.9, "dnn-long_accuracy": 0.92, "svdkl_accuracy": 0.9}, "steps": 10}
    printed = Printed("0.95")
    assert convergence(longer, "dnn_accuracy", printed, 0.01) == "not converged: better by 0.020 with more steps"
    assert convergence(longer, "dnn_accuracy", printed, 0.015) == "level, within the error, with more steps"
    assert convergence(longer, "svdkl_accuracy", printed, 0.01) == ""
    built = {"metrics": {"dnn_accuracy": 0.9, "dnn-long_accuracy": 0.92, "dnn+gp_accuracy": 0.9}, "steps": 10}
    assert convergence(built, "dnn+gp_accuracy", printed, 0.01).startswith("built on a network which is not converged")
    # Of an unknown error nothing is concluded, and what gets worse is not level.
    assert convergence(longer, "dnn_accuracy", printed, None) == "better by 0.020 with more steps, error not known"
    longer["metrics"]["dnn-long_accuracy"] = 0.88
    assert convergence(longer, "dnn_accuracy", printed, 0.01) == "worse by 0.020 with more steps"


def test_the_better_direction():
    assert behind("dnn_nlpp", 0.8, 0.9) == pytest.approx(-0.1) and behind("accuracy", 0.8, 0.9) == pytest.approx(0.1)
    assert behind("dnn_seconds", 1.0, 2.0) is None


def result(train=10, test=5, **changes):
    return {"metrics": {}, "data": {"sizes": {"train": train, "test": test}}, "settings": {}, **changes}


@pytest.mark.parametrize(
    ("content", "sizes", "limit"),
    [
        (result(), {}, None),
        (result(), {"rows": 15, "folds": 5}, None),
        (result(), {"rows": 16}, SUBSET),
        (result(subset={"train": 10}), {}, SUBSET),
        (result(settings={"splits": 3}), {"folds": 5}, FEWER_FOLDS),
        (result(settings={"folds": 5}), {"folds": 5}, None),
        (result(folds={"count": 5, "of": 20}), {}, FEWER_FOLDS),
        (result(stands_in=True, subset={"train": 10}), {}, STAND_IN),
    ],
)
def test_what_limits_a_result(content, sizes, limit):
    assert limit_of(content, **sizes) == limit


def test_standard_errors():
    one = result(test=10_000) | {"metrics": {"error": 0.02, "nlpp": 0.1, "sgp_rmse": 1.0, "sgp_rmse_se": 0.2}}
    assert error_of(one, "error") == (pytest.approx(math.sqrt(0.02 * 0.98 / 10_000)), "binomial")
    assert error_of(one, "nlpp") == (None, "")
    assert error_of(one | {"folds": {"count": 3, "of": 5}}, "error") == (None, "")
    assert error_of(one | {"folds": {"count": 3, "of": 5}}, "sgp_rmse") == (0.2, "3 splits")


@pytest.mark.parametrize("key", ["by_split", "by_fold"])
def test_differences_are_paired(key):
    ours, theirs = [1.0, 2.0, 3.0], [0.5, 1.6, 2.4]
    by = {
        "by_split": [{"a_nlpp": a, "b_nlpp": b} for a, b in zip(ours, theirs, strict=True)],
        "by_fold": {"a": {"nlpp": ours}, "b": {"nlpp": theirs}},
    }
    mean, error = paired({"settings": {key: by[key]}}, "nlpp", "a", "b")
    assert mean == pytest.approx(0.5) and error == pytest.approx(0.1 / math.sqrt(3))
