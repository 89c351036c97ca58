"""What every Xid means, and what NVIDIA asks for when it comes. Pure.

Source of numbers, names and actions: NVIDIA, "Xid Errors", chapter "Analyzing Xid Errors with the Xid Catalog", table
of Xids, columns "Resolution Bucket (Immediate Action)" and "(Investigatory Action)", for Ampere and newer
(https://docs.nvidia.com/deploy/xid-errors); the names also in the open kernel modules' nverror.h. Meanings are in our
own words. What guardrun does with an action (RESPONSES) is guardrun's choice.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from guardrun.supervisor.health.base.findings import Response


class Asks(str, Enum):
    """NVIDIA's immediate action, by NVIDIA's name."""

    RESTART_APP = "RESTART_APP"
    IGNORE = "IGNORE"
    RESET_GPU = "RESET_GPU"
    RESTART_BM = "RESTART_BM"
    """The machine has to be restarted."""
    RESTART_VM = "RESTART_VM"
    CONTACT_SUPPORT = "CONTACT_SUPPORT"
    CHECK_MECHANICALS = "CHECK_MECHANICALS"
    UPDATE_SWFW = "UPDATE_SWFW"
    CHECK_UVM = "CHECK_UVM"
    """A reset where managed memory is in use."""
    XID_45 = "WORKFLOW_XID_45"
    """Follow the Xid that came before it."""
    XID_48 = "WORKFLOW_XID_48"
    """Reset; with Xid 63 or 64, drain and reset."""
    NVLINK = "WORKFLOW_NVLINK_ERR"
    """By the registers in its text: from nothing to a reset; a second time, hardware."""
    NVLINK5 = "WORKFLOW_NVLINK5_ERR"
    """By its text; Xid 154 says what has to be done."""
    XID_154 = "XID_154"
    """Its text names the action."""
    NOTHING = "none given"


RESPONSES = {
    Asks.RESTART_APP: Response.RESTART,
    Asks.RESET_GPU: Response.ISOLATE,
    Asks.RESTART_BM: Response.ISOLATE,
    Asks.RESTART_VM: Response.ISOLATE,
    Asks.XID_48: Response.ISOLATE,
    Asks.NVLINK: Response.RESTART,
}
"""A device that needs a reset or more is of no use to the next attempt on its node, and nobody but an administrator can
reset it. All others are notes: what they ask for needs no act of ours, or another Xid says it."""

RECOVERY_RESPONSES = {
    "none": Response.NOTE,
    "recover_imex_domain": Response.NOTE,
    "drain_p2p": Response.RESTART,
}
"""By what the driver wants done (`xids.RECOVERY_ACTIONS`); anything else is a reset or a reboot: isolate."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One Xid."""

    code: int
    name: str
    """NVIDIA's."""
    meaning: str
    asks: Asks
    is_application: bool = False
    """What ran on the device is the likely cause (NVIDIA would look at the application first): blames no node."""
    is_worse_again: bool = False
    """A second time, NVIDIA would look at the hardware (investigatory action CONTACT_SUPPORT)."""

    @property
    def response(self) -> Response:
        """What guardrun does when it comes; only a note where the application is the likely cause."""
        if self.is_application:
            return Response.NOTE
        return RESPONSES.get(self.asks, Response.NOTE)


def look_up(code: int) -> Entry:
    """The entry of an Xid; one that says so where the catalogue has none."""
    unlisted = Entry(
        code=code, name="", meaning="an error that the catalogue does not describe", asks=Asks.CONTACT_SUPPORT
    )
    return _ENTRIES.get(code, unlisted)


def codes() -> list[int]:
    """All Xids that the catalogue describes."""
    return sorted(_ENTRIES)


_RESET = (
    "End all that uses it (the node agent, too), then `nvidia-smi --gpu-reset`; if it comes back, reboot; "
    "after that, NVIDIA's support."
)
_ADVICE = {
    Asks.RESTART_APP: "The application has to be started again; if it comes back here, run `dcgmi diag -r 3`.",
    Asks.RESET_GPU: _RESET,
    Asks.XID_48: _RESET,
    Asks.CHECK_UVM: _RESET,
    Asks.RESTART_BM: "Power-cycle the machine; if it comes back, reseat the device or have it replaced.",
    Asks.RESTART_VM: "Restart the virtual machine.",
    Asks.CONTACT_SUPPORT: "If it comes back, give NVIDIA's support the output of `nvidia-bug-report.sh`.",
    Asks.CHECK_MECHANICALS: "Check the device's power cables and its seat.",
    Asks.UPDATE_SWFW: "Update driver and firmware.",
    Asks.NVLINK: "`nvidia-smi nvlink -e` says which link; if it comes back, reset the device, then check its seat.",
    Asks.NVLINK5: "The driver's Xid 154 says whether a reset is needed.",
}


def advise(entry: Entry) -> str:
    """What a person does about it; empty where that is nothing."""
    if entry.is_application and entry.asks is Asks.RESTART_APP:
        return "Look at the application first (compute-sanitizer); the same on one device under other jobs is hardware."
    return _ADVICE.get(entry.asks, "")


_APP = "application"
_AGAIN = "again"

_TABLE: tuple[tuple[int | tuple[int, int], str, str, Asks, str], ...] = (
    (8, "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT", "the device stopped processing", Asks.RESTART_APP, _AGAIN),
    (11, "ROBUST_CHANNEL_GR_ERROR_MISSING_HW", "a broken stream of commands", Asks.RESTART_APP, _APP),
    (13, "ROBUST_CHANNEL_GR_EXCEPTION", "an exception in a kernel, such as an illegal address", Asks.RESTART_APP, _APP),
    (14, "ROBUST_CHANNEL_FAKE_ERROR", "a test error", Asks.IGNORE, ""),
    (25, "ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY", "an illegal stream of commands", Asks.RESTART_APP, _APP),
    (31, "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT", "access to memory that is not mapped", Asks.RESTART_APP, _APP),
    (32, "ROBUST_CHANNEL_PBDMA_ERROR", "a broken stream of commands", Asks.RESTART_APP, _APP),
    (37, "ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD", "an unknown call of firmware", Asks.IGNORE, _APP),
    (38, "ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT", "a firmware watchdog", Asks.IGNORE, ""),
    ((39, 41), "ROBUST_CHANNEL_CE_ERROR", "an error of a copy engine", Asks.RESTART_APP, _AGAIN),
    (43, "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR", "work ended by an error of the application", Asks.IGNORE, _APP),
    (44, "ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW", "a fault while switching contexts", Asks.IGNORE, ""),
    (45, "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL", "clean-up after an earlier error or a killed process", Asks.XID_45, _APP),
    (46, "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR", "the device stopped processing", Asks.RESET_GPU, ""),
    (48, "ROBUST_CHANNEL_GPU_ECC_DBE", "a memory error that ECC could not correct", Asks.XID_48, ""),
    (
        54,
        "SILENT_RUNNING_PWR_REDUCED_CLOCKING",
        "external power is missing: clocks are low",
        Asks.CHECK_MECHANICALS,
        "",
    ),
    (60, "ROBUST_CHANNEL_SEC2_ERROR", "an error of the security engine", Asks.RESTART_APP, ""),
    (62, "PMU_HALT_ERROR", "the power management controller halted", Asks.RESET_GPU, ""),
    (
        63,
        "INFOROM_DRAM_RETIREMENT_EVENT",
        "a bad memory row or page is taken out of use at the next reset",
        Asks.IGNORE,
        "",
    ),
    (
        64,
        "INFOROM_DRAM_RETIREMENT_FAILURE",
        "a bad memory row or page could not be taken out of use",
        Asks.RESET_GPU,
        "",
    ),
    (66, "ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION", "an illegal access by driver or firmware", Asks.IGNORE, ""),
    (67, "ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION", "a failed check in firmware", Asks.IGNORE, ""),
    (68, "ROBUST_CHANNEL_NVDEC0_ERROR", "an error of a video decoder", Asks.RESTART_APP, _AGAIN),
    (69, "ROBUST_CHANNEL_GR_CLASS_ERROR", "an illegal method of a kernel's context", Asks.RESTART_APP, _APP),
    ((70, 72), "ROBUST_CHANNEL_CE_ERROR", "an error of a copy engine", Asks.RESTART_APP, _AGAIN),
    (74, "NVLINK_ERROR", "an error of an NVLink", Asks.NVLINK, _AGAIN),
    ((75, 77), "ROBUST_CHANNEL_CE_ERROR", "an error of a copy engine", Asks.RESTART_APP, _AGAIN),
    (78, "VGPU_START_ERROR", "a virtual GPU could not start", Asks.UPDATE_SWFW, ""),
    (
        79,
        "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        "the device does not answer on PCIe any more",
        Asks.RESTART_BM,
        "",
    ),
    (80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "commands were damaged on their way", Asks.RESTART_APP, _APP),
    (82, "ROBUST_CHANNEL_NVJPG0_ERROR", "an error of a JPEG engine", Asks.RESTART_APP, _AGAIN),
    ((83, 84), "ROBUST_CHANNEL_NVDEC_ERROR", "an error of a video decoder", Asks.RESTART_APP, _AGAIN),
    (85, "ROBUST_CHANNEL_CE9_ERROR", "an error of a copy engine", Asks.RESTART_APP, _AGAIN),
    (86, "ROBUST_CHANNEL_OFA0_ERROR", "an error of the optical flow engine", Asks.RESTART_APP, _AGAIN),
    ((88, 89), "ROBUST_CHANNEL_NVDEC_ERROR", "an error of a video decoder", Asks.RESTART_APP, _AGAIN),
    (92, "EXCESSIVE_SBE_INTERRUPTS", "memory errors that ECC corrects come at a high rate", Asks.IGNORE, ""),
    (93, "INFOROM_ERASE_LIMIT_EXCEEDED", "the device's own store is worn", Asks.IGNORE, ""),
    (94, "ROBUST_CHANNEL_CONTAINED_ERROR", "a memory error that hit one application only", Asks.RESTART_APP, ""),
    (95, "ROBUST_CHANNEL_UNCONTAINED_ERROR", "a memory error that may have hit everything on it", Asks.RESET_GPU, ""),
    ((96, 98), "ROBUST_CHANNEL_NVDEC_ERROR", "an error of a video decoder", Asks.RESTART_APP, _AGAIN),
    ((99, 105), "ROBUST_CHANNEL_NVJPG_ERROR", "an error of a JPEG engine", Asks.RESTART_APP, _AGAIN),
    ((106, 107), "SMBPBI_TEST_MESSAGE", "a test message", Asks.IGNORE, ""),
    (108, "NVLINK_REMOTE_TRANSLATION_ERROR", "an address of a peer that is not mapped", Asks.IGNORE, ""),
    (109, "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR", "switching contexts took too long", Asks.RESET_GPU, ""),
    (110, "SEC_FAULT_ERROR", "a security fault", Asks.RESET_GPU, ""),
    (119, "GSP_RPC_TIMEOUT", "the device's system processor does not answer the driver", Asks.RESET_GPU, ""),
    (120, "GSP_ERROR", "an error in the device's system processor", Asks.RESET_GPU, ""),
    (121, "C2C_ERROR", "a corrected error of the link between CPU and GPU", Asks.IGNORE, ""),
    ((126, 135), "ROBUST_CHANNEL_CE_ERROR", "an error of a copy engine", Asks.RESTART_APP, _AGAIN),
    (136, "ALI_TRAINING_FAIL", "an NVLink could not be trained", Asks.RESET_GPU, ""),
    (137, "NVLINK_PRIV_ERR", "a peer's access was refused", Asks.IGNORE, ""),
    (139, "ROBUST_CHANNEL_OFA1_ERROR", "an error of the optical flow engine", Asks.RESTART_APP, _AGAIN),
    (140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "an ECC error beyond recovery", Asks.RESET_GPU, ""),
    (141, "ROBUST_CHANNEL_FAST_PATH_ERROR", "an error of a fast path", Asks.IGNORE, ""),
    (142, "ROBUST_CHANNEL_NVENC3_ERROR", "an error of a video encoder", Asks.CONTACT_SUPPORT, ""),
    (143, "GPU_INIT_ERROR", "the device could not be initialised", Asks.RESET_GPU, ""),
    (144, "NVLINK_SAW_ERROR", "an error of NVLink 5", Asks.NVLINK5, ""),
    (145, "NVLINK_RLW_ERROR", "an error of NVLink 5", Asks.NVLINK5, ""),
    (146, "NVLINK_TLW_ERROR", "an error of NVLink 5", Asks.NVLINK5, ""),
    (147, "NVLINK_TREX_ERROR", "an error of NVLink 5", Asks.NVLINK5, ""),
    (148, "NVLINK_NVLPW_CTRL_ERROR", "an error of NVLink 5", Asks.NVLINK5, ""),
    (149, "NVLINK_NETIR_ERROR", "an error of NVLink 5", Asks.NVLINK5, ""),
    (150, "NVLINK_MSE_ERROR", "an error of NVLink 5", Asks.NVLINK5, ""),
    (
        151,
        "ROBUST_CHANNEL_KEY_ROTATION_ERROR",
        "keys could not be changed (confidential computing)",
        Asks.RESTART_VM,
        "",
    ),
    (152, "ROBUST_CHANNEL_DLA_SMMU_ERROR", "an error of the deep learning accelerator", Asks.IGNORE, ""),
    (153, "ROBUST_CHANNEL_DLA_TIMEOUT", "the deep learning accelerator took too long", Asks.IGNORE, ""),
    (154, "GPU_RECOVERY_ACTION_CHANGED", "the driver says what has to be done before it is used on", Asks.XID_154, ""),
    (155, "NVLINK_SW_DEFINED_ERROR", "an error of NVLink, found by software", Asks.RESET_GPU, ""),
    (
        156,
        "RESOURCE_RETIREMENT_EVENT",
        "a part of the device is taken out of use at the next reset",
        Asks.RESET_GPU,
        "",
    ),
    (157, "RESOURCE_RETIREMENT_FAILURE", "a part of the device could not be taken out of use", Asks.IGNORE, ""),
    (158, "GPU_FATAL_TIMEOUT", "the device took too long, for good", Asks.RESET_GPU, ""),
    (159, "ROBUST_CHANNEL_CHI_NON_DATA_ERROR", "an error on the link between CPU and GPU", Asks.CHECK_UVM, ""),
    (160, "CHANNEL_RETIREMENT_EVENT", "a memory channel is taken out of use", Asks.IGNORE, ""),
    (161, "CHANNEL_RETIREMENT_FAILURE", "a memory channel could not be taken out of use", Asks.IGNORE, ""),
    ((162, 165), "PSHC", "the power smoothing's state or life has changed", Asks.NOTHING, ""),
    (166, "NVLINK_SECURE_CRYPTO_ERR", "an error of NVLink's encryption", Asks.NOTHING, ""),
    (167, "PCIE_FATAL_TIMEOUT", "PCIe took too long, for good", Asks.NOTHING, ""),
    (168, "REDUCED_GPU_MEMORY_CAPACITY", "the device has less memory than it should", Asks.NOTHING, ""),
    (169, "SEC2_HALT_ERROR", "the security engine halted", Asks.NOTHING, ""),
    (170, "NVLINK_SECURE_OTHER", "an error of NVLink's security", Asks.NOTHING, ""),
    (171, "UNCORRECTABLE_DRAM_ERROR", "more on a memory error that another Xid tells of", Asks.NOTHING, ""),
    (172, "UNCORRECTABLE_SRAM_ERROR", "more on a memory error that another Xid tells of", Asks.NOTHING, ""),
)


def _entries() -> dict[int, Entry]:
    entries: dict[int, Entry] = {}
    for which, name, meaning, asks, mark in _TABLE:
        first, last = which if isinstance(which, tuple) else (which, which)
        for code in range(first, last + 1):
            entries[code] = Entry(
                code=code,
                name=name,
                meaning=meaning,
                asks=asks,
                is_application=mark == _APP,
                is_worse_again=mark == _AGAIN,
            )
    return entries


_ENTRIES = _entries()
