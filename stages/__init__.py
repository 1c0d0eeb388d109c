"""The pipeline of dvc.yaml, a page each stage: read the parameters, call the library, track, return."""

import halfstep  # noqa: F401  what it sets must be set before anything else is imported
