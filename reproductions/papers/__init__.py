"""What each paper claims, as data, and what of ours answers it."""

from gpzoo.reproductions.papers.convolutional import CONVOLUTIONAL
from gpzoo.reproductions.papers.deep import DEEP
from gpzoo.reproductions.papers.deep_kernel import DEEP_KERNEL
from gpzoo.reproductions.papers.invariant import INVARIANT

PAPERS = (CONVOLUTIONAL, DEEP, DEEP_KERNEL, INVARIANT)
