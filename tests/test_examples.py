"""The examples, run whole with tiny arguments, as a user runs them."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


#: The longest examples, whose models other quick tests train.
LONG = ("time_series", "hyperparameters", "counts")


@pytest.mark.slow_but(example=[path for path in EXAMPLES if path.stem not in LONG])
@pytest.mark.filterwarnings("ignore")  # of trainings that are much too short
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example, monkeypatch, capsys, standard_promotion):
    text = example.read_text(encoding="utf-8")
    (option,) = re.findall(r'"(--\w+)"', text)
    assert f"python examples/{example.name} [{option} " in text
    monkeypatch.setattr(sys, "argv", [str(example), option, "4"])
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out
    assert said and "nan" not in said.lower()


def test_the_readme_names_every_example():
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    assert len(EXAMPLES) >= 8 and all(f"(examples/{path.name})" in readme for path in EXAMPLES)
