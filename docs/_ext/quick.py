"""What a page's interpreter runs first under ``GPZOO_DOCS=quick``: of steps and draws a tenth are taken.

Pages themselves stay as readers see them. Numbers in the text are those of the whole build.
"""


def _shorten() -> None:
    from functools import wraps
    from inspect import signature

    import numpyro.infer

    import gpzoo.inference
    import gpzoo.models

    def fewer(steps):
        if isinstance(steps, tuple):
            return type(steps)(map(fewer, steps))
        return steps and min(steps, max(40, steps // 10))

    def shortened(function, *names):
        @wraps(function)
        def called(*args, **kwargs):
            bound = signature(function).bind(*args, **kwargs)
            bound.apply_defaults()
            for name in names:
                bound.arguments[name] = fewer(bound.arguments[name])
            return function(*bound.args, **bound.kwargs)

        return called

    for module, name, *counts in (
        (gpzoo.inference, "fit", "num_steps"),
        (gpzoo.inference, "compare", "num_steps"),
        (gpzoo.inference, "nuts", "num_warmup", "num_samples"),
        (gpzoo.inference, "vsbc", "num_steps", "num_simulations"),
        (gpzoo.inference.Trained, "to_arviz", "num_draws"),
        (gpzoo.models, "fit_deep_kernel", "num_steps"),
        (gpzoo.models, "fit_network", "num_steps"),
        (numpyro.infer, "MCMC", "num_warmup", "num_samples"),
    ):
        setattr(module, name, shortened(getattr(module, name), *counts))


_shorten()
del _shorten
