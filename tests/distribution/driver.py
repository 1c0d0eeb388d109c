"""Trains several cases in one process, as the stage does, on one host or as one of several: TensorFlow starts once.

    python -m tests.distribution.driver CASES.json RESULTS

A case has the parameters of a training under `params`, a `name` and a `variant`. The chief moves what each training
wrote to RESULTS/<name>. Every process writes what its replicas computed of `probes` to RESULTS/probes-<rank>.npz.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from stages import files
from stages.distribution.cluster import from_environment
from stages.params import Params

SEED = 3


def main() -> None:
    cases, results = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    results.mkdir(exist_ok=True)
    cluster = from_environment(2)
    for case in cases["trainings"]:
        settings = Params.model_validate(case["params"])
        if cluster and cluster.rank:
            from stages.train.hosts import follow

            follow(settings, case["variant"], SEED)
            continue
        from stages.train.stage import run_stage

        run_stage(settings, case["variant"], SEED)
        shutil.move(files.train_dir(case["variant"], SEED), results / case["name"])
    found: dict[str, np.ndarray] = {}
    for case in cases["probes"]:
        found |= {f"{case['name']}/{key}": value for key, value in probe(case).items()}
    np.savez(results / f"probes-{cluster.rank if cluster else 0}.npz", **found)  # type: ignore[arg-type]
    sys.stdout.flush()
    os._exit(0)  # as the stage does, which waits for no other host


def probe(case: dict[str, Any]) -> dict[str, np.ndarray]:
    """State of each replica after one training step, and what a dropout layer does to ones in two calls."""
    from stages.tasks import building
    from stages.tasks.spec import TaskSpec
    from stages.tensorflow_import import keras, tf

    settings = Params.model_validate(case["params"])
    spec = TaskSpec(settings.task, settings.model, settings.train)
    ready = building.ready(spec, settings.variants[case["variant"]], SEED)
    replicas = ready.replicas
    assert replicas is not None
    found = {}
    with replicas.strategy.scope():
        weights = [np.asarray(variable) for variable in ready.model.trainable_variables]
        ready.model.train_function(iter(ready.training.from_step(0, None)))
        for layer in ready.model.layers:
            if isinstance(layer, keras.layers.Dropout):
                for call in range(2):
                    local = replicas.strategy.run(functools.partial(layer, tf.ones((1, 64)), training=True))
                    found[f"mask/{call}"] = np.asarray(replicas.strategy.gather(local, axis=0))
            if isinstance(layer, keras.layers.BatchNormalization):
                statistics = [layer.moving_mean, layer.moving_variance]
                found["mean"], found["variance"] = replicas.rows(statistics)
                replicas.average_statistics()
                found["saved_mean"], found["saved_variance"] = replicas.rows(statistics)
    return found | {f"initial/{number}": array for number, array in enumerate(weights)}


if __name__ == "__main__":
    main()
