"""What several test files check predictions with."""

import numpy as np

from tests.reference import mixture_quantile

QUANTILES = (0.01, 0.3, 0.5, 0.95)


def assert_same(one, two, rtol=1e-9, atol=1e-11):
    assert set(one) == set(two)
    for name in one:
        for field, a, b in zip(one[name]._fields, one[name], two[name], strict=True):
            assert (a is None) == (b is None), (name, field)
            if a is not None:
                assert a.shape == b.shape and a.dtype == b.dtype
                np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=f"{field} of {name}")


def check_quantiles(found, mean, variance, quantiles=QUANTILES, rtol=1e-10):
    assert found.shape == (len(quantiles), *mean.shape[1:])
    mean, variance = mean.reshape(len(mean), -1), variance.reshape(len(mean), -1)
    for q, row in zip(quantiles, np.asarray(found).reshape(len(quantiles), -1), strict=True):
        for i, value in enumerate(row):
            wanted = mixture_quantile(q, mean[:, i], np.sqrt(variance[:, i]))
            np.testing.assert_allclose(value, wanted, rtol=rtol, atol=rtol * np.sqrt(variance[:, i]).max())
