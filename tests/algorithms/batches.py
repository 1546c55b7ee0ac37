"""A batch of made-up rollouts, and a method's whole objective on it."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import groups, objective
from algorithms.method import Method

LIMIT = 8


class Data(NamedTuple):
    """Everything a method may look at; rows are problem-major, [P, G, ...]."""

    reward_PG: Any
    mask_PGT: Any
    ended_PG: Any
    cluster_PG: Any
    logp_PGT: Any
    logo_PGT: Any
    logq_PGT: Any
    logref_PGT: Any
    entropy_PGT: Any


def draw(method: Method, P: int = 4, seed: int = 0, spread: float = 0.3) -> Data:
    """Ragged rollouts with three levels of reward, off every policy by `spread`.

    One rollout is not scored, one has no token, one group is constant.
    """
    rng = np.random.default_rng(seed)
    G, T = 6 + method.keep.extra, LIMIT
    length_PG = rng.integers(1, T + 1, (P, G))
    length_PG[0, 1] = 0
    reward_PG = rng.choice([0.0, 0.5, 1.0], (P, G))
    reward_PG[1] = 1.0
    reward_PG[2, 3] = np.nan
    logp_PGT = -rng.exponential(size=(P, G, T))
    off = lambda: np.minimum(logp_PGT + spread * rng.normal(size=(P, G, T)), -1e-3)
    return Data(
        reward_PG=reward_PG,
        mask_PGT=np.arange(T) < length_PG[..., None],
        ended_PG=length_PG < T,
        cluster_PG=rng.integers(0, 3, (P, G)).astype(np.int32),
        logp_PGT=logp_PGT,
        logo_PGT=off(),
        logq_PGT=off(),
        logref_PGT=off(),
        entropy_PGT=rng.random((P, G, T)),
    )


def cast(data: Data, dtype: Any) -> Data:
    """The data with its floats in another precision."""

    def one(x: Any) -> Any:
        x = np.asarray(x)
        return jnp.asarray(x, dtype if x.dtype.kind == "f" else x.dtype)

    return jax.tree.map(one, data)


def on_policy(data: Data) -> Data:
    """The same rollouts where all policies are one."""
    return data._replace(
        logo_PGT=data.logp_PGT, logq_PGT=data.logp_PGT, logref_PGT=data.logp_PGT
    )


def prepare(method: Method, data: Data) -> tuple[objective.Batch, objective.Advantages]:
    """Advantages and weights of the whole batch, as rows."""
    batch_groups = groups.of(
        data.reward_PG,
        jnp.isfinite(data.reward_PG),
        length_PG=jnp.sum(data.mask_PGT, axis=-1),
        ended_PG=data.ended_PG,
        limit=LIMIT,
        cluster_PG=data.cluster_PG if method.transform.needs_clusters else None,
    )
    cost_PG = method.kl.cost(data.logq_PGT, data.logref_PGT, data.mask_PGT)
    adv = objective.advantages(method, batch_groups, cost_PG)
    P, G, T = data.mask_PGT.shape
    flat = lambda x: jnp.reshape(x, (P * G, T))
    group_N = jnp.repeat(jnp.arange(P), G)
    mask_NT = flat(data.mask_PGT) & adv.keep_PG.reshape(-1)[:, None]
    weight_NT = method.aggregate(mask_NT, adv.keep_PG.reshape(-1), group_N, LIMIT)
    batch = objective.Batch(
        adv_N=adv.adv_PG.reshape(-1),
        weight_NT=weight_NT,
        logo_NT=flat(data.logo_PGT),
        logq_NT=flat(data.logq_PGT),
        mask_NT=mask_NT,
        group_N=group_N,
        lag=jnp.int32(3),
        logref_NT=flat(data.logref_PGT),
    )
    return batch, adv


def evaluate(method: Method, data: Data, parts: int = 1) -> tuple[Any, Any, Any]:
    """Loss, metric sums and gradient [P, G, T] by logp, summed over parts of problems.

    A gate that compares rows is decided over the whole batch beforehand.
    """
    batch, _ = prepare(method, data)
    P, G, T = data.mask_PGT.shape
    logp_NT = jnp.reshape(data.logp_PGT, (P * G, T))
    entropy_NT = jnp.reshape(data.entropy_PGT, (P * G, T))
    gate_NT = None
    if method.gate.compares_rows and parts > 1:
        gate_NT = objective.gates(method, logp_NT, batch)

    def part(logp_NT: Any, rows: Any) -> tuple[Any, Any]:
        some = jax.tree.map(lambda x: x if x.ndim == 0 else x[rows], batch)
        some = some._replace(group_N=some.group_N - some.group_N[0])
        return objective.loss(
            method,
            logp_NT[rows],
            some,
            entropy_NT=entropy_NT[rows] if method.entropy.exact else None,
            gate_NT=None if gate_NT is None else gate_NT[rows],
        )

    def whole(logp_NT: Any) -> tuple[Any, Any]:
        pieces = [part(logp_NT, r) for r in np.split(np.arange(P * G), parts)]
        return jax.tree.map(lambda *x: sum(x[1:], x[0]), *pieces)

    (value, sums), grad = jax.value_and_grad(whole, has_aux=True)(logp_NT)
    return value, sums, grad.reshape(P, G, T)


def with_parts(method: Method, **parts: Any) -> Method:
    """The method with some of its parts replaced."""
    return dataclasses.replace(method, **parts)
