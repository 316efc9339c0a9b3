"""Two classifiers of tall and wide rectangles: a GP on pixels and a convolutional GP on patches.

python examples/images.py [--steps 400]
"""

import argparse
from functools import partial

import jax
import numpy as np
from numpyro.infer import SVI
from optax import adam

from gpzoo import kmeans, unique_patches
from gpzoo.inference import GaussianProcessELBO, InducingGuide, error_rate, fit
from gpzoo.models import convolutional_gp, gp_classification
from gpzoo.reproductions import datasets


def of_pixels(images, y=None, *, num_data=None):
    return gp_classification(images.reshape(len(images), -1), y, num_data=num_data)


def main(steps: int) -> None:
    data = datasets.load("rectangles")
    X, y = data.X_train[:300], data.y_train[:300].astype(np.float32)
    X_test, y_test = data.X_test[:500], data.y_test[:500]
    models = {
        "pixels": (of_pixels, kmeans(100)),
        "patches": (partial(convolutional_gp, patch_shape=(3, 3), variance=10.0), unique_patches(16)),
    }
    for name, (program, inducing) in models.items():
        svi = SVI(program, InducingGuide(program, inducing), adam(0.03), GaussianProcessELBO())
        trained = fit(jax.random.key(0), svi, steps, X, y, batch_size=100)
        error = error_rate(trained.predict(jax.random.key(1), X_test)["y"], y_test)
        print(f"{name:8} bound {-trained.losses[-50:].mean():8.1f} nats, test error {error:.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    main(parser.parse_args().steps)
