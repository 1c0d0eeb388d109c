from __future__ import annotations

import pytest

from halfstep.profile.trace import Operation, Trace


def kernel(name: str, operation_type: str = "", duration_us: float = 1.0) -> Operation:
    return Operation(operation_type, "layer/op", "Device", 1, duration_us, "float32", False, name)


@pytest.mark.parametrize(
    "name",
    [
        "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true, (cudnnKernelDataType_t)0>",
        "void cudnn::ops::convertTensor_kernel<float, float, float, (cudnnKernelDataType_t)2>",
        "void cudnn::ops::genericTranspose_kernel<float, float>",
        "void splitKreduce_kernel<32, 16, int, float, __half, float, __half, true>",
        "void cask_cudnn::computeOffsetsKernel<false, false>(cask_cudnn::ComputeOffsetsParams)",
    ],
)
def test_auxiliary_kernels_of_a_convolution_are_bound_by_memory(name: str) -> None:
    assert kernel(name, "Conv2D").category == "memory"


def test_a_kernel_with_an_unknown_name_has_the_category_of_its_operation() -> None:
    assert kernel("cudnn_helper", "Conv2D").category == "matrix"
    assert kernel("cudnn_helper", "ReluGrad").category == "memory"
    assert kernel("cudnn_helper").category == "other"


def test_a_cast_is_known_by_the_kernel_or_by_its_operation() -> None:
    assert kernel("wrapped_convert", "Conv2D").is_cast
    assert kernel("loop_multiply_fusion", "Cast").is_cast
    assert not kernel("loop_multiply_fusion", "Mul").is_cast


def test_times_per_step_are_those_of_one_device() -> None:
    """Two devices ran 4 steps; each cast took 100 us, and the trace sums all of them."""
    trace = Trace("GPU", (), (), (kernel("wrapped_convert", duration_us=800.0),), None, device_count=2)
    assert trace.cast_ms(steps=4) == pytest.approx(0.1)


def test_collectives_are_no_compute() -> None:
    """They wait for other replicas: their time is none of the model's."""
    collective = Operation("CollectiveReduceV2", "CollectiveReduceV2_5", "Host", 1, 90.0, "float32")
    product = Operation("MatMul", "dense/MatMul", "Host", 1, 10.0, "bfloat16")
    trace = Trace("CPU", (), (collective, product), (), None)
    assert trace.compute == (product,)
    assert trace.metrics()["profiler/compute_16bit_percent"] == 100
