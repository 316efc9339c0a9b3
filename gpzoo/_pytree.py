"""Classes whose named fields make them pytrees: kernels and inducing variables."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax


class Fields:
    """A pytree with the arrays named in ``data_fields`` as leaves; what ``static_fields`` names is part of its type."""

    data_fields: ClassVar[tuple[str, ...]] = ()
    static_fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_with_keys(cls, cls._flatten_with_keys, cls._unflatten, cls._flatten)

    def _flatten(self) -> tuple[tuple, tuple]:
        return tuple(getattr(self, f) for f in self.data_fields), tuple(getattr(self, f) for f in self.static_fields)

    def _flatten_with_keys(self) -> tuple[tuple, tuple]:
        keys = tuple((jax.tree_util.GetAttrKey(f), getattr(self, f)) for f in self.data_fields)
        return keys, tuple(getattr(self, f) for f in self.static_fields)

    @classmethod
    def _unflatten(cls, static: tuple, data: tuple) -> Self:
        # __init__ is bypassed: JAX rebuilds pytrees around placeholders that no check would let pass.
        self = object.__new__(cls)
        for name, value in zip(cls.static_fields + cls.data_fields, tuple(static) + tuple(data), strict=True):
            object.__setattr__(self, name, value)
        return self

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.data_fields + self.static_fields)
        return f"{type(self).__name__}({fields})"
