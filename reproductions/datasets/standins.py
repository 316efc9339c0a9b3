"""Generated stand-ins for data sets that are large or not free: the same columns, types and units, few rows, no file.

They are for tests and quick runs. Ranges are plausible, and a nonlinear model learns the targets better than a linear
one. Results on them say nothing about the original data sets, so that ``Dataset.name`` ends in ``-generated``. A tenth
of the rows, drawn at random, is for testing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from gpzoo.reproductions.datasets.in_memory import Dataset, random_split
from gpzoo.reproductions.datasets.registry import dataset, load
from gpzoo.reproductions.datasets.taxi import LONGEST, SHORTEST, calendar
from gpzoo.tables.files import fingerprint

# Days from which flights of 2008 and journeys of 2009 to 2015 are drawn.
_FLIGHT_DAYS = np.arange("2008-01-01", "2009-01-01", dtype="datetime64[D]")
_JOURNEY_DAYS = np.arange("2009-01-01", "2016-01-01", dtype="datetime64[D]")


#: Inputs ``[N, ...]``, and targets ``[N]``, integer ones for classes.
Drawn = tuple[np.ndarray, np.ndarray]
Draw = Callable[[np.random.RandomState, int], Drawn]


def _stand_in(original: str, usual: int = 5_000) -> Callable[[Draw], Draw]:
    """Add the data set that a function draws to the list; ``usual`` is its usual number of rows.

    Its options are ``rows``, training and test rows together, at least 20; and ``seed``, of the draw and of the split.
    Another machine gives the same rows up to rounding.
    """
    name = f"{original}-generated"

    def enter(draw: Draw) -> Draw:
        @dataset(name, f"a small generated stand-in for {original} (options rows, seed)")
        def stand_in(rows: int = usual, seed: int = 0) -> Dataset:
            rows = operator.index(rows)
            if rows < 20:
                raise ValueError(f"rows must be at least 20, training and test together, got {rows}.")
            # RandomState, because its streams are the same in all NumPy versions; those of default_rng are not.
            X, y = draw(np.random.RandomState(operator.index(seed)), rows)
            X, y = X.astype(np.float32), y if np.issubdtype(y.dtype, np.integer) else y.astype(np.float32)
            sha256 = {name: fingerprint({"X": X, "y": y})}
            return Dataset(name, **random_split(X, y, seed), source="generated", sha256=sha256)

        return draw

    return enter


@_stand_in("year")
def year(rng: np.random.RandomState, rows: int) -> Drawn:
    """Generate songs like those of YearPredictionMSD: float32 ``[N, 90]``, and years 1922 to 2011, float32 ``[N]``.

    Six hidden traits of a song determine its 12 means and 78 covariances of timbre up to noise, and its year.
    """
    traits = rng.standard_normal((rows, 6))
    hidden = np.tanh(traits @ rng.standard_normal((6, 90)) / 2)
    mean = np.concatenate([[43.0], np.zeros(11), np.full(12, 400.0), np.zeros(66)])
    scale = np.concatenate([[6.0], np.linspace(50.0, 8.0, 11), np.full(12, 250.0), np.full(66, 150.0)])
    X = mean + scale * (0.8 * hidden + 0.4 * rng.standard_normal((rows, 90)))
    trend = 5 * np.tanh(traits[:, 0]) + 3 * traits[:, 1] * traits[:, 2] + 3 * np.sin(2 * traits[:, 3])
    released = 2004 + trend - rng.gamma(2.0, 2.5, rows)
    return X, np.clip(np.rint(released), 1922, 2011)


@_stand_in("airline")
def airline(rng: np.random.RandomState, rows: int) -> Drawn:
    """Generate US flights of 2008: float32 ``[N, 8]``, features and units of ``large.airline``.

    Delays in minutes grow over the day, more so in winter and summer and at the end of the week, and are longer for old
    planes; a few are very long.
    """
    _, weekday, day, month = calendar(_FLIGHT_DAYS[(rng.random_sample(rows) * len(_FLIGHT_DAYS)).astype(int)])
    departure = np.rint(300 + 1080 * rng.beta(1.3, 1.2, rows))
    distance = np.rint(np.clip(rng.gamma(1.7, 420.0, rows), 60, 4900))
    air_time = np.rint(distance / 7.6 + 18 + 6 * rng.standard_normal(rows)).clip(15)
    arrival = (departure + air_time + np.rint(25 + 5 * rng.standard_normal(rows))) % 1440
    age = np.rint(np.clip(rng.gamma(2.2, 5.0, rows), 0, 50))
    season = 1 + 0.8 * np.cos(4 * np.pi * (month - 1) / 12)
    into_day = (departure - 300) / 1080
    delay = 35 * into_day**2 * season * np.where(weekday >= 5, 1.5, 1.0) + 0.3 * age - 6
    delay += rng.gamma(0.6, 15.0, rows) - 9 + 4 * rng.standard_normal(rows)
    X = np.stack([month, day, weekday, departure, arrival, air_time, distance, age], axis=1)
    return X, np.rint(delay)


@dataset("airline-delayed-generated", "a small generated stand-in for airline-delayed (options rows, seed)")
def airline_delayed(rows: int = 5_000, seed: int = 0) -> Dataset:
    """The flights of :func:`airline`, with int32 labels ``[N]``, 1 if the delay is more than 0 minutes."""
    name, flights = "airline-delayed-generated", load("airline-generated", rows=rows, seed=seed)
    y_train, y_test = ((y > 0).astype(np.int32) for y in (flights.y_train, flights.y_test))
    arrays: dict[str, Any] = {
        "X_train": flights.X_train,
        "y_train": y_train,
        "X_test": flights.X_test,
        "y_test": y_test,
    }
    return Dataset(name, **arrays, source="generated", sha256={name: fingerprint(arrays)})


@_stand_in("higgs")
def higgs(rng: np.random.RandomState, rows: int) -> Drawn:
    """Generate collisions like those of HIGGS: float32 ``[N, 28]``, and int32 labels ``[N]``, 1 for signal.

    Transverse momenta and masses are positive with means about 1, pseudorapidities symmetric about 0, angles in
    ``[-1.75, 1.75]``, and the scores of four jets have three values each. The seven masses follow from the momenta;
    those of signal are near a peak.
    """
    signal = (rng.random_sample(rows) < 0.53).astype(np.int32)
    momentum, rapidity, angle = rng.gamma(3.0, 1 / 3, (6, rows)), rng.standard_normal((5, rows)), _angles(rng, 6, rows)
    missing, lepton, *jets = range(6)
    columns = [momentum[lepton], rapidity[0], angle[lepton], momentum[missing], angle[missing]]
    for number, jet in enumerate(jets):
        # A signal has two jets of bottom quarks.
        score = (rng.random_sample(rows) * (2 + signal * (number < 2))).astype(int).clip(0, 2)
        columns += [momentum[jet], rapidity[1 + number], angle[jet], score * (1.09 + 0.15 * number)]
    for first, second in ((2, 3), (3, 4), (0, 1), (1, 2), (2, 4), (1, 3), (0, 5)):
        mass = np.sqrt(momentum[first] * momentum[second]) * np.exp(0.25 * rng.standard_normal(rows))
        columns.append(np.where(signal == 1, 1 + 0.82 * (mass - 1), mass) * (1 + 0.03 * np.abs(angle[first])))
    return np.stack(columns, axis=1), signal


@_stand_in("susy")
def susy(rng: np.random.RandomState, rows: int) -> Drawn:
    """Generate collisions like those of SUSY: float32 ``[N, 18]``, and int32 labels ``[N]``, 1 for signal.

    Columns are momenta, pseudorapidities and angles of two leptons, missing energy and its angle, then ten variables
    derived from them, positive except the second. Signal has more missing energy, and leptons that are more alike.
    """
    signal = (rng.random_sample(rows) < 0.46).astype(np.int32)
    first = rng.gamma(3.0, 1 / 3, rows)
    alike = np.where(signal == 1, 0.2, 0.8)
    second = first * np.exp(alike * rng.standard_normal(rows))
    rapidity, angle = rng.standard_normal((2, rows)), _angles(rng, 3, rows)
    missing = rng.gamma(2.0, 0.5 + 0.08 * signal)
    axial = missing * np.cos(angle[2] - angle[0])
    scale = np.sqrt(first * second) + missing
    noise = np.exp(0.2 * rng.standard_normal((8, rows)))
    columns = [first, rapidity[0], angle[0], second, rapidity[1], angle[1], missing, angle[2]]
    columns += [missing / np.sqrt(scale), axial, scale * noise[0], np.sqrt(missing * scale) * noise[1]]
    columns += [missing / scale * noise[2], np.sqrt(second * missing) * noise[3], (first + second) / 2 * noise[4]]
    columns += [np.sqrt(first * missing) * noise[5], np.abs(angle[0] - angle[1]), np.abs(np.tanh(rapidity[0]))]
    return np.stack(columns, axis=1), signal


@_stand_in("taxi")
def taxi(rng: np.random.RandomState, rows: int) -> Drawn:
    """Generate taxi journeys: float32 ``[N, 9]``, features and units of :func:`gpzoo.reproductions.datasets.taxi.taxi`.

    Most start and end in Manhattan; the rest go to the airports. Journeys follow streets, and traffic is slow on
    working days and fast at night. Targets are whole seconds.
    """
    _, weekday, day, month = calendar(_JOURNEY_DAYS[(rng.random_sample(rows) * len(_JOURNEY_DAYS)).astype(int)])
    hour = (18 + 6 * rng.standard_normal(rows)) % 24
    places = np.array([[40.755, -73.980], [40.645, -73.785], [40.774, -73.873]])
    ends = [places[rng.choice(3, rows, p=(0.9, 0.04, 0.06))] + rng.standard_normal((rows, 2)) * 0.018 for _ in "ab"]
    degrees = np.abs(ends[0] - ends[1])
    distance = 0.3 + (69.0 * degrees[:, 0] + 52.3 * degrees[:, 1]) * (1 + 0.1 * rng.random_sample(rows))
    busy = np.where(weekday <= 5, 1.0, 0.6) * np.exp(-(((hour - 14) / 5) ** 2))
    miles_per_hour = (24 - 13 * busy) * (1 + np.tanh(distance / 8)) / 1.4
    duration = (60 + 3600 * distance / miles_per_hour) * np.exp(0.2 * rng.standard_normal(rows))
    X = np.column_stack([np.rint(hour * 3600) % 86400 / 3600, weekday, day, month, *ends, np.round(distance, 2)])
    return X, np.clip(np.rint(duration), SHORTEST, LONGEST)


@_stand_in("rectangles-images")
def rectangles_images(rng: np.random.RandomState, rows: int) -> Drawn:
    """Generate rectangles filled with one texture on another: float32 ``[N, 28, 28, 1]`` in [0, 1], int32 labels.

    The label is 1 if the rectangle is taller than wide, else 0. Sides have 8 to 26 pixels and differ by at least 5;
    the textures are smooth noise, darker in one than in the other.
    """
    pairs = np.array([(h, w) for h in range(8, 27) for w in range(8, 27) if abs(h - w) >= 5])
    height, width = pairs[(rng.random_sample(rows) * len(pairs)).astype(int)].T
    inside = np.ones((rows, 28, 28), bool)
    for axis, length in ((1, height), (2, width)):
        start = (rng.random_sample(rows) * (29 - length)).astype(int)
        pixel = np.arange(28)
        along = (pixel >= start[:, None]) & (pixel < (start + length)[:, None])
        inside &= np.expand_dims(along, 3 - axis)
    light = 0.5 + 0.09 * rng.choice([-1, 1], rows)
    images = np.where(inside, _textures(rng, light), _textures(rng, 1 - light))
    return images[..., None].clip(0, 1), (height > width).astype(np.int32)


@_stand_in("svhn")
def svhn(rng: np.random.RandomState, rows: int) -> Drawn:
    """Generate house numbers like those of SVHN: float32 ``[N, 32, 32, 3]`` in [0, 1], int32 labels, the digits.

    Digits are those of scikit-learn, enlarged, in one colour on another, between parts of two other digits.
    """
    from sklearn.datasets import load_digits

    known: Any = load_digits()
    glyphs = np.kron(known.images / 16, np.ones((4, 3)))  # [1797, 32, 24]
    middle, *sides = (rng.random_sample((3, rows)) * len(glyphs)).astype(int)
    shift = (rng.random_sample(rows) * 9).astype(int)
    strip = np.concatenate([glyphs[sides[0]], glyphs[middle], glyphs[sides[1]]], axis=2)  # [rows, 32, 72]
    columns = 16 + shift[:, None] + np.arange(32)
    ink = np.take_along_axis(strip, columns[:, None], axis=2)[..., None]
    paper = 0.15 + 0.3 * rng.random_sample((rows, 1, 1, 3))
    colours = np.where(rng.random_sample((rows, 1, 1, 1)) < 0.5, (paper, paper + 0.4), (paper + 0.4, paper))
    images = colours[0] + (colours[1] - colours[0]) * ink + 0.04 * rng.standard_normal((rows, 32, 32, 3))
    return images.clip(0, 1), known.target[middle].astype(np.int32)


@_stand_in("imagenet20", 1_000)
def imagenet20(rng: np.random.RandomState, rows: int) -> Drawn:
    """Generate photographs like those of ImageNet: float32 ``[N, 64, 64, 3]`` in [0, 1], int32 labels of 20 classes.

    A class is a texture: stripes of one of five directions and four widths, in any colours, at any place.
    """
    labels = (rng.random_sample(rows) * 20).astype(np.int32)
    angle = np.pi / 5 * (labels % 5) + 0.1 * rng.standard_normal(rows)
    waves = 2.0 ** (1 + labels // 5) * (1 + 0.1 * rng.standard_normal(rows))
    down, across = np.mgrid[:64, :64] / 64
    along = np.cos(angle)[:, None, None] * across + np.sin(angle)[:, None, None] * down
    phase = 2 * np.pi * rng.random_sample(rows)
    light = 0.5 + 0.5 * np.sin(2 * np.pi * waves[:, None, None] * along + phase[:, None, None])
    colours = rng.random_sample((2, rows, 1, 1, 3))
    images = colours[0] + (colours[1] - colours[0]) * light[..., None]
    return (images + 0.1 * rng.standard_normal(images.shape)).clip(0, 1), labels


def _textures(rng: np.random.RandomState, mean: np.ndarray) -> np.ndarray:
    """Smooth noise ``[N, 28, 28]`` of these means: coarse noise ``[N, 8, 8]``, interpolated linearly."""
    place = np.arange(28) / 4
    low = place.astype(int)
    weights = np.zeros((28, 8))
    weights[np.arange(28), low] = 1 - (place - low)
    weights[np.arange(28), low + 1] = place - low
    coarse = rng.standard_normal((len(mean), 8, 8))
    return mean[:, None, None] + 0.2 * np.einsum("ij,njk,lk->nil", weights, coarse, weights, optimize=True)


def _angles(rng: np.random.RandomState, count: int, rows: int) -> np.ndarray:
    return rng.uniform(-1.75, 1.75, (count, rows))
