"""Errors of computations that cannot go on (with their results so far), and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class GPZooError(Exception):
    """The base class of errors in computations that failed although gpzoo had accepted their arguments.

    Its subclasses are :class:`FactorisationError`, :class:`~gpzoo.NonFiniteError` and :class:`~gpzoo.CheckpointError`.
    If gpzoo refuses an argument, it raises ``ValueError`` or ``TypeError`` instead, before it computes anything.

    Example:
        >>> from gpzoo import GPZooError, NonFiniteError
        >>> try:
        ...     raise NonFiniteError("The bound is nan.", result={"f_variance": 1.0})
        ... except GPZooError as error:
        ...     print(error, error.result)
        The bound is nan. {'f_variance': 1.0}

    Args:
        message: a description of the failure and its place; it says what to do instead.
        result: the result up to the failure.

    Attributes:
        result: after a failed training, the :class:`~gpzoo.inference.Trained` with the last parameters at which the
            bound was finite; ``None`` if there was no result yet.
        finished: the results of finished trainings, by name, if a function runs several trainings one after another
            (:func:`~gpzoo.inference.compare`, :func:`~gpzoo.models.fit_deep_kernel`); ``None`` otherwise.

    If an error of another kind ends a training, such as an error of a callback, it also has these attributes.
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result, self.finished = result, None


class PrecisionWarning(UserWarning):
    """The warning that float32 is not precise enough for some numbers of a computation.

    Example:
        >>> import jax, numpy as np, warnings
        >>> from gpzoo import PrecisionWarning, kmeans
        >>> from gpzoo.inference import InducingGuide
        >>> from gpzoo.models import gp_regression
        >>> seconds = (1e6 + np.linspace(0, 2, 20))[:, None].astype(np.float32)
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", PrecisionWarning)
        ...     InducingGuide(gp_regression, kmeans(5)).init_params(jax.random.key(0), seconds, seconds[:, 0])
        Traceback (most recent call last):
            ...
        gpzoo.errors.PrecisionWarning: column 0 of X lies between 1000000 and 1000002, so far from zero ...
    """


class FactorisationError(GPZooError, ValueError):
    """The error for a covariance matrix that is not numerically positive definite; the message says what to do instead.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import GaussianProcess, kernels
        >>> distance = kernels.Pointwise(lambda x, z: abs(x - z).sum())  # no covariance
        >>> prior = GaussianProcess(distance, np.array([[0.0], [1.0]], np.float32))
        >>> prior.sample(jax.random.key(0))
        Traceback (most recent call last):
            ...
        gpzoo.errors.FactorisationError: The covariance of GaussianProcess at 2 inputs (2 x 2, float32) ...
    """


class NonFiniteError(GPZooError, FloatingPointError):
    """The error for a bound or gradient that is not finite; ``result`` has the last state with a finite bound.

    Example:
        >>> import jax, numpy as np, optax
        >>> from numpyro.infer import SVI
        >>> from gpzoo import NonFiniteError, kmeans
        >>> from gpzoo.inference import GaussianProcessELBO, InducingGuide, fit
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> svi = SVI(gp_regression, InducingGuide(gp_regression, kmeans(8)), optax.sgd(1e9), GaussianProcessELBO())
        >>> try:
        ...     fit(jax.random.key(0), svi, 5, X, np.sin(X[:, 0]), progress=False)
        ... except NonFiniteError as error:
        ...     print(str(error)[:26], float(error.result.params["f_variance"]))
        Training stopped at step 1 1.0
    """


class CheckpointError(GPZooError, RuntimeError):
    """The error for a checkpoint that cannot be read, or that belongs to another training.

    Example:
        >>> import pathlib, tempfile
        >>> from gpzoo.inference import load
        >>> from gpzoo.models import gp_regression
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "notes.txt"
        >>> _ = path.write_text("no model")
        >>> load(path, gp_regression)
        Traceback (most recent call last):
            ...
        gpzoo.errors.CheckpointError: .../notes.txt cannot be loaded as a trained model: its ...
    """


class DatasetError(RuntimeError):
    """The error for a data set that is not available; the message is one printable line with the reason.

    Example:
        >>> from gpzoo.tables import ParquetTable
        >>> ParquetTable("nowhere.parquet", columns=["x"])
        Traceback (most recent call last):
            ...
        gpzoo.errors.DatasetError: cannot read nowhere.parquet: it does not exist.
    """

    def __init__(self, message: str) -> None:
        super().__init__(plain(message))


def plain(text: str) -> str:
    """Text in one line, with unprintable characters escaped, because names may come from a hostile file."""
    joined = " ".join(text.splitlines())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in joined)


def keep_in(error: BaseException, name: str, computed: Callable[[], Any], where: str) -> None:
    """Attach results to an error as an attribute, with a note that names this attribute.

    Args:
        error: an error of any kind. If it already has an attribute of this name, the attribute does not change.
        name: name of the attribute, ``"result"`` or ``"finished"``.
        computed: function that makes the attribute's value.
        where: text about the progress of the computation. The note begins with this text.
    """
    said = f"What it computed is in this error's .{name}."
    if getattr(error, name, None) is not None:
        if isinstance(error, GPZooError):
            return
        said = f"What it computed is not kept: this {type(error).__name__} has a .{name} of its own."
    else:
        try:
            setattr(error, name, computed())
        except Exception as reason:
            said = f"What it computed is not kept in this {type(error).__name__}: {reason}"
    error.add_note(f"{where} {said}")


@contextmanager
def keeping_finished(finished: Mapping[str, Any], where: str) -> Iterator[None]:
    """Attach the finished parts of a computation to any error in this context, as ``.finished``."""
    try:
        yield
    except BaseException as error:
        if finished:
            keep_in(error, "finished", lambda: dict(finished), where)
        raise
