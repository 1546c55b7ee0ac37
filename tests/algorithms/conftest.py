"""Every golden value is met in both precisions, eager and jitted."""

from collections.abc import Callable
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest


class Golden(NamedTuple):
    """One precision and one way to run; `rtol` is what its rounding allows."""

    dtype: Any
    jit: bool
    rtol: float

    def __call__(self, fn: Callable[..., Any], *args: Any, **fixed: Any) -> Any:
        """fn(*args, **fixed) as NumPy: floats take the dtype, `fixed` is static."""

        def cast(x: Any) -> Any:
            x = np.asarray(x)
            return x.astype(self.dtype) if x.dtype.kind == "f" else x

        with jax.enable_x64(self.dtype == np.float64):
            call = lambda *args: fn(*args, **fixed)
            run = jax.jit(call) if self.jit else call
            return jax.tree.map(np.asarray, run(*map(jnp.asarray, map(cast, args))))

    def check(self, got: Any, want: Any, digits: int = 6) -> None:
        """Equal to a value printed with so many digits after the point."""
        np.testing.assert_allclose(
            got, want, rtol=self.rtol, atol=max(0.51 * 10.0**-digits, self.rtol)
        )


@pytest.fixture(
    params=itertools.product((np.float32, np.float64), (False, True)),
    ids=["f32-eager", "f32-jit", "f64-eager", "f64-jit"],
)
def golden(request: pytest.FixtureRequest) -> Golden:
    """Runs a function in one precision, eager or jitted."""
    dtype, jit = request.param
    return Golden(dtype, jit, 2e-6 if dtype == np.float32 else 1e-12)
