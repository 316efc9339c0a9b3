"""The paper of the how-to page, which gpzoo does not know, in every command: two files of a hundred lines in all."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import arviz as az
import numpy as np
import pytest
from click.testing import CliRunner

from gpzoo.reproductions import cli, datasets, figures
from gpzoo.reproductions import experiment as experiments
from gpzoo.reproductions.claims import METRICS, load
from gpzoo.reproductions.datasets import dataset, registry
from gpzoo.reproductions.execute import execute
from gpzoo.reproductions.experiment import ReproductionError, Run, module_of_file
from gpzoo.reproductions.many_runs import has_result
from gpzoo.reproductions.records import Records
from gpzoo.reproductions.training import Curve, over_splits
from tests.conftest import ROOT
from tests.reproductions.test_execute import checkpointed, outcome

PAGE = ROOT / "docs/how_to/own_paper.md"
FILES = dict(re.findall(r"%%writefile (\S+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))


def write(folder, name="waves", **texts):
    for kind in ("py", "toml"):
        (folder / f"{name}.{kind}").write_text(texts.get(kind, FILES[f"waves.{kind}"]), encoding="utf-8")
    return folder / f"{name}.py"


@pytest.fixture(scope="module")
def waves(tmp_path_factory):
    """The paper's module; other tests list the data sets of gpzoo alone."""
    yield module_of_file(write(tmp_path_factory.mktemp("paper")))
    experiments._imported.cache_clear()
    del registry._KNOWN["two-waves"], sys.modules["waves"]


@pytest.fixture
def gpzoo_command(waves, monkeypatch, tmp_path):
    """``gpzoo_command("reproduce waves points")`` with ``--paper``, in an empty folder; what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(command, status=0):
        done = CliRunner().invoke(cli.main, [*command.split(), "--paper", waves.__file__])
        assert done.exit_code == status, done.output
        return " ".join(done.output.split())

    return call


def test_the_page_has_a_short_paper():
    assert {name: len(text.splitlines()) <= 60 for name, text in FILES.items()} == {
        "waves.toml": True,
        "waves.py": True,
    }


def test_its_data_set_and_experiment_are_in_the_lists(waves, gpzoo_command):
    assert "two waves with noise" in gpzoo_command("data") and "160 training" in gpzoo_command("data two-waves")
    assert "points Two waves by 5" in gpzoo_command("list") and "25 rmse 0.26 (default)" in gpzoo_command("list waves")
    assert datasets.load("two-waves", rows=20, seed=1).sizes == {"train": 16, "test": 4, "input_shape": [1]}
    with pytest.raises(TypeError, match="no option 'split'; its options are: rows, seed"):
        datasets.load("two-waves", split=1)
    with pytest.raises(ValueError, match="there is a data set 'two-waves' already"):
        dataset("two-waves", "others")(waves.two_waves)


def test_its_settings_are_changed_by_name(waves, gpzoo_command, tmp_path):
    run = Run("waves", "points", "25", "paper", 0, tmp_path, source=waves.PAPER, changes={"num_inducing": 50})
    assert run.options["num_inducing"] == 50 and run.command.endswith(f"--set num_inducing=50 --paper {waves.__file__}")
    for command in ("reproduce waves points", "sweep waves"):
        assert "points are: batch_size" in gpzoo_command(f"{command} --set num_inducin=50", 2)
        assert "num_inducing cannot be 0" in gpzoo_command(f"{command} --set num_inducing=0", 2)


def test_what_is_kept_depends_on_the_papers_files(waves, tmp_path):
    """As they were when they were read, which is what runs."""
    made, data = {}, datasets.load("two-waves")
    for name, changed in (("same", {}), ("code", {"py": "# changed\n"}), ("facts", {"toml": "# changed\n"})):
        (folder := tmp_path / name).mkdir()
        path = write(folder, **{kind: FILES[f"waves.{kind}"] + text for kind, text in changed.items()})
        run = Run("waves", "points", "25", "paper", 0, tmp_path, source=load(path.with_suffix(".toml")))
        made[name] = run.made_by({}, data)
        path.write_text("")
        assert run.made_by({}, data) == made[name]
    own = Run("waves", "points", "25", "paper", 0, tmp_path, source=waves.PAPER).made_by({}, data)
    assert own == made["same"] and len({each["paper"] for each in made.values()}) == 3
    assert made["facts"]["program"] == own["program"] != made["code"]["program"]


SETTINGS = [
    ("[rate]", "rate = 0.05\nevaluations", "rate = 0.01\nevaluations"),
    ("[steps]", "steps = 2_000", "steps = 4_000"),
    ("[num_inducing]", "25 = {num_inducing = 25}", "25 = {num_inducing = 30}"),
    ("[early]", "evaluations = 4", "evaluations = 4\nearly = 1"),
    ("", "[[tables]]", "[[tables]] # a comment"),
]


@pytest.mark.parametrize("name, old, new", SETTINGS)
def test_a_folder_is_of_the_settings_of_one_toml_file(waves, tmp_path, name, old, new):
    """Neither training goes on with other settings, nor are results of both averaged; other changes are recorded."""
    trained, facts = [], FILES["waves.toml"]
    first, other = (load(write(tmp_path, toml=text).with_suffix(".toml")) for text in (facts, facts.replace(old, new)))

    def train(run):
        trained.append(run)
        checkpointed(run, 500)
        return outcome(metrics={"rmse": 0.3})

    (points,) = waves.EXPERIMENTS
    run = Run("waves", "points", "25", "paper", 0, tmp_path / "out", source=first)
    before = execute(replace(points, source=first, run=train), run)
    again = replace(run, source=other)
    assert has_result(run) and has_result(again) is (not name)
    if name:
        with pytest.raises(ReproductionError, match=rf"500 steps .* other settings \({name[1:-1]}\): choose another"):
            execute(replace(points, source=other, run=train), again)
        assert len(trained) == 1 and has_result(run)
        (run.checkpoint / "500.checkpoint").unlink()  # nothing is left that could go on
    after = execute(replace(points, source=other, run=train), again)
    assert has_result(again) and before["versions"] == after["versions"]
    assert (run.output / "earlier_result.json").is_file() is bool(name)


def test_a_stopped_run_with_other_settings_leaves_no_result_of_the_earlier_settings(waves, tmp_path):
    (points,), facts = (
        waves.EXPERIMENTS,
        FILES["waves.toml"].replace("rate = 0.05\nevaluations", "rate = 0.01\nevaluations"),
    )
    runs = [Run("waves", "points", "25", "paper", seed, tmp_path / str(seed), source=waves.PAPER) for seed in (0, 1)]
    for run in runs:
        execute(replace(points, run=lambda run: outcome(metrics={"rmse": 0.3})), run)
    assert [
        len(each.results) for each in Records(tmp_path, (points,)).compared("waves", "points", "25", ["paper"])
    ] == [2]

    def stopped(run):
        raise KeyboardInterrupt

    other = load(write(tmp_path, toml=facts).with_suffix(".toml"))
    execute(replace(points, source=other, run=lambda run: outcome(metrics={"rmse": 0.1})), runs[0])
    with pytest.raises(KeyboardInterrupt):
        execute(replace(points, source=other, run=stopped), runs[1])
    found = list(Records(tmp_path, (points,)).compared("waves", "points", "25", ["paper"]))
    assert [each.ours("rmse").value for each in found] == [0.1]


def test_a_changed_module_is_evaluated_again_and_not_averaged_with_the_old_one(waves, tmp_path):
    (points,), other = waves.EXPERIMENTS, write(tmp_path, py=FILES["waves.py"] + "# changed\n").with_suffix(".toml")
    first, second = waves.PAPER, load(other)
    found = []

    def train(run):
        checkpointed(run, 500)
        curve = Curve(run.curve, run.made_by({}, datasets.load("two-waves")), lambda params: {"rmse": 0.3 + len(found)})
        if 500 not in curve.points:
            curve(500, 1.0, {})
        found.append(curve.points[500]["rmse"])
        return outcome(metrics={"rmse": found[-1]})

    run = Run("waves", "points", "25", "paper", 0, tmp_path / "0", source=first)
    execute(replace(points, run=train), run)
    again = replace(run, source=second)
    assert has_result(run) and not has_result(again)
    with pytest.warns(RuntimeWarning, match=r"continues 500 steps of a training with another waves.py"):
        after = execute(replace(points, source=second, run=train), again)
    assert found == [0.3, 1.3] and has_result(again) and not has_result(run)
    assert after["versions"]["waves.py"] == f"sha256 {first.program}, {second.program}"
    execute(replace(points, run=train), replace(run, seed=1, output=tmp_path / "1"))
    with pytest.raises(ReproductionError, match="program is not that of seed 0"):
        Records(tmp_path, (points,))


def test_folders_of_stopped_runs_alone_have_no_results(waves, tmp_path):
    (points,) = waves.EXPERIMENTS
    (tmp_path / "0").mkdir()
    for name in ("run", "curve"):
        (tmp_path / "0" / f"{name}.json").write_text("{}")
    assert not Records(tmp_path, (points,)).found


def test_a_run_without_a_bound_is_complete(waves, tmp_path):
    (points,) = waves.EXPERIMENTS
    run = Run("waves", "points", "25", "paper", 0, tmp_path / "0", source=waves.PAPER)
    execute(replace(points, run=lambda run: outcome(metrics={"rmse": 0.3}, elbo=())), run)
    assert has_result(run) and not (run.output / "learning_curve.png").exists()


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('"0.77"]', '"0.77 0.26"]', "table 1, row '5 points': 1 columns, but 2 numbers"),
        ('"0.77"]', "0.77]", "table 1, row '5 points': write numbers as the paper prints them, in quotes, not 0.77"),
        ('"5", "0.77"]', '"5 points", "0.77"]', "the key '5 points' must be one word"),
    ],
)
def test_rows_that_are_no_rows_are_named(tmp_path, old, new, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        load(write(tmp_path, toml=FILES["waves.toml"].replace(old, new)).with_suffix(".toml"))


def test_the_direction_of_a_metric_is_a_known_one(tmp_path):
    text = FILES["waves.toml"] + '[metrics.less_known]\nmeans = "lower is better"\nbetter = "less"\n'
    with pytest.raises(ValueError, match="better must be 'lower' or 'higher', not 'less'"):
        load(write(tmp_path, toml=text).with_suffix(".toml"))


def test_models_of_one_run_are_compared_split_by_split(waves, tmp_path):
    """An experiment over splits needs no settings of its own for the judge ``pairs``."""

    def one(run):
        return outcome(metrics={"a_rmse": 0.3 + run.split, "b_rmse": 0.4 + run.split, "rmse": 0.3})

    (points,) = waves.EXPERIMENTS
    run = Run("waves", "points", "25", "paper", 0, tmp_path / "0", source=waves.PAPER)
    execute(replace(points, run=lambda run: over_splits(run, 3, one)), run)
    (found,) = Records(tmp_path, (points,)).compared("waves", "points", "25", ["paper"])
    lead = found.lead("rmse", "a", "b")
    assert lead.value == pytest.approx(0.1) and lead.error < 1e-9  # the errors of both are far larger


def test_pages_of_gpzoo_are_not_replaced(waves, gpzoo_command, tmp_path):
    (tmp_path / "runs").mkdir()
    page = tmp_path / "docs/results/deep.md"
    page.parent.mkdir(parents=True)
    page.write_text("gpzoo's")
    said = gpzoo_command(f"results --folder {tmp_path / 'runs'} --output {tmp_path}", 2)
    assert "has the pages of gpzoo's own papers" in said
    page.unlink()
    gpzoo_command(f"results --folder {tmp_path / 'runs'} --output {tmp_path}")
    assert not (tmp_path / "RESULTS.md").exists()
    assert "we usually chose our settings by hand" not in (page.parent / "waves.md").read_text("utf-8").lower()


def test_a_metric_of_ones_own_is_drawn(waves, monkeypatch):
    monkeypatch.setitem(METRICS, "surprise", {"means": "surprise", "drawn": "surprise"})
    points = [{"step": step, "seconds": 1.0 * step, "surprise": 1.0 / step} for step in (1, 2)]
    (axes,) = figures.test_curves({"25": points}).axes
    assert axes.get_ylabel() == "surprise"


def test_numbers_may_have_spaces(tmp_path):
    text = FILES["waves.toml"].replace('"0.77"]', '"0.77 ± 0.02"]').replace('"0.26"]', '"26 %"]')
    (few, many) = [x.printed for x in load(write(tmp_path, toml=text).with_suffix(".toml")).claims if x.printed]
    assert (few, few.deviation, few.of_mean, many) == (0.77, 0.02, False, 0.26)
    mean = text.replace('title = "two waves"', 'title = "two waves"\nof_mean = true')
    assert load(write(tmp_path, toml=mean).with_suffix(".toml")).claims[0].printed.of_mean


def test_a_file_that_is_no_paper_is_refused(tmp_path, waves):
    for name, told, texts in (
        ("deep", "another module or paper 'deep'", {}),
        ("numpy", "another module or paper 'numpy'", {}),
        ("waves", "another module or paper 'waves'", {}),
        ("empty", "EXPERIMENTS must name", {"py": ""}),
        ("elsewhere", "EXPERIMENTS must name", {"py": "from gpzoo.reproductions.deep import EXPERIMENTS"}),
    ):
        with pytest.raises(ReproductionError, match=told):
            module_of_file(write(tmp_path, name, **texts))
    (tmp_path / "waves.toml").unlink()
    for path in (tmp_path / "waves.py", tmp_path / "empty.toml"):
        with pytest.raises(ReproductionError, match=r"with NAME\.toml beside it"):
            module_of_file(path)
    facts = FILES["waves.toml"]
    for name, told, texts in (
        ("broken", "ModuleNotFoundError.*nothing_of_this_name", {"py": "import nothing_of_this_name"}),
        ("syntax", "TOMLDecodeError", {"toml": "title = "}),
        (
            "variant",
            "points 30 rmse: there is no such variant",
            {"toml": facts.replace('"25", "0', '"30", "0')},
        ),
        (
            "settings",
            "settings of '30', which is no variant of points",
            {"toml": facts.replace("variants.5 =", "variants.30 =")},
        ),
        ("chosen", "unexpected keyword argument 'how'", {"toml": 'by_hand = {what = "x", how = "y"}\n' + facts}),
        (
            "preset",
            r"no settings\.cpu in \[experiments\.points\]",
            {"toml": facts.replace('"quick"', '"cpu"')},
        ),
    ):
        text = FILES["waves.py"].replace('"two-waves", "', f'"{name}", "')
        path = write(tmp_path, name, **{"py": text, **texts})
        for _ in range(2):
            with pytest.raises(ReproductionError, match=told):
                module_of_file(path)
            registry._KNOWN.pop(name, None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what ArviZ imports
def test_it_goes_through_all_commands(waves, gpzoo_command, standard_promotion):
    shown = gpzoo_command("reproduce waves points --variant 5 --preset paper")
    assert "rmse" in shown and "0.77" in shown and "undecided" in shown
    folder = Path("runs/waves-points-5-paper-seed0")
    result = json.loads((folder / "result.json").read_text())
    assert {"rmse", "test_log_likelihood", "test_log_likelihood_se", "elbo"} == set(result["metrics"])
    assert result["settings"]["num_inducing"] == 5 and result["paper_metrics"]["rmse"] == 0.77
    assert [point["step"] for point in result["curve"]] == [500, 1000, 1500, 2000]
    assert result["versions"]["waves.py"] == f"sha256 {waves.PAPER.program}"
    assert {"learning_curve.png", "test_curves.png"} <= {path.name for path in folder.iterdir()}
    posterior = az.from_netcdf(str(folder / "posterior.nc"))["posterior"]
    assert posterior and all(np.isfinite(posterior[name]).all() for name in posterior)

    # What has run is not run again. If it is, it is not trained again, and its curve is not lost.
    gpzoo_command("compare waves points --preset paper")
    assert Path("runs/waves-points-paper-seed0.html").is_file()
    assert json.loads((folder / "result.json").read_text()) == result
    (points,) = waves.EXPERIMENTS
    claimed = replace(waves.PAPER, sha256="0" * 64)  # other claims, the same program
    points = replace(points, source=claimed, run=lambda run: waves.points.run(replace(run, source=claimed)))
    again = execute(points, Run("waves", "points", "5", "paper", 0, folder))
    assert all(again[name] == result[name] for name in ("metrics", "curve", "commit", "steps"))
    assert again["resumed_from"] == [2000] and len(again["curve"]) == 4

    swept = gpzoo_command("sweep waves --variants 25 --preset paper --seeds 0-1")
    assert "points 25, seed 0: has a result" in swept and "points 25, seed 1: done" in swept
    assert "means over 2 seeds" in swept and re.search(r"25 2 0\.258\d* ± 0\.000", swept)
    swept = gpzoo_command("sweep waves --variants 25 --preset paper --set num_inducing=15 --set steps=100")
    changed = json.loads(Path("runs/waves-points-25-paper-seed0-num_inducing=15-steps=100/result.json").read_text())
    assert (changed["settings"]["num_inducing"], changed["steps"]) == (15, 100)
    assert changed["changes"] == {"num_inducing": 15, "steps": 100} and set(changed["paper_metrics"].values()) == {None}
    assert "changed: num_inducing = 15, steps = 100" in swept

    # The report of a changed run is of the program with its settings, at test rows alone.
    for run in (folder, Path("runs/waves-points-25-paper-seed0-num_inducing=15-steps=100")):
        gpzoo_command(f"inspect {run}")
        words = re.sub(r"<[^>]*>", " ", (run / "report.html").read_text(encoding="utf-8"))
        assert "40 rows" in words and ("beside the paper" in words) == (run == folder)
    assert "cannot be had" not in words

    assert "docs/results/waves.md" in gpzoo_command("results")
    page = Path("docs/results/waves.md").read_text(encoding="utf-8")
    assert re.search(r"two waves, 25 points: RMSE .* \(2 seeds\) .*\*\*matched\*\*", page)
    assert re.search(r"more points raise the bound .*\*\*it holds\*\*", page) and "num_inducing=15" not in page
    assert "../../runs/waves/points-paper.png" in page and Path("runs/waves/points-paper.png").is_file()
    assert "3 files, 3 claims, 3 of them with a result" in gpzoo_command("results --check")


@pytest.mark.slow
def test_its_experiments_run_as_a_script(waves, standard_promotion, tmp_path, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.script_main(waves.EXPERIMENTS, ["points", "--set", "steps=20", "--output", str(tmp_path / "out")])
    assert "rmse" in capsys.readouterr().out and (tmp_path / "out" / "result.json").is_file()
