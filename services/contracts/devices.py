"""GPUs, and the memory of hosts, as the processes of a pool report them."""

from pydantic import BaseModel, Field


class GPUDevice(BaseModel):
    """One GPU."""

    uuid: str = Field(description="The driver's name of it, e.g. `GPU-5a3e…`.")
    name: str = Field(description="What it is, e.g. `NVIDIA H100 80GB HBM3`.")
    memory: int = Field(ge=0, description="Bytes.")


class GPULoad(BaseModel):
    """How busy a GPU was when its worker last asked the driver."""

    uuid: str = Field(description="As in `devices`.")
    used: int = Field(ge=0, description="Bytes of its memory that all processes take.")
    busy: float | None = Field(
        ge=0, le=1, description="Share of the last second in which it computed; null: not known."
    )


class LearnerHost(BaseModel):
    """The machine of a learner's first rank."""

    free: int = Field(ge=0, description="Bytes that processes could still take a few seconds ago.")
    used: int = Field(
        0, ge=0, description="Bytes that its ranks there had themselves; 0: an older learner."
    )
    ranks: int = Field(ge=1, description="Ranks on it.")
    name: str = Field("", description="What it calls itself; empty: an older learner.")
    total: int | None = Field(
        None, description="Bytes of memory that it has in all; null: an older learner."
    )


class LearnerDevices(BaseModel):
    """The devices of a pool's learner, or of its last learner if none runs now."""

    ranks: int = Field(ge=1, description="Its processes.")
    gpus: list[GPUDevice] = Field(description="One for each rank; empty: they compute on CPUs.")
    host: LearnerHost | None = Field(None, description="Null: an older learner has not said.")
