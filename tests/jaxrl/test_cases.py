"""Failures that training runs of this kind have met, with their numbers.

tests/README.md says which test holds which failure.
"""

import ast
import dataclasses
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import keeps, penalties
from algorithms.methods import METHODS
from algorithms.ratios import RATIOS
from jaxrl import config_io, learn, rollout, schema
from jaxrl import rows as rows_lib
from jaxrl import run as run_lib
from jaxrl.config import Config
from jaxrl.tasks import scoring
from jaxrl.tasks.registry import make_task
from jaxrl.types import Rollouts
from models import sharding
from models.sampling import SamplingConfig
from tests.jaxrl import small

ROOT = pathlib.Path(__file__).parents[2]
GRPO = small.resolved()


@functools.cache
def learner(config):
    return jax.jit(learn.make_learn(config))


def state_of(config):
    return learn.init_state(small.weights(config), config)


@functools.cache
def sampled(temperature=1.0, ends=(1, 2, 3), group=4):
    """Rollouts of eight problems from the first weights."""
    problems = make_task(GRPO.task).train
    tokenizer = dataclasses.make_dataclass("T", ["end_ids", "pad_id"])(ends, 0)
    draw = rollout.make_sample(
        GRPO.model,
        SamplingConfig(temperature=temperature),
        tokenizer,
        GRPO.new_tokens,
        group,
    )
    rows = (problems.prompt_PS, problems.mask_PS, problems.id_P)
    prompts = (jnp.asarray(x[:8]) for x in rows)
    return jax.jit(draw)(small.weights(GRPO), *prompts, jax.random.key(1))


def rewards(row=(1.0, 0, 0, 1)):
    return jnp.tile(jnp.array([row], jnp.float32), (8, 1))


def changed(before, after):
    return not np.array_equal(before.params["embed"], after.params["embed"])


def test_a_missing_reward_is_counted_and_not_trained_on():
    """[1, 0, None, 0] in two groups, all missing in a third."""
    reward_PG = rewards((1, 0, 0, 0)).at[2:4, 2].set(jnp.nan).at[5].set(jnp.inf)
    args = state_of(GRPO), sampled(), reward_PG, jnp.int32(0)
    _, metrics, trained_PG = learner(GRPO)(*args)
    assert metrics["unscored"][0] == 6
    np.testing.assert_array_equal(trained_PG, np.isfinite(reward_PG))
    np.testing.assert_allclose(metrics["reward"], 7 / 26, rtol=1e-6)
    assert np.isfinite([*metrics.values()]).all()
    adv_PG = learn.advantages(GRPO, *args[:3]).adv_PG
    np.testing.assert_allclose(adv_PG[2], [1.1547, -0.5774, 0, -0.5774], atol=1e-4)
    np.testing.assert_array_equal(adv_PG[5], 0)


@pytest.mark.parametrize("empty", ["row", "batch"])
def test_completions_without_a_token_leave_no_nan(empty):
    """Metrics are numbers; a batch of them moves nothing, momentum included."""
    rollouts, state = sampled(), state_of(GRPO)
    state, _, _ = learner(GRPO)(state, rollouts, rewards(), jnp.int32(0))
    mask_PGT = rollouts.mask_PGT
    mask_PGT = mask_PGT.at[2, 1].set(False) if empty == "row" else mask_PGT & False
    some = rollouts.replace(mask_PGT=mask_PGT)
    new, metrics, _ = learner(GRPO)(state, some, rewards(), jnp.int32(1))
    assert np.isfinite([*metrics.values()]).all()
    assert changed(state, new) == (empty == "row")
    if empty == "batch":
        small.assert_same_bits(
            (new.params, new.opt_state), (state.params, state.opt_state)
        )
        assert metrics["loss"][0] == metrics["grad_norm"][0] == 0
        assert new.skipped == 1 and metrics["length"][0] == 0


@pytest.mark.parametrize("temperature", [0.3, 0.6, 1.0, 1.5])
def test_every_pass_scores_at_the_temperature_of_sampling(temperature):
    """What scores the policy, an anchor and a reference."""
    sampling = SamplingConfig(temperature=temperature)
    config = dataclasses.replace(GRPO, sampling=sampling)
    rollouts, params = sampled(temperature), small.weights(GRPO)
    for score in (rows_lib.logprobs, rows_lib.score):
        got = jax.jit(score, static_argnums=0)(config, params, rollouts)
        np.testing.assert_allclose(got, rollouts.logp_PGT, atol=1e-5)
    if temperature != 1:
        plain = rows_lib.logprobs(GRPO, params, rollouts)
        assert np.abs(plain - rollouts.logp_PGT).max() > 0.05


def test_policy_anchor_and_reference_have_ratio_1_before_an_update():
    """At a temperature that is not 1."""
    method = dataclasses.replace(METHODS["decoupled_ppo"], kl=penalties.K3(coef=0.1))
    sampling = SamplingConfig(temperature=0.6)
    config = dataclasses.replace(GRPO, sampling=sampling, objective=method)
    args = state_of(config), sampled(0.6), rewards(), jnp.int32(0)
    _, metrics, _ = learner(config)(*args)
    for name in ("log_ratio_sq", "k3_sampler", "k3_reference"):
        assert abs(metrics[name][0]) < 1e-9


@pytest.mark.parametrize("ends", [(1, 2, 3), (3, 1, 2), (1,), (2, 1)])
def test_what_is_truncated_follows_all_ends_in_any_order(ends):
    rollouts = jax.device_get(sampled(ends=ends))
    hit_PGT = np.isin(rollouts.tokens_PGT, ends) & rollouts.mask_PGT
    ended_PG = hit_PGT.any(axis=-1)
    length_PG = np.where(ended_PG, hit_PGT.argmax(axis=-1) + 1, GRPO.new_tokens)
    np.testing.assert_array_equal(rollouts.mask_PGT.sum(axis=-1), length_PG)
    np.testing.assert_array_equal(rollouts.ended_PG, ended_PG)
    args = state_of(GRPO), sampled(ends=ends), rewards(), jnp.int32(0)
    _, metrics, _ = learner(GRPO)(*args)
    np.testing.assert_allclose(metrics["truncated"], (~ended_PG).mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["length"], length_PG.mean(), rtol=1e-6)
    if ends == (3, 1, 2):
        small.assert_same_bits(rollouts, jax.device_get(sampled()))


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "gspo", "mini_rl"])
def test_a_loss_of_zero_is_an_update_all_the_same(name):
    """Equal lengths and centred rewards: the loss says nothing of the learning."""
    config = dataclasses.replace(GRPO, objective=METHODS[name])
    rollouts = sampled(ends=(10**6,))
    assert rollouts.mask_PGT.all()
    state = state_of(config)
    args = state, rollouts, rewards(), jnp.int32(0)
    new, metrics, _ = learner(config)(*args)
    assert abs(metrics["loss"][0]) < 1e-6 and metrics["grad_norm"][0] > 1e-3
    assert changed(state, new) and new.skipped == 0
    assert {"loss", "grad_norm"} <= schema.METRICS.keys()


@pytest.mark.parametrize("name", ["grpo", "mc_grpo", "dapo", "uniqueness"])
def test_the_loss_gets_the_advantages_that_were_estimated(name):
    """Bit for bit, in the rows that an update reads."""
    config = small.resolved(objective=METHODS[name])
    rng = np.random.default_rng(0)
    reward_PG = jnp.asarray(rng.random((8, config.group)), jnp.float32)
    reward_PG = reward_PG.at[2, 1].set(jnp.nan)
    rollouts = sampled(group=config.group)
    adv = learn.advantages(config, state_of(config), rollouts, reward_PG)
    index_PG = keeps.pack(adv.keep_PG, config.rollouts)
    rows = rows_lib.gather(config, rollouts, adv, index_PG)
    batch = rows_lib.batch(rows, rows.logo_PGT, jnp.int32(0))
    want = np.take_along_axis(np.asarray(adv.adv_PG), np.asarray(index_PG), axis=1)
    np.testing.assert_array_equal(batch.adv_N, want.reshape(-1))
    assert np.abs(want).max() > 0.1


# --- sampling again ---------------------------------------------------------------


def one_round(config, score, **changes):
    """A round of a run whose task is scored by `score`, and what the update got."""
    task = dataclasses.replace(make_task(config.task), score=score, **changes)
    mesh = sharding.make_mesh(config.mesh.shape, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        run = run_lib.Run(config, task, mesh, state_of(config), run_lib.Host())
        inner, got = run._learn, []

        def spy(state, rollouts, *rest):
            got.append(jax.device_get(rollouts))
            return inner(state, rollouts, *rest)

        run._learn = spy
        rows, _ = run.round()
    return rows[0], got[0]


def refilled(refills):
    keep = keeps.Everything(drop_constant=True)
    method = dataclasses.replace(METHODS["grpo"], keep=keep, refills=refills)
    return small.resolved(objective=method)


@pytest.mark.parametrize("says, phases", [(8, 1), (4, 2), (3, 3)])
def test_sampling_stops_at_the_phase_that_completes_the_batch(says, phases):
    def score(problems, index_P, tokens_PGT, mask_PGT):
        reward_PG = np.zeros(mask_PGT.shape[:2], np.float32)
        reward_PG[:says, 0] = 1
        return reward_PG

    row, _ = one_round(refilled(5), score)
    assert row["phases"] == phases and row["constant_groups"] == 0


def test_a_problem_that_comes_again_in_a_round_is_drawn_anew():
    """Sixteen problems, four phases of eight: all come twice."""
    drawn = {}

    def score(problems, index_P, tokens_PGT, mask_PGT):
        for index, tokens_GT in zip(index_P, tokens_PGT, strict=True):
            drawn.setdefault(int(index), []).append(tokens_GT.tolist())
        return np.zeros(mask_PGT.shape[:2], np.float32)

    row, _ = one_round(refilled(3), score)
    assert row["phases"] == 4
    assert len(drawn) == 16 and all(len(twice) == 2 for twice in drawn.values())
    assert all(first != second for first, second in drawn.values())


# --- text and ids -----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TwoSpellings:
    """Ids 3, 4 and 5, 6 are two spellings of one text; encoding is not allowed."""

    pieces = ("", "", "a", "he", "llo", "hello", "")
    size = 7
    pad_id = 0
    end_ids = (1,)

    def encode(self, text):
        raise AssertionError("a completion was encoded again")

    def decode(self, ids):
        return "".join(self.pieces[i % self.size] for i in ids)


def test_an_update_trains_on_the_ids_that_were_sampled():
    """Text is made to be judged and never made into ids again."""
    seen, judged = [], []

    def verdict(_problems, _index, text):
        judged.append(text)
        return float(len(judged) % 2)

    by_text = scoring.host_score("t", TwoSpellings(), verdict)

    def score(problems, index_P, tokens_PGT, mask_PGT):
        seen.append((tokens_PGT.copy(), mask_PGT.copy()))
        return by_text(problems, index_P, tokens_PGT, mask_PGT)

    _, rollouts = one_round(GRPO, score, tokenizer=TwoSpellings())
    ((tokens_PGT, mask_PGT),) = seen
    assert len(judged) == 8 * 4
    np.testing.assert_array_equal(rollouts.tokens_PGT, tokens_PGT)
    np.testing.assert_array_equal(rollouts.mask_PGT, mask_PGT)
    # A log-probability for each token, and for nothing else.
    for logp_PGT in (rollouts.logp_PGT, rollouts.logq_PGT):
        np.testing.assert_array_equal(logp_PGT != 0, mask_PGT)


def sources(*packages):
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path, ast.parse(path.read_text())


def calls(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_only_problems_are_encoded():
    """Nothing between sampling and the update could turn text into ids."""
    callers = {
        path.relative_to(ROOT).as_posix()
        for path, tree in sources("jaxrl", "models", "algorithms", "experiments")
        for call in calls(tree)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "encode"
        and "tokenizer" in ast.unparse(call.func.value).lower()
    }
    assert callers == {"jaxrl/tasks/problems.py"}


# --- choices and shapes -----------------------------------------------------------


@pytest.mark.parametrize("level", [None, "tokn", "", "Token", "sequence", 0])
def test_a_ratio_is_named_or_refused(level):
    """No value falls into a branch that leaves the ratio constant."""
    data = config_io.to_dict(GRPO)
    data["objective"]["ratio"] = {"name": level}
    with pytest.raises(ValueError, match=r"objective\.ratio\.name"):
        config_io.from_dict(Config, data)
    data["objective"]["ratio"] = level
    with pytest.raises(ValueError, match=r"objective\.ratio"):
        config_io.from_dict(Config, data)
    for name in RATIOS:
        assert RATIOS[name].name == name


def test_every_zip_is_strict():
    """No tail is lost in silence where two sequences differ in length."""
    packages = ("jaxrl", "models", "algorithms", "experiments", "scaling")
    found = [
        (path.name, call)
        for path, tree in sources(*packages)
        for call in calls(tree)
        if isinstance(call.func, ast.Name) and call.func.id == "zip"
    ]
    assert len(found) > 10
    for name, call in found:
        strict = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
        assert strict == {"strict": True}, (name, call.lineno)


@pytest.mark.parametrize(
    "field, n",
    [
        ("mask_PGT", 1),
        ("mask_PGT", 4),
        ("logp_PGT", 4),
        ("logq_PGT", 1),
        ("logq_PGT", 4),
        ("tokens_PGT", 1),
        ("tokens_PGT", 4),
    ],
)
def test_rollouts_whose_arrays_disagree_are_refused(field, n):
    """Completions of five tokens and a mask, or log-probabilities, of four or one."""
    rollouts: Rollouts = sampled()
    cut = rollouts.replace(**{field: getattr(rollouts, field)[..., :n]})
    state = state_of(GRPO)
    with pytest.raises((AssertionError, ValueError, TypeError)):
        jax.eval_shape(learn.make_learn(GRPO), state, cut, rewards(), jnp.int32(0))


def test_rewards_of_another_number_are_refused():
    """One short of a group, and a group short of the batch."""
    for reward_PG in (rewards()[:, :3], rewards()[:7]):
        with pytest.raises((AssertionError, ValueError, TypeError)):
            jax.eval_shape(
                learn.make_learn(GRPO),
                state_of(GRPO),
                sampled(),
                reward_PG,
                jnp.int32(0),
            )
