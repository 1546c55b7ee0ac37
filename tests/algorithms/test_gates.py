"""Trust regions: promises of every gate in the table, and rules that see one token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import gates, ratios
from algorithms import tokens as tokens_lib
from tests.algorithms import rows

ALL = pytest.mark.parametrize("name", rows.NAMES)
HUGE = 1e9
# Settings under which a gate drops something, and keeps something, on rows.random.
BITING = gates.GATES | {
    "cap": gates.Cap(high=1.3, low=0.9),
    "envelope": gates.Envelope(low=0.1, high=0.1, reference=0.0),
    "widening": gates.Widening(low=0.1, high=0.15),
    "live": gates.Live(0.2, 0.2),
    "tv": gates.Tv(0.1, 0.1),
    "kl": gates.Kl(0.02, 0.02),
    "probability": gates.Probability(0.02, 0.03, dual=1.5),
    "balanced": gates.Balanced(low=0.8, low_max=0.95, high=1.1, target=1.3),
    "clip": gates.Clip(0.2, 0.2, dual=1.5),
    "sat": gates.Sat(0.3, 0.5, quantile=0.4),
    "m2_winsor": gates.M2Winsor(0.05),
}


def biting(name):
    return BITING[name]


# --- every gate ---------------------------------------------------------------


@ALL
def test_on_policy_nothing_is_gated(golden, name):
    """Whatever the probability and the sign of the advantage."""
    logp_NT, _, mask_NT, adv_N = rows.random(n=7)
    logp_NT[2, :3] = 0.0, -50.0, -100.0
    got_NT = golden(rows.gate, logp_NT, logp_NT, mask_NT, adv_N, part=gates.GATES[name])
    np.testing.assert_array_equal(got_NT, 1.0)
    assert got_NT.dtype == golden.dtype


@ALL
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gates_have_the_dtype_of_tokens(name, dtype):
    logp_NT, logo_NT, mask_NT, adv_N = rows.random()
    with jax.enable_x64(True):
        args = (jnp.asarray(x, dtype) for x in (logp_NT, logo_NT))
        tokens = tokens_lib.of(*args, mask_NT, jnp.asarray(adv_N, dtype))
        got_NT = gates.GATES[name](ratios.Token()(tokens), tokens)
    assert got_NT.dtype == dtype and not got_NT.weak_type


@ALL
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_on_policy_survives_any_budget(name, share):
    """Bounds of 0 as well as huge ones keep a token at ratio 1."""
    part = gates.GATES[name]
    for f in dataclasses.fields(part):
        if f.name in ("low", "high", "budget", "width", "delta", "floor"):
            low, high = f.metadata["range"]
            part = dataclasses.replace(part, **{f.name: low + share * (high - low)})
    logp_NT, _, mask_NT, adv_N = rows.random()
    np.testing.assert_array_equal(rows.gate(logp_NT, logp_NT, mask_NT, adv_N, part), 1)


@ALL
def test_gate_bites_and_is_no_negative_factor(name):
    """Guards the tests below against settings under which nothing happens."""
    got_NT = rows.gate(*rows.random(), part=biting(name))
    assert (got_NT >= 0).all()
    assert (got_NT == 1).all() == (name == "none")
    assert (got_NT > 0.5).any()


@ALL
@pytest.mark.parametrize("junk", [1e4, -np.inf, np.nan])
@pytest.mark.parametrize("seed", range(3))
def test_padding_and_holes_are_inert(name, junk, seed):
    """Columns put in anywhere, and a row, change no gate."""
    logp_NT, logo_NT, mask_NT, adv_N = rows.random(seed)
    want_NT = rows.gate(logp_NT, logo_NT, mask_NT, adv_N, biting(name))
    places = np.sort(np.random.default_rng(seed).integers(0, 10, size=4))
    places = np.concatenate([[0], places, [9]])

    def widened(x_NT, fill):
        return np.pad(
            np.insert(x_NT, places, fill, 1), ((0, 1), (0, 0)), constant_values=fill
        )

    fill = lambda x_NT: np.where(mask_NT, x_NT, junk)
    got_NT = rows.gate(
        widened(fill(logp_NT), junk),
        widened(fill(logo_NT), -junk),
        widened(mask_NT, False),
        np.append(adv_N, 1.0),
        biting(name),
    )
    kept = widened(np.ones_like(mask_NT), False)
    got_NT = np.asarray(got_NT)[kept].reshape(want_NT.shape)
    np.testing.assert_allclose(got_NT, want_NT, rtol=1e-6)


@ALL
def test_rows_are_interchangeable(name):
    args, order_N = rows.random(3), np.array([4, 2, 0, 5, 1, 3])
    want_NT = rows.gate(*args, part=biting(name))[order_N]
    got_NT = rows.gate(*(x[order_N] for x in args), part=biting(name))
    np.testing.assert_allclose(got_NT, want_NT, rtol=1e-6)


@ALL
def test_only_gates_that_say_so_compare_rows(name):
    """Some other row changes this one, or none does."""
    part, changed = biting(name), False
    for seed in range(4):
        args = rows.random(seed, width=40)
        whole_NT = np.asarray(rows.gate(*args, part=part))
        for row in range(1, 6):
            alone_1T = rows.gate(*(x[row : row + 1] for x in args), part=part)
            changed |= not np.allclose(alone_1T[0], whole_NT[row], rtol=1e-6)
    assert changed == part.compares_rows


@ALL
def test_only_gates_that_say_so_vary_inside_a_response(name):
    """The ratio is the same for all tokens of a row, tokens are not."""
    part, varied = biting(name), False
    for seed in range(5):
        logp_NT, logo_NT, mask_NT, adv_N = rows.random(seed, scale=1.0)
        got_NT = rows.gate(
            logp_NT, logo_NT, mask_NT, adv_N, part, ratios.SequenceMean()
        )
        for got_T, mask_T in zip(np.asarray(got_NT), mask_NT, strict=True):
            varied |= len(set(got_T[mask_T])) > 1
    assert varied == part.varies


@ALL
def test_gates_that_read_the_ratio_need_one(name):
    """Without a ratio they gate nothing, however far the policy has moved."""
    got_NT = rows.gate(*rows.random(), part=biting(name), ratio=ratios.NoRatio())
    idle = name == "none" or biting(name).reads_ratio
    assert (got_NT == 1).all() == idle


@ALL
@pytest.mark.parametrize("jit", [False, True])
def test_extremes_make_no_nan(name, jit):
    """Huge ratios, probabilities 0 and 1, empty rows, rows all empty."""
    far = np.array([-100.0, -50.0, -20.0, 0.0, 20.0, 50.0, 100.0])
    logo_NT = np.repeat([-200.0, -50.0, 0.0], 2)[:, None] * np.ones(7)
    logp_NT = np.minimum(logo_NT + far, 0.0)
    logp_NT[[0, 4, 5], 0] = -np.inf
    beyond_NT = far + np.zeros((6, 1))
    masks = [beyond_NT < 1e3, beyond_NT > 0, beyond_NT < -50, beyond_NT > 1e3]
    run = lambda *args: rows.coef(*args, part=gates.GATES[name])
    run = jax.jit(run) if jit else run
    with jax.debug_nans(True):
        for mask_NT in masks:
            adv_N = np.resize(rows.BOTH, 6)
            args = [x.astype(np.float32) for x in (logp_NT, logo_NT)]
            got_NT = run(*args, mask_NT, adv_N.astype(np.float32))
            assert np.isfinite(got_NT).all()


@ALL
def test_settings_may_be_traced(name):
    """So a sweep over settings compiles once; off is a value, not a branch."""
    for part in (gates.GATES[name], biting(name)):
        numbers = {
            f.name: value
            for f in dataclasses.fields(part)
            if not isinstance(value := getattr(part, f.name), bool)
        }
        run = jax.jit(
            lambda numbers, part=part: rows.gate(
                *rows.random(), part=dataclasses.replace(part, **numbers)
            )
        )
        want_NT = rows.gate(*rows.random(), part=part)
        np.testing.assert_allclose(run(numbers), want_NT, rtol=1e-5)


def test_settings_can_be_swept_together():
    """Duals of 0, off, and 1.5 side by side."""
    args = rows.at([0.1, 0.5, 3.0], -1.0)
    one = lambda dual: rows.gate(*args, part=gates.Clip(dual=dual))
    got_S1T = jax.vmap(one)(jnp.array([0.0, 1.5]))
    np.testing.assert_array_equal(got_S1T[:, 0], [[1, 1, 1], [1, 0, 0]])


# Gates that leave a token alone when its coefficient draws it back to the anchor.
ONE_SIDED = [
    gates.Clip(),
    gates.Live(0.2, 0.2),
    gates.Tv(0.1, 0.1),
    gates.Kl(0.02, 0.02),
    gates.Probability(0.02, 0.03, dual=0.0),
    gates.PrefixBudget(),
    gates.M2Mask(),
    gates.M2Winsor(),
    gates.Sat(),
    gates.Balanced(dual=0.0),
]
TWO_SIDED = [gates.Envelope(0.1, 0.1, 0.0), gates.Ipo(0.1), gates.M2All()]


@pytest.mark.parametrize("part", ONE_SIDED + TWO_SIDED, ids=str)
def test_tokens_on_their_way_back_are_kept(part):
    dropped = outward_dropped = 0
    for seed in range(5):
        logp_NT, logo_NT, mask_NT, adv_N = rows.random(seed)
        got_NT = np.asarray(rows.gate(logp_NT, logo_NT, mask_NT, adv_N, part))
        back_NT = mask_NT & (adv_N[:, None] * (logp_NT - logo_NT) < 0)
        dropped += (got_NT[back_NT] == 0).sum()
        outward_dropped += (got_NT[~back_NT] == 0).sum()
    assert outward_dropped > 0
    assert (dropped > 0) == (part in TWO_SIDED)


WIDER = [
    (gates.Clip(0.1, 0.1, 1.2), gates.Clip(0.2, 0.3, 1.4)),
    (gates.Envelope(0.1, 0.1, 0.0), gates.Envelope(0.2, 0.3, 0.0)),
    (gates.Widening(0.05, 0.1), gates.Widening(0.1, 0.15)),
    (gates.Live(0.1, 0.1), gates.Live(0.2, 0.3)),
    (gates.Tv(0.05, 0.05), gates.Tv(0.1, 0.15)),
    (gates.Kl(0.01, 0.01), gates.Kl(0.02, 0.03)),
    (gates.Ipo(0.05), gates.Ipo(0.1)),
    (gates.Probability(0.02, 0.02, 1.2), gates.Probability(0.03, 0.04, 1.4)),
    (gates.PrefixBudget(delta=0.1), gates.PrefixBudget(delta=0.2)),
    (gates.PrefixBudget(floor=0.02), gates.PrefixBudget(floor=0.04)),
    (gates.M2Mask(0.01), gates.M2Mask(0.05)),
    (gates.M2Winsor(0.01), gates.M2Winsor(0.05)),
    (gates.M2All(0.01), gates.M2All(0.05)),
    (gates.Sat(low=0.1, high=0.1), gates.Sat(low=0.2, high=0.3)),
]


@pytest.mark.parametrize("narrow, wide", WIDER, ids=str)
def test_widening_never_drops_more(narrow, wide):
    more = 0
    for seed in range(5):
        narrow_NT, wide_NT = (
            rows.gate(*rows.random(seed), part=part) for part in (narrow, wide)
        )
        assert (wide_NT >= narrow_NT).all()
        more += int((wide_NT > narrow_NT).sum())
    assert more > 0


@pytest.mark.parametrize(
    "part",
    [
        gates.Cap(high=HUGE),
        gates.Clip(low=1.0, high=HUGE),
        gates.Clip(low=1.0, high=HUGE, dual=HUGE),
        gates.Soft(0.0, 0.0),
        gates.Envelope(HUGE, HUGE),
        gates.Widening(HUGE, HUGE),
        gates.Live(HUGE, HUGE),
        gates.Tv(1.0, 1.0, cap=HUGE),
        gates.Kl(HUGE, HUGE, cap=HUGE),
        gates.Ipo(1.0),
        gates.PrefixBudget(delta=HUGE, floor=HUGE, cap=HUGE),
        gates.M2Mask(HUGE),
        gates.M2Winsor(HUGE),
        gates.M2All(HUGE),
        gates.Sat(low=HUGE, high=HUGE),
        gates.Balanced(low=0.0, low_max=0.0, high=HUGE, high_max=HUGE, dual=0.0),
    ],
    ids=str,
)
def test_without_limits_nothing_is_gated(part):
    """The importance-weighted policy gradient, also where ratios are absurd."""
    for scale in (0.4, 40.0):
        got_NT = rows.gate(*rows.random(scale=scale), part=part)
        np.testing.assert_array_equal(got_NT, 1.0)


# --- a clipped loss -------------------------------------------------------------


def test_only_binding_clips_count(golden):
    """Outside the band is not clipped: the other branch of the minimum may be live."""
    args = rows.at(np.log([[1.5], [1.5], [0.5], [0.5], [1.1]]), [1, -1, 1, -1, 1])
    got_N1 = golden(rows.gate, *args, part=gates.Clip())
    np.testing.assert_array_equal(1 - got_N1[:, 0], [1, 0, 0, 1, 0])
    silent = rows.at(np.log([[1.5, 0.5]]), 0.0)
    np.testing.assert_array_equal(golden(rows.gate, *silent, part=gates.Clip()), 1)


def test_bounds_of_a_clip_belong_to_it():
    on_bound = rows.at([[1.0, -1.0]] * 2, rows.BOTH)
    part = gates.Clip(low=1.0 - np.exp(np.float32(-1.0)), high=np.e - 1.0)
    wide = gates.Clip(part.low + 1e-6, part.high + 1e-6)
    tight = gates.Clip(part.low - 1e-6, part.high - 1e-6)
    np.testing.assert_array_equal(rows.gate(*on_bound, part=wide), 1.0)
    np.testing.assert_array_equal(rows.gate(*on_bound, part=tight), [[0, 1], [1, 0]])


@pytest.mark.parametrize("adv", [1.0, -1.0])
def test_ratios_past_the_float_limit(adv):
    """A > 0 is clipped, A < 0 weighs exp(20), and a dual clip drops that as well."""
    args = rows.at([[100.0, 50.0]], adv)
    got_NT = rows.coef(*args, part=gates.Clip())
    want = 0.0 if adv > 0 else -np.exp(20.0)
    np.testing.assert_allclose(got_NT, want, rtol=1e-6)
    np.testing.assert_array_equal(rows.coef(*args, part=gates.Clip(dual=3.0)), 0.0)


def test_a_sequence_mean_is_taken_before_it_is_cut():
    """[100, -100] is a response at ratio 1, [100, -50] one far outside."""
    args = rows.at([[100.0, -100.0], [100.0, -50.0]], 1.0)
    got_NT = rows.gate(*args, part=gates.Clip(), ratio=ratios.SequenceMean())
    np.testing.assert_array_equal(got_NT, [[1, 1], [0, 0]])


# --- published differentiable forms -----------------------------------------------
# Each is the loss of a token as its source writes it; what we use is its gradient.

sg = jax.lax.stop_gradient


def ppo(r, adv, low, high):
    return jnp.maximum(-adv * r, -adv * jnp.clip(r, low, high))


def dual_ppo(r, adv, low, high, dual):
    return jnp.where(
        adv < 0,
        jnp.minimum(-adv * dual, ppo(r, adv, low, high)),
        ppo(r, adv, low, high),
    )


def sapo(new, old, adv, mask):
    tau = jnp.where(adv > 0, 1.0, 1.05)
    return -adv * jax.nn.sigmoid(tau * (jnp.exp(new - old) - 1)) * 4 / tau


def cispo(new, old, adv, mask):
    return -sg(jnp.clip(jnp.exp(new - old), 0.9, 1.3)) * adv * new


def ctpo(new, old, adv, mask):
    c = jnp.cumsum(jnp.where(mask, new - old, 0.0), axis=1)
    log_rho = jnp.minimum(sg(c) + new - sg(new), 10.0)
    h = jnp.sqrt(jnp.cumsum(mask, axis=1).astype(new.dtype))
    cut = jnp.exp(jnp.clip(log_rho, -0.1 * h, 0.15 * h))
    loss = jnp.maximum(-adv * jnp.exp(log_rho), -adv * cut)
    return jnp.where(adv < 0, jnp.minimum(-adv * jnp.exp(0.15 * h), loss), loss)


def gmpo(new, old, adv, mask):
    x = jnp.where(mask, new - old, 0.0)
    z = jnp.where(adv > 0, jnp.minimum(x, 0.25), jnp.maximum(x, -0.15))
    length = jnp.maximum(jnp.sum(mask, axis=1, keepdims=True), 1)
    # One term a response; spread over its tokens, so that all forms have one shape.
    return -adv * jnp.exp(jnp.sum(z, axis=1, keepdims=True) / length) + 0 * new


def vespo(new, old, adv, mask):
    lw = jnp.sum(jnp.where(mask, new - old, 0.0), axis=1, keepdims=True)
    lw = jnp.clip(lw, jnp.log(1e-8), 20.0)
    k, lam = jnp.where(adv >= 0, 2.0, 3.0), jnp.where(adv >= 0, 3.0, 2.0)
    return -adv * sg(jnp.exp(lam + k * lw - lam * jnp.exp(lw))) * new


def dppo_tv(new, old, adv, mask):
    moved = sg(jnp.exp(new) - jnp.exp(old))
    bad = jnp.where(adv > 0, moved > 0.1, moved < -0.1)
    return -adv * sg(jnp.minimum(jnp.exp(new - old), 1.2)) * jnp.where(bad, 0, 1) * new


def dppo_kl(new, old, adv, mask):
    p, q = jnp.exp(new), jnp.exp(old)
    kl = q * (old - new) + (1 - q) * jnp.log((1 - q + 1e-8) / (1 - p + 1e-8))
    bad = jnp.where(adv > 0, p > q, p < q) & (kl > 0.02)
    return -adv * sg(jnp.minimum(jnp.exp(new - old), 1.2)) * sg(~bad) * new


def dcpo(new, old, adv, mask):
    q = jnp.exp(old)
    low = 0.5 + 0.5 * jnp.sqrt(jnp.maximum(1 - 4 * 0.02 / q, 0))
    high = 0.5 + 0.5 * jnp.sqrt(1 + 4 * 0.03 / q)
    return dual_ppo(jnp.exp(new - old), adv, low, jnp.minimum(high, 1.5), 1.5)


def sat(new, old, adv, mask):
    d = sg(new - old)
    q = jnp.quantile(jnp.abs(d)[mask], 0.9)
    c = jnp.where(jnp.abs(d) > q, 1 / (1 + (d / q) ** 2), 1.0)
    low = 1 - 0.2 * jnp.where(adv < 0, c, 1.0)  # By the sign of A: the same surrogate.
    high = 1 + 0.2 * jnp.where(adv > 0, c, 1.0)
    return ppo(jnp.exp(new - old), adv, low, high)


FORMS = [
    (lambda n, o, a, m: ppo(jnp.exp(n - o), a, 0.8, 1.3), gates.Clip(0.2, 0.3), None),
    (
        lambda n, o, a, m: dual_ppo(jnp.exp(n - o), a, 0.9, 1.1, 1.4),
        gates.Clip(0.1, 0.1, dual=1.4),
        None,
    ),
    (sapo, gates.Soft(), None),
    (cispo, gates.Cap(high=1.3, low=0.9), None),
    (ctpo, gates.Widening(0.1, 0.15), ratios.PrefixSum()),
    (vespo, gates.Gamma(), ratios.SequenceSum()),
    (dppo_tv, gates.Tv(0.1, 0.1, cap=1.2), None),
    (dppo_kl, gates.Kl(0.02, 0.02, cap=1.2), None),
    (dcpo, gates.Probability(0.02, 0.03, dual=1.5), None),
    (sat, gates.Sat(), None),
]
FORM_IDS = "ppo dual sapo cispo ctpo vespo dppo_tv dppo_kl dcpo sat".split()


def published(form, logp_NT, logo_NT, mask_NT, adv_N):
    """-d loss / d logp, the coefficient that the form gives each token."""
    adv_N1 = adv_N[:, None]

    def loss(logp_NT):
        return jnp.sum(jnp.where(mask_NT, form(logp_NT, logo_NT, adv_N1, mask_NT), 0.0))

    return -jax.grad(loss)(logp_NT)


@pytest.mark.parametrize("form, part, ratio", FORMS, ids=FORM_IDS)
@pytest.mark.parametrize("seed", range(4))
def test_coefficient_is_the_gradient_of_the_published_loss(form, part, ratio, seed):
    args = rows.random(seed, n=8)
    want_NT = rows.x64(lambda *args: published(form, *args), *args)
    got_NT = rows.x64(rows.coef, *args, part=part, ratio=ratio or ratios.Token())
    np.testing.assert_allclose(got_NT, want_NT, rtol=1e-9, atol=1e-12)
    plain_NT = rows.x64(
        rows.coef, *args, part=gates.NoGate(), ratio=ratio or ratios.Token()
    )
    assert not np.allclose(got_NT, plain_NT)


@pytest.mark.parametrize("seed", range(4))
def test_live_tokens_have_the_gradient_of_gmpo(seed):
    logp_NT, logo_NT, mask_NT, adv_N = rows.random(seed, n=8)
    want_NT = rows.x64(
        lambda *args: published(gmpo, *args), logp_NT, logo_NT, mask_NT, adv_N
    )
    x_NT = np.where(mask_NT, logp_NT - logo_NT, 0)
    z_NT = np.where(adv_N[:, None] > 0, np.minimum(x_NT, 0.25), np.maximum(x_NT, -0.15))
    length_N1 = np.maximum(mask_NT.sum(1, keepdims=True), 1)
    mean_N1 = np.exp(z_NT.sum(1, keepdims=True) / length_N1)
    gate_NT = rows.x64(
        rows.gate, logp_NT, logo_NT, mask_NT, adv_N, part=gates.Live(0.15, 0.25)
    )
    # The form's term is on every token of the row, so it counts `length` times.
    got_NT = np.where(mask_NT, gate_NT * mean_N1 * adv_N[:, None], 0)
    np.testing.assert_allclose(got_NT, want_NT, rtol=1e-9, atol=1e-12)


# --- worked values ---------------------------------------------------------------


def test_cap_by_hand(golden):
    args = rows.at(np.log([[0.25, 0.5, 1.0, 4.0, 10.0]]), 1.0)
    want = [[0.25, 0.5, 1.0, 4.0, 5.0]]
    golden.check(golden(rows.coef, *args, part=gates.Cap()), want)
    want = [[0.5, 0.5, 1.0, 2.0, 2.0]]
    golden.check(golden(rows.coef, *args, part=gates.Cap(high=2.0, low=0.5)), want)


def test_soft_golden(golden):
    args = rows.at(np.log([[1.0, 1.5, 0.5]] * 2), rows.BOTH)
    got_NT = golden(rows.gate, *args, part=gates.Soft())
    golden.check(got_NT[0], [1.0, 0.940015, 0.940015])
    golden.check(got_NT[1, :2], [1.0, 0.934140])


def test_soft_keeps_its_digits_far_out(golden):
    """At ratio 21 a gate of 8.2e-9, which 1 - sigmoid rounds to 0 in float32."""
    got_NT = golden(rows.gate, *rows.at(np.log([[21.0]]), 1.0), part=gates.Soft())
    np.testing.assert_allclose(got_NT, 4 * np.exp(-20.0), rtol=1e-4)


GAMMA_W = [0.1, 0.5, 2 / 3, 1.0, 1.5, 2.0, 5.0, 1e6]


def test_gamma_golden(golden):
    args = rows.at(np.log([GAMMA_W] * 2), rows.BOTH)
    got_NT = golden(rows.coef, *args, part=gates.Gamma())
    up = [0.148797, 1.120422, 1.208125, 1, 0.502043, 0.199148, 0.000154, 0]
    down = [0.006050, 0.339785, 0.577106, 1, 1.241593, 1.082682, 0.041933, 0]
    golden.check(got_NT, [up, np.negative(down)])


def test_gamma_reductions(golden):
    args = rows.at(np.log([GAMMA_W]), 1.0)
    weighted = golden(rows.coef, *args, part=gates.Gamma(1.0, 0.0))
    golden.check(weighted / GAMMA_W, np.ones((1, 8)))
    golden.check(golden(rows.coef, *args, part=gates.Gamma(0.0, 0.0)), np.ones((1, 8)))


def test_gamma_cuts_tiny_ratios(golden):
    """Below 1e-8 the weight is phi(1e-8), whatever is left of the ratio."""
    got_NT = golden(
        rows.coef, *rows.at([[-19.0, -30.0]], 1.0), part=gates.Gamma(0.1, 0.0)
    )
    golden.check(got_NT, np.full((1, 2), 1e-8**0.1))


PNPO = gates.Envelope(low=0.01, high=0.01, reference=0.0)


@pytest.mark.parametrize("adv", [1.0, -1.0])
def test_envelope_golden(golden, adv):
    run = lambda *args: golden(rows.gate, *args, part=PNPO, ratio=ratios.PrefixMean())
    np.testing.assert_array_equal(
        run(*rows.at([0.02, -0.01, 0.03, 0.0], adv)), [[0, 1, 0, 0]]
    )
    hole = rows.at([0.02, -0.01, 0.5, 0.03, 0.0], adv, [1, 1, 0, 1, 1])
    np.testing.assert_array_equal(run(*hole), [[0, 1, 1, 0, 0]])
    below = rows.at([-0.02, -0.02, -0.02, -0.02], adv)
    part = gates.Envelope(low=0.012, high=0.0, reference=0.0)
    # Bounds .976, .983, .986, .988 under a ratio of .980199.
    np.testing.assert_array_equal(golden(rows.gate, *below, part=part), [[1, 0, 0, 0]])


def test_envelope_keeps_its_strictness_at_any_length():
    """Width x sqrt(L) decides; at L = reference it is the published rule."""
    part = gates.Envelope(0.01, 0.01, reference=64.0)
    for length in (4, 16):
        width = 0.01 * np.sqrt(64 / length)
        for ratio, want in ((1 + 0.99 * width, 1), (1 + 1.01 * width, 0)):
            args = rows.at([[np.log(ratio)] * length], 1.0)
            assert rows.gate(*args, part=part)[0, -1] == want
    args = rows.at(np.linspace(-0.05, 0.05, 64)[None], 1.0)
    raw = dataclasses.replace(part, reference=0.0)
    np.testing.assert_array_equal(
        rows.gate(*args, part=part), rows.gate(*args, part=raw)
    )
    assert gates.Envelope().reference == 8192


PREFIX = np.array([[0.1, -0.2, 0.05, 0.3]] * 2)


def test_widening_golden(golden):
    run = lambda *args: golden(
        rows.coef, *args, part=gates.Widening(), ratio=ratios.PrefixSum()
    )
    want = [[0, 0.904837, 0.951229, 0], [0, 0, 0, 0]]
    golden.check(run(*rows.at(PREFIX, rows.BOTH)), want)
    near = rows.at([[0.01, -0.03, 0.02, 0.01]] * 2, rows.BOTH)
    row = np.array([1.010050, 0.980199, 1, 1.010050])
    golden.check(run(*near), [row, -row])


def test_widening_bounds_by_hand(golden):
    """Log bounds -.025 sqrt t and .05 sqrt t, both of them for A < 0."""
    low = np.log([0.975310, 0.965262, 0.957623, 0.951229])
    high = np.log([1.051271, 1.073271, 1.090463, 1.105171])
    for bound, outward in ((low, -1e-4), (high, 1e-4)):
        for side in (-1, 1):
            args = rows.at([bound + side * outward] * 2, rows.BOTH)
            got_NT = golden(rows.gate, *args, part=gates.Widening())
            inside = side < 0
            want_N = [inside or outward < 0, inside]
            np.testing.assert_array_equal(got_NT, np.repeat(want_N, 4).reshape(2, 4))


def test_widening_reduces_to_a_clip():
    """Power 0, or one token: the clip with the same log bounds, and its dual."""
    clip = gates.Clip(1 - np.exp(-0.1), np.exp(0.2) - 1, dual=np.exp(0.2))
    args = rows.random(1)
    flat = gates.Widening(0.1, 0.2, power=0.0)
    np.testing.assert_array_equal(
        rows.gate(*args, part=flat), rows.gate(*args, part=clip)
    )
    single = [args[0][:, :1], args[1][:, :1], np.ones((6, 1), bool), args[3]]
    want_N1 = rows.gate(*single, part=clip)
    got_N1 = rows.gate(*single, part=gates.Widening(0.1, 0.2))
    np.testing.assert_array_equal(got_N1, want_N1)
    assert (want_N1 == 0).any()


def test_live_golden(golden):
    log_ratio_NT = np.array([[0.5, -0.6, 0.1, -0.1]] * 2)
    got_NT = golden(rows.gate, *rows.at(log_ratio_NT, rows.BOTH), part=gates.Live())
    np.testing.assert_array_equal(got_NT, [[0, 1, 1, 1], [1, 0, 1, 1]])
    # s of the clipped mean, shared among four tokens.
    z_NT = np.array([[0.4, -0.6, 0.1, -0.1], [0.5, -0.4, 0.1, -0.1]])
    coef_NT = got_NT * np.exp(z_NT.mean(1, keepdims=True)) * rows.BOTH[:, None] / 4
    want = [[0, 0.237807, 0.237807, 0.237807], [-0.256329, 0, -0.256329, -0.256329]]
    golden.check(coef_NT, want)


def test_live_looks_at_the_token_not_at_the_response():
    args = rows.at([[0.5, 0.1]], 1.0)
    got_NT = rows.gate(*args, part=gates.Live(), ratio=ratios.SequenceMean())
    np.testing.assert_array_equal(got_NT, [[0, 1]])


def test_table_holds_every_gate():
    kinds = {
        cls
        for cls in vars(gates).values()
        if isinstance(cls, type) and issubclass(cls, gates.Gate) and cls != gates.Gate
    }
    assert {type(part) for part in gates.GATES.values()} == kinds
    assert all(part.name == name for name, part in gates.GATES.items())


def test_off_the_mask_a_gate_has_no_say():
    """Tokens off the mask take part in no statistic, wherever they stand."""
    tokens = tokens_lib.of(*rows.random())
    assert (ratios.Token()(tokens)[~tokens.mask_NT] == 0).all()
