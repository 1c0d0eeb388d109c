"""Reads a profiler trace of TensorFlow, or of another program that writes XSpace files, as numbers."""

from halfstep.profile.trace.model import Operation, StepBreakdown, Trace
from halfstep.profile.trace.reader import read_trace

__all__ = ["Operation", "StepBreakdown", "Trace", "read_trace"]
