"""Settings that ``--set`` changes: read as TOML, refused by name, in a folder of their own, and never scored."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gpzoo import kmeans
from gpzoo.inference import InducingGuide
from gpzoo.kernels import RBF
from gpzoo.models import gp_regression
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


UNKNOWN = [
    ("invariant", "toy", "num_inducin"),
    ("deep", "uci", "notes"),
    ("observations", "bursts", "start"),
    ("inducing", "chirp", "start"),
]


@pytest.mark.parametrize("paper, name, unknown", UNKNOWN)
def test_unknown_settings_are_refused_with_the_names_of_all(paper, name, unknown):
    with pytest.raises(ValueError, match=f"unknown setting '{unknown}', .* num_inducing, .*rate, .*steps"):
        check_changes(*run_of(paper, name, **{unknown: 5}))


@pytest.mark.parametrize(
    "example, good, bad",
    [
        (-3.0, [-2.0, 5.0, 0.0], [float("nan"), "low"]),
        (-3, [-2, 4], [2.5]),
        (0.5, [2, 0.1], [0.0, -1.0]),
        (None, [1, "a", [2]], []),
        ([], [[3], ["a"]], [3, []]),
        ([10, 20], [[5, 5], [1]], [5, [0], ["a"]]),
    ],
)
@pytest.mark.parametrize("name", ["low", "num_inducing", "weighted"])
def test_an_example_says_what_a_setting_of_an_own_paper_can_be(monkeypatch, name, example, good, bad):
    """A name that gpzoo's settings have, too, does not hide a list."""
    if name != "low" and not isinstance(example, list):
        return
    each, run = run_of("invariant", "toy")
    monkeypatch.setattr("gpzoo.reproductions.changes.settings_of", lambda *a: {name: example, "num_inducing_": 1})
    for value in good:
        check_changes(each, replace(run, changes={name: value}))
    for value in [*bad, parsed("x=2024-01-01")[1]][: 99 if example is not None else 0]:
        with pytest.raises(ValueError, match=f"{name} cannot be"):
            check_changes(each, replace(run, changes={name: value}))


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


NO_EFFECT = [
    ("deep", "timing", "quick", {"natural": 0.1}),
    ("deep", "uci-few-steps", "quick", {"decay": 0.9}),
    ("deep", "uci-few-steps", "quick", {"rate": 0.05}),
    ("deep", "uci", "quick", {"evaluations": 3}),
    ("latent_inputs", "digits", "quick", {"test_draws": 10}),
    ("several_functions", "two-functions", "quick", {"early": 1}),
    ("streaming", "halves", "quick", {"evaluations": 2}),
    ("invariant", "toy", "symmetric", {"collapsed": True, "rate": 0.05}),
    ("invariant", "toy", "plain", {"collapsed": True, "weighted": 5}),
    ("invariant", "toy", "symmetric", {"line_search": True, "decay": 0.9}),
]


@pytest.mark.parametrize("paper, name, variant, changes", NO_EFFECT)
def test_a_change_without_effect_is_refused_before_training(paper, name, variant, changes, monkeypatch, tmp_path):
    """A result must not name a setting that did not take part."""
    each, run = run_of(paper, name, **changes)
    variant = run.variant if variant == "quick" else variant
    run = replace(run, preset=each.presets[0], output=tmp_path, variant=variant)
    check_changes(each, run)
    monkeypatch.setattr("gpzoo.inference.training.fit", None)
    with pytest.raises(ReproductionError, match=f"--set {[*changes][-1]}=.* has no effect"):
        each.run(run)


@pytest.mark.parametrize(
    "name, value", [("units", "leakey"), ("network", "lenett"), ("models", ["svm"]), ("batch_size", "all")]
)
def test_choices_of_deep_kernels_are_refused_before_training(name, value):
    each, run = run_of("deep_kernel", "adult", **{name: value})
    check_changes(each, run)
    with pytest.raises(ValueError, match=name):
        each.run(run)


@pytest.mark.slow
def test_factors_of_the_learning_rate_name_parameters(standard_promotion):
    def trained(**factors):
        setting = Setting(steps=2, batch_size=None, factors=factors)
        svi = setting.svi(gp_regression, InducingGuide(gp_regression, kmeans(2)))
        state = svi.init(KEY, np.linspace(0, 1, 5)[:, None], np.ones(5), num_data=5)
        return svi.update(state, np.linspace(0, 1, 5)[:, None], np.ones(5), num_data=5)

    trained(f_inducing=0.1)
    with pytest.raises(ValueError, match=r"factors are of \['f_inducin'\]; Adam's parameters are \[.*'f_inducing'"):
        trained(f_inducin=0.1)


def test_a_changed_run_may_leave_out_numbers_that_the_paper_has(tmp_path):
    run = Run("toy", "squares", "plain", "paper", 3, tmp_path / "out", changes={"models": ["a"]})
    assert make_result(outcome(metrics={"error": 0.1}), run, PAPER)["metrics"] == {"error": 0.1}
    with pytest.raises(ReproductionError, match="did not report nlpp"):
        make_result(outcome(metrics={"error": 0.1}), replace(run, changes={}), PAPER)
