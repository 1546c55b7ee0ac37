"""From rewards to advantages, and from log-probabilities to a loss.

The policy term of every method has the same gradient:

  sum over tokens of  weight * gate * ratio * correction * advantage * grad logp

with all but the last factor held constant. A method chooses the factors.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from algorithms import diagnostics, ratios, stats
from algorithms import groups as groups_lib
from algorithms import tokens as tokens_lib
from algorithms.groups import Groups
from algorithms.method import Method
from algorithms.penalties import Term
from algorithms.tokens import Tokens


class Advantages(NamedTuple):
    """What the rewards of a batch say, before any log-probability is known.

    Attributes:
      adv_PG: float, 0 on rollouts not kept and in groups that say nothing.
      keep_PG: bool, the rollouts an update may see.
      constant_P: bool, groups whose scored rewards are all equal, singletons too.
      fallback_P: bool, groups whose scale fell back and whose advantages are not 0.
      silent_P: bool, groups without any advantage.
      raw_max: scalar, largest |advantage| before transform and cut.
    """

    adv_PG: jax.Array
    keep_PG: jax.Array
    constant_P: jax.Array
    fallback_P: jax.Array
    silent_P: jax.Array
    raw_max: jax.Array


def advantages(
    method: Method, groups: Groups, cost_PG: jax.Array | float = 0.0
) -> Advantages:
    """(reward - baseline) / scale of every kept rollout, then transformed and cut.

    Args:
      method: its parts up to `keep` are used.
      groups: the batch.
      cost_PG: float, taken off the shaped reward.
    """
    constant_P1 = stats.constant(groups.reward_PG, groups.valid_PG)
    groups = method.shape(groups)
    if method.kl.in_reward:
        cost_PG = jnp.asarray(cost_PG)
        chex.assert_equal_shape([groups.reward_PG, cost_PG])
        groups = groups_lib.with_terms(groups, *groups.terms_KPG, -cost_PG)
    centred_PG = groups.reward_PG - method.baseline(groups)
    centred_PG = jnp.where(groups.valid_PG, centred_PG, 0.0)
    # Whatever the baseline, a group that differs from it by rounding alone says
    # nothing, and must not be blown up by a deviation that is rounding as well.
    size_P1 = stats.magnitude(groups.reward_PG, groups.valid_PG)
    far_P1 = stats.magnitude(centred_PG, groups.valid_PG)
    rounding_P1 = far_P1 <= stats.SAME * size_P1
    centred_PG = jnp.where(rounding_P1, 0.0, centred_PG)
    divisor = method.scale(centred_PG, groups)
    safe_P1 = jnp.where(divisor.scale_P1 == 0, 1.0, divisor.scale_P1)
    adv_PG = centred_PG / safe_P1
    raw_max = jnp.max(jnp.abs(adv_PG))
    adv_PG = method.transform(adv_PG, groups)
    limit = method.max_advantage
    cut_PG = jnp.clip(adv_PG, -limit, limit)
    keep_PG = method.keep(centred_PG, groups)
    adv_PG = jnp.where(keep_PG, jnp.where(limit > 0, cut_PG, adv_PG), 0.0)
    silent_P = jnp.all(adv_PG == 0, axis=1)
    return Advantages(
        adv_PG=adv_PG,
        keep_PG=keep_PG,
        constant_P=constant_P1[:, 0],
        fallback_P=divisor.fallback_P1[:, 0] & ~silent_P,
        silent_P=silent_P,
        raw_max=raw_max,
    )


class Batch(NamedTuple):
    """Rows of an update, all that is not the trained policy.

    Attributes:
      adv_N: float.
      weight_NT: float from the method's aggregation over the whole batch.
      logo_NT: float nats, log-probabilities of the method's anchor.
      logq_NT: float nats under the distribution that sampled.
      mask_NT: bool, completion tokens of kept rows.
      group_N: int32 in [0, N), rows of one problem share a number.
      lag: int32, updates since the rows were sampled.
      logref_NT: float nats under the reference policy, or None.
    """

    adv_N: jax.Array
    weight_NT: jax.Array
    logo_NT: jax.Array
    logq_NT: jax.Array
    mask_NT: jax.Array
    group_N: jax.Array
    lag: jax.Array
    logref_NT: jax.Array | None = None


def tokens_of(method: Method, logp_NT: jax.Array, batch: Batch) -> Tokens:
    """The rows as the method's token rules see them: detached, 0 off the mask."""
    given = (batch.weight_NT, batch.mask_NT, batch.logo_NT, batch.logq_NT)
    chex.assert_equal_shape([logp_NT, *given])
    if batch.logref_NT is not None:
        chex.assert_equal_shape([logp_NT, batch.logref_NT])
    # Masked before any arithmetic: padding may hold -inf, and -inf + inf is NaN.
    logp_NT = jnp.where(batch.mask_NT, jax.lax.stop_gradient(logp_NT), 0.0)
    logo_NT = jnp.where(batch.mask_NT, batch.logo_NT, 0.0)
    logo_NT = method.anchor(logp_NT, logo_NT, batch.lag)
    return tokens_lib.of(
        logp_NT, logo_NT, batch.mask_NT, batch.adv_N, batch.logq_NT, batch.group_N
    )


def gates(method: Method, logp_NT: jax.Array, batch: Batch) -> jax.Array:
    """The gate of every token, [N, T], for rules that compare rows.

    Such a rule must see all rows of an update at once, so where an update is split
    this is computed first, and handed to `loss` part by part.
    """
    tokens = tokens_of(method, logp_NT, batch)
    return method.gate(method.ratio(tokens), tokens)


def extra_terms(method: Method, tokens: Tokens, batch: Batch) -> dict[str, Term]:
    """Terms of the loss beside the policy's, by name."""
    terms = {}
    if method.kl.active and not method.kl.in_reward:
        terms["kl"] = method.kl(tokens, batch.logref_NT)
    if method.entropy.active and not method.entropy.exact:
        terms["bonus"] = method.entropy(tokens)
    return terms


def loss(
    method: Method,
    logp_NT: jax.Array,
    batch: Batch,
    entropy_NT: jax.Array | None = None,
    gate_NT: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """What some rows of a batch add to the loss, to be minimised, and to metrics.

    Args:
      method: its parts from `anchor` on are used, but for `aggregate`.
      logp_NT: float nats under the trained policy; the source of gradient.
      batch: the rows. A problem's rows are all among them.
      entropy_NT: float nats, entropy of the policy at each token, differentiable;
        only where `method.entropy.exact`.
      gate_NT: gates decided beforehand, or None to decide them from these rows.

    Returns:
      The loss, and sums for `diagnostics.summarise`. All are sums over tokens with
      the batch's own weights: adding them over the parts of a batch gives the
      batch's. On policy the policy term is minus the weighted mean advantage, often
      near 0 while its gradient is not.
    """
    tokens = tokens_of(method, logp_NT, batch)
    log_ratio_NT = method.ratio(tokens)
    if gate_NT is None:
        gate_NT = method.gate(log_ratio_NT, tokens)
    chex.assert_equal_shape([logp_NT, gate_NT])
    correction_NT = method.correction(tokens)
    weight_NT = batch.weight_NT
    ratio_NT = ratios.exp(log_ratio_NT)
    coef_NT = gate_NT * ratio_NT * correction_NT * tokens.adv_N[:, None]
    # 0 with the gradient of logp.
    logp_NT = stats.wide(jnp.where(batch.mask_NT, logp_NT, 0.0))
    moving_NT = logp_NT - tokens.logp_NT
    value = -jnp.sum(weight_NT * coef_NT * (1.0 + moving_NT))
    sums = diagnostics.token_sums(tokens, weight_NT, gate_NT, correction_NT)
    for name, term in extra_terms(method, tokens, batch).items():
        value += jnp.sum(weight_NT * (term.value_NT + term.slope_NT * moving_NT))
        sums[name] = jnp.sum(weight_NT * term.value_NT)
    if batch.logref_NT is not None:
        sums |= diagnostics.reference_sums(tokens, batch.logref_NT, weight_NT)
    if entropy_NT is not None:
        chex.assert_equal_shape([logp_NT, entropy_NT])
        entropy_NT = jnp.where(batch.mask_NT, entropy_NT, 0.0)
        sums["full_entropy"] = jnp.sum(weight_NT * entropy_NT)
        value -= method.entropy.coef * sums["full_entropy"]
    return value, sums
