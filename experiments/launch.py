"""Process-wide settings that must stand before jax starts its backend.

Imported first by every command line here, above anything that imports jax.
"""

from collections.abc import Callable
import os

# On few cores, jax's CPU client deadlocks when calls with collectives queue up on
# several devices; a larger thread pool prevents it (seen in 0.10 and 0.11).
os.environ.setdefault("NPROC", "32")
# No plot, tokenizer or logger should reach for the network on its own.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_SILENT", "true")


def run(main: Callable[[list[str]], None]) -> None:
    """Runs a command line: flags, quiet libraries, compiled programs kept.

    What a user's input may cause (UsageError, ValueError, a missing file or package)
    ends in one sentence; anything else deserves its traceback.
    """
    from absl import app, logging
    from absl import flags as absl_flags
    import jax

    from experiments import flags

    def guarded(argv: list[str]) -> None:
        if not absl_flags.FLAGS["verbosity"].present:
            logging.set_verbosity(logging.WARNING)  # Libraries log all they do.
        # A resumed run starts at once.
        jax.config.update("jax_compilation_cache_dir", ".cache/xla")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        try:
            flags.refuse_positional(argv)
            main(argv)
        except app.UsageError as error:
            raise SystemExit(f"error: {error}") from error
        except (ValueError, FileNotFoundError, ImportError) as error:
            if absl_flags.FLAGS.verbosity > 0:
                raise
            raise SystemExit(
                f"error: {error}\n(--verbosity=1 shows where it arose)"
            ) from error

    app.run(guarded, flags_parser=flags.parse)
