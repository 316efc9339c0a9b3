"""Generated stand-ins for data sets that are large or not free, with the same columns, types and units, but few rows.

They are for tests and quick runs, and ``standins.toml`` describes them. Ranges are plausible, and a nonlinear model
learns the targets better than a linear one. Results on stand-ins say nothing about the original data sets, so
``Dataset.name`` ends in ``-generated``. A tenth of the rows, drawn at random, is for testing.
"""

from __future__ import annotations

import operator
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpzoo._digests import fingerprint
from gpzoo.reproductions.datasets.icml2007 import draw_rectangles
from gpzoo.reproductions.datasets.in_memory import Dataset, random_split
from gpzoo.reproductions.datasets.registry import dataset

#: The descriptions of stand-ins, by name of the original data set.
STAND_INS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("standins.toml").read_text("utf-8"))

#: Inputs ``[N, ...]``, and targets ``[N]``, which are integers for classes.
Drawn = tuple[np.ndarray, np.ndarray]


def stand_in(original: str, rows: int, seed: int = 0) -> Dataset:
    """Draw a stand-in. Another machine gives the same rows up to rounding.

    Args:
        original: the data set that the stand-in replaces.
        rows: number of training and test rows together.
        seed: seed of the draw and of the split.

    Returns:
        A data set with float32 inputs. Targets of regression are float32, and class labels are int32.

    Raises:
        ValueError: if there are fewer than 20 rows.
    """
    facts, name, rows = STAND_INS[original], f"{original}-generated", operator.index(rows)
    if rows < 20:
        raise ValueError(f"rows must be at least 20, training and test together, got {rows}.")
    draw = _table if "columns" in facts else _rectangles if original == "rectangles-images" else _stripes
    # RandomState, because its streams are the same in all NumPy versions. Streams of default_rng are not.
    X, y = draw(np.random.RandomState(operator.index(seed)), facts, rows)
    X, y = X.astype(np.float32), y.astype(np.float32 if "target" in facts else np.int32)
    sha256 = {name: fingerprint({"X": X, "y": y})}
    return Dataset(name, **random_split(X, y, seed), source="generated", sha256=sha256)


def _table(rng: np.random.RandomState, facts: dict[str, Any], rows: int) -> Drawn:
    """Independent columns. The target depends on the first four columns, on a product of two of them, and on noise."""
    from scipy import stats

    kinds = [kind for count, *kind in facts["columns"] for _ in range(count)]
    X = [getattr(stats, kind).ppf(rng.random_sample(rows), *args) for kind, *args in kinds]
    a, b, c, d = ((x - x.mean()) / x.std() for x in X[:4])
    signal = 2 * np.tanh(2 * a) + b * c + np.sin(2 * d) + 0.3 * rng.standard_normal(rows)
    if "target" not in facts:
        return np.stack(X, axis=1), signal > 0
    mean, spread = facts["target"]
    return np.stack(X, axis=1), np.rint(mean + spread * signal / 2).clip(*facts["within"])


def _rectangles(rng: np.random.RandomState, facts: dict[str, Any], rows: int) -> Drawn:
    """Rectangles, 1 if taller than wide. The noise inside is lighter or darker than the noise around them."""
    outline, y = draw_rectangles(rng, rows)
    inside = np.maximum.accumulate(outline, axis=2) * np.maximum.accumulate(outline[:, :, ::-1], axis=2)[:, :, ::-1]
    light = 0.5 + 0.09 * rng.choice([-1, 1], (rows, 1, 1, 1))
    images = light * inside + (1 - light) * (1 - inside) + 0.2 * rng.standard_normal(inside.shape)
    return images.clip(0, 1), y


def _stripes(rng: np.random.RandomState, facts: dict[str, Any], rows: int) -> Drawn:
    """Stripes in any colours at any position. Each class has one of five directions, and a width."""
    height, width, channels = facts["shape"]
    labels = (rng.random_sample(rows) * facts["classes"]).astype(np.int32)
    angle = np.pi / 5 * (labels % 5) + 0.1 * rng.standard_normal(rows)
    waves = 2.0 ** (1 + labels // 5) * (1 + 0.1 * rng.standard_normal(rows))
    down, across = np.mgrid[:height, :width] / height
    along = np.cos(angle)[:, None, None] * across + np.sin(angle)[:, None, None] * down
    phase = 2 * np.pi * rng.random_sample(rows)
    light = 0.5 + 0.5 * np.sin(2 * np.pi * waves[:, None, None] * along + phase[:, None, None])
    colours = rng.random_sample((2, rows, 1, 1, channels))
    images = colours[0] + (colours[1] - colours[0]) * light[..., None]
    return (images + 0.1 * rng.standard_normal(images.shape)).clip(0, 1), labels


for _name, _facts in STAND_INS.items():
    _described = f"a small generated stand-in for {_name} (options rows, seed)"
    dataset(f"{_name}-generated", _described)(partial(stand_in, _name, rows=_facts.get("rows", 5_000)))
