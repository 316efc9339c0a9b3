"""Reproductions of the papers' experiments and the ``gpzoo`` command line.

One module per paper holds its experiments; :mod:`gpzoo.reproductions.experiment` says what an experiment is.
"""
