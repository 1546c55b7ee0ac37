"""A copy of the log in wandb. An option, never a need: if it fails, the run goes on."""

import hashlib
import logging
import pathlib
from typing import Any

_log = logging.getLogger(__name__)


class Mirror:
    """Forwards rows to wandb, or does nothing."""

    def __init__(self, mode: str, folder: pathlib.Path, config: dict[str, Any]) -> None:
        """mode is "off", "offline" or "online"; only "online" touches the network."""
        self._run: Any = None
        if mode == "off":
            return
        try:
            import wandb  # Slow to import, and absent on some machines.

            name = str(folder.absolute())
            self._run = wandb.init(
                project="jaxrl",
                name=folder.name,
                # Attempts at one folder are one run.
                id=hashlib.sha256(name.encode()).hexdigest()[:16],
                resume="allow",
                dir=name,
                mode="online" if mode == "online" else "offline",
                config=config,
                settings=wandb.Settings(silent=True, console="off"),
            )
        except Exception as error:  # noqa: BLE001 - nothing it raises may stop a run.
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        _log.warning("wandb failed and is off for this run: %s", error)
        self._run = None

    def log(self, step: int, row: dict[str, Any]) -> None:
        """One row at an explicit step; steps never decrease."""
        if self._run is None:
            return
        try:
            self._run.log(row, step=step)
        except Exception as error:  # noqa: BLE001 - nothing it raises may stop a run.
            self._fail(error)

    def close(self) -> None:
        """Flushes and ends the wandb run."""
        if self._run is None:
            return
        try:
            self._run.finish()
        except Exception as error:  # noqa: BLE001 - nothing it raises may stop a run.
            self._fail(error)
