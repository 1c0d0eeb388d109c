"""The machine that a timing was taken on, and the check of everything that `params.yaml` names; no TensorFlow."""
