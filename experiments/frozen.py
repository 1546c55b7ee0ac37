"""Rollouts of a real training run, stored once, and objectives measured on them."""

from collections.abc import Callable
import dataclasses
import os
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import anchors, diagnostics
from algorithms.method import Method
from algorithms.methods import METHODS
from jaxrl import checkpoint, keys, learn, ledger, plan, rollout
from jaxrl import train as train_lib
from jaxrl.config import Config
from jaxrl.tasks.registry import make_task
from jaxrl.types import Average, Rollouts, TrainState
from models import sharding

# The policy gradient without bias, whatever the group: nothing scaled, nothing held.
UNBIASED = dataclasses.replace(METHODS["reinforce"], baseline=METHODS["rloo"].baseline)
# Rollouts of a problem that are on the devices at once.
CHUNK = 64


class Pool(NamedTuple):
    """Rollouts of one version of the policy, and their rewards."""

    rollouts: Rollouts
    reward_PG: Any


class Measured(NamedTuple):
    """What draws of a batch say of a method; a leading axis of draws where R is.

    Attributes:
      cosine_R: of a draw's gradient to the on-policy one.
      mean_cosine: of the mean gradient.
      signal: squared norm of the mean gradient, its noise taken off.
      noise: variance of a draw's gradient, summed over weights.
      gated: weight share of tokens that the trust region drops.
      flops: of sampling and updating on one draw.
    """

    cosine_R: np.ndarray
    mean_cosine: float
    signal: float
    noise: float
    gated: float
    flops: int


class Frozen:
    """A finished run: its last versions, and what they sample."""

    def __init__(self, config: Config, folder: pathlib.Path, versions: int) -> None:
        """Trains the run in `folder` if it isn't there, keeping `versions` of it."""
        self._task = make_task(config.task)
        config = dataclasses.replace(
            config, run_dir=str(folder / "run"), save_every=1, keep_last=versions
        )
        self.config = plan.resolve(config, self._task)
        self._folder = folder
        self._versions: dict[int, Any] = {}
        train_lib.train(self.config)
        mesh = sharding.make_mesh(config.mesh.shape)
        self._like = train_lib.random_params(self.config, mesh)
        self._base, _ = train_lib.starting_params(
            self.config, self._task, self._like, lambda text: None
        )

    def version(self, lag: int) -> Any:
        """Weights `lag` updates before the newest."""
        if lag not in self._versions:
            folder, step = self._folder / "run", self.config.updates - lag
            params = checkpoint.load_run_params(folder, self._like, step)
            self._versions[lag] = params
        return self._versions[lag]

    def pool(self, lag: int, problems: int, group: int) -> Pool:
        """Rollouts by the version `lag` updates ago of the first training problems."""
        draw = lambda: self._sample(self.version(lag), problems, group, lag)
        shape = jax.eval_shape(
            self._sampler(group), self._like, *self._prompts(problems)
        )
        like = Pool(shape, shape.ended_PG)
        return _stored(self._folder / f"pool-{lag}-{problems}x{group}.npz", draw, like)

    def on_policy(self, problems: int, group: int) -> tuple[Any, Any]:
        """Two independent estimates of the newest version's policy gradient.

        Each from half of `group` rollouts a problem, in chunks, averaged.
        """
        config = _batch(self.config, UNBIASED, problems, CHUNK)
        gradient = jax.jit(learn.make_gradient(config))
        params = self.version(0)
        state = learn.init_state(params, config)

        def half(which: int) -> Any:
            total = jax.tree.map(jnp.zeros_like, params)
            chunks = group // 2 // CHUNK
            for i in range(chunks):
                # Addresses apart from those of any pool.
                at = 10**6 + which * chunks + i
                pool = self._sample(params, problems, CHUNK, at)
                grads, _ = gradient(state, *pool, jnp.int32(0))
                total = jax.tree.map(lambda t, g: t + g / chunks, total, grads)
            return total

        path = self._folder / f"on-policy-{problems}x{group}.npz"
        like = (self._like, self._like)
        return _stored(path, lambda: (half(0), half(1)), like)

    def state(self, method: Method, lag: int) -> TrainState:
        """The newest version with what the method keeps beside it.

        Its reference is the policy that RL began from; its running average is over
        the versions since the pool was sampled, as the method weighs them.
        """
        config = _batch(self.config, method, 1, 2)
        state = learn.init_state(self.version(0), config)
        if state.reference is not None:
            state = dataclasses.replace(state, reference=self._base)
        if isinstance(method.anchor, anchors.Ewma):
            weight = float(method.anchor.beta) ** np.arange(lag + 1)
            total = jax.tree.map(jnp.zeros_like, state.params)
            for age in range(lag + 1):
                share = weight[age] / weight.sum()
                total = jax.tree.map(
                    lambda t, v, s=share: t + s * v, total, self.version(age)
                )
            average = Average(total, jnp.float32(weight.sum()))
            state = dataclasses.replace(state, average=average)
        return state

    def measure(
        self, method: Method, lag: int, pool: Pool, want: Any, draws: int
    ) -> Measured:
        """Gradients of `draws` batches from a pool, against the one wanted.

        No rollout is in two batches, so their gradients are independent. All methods
        draw the same groups; one that drops rollouts takes one more for each.
        """
        problems = pool.reward_PG.shape[0]
        config = _batch(self.config, method, problems, self.config.rollouts)
        many = jax.jit(_many(config))
        sums, (dot_R, square_R, gated_R) = jax.device_get(
            many(
                self.state(method, lag),
                pool,
                want,
                _slots(config, draws),
                jnp.int32(lag),
            )
        )
        mean = jax.tree.map(lambda g: g / draws, sums)
        norm2 = _dot(mean, mean)
        noise = (square_R.sum() - draws * norm2) / (draws - 1)
        wanted = np.sqrt(_dot(want, want))
        return Measured(
            cosine_R=dot_R / np.sqrt(np.maximum(square_R, 1e-30)) / wanted,
            mean_cosine=float(_dot(mean, want) / np.sqrt(max(norm2, 1e-30)) / wanted),
            signal=float(max(norm2 - noise / draws, 0.0)),
            noise=float(noise),
            gated=float(gated_R.mean()),
            flops=self._flops(config, pool),
        )

    def sign_flips(self, method: Method, lag: int, pool: Pool, draws: int) -> float:
        """Share of a draw's advantages of the wrong sign, by the mean of the pool.

        The pool's mean reward of a problem stands for its true one.
        """
        config = _batch(self.config, method, len(pool.reward_PG), self.config.rollouts)
        state, mean_P = self.state(method, lag), np.nanmean(pool.reward_PG, axis=1)

        @jax.jit
        def many(pool: Pool, slot_RG: jax.Array) -> jax.Array:
            def one(slot_G: jax.Array) -> jax.Array:
                rollouts, reward_PG = _draw(pool, slot_G)
                adv = learn.advantages(config, state, rollouts, reward_PG)
                return diagnostics.sign_flips(
                    adv.adv_PG, adv.keep_PG, reward_PG, jnp.asarray(mean_P)
                )

            return jnp.mean(jax.lax.map(one, slot_RG))

        return float(many(pool, _slots(config, draws)))

    def _flops(self, config: Config, pool: Pool) -> int:
        """Of a draw: sampling its groups, scoring and updating on what is kept."""
        length_PG = np.asarray(pool.rollouts.mask_PGT).sum(-1)[:, : config.group]
        prompt_P = np.asarray(pool.rollouts.prompt_mask_PS).sum(-1)
        trained_PG = np.arange(config.group)[None] < np.full(
            (len(prompt_P), 1), config.rollouts
        )
        sampled = ledger.sampling(config.model, prompt_P, length_PG)
        return (sampled + learn.cost(config, prompt_P, length_PG, trained_PG)).flops

    def _prompts(self, problems: int) -> tuple[Any, ...]:
        train, seed = self._task.train, self.config.seed
        address = keys.key(seed, "resample", self.config.updates)
        some = [x[:problems] for x in (train.prompt_PS, train.mask_PS, train.id_P)]
        return *some, address

    def _sampler(self, group: int) -> Callable[..., Rollouts]:
        config = self.config
        return rollout.make_sample(
            config.model,
            config.sampling,
            self._task.tokenizer,
            config.new_tokens,
            group,
        )

    def _sample(self, params: Any, problems: int, group: int, at: int) -> Pool:
        *prompts, key = self._prompts(problems)
        key = jax.random.fold_in(key, at)
        rollouts = jax.jit(self._sampler(group))(params, *prompts, key)
        tokens, mask = jax.device_get((rollouts.tokens_PGT, rollouts.mask_PGT))
        index_P = np.arange(problems)
        reward_PG = self._task.score(self._task.train, index_P, tokens, mask)
        return Pool(rollouts, np.asarray(reward_PG, np.float32))


def _slots(config: Config, draws: int) -> jax.Array:
    """Slots of the pool that each draw takes, [R, G]: no rollout twice."""
    first_R = jnp.arange(draws) * room(config)
    return first_R[:, None] + jnp.arange(config.group)[None]


def _draw(pool: Pool, slot_G: jax.Array) -> Pool:
    """The rollouts in some slots of every problem."""
    some = {
        f.name: getattr(pool.rollouts, f.name)[:, slot_G]
        for f in dataclasses.fields(pool.rollouts)
        if "_PG" in f.name
    }
    rollouts = dataclasses.replace(pool.rollouts, **some)
    return Pool(rollouts, pool.reward_PG[:, slot_G])


def room(config: Config) -> int:
    """Rollouts of a problem that a draw takes at most."""
    return config.rollouts + max(m.keep.extra for m in METHODS.values())


def _batch(config: Config, method: Method, problems: int, rollouts: int) -> Config:
    """The run's config with another method and batch, as one update."""
    return dataclasses.replace(
        config,
        objective=method,
        problems=problems,
        rollouts=rollouts,
        epochs=1,
        minibatches=1,
        microbatches=1,
    )


def _many(config: Config) -> Callable[..., Any]:
    """Gradients of many draws from a pool, summed, and figures of each."""
    gradient = learn.make_gradient(config)

    def many(
        state: TrainState, pool: Pool, want: Any, slot_RG: jax.Array, lag: jax.Array
    ) -> Any:
        def one(total: Any, slot_G: jax.Array) -> tuple[Any, Any]:
            grads, figures = gradient(state, *_draw(pool, slot_G), lag)
            out = _dot(grads, want), _dot(grads, grads), figures["gated"]
            return jax.tree.map(jnp.add, total, grads), out

        zero = jax.tree.map(jnp.zeros_like, state.params)
        return jax.lax.scan(one, zero, slot_RG)

    return many


def _dot(a: Any, b: Any) -> Any:
    """Inner product of two trees."""
    parts = jax.tree.map(lambda x, y: (x * y).sum(), a, b)
    return sum(jax.tree.leaves(parts))


def cosine(a: Any, b: Any) -> float:
    """Cosine of two trees."""
    return float(_dot(a, b) / np.sqrt(_dot(a, a) * _dot(b, b)))


def _stored(path: pathlib.Path, make: Callable[[], Any], like: Any) -> Any:
    """A tree of the structure of `like` from an .npz file, made first if need be."""
    if not path.exists():
        leaves = jax.tree.leaves(jax.device_get(make()))
        partial = path.with_suffix(".partial.npz")
        np.savez_compressed(partial, *leaves)
        os.replace(partial, path)
    with np.load(path) as file:
        leaves = [file[f"arr_{i}"] for i in range(len(file.files))]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
