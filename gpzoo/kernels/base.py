"""The base class of kernels, and the algebra of kernels: sums, products and multiples."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from typing import Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, random
from jaxtyping import Float, PRNGKeyArray

from gpzoo import _checks as checks
from gpzoo._pytree import Fields
from gpzoo._types import ArrayLike
from gpzoo.linalg.factorise import needed_jitter
from gpzoo.linalg.operators import matmul, total
from gpzoo.linalg.state_space import States

#: Names of the methods that can define a covariance.
COVARIANCES = {"evaluate", "profile", "scaled", "cross", "gram", "variances"}

#: Methods that belong to a covariance, by name, and the methods that may replace this covariance in a subclass.
_BELONGING = {
    **{name: {"evaluate", "cross"} for name in ("gram", "variances", "least_variances")},
    **{name: COVARIANCES for name in ("states", "frequencies", "density")},
    "prior_functions": COVARIANCES - {"scaled"},
}


def same_covariance(kernel: Any, of: type[Kernel], *, apart: Collection[str] = ()) -> bool:
    """Whether a kernel, or a class, has the methods of a class that give its covariance, apart from some by name."""
    own = kernel if isinstance(kernel, type) else type(kernel)
    return all(getattr(own, name, None) == getattr(of, name, None) for name in COVARIANCES.difference(apart))


def _replaces(cls: type, covariance: str, name: str) -> bool:
    """Whether a class has another covariance than the one for which a base class wrote the method ``name``.

    A base class whose ``evaluate`` or ``profile`` is abstract wrote it for the covariances of all classes below it.
    """
    wrote = _first(cls.__mro__[1:], name)
    own = vars(_first(wrote.__mro__, "evaluate", "profile", "cross"))
    left_open = any(getattr(method, "__isabstractmethod__", False) for method in own.values())
    return covariance in vars(cls) and (not left_open or issubclass(_first(cls.__mro__[1:], covariance), wrote))


def _first(classes: Sequence[type], *methods: str) -> type:
    """The first class that defines one of some methods."""
    return next((each for each in classes if not vars(each).keys().isdisjoint(methods)), object)


class Kernel(Fields):
    """A covariance function; a pytree whose leaves are its hyperparameters.

    ``kernel(X)`` is the Gram matrix ``[N, N]``, with white noise on its diagonal. ``kernel(X, Z)`` is a
    cross-covariance ``[N, M]``, without white noise. ``kernel.diag(X)`` are the variances ``[N]``. Kernels can be added
    and multiplied, and a positive number scales a kernel.

    Hyperparameters are plain arrays. The program decides whether a hyperparameter is a ``numpyro.param``, a
    ``numpyro.sample`` or a constant. Hyperparameters may have a leading axis ``D``, with one kernel for each output.
    Then every array leaf that is not a scalar has this axis. Inputs may be ``[D, N, ...]``: output ``d`` uses kernel
    ``d`` on ``X[d]``. The results are then ``[D, N, N]``, ``[D, N, M]`` and ``[D, N]``. Results have the dtype of the
    inputs, because gpzoo casts the hyperparameters to this dtype.

    **A kernel of your own** is a function of two points (:class:`~gpzoo.kernels.Pointwise`), or a class with annotated
    fields and one method. This method gives the covariance of two points::

        class Cosine(Elementary):
            variance: Array
            period: Array

            def evaluate(self, x, z):
                return self.variance * jnp.cos(2 * jnp.pi * jnp.sum(x - z) / self.period)

        kernel = Cosine(1.0, period=jnp.asarray([1.0, 2.0])) + White(0.1)    # one kernel for each of two outputs

    The class may define any of the following members. Most defaults follow from :meth:`evaluate`:

    =====================  ============================================================  =============================
    method                 meaning                                                       default
    =====================  ============================================================  =============================
    :meth:`evaluate`       covariance of two points, a scalar                            raises an error
    :meth:`cross`          covariances ``[N, M]``; define it for speed                   :meth:`evaluate` of all pairs
    :meth:`gram`           covariance matrix ``[N, N]``; define it to use symmetry       ``cross(X, X)``
    :meth:`variances`      diagonal of :meth:`gram`, ``[N]``; define it for speed        :meth:`cross`, row by row
    :meth:`split_noise`    kernel of the function, and kernel of the noise               no noise
    :meth:`frequencies`    random spectral frequencies, needed to draw functions         raises an error
    :meth:`density`        spectral density, for :class:`~gpzoo.kernels.HilbertSpace`    raises an error
    :attr:`batched`        whether there is one kernel per output                        no; see :class:`Elementary`
    :attr:`input_ndim`     rank of an input                                              1, a vector
    =====================  ============================================================  =============================

    ``kernel(X)``, ``kernel(X, Z)``, ``kernel.diag(X)`` and composite kernels call these methods. A method may assume:

    * The hyperparameters belong to one kernel, because calls are vectorised over the axis of outputs.
    * Inputs are floating arrays ``[N, ...]`` of rank ``input_ndim + 1``. If inputs are vectors, ``X`` and ``Z`` have
      the same number of columns.
    * Inputs and hyperparameters have the same dtype. Their values may be traced.

    gpzoo checks these assumptions. It also checks that results have one entry per row. Your class must check its other
    requirements, such as a number of columns. If your class replaces the covariance of its base class, it inherits only
    what still belongs to it: with another :meth:`cross`, for example, it has the default :meth:`gram` and
    :meth:`variances`, and no spectrum.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, Kernel, Linear, White
        >>> kernel = 2.0 * RBF() * Linear() + White(0.1)
        >>> X = np.array([[1.0], [2.0]], np.float32)
        >>> np.asarray(kernel(X)).round(1), np.asarray(kernel(X, X)).round(1)
        (array([[2.1, 2.4],
               [2.4, 8.1]], dtype=float32), array([[2. , 2.4],
               [2.4, 8. ]], dtype=float32))
        >>> isinstance(kernel, Kernel)
        True
    """

    #: The kernel that replaces a number in a sum: :class:`Constant`. The module of this kernel sets the attribute.
    of_number: ClassVar[type[Any]]

    # Otherwise NumPy would evaluate ``array * kernel`` entry by entry, and never call ``kernel.__rmul__``.
    __array_ufunc__ = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        owner = next(base for base in cls.__mro__ if "cross" in vars(base))
        checks.refuse(
            "evaluate" in vars(cls) and owner not in (cls, Kernel) and owner.__module__.startswith("gpzoo."),
            f"{cls.__name__} defines evaluate, and the covariance of {owner.__name__} does not call it: define "
            "cross(X, Z) instead, or derive the class from gpzoo.kernels.Elementary.",
            TypeError,
        )
        # If a class has another covariance than its base class, it has another diagonal and spectrum, or none.
        for name, covariances in _BELONGING.items():
            if name not in vars(cls) and any(_replaces(cls, covariance, name) for covariance in covariances):
                setattr(cls, name, getattr(Kernel, name))

    # -- methods of a subclass ---------------------------------------------------------------------------------------

    @property
    def input_ndim(self) -> int | None:
        """Rank of a single input: 1 for vectors, 3 for images, ``None`` if only the number of inputs matters."""
        return 1

    @property
    def batched(self) -> bool:
        """Whether the hyperparameters have a leading axis, with one kernel per output."""
        return False

    @abstractmethod
    def evaluate(self, x: Float[Array, "..."], z: Float[Array, "..."]) -> Array:
        """The covariance of the function's values at two inputs, a scalar, without noise."""
        checks.unwritten(self, "a covariance: write evaluate(x, z), of two inputs, or cross(X, Z), of all rows")

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """Covariances of the function's values at the rows of ``X`` and of ``Z``, without noise."""
        X, Z = self.active_columns(X), self.active_columns(Z)
        return jax.vmap(lambda x: jax.vmap(lambda z: self._at_pair(x, z))(Z))(X)

    def active_columns(self, X: Float[Array, "N ..."]) -> Float[Array, "N ..."]:
        """The part of the inputs that :meth:`evaluate` gets."""
        return X

    def gram(self, X: Float[Array, "N ..."]) -> Float[Array, "N N"]:
        """Covariance matrix of the values at the rows of ``X``, with noise."""
        return self.cross(X, X)

    def variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """The diagonal of :meth:`gram`."""
        return jax.vmap(lambda x: self.cross(x[None], x[None])[0, 0])(X)

    def least_variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """For a sum of kernels, the smallest variance of its terms at each row; for other kernels, :meth:`variances`.

        Call it only on kernels without noise.
        """
        return self.variances(X)

    def split_noise(self) -> tuple[Kernel | None, Kernel | None]:
        """The two terms of this kernel: the covariance of a function, and the covariance of independent noise.

        The noise is independent between rows. It enters :meth:`gram` and :meth:`variances`, but not :meth:`cross`. A
        term is ``None`` if there is no function, or no noise.
        """
        return self, None

    def frequencies(
        self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any
    ) -> Float[Array, "{num} {num_columns}"]:
        """Draws from the spectral density: ``k(x, x') = k(0) E[cos(omega . (x - x'))]``, for stationary kernels.

        Args:
            key: random key.
            num: number of draws.
            num_columns: number of input columns; inactive columns have frequency 0.
            dtype: dtype of the result.

        Returns:
            Frequencies in radians per unit of the inputs.

        Raises:
            TypeError: for kernels that do not define this method.
        """
        raise TypeError(
            f"{type(self).__name__} has no known spectral density, so its functions cannot be drawn by random "
            "features: draw them jointly at your inputs (up to a few thousand), by "
            "trained.to_arviz(key, X, y, new_args=(X_new,)) or numpyro.infer.Predictive(guide, ...). The "
            "class of a stationary kernel may define a method `frequencies`."
        )

    def prior_functions(
        self, X: Float[Array, "N ..."], key: PRNGKeyArray, num_functions: int, num_features: int
    ) -> Float[Array, "N {num_functions}"]:
        """Functions from the prior, see :func:`~gpzoo.kernels.fourier_features.function_values`."""
        key_frequencies, key_weights = random.split(key)
        half = max(num_features // 2, 1)
        omega = self.frequencies(key_frequencies, half, X.shape[-1], X.dtype)
        weights = random.normal(key_weights, (2 * half, num_functions), X.dtype)
        phase = matmul(X, omega.T)
        waves = jnp.concatenate([jnp.cos(phase), jnp.sin(phase)], axis=1)
        return jnp.sqrt(self.variances(X) / half)[:, None] * matmul(waves, weights)

    def density(self, omega: Float[Array, "F d"]) -> Float[Array, " F"]:
        """The spectral density, ``k(x, x') = (2 pi)^-d int S(omega) cos(omega . (x - x')) d omega``.

        Args:
            omega: frequencies in radians per unit of the inputs.

        Raises:
            TypeError: for kernels without a spectral density, or kernels of some columns only.
        """
        raise TypeError(
            f"{type(self).__name__} has no spectral density here: HilbertSpace takes RBF and Matérn kernels of all "
            "columns, sums and multiples of such, and classes with a method `density`."
        )

    def states(self, X: Float[Array, "N 1"]) -> States:
        """The state-space form at rows in order; with it, the cost of a series is linear in the number of rows.

        Args:
            X: times, in ascending order.

        Raises:
            TypeError: for kernels without a state-space form.
        """
        raise TypeError(
            f"{type(self).__name__} has no state-space form here: Matérn kernels, Cosine, SHO, BrownianMotion, Linear, "
            "Constant, White and Gate have one, their sums, products and multiples, and classes with a method `states`."
        )

    def check_fields(self) -> None:
        """Refuse hyperparameters whose shapes do not fit each other; every evaluation calls this method first.

        Raises:
            ValueError: with the names of these hyperparameters.
        """

    # -- calls -------------------------------------------------------------------------------------------------------

    def __call__(self, X: ArrayLike, Z: ArrayLike | None = None) -> Float[Array, "*D N M"]:
        """Gram matrix of ``X``, or the cross-covariance of ``X`` and ``Z``.

        Args:
            X: inputs ``[N, ...]`` or ``[D, N, ...]``.
            Z: inputs ``[M, ...]`` or ``[D, M, ...]``.

        Returns:
            ``[N, N]`` or ``[N, M]``, with a leading ``D`` if the kernel or the inputs have one.

        Raises:
            TypeError: if an input is not numeric.
            ValueError: if an input has the wrong rank for this kernel, or the numbers of columns or outputs differ.
        """
        if Z is None:
            return self._over_outputs(lambda k, X: k.gram(X), X)
        return self._over_outputs(lambda k, X, Z: k.cross(X, Z), X, Z)

    def diag(self, X: ArrayLike) -> Float[Array, "*D N"]:
        """Variances ``k(x, x)`` of the rows of ``X``, with noise.

        Their shape is ``[N]``, or ``[D, N]`` if the kernel or the inputs have a leading ``D``.
        """
        return self._over_outputs(lambda k, X: k.variances(X), X)

    def noise_diag(self, X: ArrayLike) -> Float[Array, "*D N"]:
        """The part of :meth:`diag` that is noise."""

        def noise(k: Kernel, X: Array) -> Array:
            own = k.split_noise()[1]
            return jnp.zeros(len(X), X.dtype) if own is None else own.variances(X)

        return self._over_outputs(noise, X)

    def jitter(self, X: ArrayLike) -> Float[Array, "*D"]:
        """The jitter that the Gram matrix of ``X`` needs; see :func:`gpzoo.linalg.factorise.needed_jitter`."""
        return needed_jitter(*self.variances_for_jitter(X))

    def variances_for_jitter(self, X: ArrayLike) -> tuple[Float[Array, "*D N"], ...]:
        """The arguments of :func:`gpzoo.linalg.factorise.needed_jitter`."""

        def least(k: Kernel, X: Array) -> Array:
            own = k.split_noise()[0]
            return jnp.zeros(len(X), X.dtype) if own is None else own.least_variances(X)

        return self.diag(X), self._over_outputs(least, X), self.noise_diag(X)

    def has_outputs(self, X: Array | np.ndarray) -> bool:
        """Whether inputs are one set per output, ``[D, N, ...]``. Their rank must be valid (:meth:`check_inputs`)."""
        return self.input_ndim is not None and X.ndim == self.input_ndim + 2

    def check_inputs(self, X: ArrayLike, name: str = "X") -> Float[Array, "..."]:
        """Inputs as a floating array ``[N, ...]`` or ``[D, N, ...]``.

        Args:
            X: the user's inputs.
            name: their name in messages.

        Raises:
            TypeError: if they are not numeric.
            ValueError: if they have the wrong rank for this kernel.
        """
        X = checks.floating(name, X)
        if self.input_ndim is None:
            wrong, wanted = X.ndim == 0, "[N, ...]"
        else:
            wrong = X.ndim != self.input_ndim + 1 and not self.has_outputs(X)
            named = {1: "[N, features]", 3: "[N, height, width, channels]"}
            wanted = named.get(self.input_ndim, f"of {self.input_ndim + 1} axes, [N, ...]")
        checks.refuse(
            wrong,
            f"{type(self).__name__} takes inputs {wanted} (or with one leading axis, one set per output), "
            f"got {name} of shape {tuple(X.shape)}.{self._way_out(X, name)}",
        )
        return X

    def _way_out(self, X: Float[Array, "..."], name: str) -> str:
        """The end of a message on inputs of a wrong rank, which tells users how to change these inputs."""
        return f" A single feature is {name}[:, None]." if self.input_ndim == 1 and X.ndim == 1 else ""

    def batch_axes(self) -> Kernel:
        """``in_axes`` for ``vmap``: each leaf is replaced by the number of its output axis, or ``None`` without one."""
        return jax.tree.map(lambda leaf: 0 if self.batched and jnp.ndim(leaf) else None, self)

    def _over_outputs(self, evaluate: Callable[..., Array], *given: ArrayLike) -> Float[Array, "..."]:
        self.check_fields()
        inputs = {name: self.check_inputs(x, name) for name, x in zip(("X", "Z"), given, strict=False)}
        shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items())
        checks.refuse(
            self.input_ndim == 1 and len({x.shape[-1] for x in inputs.values()}) > 1,
            f"{type(self).__name__} got inputs with different numbers of columns: {shapes}.",
        )
        return self._vectorised(evaluate, inputs, [name for name, x in inputs.items() if self.has_outputs(x)])

    def _vectorised(
        self, evaluate: Callable[..., Array], inputs: Mapping[str, Float[Array, "..."]], several: Sequence[str]
    ) -> Float[Array, "..."]:
        """``evaluate(kernel, *inputs)`` in one precision, for each output if the kernel or an input is batched.

        Args:
            evaluate: function of the kernel and inputs of one output.
            inputs: the inputs by name.
            several: names of the inputs that have one set per output, in their first axis.
        """
        dtype = jnp.result_type(*inputs.values())
        arrays = tuple(x.astype(dtype) for x in inputs.values())
        kernel = jax.tree.map(lambda leaf: cast(leaf, dtype), self)
        if not self.batched and not several:
            return self._in_shape(evaluate, kernel, *arrays)
        kernel_axes = self.batch_axes() if self.batched else None
        outputs = {name: inputs[name].shape[0] for name in several} | _leading(self, kernel_axes)
        checks.refuse(
            len(set(outputs.values())) > 1,
            f"{type(self).__name__} got different numbers of outputs D along the leading axes: "
            + ", ".join(f"{name}: {size}" for name, size in outputs.items())
            + ". One kernel per output takes inputs [N, ...], shared by all, or [D, N, ...].",
        )
        axes = (0 if name in several else None for name in inputs)
        return jax.vmap(evaluate, in_axes=(kernel_axes, *axes))(kernel, *arrays)

    def _in_shape(
        self, evaluate: Callable[..., Array], kernel: Kernel, *arrays: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """The result for one kernel, refused unless it has one entry per row of each input.

        A user's kernel that ignores an output axis of its fields would otherwise broadcast, or fail inside JAX.
        """
        values = {f: getattr(self, f) for f in self.data_fields}
        vectors = [f"{f} {jnp.shape(x)}" for f, x in values.items() if isinstance(x, np.ndarray | Array) and x.ndim]
        hint = (
            f" It has fields that are arrays ({', '.join(vectors)}): if those hold one value per output [D], derive "
            "it from gpzoo.kernels.Elementary, or define its property `batched`."
            if vectors
            else ""
        )
        name, rows = type(self).__name__, tuple(x.shape[0] for x in arrays)
        try:
            found = evaluate(kernel, *arrays)
        except (TypeError, ValueError) as error:
            if not hint or type(self).__module__.startswith("gpzoo."):
                raise
            raise ValueError(f"{name} cannot be evaluated at inputs of {rows} rows: {error}.{hint}") from error
        shape = tuple(jnp.shape(found))
        wrong = shape not in (rows, rows * 2)
        checks.refuse(wrong, f"{name} gave an array of shape {shape} at inputs of {rows} rows.{hint}")
        return found

    def _at_pair(self, x: Float[Array, "..."], z: Float[Array, "..."]) -> Float[Array, ""]:
        value = self.evaluate(x, z)
        checks.refuse(
            jnp.ndim(value),
            f"{self._said} gave an array of shape {tuple(jnp.shape(value))} for two inputs of shape {x.shape}: it "
            "must give one number.",
        )
        return jnp.asarray(value, x.dtype)

    @property
    def _said(self) -> str:
        return f"{type(self).__name__}.evaluate"

    # -- algebra -----------------------------------------------------------------------------------------------------

    def __add__(self, other: Kernel | float | Array) -> Kernel:
        if isinstance(other, Kernel):
            return Sum(self, other)
        if isinstance(other, int) and other == 0:
            return self  # the start of Python's sum()
        return Sum(self, self.of_number(other))

    def __radd__(self, other: float | Array) -> Kernel:
        return self + other

    def __mul__(self, other: Kernel | float | Array) -> Kernel:
        return Product(self, other) if isinstance(other, Kernel) else Scaled(self, other)

    def __rmul__(self, other: float | Array) -> Kernel:
        return self * other

    def __pow__(self, power: int) -> Kernel:
        return Product(*[self] * checks.whole("the power of a kernel", power))

    def _no_operator(self, other: Any = None) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has the operators of covariances: k1 + k2, k + 1.0 (a Constant), k1 * k2, 2.0 * k, "
            "k ** 2. A quotient by a number is k * (1 / c); in place of a difference subtract functions, each a site."
        )

    __sub__ = __rsub__ = __neg__ = __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __rpow__ = _no_operator


class _Combination(Kernel):
    """Kernels combined elementwise; a part of the same class is replaced by its own parts."""

    #: Functions that combine the covariances of two parts, and the least variances of two parts.
    _combine: ClassVar[Callable[[Any, Any], Any]]
    _least: ClassVar[Callable[[Any, Any], Any]]
    parts: tuple[Kernel, ...]

    def __init__(self, *parts: Kernel) -> None:
        name = type(self).__name__
        good = bool(parts) and all(isinstance(part, Kernel) for part in parts)
        checks.refuse(not good, f"{name} takes kernels, got {[type(part).__name__ for part in parts]}.", TypeError)
        ranks = {part.input_ndim for part in parts} - {None}
        checks.refuse(
            len(ranks) > 1,
            f"{name} got kernels on inputs of different rank "
            f"({', '.join(f'{type(part).__name__}: {part.input_ndim}' for part in parts)}). "
            "Put those on vectors into Flattened(...), or sample one GaussianProcess site for each and add them.",
        )
        self.parts = tuple(p for part in parts for p in (part.parts if isinstance(part, type(self)) else (part,)))

    @property
    def input_ndim(self) -> int | None:
        """The rank that all parts agree on."""
        return next((part.input_ndim for part in self.parts if part.input_ndim is not None), None)

    @property
    def batched(self) -> bool:
        """Whether a part is batched."""
        return any(part.batched for part in self.parts)

    def batch_axes(self) -> Kernel:
        """As :meth:`Kernel.batch_axes`."""
        return self._with_fields(parts=tuple(part.batch_axes() for part in self.parts))

    def check_fields(self) -> None:
        """As :meth:`Kernel.check_fields`, for every part."""
        for part in self.parts:
            part.check_fields()

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """The parts' covariances, combined."""
        return reduce(type(self)._combine, (part.cross(X, Z) for part in self.parts))

    def states(self, X: Float[Array, "N 1"]) -> States:
        """The parts' state-space forms, combined."""
        return reduce(type(self)._combine, (part.states(X) for part in self.parts))

    def gram(self, X: Float[Array, "N ..."]) -> Float[Array, "N N"]:
        """The parts' matrices, combined."""
        return reduce(type(self)._combine, (part.gram(X) for part in self.parts))

    def variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """The parts' variances, combined."""
        return reduce(type(self)._combine, (part.variances(X) for part in self.parts))

    def least_variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """As :meth:`Kernel.least_variances`; for a product, the product of the parts' least variances."""
        return reduce(type(self)._least, (part.least_variances(X) for part in self.parts))


class Sum(_Combination):
    """A sum of kernels, ``k(x, x') = sum_i k_i(x, x')``: the prior of a sum of independent processes.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, Linear, Sum
        >>> kernel = RBF() + Linear()
        >>> isinstance(kernel, Sum), kernel(np.array([[1.0], [2.0]], np.float32)).round(2)
        (True, Array([[2.  , 2.61],
               [2.61, 5.  ]], dtype=float32))
    """

    _combine, _least = operator.add, jnp.minimum

    def prior_functions(
        self, X: Float[Array, "N ..."], key: PRNGKeyArray, num_functions: int, num_features: int
    ) -> Float[Array, "N {num_functions}"]:
        """Sums of the parts' functions."""
        keys = random.split(key, len(self.parts))
        parts = zip(self.parts, keys, strict=True)
        return total(part.prior_functions(X, k, num_functions, num_features) for part, k in parts)

    def density(self, omega: Float[Array, "F d"]) -> Float[Array, " F"]:
        """The sum of the parts' spectral densities."""
        return total(part.density(omega) for part in self.parts)

    def split_noise(self) -> tuple[Kernel | None, Kernel | None]:
        """The sum of the parts' functions, and the sum of the parts' noise."""
        functions, noise = zip(*(part.split_noise() for part in self.parts), strict=True)
        return _sum(functions), _sum(noise)


class Product(_Combination):
    """A product of kernels, ``k(x, x') = prod_i k_i(x, x')``.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, Periodic, Product
        >>> kernel = RBF(lengthscale=3.0) * Periodic(period=1.0)  # a season that changes
        >>> isinstance(kernel, Product)
        True
        >>> kernel(np.zeros((1, 1), np.float32), np.array([[1.0], [4.0]], np.float32)).round(2)
        Array([[0.95, 0.41]], dtype=float32)
    """

    _combine = _least = operator.mul

    def split_noise(self) -> tuple[Kernel | None, Kernel | None]:
        """The function and the noise of the expanded product; each term with a factor of noise is noise."""
        pairs = [part.split_noise() for part in self.parts]
        if all(noise is None for _, noise in pairs):
            return self, None
        return reduce(_product, pairs)

    def frequencies(
        self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any
    ) -> Float[Array, "{num} {num_columns}"]:
        """Sums of the parts' frequencies; the density of a product is the convolution of the parts' densities."""
        keys = random.split(key, len(self.parts))
        return total(part.frequencies(k, num, num_columns, dtype) for part, k in zip(self.parts, keys, strict=True))


class Wrapper(Kernel):
    """A kernel that contains another kernel in its first field."""

    @property
    def wrapped(self) -> Kernel:
        """The kernel in the first field."""
        return getattr(self, self.data_fields[0])

    def around(self, kernel: Kernel | None) -> Kernel | None:
        """This wrapper around ``kernel``; ``None`` if ``kernel`` is ``None``."""
        return None if kernel is None else self._with_fields(**{self.data_fields[0]: kernel})

    @property
    def input_ndim(self) -> int | None:
        """Rank of a single input."""
        return self.wrapped.input_ndim

    @property
    def batched(self) -> bool:
        """Whether the wrapped kernel is batched."""
        return self.wrapped.batched

    def batch_axes(self) -> Kernel:
        """As :meth:`Kernel.batch_axes`."""
        return self._with_fields(**{self.data_fields[0]: self.wrapped.batch_axes()})

    def check_fields(self) -> None:
        """As :meth:`Kernel.check_fields`, for the wrapped kernel."""
        self.wrapped.check_fields()

    def split_noise(self) -> tuple[Kernel | None, Kernel | None]:
        """This wrapper around the wrapped kernel's function, and around its noise."""
        function, noise = self.wrapped.split_noise()
        return (self, None) if noise is None else (self.around(function), self.around(noise))


class Scaled(Wrapper):
    """A kernel times a positive number, ``k(x, x') = scale k_0(x, x')``.

    ``scale`` is a scalar, or one number per output ``[D]``.

    Example:
        >>> import numpy as np
        >>> from gpzoo.kernels import RBF, Scaled
        >>> kernel = 4.0 * RBF()
        >>> isinstance(kernel, Scaled), kernel.diag(np.zeros((2, 1), np.float32))
        (True, Array([4., 4.], dtype=float32))

    Raises:
        TypeError: if ``kernel`` is not a kernel or ``scale`` is not numeric.
        ValueError: if ``scale`` is not positive (checked only outside ``jit``), or has more than one axis.
    """

    kernel: Kernel
    scale: Float[Array, "*D"]

    def __init__(self, kernel: Kernel, scale: float | Array) -> None:
        got = f"Scaled takes a kernel and a scale, got {type(kernel).__name__} for the kernel."
        checks.refuse(not isinstance(kernel, Kernel), got, TypeError)
        self.kernel = kernel
        self.scale = checks.positive("scale", scale)
        self.check_fields()

    @property
    def batched(self) -> bool:
        """Whether the scale or the scaled kernel has a leading axis of outputs."""
        return self.kernel.batched or jnp.ndim(self.scale) == 1

    def batch_axes(self) -> Kernel:
        """See :meth:`Kernel.batch_axes`."""
        return self._with_fields(kernel=self.kernel.batch_axes(), scale=0 if jnp.ndim(self.scale) else None)

    def check_fields(self) -> None:
        """Refuse a scale of more than one axis, and all fields that the scaled kernel refuses."""
        shape = jnp.shape(self.scale)
        checks.must(len(shape) <= 1, "scale", "be a scalar or one per output [D]", f"shape {shape}")
        self.kernel.check_fields()

    def cross(self, X: Float[Array, "N ..."], Z: Float[Array, "M ..."]) -> Float[Array, "N M"]:
        """``scale`` times the kernel's result."""
        return self.scale * self.kernel.cross(X, Z)

    def gram(self, X: Float[Array, "N ..."]) -> Float[Array, "N N"]:
        """``scale`` times the kernel's result."""
        return self.scale * self.kernel.gram(X)

    def variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """``scale`` times the kernel's result."""
        return self.scale * self.kernel.variances(X)

    def least_variances(self, X: Float[Array, "N ..."]) -> Float[Array, " N"]:
        """``scale`` times the kernel's result."""
        return self.scale * self.kernel.least_variances(X)

    def frequencies(
        self, key: PRNGKeyArray, num: int, num_columns: int, dtype: Any
    ) -> Float[Array, "{num} {num_columns}"]:
        """The frequencies of the scaled kernel."""
        return self.kernel.frequencies(key, num, num_columns, dtype)

    def prior_functions(
        self, X: Float[Array, "N ..."], key: PRNGKeyArray, num_functions: int, num_features: int
    ) -> Float[Array, "N {num_functions}"]:
        """The functions of the scaled kernel, times the root of ``scale``."""
        return jnp.sqrt(self.scale) * self.kernel.prior_functions(X, key, num_functions, num_features)

    def states(self, X: Float[Array, "N 1"]) -> States:
        """The state-space form of the scaled kernel, with ``scale`` times the covariance of the states."""
        form = self.kernel.states(X)
        return form._replace(P=self.scale * form.P)

    def density(self, omega: Float[Array, "F d"]) -> Float[Array, " F"]:
        """``scale`` times the spectral density of the scaled kernel."""
        return self.scale * self.kernel.density(omega)


def addends(kernel: Kernel | None) -> list[tuple[Any, Kernel]]:
    """The terms of a kernel, each with the product of its scale factors (``None`` if it has no factor).

    ``kernel`` may be ``None``, because :meth:`Kernel.split_noise` returns ``None`` if there is no function or noise.
    The list is then empty.
    """
    if kernel is None:
        return []
    if isinstance(kernel, Sum):
        return [addend for part in kernel.parts for addend in addends(part)]
    if isinstance(kernel, Scaled):
        inner = addends(kernel.kernel)
        return [(kernel.scale if factor is None else kernel.scale * factor, part) for factor, part in inner]
    return [(None, kernel)]


def has_sum(kernel: Kernel) -> bool:
    """Whether a kernel, without its noise, is a sum or contains one. Terms of a sum may differ much in variance."""
    is_sum = lambda node: isinstance(node, Sum)  # noqa: E731
    return any(map(is_sum, jax.tree.leaves(kernel.split_noise()[0], is_leaf=is_sum)))


def _sum(parts: tuple[Kernel | None, ...]) -> Kernel | None:
    found = [part for part in parts if part is not None]
    return Sum(*found) if len(found) > 1 else next(iter(found), None)


def _product(
    a: tuple[Kernel | None, Kernel | None], b: tuple[Kernel | None, Kernel | None]
) -> tuple[Kernel | None, Kernel | None]:
    """The function and the noise of ``(f + n) (g + m)``: ``f g``, and ``f m + n g + n m``."""

    def times(one: Kernel | None, other: Kernel | None) -> Kernel | None:
        return None if one is None or other is None else Product(one, other)

    (f, n), (g, m) = a, b
    return times(f, g), _sum((times(f, m), times(n, g), times(n, m)))


def cast(leaf: Any, dtype: Any) -> Any:
    """A floating leaf in the dtype of the inputs; any other leaf unchanged."""
    floating = isinstance(leaf, float | np.ndarray | np.generic | Array) and jnp.issubdtype(
        jnp.result_type(leaf), jnp.floating
    )
    return jnp.asarray(leaf, dtype) if floating else leaf


def states_of(kernel: Kernel, X: Float[Array, "N 1"]) -> States:
    """The state-space form of a kernel, with hyperparameters in the dtype of the times."""
    return jax.tree.map(lambda leaf: cast(leaf, X.dtype), kernel).states(X)


def _leading(kernel: Kernel, axes: Kernel | None) -> dict[str, int]:
    """The length of the leading axis of each leaf of ``kernel`` that ``axes`` marks, by the leaf's name."""
    found: dict[str, int] = {}

    def note(path: Any, axis: int | None, part: Any) -> None:
        if axis is not None:
            found["kernel" + jax.tree_util.keystr(path)] = jax.tree.leaves(part)[0].shape[0]

    if axes is not None:
        jax.tree_util.tree_map_with_path(note, axes, kernel, is_leaf=lambda leaf: leaf is None)
    return found
