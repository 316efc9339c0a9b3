"""What a page's interpreter runs first under ``GPZOO_DOCS=quick``: trainings and chains have a fifth of their steps.

Pages themselves stay as readers see them. Numbers in the text are those of the whole build.
"""


def _shorten() -> None:
    from functools import wraps
    from inspect import signature

    import numpyro.infer

    import gpzoo.inference
    import gpzoo.models

    def fewer(steps):
        return type(steps)(map(fewer, steps)) if isinstance(steps, tuple) else min(steps, max(20, steps // 5))

    def shortened(function, *names):
        @wraps(function)
        def called(*args, **kwargs):
            bound = signature(function).bind(*args, **kwargs)
            for name in names:
                if name in bound.arguments:
                    bound.arguments[name] = fewer(bound.arguments[name])
            return function(*bound.args, **bound.kwargs)

        return called

    for module, name, *counts in (
        (gpzoo.inference, "fit", "num_steps"),
        (gpzoo.inference, "compare", "num_steps"),
        (gpzoo.inference, "vsbc", "num_steps", "num_simulations"),
        (gpzoo.models, "fit_deep_kernel", "num_steps"),
        (gpzoo.models, "fit_network", "num_steps"),
        (numpyro.infer, "MCMC", "num_warmup", "num_samples"),
    ):
        setattr(module, name, shortened(getattr(module, name), *counts))


_shorten()
del _shorten
