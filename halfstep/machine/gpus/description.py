"""What is known about a GPU, and about those that a CUDA program sees."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a slice of one (MIG). What the driver does not report is None.

    Attributes:
        name: as the driver reports it, of a slice with its profile, such as `NVIDIA A100-SXM4-80GB MIG 1g.10gb`.
        uuid: begins with `GPU-` or `MIG-`.
        pci_bus_id: place of the GPU in the machine.
        memory_bytes: of a slice its own.
        compute_capability: such as `8.0`.
        parent: of a slice, the GPU that it is a part of.
        instance: of a slice, the ids of its GPU instance and its compute instance.
        multiprocessors, gpu_slices, compute_slices: of a slice, its share of the GPU.
        is_partitioned: whether only its slices can be used.
        slices: the slices of a partitioned GPU.
    """

    name: str
    uuid: str
    pci_bus_id: str = ""
    memory_bytes: int | None = None
    compute_capability: str | None = None
    parent: Gpu | None = None
    instance: tuple[int, int] | None = None
    multiprocessors: int | None = None
    gpu_slices: int | None = None
    compute_slices: int | None = None
    is_partitioned: bool = False
    slices: tuple[Gpu, ...] = ()

    @property
    def model(self) -> tuple[str, int | None, str | None]:
        """What two GPUs of one model have in common."""
        return self.name, self.memory_bytes, self.compute_capability

    @property
    def whole(self) -> Gpu:
        """The GPU itself, which has the clocks and the temperature of its slices."""
        return self.parent or self


@dataclass(frozen=True)
class Visible:
    """The GPUs that a CUDA program sees, in its order. TensorFlow uses the first.

    Attributes:
        gpus: empty without a driver, without a GPU, or if all are hidden.
        candidates: if it is not known which GPUs these are, those of which each may be the first; else empty. Then
            `gpus` has as many of them as CUDA shows, or all if they are of different models.
        driver: version of the driver.
        driver_cuda: newest version of CUDA that the driver supports.
    """

    gpus: tuple[Gpu, ...]
    candidates: tuple[Gpu, ...] = ()
    driver: str | None = None
    driver_cuda: str | None = None

    @property
    def identified(self) -> bool:
        """Whether it is known which GPUs these are."""
        return not self.candidates
