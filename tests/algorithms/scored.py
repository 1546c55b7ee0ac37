"""Rewards to advantages in a few lines, and batches to try parts on.

The order of `objective.advantages`, written again so that parts are tested without it.
"""

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import baselines, groups, scales, shapes, stats, transforms

NAN = float("nan")


def chain(
    reward_PG,
    length_PG=None,
    *,
    shape=shapes.NoShape(),  # noqa: B008
    baseline=baselines.Mean(),  # noqa: B008
    scale=scales.NoScale(),  # noqa: B008
    transform=transforms.NoTransform(),  # noqa: B008
    **given,
):
    """Advantages of rewards, of which NaN and infinite ones are not scored."""
    batch = groups.of(reward_PG, jnp.isfinite(reward_PG), length_PG, **given)
    batch = shape(batch)
    centred_PG = jnp.where(batch.valid_PG, batch.reward_PG - baseline(batch), 0.0)
    size_P1 = stats.magnitude(batch.reward_PG, batch.valid_PG)
    same_P1 = stats.magnitude(centred_PG, batch.valid_PG) <= stats.SAME * size_P1
    centred_PG = jnp.where(same_P1, 0.0, centred_PG)
    scale_P1 = scale(centred_PG, batch).scale_P1
    adv_PG = centred_PG / jnp.where(same_P1, 1.0, scale_P1)
    return transform(adv_PG, batch)


def random_groups(seed=0, P=7, G=6, dtype=np.float32, limit=4000, junk=77.0):
    """Ragged groups of few reward levels; one is empty, one is lone, one constant.

    Invalid slots hold `junk`, which only `groups.of` may read: lengths, ends and
    clusters of invalid slots depend on it too.
    """
    rng = np.random.default_rng(seed)
    valid_PG = rng.random((P, G)) < 0.8
    valid_PG[0], valid_PG[1], valid_PG[2:4] = False, np.arange(G) == 2, True
    reward_PG = rng.choice([0.0, 0.25, 1.0, 1.5], (P, G))
    reward_PG[2] = 1.0
    length_PG = rng.integers(1, limit + 1, (P, G))
    ended_PG = length_PG < limit - 200
    cluster_PG = rng.integers(-1, 3, (P, G))
    other = int(np.nan_to_num(junk, posinf=5.0)) % 100
    return groups.of(
        np.where(valid_PG, reward_PG, junk).astype(dtype),
        valid_PG,
        length_PG=np.where(valid_PG, length_PG, other).astype(np.int32),
        ended_PG=np.where(valid_PG, ended_PG, bool(other % 2)),
        limit=limit,
        prior_P=rng.random(P).astype(dtype),
        cluster_PG=np.where(valid_PG, cluster_PG, other % 4 - 1).astype(np.int32),
    )


def take(batch, problems=slice(None), slots=slice(None)):
    """Some problems of a batch, or their slots in another order."""
    per_slot = lambda x_PG: x_PG[problems][:, slots]
    return batch._replace(
        reward_PG=per_slot(batch.reward_PG),
        valid_PG=per_slot(batch.valid_PG),
        length_PG=per_slot(batch.length_PG),
        ended_PG=per_slot(batch.ended_PG),
        success_PG=per_slot(batch.success_PG),
        cluster_PG=per_slot(batch.cluster_PG),
        terms_KPG=batch.terms_KPG[:, problems][:, :, slots],
        prior_P=batch.prior_P[problems],
    )


def run(part, batch):
    """What a part of any kind that maps groups says of a batch: [..., P, G] arrays."""
    if isinstance(part, shapes.Shape):
        shaped = part(batch)
        return shaped.reward_PG, shaped.terms_KPG
    if isinstance(part, baselines.Baseline):
        return (jnp.where(batch.valid_PG, part(batch), 0.0),)
    mean_PG = baselines.Mean()(batch)
    centred_PG = jnp.where(batch.valid_PG, batch.reward_PG - mean_PG, 0.0)
    out = part(centred_PG, batch)
    if isinstance(part, scales.Scale):
        return tuple(jnp.broadcast_to(x_P1, centred_PG.shape) for x_P1 in out)
    return (out,)


def jitted(part, batch):
    """`run`, compiled, with everything but the limit an argument."""
    call = lambda batch: run(part, batch._replace(limit=limit))
    limit = batch.limit
    return jax.jit(call)(batch)
