/* libnvidia-ml.so.1 without a GPU: the functions that pynvml calls for guardrun, answering from a text file.
 *
 * The file (NVML_STUB_STATE) has one `key value` a line and is read at every call, so that a test may change it at
 * any time (by renaming a new one over it). Keys of a device begin with its index: `0.temperature 95`. For every function
 * there are three more: `0.error.FUNCTION CODE` (or `error.FUNCTION`), `0.hang.FUNCTION 1` (does not return while that
 * stands there), `0.crash.FUNCTION 1` (SIGSEGV). `0.lost 1`: the device has fallen off the bus.
 *
 * What each function answers follows NVIDIA's "NVML API Reference Guide"; above each group stands its chapter. Struct
 * layouts are those of nvml.h; a test holds them against pynvml's.
 *
 * -DOLD_DRIVER leaves out what drivers before R470 or so do not export.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* nvmlReturn_t: "Device Enums". */
enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10,
    GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25,
};

#define MAX_GPUS 16
#define EXPORT __attribute__((visibility("default")))

typedef struct { int index, part; } Device; /* part: of a MIG instance, from 1; 0: the GPU itself. */
typedef int Return;

#define MAX_PARTS 8

static Device devices[MAX_GPUS], parts[MAX_GPUS][MAX_PARTS];

__attribute__((constructor)) static void number_devices(void) {
    int index, part;
    for (index = 0; index < MAX_GPUS; index++) {
        devices[index] = (Device){index, 0};
        for (part = 0; part < MAX_PARTS; part++) parts[index][part] = (Device){index, part + 1};
    }
}

/* Reading the file. */

static int find(const char *key, char *value, size_t size) {
    const char *path = getenv("NVML_STUB_STATE");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[4096];
    int found = 0;
    size_t length = strlen(key);
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, key, length) && line[length] == ' ') {
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

static int find_of(const Device *device, const char *key, char *value, size_t size) {
    char full[256];
    if (!device) return find(key, value, size);
    if (device->part) snprintf(full, sizeof full, "%d/%d.%s", device->index, device->part - 1, key);
    else snprintf(full, sizeof full, "%d.%s", device->index, key);
    return find(full, value, size);
}

static unsigned long long number(const Device *device, const char *key, unsigned long long usual) {
    char value[4096];
    return find_of(device, key, value, sizeof value) ? strtoull(value, NULL, 0) : usual;
}

static void text(const Device *device, const char *key, const char *usual, char *out, unsigned int size) {
    char value[4096];
    snprintf(out, size, "%s", find_of(device, key, value, sizeof value) ? value : usual);
}

/* How often what befell is looked for; a measurement wants that seldom, since a driver is woken instead. */
static unsigned int nap_ms(void) {
    const char *said = getenv("GUARDRUN_NVML_STUB_NAP_MS");
    return said ? (unsigned int)atoi(said) : 10;
}

static void nap(void) {
    struct timespec pause = {nap_ms() / 1000, nap_ms() % 1000 * 1000 * 1000};
    nanosleep(&pause, NULL);
}

/* What may befall any function. */
static Return befall(const Device *device, const char *function) {
    char key[256];
    if (device && number(device, "lost", 0)) return GPU_IS_LOST;
    snprintf(key, sizeof key, "crash.%s", function);
    if (number(device, key, 0)) raise(SIGSEGV);
    snprintf(key, sizeof key, "hang.%s", function);
    while (number(device, key, 0)) nap();
    snprintf(key, sizeof key, "error.%s", function);
    return (Return)number(device, key, SUCCESS);
}

#define ENTER(device) \
    do { \
        Return befallen = befall(device, __func__); \
        if (befallen) return befallen; \
    } while (0)

#define NUMBER(function, type, key, usual) \
    EXPORT Return function(Device *device, type *out) { \
        ENTER(device); \
        *out = (type)number(device, key, usual); \
        return SUCCESS; \
    }

/* "Initialization and Cleanup", "Error Reporting", "System Queries". */

static unsigned long long events_told;

/* Events from here on are told, so that a test need not wait for the set of events to be made. */
EXPORT Return nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    ENTER(NULL);
    events_told = number(NULL, "events", 0);
    return SUCCESS;
}

EXPORT Return nvmlShutdown(void) { return SUCCESS; }

EXPORT const char *nvmlErrorString(Return code) {
    (void)code;
    return "an error of the stub";
}

EXPORT Return nvmlSystemGetDriverVersion(char *out, unsigned int size) {
    ENTER(NULL);
    text(NULL, "driver", "580.95.05", out, size);
    return SUCCESS;
}

/* "Device Queries": which there are. nvmlDeviceGetHandleByIndex_v2 answers GPU_IS_LOST for one that has fallen off. */

EXPORT Return nvmlDeviceGetCount_v2(unsigned int *out) {
    ENTER(NULL);
    *out = (unsigned int)number(NULL, "gpus", 1);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device **out) {
    if (index >= MAX_GPUS || index >= number(NULL, "gpus", 1)) return INVALID_ARGUMENT;
    ENTER(&devices[index]);
    *out = &devices[index];
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetUUID(Device *device, char *out, unsigned int size) {
    char usual[64];
    ENTER(device);
    snprintf(usual, sizeof usual, "GPU-00000000-0000-0000-0000-%012d", device->index);
    text(device, "uuid", usual, out, size);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetName(Device *device, char *out, unsigned int size) {
    ENTER(device);
    text(device, "name", "NVIDIA H100 80GB HBM3", out, size);
    return SUCCESS;
}

/* nvmlPciInfo_t: busId is "the tuple domain:bus:device.function", the domain with eight digits. */
typedef struct {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;

EXPORT Return nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *out) {
    char bus[32], usual[32];
    ENTER(device);
    snprintf(usual, sizeof usual, "00000000:%02X:00.0", 0x3b + device->index);
    text(device, "bus", usual, bus, sizeof bus);
    memset(out, 0, sizeof *out);
    memcpy(out->bus_id, bus, sizeof bus);
    return SUCCESS;
}

/* "Multi Instance GPU Management": `0.mig_places 3`, of which those that have a UUID (`0/1.uuid MIG-…`) are taken.
 * "… NOT_FOUND if no valid MIG device was found at index" */
EXPORT Return nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned int *out) {
    ENTER(device);
    *out = (unsigned int)number(device, "mig_places", 0);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned int index, Device **out) {
    char uuid[128];
    ENTER(device);
    if (index >= MAX_PARTS || index >= number(device, "mig_places", 0)) return INVALID_ARGUMENT;
    if (!find_of(&parts[device->index][index], "uuid", uuid, sizeof uuid)) return NOT_FOUND;
    *out = &parts[device->index][index];
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetMigMode(Device *device, unsigned int *current, unsigned int *pending) {
    ENTER(device);
    *current = *pending = (unsigned int)number(device, "mig", 0);
    return SUCCESS;
}

/* "Device Queries": temperatures (degrees C), clocks (MHz), power (mW). */

EXPORT Return nvmlDeviceGetTemperature(Device *device, int sensor, unsigned int *out) {
    if (sensor) return INVALID_ARGUMENT; /* NVML_TEMPERATURE_GPU is the only one. */
    ENTER(device);
    *out = (unsigned int)number(device, "temperature", 45);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetTemperatureThreshold(Device *device, int kind, unsigned int *out) {
    static const char *const keys[] = {"shutdown", "slowdown", "memory_max", "gpu_max"};
    static const unsigned int usual[] = {92, 89, 95, 87};
    if (kind < 0 || kind > 3) return NOT_SUPPORTED;
    ENTER(device);
    *out = (unsigned int)number(device, keys[kind], usual[kind]);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetClockInfo(Device *device, int kind, unsigned int *out) {
    ENTER(device);
    *out = (unsigned int)number(device, kind == 2 ? "memory_clock" : "sm_clock", kind == 2 ? 2619 : 1980);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetMaxClockInfo(Device *device, int kind, unsigned int *out) {
    ENTER(device);
    *out = (unsigned int)number(device, kind == 2 ? "memory_clock_max" : "sm_clock_max", kind == 2 ? 2619 : 1980);
    return SUCCESS;
}

NUMBER(nvmlDeviceGetPowerUsage, unsigned int, "power", 350000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, "power_limit", 700000)

/* "NvmlClocksEventReasons"; the second name is the one of drivers before R535. */
#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "reasons", 0)
#endif
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "reasons", 0)

/* "On MIG-enabled GPUs, querying device utilization rates is not currently supported." */
EXPORT Return nvmlDeviceGetUtilizationRates(Device *device, unsigned int *out) {
    ENTER(device);
    if (number(device, "mig", 0)) return NOT_SUPPORTED;
    out[0] = (unsigned int)number(device, "utilization", 97);
    out[1] = 40;
    return SUCCESS;
}

/* nvmlMemory_t and nvmlMemory_v2_t, bytes; version 2 does not count what the driver reserves as used. */
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } MemoryV2;
#define GIB (1ull << 30)

EXPORT Return nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
    ENTER(device);
    out->total = number(device, "memory_total", 80 * GIB);
    out->used = number(device, "memory_used", GIB);
    out->free = out->total - out->used;
    return SUCCESS;
}

#ifndef OLD_DRIVER
EXPORT Return nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *out) {
    ENTER(device);
    if (out->version != (sizeof *out | 2 << 24)) return ARGUMENT_VERSION_MISMATCH;
    out->total = number(device, "memory_total", 80 * GIB);
    out->used = number(device, "memory_used", GIB);
    out->reserved = GIB / 2;
    out->free = out->total - out->used - out->reserved;
    return SUCCESS;
}
#endif

/* "Device Queries": ECC. error 0 corrected, 1 uncorrected; counter 0 volatile, 1 aggregate. */

EXPORT Return nvmlDeviceGetEccMode(Device *device, unsigned int *current, unsigned int *pending) {
    ENTER(device);
    *current = *pending = (unsigned int)number(device, "ecc", 1);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetTotalEccErrors(Device *device, int error, int counter, unsigned long long *out) {
    static const char *const keys[2][2] = {{"ecc_volatile_corrected", "ecc_aggregate_corrected"},
                                           {"ecc_volatile_uncorrected", "ecc_aggregate_uncorrected"}};
    ENTER(device);
    if (!number(device, "ecc", 1)) return NOT_SUPPORTED; /* "… if ECC is not enabled" */
    *out = number(device, keys[error & 1][counter & 1], 0);
    return SUCCESS;
}

typedef struct {
    unsigned int version;
    unsigned long long counts[11];
    unsigned int is_threshold_exceeded;
} SramStatus;

#ifndef OLD_DRIVER
EXPORT Return nvmlDeviceGetSramEccErrorStatus(Device *device, SramStatus *out) {
    ENTER(device);
    if (out->version != (sizeof *out | 1 << 24)) return ARGUMENT_VERSION_MISMATCH;
    memset(out->counts, 0, sizeof out->counts);
    out->is_threshold_exceeded = (unsigned int)number(device, "sram_threshold", 0);
    return SUCCESS;
}

/* "On MIG-enabled GPUs with active instances, querying the number of remapped rows is not supported." */
EXPORT Return nvmlDeviceGetRemappedRows(Device *device, unsigned int *corrected, unsigned int *uncorrected,
                                        unsigned int *is_pending, unsigned int *has_failed) {
    ENTER(device);
    if (number(device, "mig", 0)) return NOT_SUPPORTED;
    *corrected = (unsigned int)number(device, "remapped_corrected", 0);
    *uncorrected = (unsigned int)number(device, "remapped_uncorrected", 0);
    *is_pending = (unsigned int)number(device, "remap_pending", 0);
    *has_failed = (unsigned int)number(device, "remap_failed", 0);
    return SUCCESS;
}
#endif

/* Page retirement is for devices before Ampere; later ones answer NOT_SUPPORTED. */
EXPORT Return nvmlDeviceGetRetiredPagesPendingStatus(Device *device, unsigned int *out) {
    ENTER(device);
    if (!number(device, "retires_pages", 0)) return NOT_SUPPORTED;
    *out = (unsigned int)number(device, "retired_pending", 0);
    return SUCCESS;
}

EXPORT Return nvmlDeviceGetRetiredPages(Device *device, int cause, unsigned int *count, unsigned long long *pages) {
    unsigned int have, i;
    ENTER(device);
    if (!number(device, "retires_pages", 0)) return NOT_SUPPORTED;
    have = (unsigned int)number(device, cause ? "retired_uncorrected" : "retired_corrected", 0);
    if (!pages || *count < have) {
        *count = have;
        return INSUFFICIENT_SIZE;
    }
    for (i = 0; i < have; i++) pages[i] = i;
    *count = have;
    return SUCCESS;
}

/* "Field Value Queries": each field has a return code of its own. */
typedef struct {
    unsigned int field, scope;
    long long timestamp, latency;
    int type;
    Return code;
    union { double d; unsigned int u; unsigned long long ull; } value;
} FieldValue;

EXPORT Return nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *out) {
    static const struct { unsigned int field; const char *key; const char *usual; } known[] = {
        {38, "nvlink_crc_flit", "0"}, {45, "nvlink_crc_data", "0"}, {52, "nvlink_replay", "0"},
        {59, "nvlink_recovery", "0"}, {82, "memory_temperature", "60"}, {91, "nvlinks", "18"},
        {230, "recovery_action", "0"},
    };
    int i;
    size_t k;
    ENTER(device);
    for (i = 0; i < count; i++) {
        char value[64] = "";
        for (k = 0; k < sizeof known / sizeof *known; k++)
            if (known[k].field == out[i].field) text(device, known[k].key, known[k].usual, value, sizeof value);
        out[i].code = *value && strcmp(value, "none") ? SUCCESS : NOT_SUPPORTED;
        out[i].type = strpbrk(value, ".ni") ? 0 : 3; /* double (nan and inf, too), unsigned long long */
        if (out[i].type) out[i].value.ull = strtoull(value, NULL, 0);
        else out[i].value.d = strtod(value, NULL);
    }
    return SUCCESS;
}

/* "NvLink Methods": NOT_SUPPORTED for links that the board does not have. */
EXPORT Return nvmlDeviceGetNvLinkState(Device *device, unsigned int link, unsigned int *out) {
    char down[256], one[16];
    ENTER(device);
    if (link >= number(device, "nvlinks", 18)) return INVALID_ARGUMENT;
    if (link >= number(device, "nvlinks_wired", 18)) return NOT_SUPPORTED;
    text(device, "nvlink_down", "", down, sizeof down); /* ",3,7," */
    snprintf(one, sizeof one, ",%u,", link);
    *out = strstr(down, one) == NULL;
    return SUCCESS;
}

/* "Device Queries": PCIe. */
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, "pcie_generation", 5)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, "pcie_generation_max", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, "pcie_width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, "pcie_width_max", 16)
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int, "pcie_replays", 0)

/* "Device Queries": processes, `processes 4242=512000000 4243=?`. "?" is NVML_VALUE_NOT_AVAILABLE. Asked for the size
 * first: SUCCESS where there are none, else INSUFFICIENT_SIZE. Versions 2 and 3 have one layout.
 *
 * "In MIG mode, if device handle is provided, the API returns aggregate information, only if the caller has appropriate
 * privileges": `0.unprivileged 1`.
 *
 * `process_folder PATH`: those as well whose ids are names of files there, with the bytes as content. The memory of one
 * that has ended is freed `frees_ms` later, by a file `ID.ended` that is made when that is seen first. */
typedef struct {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu_instance, compute_instance;
} Process;

static int is_freed(const char *folder, const char *id, unsigned long long frees_ms) {
    char path[4096];
    struct stat seen;
    struct timespec now;
    int made;
    if (!kill((pid_t)strtol(id, NULL, 10), 0) || errno != ESRCH) return 0;
    snprintf(path, sizeof path, "%s/%s.ended", folder, id);
    if ((made = open(path, O_CREAT | O_RDONLY | O_CLOEXEC, 0600)) < 0) return 0;
    fstat(made, &seen);
    close(made);
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)((now.tv_sec - seen.st_mtim.tv_sec) * 1000 +
                                (now.tv_nsec - seen.st_mtim.tv_nsec) / 1000000) >= frees_ms;
}

/* Adds ` ID=BYTES` to list for each process in the folder that still holds memory. */
static void add_processes(const Device *device, char *list, size_t size) {
    char folder[2048], path[4096], used[32];
    struct dirent *entry;
    size_t length;
    FILE *file;
    DIR *open_folder;
    text(device, "process_folder", "", folder, sizeof folder);
    if (!*folder || !(open_folder = opendir(folder))) return;
    while ((entry = readdir(open_folder))) {
        if (entry->d_name[strspn(entry->d_name, "0123456789")] || is_freed(folder, entry->d_name, number(device, "frees_ms", 0)))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (!(file = fopen(path, "re"))) continue;
        if (fgets(used, sizeof used, file)) {
            used[strcspn(used, "\n")] = 0;
            length = strlen(list);
            snprintf(list + length, size - length, " %s=%s", entry->d_name, used);
        }
        fclose(file);
    }
    closedir(open_folder);
}

static Return processes(const Device *device, const char *key, unsigned int *count, Process *out) {
    char list[4096], *rest = list, *one;
    unsigned int room = *count, have = 0;
    if (!device->part && number(device, "mig", 0) && number(device, "unprivileged", 0)) return NO_PERMISSION;
    text(device, key, "", list, sizeof list);
    if (!strcmp(key, "processes")) add_processes(device, list, sizeof list);
    while ((one = strsep(&rest, " "))) {
        char *used = strchr(one, '=');
        if (!used) continue;
        if (out && have < room) {
            memset(&out[have], 0, sizeof *out);
            out[have].pid = (unsigned int)strtoul(one, NULL, 10);
            out[have].used = used[1] == '?' ? ~0ull : strtoull(used + 1, NULL, 10);
            out[have].gpu_instance = out[have].compute_instance = ~0u;
        }
        have++;
    }
    *count = have;
    return have > (out ? room : 0) ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESSES(function, key) \
    EXPORT Return function(Device *device, unsigned int *count, Process *out) { \
        ENTER(device); \
        return processes(device, key, count, out); \
    }

#ifdef OLD_DRIVER
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, "processes")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, "graphics")
#else
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "processes")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
#endif

/* "Event Handling Methods". Events are numbered in the file: `events 2`, `event.2 0 79` (device, Xid). */
typedef struct {
    Device *device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
} EventData;
typedef struct { unsigned int devices; } EventSet;

EXPORT Return nvmlEventSetCreate(EventSet **out) {
    ENTER(NULL);
    *out = calloc(1, sizeof **out);
    return SUCCESS;
}

EXPORT Return nvmlEventSetFree(EventSet *set) {
    free(set);
    return SUCCESS;
}

/* "… if the GPU does not support any of the events": NOT_SUPPORTED. */
EXPORT Return nvmlDeviceRegisterEvents(Device *device, unsigned long long types, EventSet *set) {
    ENTER(device);
    if (!(types & 8)) return NOT_SUPPORTED;
    set->devices |= 1u << device->index;
    return SUCCESS;
}

/* "… GPU_IS_LOST if a GPU has fallen off the bus or is otherwise inaccessible" */
EXPORT Return nvmlEventSetWait_v2(EventSet *set, EventData *out, unsigned int timeout_ms) {
    unsigned int waited_ms = 0, index;
    unsigned long long code;
    char key[64], value[64];
    ENTER(NULL);
    for (; waited_ms < timeout_ms; waited_ms += nap_ms(), nap()) {
        for (index = 0; index < MAX_GPUS; index++)
            if (set->devices >> index & 1 && number(&devices[index], "lost", 0)) return GPU_IS_LOST;
        if (number(NULL, "events", 0) <= events_told) continue;
        snprintf(key, sizeof key, "event.%llu", ++events_told);
        if (!find(key, value, sizeof value) || sscanf(value, "%u %llu", &index, &code) != 2) continue;
        memset(out, 0, sizeof *out);
        out->device = &devices[index % MAX_GPUS];
        out->type = 8; /* nvmlEventTypeXidCriticalError */
        out->data = code;
        out->gpu_instance = out->compute_instance = ~0u;
        return SUCCESS;
    }
    return TIMEOUT;
}

/* For the test that holds these layouts against pynvml's. */
EXPORT size_t stub_size_of(const char *name) {
    if (!strcmp(name, "nvmlPciInfo_t")) return sizeof(PciInfo);
    if (!strcmp(name, "c_nvmlMemory_t")) return sizeof(Memory);
    if (!strcmp(name, "c_nvmlMemory_v2_t")) return sizeof(MemoryV2);
    if (!strcmp(name, "c_nvmlFieldValue_t")) return sizeof(FieldValue);
    if (!strcmp(name, "c_nvmlProcessInfo_v2_t")) return sizeof(Process);
    if (!strcmp(name, "c_nvmlEventData_t")) return sizeof(EventData);
    if (!strcmp(name, "c_nvmlEccSramErrorStatus_v1_t")) return sizeof(SramStatus);
    return 0;
}
