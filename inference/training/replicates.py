"""Trainings that run as one: each has a key, and its own or shared arrays along a leading axis."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, PRNGKeyArray, Shaped

from gpzoo.inference.programs import files
from gpzoo.inference.programs.arguments import refuse_unknown


class Replicates:
    """The trainings of one call of :func:`~gpzoo.inference.fit`: one, or one for each of several keys.

    A replicate is one of these trainings. Users know it as a member: ``member_kwargs``, ``trained.member(k)``.

    Args:
        rng_key: one key, or keys ``[K]``.

    Attributes:
        keys: keys of the trainings.
        several: whether arrays of all trainings have an axis of replicates.
        count: number of trainings.
        shape: shape of the axis of replicates, ``(K,)``; ``()`` for one training.

    Raises:
        ValueError: if keys have more than one leading axis, or there are none.
    """

    def __init__(self, rng_key: Shaped[Array, "..."]) -> None:
        leading = rng_key.ndim - (0 if files.is_key(rng_key) else 1)
        if leading not in (0, 1) or rng_key.size == 0:
            raise ValueError(f"rng_key must be one key, or keys [K] for K trainings; got shape {rng_key.shape}.")
        self.several = leading == 1
        self.keys: list[PRNGKeyArray] = list(rng_key) if self.several else [rng_key]
        self.count = len(self.keys)
        self.shape = (self.count,) if self.several else ()

    def axes_of(self, in_axes: int | Sequence[int | None] | None, count: int) -> tuple[bool, ...] | None:
        """For each of ``count`` positional arguments, whether it has the axis of replicates; ``None`` for one training.

        Raises:
            ValueError: if ``in_axes`` does not match the arguments.
        """
        if not self.several:
            return None
        axes = tuple(in_axes) if isinstance(in_axes, list | tuple) else (in_axes,) * count
        known = all(axis is None or (axis == 0 and not isinstance(axis, bool)) for axis in axes)
        if len(axes) != count or not known:
            raise ValueError(
                "in_axes must be 0 (one per key) or None (shared), or one of these for each of the "
                f"{count} positional arguments; got {in_axes!r}."
            )
        return tuple(axis == 0 for axis in axes)

    def axes_by_name(self, arrays: Mapping[str, Any], member_kwargs: Collection[str]) -> dict[str, bool] | None:
        """For each keyword argument, whether it has the axis of replicates; ``None`` for one training.

        Raises:
            ValueError: for names with one key, if a name is not in ``arrays``, or if a leading axis does not have one
                entry for each key.
        """
        if not self.several:
            if member_kwargs:
                raise ValueError(f"member_kwargs is for several keys, random.split(key, K); got {member_kwargs}.")
            return None
        names = {member_kwargs} if isinstance(member_kwargs, str) else set(member_kwargs)
        refuse_unknown("member_kwargs", names, arrays, "arrays in model_kwargs")
        self.check("member_kwargs", {name: arrays[name] for name in names})
        return {name: name in names for name in arrays}

    def check(self, what: str, arguments: Mapping[str, Any]) -> None:
        """With several replicates, raise ValueError unless all arrays have the axis of replicates."""
        for name, value in arguments.items():
            shapes = [np.shape(x) for x in jax.tree.leaves(value)]
            if self.several and any(shape[:1] != self.shape for shape in shapes):
                raise ValueError(
                    f"With {self.count} keys {what} must have a leading axis of {self.count}, one entry per key; "
                    f"got shapes {shapes} for {name!r}."
                )

    def of(self, k: int, tree: Any) -> Any:
        """The arrays of a replicate; all arrays of ``tree`` must have the axis of replicates.

        The result has new containers, because networks write into the containers that they get.
        """
        return jax.tree.map(lambda x: x[k] if self.several else x, tree)

    def stacked(self, trees: Sequence[Any]) -> Any:
        """The trees of all replicates as one: the inverse of :meth:`of`."""
        return jax.tree.map(lambda *x: jnp.stack(x), *trees) if self.several else trees[0]

    def each(self, function: Callable) -> Callable:
        """A function of one replicate's arrays, turned into a function of the arrays of all replicates."""
        return jax.vmap(function) if self.several else function

    def where(self, which: Bool[np.ndarray, " K"], one: Any, other: Any) -> Any:
        """The arrays of ``one`` for the replicates ``which``, and the arrays of ``other`` for all other replicates."""

        def chosen(one: Shaped[Array, "*shape"], other: Shaped[Array, "*shape"]) -> Shaped[Array, "*shape"]:
            return jnp.where(which.reshape(self.shape + (1,) * (one.ndim - len(self.shape))), one, other)

        return jax.tree.map(chosen, one, other)


def arguments_of(arguments: Any, axes: Any, k: Any) -> Any:
    """The arguments of one replicate; ``axes`` says which arguments have the axis of replicates."""

    def own(has_axis: bool, value: Any) -> Any:
        return jax.tree.map(lambda x: x[k], value) if has_axis else value

    return arguments if axes is None else jax.tree.map(own, axes, arguments)
