"""What data are libraries compared on? Generated ones, the same for all."""

from __future__ import annotations

import numpy as np

#: Jitter of every library: absolute, of kernels with variance 1.
JITTER = {"float32": 1e-5, "float64": 1e-6}


def regression(
    rows: int, dtype: str, columns: int = 8, noise: float = 0.1, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of standard normal numbers, and a smooth function of three directions in them, standardised."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns))
    h = X @ np.random.default_rng(1).standard_normal((columns, 3)) / columns**0.5
    y = np.sin(2 * h[:, 0]) + np.tanh(h[:, 1]) * h[:, 2] + noise * rng.standard_normal(rows)
    return X.astype(dtype), ((y - y.mean()) / y.std()).astype(dtype)


def images(rows: int, dtype: str, classes: int = 10, side: int = 28) -> tuple[np.ndarray, np.ndarray]:
    """Images of strokes in [0, 1], whose ends lie about a place of their class, and the classes."""
    rng = np.random.default_rng(0)
    y = rng.integers(classes, size=rows)
    places = np.random.default_rng(1).uniform(0.2, 0.8, size=(classes, 2, 2))
    ends = places[y] + 0.08 * rng.standard_normal((rows, 2, 2))
    grid, X = (np.arange(side) + 0.5) / side, np.zeros((rows, side, side))
    for t in np.linspace(0, 1, 15):
        across, down = ((1 - t) * ends[:, 0] + t * ends[:, 1]).T[:, :, None]
        blob = np.exp(-((grid - across) ** 2)[:, None, :] / 0.004 - ((grid - down) ** 2)[:, :, None] / 0.004)
        X = np.maximum(X, blob)
    X[X < 0.05] = 0
    return X.astype(dtype), y.astype(np.int32)


def patches(X: np.ndarray, count: int, size: int) -> np.ndarray:
    """Distinct ones of the first hundred images."""
    windows = np.lib.stride_tricks.sliding_window_view(X[:100], (size, size), axis=(1, 2))
    windows = np.unique(windows.reshape(-1, size**2), axis=0)
    return windows[np.random.default_rng(0).choice(len(windows), count, replace=False)]


def wave(inducing: int, dtype: str, outputs: int | None = None) -> np.ndarray:
    """A mean of ``q(u)`` that is not zero, so that bounds at the start tell models apart."""
    phase = 0.37 * np.arange(inducing)
    return (0.5 * np.sin(phase if outputs is None else phase[:, None] + 1.3 * np.arange(outputs))).astype(dtype)
