"""Trust regions shared by many tokens, against loops, worked values and shardings."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import numpy as np
import pytest

from algorithms import budgets, gates
from algorithms import tokens as tokens_lib
from tests.algorithms import rows

M2 = {"mask": gates.M2Mask, "winsor": gates.M2Winsor, "all": gates.M2All}


# --- second moment ------------------------------------------------------------


def by_loop(kind, log_ratio_NT, mask_NT, adv_N, budget):
    """Gates of a second-moment rule, one token at a time."""
    gate_NT, squares = np.ones(log_ratio_NT.shape), []
    for n, t in np.argwhere(mask_NT):
        d = log_ratio_NT[n, t]
        if kind == "all" or (adv_N[n] > 0 and d > 0) or (adv_N[n] < 0 and d < 0):
            squares.append((d * d, n, t))
    squares.sort(reverse=True)
    if kind == "winsor":
        values = sorted(v for v, _, _ in squares)
        if not values or np.mean(values) <= budget:
            return gate_NT
        theta_sq = 0.0
        for k, v in enumerate(values):
            if np.mean([min(u, v) for u in values]) >= budget:
                break
            theta_sq = values[k]
        for v, n, t in squares:
            gate_NT[n, t] = float(v <= theta_sq)
        return gate_NT
    over = np.greater if kind == "mask" else np.greater_equal
    least = 1 if kind == "all" else 0
    while len(squares) > least and over(np.mean([v for v, _, _ in squares]), budget):
        _, n, t = squares.pop(0)
        gate_NT[n, t] = 0
    return gate_NT


@pytest.mark.parametrize("kind", M2)
@pytest.mark.parametrize("budget", [0.0, 0.001, 0.04, 0.1])
def test_second_moment_follows_its_definition(kind, budget):
    dropped = total = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        log_ratio_NT = rng.standard_t(2.2, size=(7, 11)) * 0.15
        mask_NT = rng.random((7, 11)) < 0.7
        mask_NT[3] = False
        adv_N = rng.normal(size=7) * (np.arange(7) != 5)
        want_NT = by_loop(kind, log_ratio_NT, mask_NT, adv_N, budget)
        args = rows.at(log_ratio_NT, adv_N, mask_NT)
        got_NT = rows.x64(rows.gate, *args, part=M2[kind](budget))
        np.testing.assert_array_equal(got_NT, want_NT)
        dropped += (want_NT == 0).sum()
        total += mask_NT.sum()
    assert 0 < dropped < total


M2_ROWS = rows.at([[0.5, -0.5, 0.1, 0.3], [-0.4, 0.4, -0.05, 0.0]], rows.BOTH)


@pytest.mark.parametrize(
    "kind, want",
    [
        ("mask", [[0, 1, 1, 1], [0, 1, 1, 1]]),
        # theta is 0.1, a token that stands on it stays.
        ("winsor", [[0, 1, 1, 0], [0, 1, 1, 1]]),
        ("all", [[0, 0, 1, 1], [0, 0, 1, 1]]),
    ],
)
def test_second_moment_golden(golden, kind, want):
    got_NT = golden(rows.gate, *M2_ROWS, part=M2[kind]())
    np.testing.assert_array_equal(got_NT, want)
    assert got_NT.dtype == golden.dtype


@pytest.mark.parametrize("kind, drop", [("mask", [2]), ("all", [2, 3])])
def test_second_moment_of_competing_tokens(golden, kind, drop):
    """Which tokens compete is part of the rule."""
    log_ratio_N1 = np.array([[0.05], [-0.1], [0.9], [-0.6], [0.2], [-0.3]])
    args = rows.at(log_ratio_N1, [1.0, -1, 1, 1, -1, -1])
    got_N1 = golden(rows.gate, *args, part=M2[kind]())
    np.testing.assert_array_equal(np.flatnonzero(got_N1 == 0), drop)


EDGES = [
    # A mean of exactly the budget: kept, but for the rule that is strict.
    ("mask", [0.2, 0.2], 1.0, [1, 1]),
    ("mask", [0.1, 0.1, 0.1, 0.374165738677], 1.0, [1, 1, 1, 0]),
    ("mask", [0.1, 0.1, 0.1, 0.3605551275], 1.0, [1, 1, 1, 1]),
    ("winsor", [0.2, 0.2], 1.0, [1, 1]),
    ("all", [0.2, 0.2], 1.0, [1, 1]),
    ("all", [0.1, 0.2, 0.07**0.5], 1.0, [1, 1, 0]),
    # (.02 + .05 + .05) / 3, the values cut to .05, is the budget: too much already.
    ("winsor", [0.02**0.5, 0.05**0.5, 1.0], 1.0, [1, 0, 0]),
    # Nothing competes: nothing is dropped.
    ("mask", [5.0, 0.0], -1.0, [1, 1]),
    ("winsor", [5.0, 0.0], -1.0, [1, 1]),
    ("mask", [5.0, -5.0], 0.0, [1, 1]),
    ("winsor", [5.0, -5.0], 0.0, [1, 1]),
    # All over the budget: none is kept, or the smallest.
    ("mask", [0.3, 0.4, 0.5], 1.0, [0, 0, 0]),
    ("winsor", [0.3, 0.4, 0.5], 1.0, [0, 0, 0]),
    ("all", [0.3, 0.4, 0.5], 1.0, [1, 0, 0]),
    # Equal tokens stand or fall together.
    ("mask", [0.05, 0.3, 0.3, 0.01], 1.0, [1, 0, 0, 1]),
    ("mask", [0.05, 0.23, 0.23, 0.01], 1.0, [1, 1, 1, 1]),
    ("all", [0.3, -0.3, 0.4], 1.0, [1, 1, 0]),
    ("all", [0.1, -0.3, 0.3, 0.1], 1.0, [1, 0, 0, 1]),
    ("winsor", [0.05, 0.3, 0.3, 0.01], 1.0, [1, 0, 0, 1]),
    # Both sides have the same size: equal, though only one side competes.
    ("mask", [0.3, -0.3, 0.1], 1.0, [0, 1, 1]),
]


@pytest.mark.parametrize("kind, log_ratio, adv, want", EDGES)
def test_second_moment_edges(golden, kind, log_ratio, adv, want):
    got_NT = golden(rows.gate, *rows.at(log_ratio, adv), part=M2[kind]())
    np.testing.assert_array_equal(got_NT, [want])


def test_winsorised_rule_is_the_tighter_one():
    """Shares of half-normal log ratios of deviation 0.25 that go: 23 % and 9.3 %."""
    log_ratio_NT = np.abs(0.25 * np.random.default_rng(0).normal(size=(200, 200)))
    args = rows.at(log_ratio_NT, 1.0)
    share = lambda part: 1 - float(rows.gate(*args, part=part).mean())
    np.testing.assert_allclose(share(gates.M2Winsor()), 0.23, atol=0.01)
    np.testing.assert_allclose(share(gates.M2Mask()), 0.093, atol=0.006)


# --- SAT ------------------------------------------------------------------------

SAT = np.array([0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.10, 0.15])


def sat_bounds(*args, part=gates.Sat()):  # noqa: B008
    tokens = tokens_lib.of(*args)
    return part.bounds(tokens.logp_NT - tokens.logo_NT, tokens)


@pytest.mark.parametrize(
    "sign, low, high, kept_up, kept_down",
    [(1, 0.8, 1.065772, 0, 1), (-1, 0.934228, 1.2, 1, 0)],
)
def test_sat_golden(golden, sign, low, high, kept_up, kept_down):
    # The row twice, so that the quantile of both is that of one: 2 x 10 would not be.
    log_ratio = SAT * sign
    low_NT, high_NT = golden(sat_bounds, *rows.at(log_ratio, 1.0))
    golden.check(low_NT, [[0.8] * 9 + [low]])
    golden.check(high_NT, [[1.2] * 9 + [high]])
    for adv, last in ((1.0, kept_up), (-1.0, kept_down)):
        got_NT = golden(rows.gate, *rows.at(log_ratio, adv), part=gates.Sat())
        np.testing.assert_array_equal(got_NT, [[1] * 9 + [last]])
    assert golden(rows.gate, *rows.at(log_ratio, sign), part=gates.Clip()).all()


@pytest.mark.parametrize("share, power", [(0.9, 2.0), (0.5, 3.0)])
def test_sat_follows_its_definition(share, power):
    logp_NT, logo_NT, mask_NT, adv_N = rows.random(1)
    part = gates.Sat(low=0.3, high=0.5, quantile=share, power=power)
    bounds = rows.x64(
        lambda *args: jnp.stack(sat_bounds(*args, part=part)),
        *(logp_NT, logo_NT, mask_NT, adv_N),
    )
    q = np.quantile(np.abs(logp_NT - logo_NT)[mask_NT], share)
    for n, t in np.argwhere(mask_NT):
        d = logp_NT[n, t] - logo_NT[n, t]
        c = 1 / (1 + (abs(d) / q) ** power) if abs(d) > q else 1.0
        want = 1 - 0.3 * (c if d < 0 else 1), 1 + 0.5 * (c if d > 0 else 1)
        np.testing.assert_allclose(bounds[:, n, t], want, rtol=1e-9)


def test_sat_takes_all_rows_and_no_padding():
    """One row of 10 is the same as two of 5 in another order, with holes and junk."""
    want_11T = sat_bounds(*rows.at(SAT, 1.0))
    junk = np.insert(SAT[::-1].reshape(2, 5), [2], 7.0, axis=1)
    mask_NT = np.ones((2, 6), bool)
    mask_NT[:, 2] = False
    got_2NT = sat_bounds(*rows.at(junk, rows.BOTH, mask_NT))
    for got_NT, want_1T in zip(got_2NT, want_11T, strict=True):
        np.testing.assert_allclose(got_NT[mask_NT][::-1], want_1T[0], rtol=1e-6)


@pytest.mark.parametrize("scale", [0.1, 0.4])
def test_sat_reductions(scale):
    """No tail, all equal, or nothing moved: the plain clip. Never wider than that."""
    args = rows.random(5, scale=scale)
    clip_NT = rows.gate(*args, part=gates.Clip())
    whole = gates.Sat(quantile=1.0)
    np.testing.assert_array_equal(rows.gate(*args, part=whole), clip_NT)
    assert (rows.gate(*args, part=gates.Sat(quantile=0.5)) <= clip_NT).all()
    # The last has a quantile of 0, and so no tail.
    for d in (np.zeros(5), np.full(5, 0.15), np.full(5, -0.15), 0.15 * np.eye(12)[0]):
        low_NT, high_NT = sat_bounds(*rows.at(d, 1.0))
        np.testing.assert_allclose(low_NT, 0.8, rtol=1e-6)
        np.testing.assert_allclose(high_NT, 1.2, rtol=1e-6)


def test_sat_kernels():
    """Power is the exponent; `smooth` starts at 1 and ends twice as wide."""
    x = 0.15 / 0.105
    for power, smooth in ((2.0, False), (3.0, False), (2.0, True)):
        part = gates.Sat(power=power, smooth=smooth)
        _, high_NT = sat_bounds(*rows.at(SAT, 1.0), part=part)
        want = 0.2 * (2 if smooth else 1) / (1 + x**power)
        np.testing.assert_allclose(high_NT[0, -1] - 1, want, rtol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_quantile_is_that_of_numpy(share, seed):
    rng = np.random.default_rng(seed)
    x_RK, valid_RK = rng.normal(size=(6, 8)), rng.random((6, 8)) < 0.6
    valid_RK[0], valid_RK[1], valid_RK[2] = False, True, np.arange(8) == 3
    got_R1 = budgets.quantile(np.where(valid_RK, x_RK, np.nan), valid_RK, share)
    for x_K, valid_K, got in zip(x_RK, valid_RK, got_R1[:, 0], strict=True):
        want = np.quantile(x_K[valid_K], share) if valid_K.any() else 0.0
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


# --- prefix budget ---------------------------------------------------------------

CPPO = gates.PrefixBudget(delta=0.2)
OLD, NEW = [0.50, 0.40, 0.60, 0.30, 0.20], [0.69, 0.52, 0.66, 0.50, 0.25]


def cppo_by_loop(logp_NT, logo_NT, mask_NT, adv_N, part):
    """Tokens kept, one at a time."""
    keep_NT = np.ones(mask_NT.shape)
    for n in range(len(adv_N)):
        kept = np.flatnonzero(mask_NT[n])
        D = np.abs(np.exp(logp_NT[n, kept]) - np.exp(logo_NT[n, kept]))
        if not kept.size:
            continue
        low, high = part.floor, 2 * part.floor
        growth = np.clip(part.tail * np.quantile(D, part.quantile), low, high)
        spent = earned = 0.0
        for i, t in enumerate(kept):
            w = 1 - (1 - part.last) * i / max(len(kept) - 1, 1)
            left = min(part.delta, part.delta + growth * earned - spent)
            r = np.exp(logp_NT[n, t] - logo_NT[n, t])
            keep_NT[n, t] = adv_N[n] * (r - 1) <= 0 or w * D[i] <= left
            spent, earned = spent + w * D[i], earned + w
    return keep_NT


@pytest.mark.parametrize(
    "part",
    [
        gates.PrefixBudget(cap=1e9),
        gates.PrefixBudget(0.1, 0.5, 0.04, 0.5, 0.7, cap=1e9),
        gates.PrefixBudget(0.3, 0.0, 0.01, 1.0, 2.0, cap=1e9),
    ],
    ids=str,
)
def test_prefix_budget_follows_its_definition(part):
    dropped = 0
    for seed in range(6):
        args = rows.random(seed, width=15)
        want_NT = cppo_by_loop(*args, part)
        got_NT = rows.x64(rows.gate, *args, part=part)
        np.testing.assert_array_equal(got_NT, want_NT)
        dropped += (want_NT == 0).sum()
    assert dropped > 3


def test_prefix_budget_golden(golden):
    args = rows.probabilities(NEW, OLD, rows.BOTH)
    run = lambda args, part: golden(rows.gate, *args, part=part)
    np.testing.assert_array_equal(run(args, CPPO), [[1, 0, 0, 0, 0], [1] * 5])
    # 0.3 -> 0.5 stands on a bound of 0.2.
    np.testing.assert_array_equal(run(args, gates.Tv(0.2 + 1e-6, 0.2 + 1e-6)), 1)
    endless = gates.PrefixBudget(delta=0.2, floor=1e9)
    np.testing.assert_array_equal(run(args, endless), 1)
    one = rows.probabilities([0.69], [0.50], rows.BOTH)
    np.testing.assert_array_equal(run(one, CPPO), 1)
    np.testing.assert_array_equal(run(one, gates.PrefixBudget(delta=0.18)), [[0], [1]])


def test_a_token_on_the_bound_is_kept(golden):
    """Certain to impossible is a change of exactly 1."""
    args = np.array([[-200.0]]), np.zeros((1, 1)), np.ones((1, 1), bool), -np.ones(1)
    for part in (gates.PrefixBudget(delta=1.0), gates.Tv(low=1.0), gates.Ipo(1.0)):
        assert golden(rows.gate, *args, part=part) == 1


@pytest.mark.parametrize("part", [gates.PrefixBudget(1.0), gates.Tv(1.0, 1.0)], ids=str)
def test_a_cap_holds_past_the_float_limit(golden, part):
    """Impossible to certain weighs the cap, not 0 and not infinity."""
    args = np.zeros((1, 1)), np.array([[-100.0]]), np.ones((1, 1), bool), np.ones(1)
    golden.check(golden(rows.coef, *args, part=part), [[20.0]], 4)


def test_what_is_dropped_or_moves_back_still_spends(golden):
    """Four tokens that fall spend what the fifth would have had."""
    old, new = [0.5] * 5, [0.38] * 4 + [0.55]
    back = rows.probabilities(new, old, rows.BOTH)
    got_NT = golden(rows.gate, *back, part=gates.PrefixBudget())
    np.testing.assert_array_equal(got_NT, [[1, 1, 1, 1, 0], [1, 0, 0, 0, 1]])


def test_prefix_budget_that_never_runs_out_is_tv():
    for seed in range(4):
        args = rows.random(seed, scale=1.0)
        want_NT = rows.gate(*args, part=gates.Tv(0.1, 0.1, cap=2.0))
        part = gates.PrefixBudget(0.1, last=1.0, floor=1e9, cap=2.0)
        np.testing.assert_allclose(rows.gate(*args, part=part), want_NT, rtol=1e-6)
        assert (want_NT == 0).any() and ((0 < want_NT) & (want_NT < 1)).any()


# --- BAPO -------------------------------------------------------------------------

BAPO = rows.at(np.log([[1.5], [1.1], [0.5], [0.9], [0.7]]), [1, 1, -1, -1, -1])


def bapo_bounds(*args, part):
    tokens = tokens_lib.of(*args)
    return part.bounds(tokens.logp_NT - tokens.logo_NT, tokens)


@pytest.mark.parametrize(
    "part, low, high",
    [
        (gates.Balanced(), 0.6, 1.2),
        # Rewarded over punished at (0.6, 1.2) is 2.3 / 2.2.
        (gates.Balanced(target=1.0454), 0.6, 1.2),
        # Raising the lower bound lowers it: the search runs to the end.
        (gates.Balanced(target=1.046), 0.8, 2.0),
        (gates.Balanced(low=0.7), 0.7, 1.2),
        (gates.Balanced(low=0.75), 0.8, 1.4),
        (gates.Balanced(low=0.8), 0.8, 1.4),
        (gates.Balanced(low=0.8, target=0.96), 0.8, 1.3),
        (gates.Balanced(low=0.8, target=0.94), 0.8, 1.25),
        (gates.Balanced(low=0.8, target=0.92), 0.8, 1.2),
        # Live mass is 1.1 / 1.6 at first, 1.1 / 0.9 once 0.7 is out, then 2.6 / 0.9.
        (gates.Balanced(0.62, gradient=True), 0.72, 1.2),
        (gates.Balanced(0.62, gradient=True, target=1.1 / 1.6), 0.62, 1.2),
        (gates.Balanced(0.62, high=1.22, gradient=True, target=1.3), 0.8, 1.52),
        (gates.Balanced(low=0.8, low_max=0.8, high=1.2, high_max=1.2), 0.8, 1.2),
    ],
    ids=str,
)
def test_balanced_golden(golden, part, low, high):
    got = golden(bapo_bounds, *BAPO, part=part)
    golden.check(np.stack(got), [low, high])


def bapo_by_loop(ratio_NT, mask_NT, adv_N, part):
    """Bounds as the released code finds them, but no further than their ends."""
    low, high = part.low, part.high

    def falls_short():
        up = down = 0.0
        for n, t in np.argwhere(mask_NT):
            r, a = ratio_NT[n, t], adv_N[n]
            if a > 0 and (r <= high or not part.gradient):
                up += min(r, high) * a
            if a < 0 and (r >= low or not part.gradient):
                down += max(r, low) * -a
        return down > 0 and up / down < part.target

    while falls_short() and low < part.low_max - 1e-9:
        low = min(low + part.step, part.low_max)
    while falls_short() and high < part.high_max - 1e-9:
        high = min(high + part.step, part.high_max)
    return low, high


@pytest.mark.parametrize("gradient", [False, True])
def test_balanced_follows_its_definition(gradient):
    found = set()
    for seed in range(40):
        logp_NT, logo_NT, mask_NT, adv_N = rows.random(seed)
        rng = np.random.default_rng(seed)
        part = gates.Balanced(
            low=0.63, high=1.13, target=rng.uniform(0.2, 1.5), gradient=gradient
        )
        ratio_NT = np.exp(logp_NT - logo_NT)
        want = bapo_by_loop(ratio_NT, mask_NT, adv_N, part)
        args = logp_NT, logo_NT, mask_NT, adv_N
        got = rows.x64(
            lambda *a, part=part: jnp.stack(bapo_bounds(*a, part=part)), *args
        )
        np.testing.assert_allclose(got, want, rtol=1e-9)
        found.add((want[0] > part.low, want[1] > part.high))
        found.add(("inside", part.high < want[1] < part.high_max))
    assert {(False, False), (True, True), ("inside", True)} <= found


def test_balanced_gate_is_a_dual_clip_at_its_bounds():
    part = gates.Balanced(low=0.8, dual=1.5)
    args = rows.random(7, scale=1.0)
    low, high = bapo_bounds(*args, part=part)
    clip = gates.Clip(1.0 - float(low), float(high) - 1.0, dual=1.5)
    want_NT = rows.gate(*args, part=clip)
    np.testing.assert_array_equal(rows.gate(*args, part=part), want_NT)
    # Without a range there is no search, whatever the target.
    fixed = gates.Balanced(0.8, 0.8, 1.3, 1.3, target=1e9, dual=1.5)
    want_NT = rows.gate(*args, part=gates.Clip(0.2, 0.3, dual=1.5))
    np.testing.assert_array_equal(rows.gate(*args, part=fixed), want_NT)
    single_NT = rows.gate(*args, part=gates.Clip(0.2, 0.3))
    assert (want_NT != single_NT).any()


def test_balanced_without_punishment_does_not_search():
    args = rows.random(7)
    args = (*args[:3], np.abs(args[3]))
    np.testing.assert_allclose(
        np.stack(bapo_bounds(*args, part=gates.Balanced(target=1e9))), [0.6, 1.2]
    )


def test_balanced_reaches_its_end_in_a_bounded_number_of_steps():
    part = gates.Balanced(low_max=0.6, high_max=9.0, step=1e-4, target=1e9)
    got = bapo_bounds(*BAPO, part=part)
    np.testing.assert_allclose(np.stack(got), [0.6, 9.0], rtol=1e-6)


# --- sharding ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        gates.M2Mask(),
        gates.M2Winsor(0.05),
        gates.M2All(),
        gates.Sat(0.3, 0.5, quantile=0.4),
        gates.Balanced(low=0.8, low_max=0.95, high=1.1),
    ],
    ids=str,
)
def test_rows_on_four_devices_are_gated_as_on_one(part):
    mesh = Mesh(np.array(jax.devices()[:4]), ("rows",))
    logp_NT, logo_NT, mask_NT, _ = rows.random(n=8, width=40)
    # Rows that differ a lot, so that some of them alone would be another matter.
    logp_NT = logp_NT * np.linspace(0.7, 1.3, 8)[:, None]
    adv_N = np.array([1.0, 1, -1, -1, 1, 1, -1, -1], np.float32)
    args = logp_NT.astype("f4"), logo_NT.astype("f4"), mask_NT, adv_N
    run = jax.jit(lambda *args: rows.gate(*args, part=part))
    spread = [
        jax.device_put(x, NamedSharding(mesh, PartitionSpec("rows"))) for x in args
    ]
    got_NT, want_NT = run(*spread), run(*args)
    np.testing.assert_array_equal(got_NT, want_NT)
    # And not as two rows by themselves.
    alone_NT = np.concatenate(
        [run(*(x[i : i + 2] for x in args)) for i in (0, 2, 4, 6)]
    )
    assert (alone_NT != want_NT).any()
