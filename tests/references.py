"""Float64 NumPy restatements to compare against: loops, no cleverness.

Nothing here imports the code under test. A model is a plain dict with the numbers
of a released checkpoint's config, and its weights are a dict of arrays.
"""

import math

import numpy as np

_BASE = dict(
    layers=2, width=16, heads=6, kv_heads=2, head_dim=8, ffn=24, vocab=29, norm_eps=1e-6
)
_PLAIN = dict(qkv_bias=False, qk_norm=False, tied=False)

# Released families, shrunk. Original lengths are short enough that the rows of the
# tests pass them, and every scaled one has pairs in each of its regimes. One has
# every option on, and an epsilon that no one would hard-code.
FAMILIES = {
    "qwen2": _BASE
    | dict(heads=4, head_dim=4, qkv_bias=True, qk_norm=False, tied=True)
    | dict(rope=dict(theta=1e6, scaling="none")),
    "qwen3": _BASE
    | dict(qkv_bias=False, qk_norm=True, tied=True)
    | dict(rope=dict(theta=1e4, scaling="none")),
    "llama3": _BASE
    | _PLAIN
    | dict(
        rope=dict(
            theta=500.0,
            scaling="llama3",
            factor=8.0,
            low_freq_factor=0.2,
            high_freq_factor=1.0,
            original_length=8,
        ),
    ),
    "yarn": _BASE
    | dict(qkv_bias=True, qk_norm=True, tied=False)
    | dict(
        norm_eps=0.03,
        rope=dict(
            theta=500.0,
            scaling="yarn",
            factor=4.0,
            original_length=8,
            beta_fast=1.2,
            beta_slow=0.1,
        ),
    ),
    "linear": _BASE | _PLAIN | dict(rope=dict(theta=1e4, scaling="linear", factor=4.0)),
}


def weights(spec, seed=0):
    """Float32 arrays under their names; no norm is 1 and no bias is 0."""
    rng = np.random.default_rng(seed)
    V, L, D, F = spec["vocab"], spec["layers"], spec["width"], spec["ffn"]
    Q, K, H = spec["heads"], spec["kv_heads"], spec["head_dim"]

    def normal(*shape, std):
        return (std * rng.normal(size=shape)).astype(np.float32)

    def norm(*shape):
        return 1 + normal(*shape, std=0.2)

    layers = {
        "attn_norm": norm(L, D),
        "wq": normal(L, D, Q, H, std=D**-0.5),
        "wk": normal(L, D, K, H, std=D**-0.5),
        "wv": normal(L, D, K, H, std=D**-0.5),
        "wo": normal(L, Q, H, D, std=(Q * H) ** -0.5),
        "ffn_norm": norm(L, D),
        "w_gate": normal(L, D, F, std=D**-0.5),
        "w_up": normal(L, D, F, std=D**-0.5),
        "w_down": normal(L, F, D, std=F**-0.5),
    }
    if spec["qkv_bias"]:
        layers["bq"] = normal(L, Q, H, std=0.3)
        layers["bk"] = normal(L, K, H, std=0.3)
        layers["bv"] = normal(L, K, H, std=0.3)
    if spec["qk_norm"]:
        layers["q_norm"] = norm(L, H)
        layers["k_norm"] = norm(L, H)
    tree = {
        "embed": normal(V, D, std=0.4),
        "layers": layers,
        "final_norm": norm(D),
    }
    if not spec["tied"]:
        tree["unembed"] = normal(D, V, std=0.4)
    return tree


def frequencies(rope, head_dim):
    """Radians per position of each rotary pair, one pair at a time."""
    theta, scaling = rope["theta"], rope["scaling"]

    def pair_with(rotations):
        turns = rope["original_length"] / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(theta))

    out = []
    for i in range(head_dim // 2):
        freq = theta ** (-2 * i / head_dim)
        slow = freq / rope.get("factor", 1.0)
        if scaling == "linear":
            freq = slow
        elif scaling == "llama3":
            length = rope["original_length"]
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            wavelength = 2 * math.pi / freq
            if wavelength > length / low:
                freq = slow
            elif wavelength >= length / high:
                smooth = (length / wavelength - low) / (high - low)
                freq = (1 - smooth) * slow + smooth * freq
        elif scaling == "yarn":
            first = max(math.floor(pair_with(rope["beta_fast"])), 0)
            last = min(math.ceil(pair_with(rope["beta_slow"])), head_dim - 1)
            ramp = min(max((i - first) / (last - first), 0.0), 1.0)
            freq = ramp * slow + (1 - ramp) * freq
        out.append(freq)
    return np.array(out)


def turn(x, position, rope):
    """One head [H] at one position: pair (i, i + H/2) is rotated and scaled."""
    half = len(x) // 2
    size = 0.1 * math.log(rope["factor"]) + 1 if rope["scaling"] == "yarn" else 1.0
    out = np.zeros(len(x))
    for i, freq in enumerate(frequencies(rope, len(x))):
        c, s = math.cos(position * freq), math.sin(position * freq)
        out[i] = size * (x[i] * c - x[i + half] * s)
        out[i + half] = size * (x[i + half] * c + x[i] * s)
    return out


def rms_norm(x, weight, eps):
    """x [..., D] over the root of its mean square, times a weight."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def log_softmax(x):
    """Over a vector; -inf entries stay -inf."""
    top = np.max(x)
    return x - top - math.log(np.sum(np.exp(x - top)))


def decoder(tree, spec, tokens):
    """Logits [T, V] of one row without padding, one head and position at a time."""
    T, H = len(tokens), spec["head_dim"]
    eps, rope = spec["norm_eps"], spec["rope"]
    x = np.float64(tree["embed"])[tokens]
    for n in range(spec["layers"]):
        w = {name: np.float64(value[n]) for name, value in tree["layers"].items()}
        h = rms_norm(x, w["attn_norm"], eps)
        branch = np.zeros_like(x)
        for i in range(spec["heads"]):
            j = i // (spec["heads"] // spec["kv_heads"])
            q, k, v = h @ w["wq"][:, i], h @ w["wk"][:, j], h @ w["wv"][:, j]
            if spec["qkv_bias"]:
                q, k, v = q + w["bq"][i], k + w["bk"][j], v + w["bv"][j]
            if spec["qk_norm"]:
                q, k = rms_norm(q, w["q_norm"], eps), rms_norm(k, w["k_norm"], eps)
            q = [turn(q[t], t, rope) for t in range(T)]
            k = [turn(k[t], t, rope) for t in range(T)]
            for t in range(T):
                scores = np.array([q[t] @ k[u] for u in range(t + 1)]) / math.sqrt(H)
                share = np.exp(log_softmax(scores))
                branch[t] += (share @ v[: t + 1]) @ w["wo"][i]
        x = x + branch
        h = rms_norm(x, w["ffn_norm"], eps)
        gate = h @ w["w_gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w["w_up"])) @ w["w_down"]
    head = tree["embed"].T if spec["tied"] else tree["unembed"]
    return rms_norm(x, np.float64(tree["final_norm"]), eps) @ np.float64(head)


def completion_logprobs(tree, spec, prompt, completion, temperature):
    """Nats of each completion token after its prompt, both without padding."""
    logits = decoder(tree, spec, [*prompt, *completion])
    out = []
    for t, token in enumerate(completion):
        out.append(log_softmax(logits[len(prompt) + t - 1] / temperature)[token])
    return np.array(out)


def truncated(logits, temperature, top_k=0, top_p=1.0, min_p=0.0):
    """Log-probabilities [V] after the filters, in their order; -inf where removed."""
    x = np.float64(logits) / temperature
    kept = sorted(range(len(x)), key=lambda i: -x[i])
    if top_k:
        kept = kept[:top_k]
    if top_p < 1:
        share, total, nucleus = np.exp(log_softmax(x[kept])), 0.0, []
        for i, p in zip(kept, share, strict=True):
            if nucleus and total >= top_p:
                break
            nucleus.append(i)
            total += p
        kept = nucleus
    if min_p > 0:
        best = max(x[i] for i in kept)
        kept = [i for i in kept if math.exp(x[i] - best) >= min_p]
    out = np.full(len(x), -np.inf)
    out[kept] = log_softmax(x[kept])
    return out
