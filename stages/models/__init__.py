"""Networks by name: each takes uint8 pixels, scales them by 1/255 inside, and ends in a softmax in float32."""

from stages.models.building import build

__all__ = ["build"]
