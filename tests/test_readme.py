"""README's program runs exactly as it is printed."""

import re

import numpyro
import pytest

from tests.conftest import ROOT

README = ROOT / "README.md"


@pytest.fixture
def float32():
    """What a reader's own interpreter has: no float64, NumPy's and JAX's usual promotion."""
    numpyro.enable_x64(False)
    import jax

    with jax.numpy_dtype_promotion("standard"):
        yield
    numpyro.enable_x64()


@pytest.mark.filterwarnings("default")
def test_the_readme_program_runs(float32, capsys):
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(program.splitlines()) <= 40
    names: dict = {}
    exec(compile(program, str(README), "exec"), names)
    forecast, rate = names["forecast"], names["rate"]
    truth = names["np"].exp(1.5 + 0.1 * names["new"][:, 0] + names["np"].sin(2 * names["np"].pi * names["new"][:, 0]))
    assert forecast.mean.shape == truth.shape
    # Far better than forecasting the mean of the past.
    error = ((forecast.mean - truth) ** 2).mean()
    assert error < 0.3 * ((rate.mean() - truth) ** 2).mean()
    assert "memory" in capsys.readouterr().out
