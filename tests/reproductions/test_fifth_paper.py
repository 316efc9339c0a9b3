"""A paper that gpzoo does not know brings its data set and its experiment in one file of 60 lines, beside a TOML."""

import importlib
import json
import sys
from pathlib import Path

import arviz as az
import numpy as np
import pytest

from gpzoo.reproductions import cli, datasets
from gpzoo.reproductions.datasets import dataset, registry


@pytest.fixture(scope="module")
def fifth_paper():
    """The paper's file; other tests list the data sets of gpzoo alone."""
    yield importlib.import_module("tests.reproductions.fifth_paper")
    del registry._KNOWN["waves"], sys.modules["tests.reproductions.fifth_paper"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what ArviZ imports
def test_a_paper_from_outside_runs_from_the_command_line(fifth_paper, standard_promotion, tmp_path, capsys):
    assert len(Path(fifth_paper.__file__).read_text(encoding="utf-8").splitlines()) <= 60

    def ran(variant):
        with pytest.raises(SystemExit, match="0"):
            cli.script_main(
                fifth_paper.EXPERIMENTS, ["waves", "--variant", variant, "--output", str(tmp_path / variant)]
            )
        return json.loads((tmp_path / variant / "result.json").read_text())

    found = {variant: ran(variant) for variant in ("5", "25")}
    assert {"rmse", "test_log_likelihood", "test_log_likelihood_se", "elbo"} == set(found["25"]["metrics"])
    # Five points cannot follow nine waves, and the bound says so too.
    few, many = (found[variant]["metrics"] for variant in ("5", "25"))
    assert 0.15 < many["rmse"] < 0.35 < few["rmse"] and many["elbo"] > few["elbo"] + 50
    assert found["25"]["settings"]["start"] == {"noise_variance": 0.1} and found["25"]["paper_metrics"]["rmse"] == 0.2
    assert [point["step"] for point in found["25"]["curve"]] == [100, 200]
    written = {path.name for path in (tmp_path / "5").iterdir()}
    assert {"learning_curve.png", "test_curves.png"} <= written and "rmse" in capsys.readouterr().out
    # Started again, there is nothing left to train, and its curve is not lost.
    again = ran("25")
    assert "already finished at step 200; nothing to train" in " ".join(capsys.readouterr().out.split())
    assert all(again[name] == found["25"][name] for name in ("metrics", "curve", "commit", "steps"))
    assert again["resumed_from"] == [200]
    # The posterior is one for the ArviZ that is installed.
    posterior = az.from_netcdf(str(tmp_path / "5" / "posterior.nc"))["posterior"]
    assert posterior and all(np.isfinite(posterior[name]).all() for name in posterior)


def test_its_data_set_is_one_of_the_list(fifth_paper):
    entry = next(entry for entry in datasets.available() if entry.name == "waves")
    assert entry.present and "two waves" in entry.description
    assert datasets.load("waves", rows=20, seed=1).sizes == {"train": 16, "test": 4, "input_shape": [1]}
    with pytest.raises(TypeError, match="no option 'split'; its options are: rows, seed"):
        datasets.load("waves", split=1)
    with pytest.raises(ValueError, match="there is a data set 'waves' already"):
        dataset("waves", "others")(fifth_paper.waves)
