"""The head of a report: what was compared, on what, when and by which command."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.results.comparison import Comparison, Setup
from halfstep.text import joined, yaml_text

_LIBRARIES = {"python": "Python", "tensorflow": "TensorFlow", "keras": "Keras"}


def question(comparison: Comparison) -> str:
    """What a report answers: of the precision, or of other changes where no candidate has another policy."""
    settings = comparison.setup.settings if comparison.setup else {}
    policies = {found.get("policy") for found in settings.values()}
    return "Is the change worth it here?" if len(policies) == 1 < len(settings) else "Is lower precision worth it here?"


def what_was_compared(comparison: Comparison, run_id: str | None) -> list[tuple[str, str]]:
    """Names and texts; what is not known is left out.

    Args:
        comparison: the document.
        run_id: of the run of `compare` in MLflow; None where it is not known.
    """
    setup, environment = comparison.setup, comparison.environment
    versions = environment.get("versions", {})
    machine = [f"{name} {versions[key]}" for key, name in _LIBRARIES.items() if key in versions]
    rows = [*(_of_setup(setup, comparison) if setup else ()), ("Machine", ", ".join([environment["device"], *machine]))]
    measured = ", ".join(_measured(setup, run_id))
    return [*rows, ("Measured", measured)] if measured else rows


def _of_setup(setup: Setup, comparison: Comparison) -> Iterator[tuple[str, str]]:
    trained, configuration, data = setup.trained, setup.configuration, setup.data
    model = [] if trained is None or trained.model is None else [trained.model]
    if configuration is not None:
        model += [f"{configuration.parameters:,} parameters", configuration.optimizer]
    if data is None:
        yield "Task", ", ".join([setup.task.name, *model, f"{setup.task.examples:,} test examples"])
    else:
        counts = [f"{count:,} {split}" for split, count in data.images.items()]
        yield "Model", ", ".join(model)
        yield "Data", f"{data.source}: {joined(counts)} images of {'×'.join(map(str, data.image_shape))}"
    if trained is not None:
        training = [f"batch {trained.batch_size:,}"]
        training += [] if trained.epochs is None else [f"{trained.epochs} epochs"]
        training += [] if trained.learning_rate is None else [f"learning rate {trained.learning_rate:g}"]
        training.append(f"seed{'s' if len(setup.seeds) > 1 else ''} {joined([f'{seed}' for seed in setup.seeds])}")
        yield "Training", ", ".join(training)
    if setup.settings:
        yield (
            "Variants",
            "; ".join(_variant_text(name, setup) for name in (comparison.baseline, *comparison.candidates)),
        )


def _variant_text(name: str, setup: Setup) -> str:
    """A variant with its settings, such as `mixed_float16 (onednn: false)`; its policy if its name is another."""
    settings = setup.settings.get(name, {})
    found = [f"{key}: {yaml_text(value)}" for key, value in settings.items() if (key, value) != ("policy", name)]
    return f"{name} ({', '.join(found)})" if found else name


def _measured(setup: Setup | None, run_id: str | None) -> Iterator[str]:
    protocol = setup.protocol if setup else None
    if protocol is not None and protocol.measured_at is not None:
        yield f"{protocol.measured_at} UTC"
    if protocol is not None and protocol.commit is not None:
        changed = " with changes" if protocol.commit.endswith("+") else ""
        yield f"commit {protocol.commit.removesuffix('+')}{changed}, `dvc repro`"
    if run_id is not None:
        yield f"MLflow run {run_id}"
