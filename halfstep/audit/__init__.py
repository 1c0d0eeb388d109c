"""Looks at the model under each variant: layers, types, sizes and work, without training."""
