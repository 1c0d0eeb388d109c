"""Several devices and hosts in one training: who takes part, the strategy, and the step that all replicas run."""
