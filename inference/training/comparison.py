"""Comparison of models: a table of the bounds and test errors of candidates that are trained in the same way."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optax
from jax import Array, random
from numpyro.infer import SVI

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.errors import FactorisationError, NonFiniteError, PrecisionWarning, keeping_finished
from gpzoo.inference.bounds.elbo import GaussianProcessELBO
from gpzoo.inference.fitted.export import densities
from gpzoo.inference.fitted.psis import largest_k, leave_one_out, pareto
from gpzoo.inference.fitted.summaries import SitePrediction
from gpzoo.inference.fitted.trained import Trained
from gpzoo.inference.guides.guide import InducingGuide
from gpzoo.inference.guides.options import Inducing, for_site
from gpzoo.inference.programs.arguments import refuse_absent
from gpzoo.inference.programs.calls import entry_point
from gpzoo.inference.programs.files import checked_path
from gpzoo.inference.programs.keys import named_key
from gpzoo.inference.programs.labelled import columns_of, unlabelled
from gpzoo.inference.programs.program import look
from gpzoo.inference.programs.runs import terms_per_datum, unmasked
from gpzoo.inference.training.finished import end_of, gain_of_more_steps
from gpzoo.inference.training.fit import fit
from gpzoo.inference.training.protocol import of_objective
from gpzoo.likelihoods import Likelihood
from gpzoo.posteriors.coupled import Coupled, CoupledAfter
from gpzoo.posteriors.forms import Full


@dataclass(frozen=True)
class Candidate:
    """One trained program.

    Example:
        >>> from gpzoo.inference import Candidate
        >>> Candidate(bound=-0.5, nlpp=0.4, score=None, trained=None).nlpp
        0.4

    Attributes:
        bound: evidence lower bound per training row, in nats, averaged over the last twentieth of the steps.
        nlpp: mean negative log predictive density of the test rows, in nats; ``None`` without test data.
        score: value of ``score`` for the test rows, or ``None``.
        trained: the trained model.
        elpd: log predictive density of every training row given the other rows, in nats, ``[N]``; ``None`` if not asked
            for.
        elpd_by: how the elpd was found: ``"LOO, closed form"``, ``"LOO"``, ``"LOO, 2 trained without"`` (for two rows,
            from a training without the row) or ``"10 folds"``.
        unfinished: the reason why the training is not finished. ``"rising"``: the bound was still rising at the end.
            ``"stopped"``: more steps raise the bound. :func:`~gpzoo.inference.diagnose` gives the same reasons. It is
            empty for a finished training, and for a training that is too short or too large to judge.
    """

    bound: float
    nlpp: float | None
    score: float | None
    trained: Trained
    elpd: np.ndarray | None = None
    elpd_by: str = ""
    unfinished: str = ""


class Comparison(Mapping[str, Candidate]):
    """Trained candidates by name; they print as a table.

    The candidate with the highest bound comes first, or with the highest elpd if :func:`compare` was asked for it.
    Candidates with an unfinished training come last. They are marked and not ranked.

    Example:
        >>> from gpzoo.inference import Candidate, Comparison
        >>> found = Comparison({"a": Candidate(-2.0, None, None, None), "b": Candidate(-1.0, None, None, None)})
        >>> list(found), found["b"].bound
        (['b', 'a'], -1.0)
    """

    def __init__(self, candidates: Mapping[str, Candidate], score: str = "score") -> None:
        self._score = score
        self._candidates = dict(sorted(candidates.items(), key=lambda item: _place(item[1])))

    def __getitem__(self, name: str) -> Candidate:
        return self._candidates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._candidates)

    def __len__(self) -> int:
        return len(self._candidates)

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("", "bound per row", "test nlpp", self._score, "seconds")]
        for name, c in self.items():
            scores = ("-" if x is None else f"{x:.4f}" for x in (c.bound, c.nlpp, c.score))
            rows.append((name, *scores, f"{c.trained.seconds:.0f}"))
        terms = [c.elpd for c in self.values() if c.elpd is not None]
        if terms and len(terms) == len(self):
            rows[0] += ("elpd", "error", "below best", "error", "by")
            for i, (own, c) in enumerate(zip(terms, self.values(), strict=True)):
                below = terms[0] - own
                numbers = [f"{x:.2f}" for x in (own.sum(), _error(own), below.sum(), _error(below))]
                if c.unfinished:
                    numbers[2:] = "-", "-"
                rows[i + 1] += (*numbers, c.elpd_by)
        if any(c.unfinished for c in self.values()):
            for i, c in enumerate((None, *self.values())):
                rows[i] += ("not finished" if c is not None and c.unfinished else "",)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]) for r in rows)
        return "\n".join(line.rstrip() for line in lines)


def _place(candidate: Candidate) -> tuple[bool, float]:
    merit = candidate.bound if candidate.elpd is None else float(candidate.elpd.sum())
    return bool(candidate.unfinished), -merit


def _error(terms: np.ndarray) -> float:
    """The standard error of a sum over rows."""
    return float(np.sqrt(len(terms)) * terms.std(ddof=1)) if len(terms) > 1 else float("nan")


def error_rate(test: SitePrediction, y: np.ndarray) -> float:
    """The fraction of misclassified rows, as a ``score`` of :func:`compare`.

    The predicted class is the most probable class. For two classes, the predicted class is 1 if the predicted mean of
    ``y`` is above one half. For one-hot ``y [N, K]``, it is the class with the largest predicted mean.

    Example:
        >>> import numpy as np
        >>> from gpzoo.inference import SitePrediction, error_rate
        >>> error_rate(SitePrediction(None, None, probs=np.array([[0.9, 0.1], [0.2, 0.8]])), np.array([0, 0]))
        0.5

    Raises:
        ValueError: if ``y`` does not have the shape of the predictions.
    """
    if test.probs is not None:
        wrong = _like(test.probs.argmax(axis=-1), y) != y
    elif y.ndim == 2 and y.shape[1] > 1:
        wrong = _like(test.mean, y).argmax(axis=1) != y.argmax(axis=1)
        return float(np.mean(wrong[_observed(y).all(axis=1)]))
    else:
        wrong = (_like(test.mean, y) > 0.5) != (y > 0.5)
    return float(np.mean(wrong[_observed(y)]))


def rmse(test: SitePrediction, y: np.ndarray) -> float:
    """The root mean square error of the predicted mean, in the units of ``y``, as a ``score`` of :func:`compare`.

    Example:
        >>> import numpy as np
        >>> from gpzoo.inference import SitePrediction, rmse
        >>> rmse(SitePrediction(np.array([1.0, 2.0]), np.ones(2)), np.array([1.0, 4.0]))
        1.4142135623730951

    Raises:
        ValueError: if ``y`` does not have the shape of the predictions.
    """
    return float(np.sqrt(np.mean(np.square(_like(test.mean, y) - y)[_observed(y)], dtype=np.float64)))


def _like(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    predicted, shape = np.asarray(predicted), np.shape(y)
    checks.refuse(predicted.shape != shape, f"y of a score has shape {shape}, and predictions have {predicted.shape}.")
    return predicted


def _observed(y: np.ndarray) -> np.ndarray:
    return ~np.isnan(y) if y.dtype.kind == "f" else np.ones(y.shape, bool)


@entry_point
def compare(
    rng_key: Array,
    candidates: Mapping[str, tuple[Callable, Inducing] | SVI],
    X: ArrayLike,
    y: ArrayLike,
    X_test: ArrayLike | None = None,
    y_test: ArrayLike | None = None,
    *,
    num_steps: int,
    score: Callable[[SitePrediction, np.ndarray], float] | None = None,
    elpd: str | int | None = None,
    site: str = "y",
    learning_rate: float | optax.Schedule = 0.01,
    batch_size: int | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    model_kwargs: Mapping[str, Any] | None = None,
) -> Comparison:
    """Train programs and compare their bounds on the evidence, without test data (van der Wilk et al. 2018).

    All candidates train on the same rows in the same order. Compare bounds only if they are tight: give all candidates
    enough inducing variables and steps. A candidate is not finished if its bound was still rising at the end, or if a
    hundred more steps raise the bound. Such a candidate is marked and not ranked.

    ``compare(key, {"none": (partial(invariant_gp, view=None), random_subset(200)), "rotation":
    (partial(invariant_gp, view=rotation()), unique_patches(200))}, X, y, num_steps=2000, batch_size=200)``

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kmeans
        >>> from gpzoo.inference import compare
        >>> from gpzoo.models import gp_regression
        >>> X = np.linspace(0, 6, 50, dtype=np.float32)[:, None]
        >>> candidates = {f"M = {M}": (gp_regression, kmeans(M)) for M in (3, 8)}
        >>> found = compare(jax.random.key(0), candidates, X, np.sin(X[:, 0]), num_steps=50, progress=False)
        >>> list(found)
        ['M = 8', 'M = 3']

    Args:
        rng_key: key of every training, and of the predictions.
        candidates: by name, a pair or an :class:`~numpyro.infer.SVI`. The pair is a program of ``(X, y)`` and the
            initialiser of its inducing variables. Adam trains a pair with ``GaussianProcessELBO()``. With an ``SVI``,
            you choose guide, optimiser and objective; the guide must be an :class:`InducingGuide`.
        X: training inputs ``[N, ...]``.
        y: training targets ``[N, ...]``.
        X_test: test inputs, for the test columns.
        y_test: test targets.
        num_steps: number of steps of each training.
        score: function of a prediction and ``y_test``, such as :func:`error_rate` or :func:`rmse`; ``None`` for nlpp
            alone.
        elpd: how to find the expected log predictive density (elpd) of rows that are left out; ``None`` for no elpd.
            ``"loo"`` leaves out single rows. With Gaussian noise, point values of hyperparameters and a full covariance
            of ``q(u)``, the density has a closed form, see :meth:`gpzoo.inference.Trained.left_out`. Otherwise,
            importance weights of posterior draws give the density (PSIS-LOO), as in ``az.loo``. The diagnostic k-hat
            tells for which rows these weights cannot be trusted. If there are up to 20 such rows, each gets its density
            from a training without the row. If there are more, if the draws cannot be weighted at all, or if the
            objective trains no posterior (:class:`PredictiveLogLikelihood`, :class:`OnlineELBO`), ten folds are used
            instead. A whole number sets the number of folds. Each fold has one training without its rows; all of these
            run in one compiled program. The table has the sum of the elpd over rows, the distance of this sum from the
            best sum, and the standard errors of both numbers. A distance below two standard errors decides nothing.
            Exposures and offsets of rows must be columns of ``X``.
        site: the data site whose predictions are compared with the data.
        learning_rate: learning rate of Adam, for candidates that are not an ``SVI``.
        batch_size: rows per minibatch, ``None`` for all.
        checkpoint: folder for checkpoints, with a subfolder for each candidate. If the call is stopped, the same call
            resumes it.
        progress: whether to show progress bars.
        model_kwargs: keyword arguments of all programs, by name.

    Raises:
        TypeError: if data are not real numbers, or ``rng_key`` is not a key.
        ValueError: before any training, in these cases:

            * there are no candidates or no steps;
            * a candidate is neither a pair nor an ``SVI`` with an ``InducingGuide``;
            * only one of the test arrays is given, or test rows have another shape than training rows;
            * data are not finite, or ``site`` is not a data site;
            * a candidate cannot begin on these data, or cannot predict the test data;
            * with ``elpd``: there are fewer than two folds, fewer rows than folds, or missing data;
            * with ``elpd``: ``model_kwargs`` have ``num_data`` or an entry for each row;
            * with ``elpd``: a candidate cannot begin without the rows of a fold (for ``"loo"``, of one of ten folds).

    If a candidate fails, ``.finished`` of the error has the earlier candidates by name, and the failed candidate too
    if its training had ended.
    """
    if not isinstance(candidates, Mapping) or not candidates:
        raise ValueError(f"compare needs candidates, {{name: (program, initialiser)}}; got {candidates!r}.")
    if (X_test is None) != (y_test is None):
        raise ValueError("Give compare both X_test and y_test, or neither.")
    rng_key, num_steps = checks.rng_key(rng_key), checks.positive_int("num_steps", num_steps)
    batch_size = None if batch_size is None else checks.positive_int("batch_size", batch_size)
    if not callable(learning_rate):
        checks.positive_number("learning_rate", learning_rate)
    trainings = {name: _training_of(name, candidate, learning_rate) for name, candidate in candidates.items()}
    folders = {} if checkpoint is None else _folders(checkpoint, trainings)
    programs = [svi.model for svi in trainings.values()]
    data, kwargs = _data_of(programs, ("X", "y"), (X, y), model_kwargs)
    tests = None
    if X_test is not None:
        test = unlabelled(programs[0], (X_test, y_test), columns_of(programs[0], (X, y)))
        tests = _data_of(programs, ("X_test", "y_test"), test, kwargs, new=True)[0]
        for name, new, old in zip(("X_test", "y_test"), tests, data, strict=True):
            if np.shape(new)[1:] != np.shape(old)[1:] or len(new) != len(tests[0]):
                raise ValueError(f"{name} has shape {np.shape(new)}, but the rows of training are {np.shape(old)}.")
    for name, svi in trainings.items():
        sites = svi.guide.sites_for(data, kwargs)
        observed = sites.names - sites.latents - sites.enumerated - set(sites.parameters)
        if site not in observed and (tests is not None or elpd is not None):
            raise ValueError(
                f"site must be a data site of every program: {name!r} has {sorted(observed)}, got {site!r}."
            )
    by_weights = isinstance(elpd, str) and elpd == "loo"
    folds = [] if elpd is None else _folds(rng_key, data, kwargs, elpd, by_weights)
    task = _Task(rng_key, data, tests, site, score, num_steps, batch_size, kwargs, folds, by_weights)
    begun = {name: task.begun(name, svi) for name, svi in trainings.items()}
    found: dict[str, Candidate] = {}
    for name, svi in trainings.items():
        with keeping_finished(found, f"Candidate {name!r} failed."), warnings.catch_warnings():
            warnings.simplefilter("ignore", PrecisionWarning)  # already given above, once for all candidates
            warnings.filterwarnings("default", "A covariance matrix", PrecisionWarning)  # about this candidate
            trained = task.trained(rng_key, svi, data, checkpoint=folders.get(name), progress=progress and str(name))
            columns = columns_of(svi.model, (X, y))
            trained = replace(trained, _compiled=begun[name]._compiled, data={**trained.data, **columns})
            bound = -float(np.mean(trained.losses[-max(1, num_steps // 20) :])) / len(data[0])
            found[name] = Candidate(bound, None, None, trained)  # an error below leaves it in .finished
            nlpp, scored = task.tested(trained)
            found[name] = replace(found[name], nlpp=nlpp, score=scored, unfinished=task.unfinished(trained, svi))
            if folds:
                left, by = task.left_out(trained, svi)
                found[name] = replace(found[name], elpd=left, elpd_by=by)
    # A partial has no name; without a default, the trained candidates would be lost to an AttributeError.
    return Comparison(found, getattr(score, "__name__", "score").replace("_", " "))


#: Number of folds if weights cannot be trusted, most rows that are left out one by one, and number of weighted draws.
_FOLDS, _MOST_ALONE, _DRAWS = 10, 20, 1000


@dataclass(frozen=True)
class _Task:
    """The training and test data of every candidate, and what to compute."""

    rng_key: Array
    data: tuple
    tests: tuple | None
    site: str
    score: Callable[[SitePrediction, np.ndarray], float] | None
    num_steps: int
    batch_size: int | None
    kwargs: dict[str, Any]
    folds: Sequence[np.ndarray]
    by_weights: bool

    def trained(self, key: Array, svi: SVI, data: tuple, **options: Any) -> Trained:
        """A training of a candidate."""
        return fit(key, svi, self.num_steps, *data, batch_size=self.batch_size, model_kwargs=self.kwargs, **options)

    def begun(self, name: str, svi: SVI) -> Trained:
        """A candidate before its first step: training, test and folds refuse bad input before anything is trained.

        Raises:
            ValueError: naming the candidate.
        """
        untrained = replace(self, num_steps=0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the training gives them
                begun = untrained.trained(self.rng_key, svi, self.data, progress=False)
                with suppress(NonFiniteError, FactorisationError):  # these concern initial parameters only
                    self.tested(begun)
                if self.folds:
                    untrained.trained_without(svi, self.folds)
        except Exception as error:
            error.add_note(f"Candidate {name!r} cannot be trained, either on all rows or on the rows outside a fold.")
            raise
        return begun

    def unfinished(self, trained: Trained, svi: SVI) -> str:
        """Why a training is not finished; see :class:`Candidate`."""
        key, data = named_key(self.rng_key, "more steps"), self.data
        more = partial(gain_of_more_steps, key, svi, trained.params, data, self.batch_size, self.kwargs)
        return end_of(trained.losses, len(data[0]), more).unfinished

    def tested(self, trained: Trained) -> tuple[float | None, float | None]:
        """The nlpp and the score of the test rows; ``None`` for a number that is not asked for."""
        if self.tests is None:
            return None, None
        X, y = self.tests[0], np.asarray(self.tests[1])
        test_data = {self.site: self.tests[1]}
        test = trained.predict(self.rng_key, X, test_data=test_data, model_kwargs=self.kwargs)[self.site]
        seen = _observed(y).reshape(len(y), -1).any(axis=1)
        nlpp = -float(np.mean(test.log_density[seen], dtype=np.float64))
        return nlpp, None if self.score is None else self.score(test, y)

    def left_out(self, trained: Trained, svi: SVI) -> tuple[np.ndarray, str]:
        """The log predictive density of every row given other rows, and how it was found; see :func:`compare`."""
        if self.by_weights and of_objective(svi.loss).trains_posterior:
            if _integrates_out(trained, self.data, self.kwargs):
                return trained.left_out(*self.data, model_kwargs=self.kwargs)[self.site], "LOO, closed form"
            subject = trained._bind(self.data, self.kwargs, seen=False)
            found = densities(subject, named_key(self.rng_key, "loo"), num_draws=_DRAWS)
            terms = found.log_likelihood.get(self.site, np.zeros((_DRAWS, 0))).reshape(_DRAWS, -1)
            if pareto(found.log_ratio)[1] <= largest_k(_DRAWS) and terms.shape[1] == len(self.data[0]):
                weighted = leave_one_out(terms, found.log_ratio)
                bad = np.flatnonzero(weighted.k > largest_k(_DRAWS))
                if len(bad) <= _MOST_ALONE:
                    left = weighted.elpd.copy()
                    left[bad] = self._without(svi, [np.array([i]) for i in bad])
                    return left, f"LOO, {len(bad)} trained without" if len(bad) else "LOO"
        left = np.zeros(len(self.data[0]))
        left[np.concatenate(self.folds)] = self._without(svi, self.folds)
        return left, f"{len(self.folds)} folds"

    def _without(self, svi: SVI, folds: Sequence[np.ndarray]) -> np.ndarray:
        """Log predictive densities of the rows of each fold by a training without them, one fold after the other."""
        if not folds:
            return np.zeros(0)
        X, y = (np.asarray(x) for x in self.data)
        several, found = self.trained_without(svi, folds), []
        for k, fold in enumerate(folds):
            test = {"test_data": {self.site: y[fold]}, "model_kwargs": self.kwargs}
            found.append(several.member(k).predict(self.rng_key, X[fold], **test)[self.site].log_density)
        return np.concatenate(found)

    def trained_without(self, svi: SVI, folds: Sequence[np.ndarray]) -> Trained:
        """A training without each fold; all folds have as many rows."""
        X, y = (np.asarray(x) for x in self.data)
        size = len(X) - max(map(len, folds))
        kept = np.stack([np.setdiff1d(np.arange(len(X)), fold)[:size] for fold in folds])
        keys = random.split(named_key(self.rng_key, "without"), len(folds))
        return self.trained(keys, svi, (X[kept], y[kept]), progress=False)


def _integrates_out(trained: Trained, data: tuple, kwargs: Mapping[str, Any]) -> bool:
    """Whether GP sites have a closed form given all data but one row, at hyperparameters that are points.

    A ``q`` with fewer numbers than that of the closed form is another model.
    """
    guide, sites = trained.guide, trained.guide.sites
    grids = any(getattr(for_site(guide.inducing, name), "num_axes", 0) for name in sites.processes)
    if type(guide) is not InducingGuide or guide.hyperparameters != "point" or guide.joint or grids:
        return False
    whole = all(type(guide.form_at(name)) in (Full, Coupled, CoupledAfter) for name in sites.processes)
    if not whole or (len(sites.processes) > 1 and guide.coupled is not True):
        return False
    trace = look(trained.model, data, dict(kwargs), dict(trained.params)).trace
    views = any(unmasked(trace[name]["fn"]).samples_views for name in sites.processes)
    noises = [unmasked(site["fn"]) for site in terms_per_datum(trace).values()]
    gaussian = all(isinstance(fn, Likelihood) and fn.noise is not None and fn.quadratic for fn in noises)
    return gaussian and not (views or sites.drawn or sites.enumerated)


def _training_of(name: str, candidate: Any, learning_rate: float | optax.Schedule) -> SVI:
    """NumPyro's object of a candidate.

    Raises:
        ValueError: for a candidate that cannot be trained.
    """
    if isinstance(candidate, SVI):
        if not isinstance(candidate.guide, InducingGuide):
            raise ValueError(f"The guide of candidate {name!r} must be an InducingGuide, got {candidate.guide!r}.")
        return candidate
    if not isinstance(candidate, tuple) or len(candidate) != 2:
        raise ValueError(f"Candidate {name!r} must be a pair (program, initialiser) or an SVI, got {candidate!r}.")
    return SVI(candidate[0], InducingGuide(*candidate), optax.adam(learning_rate), GaussianProcessELBO())


def _folds(key: Array, data: tuple, kwargs: dict[str, Any], elpd: Any, by_weights: bool) -> list[np.ndarray]:
    """The rows of each fold.

    Raises:
        ValueError: for an impossible number of folds, and data that cannot be split.
    """
    rows = len(data[0])
    count = _FOLDS if by_weights else checks.whole("elpd, where it is not 'loo',", elpd, 2, rows)
    by_row = [n for n, x in kwargs.items() if np.shape(x)[:1] == (rows,) or n == "num_data"]
    if by_row:
        raise ValueError(f"elpd trains on parts of the rows, and model_kwargs {by_row} belong to all of them.")
    if not _observed(np.asarray(data[1])).all():
        raise ValueError("elpd needs data in every row: leave out the rows with missing data.")
    return np.array_split(np.asarray(random.permutation(named_key(key, "folds"), rows)), min(count, rows))


def _folders(checkpoint: str | Path, names: Iterable[Any]) -> dict[Any, Path]:
    """The folder of each candidate's checkpoints.

    Raises:
        TypeError: if ``checkpoint`` is not a path.
        ValueError: if a folder is impossible, or two are the same.
    """
    folder = checked_path("checkpoint", checkpoint, "a folder")
    found = {name: checked_path(f"checkpoint of candidate {name!r}", folder / str(name), "a folder") for name in names}
    if len(set(found.values())) < len(found):
        raise ValueError(f"Give candidates names of their own for their folders of checkpoints, got {list(found)}.")
    return found


def _data_of(
    programs: Sequence[Callable],
    names: tuple[str, str],
    arrays: tuple,
    kwargs: Mapping[str, Any] | None,
    **options: Any,
) -> tuple[tuple, dict[str, Any]]:
    """Data of all programs, checked, by the names of the arguments in messages."""
    absent: checks.Absent = []
    args, kwargs = checks.arguments(names, arrays, kwargs, absent=absent, **options)
    for program in programs:
        refuse_absent(program, args, kwargs, absent)
    return args, kwargs
