"""Lines of logs about GPUs that do not work, as reported in public, and what halfstep should say about them.

A number is that of an issue at https://github.com/tensorflow/tensorflow/issues.
"""

from __future__ import annotations

from typing import NamedTuple


class Log(NamedTuple):
    """A part of a log, and parts of the reason and of the cure."""

    text: str
    reason: str
    cure: str


LOGS = {
    # 111958: RTX 5060 Ti, TensorFlow 2.22.0.dev20260308
    "no code for Blackwell, XLA": Log(
        "LLVM ERROR: PTX version 8.5 does not support target 'sm_120' (or 'sm_120a'). "
        "Minimum required PTX version is 8.7",
        "no code for the GPU",
        "6.0 to 9.0",
    ),
    # 99592: RTX of the 50 series, TensorFlow 2.20
    "no code for Blackwell": Log(
        "W tensorflow/compiler/mlir/tools/kernel_gen/tf_gpu_runtime_wrappers.cc:40] 'cuModuleLoadData(&module, data)' "
        "failed with 'CUDA_ERROR_INVALID_PTX'\n"
        "W tensorflow/compiler/mlir/tools/kernel_gen/tf_gpu_runtime_wrappers.cc:40] 'cuModuleGetFunction(&function, "
        "module, kernel_name)' failed with 'CUDA_ERROR_INVALID_HANDLE'",
        "no code for the GPU",
        "docs/gpus.md",
    ),
    # 97387: RTX 5080, tf-nightly 2.21.0.dev20250722
    "no code for Blackwell, nightly": Log(
        "W0000 00:00:1753232013.685876   24341 gpu_device.cc:2431] TensorFlow was not built with CUDA kernel binaries "
        "compatible with compute capability 12.0. CUDA kernels will be jit-compiled from PTX, which could take 30 "
        "minutes or longer.\nCUDA_ERROR_INVALID_HANDLE",
        "no code for the GPU",
        "docs/gpus.md",
    ),
    # 46449: GeForce 940MX
    "no code for an old GPU": Log("no kernel image is available for execution on the device", "no code", "6.0 to 9.0"),
    # 60739: H100 with a build for other GPUs
    "kernels are compiled by the driver": Log(
        "2023-05-31 14:45:08.138842: W tensorflow/core/common_runtime/gpu/gpu_device.cc:2052] TensorFlow was not built "
        "with CUDA kernel binaries compatible with compute capability 9.0. CUDA kernels will be jit-compiled from PTX, "
        "which could take 30 minutes or longer.",
        "no binary code for compute capability 9.0",
        "again",
    ),
    # 36853: GeForce GTX TITAN X
    "below the smallest compute capability": Log(
        "I tensorflow/core/common_runtime/gpu/gpu_device.cc:1717] Ignoring visible gpu device (device: 0, name: "
        "GeForce GTX TITAN X, pci bus id: 0000:02:00.0, compute capability: 5.2) with Cuda compute capability 5.2. The "
        "minimum required Cuda capability is 6.0.",
        "its compute capability is 5.2, and this TensorFlow needs 6.0 or higher",
        "another GPU",
    ),
    # https://github.com/NVIDIA/tensorflow/issues/110
    "a library is missing": Log(
        "2024-06-19 16:06:44.996032: W tensorflow/stream_executor/platform/default/dso_loader.cc:60] Could not load "
        "dynamic library 'libcusolver.so.11'; dlerror: libnvJitLink.so.12: cannot open shared object file: No such "
        "file or directory\n"
        "2024-06-19 16:06:44.996140: W tensorflow/core/common_runtime/gpu/gpu_device.cc:1689] Cannot dlopen some GPU "
        "libraries. Please make sure the missing libraries mentioned above are installed properly if you would like to "
        "use GPU.",
        "missing: libcusolver.so.11",
        "tensorflow[and-cuda]",
    ),
    # 42156
    "a library is missing, older wording": Log(
        "I tensorflow/stream_executor/platform/default/dso_loader.cc:53] Could not dlopen library 'libcudnn.so.7'; "
        "dlerror: libcudnn.so.7: cannot open shared object file: No such file or directory",
        "missing: libcudnn.so.7",
        "tensorflow[and-cuda]",
    ),
    # 66987: without the names of the libraries
    "some library is missing": Log("Cannot dlopen some GPU libraries.", "libraries of CUDA are missing", "and-cuda"),
    # TensorFlow 2.21.0 on a machine without a driver
    "no driver": Log(
        "I0000 00:00:1.0 9 dso_loader.cc:144] Could not load dynamic library 'libcuda.so.1'; dlerror: libcuda.so.1: "
        "cannot open shared object file: No such file or directory",
        "missing: libcuda.so.1",
        "--gpus all",
    ),
    # 37978
    "the driver is too old": Log(
        "cudaGetDevice() failed. Status: CUDA driver version is insufficient for CUDA runtime version",
        "driver is too old",
        "555",
    ),
    # https://github.com/CY-CHENYUE/ComfyUI-Molmo/issues/26: T4, TensorFlow 2.18.0
    "the driver is too old for PTX": Log(
        "2025-02-01 13:44:34.523685: W tensorflow/compiler/mlir/tools/kernel_gen/tf_gpu_runtime_wrappers.cc:40] "
        "'cuModuleLoadData(&module, data)' failed with 'CUDA_ERROR_UNSUPPORTED_PTX_VERSION'\n"
        "2025-02-01 13:44:34.523741: W tensorflow/compiler/mlir/tools/kernel_gen/tf_gpu_runtime_wrappers.cc:40] "
        "'cuModuleGetFunction(&function, module, kernel_name)' failed with 'CUDA_ERROR_INVALID_HANDLE'",
        "driver is too old",
        "555",
    ),
    # 22525
    "the driver was updated": Log(
        "2018-09-26 16:20:01.273306: E tensorflow/stream_executor/cuda/cuda_driver.cc:406] failed call to cuInit: "
        "CUDA_ERROR_NO_DEVICE\n"
        "2018-09-26 16:20:01.273681: E tensorflow/stream_executor/cuda/cuda_diagnostics.cc:303] kernel version "
        "384.130.0 does not match DSO version 375.66.0 -- cannot find",
        "was updated",
        "restart",
    ),
    # 62351
    "exclusive": Log(
        "tensorflow.python.framework.errors_impl.InternalError: CUDA runtime implicit initialization on GPU:0 failed. "
        "Status: all CUDA-capable devices are busy or unavailable",
        "admits no further process",
        "nvidia-smi -c DEFAULT",
    ),
    # https://github.com/google-research/pix2struct/issues/53
    "exclusive, newer wording": Log(
        "tensorflow.python.framework.errors_impl.InternalError: cudaSetDevice() on GPU:0 failed. Status: CUDA-capable "
        "device(s) is/are busy or unavailable",
        "admits no further process",
        "nvidia-smi -c DEFAULT",
    ),
    # 60913
    "another cuDNN": Log(
        "E0000 00:00:1738697930.202924    7665 cuda_dnn.cc:522] Loaded runtime CuDNN library: 9.1.0 but source was "
        "compiled with: 9.3.0.  CuDNN library needs to have matching major version and equal or higher minor version.\n"
        "2025-02-04 20:38:50.230519: W tensorflow/core/framework/op_kernel.cc:1841] OP_REQUIRES failed at "
        "xla_ops.cc:577 : FAILED_PRECONDITION: DNN library initialization failed.",
        "cuDNN 9.1.0 is loaded, and 9.3.0 or newer is needed",
        "LD_LIBRARY_PATH",
    ),
    # https://github.com/JuliaGPU/CUDA.jl/issues/2890: cuDNN 9.12
    "cuDNN without code for the GPU": Log(
        "ERROR: LoadError: CUDNNError: CUDNN_STATUS_EXECUTION_FAILED_CUDART (code 5003)",
        "cuDNN has no code for the GPU",
        "nvidia-cudnn-cu12<9.11",
    ),
    # https://github.com/tensorflow/tensor2tensor/issues/1127
    "the memory is used up": Log(
        "2018-10-09 14:56:35.280075: E tensorflow/stream_executor/cuda/cuda_driver.cc:806] failed to allocate 11.40G "
        "(12238104064 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "its memory is used up",
        "nvidia-smi",
    ),
    # 8879
    "cuDNN cannot be started": Log(
        "E tensorflow/stream_executor/cuda/cuda_dnn.cc:371] could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR",
        "as if its memory is used up",
        "nvidia-smi",
    ),
    # 60790
    "libdevice": Log(
        "2023-06-06 21:40:11.673658: W tensorflow/core/framework/op_kernel.cc:1830] OP_REQUIRES failed at "
        "xla_ops.cc:362 : INTERNAL: libdevice not found at ./libdevice.10.bc",
        "libdevice",
        "--xla_gpu_cuda_data_dir",
    ),
    # https://github.com/wutzebaer/tensorflow-5090/issues/3
    "ptxas": Log(
        "2025-05-31 19:37:00.138606: W tensorflow/core/framework/op_kernel.cc:1855] OP_REQUIRES failed at "
        "xla_ops.cc:590 : UNAVAILABLE: No PTX compilation provider is available. Neither ptxas/nvlink nor "
        "nvjtlink is available.",
        "ptxas",
        "--xla_gpu_cuda_data_dir",
    ),
    # https://github.com/huggingface/huggingface_hub/issues/4134: H200
    "fabric manager": Log("Error 802: system not yet initialized", "connects the GPUs", "nvidia-fabricmanager"),
    # 44869
    "no device": Log(
        "2020-11-11 10:46:37.467224: E tensorflow/stream_executor/cuda/cuda_driver.cc:314] failed call to cuInit: "
        "CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
        "CUDA finds no GPU",
        "--gpus all",
    ),
}

PROFILER_LOGS = {
    # 39143, https://github.com/openxla/xprof/issues/63
    "rights": Log(
        "2020-05-06 22:12:04.677122: E tensorflow/core/profiler/internal/gpu/cupti_tracer.cc:1419] function "
        "cupti_interface_->Subscribe( &subscriber_, (CUpti_CallbackFunc)ApiCallback, this)failed with error "
        "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
        "may not profile",
        "NVreg_RestrictProfilingToAdminUsers=0",
    ),
    # https://github.com/openxla/xprof/issues/363
    "rights, wording of the page": Log(
        "Insufficient privilege to run libcupti (you need root permission).", "may not profile", "--cap-add=SYS_ADMIN"
    ),
    # the wording of TensorFlow's loader of libraries, as above
    "library": Log(
        "Could not load dynamic library 'libcupti.so.12'; dlerror: libcupti.so.12: cannot open shared object file",
        "missing: libcupti.so.12",
        "and-cuda",
    ),
}
