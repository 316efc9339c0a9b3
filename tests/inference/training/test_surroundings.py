"""What a training prints: what is trained, on what, from where on."""

from types import SimpleNamespace

import jax
import pytest

from gpzoo.inference.training import _progress as surroundings
from gpzoo.inference.training._progress import progress_bar


@pytest.mark.parametrize(
    ("wanted", "total", "done", "said"),
    [
        (True, 1600, 0, "Training on the CPU; its evidence lower bound (ELBO) should rise."),
        ("weighted-rbf", 1600, 0, "Training 'weighted-rbf' on the CPU; its evidence lower bound (ELBO) should rise."),
        (
            "[b]a[/b]",
            9,
            1,
            "Training '[b]a[/b]' on the CPU, resumed at step 1; its evidence lower bound (ELBO) should rise.",
        ),
        (
            True,
            16_000,
            4_000,
            "Training on the CPU, resumed at step 4,000; its evidence lower bound (ELBO) should rise.",
        ),
        ("dgp2", 1600, 1600, "Training 'dgp2' is already finished at step 1,600; nothing to train."),
        (False, 1600, 0, ""),
        (True, 0, 0, ""),
    ],
)
def test_the_first_line_says_what_is_trained_and_from_where_on(capsys, wanted, total, done, said):
    with progress_bar(wanted, total, done):
        pass
    text = capsys.readouterr().out
    # A bar is drawn of a training that has steps to take, and of no other.
    assert text.startswith(said) and (f"{done}/{total}" in text) == (done < total and bool(wanted))


def test_an_accelerator_is_named(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="gpu", device_kind="NVIDIA A100")])
    assert surroundings.on_device() == "a GPU (NVIDIA A100)"
