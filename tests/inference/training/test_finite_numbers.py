"""Whether numbers are finite, small arrays and large ones, by replicate."""

import jax.numpy as jnp
import numpy as np
import pytest

from gpzoo.inference.training.step import finite_numbers


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 50, 30_000])
def test_one_number_that_is_not_finite_is_found_in_its_replicate(size, bad):
    spoilt = np.ones((3, size, 2))
    spoilt[1, size // 2, 1] = bad
    largest = jnp.full((3, size), jnp.finfo("float32").max, "float32")  # whose sum overflows
    tree = {"spoilt": jnp.asarray(spoilt), "single": largest, "integers": jnp.arange(3), "scalars": jnp.ones(3)}
    assert finite_numbers(tree, 1).tolist() == [True, False, True]
    assert not finite_numbers(tree, 0)
    tree.pop("spoilt")
    assert finite_numbers(tree, 1).tolist() == [True] * 3 and finite_numbers(tree, 0)
