"""Linear algebra of covariance matrices: factorisations, structured matrices, and draws that stay finite."""

from gpzoo import _lapack
from gpzoo.linalg.factorise import (
    RELATIVE_JITTER,
    TOEPLITZ_JITTER,
    Jitter,
    add_jitter,
    by_block,
    cholesky,
    cholesky_and_inverse,
    cholesky_or_failed,
    coinciding,
    needed_jitter,
    root,
    solve_lower,
    times_factor,
)
from gpzoo.linalg.operators import BlockDiagonalMatrix, KroneckerProduct, concatenate, diagonal, matmul, total
from gpzoo.linalg.toeplitz import ToeplitzInverse

__all__ = [
    "RELATIVE_JITTER",
    "TOEPLITZ_JITTER",
    "BlockDiagonalMatrix",
    "Jitter",
    "KroneckerProduct",
    "ToeplitzInverse",
    "add_jitter",
    "by_block",
    "cholesky",
    "cholesky_and_inverse",
    "cholesky_or_failed",
    "coinciding",
    "concatenate",
    "diagonal",
    "matmul",
    "needed_jitter",
    "root",
    "solve_lower",
    "times_factor",
    "total",
]

_lapack.prepare()
