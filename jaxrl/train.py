"""The loop: rounds of sampling and learning, with what a killed process needs to go on.

A round's five steps stand in `run.Run.round`.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
import signal
from typing import Any

import jax

from algorithms import methods
from jaxrl import checkpoint, config_io, data, keys, learn, plan, runlog, warmstart
from jaxrl.config import Config
from jaxrl.progress import Progress
from jaxrl.run import Host, Run
from jaxrl.tasks.base import Task
from jaxrl.tasks.registry import make_task
from models import params as params_lib
from models import sharding, transformer


def default_run_dir(config: Config) -> pathlib.Path:
    """Named by what decides the run, so the same command finds its own folder."""
    free = [f.name for f in dataclasses.fields(Config) if f.metadata.get("free")]
    decides = {k: v for k, v in config_io.to_dict(config).items() if k not in free}
    text = json.dumps(decides, sort_keys=True)
    tag = hashlib.sha256(text.encode()).hexdigest()[:8]
    name = f"{config.task.name}-{config.objective.name}-seed{config.seed}-{tag}"
    return pathlib.Path("runs") / name


def random_params(config: Config, mesh: jax.sharding.Mesh) -> Any:
    """Weights at their declared start, drawn onto their shards."""
    defs = transformer.param_defs(config.model)
    seed = config.warmstart.seed if config.warmstart.steps else config.seed
    draw = jax.jit(
        functools.partial(params_lib.init, defs),
        out_shardings=params_lib.shardings(defs, mesh),
    )
    return draw(keys.key(seed, "weights"))


def starting_params(
    config: Config, task: Task, params: Any, say: Callable[[str], None]
) -> tuple[Any, warmstart.Base | None]:
    """Weights before the first update: `params`, warm-started, or those of a run."""
    if config.initial:
        return checkpoint.load_run_params(pathlib.Path(config.initial), params), None
    if not config.warmstart.steps:
        return params, None

    def report(step: int, loss: float, avg: float) -> None:
        say(
            f"warm start {step}/{config.warmstart.steps}: loss {loss:.3f},"
            f" held-out avg@1 {avg:.3f}"
        )

    return warmstart.base_policy(config, task, params, report)


@contextlib.contextmanager
def stop_flag() -> Iterator[Callable[[], bool]]:
    """True once SIGTERM has come; a second one ends the process as usual."""
    stopped = False

    def handle(number: int, frame: Any) -> None:
        nonlocal stopped
        stopped = True
        signal.signal(signal.SIGTERM, previous)

    previous = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, handle)
    except ValueError:  # Not the main thread, which alone may set handlers.
        yield lambda: False
        return
    try:
        yield lambda: stopped
    finally:
        signal.signal(signal.SIGTERM, previous)


class _Desk:
    """Where a run's results go: the run folder, the checkpoints and the screen."""

    def __init__(
        self, log: runlog.RunLog, saved: Any, progress: Progress, task: Task
    ) -> None:
        self.log, self.saved, self.progress = log, saved, progress
        self._task = task

    def summary(self, run: Run, status: str) -> dict[str, Any]:
        """Writes summary.json and returns it."""
        folder = str(self.log.folder)
        summary = {"status": status, "run_dir": folder, **run.summary()}
        self.log.summary(summary)
        return summary

    def round(self, run: Run) -> None:
        """Makes a round and writes a row per update."""
        rows, tokens = run.round()
        for row in rows:
            self.log.metrics(row)
        self.progress.update(len(rows), rows[-1], tokens)

    def evaluate(self, run: Run) -> float:
        """Measures, writes it down and returns avg."""
        row, out = run.evaluate()
        self.log.evaluation(row, out)
        self.log.samples(run.step, self._task.heldout, out, run.config.log_samples)
        self.progress.evaluated(row)
        return row["avg"]

    def save(self, run: Run, avg: float | None) -> None:
        """Starts a checkpoint; `avg` is the evaluation at this very step, if any."""
        with run.phase("save"):
            host = dataclasses.asdict(run.host)
            checkpoint.save(self.saved, run.step, run.state, host, avg)
        self.summary(run, "running")


def train(config: Config, *, quiet: bool = False) -> dict[str, Any]:
    """Runs `config` to its last update, resuming from its folder if it can.

    Args:
      config: the run. A run that was killed continues; a finished one is left alone.
      quiet: no progress bar.

    Returns:
      What summary.json holds.

    Raises:
      ValueError: the config does not fit the task, the devices or the run folder.
    """
    folder = pathlib.Path(config.run_dir) if config.run_dir else default_run_dir(config)
    task = make_task(config.task)
    config = plan.resolve(config, task)
    data.take(config.seed, 0, config.problems, len(task.train))  # Refuses too few.
    done = runlog.finished(folder, config)
    if done is not None:
        return done
    mesh = sharding.make_mesh(config.mesh.shape)
    params_lib.check_divisible(transformer.param_defs(config.model), mesh)
    log = runlog.RunLog(folder, config)
    progress = Progress(
        config.updates, methods.label(config.objective), enabled=not quiet
    )
    dropped = task.train.dropped + task.heldout.dropped
    if dropped:
        progress.say(f"{dropped} prompts over {config.task.max_prompt} tokens dropped")
    try:
        with (
            jax.set_mesh(mesh),
            checkpoint.manager(folder / "checkpoints", config.keep_last) as saved,
        ):
            desk = _Desk(log, saved, progress, task)
            run = _start(config, task, mesh, desk)
            # Before this there is nothing to save, and SIGTERM just ends the process.
            with stop_flag() as stopped:
                return _loop(run, desk, stopped)
    except BaseException as error:
        log.summary({"status": "failed", "run_dir": str(folder), "error": repr(error)})
        raise
    finally:
        progress.close()
        log.close()


def _start(config: Config, task: Task, mesh: jax.sharding.Mesh, desk: _Desk) -> Run:
    """The run where its newest checkpoint left it, or at its beginning."""
    params = random_params(config, mesh)
    state = learn.init_state(params, config)
    restored = checkpoint.restore_newest(desk.saved, state)
    if restored is None:
        # Only now: a resumed run has no use for the weights it once started from.
        params, base = starting_params(config, task, params, desk.progress.say)
        host = Host(warmstart=dataclasses.asdict(base) if base else None)
        run = Run(config, task, mesh, learn.init_state(params, config), host)
        desk.log.start(-1)
    else:
        run = Run(config, task, mesh, restored[0], Host.restore(restored[1]))
        desk.log.start(run.step)
        desk.progress.say(f"resumed {desk.log.folder} at update {run.step}")
    desk.progress.start(run.step)
    return run


def _loop(run: Run, desk: _Desk, stopped: Callable[[], bool]) -> dict[str, Any]:
    config = run.config
    desk.summary(run, "running")
    if run.host.base is None:
        desk.evaluate(run)
    while run.step < config.updates:
        before = run.step
        desk.round(run)
        last = run.step >= config.updates
        avg = None
        if last or _passed(config.evaluation.every, before, run.step):
            avg = desk.evaluate(run)
        desk.log.timing(run.step, run.host.seconds)
        stop = stopped() and not last
        best = run.is_best(avg)
        if best or last or stop or _passed(config.save_every, before, run.step):
            desk.save(run, avg)
        if stop:
            desk.saved.wait_until_finished()
            desk.progress.say(f"stopped at update {run.step}; run it again to go on")
            return desk.summary(run, "stopped")
    desk.saved.wait_until_finished()
    return desk.summary(run, "finished")


def _passed(every: int, before: int, now: int) -> bool:
    """Whether a multiple of `every` lies in (before, now]; never for 0."""
    return every > 0 and now // every > before // every
