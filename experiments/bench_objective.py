"""What an objective costs beside the model it trains, in one process.

  python -m experiments.bench_objective

Times, for every method, all that is not the model: advantages, ratio, gate,
correction, aggregation, diagnostics and the gradient by log-probabilities, on --rows
completions of --tokens tokens; and the forward and backward pass of a model of about
5 million parameters over the same tokens. Each is the fastest of a few runs.
"""

from experiments import launch  # isort: skip - must come before jax.

from collections.abc import Callable
import functools
import time
from typing import Any

from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from algorithms import groups, objective
from algorithms.method import Method
from algorithms.methods import METHODS
from models import params, transformer
from models.config import ModelConfig

MODEL = ModelConfig(
    layers=6, width=256, heads=8, kv_heads=4, head_dim=32, ffn=768, vocab=1024
)


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """The command line. Not at import: another program may have flags of its own."""
    define = functools.partial(flags.DEFINE_integer, flag_values=values)
    define("rows", 256, "completions")
    define("tokens", 128, "tokens of each")
    define("group", 8, "completions of a problem")
    define("repeats", 5, "runs of an objective; the fastest counts")


def main(argv: list[str]) -> None:
    """Times everything and prints the table."""
    rng = np.random.default_rng(0)
    model = model_seconds(rng)
    count = params.count(transformer.param_defs(MODEL))
    print(
        f"model: {count / 1e6:.2f} M parameters,"
        f" [{flags.FLAGS.rows}, {flags.FLAGS.tokens}],"
        f" forward and backward {model:.2f} s"
    )
    print(f"\n{'method':<14} {'objective, ms':>13} {'share of the model':>19}")
    share = {}
    for name, method in METHODS.items():
        seconds = objective_seconds(method, rng)
        share[name] = seconds / model
        print(
            f"{name:<14} {1e3 * seconds:13.2f} {100 * share[name]:18.3f}%", flush=True
        )
    worst = max(share, key=share.__getitem__)
    median = float(np.median(list(share.values())))
    print(
        f"\nlargest share: {worst} with {100 * share[worst]:.3f}%;"
        f" median {100 * median:.3f}%"
    )


def fastest(run: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest of some runs, after one that compiles."""
    jax.block_until_ready(run())
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run())
        best = min(best, time.perf_counter() - start)
    return best


def model_seconds(rng: np.random.Generator) -> float:
    """Forward and backward pass of the model over the batch's tokens."""
    N, T, P, S = (
        flags.FLAGS.rows,
        flags.FLAGS.tokens,
        flags.FLAGS.rows // flags.FLAGS.group,
        16,
    )
    weights = params.init(transformer.param_defs(MODEL), jax.random.key(0))
    prompt = jnp.asarray(rng.integers(MODEL.vocab, size=(P, S)))
    tokens = jnp.asarray(rng.integers(MODEL.vocab, size=(N, T)))
    on = jnp.ones

    def loss(weights: Any) -> jax.Array:
        logp_NT = transformer.completion_logprobs(
            weights, MODEL, prompt, on((P, S), bool), tokens, on((N, T), bool)
        )
        return jnp.mean(logp_NT)

    step = jax.jit(jax.grad(loss))
    return fastest(lambda: step(weights), 2)


def objective_seconds(method: Method, rng: np.random.Generator) -> float:
    """Everything else that an update computes."""
    T, P = flags.FLAGS.tokens, flags.FLAGS.rows // flags.FLAGS.group
    G = flags.FLAGS.group + method.keep.extra
    N = P * G
    length_PG = jnp.asarray(rng.integers(1, T + 1, (P, G)))
    mask_NT = jnp.arange(T)[None] < length_PG.reshape(N, 1)
    logp_NT = -rng.exponential(size=(N, T)).astype(np.float32)
    off = lambda: jnp.asarray(logp_NT + 0.1 * rng.normal(size=(N, T)), jnp.float32)
    arrays = (
        jnp.asarray(rng.choice([0.0, 0.5, 1.0], (P, G)), jnp.float32),
        jnp.asarray(logp_NT),
        off(),
        off(),
        off(),
    )

    @jax.jit
    def run(
        reward_PG: jax.Array,
        logp_NT: jax.Array,
        logo_NT: jax.Array,
        logq_NT: jax.Array,
        logref_NT: jax.Array,
    ) -> Any:
        batch_groups = groups.of(
            reward_PG,
            jnp.isfinite(reward_PG),
            length_PG,
            length_PG < T,
            T,
            cluster_PG=length_PG,
        )
        adv = objective.advantages(method, batch_groups)
        keep_N = adv.keep_PG.reshape(N)
        group_N = jnp.repeat(jnp.arange(P), G)
        on_NT = mask_NT & keep_N[:, None]
        batch = objective.Batch(
            adv_N=adv.adv_PG.reshape(N),
            weight_NT=method.aggregate(on_NT, keep_N, group_N, T),
            logo_NT=logo_NT,
            logq_NT=logq_NT,
            mask_NT=on_NT,
            group_N=group_N,
            lag=jnp.int32(2),
            logref_NT=logref_NT,
        )
        grad = jax.value_and_grad(objective.loss, argnums=1, has_aux=True)
        return grad(method, logp_NT, batch)

    return fastest(lambda: run(*arrays), flags.FLAGS.repeats)


if __name__ == "__main__":
    define_flags()
    launch.run(main)
