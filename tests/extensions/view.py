"""Windows of a series: the patches of an image that has one column."""

import jax.numpy as jnp

from gpzoo import View, static


class Windows(View):
    length: int = static()
    size: int = static()

    @property
    def num_views(self):
        return self.length - self.size + 1

    @property
    def view_size(self):
        return self.size

    def view(self, X):
        return jnp.stack([X[:, i : i + self.size] for i in range(self.num_views)], axis=1)
