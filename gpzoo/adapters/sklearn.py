"""GPs as scikit-learn estimators, for pipelines, searches and scores."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import jax
import numpy as np
import optax
from jax import Array
from numpyro import handlers
from numpyro.distributions import LogNormal
from numpyro.infer import SVI, Predictive
from scipy.special import softmax

from gpzoo import GPZooError, kmeans
from gpzoo import _checks as checks
from gpzoo._extras import needs
from gpzoo._labels import in_another_order, index_of
from gpzoo.inference import CollapsedELBO, GaussianProcessELBO, InducingGuide, fit, lbfgs, load
from gpzoo.inference.programs.calls import RUNNING
from gpzoo.inference.programs.program import look
from gpzoo.inference.programs.runs import data_of
from gpzoo.kernels import Kernel
from gpzoo.likelihoods import Softmax
from gpzoo.models import gp_classification, gp_regression, rbf

with needs("sklearn", "An estimator"):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["GPZooClassifier", "GPZooRegressor"]


def _rbf(name: str, X: Array) -> Kernel:
    """RBF kernel with initial lengthscales long enough that rows of many standardised columns are correlated."""
    return rbf(name, X, lengthscale=X.shape[-1] ** 0.5)


def _regression(
    X: Array,
    y: Array | None = None,
    *,
    kernel: Callable[[str, Array], Kernel],
    num_outputs: int | None = None,
    shared_noise: bool = True,
    num_data: int | None = None,
) -> None:
    """``gp_regression`` with a prior that keeps the noise away from zero if targets are constant or have no noise.

    For pickles of earlier versions, the default is one noise for all outputs.
    """
    prior = LogNormal(-4.0, 2.0)
    if num_outputs is not None and not shared_noise:
        prior = prior.expand([num_outputs]).to_event(1)
    with handlers.lift(prior={"noise_variance": prior}):
        gp_regression(X, y, kernel=kernel, num_outputs=num_outputs, shared_noise=shared_noise, num_data=num_data)


def _key(random_state: Any) -> Array:
    return jax.random.key(check_random_state(random_state).randint(2**31 - 1))


def _refuse_made_kernel(kernel: Any) -> None:
    """Refuse a kernel or a kernel class, because programs call a function that makes a kernel."""
    of_class = isinstance(kernel, type) and issubclass(kernel, Kernel)
    if isinstance(kernel, Kernel) or of_class or not callable(kernel or rbf):
        name = getattr(kernel, "__name__", type(kernel).__name__)
        raise TypeError(
            "kernel must be a function of a site's name and the inputs that makes a kernel, such as gpzoo.models.rbf, "
            f"got {name}: the function declares what is trained, RBF(positive(f'{{name}}_variance', 1.0, X))."
        )


def _refuse_other_sites(program: Callable, X: np.ndarray, y: np.ndarray) -> None:
    """Refuse a program without the data site ``"y"``, which predictions need."""
    with RUNNING, jax.numpy_rank_promotion("allow"):
        sites = list(data_of(look(program, (X, y), {}).trace))
    if "y" not in sites:
        named = f"call its data site 'y', not {' and '.join(map(repr, sites))}" if sites else "give its site 'y' obs=y"
        raise ValueError(f"An estimator predicts the data site 'y', which its program has not: {named}.")


class _Estimator(BaseEstimator):
    """The common base class: it standardises columns, trains a program, and pickles the model's own file."""

    def __init__(
        self,
        kernel: Callable[[str, Array], Kernel] | None = None,
        *,
        program: Callable[..., None] | None = None,
        num_inducing: int = 100,
        num_steps: int | None = None,
        batch_size: int | None = None,
        standardise: bool = True,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.program = program
        self.num_inducing = num_inducing
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.standardise = standardise
        self.random_state = random_state

    def _next(self) -> Self:
        """A copy for :meth:`fit` to work on. At the end of ``fit``, this estimator gets all attributes of the copy."""
        copied = object.__new__(type(self))
        copied.__dict__ = dict(vars(self))
        return copied

    def _train(self, X: np.ndarray, y: np.ndarray, program: Callable, search: bool = False, **options: Any) -> None:
        """Train the user's program, or else ``program``, with the options that it takes.

        With ``search``, L-BFGS maximises the collapsed bound; otherwise Adam maximises the ELBO. L-BFGS is for bounds
        of hyperparameters only. On 9,000 rows of two classes, it must find q(u) too, and had learnt little after 100
        steps.
        """
        program = self.program or program
        kernel = _rbf if self.kernel is None and self.program is None else self.kernel
        _refuse_made_kernel(kernel)
        known = inspect.signature(program).parameters
        options = {name: value for name, value in options.items() if name in known}
        program = partial(program, **options, **({} if kernel is None else {"kernel": kernel}))
        scaler = StandardScaler(with_mean=self.standardise, with_std=self.standardise)
        X = scaler.fit_transform(X)
        most = checks.positive_int("num_inducing", self.num_inducing)
        guide = InducingGuide(program, kmeans(min(most, len(np.unique(X, axis=0)))))
        for name in ("num_steps", "batch_size"):
            if getattr(self, name) is not None:
                checks.positive_int(name, getattr(self, name))
        num_steps = (100 if search else 500) if self.num_steps is None else self.num_steps
        rate = optax.warmup_cosine_decay_schedule(0.01, 0.1, num_steps // 10, max(num_steps, 1), 0.001)
        how = (lbfgs(), CollapsedELBO()) if search else (optax.adam(rate, b2=0.9), GaussianProcessELBO())
        svi = SVI(program, guide, *how)
        batch_size = None if self.batch_size is None else min(self.batch_size, len(X))
        try:
            with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # optax's schedules mix dtypes
                if self.program is not None:
                    _refuse_other_sites(program, X, y)
                trained = fit(_key(self.random_state), svi, num_steps, X, y, batch_size=batch_size, progress=False)
        except GPZooError as error:
            trained = error.result
            if trained is None or not len(trained.losses):
                raise
            # The rest of the message names ways out that are for users who call gpzoo's fit.
            first, kept = str(error).split(". ")[0], len(trained.losses)
            warnings.warn(f"{first}. The estimator keeps the parameters after step {kept}.", ConvergenceWarning, 3)
        self._scaler, self.trained_ = scaler, trained

    def _inputs(self, X: Any) -> Any:
        check_is_fitted(self)
        return self._scaler.transform(validate_data(self, X, dtype=np.float64, reset=False))

    def _predicted(self, X: Any, site: str = "y", **options: Any) -> Any:
        X = self._inputs(X)
        with jax.enable_x64(True):
            return self.trained_.predict(jax.random.key(0), X, **options)[site]

    def __getstate__(self) -> dict[str, Any]:
        """The attributes; the program and the bytes of the model's file replace the trained model."""
        state: Any = super().__getstate__()
        state = dict(state)
        if "trained_" in state:
            with TemporaryDirectory() as folder, jax.enable_x64(True):
                path = Path(folder, "model")
                state["trained_"].save(path)
                state["trained_"] = state["trained_"].model, path.read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`__getstate__`."""
        if "trained_" in state:
            program, saved = state["trained_"]
            with TemporaryDirectory() as folder, jax.enable_x64(True):
                path = Path(folder, "model")
                path.write_bytes(saved)
                state = state | {"trained_": load(path, program)}
        super().__setstate__(state)


class GPZooRegressor(RegressorMixin, _Estimator):
    """Sparse GP regression for pipelines, searches and scores of scikit-learn.

    By default, the estimator has an RBF kernel with a lengthscale for each column, and Gaussian noise whose variance
    has a weak prior. L-BFGS finds inducing points and hyperparameters on all rows. It maximises :class:`CollapsedELBO
    <gpzoo.inference.CollapsedELBO>`, which is exact if there are no more rows than ``num_inducing``. With
    ``batch_size`` or your own ``program``, Adam maximises :class:`GaussianProcessELBO
    <gpzoo.inference.GaussianProcessELBO>`.

    The estimator computes in float64 under all settings of JAX. ``estimator.trained_`` is the trained model in
    standardised units, with all methods of :class:`~gpzoo.inference.Trained`. Call ``numpyro.enable_x64()`` before you
    use ``trained_``.

    Example:
        >>> import numpy as np
        >>> from gpzoo.adapters.sklearn import GPZooRegressor
        >>> X = np.linspace(0, 6, 50)[:, None]
        >>> estimator = GPZooRegressor(num_inducing=10).fit(X, np.sin(X[:, 0]))
        >>> mean, std = estimator.predict([[1.5]], return_std=True)
        >>> mean.round(1), std.shape, estimator.sample_y(X, n_samples=3).shape
        (array([1.]), (1,), (50, 3))

    Args:
        kernel: function that makes the kernel from a site name and the inputs, such as :func:`~gpzoo.models.rbf`. It is
            an argument of the program. With your own program, ``None`` means the kernel of this program. Otherwise,
            ``None`` means ``rbf`` with lengthscales that start at the square root of the number of columns.
        program: your own NumPyro program, ``program(X, y)`` with the data site ``"y"``. Define it at module level if
            you want to pickle the estimator. The program gets ``kernel``. If it has the arguments ``num_outputs`` (for
            targets ``[N, D]``) and ``num_data`` (for minibatches), it gets these too.
        num_inducing: largest number of inducing points. There are never more inducing points than distinct rows.
        num_steps: number of training steps; ``None`` means 100 steps of L-BFGS, or 500 steps of Adam.
        batch_size: number of rows of a minibatch; ``None`` means all rows in every step.
        standardise: whether the columns of the inputs, and the targets, are shifted and scaled to mean 0 and standard
            deviation 1 before training. Predictions are always in the units of ``y``.
        random_state: seed, or a source of seeds, for the inducing points, minibatches and draws in training.

    Attributes:
        trained_: the :class:`~gpzoo.inference.Trained`. A pickle of the estimator contains this model's saved file,
            and refers to the program by name.
        n_features_in_: number of columns of the inputs.
        feature_names_in_: names of the columns, if they have any.
    """

    _mean: Any
    _scale: Any

    def fit(self, X: Any, y: Any) -> GPZooRegressor:
        """Train on inputs ``[N, d]`` and targets ``[N]`` or ``[N, D]``.

        With targets ``[N, D]``, all outputs have the same kernel, and each output has its own noise. If a step after
        the first fails, the estimator keeps the parameters from before this step and emits scikit-learn's
        ``ConvergenceWarning``. If ``fit`` raises an error or is interrupted, the estimator does not change.

        Raises:
            TypeError: for sparse inputs, or a kernel in place of a function that makes one.
            ValueError: for inputs or targets that are not finite, fewer than two rows, different numbers of rows, or a
                program without a data site ``"y"``; and as for :func:`gpzoo.inference.fit`.
            NonFiniteError, FactorisationError: if the first step fails; the message names the site.
        """
        new = self._next()
        _refuse_other_order(X, y)
        X, y = validate_data(new, X, y, dtype=np.float64, y_numeric=True, multi_output=True, ensure_min_samples=2)
        y = y.astype(np.float64)
        scaler: Any = StandardScaler().fit(y.reshape(len(y), -1))
        mean, scale = (scaler.mean_, scaler.scale_) if self.standardise else (np.zeros(1), np.ones(1))
        mean, scale = (mean, scale) if y.ndim > 1 else (mean[0], scale[0])
        search, outputs = self.program is None and self.batch_size is None, y.shape[1] if y.ndim > 1 else None
        program = partial(_regression, shared_noise=False)
        new._train(X, (y - mean) / scale, program, search, num_outputs=outputs)
        new._mean, new._scale = mean, scale
        self.__dict__ = vars(new)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of the targets at inputs ``[N, d]``: ``[N]`` or ``[N, D]``.

        Args:
            X: inputs.
            return_std: whether to return ``(mean, std)``, with the standard deviations of the targets, noise included.
                For standard deviations of the function without noise, see the site ``f`` of ``estimator.trained_``.

        Raises:
            NotFittedError: before :meth:`fit`.
            ValueError: if the number or the names of the columns differ from the training inputs, or numbers are not
                finite.
        """
        y = self._predicted(X, mean_only=not return_std)
        mean = self._mean + self._scale * y.mean
        return (mean, self._scale * np.sqrt(y.variance)) if return_std else mean

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.95)) -> np.ndarray:
        """Quantiles of the targets at inputs ``[N, d]``, noise included: ``[Q, N]`` or ``[Q, N, D]``.

        The quantiles 0.05 and 0.95 bound an interval that holds nine of ten targets.

        Args:
            X: inputs.
            quantiles: ``Q`` probabilities between 0 and 1.

        Raises:
            NotFittedError: before :meth:`fit`.
            ValueError: as :meth:`predict`, and for ``quantiles`` that are not probabilities.
        """
        return self._mean + self._scale * self._predicted(X, quantiles=quantiles).quantiles

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Draws of the targets, joint over the inputs and with noise: ``[N, n_samples]`` or ``[N, D, n_samples]``.

        This method factorises the covariance of all inputs, so a few thousand inputs are possible. For more inputs,
        draw functions with ``estimator.trained_.functions``.

        Args:
            X: inputs ``[N, d]``.
            n_samples: number of draws.
            random_state: seed of the draws.

        Raises:
            NotFittedError: before :meth:`fit`.
            ValueError: as for :meth:`predict`.
        """
        X, trained = self._inputs(X), self.trained_
        draw = Predictive(trained.model, guide=trained.guide, params=dict(trained.params), num_samples=n_samples)
        with jax.enable_x64(True), RUNNING:
            drawn = np.asarray(draw(_key(random_state), X)["y"])
        return np.moveaxis(self._mean + self._scale * drawn, 0, -1)

    def __sklearn_tags__(self) -> Any:
        """The tags of scikit-learn; they say that several outputs are possible."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class GPZooClassifier(ClassifierMixin, _Estimator):
    """Sparse GP classification for pipelines, searches and scores of scikit-learn.

    By default, the program is :func:`~gpzoo.models.gp_classification`, with a probit link for two classes and a softmax
    for more classes. The RBF kernel has a lengthscale for each column. Adam trains on all rows or, with ``batch_size``,
    on minibatches. For float64 and ``trained_``, see :class:`GPZooRegressor`.

    Example:
        >>> import numpy as np
        >>> from gpzoo.adapters.sklearn import GPZooClassifier
        >>> X = np.linspace(0, 6, 60)[:, None]
        >>> estimator = GPZooClassifier(num_inducing=10).fit(X, np.where(np.sin(X[:, 0]) > 0, "up", "down"))
        >>> estimator.predict([[1.5], [4.5]]), estimator.predict_proba([[1.5]]).shape
        (array(['up', 'down'], dtype='<U4'), (1, 2))

    Args:
        kernel: as for :class:`GPZooRegressor`.
        program: your own NumPyro program, ``program(X, y)`` with labels ``0 .. K - 1`` at the data site ``"y"``. Define
            it at module level if you want to pickle the estimator. The program gets ``kernel``. If it has the arguments
            ``num_classes`` and ``num_data`` (for minibatches), it gets these too. To replace the probit or the
            softmax, use for example ``partial(gp_classification, likelihood=RobustMax)``.
        num_inducing: as for :class:`GPZooRegressor`.
        num_steps: as for :class:`GPZooRegressor`.
        batch_size: as for :class:`GPZooRegressor`.
        standardise: whether columns of the inputs are shifted and scaled before training.
        random_state: as for :class:`GPZooRegressor`.

    Attributes:
        classes_: the labels, sorted, ``[K]``.
        trained_: the :class:`~gpzoo.inference.Trained`, for labels ``0 .. K - 1``.
        n_features_in_: number of columns of the inputs.
        feature_names_in_: names of the columns, if they have any.
    """

    classes_: np.ndarray
    _softmax: bool

    def fit(self, X: Any, y: Any) -> GPZooClassifier:
        """Train on inputs ``[N, d]`` and labels ``[N]``, which are numbers or strings.

        If a step after the first fails, the estimator keeps the parameters from before this step and emits
        scikit-learn's ``ConvergenceWarning``. If ``fit`` raises an error or is interrupted, the estimator does not
        change.

        Raises:
            TypeError: for sparse inputs, or a kernel in place of a function that makes one.
            ValueError: for inputs that are not finite, targets that are not labels, only one class, different numbers
                of rows, or a program without a data site ``"y"``; and as for :func:`gpzoo.inference.fit`.
            NonFiniteError, FactorisationError: if the first step fails; the message names the site.
        """
        new = self._next()
        _refuse_other_order(X, y)
        X, y = validate_data(new, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        new.classes_, labels = np.unique(y, return_inverse=True)
        count = len(new.classes_)
        checks.refuse(count < 2, f"GPZooClassifier needs at least two classes, but y has one class, {new.classes_}.")
        program = gp_classification if count == 2 else partial(gp_classification, likelihood=Softmax)
        new._train(X, labels.astype(np.int32), program, num_classes=count)
        new._softmax = self.program is None and count > 2
        self.__dict__ = vars(new)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, in the order of ``classes_``: ``[N, K]``.

        Raises:
            NotFittedError: before :meth:`fit`.
            ValueError: if the number or the names of the columns differ from the training inputs, or numbers are not
                finite; if the program has another number of classes than ``classes_``, or its targets are not labels.
        """
        check_is_fitted(self)
        count = len(self.classes_)
        # Pickles of earlier versions do not have ``_softmax``.
        own = getattr(self, "_softmax", self.program is None and count > 2)
        predicted = self._predicted(X, "f" if own else "y")
        if own:  # the same noise for each row, so that its result does not depend on its position
            noise = np.random.default_rng(0).standard_normal((1000, 1, count))
            moments = np.stack([predicted.mean, np.sqrt(predicted.variance)])
            parts = np.array_split(moments, -(-len(predicted.mean) // 1000), axis=1)
            return np.concatenate([softmax(mean + sd * noise, axis=-1).mean(axis=0) for mean, sd in parts])
        labels = predicted.probs is not None or np.allclose(predicted.variance, predicted.mean * (1 - predicted.mean))
        checks.refuse(not labels, "The program's 'y' is no label, but numbers: take GPZooRegressor, or a likelihood.")
        probs = np.stack([1 - predicted.mean, predicted.mean], axis=-1) if predicted.probs is None else predicted.probs
        message = f"The program has {probs.shape[-1]} classes, but y has {count}: give it an argument num_classes."
        checks.refuse(probs.shape[-1] != count, message)
        return probs / probs.sum(axis=-1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable labels, ``[N]``; it raises the same errors as :meth:`predict_proba`."""
        most = np.argmax(self.predict_proba(X), axis=-1)
        return self.classes_[most]


def _refuse_other_order(X: Any, y: Any) -> None:
    """Refuse targets whose row labels are in another order than the row labels of the inputs.

    scikit-learn pairs rows by position and ignores labels.

    Raises:
        ValueError: if the orders differ; the message says what to do instead.
    """
    if in_another_order(index_of(y), index_of(X)):
        raise ValueError(
            "y has the labels of the rows of X in another order: put it in theirs, y.loc[X.index], or pass "
            "y.to_numpy() to take its rows by position."
        )
