"""Settings that ``--set`` changes: read as TOML, refused by name, in a folder of their own, and never scored."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gpzoo import kmeans
from gpzoo.kernels import RBF
from gpzoo.reproductions import cli, terminal
from gpzoo.reproductions.changes import changed, check_changes, parsed, settings_of, written
from gpzoo.reproductions.execute import execute, make_result
from gpzoo.reproductions.experiment import ReproductionError, Run, all_experiments
from gpzoo.reproductions.many_runs import arguments, has_result
from gpzoo.reproductions.training import Setting
from tests.programs import KEY
from tests.reproductions.test_execute import PAPER, experiment, outcome, printed, refused

EXPERIMENTS = {(each.paper, each.name): each for each in all_experiments()}


@pytest.mark.parametrize(
    "text, value",
    [
        ("steps=50", 50),
        ("rate = 1e-3", 0.001),
        ("batch_size=all", "all"),
        ("collapsed=true", True),
        ("epochs=[2, 1, 1]", [2, 1, 1]),
        ("rate={constant = 0.01}", {"constant": 0.01}),
    ],
)
def test_a_value_is_written_as_in_toml_or_is_a_word(text, value):
    name, found = parsed(text)
    assert found == value and parsed(f"{name}={written(found)}") == (name, value)
    for wrong in ("steps", "steps=", "=5"):
        with pytest.raises(ValueError, match="NAME=VALUE"):
            parsed(wrong)


def test_a_setting_is_changed_wherever_it_occurs_and_facts_are_left():
    options = {"steps": 9, "models": {"sgp": {}, "sgpr": {"steps": 5}}, "notes": {"steps": "many"}}
    given = {"steps": 2, "rate": 0.1}
    wanted = {"steps": 2, "models": {"sgp": {}, "sgpr": {"steps": 2}}, "notes": {"steps": "many"}, "rate": 0.1}
    assert changed(options, given) == wanted and options["steps"] == 9
    # What only some models have is not given to the others.
    assert changed({"models": {"a": {"natural": 0.1}, "b": {}}}, {"natural": 0.2}) == {
        "models": {"a": {"natural": 0.2}, "b": {}}
    }


def run_of(paper, name, **changes):
    each = EXPERIMENTS[paper, name]
    return each, Run(paper, name, each.default_variant, "quick", 0, Path("x"), source=each.source, changes=changes)


GOOD = [
    ("invariant", "mnist", {"num_inducing": 50, "steps": 10, "rate": 0.02, "batch_size": 30, "num_views": 4}),
    ("invariant", "toy", {"batch_size": 20, "rate": {"warmed": 0.1}, "natural": 0.5, "noise_variance": 0.2}),
    ("invariant", "toy", {"start": {"noise_variance": 0.2}, "early": 0, "weighted": 5, "collapsed": True}),
    ("deep", "uci", {"folds": 2, "steps": 10, "num_inducing": 20, "batch_size": "all"}),
    ("deep_kernel", "adult", {"epochs": [1, 0.5, 1], "choose": False, "weight_decay": 0.0, "augmented": True}),
]


@pytest.mark.parametrize("paper, name, changes", GOOD)
def test_settings_by_their_names_reach_the_experiment(paper, name, changes):
    each, run = run_of(paper, name, **changes)
    check_changes(each, run)
    inner = run.options["start"] if "noise_variance" in changes else {}
    assert changes == {name: (run.options | inner)[name] for name in changes}
    if "steps" in changes:
        assert Setting.of(run.options).num_inducing == changes["num_inducing"]


BAD = [
    *(("steps", value) for value in (0, -1, 1.5, "many", True, [5])),
    *(("rate", value) for value in (0.0, -0.1, float("nan"), float("inf"), "fast", {"constnt": 0.1}, {"warmed": -1})),
    *(("batch_size", value) for value in (0, 2.5, "some")),
    *(("num_inducing", value) for value in (0, "all")),
    *(("decay", 1.5), ("weighted", 0.5), ("natural", 0), ("collapsed", 1), ("start", 5), ("noise_variance", -1.0)),
]


@pytest.mark.parametrize("name, value", BAD)
def test_values_that_a_setting_cannot_have_are_refused_by_its_name(name, value):
    with pytest.raises(ValueError, match=f"{name} cannot be .* all settings: .*num_inducing"):
        check_changes(*run_of("invariant", "toy", **{name: value}))


@pytest.mark.parametrize("paper, name, unknown", [("invariant", "toy", "num_inducin"), ("deep", "uci", "notes")])
def test_unknown_settings_are_refused_with_the_names_of_all(paper, name, unknown):
    with pytest.raises(ValueError, match=f"unknown setting '{unknown}', .* num_inducing, .*rate, .*steps"):
        check_changes(*run_of(paper, name, **{unknown: 5}))


def test_every_setting_of_every_experiment_may_be_what_it_is():
    for each in EXPERIMENTS.values():
        for preset in each.presets:
            run = Run(each.paper, each.name, each.default_variant, preset, 0, Path("x"))
            own = {name: value for name, value in settings_of(each, run).items() if value not in (None, {}, 0)}
            # As TOML has them, without tuples.
            check_changes(each, replace(run, changes=json.loads(json.dumps(own))))


def test_a_changed_run_says_so_and_is_not_set_against_the_paper(tmp_path):
    run = Run("toy", "squares", "plain", "paper", 3, tmp_path / "out", changes={"rate": {"constant": 0.5}})
    result = make_result(outcome(), run, PAPER)
    assert result["changes"] == run.changes and set(result["paper_metrics"].values()) == {None}
    assert result["command"].endswith("--seed 3 --set 'rate={constant = 0.5}'")
    assert arguments(run)[-4:-2] == ["--set", "rate={constant = 0.5}"]
    for shown in (terminal.table(result, PAPER), terminal.comparison([result])):
        text = printed(shown)
        assert "changed: rate = {constant = 0.5}" in text and "verdict" not in text and "0.02" not in text


def test_a_folder_is_of_one_value_of_a_setting(tmp_path):
    run = Run("toy", "squares", "plain", "quick", 3, tmp_path / "out")
    many = replace(run, changes={"steps": 50})
    execute(experiment(), many)
    assert has_result(many) and not has_result(run) and not has_result(replace(run, changes={"steps": 60}))
    for other in (run, replace(run, changes={"steps": 60})):
        refused(other, r"holds another run \(.*changes={'steps': 50}\)")


def test_the_command_line_names_the_folder_and_refuses_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    seen, toy = [], EXPERIMENTS["invariant", "toy"]
    counted = replace(toy, run=lambda run: seen.append(run) or outcome(metrics={"elbo": 1.0}))
    monkeypatch.setattr(cli, "all_experiments", lambda own: (counted,))

    def called(*options):
        return CliRunner().invoke(cli.main, ["reproduce", "invariant", "toy", *options])

    assert called("--set", "num_inducing=9", "--set", "rate={constant = 0.1}").exit_code == 0
    (run,), folder = seen, "invariant-toy-symmetric-quick-seed0-num_inducing=9-rate=_constant_=_0.1_"
    assert run.options["num_inducing"] == 9 and run.changes["rate"] == {"constant": 0.1}
    assert json.loads(Path("runs", folder, "result.json").read_text())["changes"]["num_inducing"] == 9
    for wrong in ("num_inducin=9", "num_inducing=many"):
        assert called("--set", wrong).exit_code == 2 and len(seen) == 1
    many = replace(toy, run=lambda run: kmeans(run.options["num_inducing"])(KEY, np.zeros((4, 1)), RBF()))
    monkeypatch.setattr(cli, "all_experiments", lambda own: (many,))
    failed = called("--set", "num_inducing=9")  # as it is known only beside the data
    assert failed.exit_code == 1 and failed.stderr.count("\n") == 1 and "--debug shows where" in failed.stderr
    swept = CliRunner().invoke(cli.main, ["sweep", "invariant", "toy", "--set", "steps=0"])
    assert swept.exit_code == 2 and "steps cannot be 0" in swept.stderr


def test_a_setting_that_the_experiment_overrides_is_refused():
    each, run = run_of("deep_kernel", "adult", rates=[0.1, 0.1, 0.1])
    run = replace(run, preset="cpu")
    check_changes(each, run)
    with pytest.raises(ReproductionError, match="rates has no effect"):
        each.run(run)
    setting = Setting(steps=5, batch_size=None, num_inducing=25)
    setting.check({"steps": 5, "batch_size": "all", "num_views": 3})
    with pytest.raises(ReproductionError, match="num_inducing=50 has no effect"):
        setting.check({"num_inducing": 50})
