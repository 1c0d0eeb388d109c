"""Networks by name. Each takes uint8 pixels, scales them by 1/255, and ends with a softmax in float32."""

from halfstep.tasks.images.models.networks import build

__all__ = ["build"]
