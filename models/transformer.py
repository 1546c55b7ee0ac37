"""A decoder as a table of weights and one block that every pass shares.

The passes differ only in which keys a query may see:

  forward             whole rows, causal
  prefill             prompts, causal; keeps their keys and values
  completion_logprobs rollouts, after a prompt computed once for its whole group
  decode              one new token a row, after the same prompt and the row's own past

Axis letters: P prompts, G rollouts of a prompt, S prompt positions, T completion
positions, B rows, V vocabulary, L layers, D width, Q query heads, K key-value
heads, R = Q / K, H head dim, F feed-forward width. Prompts are padded on the left,
completions on the right; a mask is True on real tokens.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from models import rope
from models.config import ModelConfig
from models.params import ParamDef, Params
from models.sharding import constrain

# Large enough to vanish in a softmax, small enough that a row with nothing to see
# (padding) stays finite, forward and backward.
_HIDDEN = -1e30


def param_defs(cfg: ModelConfig) -> dict[str, Any]:
    """Every weight's shape, logical axes and initializer; layers are stacked on L."""
    V, L, D, F = cfg.vocab, cfg.layers, cfg.width, cfg.ffn
    Q, K, H = cfg.heads, cfg.kv_heads, cfg.head_dim
    normal, ones = jax.nn.initializers.normal, jax.nn.initializers.ones
    zeros = jax.nn.initializers.zeros
    # Two branches a layer write into the residual stream; its variance stays O(1).
    out = (2 * L) ** -0.5
    heads = ("layers", "embed", "heads", "head_dim")
    kv_heads = ("layers", "embed", "kv_heads", "head_dim")
    layers = {
        "attn_norm": ParamDef((L, D), ("layers", "embed"), ones),
        "wq": ParamDef((L, D, Q, H), heads, normal(D**-0.5)),
        "wk": ParamDef((L, D, K, H), kv_heads, normal(D**-0.5)),
        "wv": ParamDef((L, D, K, H), kv_heads, normal(D**-0.5)),
        "wo": ParamDef(
            (L, Q, H, D),
            ("layers", "heads", "head_dim", "embed"),
            normal(out * (Q * H) ** -0.5),
        ),
        "ffn_norm": ParamDef((L, D), ("layers", "embed"), ones),
        "w_gate": ParamDef((L, D, F), ("layers", "embed", "ffn"), normal(D**-0.5)),
        "w_up": ParamDef((L, D, F), ("layers", "embed", "ffn"), normal(D**-0.5)),
        "w_down": ParamDef(
            (L, F, D), ("layers", "ffn", "embed"), normal(out * F**-0.5)
        ),
    }
    if cfg.qkv_bias:
        layers |= {
            "bq": ParamDef((L, Q, H), ("layers", "heads", "head_dim"), zeros),
            "bk": ParamDef((L, K, H), ("layers", "kv_heads", "head_dim"), zeros),
            "bv": ParamDef((L, K, H), ("layers", "kv_heads", "head_dim"), zeros),
        }
    if cfg.qk_norm:
        layers |= {
            "q_norm": ParamDef((L, H), ("layers", "head_dim"), ones),
            "k_norm": ParamDef((L, H), ("layers", "head_dim"), ones),
        }
    defs = {
        "embed": ParamDef((V, D), ("vocab", "embed"), normal(D**-0.5)),
        "layers": layers,
        "final_norm": ParamDef((D,), ("embed",), ones),
    }
    if not cfg.tied:
        defs["unembed"] = ParamDef((D, V), ("embed", "vocab"), normal(D**-0.5))
    return defs


def positions(mask: jax.Array) -> jax.Array:
    """Position of every token counted over real tokens only, 0 in the padding."""
    return jnp.maximum(jnp.cumsum(mask, axis=-1) - 1, 0)


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    """x / rms(x) * weight; the mean square is taken in float32."""
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + eps)
    return (x32 * scale).astype(x.dtype) * _wide(weight, x)


def _wide(weight: jax.Array, x: jax.Array) -> jax.Array:
    """Leading dims of 1, spelt out: implicit rank promotion is an error in tests."""
    return weight.reshape((1,) * (x.ndim - weight.ndim) + weight.shape)


class Keys(NamedTuple):
    """Keys and values that a query may see, and where.

    Attributes:
      k: [P, G, K, H, S], or [P, K, H, S] where a group shares them. Transposed,
        so that both products of a decode step run along contiguous memory.
      v: [P, G, K, S, H], or [P, K, S, H].
      mask: bool, broadcastable to [P, G, T, S].
    """

    k: jax.Array
    v: jax.Array
    mask: jax.Array


def attention(q_PGTQH: jax.Array, parts: Sequence[Keys]) -> jax.Array:
    """One softmax over the keys of all parts; float32 inside. Same shape as q.

    Query head i reads key-value head i // R. A query that sees nothing gets some
    finite mixture, which no mask lets through.
    """
    P, G, T, Q, H = q_PGTQH.shape
    K = parts[0].k.shape[-3]
    q = q_PGTQH.reshape(P, G, T, K, Q // K, H)
    scores = []
    for part in parts:
        key_axes = "PKHS" if part.k.ndim == 4 else "PGKHS"
        k = part.k
        if jax.default_backend() == "cpu":
            # XLA has no batched product there that sums narrow operands in float32.
            q, k = q.astype(jnp.float32), k.astype(jnp.float32)
        s = jnp.einsum(
            f"PGTKRH,{key_axes}->PGKRTS", q, k, preferred_element_type=jnp.float32
        )
        mask = part.mask[:, :, None, None]
        scores.append(jnp.where(mask, s * H**-0.5, _HIDDEN))
    weights = jax.nn.softmax(jnp.concatenate(scores, axis=-1), axis=-1)
    out = jnp.zeros((), q_PGTQH.dtype)
    start = 0
    for part in parts:
        stop = start + part.k.shape[-1]
        value_axes = "PKSH" if part.v.ndim == 4 else "PGKSH"
        w = weights[..., start:stop].astype(part.v.dtype)
        out = out + jnp.einsum(f"PGKRTS,{value_axes}->PGTKRH", w, part.v)
        start = stop
    return out.reshape(q_PGTQH.shape)


# attend(q, k, v) -> (output with q's shape, whatever the pass keeps of k and v).
Attend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]


def block(
    cfg: ModelConfig,
    layer: Params,
    x: jax.Array,
    cos_sin: tuple[jax.Array, jax.Array],
    attend: Attend,
) -> tuple[jax.Array, Any]:
    """One layer on x [P, G, T, D]; returns x and what `attend` kept."""
    h = rms_norm(x, layer["attn_norm"], cfg.norm_eps)
    q = jnp.einsum("PGTD,DQH->PGTQH", h, layer["wq"])
    k = jnp.einsum("PGTD,DKH->PGTKH", h, layer["wk"])
    v = jnp.einsum("PGTD,DKH->PGTKH", h, layer["wv"])
    if cfg.qkv_bias:
        q = q + _wide(layer["bq"], q)
        k = k + _wide(layer["bk"], k)
        v = v + _wide(layer["bv"], v)
    if cfg.qk_norm:
        q = rms_norm(q, layer["q_norm"], cfg.norm_eps)
        k = rms_norm(k, layer["k_norm"], cfg.norm_eps)
    out, kept = attend(rope.rotate(q, *cos_sin), rope.rotate(k, *cos_sin), v)
    x = x + jnp.einsum("PGTQH,QHD->PGTD", out, layer["wo"])
    h = rms_norm(x, layer["ffn_norm"], cfg.norm_eps)
    gate = jax.nn.silu(jnp.einsum("PGTD,DF->PGTF", h, layer["w_gate"]))
    up = jnp.einsum("PGTD,DF->PGTF", h, layer["w_up"])
    x = x + jnp.einsum("PGTF,FD->PGTD", gate * up, layer["w_down"])
    return constrain(x, "batch", "group", "seq", "act_embed"), kept


def _key_major(k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[P, G, T, K, H] twice -> k [P, G, K, H, T], v [P, G, K, T, H]."""
    return k.transpose(0, 1, 3, 4, 2), v.transpose(0, 1, 3, 2, 4)


def _embed(params: Params, cfg: ModelConfig, tokens: jax.Array) -> jax.Array:
    x = params["embed"].astype(cfg.dtype)[tokens]
    return constrain(x, "batch", "group", "seq", "act_embed")


def _over_layers(
    cfg: ModelConfig, params: Params, carry: Any, step: Callable[..., Any], xs: Any = ()
) -> tuple[Any, Any]:
    """Scans `step(carry, layer, x)` over the stacked layers, cast to cfg.dtype."""

    def body(carry: Any, inputs: Any) -> tuple[Any, Any]:
        layer, x = inputs
        layer = jax.tree.map(lambda w: w.astype(cfg.dtype), layer)
        return step(carry, layer, x)

    if cfg.remat == "block":
        body = jax.checkpoint(body)
    elif cfg.remat == "dots":
        policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        body = jax.checkpoint(body, policy=policy)
    return jax.lax.scan(body, carry, (params["layers"], xs), unroll=cfg.unroll)


def _causal(mask_PGS: jax.Array) -> jax.Array:
    """[P, G, S, S]: each position sees real positions up to itself."""
    S = mask_PGS.shape[-1]
    return jnp.tril(jnp.ones((S, S), bool))[None, None] & mask_PGS[:, :, None, :]


def unembed(params: Params, cfg: ModelConfig, x: jax.Array) -> jax.Array:
    """float32 logits [..., V] of hidden states [..., D] after the last block."""
    h = rms_norm(x, params["final_norm"].astype(cfg.dtype), cfg.norm_eps)
    head = params["embed"].T if cfg.tied else params["unembed"]
    return jnp.einsum(
        "...D,DV->...V", h, head.astype(cfg.dtype), preferred_element_type=jnp.float32
    )


def _prompt_states(
    params: Params, cfg: ModelConfig, tokens_PS: jax.Array, mask_PS: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Hidden states [P, S, D] and per layer keys [L, P, K, H, S], values."""
    cos_sin = rope.angles(cfg.rope, cfg.head_dim, positions(mask_PS)[:, None])
    causal = _causal(mask_PS[:, None])

    def step(x: jax.Array, layer: Params, _: Any) -> tuple[jax.Array, Any]:
        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
            k, v = _key_major(k, v)
            return attention(q, [Keys(k, v, causal)]), (k[:, 0], v[:, 0])

        return block(cfg, layer, x, cos_sin, attend)

    x_P1SD = _embed(params, cfg, tokens_PS[:, None])
    x_P1SD, kv = _over_layers(cfg, params, x_P1SD, step)
    return x_P1SD[:, 0], kv


def forward(
    params: Params, cfg: ModelConfig, tokens_BT: jax.Array, mask_BT: jax.Array
) -> jax.Array:
    """Next-token logits of whole rows.

    Args:
      params: tree of `param_defs(cfg)`, float32.
      cfg: static.
      tokens_BT: int ids in [0, V).
      mask_BT: bool, True on real tokens; padding may stand on either side.

    Returns:
      logits_BTV, float32: position t scores token t + 1; meaningless in padding.
    """
    chex.assert_rank([tokens_BT, mask_BT], 2)
    chex.assert_equal_shape([tokens_BT, mask_BT])
    chex.assert_type(mask_BT, bool)
    x_BTD, _ = _prompt_states(params, cfg, tokens_BT, mask_BT)
    return unembed(params, cfg, x_BTD)


class Prefix(NamedTuple):
    """A prompt as its rollouts see it: k [L, P, K, H, S], v [L, P, K, S, H]."""

    k: jax.Array
    v: jax.Array
    mask_PS: jax.Array


def prefill(
    params: Params, cfg: ModelConfig, tokens_PS: jax.Array, mask_PS: jax.Array
) -> tuple[jax.Array, Prefix]:
    """Logits_PV after each left-padded prompt, and its keys and values."""
    x_PSD, (k, v) = _prompt_states(params, cfg, tokens_PS, mask_PS)
    return unembed(params, cfg, x_PSD[:, -1]), Prefix(k, v, mask_PS)


class Cache(NamedTuple):
    """Keys and values of sampled tokens: k [L, P, G, K, H, T], v [L, P, G, K, T, H]."""

    k: jax.Array
    v: jax.Array


def init_cache(cfg: ModelConfig, P: int, G: int, T: int) -> Cache:
    """Room for T tokens a rollout; a write past T is the caller's fault to prevent."""
    L, K, H = cfg.layers, cfg.kv_heads, cfg.head_dim
    return Cache(
        jnp.zeros((L, P, G, K, H, T), cfg.dtype),
        jnp.zeros((L, P, G, K, T, H), cfg.dtype),
    )


def decode(
    params: Params,
    cfg: ModelConfig,
    prefix: Prefix,
    cache: Cache,
    tokens_PG: jax.Array,
    t: jax.Array,
) -> tuple[jax.Array, Cache]:
    """Feeds completion token t of every rollout; logits_PGV of token t + 1."""
    position_PG1 = (jnp.sum(prefix.mask_PS, axis=-1) + t)[:, None, None]
    cos_sin = rope.angles(cfg.rope, cfg.head_dim, position_PG1)
    before = prefix.mask_PS[:, None, None, :]
    own = (jnp.arange(cache.k.shape[-1]) <= t)[None, None, None]

    def step(carry: Any, layer: Params, x: Any) -> tuple[Any, Any]:
        h, cache_k, cache_v = carry
        l, prefix_k, prefix_v = x

        def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
            k, v = _key_major(k, v)
            zero = jnp.zeros((), t.dtype)
            at = (l.astype(t.dtype), zero, zero, zero)
            new_k = jax.lax.dynamic_update_slice(cache_k, k[None], (*at, zero, t))
            new_v = jax.lax.dynamic_update_slice(cache_v, v[None], (*at, t, zero))
            parts = [Keys(prefix_k, prefix_v, before), Keys(new_k[l], new_v[l], own)]
            return attention(q, parts), (new_k, new_v)

        h, (cache_k, cache_v) = block(cfg, layer, h, cos_sin, attend)
        return (h, cache_k, cache_v), None

    x_PG1D = _embed(params, cfg, tokens_PG[:, :, None])
    xs = (jnp.arange(cfg.layers), prefix.k, prefix.v)
    (x_PG1D, *kv), _ = _over_layers(cfg, params, (x_PG1D, *cache), step, xs)
    return unembed(params, cfg, x_PG1D[:, :, 0]), Cache(*kv)


def completion_states(
    params: Params,
    cfg: ModelConfig,
    prompt_PS: jax.Array,
    prompt_mask_PS: jax.Array,
    tokens_NT: jax.Array,
) -> jax.Array:
    """Hidden states [N, T, D] that predict each completion token.

    Rows are problem-major: N = P * G, and row n follows prompt n // G, which is
    computed once for its whole group. This equals feeding each row whole. The last
    token of a row predicts nothing that is wanted and is not fed.
    """
    P, S = prompt_PS.shape
    N, T = tokens_NT.shape
    if N % P:
        raise ValueError(f"{N} rows are not a multiple of {P} prompts")
    G = N // P
    prompt_pos = positions(prompt_mask_PS)[:, None]
    fed = T - 1
    length_P11 = jnp.sum(prompt_mask_PS, axis=-1)[:, None, None]
    own_pos = length_P11 + jnp.arange(fed)[None, None]
    prompt_turn = rope.angles(cfg.rope, cfg.head_dim, prompt_pos)
    own_turn = rope.angles(cfg.rope, cfg.head_dim, own_pos)
    prompt_causal = _causal(prompt_mask_PS[:, None])
    before = prompt_mask_PS[:, None, None, :]
    # Completions are padded on the right, so no real token sees padding.
    own_causal = jnp.tril(jnp.ones((fed, fed), bool))[None, None]

    def step(carry: Any, layer: Params, _: Any) -> tuple[Any, Any]:
        prompt, own = carry

        def prompt_attend(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
            k, v = _key_major(k, v)
            return attention(q, [Keys(k, v, prompt_causal)]), (k[:, 0], v[:, 0])

        prompt, (k, v) = block(cfg, layer, prompt, prompt_turn, prompt_attend)
        shared = Keys(k, v, before)

        def own_attend(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
            return attention(q, [shared, Keys(*_key_major(k, v), own_causal)]), None

        own, _ = block(cfg, layer, own, own_turn, own_attend)
        return (prompt, own), None

    carry = (
        _embed(params, cfg, prompt_PS[:, None]),
        _embed(params, cfg, tokens_NT.reshape(P, G, T)[:, :, :fed]),
    )
    (prompt, own), _ = _over_layers(cfg, params, carry, step)
    last = jnp.broadcast_to(prompt[:, :, -1:], (P, G, 1, cfg.width))
    return jnp.concatenate([last, own], axis=2).reshape(N, T, cfg.width)


def entropy(logits: jax.Array) -> jax.Array:
    """Nats [...] of the distribution that logits [..., V] stand for.

    -sum p log p, and dH / dlogit_a = -p_a (log p_a + H). A logit of -inf has no share
    in either. Differentiable, in the dtype of the logits.
    """
    seen = logits > -jnp.inf
    # Replaced before any arithmetic: 0 * -inf is NaN, also in a gradient.
    logits = jnp.where(seen, logits, 0.0)
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True, where=seen)
    # Centred before they are averaged: nothing cancels, however large the logits.
    logp = jnp.where(seen, logits - total, 0.0)
    p = jnp.where(seen, jnp.exp(logp), 0.0)
    return -jnp.sum(p * logp, axis=-1)


def _chosen(logits_BV: jax.Array, tokens_B: jax.Array) -> jax.Array:
    """Log-probability [B] of one token of each row."""
    chosen = jnp.take_along_axis(logits_BV, tokens_B[:, None], axis=-1)[:, 0]
    return chosen - jax.nn.logsumexp(logits_BV, axis=-1)


def _chosen_and_entropy(
    logits_BV: jax.Array, tokens_B: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _chosen(logits_BV, tokens_B), entropy(logits_BV)


def _read_logits(
    read: Callable[[jax.Array, jax.Array], Any],
    params: Params,
    cfg: ModelConfig,
    x_BD: jax.Array,
    tokens_B: jax.Array,
    temperature: jax.Array | float,
) -> Any:
    """read(logits_BV, tokens_B), arrays [B], without [B, V] ever being held whole.

    The logits are divided by the temperature, as the sampler does. They are made
    `cfg.logprob_chunk` positions at a time and made again in the backward pass.
    """

    @jax.checkpoint
    def some(part: tuple[jax.Array, jax.Array]) -> Any:
        x, token = part
        return read(unembed(params, cfg, x) / temperature, token)

    B, chunk = tokens_B.shape[0], cfg.logprob_chunk
    if chunk >= B:
        return some((x_BD, tokens_B))
    pad = -B % chunk
    x_BD = jnp.pad(x_BD, ((0, pad), (0, 0))).reshape(-1, chunk, x_BD.shape[-1])
    tokens_B = jnp.pad(tokens_B, (0, pad)).reshape(-1, chunk)
    out = jax.lax.map(some, (x_BD, tokens_B))
    return jax.tree.map(lambda y: y.reshape(-1)[:B], out)


def token_logprobs(
    params: Params,
    cfg: ModelConfig,
    x_BD: jax.Array,
    tokens_B: jax.Array,
    temperature: jax.Array | float,
) -> jax.Array:
    """Log-probability, nats float32 [B], of one token after each hidden state.

    The policy is softmax(logits / temperature). At most `cfg.logprob_chunk` rows of
    logits are held at once, forward and backward.
    """
    return _read_logits(_chosen, params, cfg, x_BD, tokens_B, temperature)


def token_logprobs_and_entropy(
    params: Params,
    cfg: ModelConfig,
    x_BD: jax.Array,
    tokens_B: jax.Array,
    temperature: jax.Array | float,
) -> tuple[jax.Array, jax.Array]:
    """`token_logprobs`, and the entropy of each position's distribution, float32 [B].

    Both from the same logits, made once.
    """
    return _read_logits(_chosen_and_entropy, params, cfg, x_BD, tokens_B, temperature)


def completion_logprobs(
    params: Params,
    cfg: ModelConfig,
    prompt_PS: jax.Array,
    prompt_mask_PS: jax.Array,
    tokens_NT: jax.Array,
    mask_NT: jax.Array,
    temperature: jax.Array | float = 1.0,
) -> jax.Array:
    """Teacher-forced log-probabilities of rollouts.

    Args:
      params: tree of `param_defs(cfg)`, float32.
      cfg: static.
      prompt_PS: int ids, left-padded.
      prompt_mask_PS: bool; every prompt has at least one token.
      tokens_NT: int ids, right-padded; N = P * G rows, problem-major.
      mask_NT: bool, True on completion tokens.
      temperature: > 0; the policy is softmax(logits / temperature).

    Returns:
      logp_NT, float32 nats, 0 where the mask is False.

    Raises:
      ValueError: N is no multiple of P.
    """
    batch = prompt_PS, prompt_mask_PS, tokens_NT, mask_NT
    return _completions(token_logprobs, params, cfg, *batch, temperature)


def completion_logprobs_and_entropy(
    params: Params,
    cfg: ModelConfig,
    prompt_PS: jax.Array,
    prompt_mask_PS: jax.Array,
    tokens_NT: jax.Array,
    mask_NT: jax.Array,
    temperature: jax.Array | float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """`completion_logprobs`, and the entropy that each token was drawn with.

    The entropy of all of softmax(logits / temperature), before any filter of the
    sampler: float32 nats [N, T], differentiable, 0 where the mask is False.
    """
    batch = prompt_PS, prompt_mask_PS, tokens_NT, mask_NT
    return _completions(token_logprobs_and_entropy, params, cfg, *batch, temperature)


def _completions(
    score: Callable[..., Any],
    params: Params,
    cfg: ModelConfig,
    prompt_PS: jax.Array,
    prompt_mask_PS: jax.Array,
    tokens_NT: jax.Array,
    mask_NT: jax.Array,
    temperature: jax.Array | float,
) -> Any:
    """What `score` reads off every completion token, 0 off the mask."""
    chex.assert_rank([prompt_PS, prompt_mask_PS, tokens_NT, mask_NT], 2)
    chex.assert_equal_shape([prompt_PS, prompt_mask_PS])
    chex.assert_equal_shape([tokens_NT, mask_NT])
    chex.assert_type([prompt_mask_PS, mask_NT], bool)
    N, T = tokens_NT.shape
    x_NTD = completion_states(params, cfg, prompt_PS, prompt_mask_PS, tokens_NT)
    x_BD, tokens_B = x_NTD.reshape(N * T, -1), tokens_NT.reshape(-1)
    out = score(params, cfg, x_BD, tokens_B, temperature)
    return jax.tree.map(lambda y: jnp.where(mask_NT, y.reshape(N, T), 0.0), out)
