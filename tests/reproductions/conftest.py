"""What tests of experiments share: some rows in the form of any data set, and the same runs with other settings."""

import numpy as np
import pytest

from gpzoo.errors import DatasetError
from gpzoo.inference import Trained
from gpzoo.reproductions import datasets
from gpzoo.reproductions.experiment import Run
from tests.programs import nothing_exported

#: Shape of an input and number of classes, by how the name of a data set begins; the others have numbers as targets.
FORMS = {
    **dict.fromkeys(("digits", "mnist", "imagenet20"), ((8, 8, 1), 10)),
    "cifar10": ((8, 8, 3), 10),
    "rectangles": ((8, 8, 1), 2),
    **dict.fromkeys(("adult", "airline-delayed", "covtype", "diabetes", "higgs"), ((3,), 2)),
}


@pytest.fixture
def small(monkeypatch, standard_promotion):
    """Sixty rows for training and twenty for testing in place of every data set, of which these names were asked for.

    Nothing is exported, which takes long, and other tests see to that.
    """
    loaded = []

    def load(name, split=0, seed=0, **options):
        loaded.append(name)
        if name == "mnist-rot":
            raise DatasetError("it is absent")
        shape, classes = next((form for start, form in FORMS.items() if name.startswith(start)), ((3,), 0))
        rng, image, of = np.random.default_rng((split or 0) + seed), len(shape) == 3, np.arange(80)
        X = rng.uniform(size=(80, *shape)).astype(np.float32) if image else 5 + rng.normal(size=(80, 3)) * [1, 10, 100]
        if classes:
            y = (of % classes).astype(np.int32)
        else:
            # Grades of wine do not start at 0.
            y = 3.0 + of % 4 if "wine" in name else 50 + 20 * np.sin(X[:, 0]) + 2 * X[:, 1]
        return datasets.Dataset(name, X[:60], y[:60], X[60:], y[60:], "generated", {name: "0" * 64})

    monkeypatch.setattr(datasets, "load", load)
    monkeypatch.setattr(datasets, "available", list)
    monkeypatch.setattr(datasets.Dataset, "subset", lambda self, *counts, **options: self)
    monkeypatch.setattr(Trained, "to_arviz", nothing_exported)
    return loaded


@pytest.fixture
def shortened(monkeypatch, standard_promotion):
    """``shortened(steps=3)``: other values of settings that experiments have; all rows of a minibatch stay all."""
    real = Run.options.fget

    def make(**changes):
        def changed(found):
            return {
                name: changed(x) if isinstance(x, dict) else x if x == "all" else changes.get(name, x)
                for name, x in found.items()
            }

        monkeypatch.setattr(Run, "options", property(lambda run: changed(real(run))))

    return make
