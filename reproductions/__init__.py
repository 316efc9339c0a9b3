"""Reproductions of the papers' experiments and the ``gpzoo`` command line.

One module per paper holds its experiments; :mod:`gpzoo.reproductions.contract` says what each of them writes.
"""
