"""Reads a profiler trace of TensorFlow, or of another program that writes XSpace files, as numbers."""

from stages.profile.trace.model import Operation, StepBreakdown, Trace
from stages.profile.trace.reader import read_trace

__all__ = ["Operation", "StepBreakdown", "Trace", "read_trace"]
