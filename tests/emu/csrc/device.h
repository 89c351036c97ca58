// A device that behaves as a GPU does towards the host: streams that carry out in order, later, what was launched.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace emu {

using Op = std::function<void()>;

// What was launched while it was captured, to be launched again as one, with the same memory: a CUDA graph.
struct Graph {
  std::vector<Op> ops;
};

class Stream {
 public:
  explicit Stream(int64_t id);

  // Returns at once, as a kernel's launch does, unless the queue is full: then it spins until there is room.
  void launch(Op op);
  // Whether all that was launched has been carried out. Throws the device's error.
  bool query();
  // Spins, or sleeps where EMU_SPIN=0, until then. Throws the device's error.
  void synchronize();

  const int64_t id;

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Op> queue_;
  size_t pending_ = 0; // The one being carried out counts, too.
};

// As cudaEvent_t: recorded in a stream, done when the stream gets there. One that was never recorded is done.
class Event {
 public:
  void record(Stream& stream);
  void block(Stream& stream) const;
  // Throws the device's error, and never returns where queries were made to hang.
  bool query() const;
  void synchronize() const;
  // When the stream got there, in seconds of the steady clock; 0 before.
  double reached_s() const;

 private:
  struct Mark {
    std::atomic<bool> is_done{false};
    double at_s = 0;
  };
  std::shared_ptr<Mark> mark() const;

  mutable std::mutex mutex_;
  std::shared_ptr<Mark> mark_;
};

// Faults and settings. One device a process, as jobs have it.
struct Device {
  static Device& get();

  // Breaks it for good, as a CUDA context is after an error: streams stop, and every call throws this text.
  void fail(const std::string& text);
  // Throws the error that broke it, if there is one.
  void check();
  bool is_broken() const {
    return is_broken_;
  }
  // Stays until the process ends, or `released` says so: how a kernel that never ends looks.
  static void hang(const std::function<bool()>& released = nullptr);

  // Launches of all streams and threads go into a graph from now on, until end_capture has it.
  void begin_capture();
  std::shared_ptr<Graph> end_capture();
  bool is_capturing() const {
    return is_capturing_;
  }
  // Takes the operation where launches are captured: then it is not carried out.
  bool capture(Op& op);
  // One launch, in the current stream: what was captured, in the order in which it was launched.
  void replay(std::shared_ptr<Graph> graph);

  Stream& stream(int64_t id);
  Stream& new_stream();
  Stream& current();
  int64_t exchange_current(int64_t id);
  void synchronize();

  size_t queue_limit; // EMU_QUEUE: how many operations a stream takes before a launch blocks (CUDA: about 1024).
  bool spins; // EMU_SPIN=0: waits sleep (cudaDeviceScheduleBlockingSync).
  // EMU_COMPARE=1: ranks compare collectives before gloo meets what it does not expect, and ends the process for it.
  bool compares;
  std::atomic<bool> launch_holds_gil{false}; // A launch that blocks keeps the GIL, as many a custom kernel's does.
  std::atomic<bool> query_hangs{false}; // The driver's lock is held by another thread.
  std::atomic<bool> is_held{false}; // A kernel that was launched to hold its stream runs on for as long.
  std::atomic<bool> link_is_dead{false}; // Collectives that start from now on never complete.
  std::atomic<uint64_t> queries{0}; // How often anybody asked for an event's state.
  std::atomic<uint64_t> waits{0}; // How often the host waited for a stream, an event or the whole device.
  std::atomic<double> comm_s; // EMU_COMM_S: how long the host waits for each new communicator, all members there.

 private:
  Device();

  std::mutex mutex_;
  std::deque<std::unique_ptr<Stream>> streams_;
  std::atomic<bool> is_broken_{false}, is_capturing_{false};
  std::string error_;
  std::shared_ptr<Graph> graph_;
};

// Waits as the CUDA runtime does: at 100 % of a core.
void wait_for(const std::function<bool()>& is_over);

// The same asleep.
void sleep_until(const std::function<bool()>& is_over);

double now_s();

} // namespace emu
