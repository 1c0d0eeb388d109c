"""Ends runs that were left RUNNING: by a machine of the fleet that was lost, or by a stage of this checkout.

`python -m stages.tracking.abandoned` ends those of this checkout whose stage runs no more.
"""

from __future__ import annotations

from stages import params
from stages.params import TrackingParams
from stages.tracking import provenance
from stages.tracking.tracker import RunIdentity, Tracker

REASON = "its machine or process was lost, and the training has ended elsewhere"


def close_abandoned(tracking: TrackingParams, identity: RunIdentity) -> int:
    """Ends the runs of one training that the fleet of this checkout left RUNNING: as KILLED unless complete.

    A run belongs to the fleet of this checkout if its tag `halfstep.fleet` says so. Runs of other checkouts, of other
    trainings, and of trainings without a fleet are not touched. Each run that is ended gets the tag `halfstep.closed`.

    Args:
        tracking: section `tracking` of the parameters.
        identity: the training. No process trains it any more for this checkout; the caller makes sure of that.

    Returns:
        The number of runs that were ended.

    Raises:
        TrackingError: the store cannot be used.
    """
    tags = {provenance.FLEET_TAG: provenance.checkout_id(), **identity.tags()}
    return Tracker(tracking).close_running(tags, REASON)


if __name__ == "__main__":
    Tracker(params.load().tracking).close_abandoned()
