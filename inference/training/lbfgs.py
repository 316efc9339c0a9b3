"""L-BFGS, whose line search evaluates the objective, as an optimiser for NumPyro's SVI."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jaxtyping import Float
from numpyro.optim import optax_to_numpyro

from gpzoo._numpyro import Optimizer
from gpzoo.inference.training.protocol import refuse_no_parameters


def lbfgs(memory_size: int = 10, max_linesearch_steps: int = 20, *, held: Collection[str] = ()) -> Optimizer:
    """L-BFGS with a line search (:func:`optax.lbfgs`), as an optimiser for :class:`numpyro.infer.SVI`.

    It is for an objective that is the same function at every step: with all rows and without draws, such as
    :class:`~gpzoo.inference.CollapsedELBO`. A step evaluates objective and gradient once or a few times, at the points
    that the line search tries. The next step reuses the values at the point that the line search chose.

    Example:
        >>> import jax.numpy as jnp
        >>> from gpzoo.inference import lbfgs
        >>> optimiser = lbfgs()
        >>> state = optimiser.init({"x": jnp.array([5.0, -3.0])})
        >>> for _ in range(3):
        ...     _, state = optimiser.eval_and_update(lambda params: (jnp.sum((params["x"] - 1.0) ** 2), None), state)
        >>> optimiser.get_params(state)["x"].round(3)
        Array([1., 1.], dtype=float32)

    Args:
        memory_size: number of past steps that approximate the inverse Hessian.
        max_linesearch_steps: largest number of evaluations in a step.
        held: names of parameters that do not change, such as ``{"f_inducing"}``. For optimisers without a line search,
            use ``optax.partition`` with ``optax.set_to_zero``, which does not work with a line search.

    Returns:
        An optimiser for ``SVI(model, guide, lbfgs(), objective)``. ``svi.init`` raises ``ValueError`` for unknown names
        in ``held``. ``svi.update`` raises ``ValueError`` for programs with mutable state (batch normalisation), and for
        forward-mode derivatives.

    Raises:
        TypeError: if ``held`` is not a collection of names.
    """
    if isinstance(held, str) or not all(isinstance(name, str) for name in held):
        raise TypeError(f"lbfgs(held=...) must be names of parameters, such as {{'f_inducing'}}, got {held!r}.")
    search = optax.scale_by_zoom_linesearch(max_linesearch_steps, initial_guess_strategy="one")
    return LineSearched(optax.lbfgs(memory_size=memory_size, linesearch=search), frozenset(held))


def refuse_line_search(optimiser: Any, state: Any) -> None:
    """Refuse an optimiser with a line search of optax, which must evaluate the objective itself.

    NumPyro does not pass the objective to optimisers of optax. Use :func:`lbfgs` in their place.

    Args:
        optimiser: optimiser of the training.
        state: state of the optimiser.

    Raises:
        TypeError: for such an optimiser; the message says what to do instead.
    """
    searches = optax.ScaleByZoomLinesearchState | optax.ScaleByBacktrackingLinesearchState
    found = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, searches))
    if not isinstance(optimiser, LineSearched) and any(isinstance(x, searches) for x in found):
        raise TypeError(
            "The optimiser contains a line search, such as that of optax.lbfgs, which needs the objective itself. Pass "
            "gpzoo.inference.lbfgs() alone; lbfgs(held={'f_inducing'}) holds parameters as they are, in place of "
            "optax.partition."
        )


class LineSearched(Optimizer):
    """An optax transformation that evaluates the objective, and keeps value and gradient in its state."""

    name = "lbfgs()"
    needs_all_rows = True
    way_out = "Train in float64: call numpyro.enable_x64() first, and pass float64 inputs."

    def __init__(self, transformation: optax.GradientTransformationExtraArgs, held: frozenset[str]) -> None:
        plain: Any = optax_to_numpyro(transformation)
        super().__init__(lambda: (plain.init_fn, plain.update_fn, plain.get_params_fn), update_with_value=True)
        self.transformation, self.held = transformation, held

    def init(self, params: Any) -> Any:
        """See :meth:`numpyro.optim._NumPyroOptim.init`.

        Raises:
            ValueError: for names in ``held`` that are not parameters, and without any parameters.
        """
        refuse_no_parameters(params)
        if unknown := sorted(self.held.difference(params)):
            raise ValueError(f"lbfgs(held=...) names {unknown}, but the parameters are {sorted(params)}.")
        i, state = super().init(params)
        return i, _with_own_types(state)

    def eval_and_update(
        self, fn: Callable[[Any], tuple[Float[Array, ""], Any]], state: Any, forward_mode_differentiation: bool = False
    ) -> tuple[tuple[Any, None], Any]:
        """The objective at ``state``, and a step; see :meth:`numpyro.optim._NumPyroOptim.eval_and_update`.

        Raises:
            ValueError: for an objective with mutable state, or forward-mode derivatives.
        """
        if forward_mode_differentiation:
            raise ValueError("lbfgs() takes derivatives in reverse mode: leave out forward_mode_differentiation.")
        i, (params, memory) = state

        @jax.jit  # traced once for the three places at which optax evaluates it
        def objective(params: Any) -> Float[Array, ""]:
            value, mutable = fn({n: lax.stop_gradient(x) if n in self.held else x for n, x in params.items()})
            if mutable is not None:
                raise ValueError(
                    f"lbfgs() needs an objective that is the same at every step, but the program has mutable state "
                    f"({', '.join(sorted(mutable))}): use an optax optimiser such as optax.adam."
                )
            return value

        value, gradient = optax.value_and_grad_from_state(objective)(params, state=memory)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes integers of 32 and 64 bits
            updates, memory = self.transformation.update(
                gradient, memory, params, value=value, grad=gradient, value_fn=objective
            )
        return (value, None), (i + 1, (optax.apply_updates(params, updates), _with_own_types(memory)))

    #: The line search takes no step to a point where the objective is not finite.
    eval_and_stable_update = eval_and_update


def _with_own_types(state: Any) -> Any:
    """The state without weak types: optax's state has them only at the start, and a step would be compiled twice."""
    return jax.tree.map(lambda x: lax.convert_element_type(x, jnp.result_type(x)), state)
