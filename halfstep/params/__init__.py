"""`params.yaml` as frozen, typed parameters. Does not import TensorFlow."""
