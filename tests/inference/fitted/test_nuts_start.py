"""Where NUTS starts: the mode of a density that is not finite everywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo.inference.fitted.nuts import _mode


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e12])
@pytest.mark.parametrize("size", [1, 7, 40])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_search_turns_back_where_a_density_is_not_finite(dtype, size, scale):
    """The potential is nearly linear down to a wall at 1, so that steps lead beyond it."""
    beyond = 0

    @jax.jit
    @jax.value_and_grad
    def potential(x):
        return scale * (jnp.sum(-x) - 0.05 * jnp.sum(jnp.log(1 - x)))

    def counted(x):
        nonlocal beyond
        found = potential(x)
        beyond += not np.isfinite(found[0])
        return found

    found = _mode(counted, jnp.linspace(-3, -1, size).astype(dtype))
    assert beyond and found.dtype == dtype
    np.testing.assert_allclose(found, 0.95, atol=3e-3)
