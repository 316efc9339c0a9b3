"""Classes that are pytrees: annotated fields are leaves, and static fields are part of the structure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import jax
import numpy as np


def static(**options: Any) -> Any:
    """Mark a field of a class as static: it belongs to the compiled program, and JAX compares it by value.

    This works in subclasses of ``View``, ``InducingVariable``, ``Kernel`` and other classes that are pytrees.

    Example:
        >>> import jax
        >>> from gpzoo import InducingVariable, static
        >>> class Basis(InducingVariable):
        ...     weights: jax.Array
        ...     degree: int = static(default=2)
        >>> jax.tree.leaves(Basis(1.0, degree=3)), Basis(1.0).degree
        ([1.0], 2)

    Args:
        **options: ``default``, as for :func:`dataclasses.field`.
    """
    return dataclasses.field(**options, metadata={"static": True})


class Fields:
    """A pytree whose annotated fields are its children; fields marked by :func:`static` are part of its structure.

    ::

        class Cosine(Kernel):
            period: Array
            active_dims: tuple[int, ...] | None = static(default=None)

    If neither a class nor its bases have an ``__init__``, the arguments of the class are its fields in order, like a
    dataclass. Static fields are hashable values or NumPy arrays. Two objects of a class with only static fields are
    equal if their fields are equal.
    """

    #: Names of the fields; the fields of the bases come first.
    data_fields: ClassVar[tuple[str, ...]] = ()
    static_fields: ClassVar[tuple[str, ...]] = ()

    _has_own_init: ClassVar[bool] = False

    if TYPE_CHECKING:
        # `dataclass_transform` would tell type checkers that all subclasses take their fields, even with an __init__.
        def __init__(self, *values: Any, **named: Any) -> None: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._has_own_init = cls._has_own_init or "__init__" in cls.__dict__
        made: Any = dataclasses.dataclass(init=not cls._has_own_init, repr=False, eq=False)(cls)
        fields = [(field.name, "static" in field.metadata) for field in dataclasses.fields(made)]
        cls.data_fields = tuple(name for name, is_static in fields if not is_static)
        cls.static_fields = tuple(name for name, is_static in fields if is_static)
        jax.tree_util.register_pytree_with_keys(cls, cls._flatten_with_keys, cls._unflatten, cls._flatten)

    def _static(self) -> tuple:
        values = (getattr(self, name) for name in self.static_fields)
        return tuple(_ByContent(value) if isinstance(value, np.ndarray) else value for value in values)

    def _flatten(self) -> tuple[tuple, tuple]:
        return tuple(getattr(self, name) for name in self.data_fields), self._static()

    def _flatten_with_keys(self) -> tuple[tuple, tuple]:
        return tuple((jax.tree_util.GetAttrKey(f), getattr(self, f)) for f in self.data_fields), self._static()

    @classmethod
    def _unflatten(cls, static: tuple, data: Iterable[Any]) -> Self:
        # This does not call __init__, because JAX rebuilds pytrees around placeholders that the checks would refuse.
        self = object.__new__(cls)
        for name, value in zip(cls.static_fields, static, strict=True):
            object.__setattr__(self, name, value.array if isinstance(value, _ByContent) else value)
        for name, value in zip(cls.data_fields, data, strict=True):
            object.__setattr__(self, name, value)
        return self

    def _with_fields(self, **values: Any) -> Self:
        """A copy with other values in some data fields, unchecked."""
        return self._unflatten(self._static(), tuple(values.get(f, getattr(self, f)) for f in self.data_fields))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fields) or type(self) is not type(other) or self.data_fields:
            return self is other
        return self._static() == other._static()

    def __hash__(self) -> int:
        return id(self) if self.data_fields else hash((type(self), self._static()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.data_fields + self.static_fields)
        return f"{type(self).__name__}({fields})"


class KnowsRanks:
    """A distribution that stores the ranks (numbers of axes) that its arrays had when it was made.

    :func:`jax.vmap` adds axes to the arrays of a distribution, but NumPyro stores the shapes of the distribution
    separately and does not change them. The stored ranks do not change either. So a mapped distribution is recognised
    by arrays with more axes than the stored ranks.
    """

    _ranks: tuple[int, ...] | None = None

    def tree_flatten(self) -> tuple[Any, Any]:
        """See :class:`numpyro.distributions.Distribution`."""
        data, static = cast(Any, super()).tree_flatten()
        return data, (static, _ranks_of(data) if self._ranks is None else self._ranks)

    @classmethod
    def tree_unflatten(cls, aux_data: tuple[Any, ...], params: tuple[Any, ...]) -> Self:
        """See :class:`numpyro.distributions.Distribution`."""
        self = cast(Any, super()).tree_unflatten(aux_data[0], params)
        self._ranks = aux_data[1]
        return self

    def refuse_mapped(self, site: str | None = None) -> None:
        """Refuse a distribution made by ``jax.vmap``: its arrays have an additional axis, but its shapes do not.

        Args:
            site: name of the site, if it is known.

        Raises:
            ValueError: for such a distribution; the message names the site.
        """
        if self._ranks is None or self._ranks == _ranks_of(cast(Any, super()).tree_flatten()[0]):
            return
        name, where = type(self).__name__, "" if site is None else f"Site {site!r}: "
        raise ValueError(
            f"{where}{name} was made under jax.vmap (or jax.lax.map), so that its arrays have axes of which its shape "
            "knows nothing. Give one distribution all values, such as GaussianProcess(kernel, X) of a kernel with one "
            "hyperparameter per output, or write a site for each."
        )


def _ranks_of(data: Any) -> tuple[int, ...]:
    return tuple(getattr(leaf, "ndim", 0) for leaf in jax.tree.leaves(data))


class _ByContent:
    """A NumPy array that is equal to other arrays with the same content."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ByContent):
            return False
        return self.array is other.array or (
            self.array.dtype == other.array.dtype and np.array_equal(self.array, other.array)
        )

    def __hash__(self) -> int:
        return hash((self.array.shape, self.array.tobytes()))
