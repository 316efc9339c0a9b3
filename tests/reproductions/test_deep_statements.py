"""What the statements of the papers on deep GPs and deep kernels say, by recorded results and by changed ones."""

import copy

import pytest

from gpzoo.reproductions.answers import Answers
from gpzoo.reproductions.claims import load
from gpzoo.reproductions.experiment import all_experiments
from gpzoo.reproductions.papers import deep, deep_kernel
from gpzoo.reproductions.records import Key, Records
from tests.conftest import ROOT

LL = "test_log_likelihood"


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
        (found,) = [each for each in Answers(load(key), records, all_experiments()).all if words in each.claim.what]
        return found

    return answer


def _trained_longer(model):
    """A change after which every model beats the same one trained for longer: all had converged."""

    def change(run, result):
        if run.experiment == "uci-natural" and run.preset == "cpu":
            result["settings"]["by_fold"][model][LL] = [-10.0] * result["folds"]["count"]

    return change


@pytest.mark.parametrize("words", ["the deepest DGP is best", "a DGP is never worse than the SGP"])
def test_a_lead_over_a_model_that_had_not_converged_decides_nothing(answer, words):
    found = answer("deep", words)
    assert str(found.verdict) == "fewer folds, undecided"
    assert "SGP less SGPR at its optimum on naval" in [value.name for value in found.judged.values]
    assert str(answer("deep", words, _trained_longer("sgpr")).verdict) == "fewer folds, matched"


def test_statements_on_many_pairs_fail_by_more_than_chance(answer):
    def worse(run, result):
        if run.experiment == "uci" and run.variant == "boston":
            of = result["settings"]["by_fold"]
            of["dgp3"][LL] = [value - 1.0 for value in of["sgp"][LL]]

    assert str(answer("deep", "a DGP is never worse than the SGP", worse).verdict) == "fewer folds, short"
    assert str(answer("deep", "no overfitting", worse).verdict) == "fewer folds, short"
    assert str(answer("deep", "no overfitting").verdict) == "fewer folds, matched"


def test_two_layers_below_themselves_after_more_steps_decide_nothing(answer):
    words = "power, protein and kin8nm every DGP"
    assert str(answer("deep", words).verdict) == "fewer folds, undecided"
    assert str(answer("deep", words, _trained_longer("dgp2")).verdict) == "fewer folds, short"


def test_single_layers_are_not_recovered_and_depth_on_mnist_is_within_errors(answer):
    assert str(answer("deep", "recovers the single-layer").verdict) == "fewer folds, short"
    assert str(answer("deep", "MNIST: accuracy rises").verdict) == "undecided"


def test_a_part_of_the_data_is_no_stand_in(answer):
    assert str(answer("deep_kernel", "Covtype, SV-DKL: accuracy").verdict).startswith("subset, ")
    assert str(answer("deep_kernel", "Diabetes, SV-DKL: accuracy").verdict) == "stand-in"
    assert str(answer("deep_kernel", "a step with 70 grid points costs").verdict) == "stand-in, matched"


def test_the_gain_of_a_network_with_gps_is_within_its_errors_and_negative_on_adult(answer):
    found = answer("deep_kernel", "DNN+GP consistently improves")
    values = {value.name: round(value.ours.value, 4) for value in found.judged.values}
    assert values["dnn+gp on adult"] == -0.0007 and str(found.verdict) == "stand-in, undecided"


def test_few_rows_are_judged_by_the_accuracy_of_another_method(answer):
    """The run on covtype in place of that on airline, whose data are not recorded."""
    run = answer("deep_kernel", "a step with 70 grid points costs").runs[0]
    found = deep_kernel.Found({"airline": _recorded(run)}, None)
    assert deep_kernel.with_few_rows(found, 0.04, 0.70).holds is True
    assert deep_kernel.with_few_rows(found, 0.04, 0.71).holds is False
    assert deep_kernel.with_few_rows(found, 0.02, 0.70).holds is None


def _recorded(key):
    records = Records(ROOT / "reproductions" / "results", all_experiments())
    return next(records.compared("deep_kernel", key.experiment, key.variant, ("cpu",)))


def test_pages_tell_what_equal_steps_leave_and_what_sgpr_does(recorded):
    found = deep_kernel.facts(recorded)
    assert (found["better"], found["worse"]) == ([], ["diabetes"])
    assert found["level"] == ["adult", "connect4"]
    (close,) = found["close"]
    assert (close["set"], close["splits"]) == ("covtype", 3) and 3.3 < close["errors"] < 3.4 and close["always"]
    assert found["accurate"] == ["covtype"]
    found = deep.facts(recorded)
    assert found["layers"] == {
        "above": ["kin8nm", "power", "protein"], "undecided": ["boston", "energy"], "below": ["naval"]
    }  # fmt: skip
    assert found["not_converged"] == ["energy", "kin8nm", "naval", "power", "protein"]
    assert found["matches"]["like"] == ["SGP 500", "DGP3"]
    assert [(each["set"], each["model"]) for each in found["beside"]] == [("energy", "SGPR")]
    assert Key("deep", "uci", "boston", "cpu") in recorded.found


def test_a_network_alone_that_does_as_well_is_named(answer, recorded):
    exceeded = answer("deep_kernel", "Connect-4, SV-DKL: nlpp")
    assert [each.name for each in deep_kernel.as_well(recorded, exceeded)] == ["after as many steps"]
    matched = answer("deep_kernel", "MNIST, odd or even, SV-DKL: accuracy")
    assert [each.name for each in deep_kernel.as_well(recorded, matched)] == ["alone", "after as many steps"]
    assert deep_kernel.as_well(recorded, answer("deep_kernel", "CIFAR-10, SV-DKL: accuracy")) == []


def test_nothing_is_told_without_results(recorded):
    none = copy.copy(recorded)
    none.found, none.folder = {}, ROOT / "nowhere" / "at" / "all"
    assert (
        deep.facts(none)["figure_1"] == []
        and deep.facts(none)["matches"] == {}
        and deep_kernel.facts(none)["gain"] == []
    )
    assert deep_kernel.pictures(none) == {}
