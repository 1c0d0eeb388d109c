"""Checks `params.yaml` before any other stage runs, and describes the machine, the tracking store and the inputs."""

from __future__ import annotations

from halfstep.system.supervision import supervise

supervise(__name__)  # before anything large is imported

from halfstep.system.imports import quick_imports

with quick_imports():
    from halfstep.cli import cli_entry, run
    from halfstep.environment import gpu_preflight, preflight, writing
    from halfstep.inputs.head_digests import read_head_digests
    from halfstep.machine import fingerprint


@cli_entry
def main() -> None:
    """Entry point of the stage. It runs at every `dvc repro`, so it imports no TensorFlow and takes about a second.

    A GPU is tried in another process, which takes longer, until it has passed.
    """
    preflight.require_writable_checkout()
    preflight.require_usable_process()
    head = read_head_digests()
    params = preflight.checked_params(has_data=head is None)
    preflight.require_address_space()
    machine = fingerprint.fingerprint()
    gpu_preflight.check(params, machine)
    writing.write(params, machine, head)


if __name__ == "__main__":
    raise SystemExit(run(main))
