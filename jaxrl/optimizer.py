"""AdamW on float32 weights, with the step size kept apart.

The rate is a pure function of the number of updates done, so a resumed or skipped
update cannot put a schedule's own counter out of step.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl.config import Config, OptimizerConfig


def decays(path: Any, leaf: Any) -> bool:
    """Whether weight decay acts: on matrices, not on norms and biases."""
    name = str(path[-1].key)
    return name.startswith("w") or "embed" in name


def make(cfg: OptimizerConfig) -> optax.GradientTransformation:
    """Gradient -> direction of descent; multiply it by minus the learning rate."""
    return optax.chain(
        optax.clip_by_global_norm(cfg.max_grad_norm),
        optax.scale_by_adam(b1=cfg.b1, b2=cfg.b2, eps=cfg.eps),
        optax.add_decayed_weights(
            cfg.weight_decay,
            mask=lambda params: jax.tree_util.tree_map_with_path(decays, params),
        ),
    )


def learning_rate(config: Config, step: jax.Array) -> jax.Array:
    """Step size of the update that follows `step` updates, float32.

    Linear warm-up over `warmup` updates, which reaches the peak at its last one,
    then constant, or down to 0 at the run's end along a line, half a cosine, or the
    unified budget-aware curve 2 c / (2 phi + (2 - phi) c), c twice that cosine's height
    (known to us from a third-party statement of the formula).
    `scale_batch` multiplies the peak by sqrt(batch / scale_batch).
    """
    cfg = config.optimizer
    peak = cfg.learning_rate
    if cfg.scale_batch:
        peak *= (config.batch / cfg.scale_batch) ** 0.5
    done = step.astype(jnp.float32)
    rise = jnp.minimum((done + 1) / max(cfg.warmup, 1), 1.0)
    span = max(config.updates - cfg.warmup, 1)
    left = 1 - jnp.clip((done - cfg.warmup) / span, 0.0, 1.0)
    cosine = 0.5 * (1 - jnp.cos(jnp.pi * left))
    fall = {
        "constant": jnp.ones_like(left),
        "linear": left,
        "cosine": cosine,
        "uba": 2 * cosine / (cfg.phi + (2 - cfg.phi) * cosine),
    }
    return peak * rise * fall[cfg.schedule]
