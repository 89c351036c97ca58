// The watchdog of each group, and the monitor that watches it: what ProcessGroupNCCL does, and says, where work hangs.
#include "process_group.h"

#include "words.h"

#include <Python.h>

#include <c10/util/thread_name.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <future>

namespace emu {

namespace {

constexpr Millis WATCHDOG_SLEEP(100);
constexpr auto DUMP_KEY = "exception_dump";
constexpr int SKIP_CLEAN_UP = 3, CLEAN_UP_ONLY = 2, NO_HANDLING = 0;

std::atomic<bool> should_dump{false}; // Of all groups of this process, as there.

long number(const char* name, int unset) {
  return c10d::getCvarInt({name}, unset);
}

bool flag(const char* name, bool unset) {
  return c10d::getCvarBool({name}, unset);
}

// The recorder's stack of an operation needs the GIL, which whoever hangs may hold.
std::string stack_of(const Issued& issued) {
  auto entry = Recorder::get()->getEntry(issued.trace.id, issued.trace.reset_epoch);
  if (!entry) {
    return "";
  }
  auto told = std::make_shared<std::promise<std::string>>();
  auto future = told->get_future();
  std::thread([entry = std::move(*entry), told]() mutable { told->set_value(entry.getTraceback()); }).detach();
  return future.wait_for(std::chrono::seconds(8)) == std::future_status::ready ? future.get() : "";
}

// A named pipe into which anybody writes to have the recorder dumped.
class DumpPipe {
 public:
  explicit DumpPipe(int rank) {
    const auto stem = c10d::getCvarString({"TORCH_NCCL_DEBUG_INFO_PIPE_FILE"}, "");
    if (!stem.empty()) {
      const auto path = c10::str(stem, rank, ".pipe");
      unlink(path.c_str());
      TORCH_CHECK(mkfifo(path.c_str(), 0666) == 0, "Error creating named pipe ", path);
      fd_ = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    }
  }
  DumpPipe(const DumpPipe&) = delete;
  ~DumpPipe() {
    if (fd_ != -1) {
      close(fd_);
    }
  }
  bool is_asked() const {
    char buffer[128];
    return fd_ != -1 && read(fd_, buffer, sizeof(buffer)) > 0;
  }

 private:
  int fd_ = -1;
};

} // namespace

struct ProcessGroup::Watch {
  std::mutex mutex;
  std::condition_variable woken;
  std::list<std::shared_ptr<Issued>> pending;
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> heartbeat{1};
  std::atomic<long> last_change_ms{0};
  std::mutex monitor_mutex;
  std::condition_variable monitor_woken;
  std::thread watchdog, monitor;

  void note_change() {
    last_change_ms = std::chrono::duration_cast<Millis>(Clock::now().time_since_epoch()).count();
  }
};

// The watchdog ------------------------------------------------------------------------------------------------------

std::string ProcessGroup::prefix() const {
  const bool has_desc = !pg_desc_.empty() && pg_desc_ != "undefined";
  return c10::str(
      "[PG ID ", local_id_, " PG GUID ", pg_uid_, has_desc ? "(" + pg_desc_ + ")" : "", " Rank ", rank_, "] ");
}

int ProcessGroup::global_rank() const {
  static const int first = rank_; // The first group made is the default one.
  return first;
}

void ProcessGroup::start_watch() {
  global_rank();
  watch_ = std::make_shared<Watch>();
  if (!blocks_) {
    watch_->watchdog = std::thread([this] { watch(); });
  }
}

void ProcessGroup::stop_watch() {
  watch_->is_over = true;
  watch_->woken.notify_all();
  watch_->monitor_woken.notify_all();
  for (auto* thread : {&watch_->watchdog, &watch_->monitor}) {
    if (thread->joinable()) {
      thread->join();
    }
  }
}

void ProcessGroup::abort() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [key, comm] : comms_) {
    comm->is_aborted = true;
  }
}

void ProcessGroup::shutdown() {
  abort();
  stop_watch();
}

void ProcessGroup::follow(const std::shared_ptr<Issued>& issued) {
  if (blocks_ || watch_->is_over) {
    return;
  }
  std::lock_guard<std::mutex> lock(watch_->mutex);
  watch_->pending.push_back(issued);
  status_->lastEnqueuedSeq = static_cast<int64_t>(issued->seq);
  status_->lastEnqueuedWorkName = c10d::opTypeToString(issued->type);
  status_->lastEnqueuedNumelIn = issued->numel_in;
  status_->lastEnqueuedNumelOut = issued->numel_out;
  watch_->note_change();
}

// What escapes it ends the process by std::terminate, with these words.
void ProcessGroup::watch() {
  c10::setThreadName("pt_nccl_watchdg");
  try {
    watch_->monitor = std::thread([this] { monitor(); });
    watch_loop();
  } catch (const std::exception& error) {
    const auto message =
        c10::str(prefix(), "Process group watchdog thread terminated with exception: ", error.what());
    TELL(ERROR, 2221) << message;
    if (flag("TORCH_NCCL_RETHROW_CUDA_ERRORS", true)) {
      std::rethrow_exception(backend_error("run", 2227, message));
    }
  }
}

void ProcessGroup::watch_loop() {
  watch_->note_change();
  bool is_idle = false;
  while (!is_idle || !watch_->is_over) {
    std::unique_lock<std::mutex> lock(watch_->mutex);
    watch_->woken.wait_for(lock, WATCHDOG_SLEEP, [this] { return watch_->is_over.load(); });
    if (watch_->is_over) {
      return; // Communicators are aborted: whatever is left never ends.
    }
    watch_->heartbeat++;
    for (auto at = watch_->pending.begin(); at != watch_->pending.end();) {
      auto& issued = **at;
      issued.look_for_error();
      if (issued.exception() != nullptr) {
        error_ = c10d::ErrorType::COMM_ERROR;
        handle(issued);
      } else if (issued.has_timed_out()) {
        error_ = c10d::ErrorType::TIMEOUT;
        handle(issued);
      }
      if (status_->lastStartedSeq < static_cast<int64_t>(issued.seq) && issued.started && issued.started->query()) {
        status_->lastStartedSeq = static_cast<int64_t>(issued.seq);
        status_->lastStartedWorkName = c10d::opTypeToString(issued.type);
      }
      if (issued.exception() != nullptr || issued.is_over()) {
        status_->lastCompletedSeq = static_cast<int64_t>(issued.seq);
        status_->lastCompletedWorkName = c10d::opTypeToString(issued.type);
        Recorder::get()->retire_id(issued.trace.id, issued.trace.reset_epoch, true);
        at = watch_->pending.erase(at);
        watch_->note_change();
      } else {
        ++at;
      }
      watch_->heartbeat++;
    }
    is_idle = watch_->pending.empty();
  }
}

void ProcessGroup::handle(Issued& issued) {
  TELL(ERROR, 2395) << prefix() << " failure detected by watchdog at work sequence id: " << issued.seq
                    << " PG status: last enqueued work: " << status_->lastEnqueuedSeq
                    << ", last completed work: " << status_->lastCompletedSeq;
  const auto stack = stack_of(issued);
  if (stack.empty()) {
    TELL(ERROR, 804) << "Stack trace of the failed collective not found, potentially because FlightRecorder is"
                     << " disabled. You can enable it by setting TORCH_NCCL_TRACE_BUFFER_SIZE to a non-zero value.";
  } else {
    TELL(ERROR, 801) << "Stack trace of the failed collective: \n" << stack;
  }
  signal_dump();
  // So that every rank has time to dump before the first one ends.
  std::this_thread::sleep_for(Millis(4 * number("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", 15000)));
  const auto handling =
      c10d::getCvarInt({"TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"}, SKIP_CLEAN_UP);
  if (handling != NO_HANDLING && handling != SKIP_CLEAN_UP) {
    abort();
  }
  TELL(ERROR, 815) << issued.prefix() << "Some NCCL operations have failed or timed out. Due to the asynchronous nature"
                   << " of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.";
  if (handling != NO_HANDLING && handling != CLEAN_UP_ONLY) {
    TELL(ERROR, 829) << issued.prefix()
                     << "To avoid data inconsistency, we are taking the entire process down.";
    std::rethrow_exception(issued.exception());
  }
}

void ProcessGroup::signal_dump() {
  const int rank = global_rank();
  std::vector<uint8_t> told(sizeof(rank));
  std::memcpy(told.data(), &rank, sizeof(rank));
  try {
    global_store_->set(DUMP_KEY, told);
  } catch (const std::exception& error) {
    TELL(ERROR, 2720) << prefix() << "Failed to broadcast signal " << DUMP_KEY
                      << " through TCPStore. Error: " << error.what();
  }
  if (!should_dump.exchange(true)) {
    TELL(ERROR, 2732) << prefix() << "First PG on this rank to signal dumping.";
  }
}

// The monitor -------------------------------------------------------------------------------------------------------

void ProcessGroup::monitor() {
  c10::setThreadName("pt_nccl_heartbt");
  std::string reason;
  const auto message = monitor_loop(reason);
  if (message.empty()) {
    return;
  }
  TELL(ERROR, 1987) << message;
  if (flag("TORCH_NCCL_DUMP_ON_TIMEOUT", true) && local_id_ == 0) {
    const Millis limit(number("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", 15000));
    // The first try may wait for the GIL; the second leaves the stacks out.
    for (const bool with_stacks : {true, false}) {
      auto told = std::make_shared<std::promise<void>>();
      auto future = told->get_future();
      std::thread([this, with_stacks, told] {
        dump(with_stacks, false);
        told->set_value();
      }).detach();
      if (future.wait_for(limit) == std::future_status::ready) {
        break;
      }
    }
  }
  auto told = std::make_shared<std::promise<void>>();
  auto future = told->get_future();
  std::thread([told] {
    PyGILState_Release(PyGILState_Ensure());
    told->set_value();
  }).detach();
  if (future.wait_for(Millis(300)) != std::future_status::ready) {
    TELL(ERROR, 2080) << prefix() << "Could not acquire GIL within 300 ms on exit, possible GIL induced hang";
  }
  // The watchdog's own exception ends the process first, where it still runs.
  const auto heartbeat_s = number("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", 480);
  {
    std::unique_lock<std::mutex> lock(watch_->monitor_mutex);
    if (watch_->monitor_woken.wait_for(lock, std::chrono::seconds(heartbeat_s), [this] { return watch_->is_over.load(); })) {
      return;
    }
  }
  if (flag("TORCH_NCCL_ENABLE_MONITORING", true)) {
    TELL(FATAL, 1784) << prefix() << prefix()
                      << "Terminating the process after attempting to dump debug info, due to " << reason << ".";
  }
}

// Waits until something is wrong, and says what; empty where the group ends.
std::string ProcessGroup::monitor_loop(std::string& reason) {
  const auto heartbeat_s = number("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", 480);
  const auto check_ms = number("TORCH_NCCL_COORD_CHECK_MILSEC", 1000);
  const bool sees_dumps = flag("TORCH_NCCL_DUMP_ON_TIMEOUT", true) && local_id_ == 0;
  const auto told_by = [this](const std::string& whom) {
    return c10::str(
        prefix(), "Received a dump signal due to a collective timeout from ", whom,
        " and we will try our best to dump the debug info. Last enqueued NCCL work: ", status_->lastEnqueuedSeq,
        ", last completed NCCL work: ", status_->lastCompletedSeq,
        ".This is most likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks, the order"
        " of collectives is not same for all ranks or the scheduled collective, for some reason, didn't run."
        " Additionally, this can be caused by GIL deadlock or other reasons such as network errors or bugs in the"
        " communications library (e.g. NCCL), etc. ");
  };
  std::optional<DumpPipe> pipe;
  if (local_id_ == 0) {
    pipe.emplace(global_rank());
  }
  uint64_t last_heartbeat = 0;
  auto last_beat = Clock::now();
  while (true) {
    std::unique_lock<std::mutex> lock(watch_->monitor_mutex);
    const Millis sleep(sees_dumps ? check_ms : heartbeat_s * 1000);
    if (watch_->monitor_woken.wait_for(lock, sleep, [this] { return watch_->is_over.load(); })) {
      return "";
    }
    if (sees_dumps) {
      reason = "collective timeout or exception";
      if (should_dump) {
        return told_by("this local rank");
      }
      try {
        const long now_ms = std::chrono::duration_cast<Millis>(Clock::now().time_since_epoch()).count();
        if (now_ms - watch_->last_change_ms >= WATCHDOG_SLEEP.count() && global_store_->check({DUMP_KEY})) {
          TELL(ERROR, 1922) << prefix() << "Observed flight recorder dump signal from another rank via TCPStore.";
          should_dump = true;
          int rank = -1;
          const auto told = global_store_->get(DUMP_KEY);
          std::memcpy(&rank, told.data(), std::min(told.size(), sizeof(rank)));
          return told_by(c10::str(" rank ", rank));
        }
      } catch (const std::exception& error) {
        TELL(WARNING, 1896) << prefix() << "Failed to check the \"should dump\" flag on TCPStore, (maybe TCPStore"
                            << " server has shut down too early), with error: " << error.what();
      }
    }
    if (millis_since(last_beat) >= heartbeat_s * 1000) {
      last_beat = Clock::now();
      if (watch_->heartbeat == last_heartbeat) {
        should_dump = true;
        reason = "ProcessGroupNCCL watchdog hang";
        return c10::str(
            prefix(), "ProcessGroupNCCL's watchdog got stuck for ", heartbeat_s,
            " seconds without making progress in monitoring enqueued collectives. This typically indicates a NCCL/CUDA"
            " API (e.g., CudaEventDestroy) hang blocking the watchdog, and could be triggered by another thread holding"
            " the GIL inside a CUDA api (for example, CudaEventDestroy), or other deadlock-prone behaviors.If you"
            " suspect the watchdog is not actually stuck and a longer timeout would help, you can either increase the"
            " timeout (TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC) to a larger value or disable the heartbeat monitor"
            " (TORCH_NCCL_ENABLE_MONITORING=0).If either of aforementioned helps, feel free to file an issue to PyTorch"
            " about the short timeout or false positive abort; otherwise, please attempt to debug the hang. ");
      }
      last_heartbeat = watch_->heartbeat;
    }
    if (pipe && pipe->is_asked()) {
      std::thread([this] { dump(true, flag("TORCH_INCLUDE_ONLY_ACTIVE", false)); }).detach();
    }
  }
}

// What the recorder serves ------------------------------------------------------------------------------------------

bool ProcessGroup::dump(bool with_stacks, bool only_active) {
  if (!Recorder::get()->enabled_) {
    return false;
  }
  static std::mutex one_at_a_time;
  const auto text = dump_pickle(true, with_stacks, only_active);
  std::lock_guard<std::mutex> lock(one_at_a_time);
  c10d::DebugInfoWriter::getWriter(global_rank()).write(text);
  return true;
}

} // namespace emu
