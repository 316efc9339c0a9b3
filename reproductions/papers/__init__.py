"""Claims of each paper, as data, and the statements that only one paper needs."""

from gpzoo.reproductions.claims import load

PAPERS = tuple(map(load, ("convolutional", "deep", "deep_kernel", "invariant")))
