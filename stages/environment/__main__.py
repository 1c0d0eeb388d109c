"""Checks all of `params.yaml` before anything is touched, and describes the machine, the store and the inputs."""

from __future__ import annotations

import shutil
from pathlib import Path

from stages import files
from stages.environment import fingerprint, inputs, named
from stages.errors import ParameterError, explained
from stages.params import Params, TrainParams, examine, read
from stages.tracking import store


@explained
def main() -> None:
    """Entry of the stage; it runs at every `dvc repro`, so it stays under a second or two and imports no TensorFlow."""
    params = checked_params()
    files.write_json(files.ENVIRONMENT_FILE, fingerprint.fingerprint())
    files.write_json(files.TRACKING_FILE, store.identity(params.tracking))
    files.write_json(files.SOURCE_FILE, inputs.source_digest(params.data))
    files.write_json(files.MODEL_FILE, inputs.model_digest(params.model))
    remove_unlisted_arms(params.train)


def checked_params() -> Params:
    """The parameters, once they and all that they name are known to be right.

    Raises:
        ParameterError: one line for each thing that is wrong.
    """
    params, lines = examine(read())
    if params is not None:
        lines += [f"params.yaml: {line}" for line in named.missing_things(params)]
    if params is not None and not lines:  # mistakes are told in a moment, without waiting for a network
        lines = [f"params.yaml: {line}" for line in named.silent_servers(params)]
    if lines or params is None:
        raise ParameterError("\n".join(lines))
    return params


def remove_unlisted_arms(train: TrainParams) -> None:
    """Removes results of variants and seeds that are no longer run: stages depend on these folders as a whole."""
    listed = {files.train_dir(variant, seed).name for variant in train.variants for seed in train.seeds}
    _keep_only(files.TRAIN, listed)
    _keep_only(files.PROFILE, {*train.variants, files.CONTROL})


def _keep_only(folder: Path, names: set[str]) -> None:
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_dir() and entry.name not in names:
            shutil.rmtree(entry)


if __name__ == "__main__":
    raise SystemExit(main())
