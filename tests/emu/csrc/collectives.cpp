// Each collective of ProcessGroupNCCL: its name in the recorder, and what gloo does for it.
#include "process_group.h"

#include "tensors.h"

#include <ATen/Functions.h>

#include <algorithm>

namespace emu {

using c10d::OpType;

namespace {

Tensors on_host(const Tensors& tensors) {
  Tensors result;
  for (const auto& each : tensors) {
    result.push_back(emu::on_host(each));
  }
  return result;
}

// gloo knows no average.
std::pair<c10d::ReduceOp, bool> without_average(const c10d::ReduceOp& op) {
  const bool is_average = op.op_ == c10d::ReduceOp::AVG;
  return {is_average ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op, is_average};
}

WireOp all_reduce_op(const at::Tensor& tensor, const c10d::ReduceOp& op, int size) {
  const auto [plain, is_average] = without_average(op);
  auto host = emu::on_host(tensor);
  return {
      [host, plain = plain](c10d::Backend& wire) {
        Tensors tensors{host};
        c10d::AllreduceOptions opts;
        opts.reduceOp = plain;
        return wire.allreduce(tensors, opts);
      },
      is_average ? [host, size] { host.div_(size); } : std::function<void()>()};
}

// Out of place: reduced in a copy, of which the root or the member takes its part.
WireOp reduced_copy_op(const at::Tensor& input, const c10d::ReduceOp& op, int size, std::function<void(at::Tensor)> take) {
  const auto [plain, is_average] = without_average(op);
  auto host = emu::on_host(input);
  auto copy = std::make_shared<at::Tensor>();
  return {
      [host, copy, plain = plain](c10d::Backend& wire) {
        *copy = host.contiguous().clone();
        Tensors tensors{*copy};
        c10d::AllreduceOptions opts;
        opts.reduceOp = plain;
        return wire.allreduce(tensors, opts);
      },
      [copy, is_average, size, take = std::move(take)] {
        take(is_average ? copy->div(size) : *copy);
      }};
}

WireOp broadcast_op(const at::Tensor& input, const at::Tensor& output, int root, bool is_root) {
  auto from = emu::on_host(input), to = emu::on_host(output);
  return {[from, to, root, is_root](c10d::Backend& wire) {
    if (is_root && from.data_ptr() != to.data_ptr()) {
      to.copy_(from);
    }
    Tensors tensors{to};
    c10d::BroadcastOptions opts;
    opts.rootRank = root;
    return wire.broadcast(tensors, opts);
  }};
}

WireOp all_gather_op(const at::Tensor& output, const at::Tensor& input) {
  auto from = emu::on_host(input), to = emu::on_host(output);
  return {[from, to](c10d::Backend& wire) mutable { return wire._allgather_base(to, from, {}); }};
}

bool are_even(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const auto& each) { return each.is_same_size(tensors[0]); });
}

} // namespace

ProcessGroup::W ProcessGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  TORCH_CHECK(tensors.size() == 1, "Expecting one tensor only but got multiple.");
  return collective(
      {OpType::ALLREDUCE, opts.asyncOp, "nccl:all_reduce"},
      tensors,
      tensors,
      {all_reduce_op(tensors[0], opts.reduceOp, size_)});
}

ProcessGroup::W ProcessGroup::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  std::vector<WireOp> ops;
  for (const auto& each : tensors) {
    ops.push_back(all_reduce_op(each, opts.reduceOp, size_));
  }
  return collective({OpType::COALESCED, opts.asyncOp, "nccl:allreduce_coalesced"}, tensors, tensors, std::move(ops));
}

ProcessGroup::W ProcessGroup::barrier(const c10d::BarrierOptions& opts) {
  auto tensor = at::zeros({1}, at::TensorOptions().device(c10::Device(c10::DeviceType::PrivateUse1, 0)));
  auto work = collective(
      {OpType::ALLREDUCE, opts.asyncOp, "nccl:all_reduce_barrier"},
      {tensor},
      {tensor},
      {all_reduce_op(tensor, c10d::ReduceOp::SUM, size_)});
  if (work == nullptr) {
    Device::get().current().synchronize();
  } else {
    static_cast<Work*>(work.get())->is_barrier = true;
  }
  return work;
}

ProcessGroup::W ProcessGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const int root = static_cast<int>(opts.rootRank);
  return collective(
      {OpType::BROADCAST, opts.asyncOp, "nccl:broadcast"},
      tensors,
      tensors,
      {broadcast_op(tensors[0], tensors[0], root, rank_ == root)});
}

ProcessGroup::W ProcessGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  auto host = emu::on_host(tensors[0]);
  const bool is_root = rank_ == opts.rootRank;
  auto take = [host, is_root](const at::Tensor& reduced) {
    if (is_root) {
      host.copy_(reduced);
    }
  };
  return collective(
      {OpType::REDUCE, opts.asyncOp, "nccl:reduce"},
      tensors,
      tensors,
      {reduced_copy_op(tensors[0], opts.reduceOp, size_, take)});
}

ProcessGroup::W ProcessGroup::allgather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  auto& into = outputs.back();
  auto& from = inputs.back();
  std::vector<WireOp> ops;
  for (int root = 0; root < size_; ++root) {
    ops.push_back(broadcast_op(root == rank_ ? from : into[root], into[root], root, root == rank_));
  }
  if (are_even(into)) {
    // The recorder shows the one tensor that NCCL gathers into.
    std::vector<int64_t> sizes{size_};
    sizes.insert(sizes.end(), from.sizes().begin(), from.sizes().end());
    auto flat = at::empty(sizes, from.options());
    return collective({OpType::ALLGATHER, opts.asyncOp, "nccl:all_gather"}, {from}, {flat}, std::move(ops));
  }
  startCoalescing();
  for (int root = 0; root < size_; ++root) {
    const auto& input = root == rank_ ? from : into[root];
    collective(
        {OpType::BROADCAST, opts.asyncOp, "nccl:_broadcast_oop"}, {input}, {into[root]}, {std::move(ops[root])});
  }
  return end_coalescing(OpType::ALLGATHER);
}

ProcessGroup::W ProcessGroup::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  return collective(
      {OpType::_ALLGATHER_BASE, opts.asyncOp, "nccl:_all_gather_base"},
      {input},
      {output},
      {all_gather_op(output, input)});
}

ProcessGroup::W ProcessGroup::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  std::vector<WireOp> ops;
  for (size_t index = 0; index < inputs.size(); ++index) {
    ops.push_back(all_gather_op(outputs[index], inputs[index]));
  }
  return collective(
      {OpType::COALESCED, opts.asyncOp, "nccl:all_gather_into_tensor_coalesced"}, inputs, outputs, std::move(ops));
}

ProcessGroup::W ProcessGroup::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) {
  auto& into = outputs.back();
  auto& from = inputs.back();
  std::vector<WireOp> ops;
  for (int root = 0; root < size_; ++root) {
    auto host = emu::on_host(into);
    ops.push_back(reduced_copy_op(from[root], opts.reduceOp, size_, [host, is_mine = root == rank_](at::Tensor reduced) {
      if (is_mine) {
        host.copy_(reduced.view_as(host));
      }
    }));
  }
  if (are_even(from)) {
    std::vector<int64_t> sizes{size_};
    sizes.insert(sizes.end(), into.sizes().begin(), into.sizes().end());
    auto flat = at::empty(sizes, into.options());
    return collective({OpType::REDUCE_SCATTER, opts.asyncOp, "nccl:reduce_scatter"}, {flat}, {into}, std::move(ops));
  }
  startCoalescing();
  for (int root = 0; root < size_; ++root) {
    const auto& output = root == rank_ ? into : from[root];
    collective({OpType::REDUCE, opts.asyncOp, "nccl:_reduce_oop"}, {from[root]}, {output}, {std::move(ops[root])});
  }
  return end_coalescing(OpType::REDUCE_SCATTER);
}

namespace {

WireOp reduce_scatter_op(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& op, int rank, int size) {
  auto host = emu::on_host(output);
  return reduced_copy_op(input, op, size, [host, rank, size](const at::Tensor& reduced) {
    host.copy_(reduced.view({size, -1})[rank].view_as(host));
  });
}

} // namespace

ProcessGroup::W ProcessGroup::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  return collective(
      {OpType::_REDUCE_SCATTER_BASE, opts.asyncOp, "nccl:_reduce_scatter_base"},
      {input},
      {output},
      {reduce_scatter_op(output, input, opts.reduceOp, rank_, size_)});
}

ProcessGroup::W ProcessGroup::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  std::vector<WireOp> ops;
  for (size_t index = 0; index < inputs.size(); ++index) {
    ops.push_back(reduce_scatter_op(outputs[index], inputs[index], opts.reduceOp, rank_, size_));
  }
  return collective(
      {OpType::COALESCED, opts.asyncOp, "nccl:reduce_scatter_tensor_coalesced"}, inputs, outputs, std::move(ops));
}

ProcessGroup::W ProcessGroup::gather(
    std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  auto into = outputs.empty() ? Tensors{} : outputs.back();
  WireOp op{[into = on_host(into), from = on_host(inputs), root = opts.rootRank](c10d::Backend& wire) {
    std::vector<Tensors> outputs;
    if (!into.empty()) {
      outputs.push_back(into);
    }
    auto inputs = from;
    c10d::GatherOptions opts;
    opts.rootRank = root;
    return wire.gather(outputs, inputs, opts);
  }};
  return collective({OpType::GATHER, opts.asyncOp, "nccl:gather"}, inputs, into, {op});
}

ProcessGroup::W ProcessGroup::scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  auto from = inputs.empty() ? Tensors{} : inputs.back();
  WireOp op{[into = on_host(outputs), from = on_host(from), root = opts.rootRank](c10d::Backend& wire) {
    std::vector<Tensors> inputs;
    if (!from.empty()) {
      inputs.push_back(from);
    }
    auto outputs = into;
    c10d::ScatterOptions opts;
    opts.rootRank = root;
    return wire.scatter(outputs, inputs, opts);
  }};
  return collective({OpType::SCATTER, opts.asyncOp, "nccl:scatter"}, outputs, from, {op});
}

ProcessGroup::W ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  WireOp op{[into = on_host(outputs), from = on_host(inputs), rank = rank_](c10d::Backend& wire) {
    std::vector<W> works;
    for (size_t peer = 0; peer < into.size(); ++peer) {
      Tensors out{into[peer]}, in{from[peer]};
      if (static_cast<int>(peer) == rank) {
        into[peer].copy_(from[peer]);
        continue;
      }
      works.push_back(wire.send(in, static_cast<int>(peer), 1));
      works.push_back(wire.recv(out, static_cast<int>(peer), 1));
    }
    for (const auto& each : works) {
      each->wait();
    }
    auto done = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    done->markCompleted(c10::IValue(into));
    return c10d::Work::create_from_future(done);
  }};
  return collective({OpType::ALLTOALL, opts.asyncOp, "nccl:all_to_all"}, inputs, outputs, {op});
}

ProcessGroup::W ProcessGroup::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& opts) {
  WireOp op{[into = emu::on_host(output), from = emu::on_host(input), output_splits, input_splits](
                c10d::Backend& wire) mutable {
    return wire.alltoall_base(into, from, output_splits, input_splits, {});
  }};
  return collective({OpType::ALLTOALL_BASE, opts.asyncOp, "nccl:all_to_all"}, {input}, {output}, {op});
}

ProcessGroup::W ProcessGroup::send(Tensors& tensors, int peer, int) {
  return point_to_point(tensors.at(0), peer, true);
}

ProcessGroup::W ProcessGroup::recv(Tensors& tensors, int peer, int) {
  return point_to_point(tensors.at(0), peer, false);
}

} // namespace emu
