"""The sampling step: prompts and addresses in, a batch of rollouts out."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.tasks.base import Tokenizer
from jaxrl.types import Rollouts
from models import sampler
from models.config import ModelConfig
from models.sampling import SamplingConfig

# (params, prompt_PS, prompt_mask_PS, problem_P, key) -> Rollouts
Sample = Callable[[Any, jax.Array, jax.Array, jax.Array, jax.Array], Rollouts]


def make_sample(
    model: ModelConfig,
    sampling: SamplingConfig,
    tokenizer: Tokenizer,
    new_tokens: int,
    group: int,
) -> Sample:
    """Returns sample(...), pure; it draws `group` completions of each prompt.

    Weights are an argument, never a constant of the compiled program: rollouts come
    from the policy as it is now.
    """

    def sample(
        params: Any,
        prompt_PS: jax.Array,
        prompt_mask_PS: jax.Array,
        problem_P: jax.Array,
        key: jax.Array,
    ) -> Rollouts:
        P = prompt_PS.shape[0]
        s = sampler.sample(
            params,
            model,
            sampling,
            prompt_PS,
            prompt_mask_PS,
            key,
            problem_P,
            jnp.broadcast_to(jnp.arange(group)[None], (P, group)),
            new_tokens=new_tokens,
            end_ids=tokenizer.end_ids,
            pad_id=tokenizer.pad_id,
        )
        return Rollouts(
            prompt_PS=prompt_PS,
            prompt_mask_PS=prompt_mask_PS,
            problem_P=problem_P,
            tokens_PGT=s.tokens_PGT,
            mask_PGT=s.mask_PGT,
            logq_PGT=s.logq_PGT,
            logp_PGT=s.logp_PGT,
            ended_PG=s.ended_PG,
        )

    return sample
