"""Turns a profiler trace, of TensorFlow or anything else that writes XSpace files, into numbers."""

from stages.profile.trace.reader import read_trace
from stages.profile.trace.results import Kernel, Operation, StepBreakdown, Trace

__all__ = ["Kernel", "Operation", "StepBreakdown", "Trace", "read_trace"]
