// A process group that behaves as ProcessGroupNCCL of torch 2.13 does; gloo carries the numbers.
#pragma once

#include "device.h"

#include <nlohmann/json.hpp>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FlightRecorderDetail.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <list>
#include <map>
#include <thread>

namespace emu {

using c10::intrusive_ptr;
using Clock = std::chrono::steady_clock;
using Millis = std::chrono::milliseconds;
using Recorder = c10d::FlightRecorder<Event>;
using Tensors = std::vector<at::Tensor>;

// A communicator. Made by the first operation that needs it, for which the host waits, as for NCCL's.
struct Comm {
  intrusive_ptr<c10d::Backend> wire;
  Stream* stream = nullptr;
  Event last; // The end of the operation before.
  std::atomic<bool> is_aborted{false};

  // What NCCL would tell of itself (ncclCommGetAsyncError); empty: nothing.
  std::string error();
  void set_error(std::string text);

 private:
  std::mutex mutex_;
  std::string error_;
};

// A part of what a stream does for one operation: on gloo, with tensors of the host.
struct WireOp {
  std::function<intrusive_ptr<c10d::Work>(c10d::Backend&)> start;
  std::function<void()> finish = nullptr;
};

// What the watchdog follows of an operation; the handle that the script gets shares it.
struct Issued {
  std::string text() const; // As torch prints a WorkNCCL.
  bool is_over() const; // Throws the device's error.
  std::exception_ptr exception();
  void set_exception(std::exception_ptr what);
  // Sees whether NCCL has an error for it, and logs that.
  void look_for_error();
  bool has_timed_out(std::optional<Millis> timeout = std::nullopt);
  std::string prefix() const;

  c10d::OpType type;
  uint64_t seq;
  int rank;
  Millis timeout;
  Clock::time_point since = Clock::now();
  std::shared_ptr<Event> started; // With TORCH_NCCL_ENABLE_TIMING only.
  std::shared_ptr<Event> ended = std::make_shared<Event>();
  std::shared_ptr<Comm> comm;
  size_t numel_in = 0, numel_out = 0;
  int64_t signature = 0; // What must be equal on all members; 0: not compared.
  Recorder::TraceIdentifier trace;

 private:
  std::mutex mutex_;
  std::exception_ptr exception_;
};

class Work : public c10d::Work {
 public:
  Work(std::shared_ptr<Issued> issued, Tensors outputs, bool blocks);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  void synchronize() override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override;
  intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;

  bool is_barrier = false;

 private:
  std::shared_ptr<Issued> issued_;
  Tensors outputs_;
  intrusive_ptr<c10::ivalue::Future> future_;
  bool blocks_; // TORCH_NCCL_BLOCKING_WAIT
};

class ProcessGroup : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(bool is_high_priority_stream = false);
    bool is_high_priority_stream;
    intrusive_ptr<c10d::Backend> split_from;
    int64_t split_color = 0;
  };
  // Makes gloo's group of the members of a communicator; set by whoever loads this.
  using MakeWire = std::function<intrusive_ptr<c10d::Backend>(intrusive_ptr<c10d::Store>, int rank, int size)>;
  static MakeWire make_wire;

  ProcessGroup(intrusive_ptr<c10d::Store> store, int rank, int size, intrusive_ptr<Options> options);
  ~ProcessGroup() override;

  const std::string getBackendName() const override {
    return "nccl";
  }
  intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return options_;
  }
  bool supportsCoalescing() const override {
    return true;
  }
  void setTimeout(Millis timeout) override {
    options_->timeout = timeout;
  }
  void setSequenceNumberForGroup() override {} // NCCL's begin with 0.
  uint64_t getSequenceNumberForGroup() override {
    return collective_seq_;
  }
  c10d::ErrorType getError() override {
    return error_;
  }
  void abort() override;
  void shutdown() override;

  using W = intrusive_ptr<c10d::Work>;
  void startCoalescing() override;
  W endCoalescing() override;
  W allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  W allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  W broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  W reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  W allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  W _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  W allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  W reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) override;
  W _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  W reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override;
  W gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  W scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override;
  W alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  W alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& opts) override;
  W send(Tensors& tensors, int peer, int tag) override;
  W recv(Tensors& tensors, int peer, int tag) override;
  W barrier(const c10d::BarrierOptions& opts) override;

 private:
  struct Call {
    c10d::OpType type;
    bool is_async;
    std::string title;
  };
  W collective(const Call& call, Tensors inputs, Tensors outputs, std::vector<WireOp> ops);
  W point_to_point(at::Tensor& tensor, int peer, bool is_send);
  W end_coalescing(c10d::OpType type);
  std::shared_ptr<Comm> comm(const std::string& key, int rank, int size);
  std::shared_ptr<Issued> issue(c10d::OpType type, bool is_p2p, std::shared_ptr<Comm> comm);
  Recorder::TraceIdentifier record(
      const std::string& title, const Tensors& in, const Tensors& out, const Issued* issued, bool is_p2p);
  void enqueue(const std::shared_ptr<Issued>& issued, Stream& stream, std::vector<WireOp> ops, bool at_once);
  void follow(const std::shared_ptr<Issued>& issued);
  void coalesce(std::shared_ptr<Comm> comm, bool is_async, std::vector<WireOp> ops);
  std::vector<uint64_t> members() const;

  // The watchdog and its monitor, as threads of each group: watchdog.cpp.
  struct Watch;
  void start_watch();
  void stop_watch();
  void watch();
  void watch_loop();
  void handle(Issued& issued);
  void monitor();
  std::string monitor_loop(std::string& reason);
  bool dump(bool with_stacks, bool only_active);
  void signal_dump();
  std::string prefix() const;
  int global_rank() const;

  intrusive_ptr<c10d::Store> store_, global_store_;
  intrusive_ptr<Options> options_;
  const size_t local_id_; // How many groups this process has made before.
  std::shared_ptr<c10d::ProcessGroupStatus> status_ = std::make_shared<c10d::ProcessGroupStatus>();
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Comm>> comms_;
  uint64_t collective_seq_ = 0, p2p_seq_ = 0, op_id_ = 0;
  const bool blocks_, has_timing_;
  std::atomic<c10d::ErrorType> error_{c10d::ErrorType::SUCCESS};

  struct Batch {
    bool is_active = false, has_collective = false, has_p2p = false, is_async = false;
    std::shared_ptr<Comm> comm;
    std::vector<WireOp> ops;
  } batch_;

  std::shared_ptr<Watch> watch_;
};

// What ProcessGroupNCCL serves: the recorder of all groups of this process.
std::string dump_json(bool with_entries, bool only_active);
std::string dump_pickle(bool with_entries, bool with_stacks, bool only_active);

} // namespace emu
