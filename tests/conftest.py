"""Eight CPU devices, no network, no implicit rank promotion, a compilation cache."""

from collections.abc import Iterator
import os
import pathlib

# With fewer threads, collectives of calls in flight wait for each other for ever.
os.environ.setdefault("NPROC", "32")
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"
XLA_FLAGS = os.environ.get("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in XLA_FLAGS:
    os.environ["XLA_FLAGS"] = f"{XLA_FLAGS} --xla_force_host_platform_device_count=8"

import jax  # noqa: E402
import pytest  # noqa: E402

CACHE = pathlib.Path(__file__).parent.parent / ".jax_cache"
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Iterator[None]:
    """Drops a module's compiled programs, which are of no use to the next.

    Each takes dozens of memory maps, of which Linux allows a process 65530; where they
    run out jax crashes.
    """
    yield
    jax.clear_caches()
