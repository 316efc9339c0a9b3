"""What README says is run: its program exactly as it is printed, its commands, its links."""

import re
import subprocess

import numpyro
import pytest

from tests.conftest import ROOT

README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def float32():
    """What a reader's own interpreter has: no float64, NumPy's and JAX's usual promotion."""
    numpyro.enable_x64(False)
    import jax

    with jax.numpy_dtype_promotion("standard"):
        yield
    numpyro.enable_x64()


def test_the_readme_is_read_in_a_minute():
    assert len(TEXT.splitlines()) <= 120
    assert [language for language, _ in BLOCKS] == ["", "python"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_readme_program_runs(float32, capsys):
    (program,) = (block for language, block in BLOCKS if language == "python")
    assert len(program.splitlines()) <= 40
    names: dict = {}
    exec(compile(program, str(README), "exec"), names)
    forecast, rate = names["forecast"], names["rate"]
    truth = names["np"].exp(1.5 + 0.1 * names["new"][:, 0] + names["np"].sin(2 * names["np"].pi * names["new"][:, 0]))
    assert forecast.mean.shape == truth.shape
    # Far better than forecasting the mean of the past.
    error = ((forecast.mean - truth) ** 2).mean()
    assert error < 0.3 * ((rate.mean() - truth) ** 2).mean()
    low, high = forecast.quantiles
    assert ((low <= truth) & (truth <= high)).mean() > 0.9
    assert "[" in capsys.readouterr().out


def test_the_readme_commands_are_there():
    """That ``make`` has the targets, and the command line the experiments; the demo itself is run by CONTRIBUTING."""
    from click.testing import CliRunner

    from gpzoo.reproductions.cli import main

    (commands,) = (block for language, block in BLOCKS if not language)
    targets = {*re.findall(r"^make (\w+)", commands, re.MULTILINE), *re.findall(r"`make (\w+)`", TEXT)}
    assert targets == {"demo", "test", "docs"}
    for target in targets:
        assert subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True).returncode == 0
    lines = re.findall(r"`gpzoo (\w.*?)`", TEXT)
    assert len(lines) == 2
    for line in lines:
        command, *arguments = line.split()
        listed = CliRunner().invoke(main, ["list", "--all"])
        assert listed.exit_code == 0
        assert command in ("list", "reproduce")
        assert all(word in listed.output for word in arguments if not word.startswith("-"))


def test_the_readme_links_are_there():
    for target in re.findall(r"\]\(((?!https?:)[^)#]+)", TEXT):
        assert (ROOT / target).exists(), target
