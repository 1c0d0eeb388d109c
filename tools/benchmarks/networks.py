"""Measures how well real networks are timed: half-width of the training interval, wall time, and how much is timing.

    python -m tools.benchmarks.networks --out DIR                    all networks: about half an hour
    python -m tools.benchmarks.networks --out DIR --commit OLD       the same of another commit, in turns
    python -m tools.benchmarks.networks --out DIR --rows cnn_32      one network

Each network is trained for one epoch on a few images (ResNet-50 is not trained), in a clone of the project in a
temporary folder. Then `profile` measures float32, mixed_bfloat16 and the control. Each measurement is written to a file
in `--out` at once, and a file
that exists is not measured again, so that an interrupted run continues. Changes that are not committed are not
measured. The target holds on a machine with 2 cores and no other load: half-width of at most 0.03, within 4 minutes of
`profile`, at least half of them timing. Nothing is asserted; a table is printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from tools.benchmarks.checkout import Checkout, cloned, half_width, resolved
from tools.benchmarks.load import other_load

VARIANTS = ("float32", "mixed_bfloat16")
CANDIDATE = "mixed_bfloat16"
IMAGES = 512  # that is enough, as the measured steps repeat the training images
TARGET_HALF_WIDTH, TARGET_SECONDS, TARGET_SHARE = 0.03, 240.0, 0.5


@dataclass(frozen=True)
class Network:
    """A row of the table; `busy_cores` is the load of another program."""

    model: str
    image_size: int
    batch_size: int
    source: str = "synthetic"
    busy_cores: float = 0.0
    epochs: int = 1

    @property
    def parameters(self) -> dict[str, Any]:
        """What differs from `params.yaml`, by dotted names."""
        return {
            "data.source": self.source,
            "data.synthetic_images": IMAGES,
            "data.image_size": self.image_size,
            "model.name": self.model,
            "train.variants": list(VARIANTS),
            "train.epochs": self.epochs,
            "train.batch_size": self.batch_size,
        }


NETWORKS = {
    "cnn_32": Network("cnn", 32, 32, source="digits"),
    "mobilenet_96": Network("keras.applications.MobileNetV3Small", 96, 32),
    "resnet20_32": Network("resnet20", 32, 128),
    "resnet20_64_busy": Network("resnet20", 64, 32, busy_cores=0.5),
    "resnet20_64": Network("resnet20", 64, 32),
    "resnet50_128": Network("resnet50", 128, 16, epochs=0),
}


@dataclass(frozen=True)
class Row:
    """The measurement of one network at one commit; `half_width` is that of the speed-up of training.

    `first_s` is how long it took until `profile` printed a speed-up; None if it printed none before the end.
    """

    network: str
    commit: str
    step_ms: float
    rounds: int
    processes: int
    speedup: float
    half_width: float
    noise_floor: float
    profile_s: float
    timing_s: float
    first_s: float | None
    other_load_cores: float | None

    @property
    def timing_share(self) -> float:
        """Share of the stage's wall time that is timing."""
        return self.timing_s / self.profile_s

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None beside other load, where there is none."""
        if NETWORKS[self.network].busy_cores:
            return None
        is_narrow = self.half_width <= TARGET_HALF_WIDTH
        return is_narrow and self.profile_s <= TARGET_SECONDS and self.timing_share >= TARGET_SHARE


def measured(name: str, commit: str, others: dict[str, Any]) -> Row:
    """Trains and measures one network at a commit; `others` are further parameters."""
    network = NETWORKS[name]
    with cloned(commit) as checkout:
        checkout.configure(network.parameters | others)
        checkout.train(VARIANTS)
        with other_load(network.busy_cores):
            seconds, _, first_s = checkout.timed_stages("python", "-m", "stages.profile")
        checkout.stage("compare")
        return _row(name, commit, checkout, seconds, first_s)


def _row(name: str, commit: str, checkout: Checkout, seconds: float, first_s: float | None) -> Row:
    comparison, summary = checkout.comparison(), checkout.summary("float32")
    speedup, protocol = comparison["candidates"][CANDIDATE]["speedup"]["train"], summary["protocol"]
    return Row(
        network=name,
        commit=commit[:12],
        step_ms=summary["metrics"]["step_time_ms/mean"],
        rounds=protocol["rounds"],
        processes=protocol["processes"],
        speedup=speedup["ratio"],
        half_width=half_width(speedup),
        noise_floor=comparison["noise_floor"]["train"],
        profile_s=seconds,
        timing_s=protocol["timing_seconds"],
        first_s=first_s,
        other_load_cores=protocol.get("other_load_cores"),
    )


def measure_missing(plan: Iterable[tuple[str, str]], out: Path, further: Mapping[str, dict[str, Any]]) -> Iterator[Row]:
    """Yields the rows of all networks and commits of the plan: read if they are in `out`, else measured and written.

    `further` has more parameters by commit.
    """
    for name, commit in plan:
        path = out / f"{name}-{commit[:12]}.json"
        if not path.exists():
            print(f"{name} at {commit[:12]} ...", flush=True)
            try:
                row = measured(name, commit, further.get(commit, {}))
            except RuntimeError as error:  # the other networks are measured all the same
                print(f"{name} at {commit[:12]}: {error}", flush=True)
                continue
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(asdict(row), indent=1) + "\n", encoding="utf-8")
            temporary.replace(path)
        yield Row(**json.loads(path.read_text(encoding="utf-8")))


def report(rows: Iterable[Row]) -> pd.DataFrame:
    """The table that is printed."""
    return pd.DataFrame(
        {
            "network": row.network,
            "commit": row.commit,
            "step, ms": f"{row.step_ms:.1f}",
            "rounds": f"{row.rounds} in {row.processes}",
            "speed-up": f"{row.speedup:.3f}",
            "half-width": f"{row.half_width:.3f}",
            "noise floor": f"{row.noise_floor:.3f}",
            "profile, s": f"{row.profile_s:.0f}",
            "timing, s": f"{row.timing_s:.0f}",
            "share": f"{row.timing_share:.0%}",
            "first answer, s": "-" if row.first_s is None else f"{row.first_s:.0f}",
            "target": {True: "reached", False: "missed", None: "-"}[row.reached],
        }
        for row in rows
    )


def main() -> None:
    """Measures what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.benchmarks.networks", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for one JSON file per measurement")
    parser.add_argument("--rows", nargs="+", choices=NETWORKS, default=list(NETWORKS), help="networks to measure")
    parser.add_argument("--commit", help="another commit to measure in turns with this one")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUE", help="further parameters, not of another commit"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    commits = [resolved(name) for name in ("HEAD", arguments.commit) if name]
    turns = (commits if number % 2 else commits[::-1] for number in range(len(arguments.rows)))
    plan = [(name, commit) for name, turn in zip(arguments.rows, turns, strict=True) for commit in turn]
    others = {name: yaml.safe_load(value) for name, _, value in (item.partition("=") for item in arguments.set)}
    further = {commits[0]: others}
    rows = list(measure_missing(plan, arguments.out, further))
    print(report(rows).to_string(index=False))
    if len(rows) < len(plan):
        raise SystemExit(f"{len(plan) - len(rows)} of {len(plan)} were not measured; the same command tries them again")


if __name__ == "__main__":
    main()
