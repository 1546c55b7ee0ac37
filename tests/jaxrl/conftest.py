"""One finished run, read by several files."""

import pathlib

import pytest

from tests.jaxrl import small


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """(config, folder, summary) of the smallest run, uninterrupted. Read only."""
    folder: pathlib.Path = tmp_path_factory.mktemp("runs") / "straight"
    config = small.resolved(run_dir=str(folder))
    return config, folder, small.train(config)
