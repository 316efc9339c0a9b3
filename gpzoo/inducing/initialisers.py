"""Initialisers of inducing variables; they read the inputs of a site and run outside ``jit``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float, Integer, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._types import ArrayLike
from gpzoo.inducing.variables import InducingBlocks, InducingPatches, InducingPoints, InducingVariable, block_pairs
from gpzoo.kernels.base import Kernel, addends
from gpzoo.kernels.double_sum import DoubleSum
from gpzoo.views.base import SampledView

#: With more inputs than this, and more than 20 for each centre, :class:`kmeans` clusters a random part of the inputs.
LARGE = 10_000


class Initialiser:
    """The base class of initialisers, which make initial inducing variables from the inputs and the kernel of a site.

    A subclass sets :attr:`variable` to the type of its inducing variables and defines :meth:`initialise`, as in the
    example. Pass the initialiser to a guide: ``InducingGuide(model, on_a_line(20))``.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np
        >>> from gpzoo import InducingPoints, Initialiser
        >>> class on_a_line(Initialiser):
        ...     variable = InducingPoints
        ...
        ...     def __init__(self, num_inducing):
        ...         self.num_inducing = num_inducing
        ...
        ...     def initialise(self, key, X, kernel):
        ...         return InducingPoints(jnp.linspace(X.min(axis=0), X.max(axis=0), self.num_inducing))
        >>> on_a_line(3).initialise(jax.random.key(0), np.array([[0.0], [5.0], [2.0]], np.float32), None).Z.ravel()
        Array([0. , 2.5, 5. ], dtype=float32)
    """

    #: The type of the inducing variables that the initialiser makes.
    variable: ClassVar[type[InducingVariable]]

    def initialise(self, key: PRNGKeyArray, X: Float[np.ndarray, "N ..."], kernel: Kernel) -> InducingVariable:
        """The inducing variables for one set of inputs.

        Args:
            key: random key.
            X: the site's inputs, concrete and finite.
            kernel: the site's kernel.

        Raises:
            ValueError: if the inputs do not have enough distinct rows.
        """
        checks.unwritten(self, "initialise(key, X, kernel)")

    def structure(self) -> Any:
        """The tree structure of the inducing variables that the initialiser makes.

        A subclass overrides this method if its :attr:`variable` has static fields.
        """
        return jax.tree.structure(self.variable._unflatten((), (0,) * len(self.variable.data_fields)))

    def __call__(self, key: Array, X: ArrayLike, kernel: Kernel) -> InducingVariable:
        """An inducing variable for a site with this kernel at these inputs, ``[N, ...]`` or ``[D, N, ...]``.

        Raises:
            TypeError: under a transformation such as ``jax.jit``.
            ValueError: if the inputs are not finite or do not have enough distinct rows.
        """
        checks.refuse(
            not checks.is_concrete(key) or not checks.is_concrete(X),
            f"{type(self).__name__} reads the values of the inputs, so it cannot run under jax.jit, vmap or grad: "
            "initialisers run outside jit. Create the parameters first with guide.init_params, then jit. To render "
            "a guide, give it these: handlers.substitute(guide, params).",
            TypeError,
        )
        rows = np.asarray(checks.floating("X", X))
        checks.finite("X", rows)
        if kernel.has_outputs(rows):
            keys = random.split(key, rows.shape[0])
            made = [self.initialise(k, x, kernel) for k, x in zip(keys, rows, strict=True)]
            return jax.tree.map(lambda *leaves: jnp.stack(leaves), *made)
        return self.initialise(key, rows, kernel)


@dataclass(frozen=True)
class _Counted(Initialiser):
    """An initialiser with a given number of inducing variables."""

    num_inducing: int

    def __post_init__(self) -> None:
        needs = f"{type(self).__name__} needs a whole number of inducing variables >= 1, got {self.num_inducing}."
        checks.refuse(int(self.num_inducing) != self.num_inducing or self.num_inducing < 1, needs)

    def _first_distinct(self, rows: Float[np.ndarray, "N e"]) -> Integer[np.ndarray, "{self.num_inducing}"]:
        first = _distinct(rows, self.num_inducing)
        self._refuse_fewer(len(first), "distinct rows")
        return first

    def _refuse_fewer(self, available: int, what: str) -> None:
        M, what = self.num_inducing, what if available > 1 else what.removesuffix("s").removesuffix("e")
        checks.refuse(
            available < M,
            f"{type(self).__name__}({M}) asks for {M} inducing variables, but X has only {available} {what}. "
            f"Ask for at most {available}.",
        )


class kmeans(_Counted):
    """Inducing points at the centres of ``num_inducing`` k-means clusters; an image is treated as a vector.

    With at most 10,000 inputs, or at most 20 inputs for each centre, gpzoo clusters all inputs. Otherwise, it clusters
    a random part of the inputs.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kernels, kmeans
        >>> X = np.array([[0.0], [0.1], [5.0], [5.1]], np.float32)
        >>> np.sort(kmeans(2).initialise(jax.random.key(0), X, kernels.RBF()).Z, axis=0).round(2).ravel()
        array([0.05, 5.05], dtype=float32)
    """

    variable = InducingPoints

    def initialise(self, key: PRNGKeyArray, X: Float[np.ndarray, "N ..."], kernel: Kernel) -> InducingPoints:
        """Cluster centres; rows of the inputs replace centres that coincide."""
        from scipy.cluster.vq import kmeans2
        from threadpoolctl import threadpool_limits

        M, rows = self.num_inducing, X.reshape(len(X), -1)
        self._first_distinct(rows)
        rng = np.random.default_rng(int(random.bits(key, dtype=jnp.uint32)))
        most = max(LARGE, 20 * M)
        some = rows if len(rows) <= most else rows[rng.choice(len(rows), most, replace=False)]
        # Squares of large numbers overflow, and squares of inputs far from zero lose the differences between inputs. So
        # inputs are scaled and centred. Clusters depend neither on the unit nor on the origin.
        largest = np.max(np.abs(some))
        unit = largest if largest > np.finfo(rows.dtype).max ** 0.25 else rows.dtype.type(1)
        some = some / unit
        middle = some.mean(axis=0)
        some -= middle
        # One thread: several threads would sum in separate parts, and centres would depend on the number of cores.
        with warnings.catch_warnings(), threadpool_limits(1, user_api="blas"):
            # Centres of clusters without a row stay where they are.
            warnings.filterwarnings("ignore", "One of the clusters is empty", UserWarning)
            centres, still = _far_apart(rng, some, M), 1e-4 * some.var(axis=0).mean()
            for _ in range(10):
                before = centres
                centres = kmeans2(some, before, iter=10, minit="matrix", check_finite=False)[0]
                if np.square(centres - before).sum() <= still:
                    break
        pool = np.concatenate([((centres + middle) * unit).astype(X.dtype), rows])
        return InducingPoints(pool[self._first_distinct(pool)].reshape(M, *X.shape[1:]))


def _far_apart(rng: np.random.Generator, rows: Float[np.ndarray, "N d"], M: int) -> Float[np.ndarray, "M d"]:
    """Rows drawn one after another, with odds proportional to the squared distance to the nearest earlier row.

    Each turn draws a few rows and takes the row after which the distances are smallest (k-means++, Arthur and
    Vassilvitskii 2007, section 3).
    """
    norms, nearest = np.square(rows).sum(axis=1), np.full(len(rows), np.inf, rows.dtype)
    taken = [int(rng.integers(len(rows)))]
    for _ in range(M - 1):
        nearest = np.minimum(nearest, _distances(rows, norms, taken[-1:])[0])
        odds = np.cumsum(nearest, dtype=np.float64)
        drawn = np.searchsorted(odds, odds[-1] * rng.uniform(size=2 + int(np.log(M))), side="right")
        drawn = np.minimum(drawn, len(rows) - 1)
        left = np.minimum(nearest, _distances(rows, norms, drawn)).sum(axis=1)
        taken.append(int(drawn[np.argmin(left)]))
    return rows[taken]


def _distances(
    rows: Float[np.ndarray, "N d"], norms: Float[np.ndarray, " N"], of: Sequence[int] | Integer[np.ndarray, " T"]
) -> Float[np.ndarray, "T N"]:
    """Squared distances of some rows to all rows."""
    return np.maximum(norms[of][:, None] - 2 * rows[of] @ rows.T + norms, 0)


class random_subset(_Counted):
    """Inducing points at ``num_inducing`` distinct rows of the inputs, drawn at random.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import random_subset
        >>> rows = np.arange(20, dtype=np.float32).reshape(10, 2)
        >>> Z = random_subset(3).initialise(jax.random.key(0), rows, None).Z
        >>> Z.shape, bool(np.isin(Z[:, 0], rows[:, 0]).all())
        ((3, 2), True)
    """

    variable = InducingPoints

    def initialise(self, key: PRNGKeyArray, X: Float[np.ndarray, "N ..."], kernel: Kernel) -> InducingPoints:
        """Distinct rows of the inputs."""
        order = np.asarray(random.permutation(key, len(X)))
        return InducingPoints(X[order[self._first_distinct(X[order].reshape(len(X), -1))]])


class unique_patches(_Counted):
    """Inducing patches at distinct patches of random inputs, for kernels with a :class:`~gpzoo.kernels.DoubleSum`.

    The initialiser collects the distinct patches of ``M = num_inducing`` random inputs, and draws ``M`` patches from
    them. If ``M`` inputs have too few distinct patches, it takes more inputs.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kernels, unique_patches
        >>> images = np.tile(np.eye(8, dtype=np.float32)[None, :, :, None], (20, 1, 1, 1))
        >>> kernel = kernels.Convolutional(kernels.RBF(), (8, 8), (2, 2))
        >>> np.unique(unique_patches(4).initialise(jax.random.key(0), images, kernel).Z, axis=0)
        array([[0., 0., 0., 0.],
               [0., 0., 1., 0.],
               [0., 1., 0., 0.],
               [1., 0., 0., 1.]], dtype=float32)
    """

    variable = InducingPatches

    def initialise(self, key: PRNGKeyArray, X: Float[np.ndarray, "N ..."], kernel: Kernel) -> InducingPatches:
        """Distinct patches of the inputs."""
        M, N, parts = self.num_inducing, X.shape[0], _double_sums(self, kernel)
        key_inputs, key_patches = random.split(key)
        key_views = random.fold_in(key, 2)
        order = np.asarray(random.permutation(key_inputs, N))
        count = M
        while True:
            chosen = jnp.asarray(X[order[:count]])
            pool = np.concatenate([np.asarray(_seen(part, key_views, chosen)) for part in parts])
            pool = pool[_distinct(pool)]
            if len(pool) >= M or count >= N:
                self._refuse_fewer(len(pool), "distinct patches")
                return InducingPatches(pool[np.asarray(random.permutation(key_patches, len(pool)))[:M]])
            count *= 2


class uniform_patches(_Counted):
    """Inducing patches of uniform noise in [0, 1], for kernels with a :class:`~gpzoo.kernels.DoubleSum`.

    There are ``num_inducing`` patches, for images with pixels in [0, 1]. The rectangles experiment of van der Wilk,
    Rasmussen and Hensman (2017, section 4.1) starts from such patches.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import kernels, uniform_patches
        >>> kernel = kernels.Convolutional(kernels.RBF(), (8, 8), (3, 3))
        >>> uniform_patches(5).initialise(jax.random.key(0), np.zeros((2, 8, 8, 1), np.float32), kernel).Z.shape
        (5, 9)
    """

    variable = InducingPatches

    def initialise(self, key: PRNGKeyArray, X: Float[np.ndarray, "N ..."], kernel: Kernel) -> InducingPatches:
        """Patches of noise."""
        size = _view_size(_double_sums(self, kernel)[0])
        return InducingPatches(random.uniform(key, (self.num_inducing, size), X.dtype))


class blocks(Initialiser):
    """Initial :class:`InducingBlocks`: one initialiser for each part of a sum, or one initialiser for all parts.

    An example is ``blocks(unique_patches(750), kmeans(750))``. If you give one initialiser, all parts use its result.

    Example:
        >>> import jax, numpy as np
        >>> from gpzoo import blocks, kernels, kmeans, random_subset
        >>> X = np.linspace(0, 1, 20, dtype=np.float32)[:, None]
        >>> kernel = kernels.RBF(1.0, 2.0) + kernels.RBF(1.0, 0.1)
        >>> start = blocks(kmeans(3), random_subset(10))(jax.random.key(0), X, kernel)
        >>> [part.Z.shape for part in start.parts]
        [(3, 1), (10, 1)]

    Args:
        *parts: initialisers or inducing variables, in the order of the kernel's parts.

    Raises:
        TypeError: if a part is neither an initialiser nor an inducing variable.
    """

    variable = InducingBlocks

    def __init__(self, *parts: Initialiser | InducingVariable) -> None:
        fine = bool(parts) and all(isinstance(part, Initialiser | InducingVariable) for part in parts)
        got = f"blocks takes initialisers such as kmeans(100), or inducing variables; got {parts}."
        checks.refuse(not fine, got, TypeError)
        self.parts = tuple(parts)

    def structure(self) -> Any:
        """The tree structure of each part."""
        parts = [jax.tree.unflatten(s, [0] * s.num_leaves) for s in map(structure, self.parts)]
        return jax.tree.structure(InducingBlocks._unflatten((), (tuple(parts),)))

    def __call__(self, key: Array, X: ArrayLike, kernel: Kernel) -> InducingBlocks:
        """Inducing variables for a site with this kernel at these inputs; see the initialisers of the parts.

        Raises:
            ValueError: if the numbers of initialisers and of the kernel's parts differ.
        """
        pairs = block_pairs(self, kernel)
        # A shared initialiser gets the whole kernel, so that it sees the patches of every channel.
        pairs = [(self.parts[0], kernel)] if len(self.parts) == 1 else pairs
        made = []
        for k, (start, part) in zip(random.split(key, len(pairs)), pairs, strict=True):
            made.append(start if isinstance(start, InducingVariable) else start(k, X, part))
        return InducingBlocks(*made)


def start(
    site: str, initialiser: Initialiser, key: Array, X: Array, kernel: Kernel, before: Mapping[str, Any]
) -> InducingVariable:
    """The initial inducing variables of a program's site.

    Args:
        site: the site's name.
        initialiser: an initialiser such as ``kmeans(100)``.
        key: random key.
        X: the site's inputs.
        kernel: the site's kernel.
        before: initial values of the earlier GP sites, by name.

    Raises:
        ValueError: if the initialiser raises one. The message then also names the site, and the earlier sites whose
            initial values are equal at all rows.
        TypeError: if the initialiser raises one; the message has the same names.
    """
    try:
        return initialiser(key, X, kernel)
    except (ValueError, TypeError) as error:
        seen = {name: np.asarray(value) for name, value in before.items() if checks.is_concrete(value)}
        constant = [name for name, value in seen.items() if len(value) > 1 and not np.ptp(value, axis=0).any()]
        text = f"GP site {site!r}: {error}"
        if constant:
            text += (
                f" The GP site(s) before it, {', '.join(map(repr, constant))}, start constant: give them a mean that "
                f"varies, GaussianProcess(kernel, X, mean=X), or give {site!r} inducing points of your own."
            )
        raise (TypeError if isinstance(error, TypeError) else ValueError)(text) from error


def structure(inducing: Initialiser | InducingVariable) -> Any:
    """The tree structure of an inducing variable, or of the inducing variable that an initialiser makes."""
    return inducing.structure() if isinstance(inducing, Initialiser) else jax.tree.structure(inducing)


def _double_sums(initialiser: Initialiser, kernel: Kernel) -> list[DoubleSum]:
    parts = [part for _, part in addends(kernel) if isinstance(part, DoubleSum)]
    checks.refuse(
        not parts,
        f"{type(initialiser).__name__} needs a kernel with a DoubleSum (or Convolutional) in it, got "
        f"{type(kernel).__name__}. Use kmeans or random_subset.",
        TypeError,
    )
    sizes = sorted({_view_size(part) for part in parts})
    checks.refuse(
        len(sizes) > 1,
        f"The kernel's double sums have views of different sizes ({sizes}), and inducing patches only one. "
        "Sample one GaussianProcess site for each and add their values.",
    )
    return parts


def _view_size(kernel: DoubleSum) -> int:
    """Size of a view, or of a view of views."""
    return _view_size(kernel.base) if isinstance(kernel.base, DoubleSum) else kernel.view.view_size


def _seen(kernel: DoubleSum, key: PRNGKeyArray, X: Float[Array, "N ..."]) -> Float[Array, "_ e"]:
    """All views (of views) of the inputs, or a sample of these views: rows of :func:`_view_size` numbers."""
    view = kernel.view
    views = view.sample(key, X) if isinstance(view, SampledView) else view.view(X)
    if isinstance(kernel.base, DoubleSum):
        return _seen(kernel.base, key, views.reshape(-1, *X.shape[1:]))
    return views.reshape(-1, views.shape[-1])


def _distinct(rows: Float[np.ndarray, "N e"], limit: int | None = None) -> Integer[np.ndarray, " K"]:
    """Indices of the first occurrences of distinct rows, in order; at most ``limit`` indices, if it is given."""
    # Sorting rows as bytes is many times faster than sorting by columns. Adding zero makes -0 and 0 equal.
    rows = np.ascontiguousarray(rows + np.zeros((), rows.dtype))
    as_bytes = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0]
    end = len(rows) if limit is None else limit
    while True:
        first = np.sort(np.unique(as_bytes[:end], return_index=True)[1])
        if end >= len(rows) or (limit is not None and len(first) >= limit):
            return first[:limit]
        end *= 2
