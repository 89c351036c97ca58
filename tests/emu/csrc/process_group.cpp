// Operations: numbers, records and events as ProcessGroupNCCL makes them; what the stream does is gloo's.
#include "process_group.h"

#include "tensors.h"
#include "words.h"

#include <ATen/Functions.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <numeric>

namespace c10d {

template <>
float getDurationFromEvent<emu::Event>(emu::Event& start, emu::Event& end) {
  return static_cast<float>(1000 * (end.reached_s() - start.reached_s()));
}

} // namespace c10d

namespace emu {

using c10d::OpType;

ProcessGroup::MakeWire ProcessGroup::make_wire;

namespace {

std::atomic<size_t> groups_made{0};

size_t numel(const Tensors& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), size_t{0}, [](size_t sum, const auto& each) {
    return sum + (each.defined() ? each.numel() : 0);
  });
}

// Whether all members are about to do the same: NCCL's kernels of other sizes or kinds wait for each other for good.
bool is_agreed(Comm& comm, int64_t signature) {
  Tensors mine{at::full({1}, signature, at::kLong)};
  std::vector<Tensors> all{{}};
  for (int member = 0; member < comm.wire->getSize(); ++member) {
    all[0].push_back(at::zeros({1}, at::kLong));
  }
  comm.wire->allgather(all, mine, {})->wait();
  return std::all_of(all[0].begin(), all[0].end(), [&](const at::Tensor& each) { return each.equal(mine[0]); });
}

// The operation, and how much of it, where that must be equal; 0: nothing that could be compared.
int64_t signature_of(OpType type, const Tensors& inputs) {
  const bool is_sized = type == OpType::ALLREDUCE || type == OpType::BROADCAST || type == OpType::REDUCE ||
      type == OpType::_ALLGATHER_BASE || type == OpType::_REDUCE_SCATTER_BASE;
  return static_cast<int64_t>(type) + 1 + (is_sized ? 1000 * static_cast<int64_t>(numel(inputs)) : 0);
}

// What a communication kernel does: it ends when all have come, or never.
void carry_out(Comm& comm, const std::vector<WireOp>& ops, bool at_once, int64_t signature) {
  auto released = [&comm] { return comm.is_aborted.load(); };
  if (Device::get().link_is_dead) {
    Device::hang(released);
  }
  try {
    if (signature != 0 && Device::get().compares && !is_agreed(comm, signature)) {
      Device::hang(released);
    }
    std::vector<intrusive_ptr<c10d::Work>> works;
    for (const auto& op : ops) {
      works.push_back(op.start(*comm.wire));
      if (!at_once) {
        works.back()->wait();
      }
    }
    for (size_t index = 0; index < ops.size(); ++index) {
      if (at_once) {
        works[index]->wait();
      }
      if (ops[index].finish) {
        ops[index].finish();
      }
    }
  } catch (const std::exception& error) {
    const std::string what = error.what();
    if (std::getenv("EMU_DEBUG") != nullptr) {
      std::fprintf(stderr, "emu: what gloo says, and NCCL would not: %s\n", what.c_str());
    }
    // A peer that is gone, NCCL notices. Of other sizes or operations it knows nothing: its kernels wait on.
    if (what.find("onnection") != std::string::npos) {
      comm.set_error(
          "NCCL error: remote process exited or there was a network error, NCCL version 2.29.7\n"
          "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
          "Last error:\nsocketProgress: Connection closed by remote peer localhost<41234>");
    }
    Device::hang(released);
  }
}

} // namespace

std::string Comm::error() {
  std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

void Comm::set_error(std::string text) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_.empty()) {
    error_ = std::move(text);
  }
}

// Work ------------------------------------------------------------------------------------------------------------

Work::Work(std::shared_ptr<Issued> issued, Tensors outputs, bool blocks)
    : c10d::Work(issued->rank, issued->type), issued_(std::move(issued)), outputs_(std::move(outputs)), blocks_(blocks) {
  future_ = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{THE_DEVICE});
  // Complete at once: whoever waits for it makes its stream wait for this one.
  c10::StreamGuard guard(c10::Stream(c10::Stream::UNSAFE, THE_DEVICE, issued_->comm->stream->id));
  future_->markCompleted(c10::IValue(outputs_));
}

bool Work::isCompleted() {
  issued_->look_for_error();
  return issued_->exception() != nullptr || issued_->is_over();
}

bool Work::isSuccess() const {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "WorkNCCL::isSuccess() is deprecated");
}

std::exception_ptr Work::exception() const {
  return issued_->exception();
}

void Work::synchronize() {
  issued_->ended->block(Device::get().current());
}

bool Work::wait(std::chrono::milliseconds timeout) {
  synchronize();
  if (blocks_ || timeout != kNoTimeout) {
    while (!isCompleted()) {
      if (issued_->has_timed_out(timeout == kNoTimeout ? std::nullopt : std::optional(timeout))) {
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } else if (is_barrier && !isCompleted()) {
    Device::get().current().synchronize();
  }
  if (const auto what = issued_->exception()) {
    issued_->comm->is_aborted = true;
    std::rethrow_exception(what);
  }
  return true;
}

std::vector<at::Tensor> Work::result() {
  return outputs_;
}

intrusive_ptr<c10::ivalue::Future> Work::getFuture() {
  return future_;
}

uint64_t Work::getSequencenumber() const {
  return issued_->seq;
}

// Issued ------------------------------------------------------------------------------------------------------------

std::string Issued::text() const {
  return c10::str(
      "WorkNCCL(SeqNum=", seq, ", OpType=", c10d::opTypeToString(type), ", NumelIn=", numel_in, ", NumelOut=",
      numel_out, ", Timeout(ms)=", timeout.count(), ")");
}

std::string Issued::prefix() const {
  return c10::str("[Rank ", rank, "] ");
}

bool Issued::is_over() const {
  return ended->query();
}

std::exception_ptr Issued::exception() {
  std::lock_guard<std::mutex> lock(mutex_);
  return exception_;
}

void Issued::set_exception(std::exception_ptr what) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (exception_ == nullptr) {
    exception_ = std::move(what);
  }
}

void Issued::look_for_error() {
  const auto error = exception() ? "" : comm->error();
  if (!error.empty()) {
    TELL(ERROR, 714) << prefix() << "Collective " << text() << " raised the following async exception: " << error;
    set_exception(backend_error("checkForNCCLErrorsInternal", 2960, error));
  }
}

bool Issued::has_timed_out(std::optional<Millis> limit) {
  const auto elapsed = millis_since(since);
  if (elapsed < limit.value_or(timeout).count()) {
    return false;
  }
  const auto message = c10::str(
      prefix(), "Watchdog caught collective operation timeout: ", text(), " ran for ", elapsed,
      " milliseconds before timing out.");
  TELL(ERROR, 757) << message;
  set_exception(backend_error("checkTimeout", 760, message));
  return true;
}

// Issuing ---------------------------------------------------------------------------------------------------------

ProcessGroup::Options::Options(bool is_high_priority_stream)
    : c10d::Backend::Options("nccl", Millis(10 * 60 * 1000)), is_high_priority_stream(is_high_priority_stream) {}

ProcessGroup::ProcessGroup(intrusive_ptr<c10d::Store> store, int rank, int size, intrusive_ptr<Options> options)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      local_id_(groups_made++),
      blocks_(c10d::getCvarBool({"TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"}, false)),
      has_timing_(c10d::getCvarBool({"TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING"}, false)) {
  setGroupUid(options_->group_name);
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store_.get());
  global_store_ = prefixed != nullptr ? prefixed->getUnderlyingNonPrefixStore() : store_;
  start_watch();
  init();
}

ProcessGroup::~ProcessGroup() {
  shutdown();
}

std::vector<uint64_t> ProcessGroup::members() const {
  if (!options_->global_ranks_in_group.empty()) {
    return options_->global_ranks_in_group;
  }
  std::vector<uint64_t> all(size_);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::shared_ptr<Comm> ProcessGroup::comm(const std::string& key, int rank, int size) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = comms_.find(key); found != comms_.end()) {
      return found->second;
    }
  }
  // The unique id, then ncclCommInitRank: the first waits for member 0, the second for all.
  if (rank == 0) {
    store_->set(key, std::vector<uint8_t>(128));
  } else {
    try {
      store_->get(key);
    } catch (const std::exception& error) {
      C10_THROW_ERROR(
          DistBackendError,
          c10::str(
              "[", rank_, "] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value",
              " store by key '", key, "', but store->get('", key, "') got error: ", error.what()));
    }
  }
  if (const double seconds = Device::get().comm_s; seconds > 0) {
    const double end_s = now_s() + seconds;
    Device::hang([end_s] { return now_s() >= end_s; });
  }
  auto made = std::make_shared<Comm>();
  made->wire = make_wire(c10::make_intrusive<c10d::PrefixStore>("wire/" + key, store_), rank, size);
  made->stream = &Device::get().new_stream();
  Recorder::get()->record_pg_ranks({pg_uid_, pg_desc_}, members());
  Recorder::get()->record_accelerator_version("2.29.7");
  std::lock_guard<std::mutex> lock(mutex_);
  return comms_.emplace(key, std::move(made)).first->second;
}

std::shared_ptr<Issued> ProcessGroup::issue(OpType type, bool is_p2p, std::shared_ptr<Comm> comm) {
  auto issued = std::make_shared<Issued>();
  issued->type = type;
  issued->seq = is_p2p ? p2p_seq_ : collective_seq_;
  issued->rank = rank_;
  issued->timeout = options_->timeout;
  issued->comm = std::move(comm);
  if (has_timing_) {
    issued->started = std::make_shared<Event>();
  }
  return issued;
}

// issued: none for what is part of a batch, whose entries have no events, so that their state never changes.
Recorder::TraceIdentifier ProcessGroup::record(
    const std::string& title, const Tensors& in, const Tensors& out, const Issued* issued, bool is_p2p) {
  // As ProcessGroupNCCL: what is captured has a number, and neither recorder nor watchdog hears of its replays.
  if (Device::get().is_capturing()) {
    return {};
  }
  return Recorder::get()->recordWithResetEnabled(
      local_id_,
      {pg_uid_, pg_desc_},
      collective_seq_,
      p2p_seq_,
      op_id_,
      title,
      in,
      out,
      issued != nullptr ? issued->started.get() : nullptr,
      issued != nullptr ? issued->ended.get() : nullptr,
      options_->timeout,
      status_,
      is_p2p);
}

void ProcessGroup::coalesce(std::shared_ptr<Comm> comm, bool is_async, std::vector<WireOp> ops) {
  batch_.comm = std::move(comm);
  batch_.is_async = is_async;
  std::move(ops.begin(), ops.end(), std::back_inserter(batch_.ops));
}

ProcessGroup::W ProcessGroup::collective(
    const Call& call, Tensors inputs, Tensors outputs, std::vector<WireOp> ops) {
  Device::get().check();
  if (!batch_.is_active || !batch_.has_collective) {
    collective_seq_++; // Of a batch, once.
  }
  op_id_++;
  auto comm = this->comm("0", rank_, size_);
  if (batch_.is_active) {
    batch_.has_collective = true;
    record(call.title, inputs, outputs, nullptr, false);
    coalesce(comm, call.is_async, std::move(ops));
    return nullptr;
  }
  auto issued = issue(call.type, false, comm);
  issued->trace = record(call.title, inputs, outputs, issued.get(), false);
  issued->numel_in = numel(inputs);
  issued->numel_out = numel(outputs);
  issued->signature = signature_of(call.type, inputs);
  enqueue(issued, call.is_async ? *comm->stream : Device::get().current(), std::move(ops), false);
  return call.is_async ? c10::make_intrusive<Work>(issued, outputs, blocks_) : nullptr;
}

ProcessGroup::W ProcessGroup::point_to_point(at::Tensor& tensor, int peer, bool is_send) {
  Device::get().check();
  // Batches use the group's communicator, others one of two members for each pair.
  if (!batch_.is_active || !batch_.has_p2p) {
    p2p_seq_++;
  }
  op_id_++;
  const auto low = std::min(rank_, peer), high = std::max(rank_, peer);
  auto comm = batch_.is_active ? this->comm("0", rank_, size_)
                               : this->comm(c10::str(low, ":", high), rank_ == low ? 0 : 1, 2);
  const int at = batch_.is_active ? peer : rank_ == low ? 1 : 0;
  auto host = emu::on_host(tensor);
  WireOp op{[host, at, is_send](c10d::Backend& wire) {
    Tensors tensors{host};
    return is_send ? wire.send(tensors, at, 0) : wire.recv(tensors, at, 0);
  }};
  const auto title = c10::str("nccl:", is_send ? "send " : "recv ", rank_, is_send ? "->" : "<-", peer);
  if (batch_.is_active) {
    batch_.has_p2p = true;
    record(title, {tensor}, {tensor}, nullptr, true);
    coalesce(comm, true, {op});
    return nullptr;
  }
  auto issued = issue(is_send ? OpType::SEND : OpType::RECV, true, comm);
  issued->trace = record(title, {tensor}, {tensor}, issued.get(), true);
  issued->numel_in = issued->numel_out = tensor.numel();
  enqueue(issued, *comm->stream, {op}, false);
  return c10::make_intrusive<Work>(issued, Tensors{tensor}, blocks_);
}

void ProcessGroup::startCoalescing() {
  batch_ = {};
  batch_.is_active = true;
}

ProcessGroup::W ProcessGroup::endCoalescing() {
  return end_coalescing(OpType::COALESCED);
}

ProcessGroup::W ProcessGroup::end_coalescing(OpType type) {
  auto batch = std::exchange(batch_, {});
  if (batch.comm == nullptr) {
    return nullptr;
  }
  // Its entry is of no point-to-point operation, and has the last collective's number.
  auto issued = issue(type, batch.has_p2p, batch.comm);
  const auto title = type == OpType::COALESCED ? "nccl:coalesced" : "nccl:" + c10d::opTypeToString(type) + "_coalesced";
  issued->trace = record(title, {}, {}, issued.get(), false);
  enqueue(issued, batch.is_async ? *batch.comm->stream : Device::get().current(), std::move(batch.ops), batch.has_p2p);
  return batch.is_async ? c10::make_intrusive<Work>(issued, Tensors{}, blocks_) : nullptr;
}

// at_once: all parts are started before the first is waited for, so that sends and receives meet in any order.
void ProcessGroup::enqueue(
    const std::shared_ptr<Issued>& issued, Stream& stream, std::vector<WireOp> ops, bool at_once) {
  if (&stream != &Device::get().current()) {
    Event ready; // What the tensors hold is computed in the current stream.
    ready.record(Device::get().current());
    ready.block(stream);
  }
  if (Device::get().is_capturing()) {
    stream.launch([comm = issued->comm, ops = std::move(ops), at_once, signature = issued->signature] {
    carry_out(*comm, ops, at_once, signature);
  });
    issued->ended->record(stream);
    return;
  }
  // As NCCL does: what was issued to one communicator runs in that order, in whichever streams.
  auto& last = issued->comm->last;
  last.block(stream);
  if (issued->started) {
    issued->started->record(stream);
  }
  stream.launch([comm = issued->comm, ops = std::move(ops), at_once, signature = issued->signature] {
    carry_out(*comm, ops, at_once, signature);
  });
  last.record(stream);
  issued->ended->record(stream);
  if (blocks_) {
    new auto(issued->ended); // No watchdog will retire it: the recorder borrows it for good.
  }
  follow(issued);
}

} // namespace emu
