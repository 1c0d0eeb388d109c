"""What `environment` writes: the machine, and small files in `data/keys/` on which the other stages depend."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from halfstep.inputs import digests, own_code
from halfstep.inputs.head_digests import HEAD_DIGESTS, HeadDigests
from halfstep.params.schema import Params, TrainParams
from halfstep.system import files
from halfstep.tracking import store
from halfstep.words.text import joined


def write(params: Params, machine: dict[str, Any], head: HeadDigests | None) -> None:
    """Writes all of it, and removes the results of variants that are no longer listed."""
    files.update_json(files.ENVIRONMENT_FILE, machine)
    files.update_json(files.TRACKING_FILE, store.identity(params.tracking))
    for stage, key in own_code.keys().items():
        files.update_json(files.KEYS / stage, key)
    write_onednn(params, on_gpu=bool(machine["gpus"]))
    write_digests(params) if head is None else write_head_digests(head)
    remove_unlisted_arms(params.train)


def write_onednn(params: Params, *, on_gpu: bool) -> None:
    """Writes for each variant whether it uses oneDNN, on which its trainings depend where the machine decides.

    A line says where it does not, when that is new. Those of variants that are no longer listed are removed.
    """
    decided = list[str]()
    for name in params.train.variants:
        entry, path = params.variants[name], files.VARIANT_KEYS / name
        is_new = not path.is_file() or files.read_json(path) != {"onednn": entry.uses_onednn}
        files.update_json(path, {"onednn": entry.uses_onednn})
        decided += [name] if is_new and entry.onednn is None and not entry.uses_onednn else []
    for path in files.VARIANT_KEYS.iterdir():
        if path.name not in params.train.variants:
            path.unlink()
    if decided and not on_gpu:
        print(
            f"environment: {joined(decided)}: without oneDNN, whose float16 convolutions take 20 times as long on CPUs "
            "with AVX512_FP16 and without AMX; `onednn: true` in its entry uses it",
            flush=True,
        )


def write_digests(params: Params) -> None:
    """Writes what identifies the task, and for `images` the images and the model; other tasks do not use these."""
    for path, compute in digests.INPUTS.items():
        files.update_json(path, compute(params))


def write_head_digests(head: HeadDigests) -> None:
    """Writes the digests that the head of the fleet computed: this clone may lack what they describe."""
    print(
        f"environment: {HEAD_DIGESTS} marks a copy that the fleet made, so the digests of data, model and task are its "
        "head's; remove that file if this checkout is your own",
        file=sys.stderr,
    )
    files.update_json(files.SOURCE_FILE, head.source)
    files.update_json(files.MODEL_FILE, head.model)
    files.update_json(files.TASK_FILE, head.task)


def remove_unlisted_arms(train: TrainParams) -> None:
    """Removes the results of variants and seeds that are no longer listed: stages depend on all of both folders.

    Only `profile` knows which bridging arms there are; it runs again if the variants have changed.
    """
    trainings = {files.train_dir(variant, seed).name for variant in train.variants for seed in train.seeds}
    _remove_others(files.TRAIN, trainings)
    _remove_others(files.PROFILE, {*train.variants, files.CONTROL})


def _remove_others(folder: Path, kept: set[str]) -> None:
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.is_dir() and entry.name not in kept and not entry.name.startswith(files.BRIDGE_PREFIX):
            shutil.rmtree(entry)
