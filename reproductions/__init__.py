"""Reproductions of the experiments of the papers, and the ``gpzoo`` command line.

One module per paper has its experiments. :mod:`gpzoo.reproductions.experiment` defines experiments.
"""
