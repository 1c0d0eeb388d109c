"""Operations of TensorFlow: what bounds each type, and which operations of two traces are the same."""
