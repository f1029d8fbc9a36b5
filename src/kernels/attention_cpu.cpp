// Attention on the CPU, per sequence and KV head, over blocks of query rows. The rows of all query heads of a
// group are packed on top of each other, so that the products are a few fat GEMMs: S = Q K^T, P = softmax(S),
// O = P V. Only the logarithm of the softmax sum is kept; backward recomputes P from it (Dao et al. 2022).
// Bound: FLOP, 2 * heads * head_dim * L^2 per sequence forward, 5/2 of it backward.
//
// Each task runs whole on one thread, GEMMs included, so results do not depend on the number of threads.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/attention.hpp"
#include "kernels/cpu.hpp"

namespace ranktune::kernels {
namespace {

// A matrix in memory that is not ours.
Tensor matrix(const float* data, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  return at::from_blob(const_cast<float*>(data), {rows, cols}, {stride, 1}, at::TensorOptions(at::kFloat));
}

struct Task {
  std::int64_t start;   // first token of the sequence
  std::int64_t length;  // of the sequence
  std::int64_t kv_head;
  std::int64_t block;  // of query rows; backward does all blocks of a sequence
};

std::int64_t block_rows(const AttentionShape& shape) {
  return std::clamp<std::int64_t>(256 / shape.group() / 16 * 16, 16, 128);
}

// Tasks, the largest first, so that threads end together.
std::vector<Task> make_tasks(const AttentionShape& shape, const std::vector<std::int32_t>& cu_seqlens,
                             bool by_block) {
  std::vector<Task> tasks;
  const std::int64_t rows = block_rows(shape);
  for (std::size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const std::int64_t length = cu_seqlens[s + 1] - cu_seqlens[s];
    if (length <= 0) continue;
    for (std::int64_t block = by_block ? (length - 1) / rows : 0; block >= 0; --block) {
      for (std::int64_t h = 0; h < shape.kv_heads; ++h) tasks.push_back({cu_seqlens[s], length, h, block});
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(), [by_block](const Task& a, const Task& b) {
    return by_block ? a.block > b.block : a.length > b.length;
  });
  return tasks;
}

// [heads of the group, rows, head_dim] from rows of all heads, times `factor`.
RT_VECTORISE void pack(const float* from, std::int64_t stride, const AttentionShape& shape, std::int64_t rows,
                       float factor, float* to) {
  const std::int64_t dim = shape.head_dim;
  for (std::int64_t h = 0; h < shape.group(); ++h) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* source = from + i * stride + h * dim;
      for (std::int64_t d = 0; d < dim; ++d) *to++ = source[d] * factor;
    }
  }
}

// The inverse of pack, row r times factors[r].
RT_VECTORISE void unpack(const float* from, const float* factors, std::int64_t stride,
                         const AttentionShape& shape, std::int64_t rows, float* to) {
  const std::int64_t dim = shape.head_dim;
  for (std::int64_t h = 0; h < shape.group(); ++h) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const float factor = factors[h * rows + i];
      float* target = to + i * stride + h * dim;
      for (std::int64_t d = 0; d < dim; ++d) target[d] = *from++ * factor;
    }
  }
}

// The columns of a row of scores that are seen; those before and behind them become zero.
struct Seen {
  std::int64_t begin, end;
};

// Of token i of its sequence, where the columns are the tokens from first_key on.
Seen seen(const AttentionShape& shape, std::int64_t i, std::int64_t first_key) {
  return {shape.first_key(i) - first_key, i + 1 - first_key};
}

void clear_unseen(float* row, Seen seen, std::int64_t width) {
  std::fill(row, row + seen.begin, 0.0F);
  std::fill(row + seen.end, row + width, 0.0F);
}

// Softmax numerators in place. Returns lse, sets 1 / sum.
RT_VECTORISE float softmax_row(float* row, Seen seen, std::int64_t width, float& inverse) {
  float* x = row + seen.begin;
  const std::int64_t valid = seen.end - seen.begin;
  float highest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : highest)
  for (std::int64_t i = 0; i < valid; ++i) highest = x[i] > highest ? x[i] : highest;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < valid; ++i) {
    x[i] = vector_exp(x[i] - highest);
    sum += x[i];
  }
  clear_unseen(row, seen, width);
  inverse = 1.0F / sum;
  return highest + std::log(sum);
}

// Divided by their own sum, since the rounding of lse would be one error of the whole row: what cancels
// between the columns, such as the part of a value that all tokens share, would then not cancel.
RT_VECTORISE void probabilities_row(float* row, float lse, Seen seen, std::int64_t width) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = seen.begin; i < seen.end; ++i) {
    row[i] = vector_exp(row[i] - lse);
    sum += row[i];
  }
  const float inverse = 1.0F / sum;
  for (std::int64_t i = seen.begin; i < seen.end; ++i) row[i] *= inverse;
  clear_unseen(row, seen, width);
}

// dS = P * (dP - delta), in the place of dP.
RT_VECTORISE void score_gradient_row(float* dp, const float* p, float delta, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) dp[i] = p[i] * (dp[i] - delta);
}

RT_VECTORISE float dot(const float* a, const float* b, std::int64_t width) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < width; ++i) sum += a[i] * b[i];
  return sum;
}

RT_VECTORISE void copy_row(const float* from, float* to, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) to[i] = from[i];
}

// Memory of one thread, grown as tasks need it.
class Scratch {
 public:
  float* floats(std::int64_t count) {
    if (static_cast<std::int64_t>(memory_.size()) < count) memory_.resize(static_cast<std::size_t>(count));
    return memory_.data();
  }

 private:
  std::vector<float> memory_;
};

struct Heads {
  const float* data;
  std::int64_t stride;
};

Heads heads_of(const Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), tensor.stride(0)};
}

class Forward {
 public:
  Forward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, Tensor& out,
          Tensor& lse)
      : shape_(shape),
        q_(heads_of(q)),
        k_(heads_of(k)),
        v_(heads_of(v)),
        out_(out.mutable_data_ptr<float>()),
        out_stride_(out.stride(0)),
        lse_(lse.mutable_data_ptr<float>()) {}

  void operator()(const Task& task, Scratch& scratch) const {
    const std::int64_t dim = shape_.head_dim;
    const std::int64_t first = task.block * block_rows(shape_);
    const std::int64_t rows = std::min(block_rows(shape_), task.length - first);
    const std::int64_t first_key = shape_.first_key(first);
    const std::int64_t keys = first + rows - first_key;
    const std::int64_t packed_rows = shape_.group() * rows;
    float* packed = scratch.floats(packed_rows * (2 * dim + keys + 1));
    float* product = packed + packed_rows * dim;
    float* inverse = product + packed_rows * dim;
    float* scores = inverse + packed_rows;
    const std::int64_t head = task.kv_head * shape_.group();
    const std::int64_t token = task.start + first;
    const std::int64_t key_token = task.start + first_key;

    pack(q_.data + token * q_.stride + head * dim, q_.stride, shape_, rows, static_cast<float>(shape_.scale),
         packed);
    Tensor p = matrix(scores, packed_rows, keys, keys);
    at::mm_out(p, matrix(packed, packed_rows, dim, dim),
               matrix(k_.data + key_token * k_.stride + task.kv_head * dim, keys, dim, k_.stride).t());
    for (std::int64_t h = 0; h < shape_.group(); ++h) {
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t r = h * rows + i;
        lse_[(head + h) * shape_.tokens + token + i] =
            softmax_row(scores + r * keys, seen(shape_, first + i, first_key), keys, inverse[r]);
      }
    }
    Tensor o = matrix(product, packed_rows, dim, dim);
    at::mm_out(o, p, matrix(v_.data + key_token * v_.stride + task.kv_head * dim, keys, dim, v_.stride));
    unpack(product, inverse, out_stride_, shape_, rows, out_ + token * out_stride_ + head * dim);
  }

 private:
  AttentionShape shape_;
  Heads q_, k_, v_;
  float* out_;
  std::int64_t out_stride_;
  float* lse_;
};

class Backward {
 public:
  Backward(const AttentionShape& shape, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
           const Tensor& lse, Tensor& dq, Tensor& dk, Tensor& dv)
      : shape_(shape),
        dout_(heads_of(dout)),
        q_(heads_of(q)),
        k_(heads_of(k)),
        v_(heads_of(v)),
        lse_(lse.const_data_ptr<float>()),
        dq_(dq.mutable_data_ptr<float>()),
        dk_(dk.mutable_data_ptr<float>()),
        dv_(dv.mutable_data_ptr<float>()),
        dq_stride_(dq.stride(0)),
        dk_stride_(dk.stride(0)),
        dv_stride_(dv.stride(0)) {}

  // The whole sequence for one KV head: its blocks of query rows add to the same dK and dV.
  void operator()(const Task& task, Scratch& scratch) const {
    const std::int64_t dim = shape_.head_dim;
    const std::int64_t most = shape_.group() * std::min(block_rows(shape_), task.length);
    float* memory = scratch.floats(2 * task.length * dim + most * (3 * dim + 2 * task.length + 1));
    float* dk = memory;
    float* dv = dk + task.length * dim;
    std::fill(dk, dv + task.length * dim, 0.0F);
    for (std::int64_t first = 0; first < task.length; first += block_rows(shape_)) {
      block(task, first, dk, dv, dv + task.length * dim);
    }
    for (std::int64_t i = 0; i < task.length; ++i) {
      const std::int64_t token = task.start + i;
      copy_row(dk + i * dim, dk_ + token * dk_stride_ + task.kv_head * dim, dim);
      copy_row(dv + i * dim, dv_ + token * dv_stride_ + task.kv_head * dim, dim);
    }
  }

 private:
  void block(const Task& task, std::int64_t first, float* dk_sum, float* dv_sum, float* memory) const {
    const std::int64_t dim = shape_.head_dim;
    const std::int64_t rows = std::min(block_rows(shape_), task.length - first);
    const std::int64_t first_key = shape_.first_key(first);
    const std::int64_t keys = first + rows - first_key;
    const std::int64_t packed_rows = shape_.group() * rows;
    const std::int64_t head = task.kv_head * shape_.group();
    const std::int64_t token = task.start + first;
    const std::int64_t key_token = task.start + first_key;
    float* queries = memory;
    float* douts = queries + packed_rows * dim;
    float* dqueries = douts + packed_rows * dim;
    float* factors = dqueries + packed_rows * dim;
    float* scores = factors + packed_rows;
    float* dscores = scores + packed_rows * keys;

    // Q is scaled here once: S = (scale Q) K^T, dK = dS^T (scale Q), dQ = scale (dS K).
    const auto scale = static_cast<float>(shape_.scale);
    pack(q_.data + token * q_.stride + head * dim, q_.stride, shape_, rows, scale, queries);
    pack(dout_.data + token * dout_.stride + head * dim, dout_.stride, shape_, rows, 1.0F, douts);
    const Tensor q = matrix(queries, packed_rows, dim, dim);
    const Tensor d = matrix(douts, packed_rows, dim, dim);
    const Tensor k = matrix(k_.data + key_token * k_.stride + task.kv_head * dim, keys, dim, k_.stride);
    const Tensor v = matrix(v_.data + key_token * v_.stride + task.kv_head * dim, keys, dim, v_.stride);
    Tensor p = matrix(scores, packed_rows, keys, keys);
    Tensor ds = matrix(dscores, packed_rows, keys, keys);
    at::mm_out(p, q, k.t());
    at::mm_out(ds, d, v.t());
    for (std::int64_t h = 0; h < shape_.group(); ++h) {
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int64_t r = h * rows + i;
        probabilities_row(scores + r * keys, lse_[(head + h) * shape_.tokens + token + i],
                          seen(shape_, first + i, first_key), keys);
        const float delta = dot(scores + r * keys, dscores + r * keys, keys);
        score_gradient_row(dscores + r * keys, scores + r * keys, delta, keys);
      }
    }
    Tensor dv = matrix(dv_sum + first_key * dim, keys, dim, dim);
    at::addmm_out(dv, dv, p.t(), d);
    Tensor dk = matrix(dk_sum + first_key * dim, keys, dim, dim);
    at::addmm_out(dk, dk, ds.t(), q);
    Tensor dq = matrix(dqueries, packed_rows, dim, dim);
    at::mm_out(dq, ds, k);
    std::fill_n(factors, packed_rows, scale);
    unpack(dqueries, factors, dq_stride_, shape_, rows, dq_ + token * dq_stride_ + head * dim);
  }

  AttentionShape shape_;
  Heads dout_, q_, k_, v_;
  const float* lse_;
  float* dq_;
  float* dk_;
  float* dv_;
  std::int64_t dq_stride_, dk_stride_, dv_stride_;
};

template <class Body>
void run(const std::vector<Task>& tasks, const Body& body) {
  for_each_task<Scratch>(static_cast<std::int64_t>(tasks.size()), [&](std::int64_t i, Scratch& scratch) {
    // The dispatcher's settings are per thread: no autograd in the workers either.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    body(tasks[static_cast<std::size_t>(i)], scratch);
  });
}

}  // namespace

void attention_forward_cpu(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                           const Sequences& sequences, Tensor& out, Tensor& lse) {
  run(make_tasks(shape, *sequences.host, true), Forward(shape, q, k, v, out, lse));
}

void attention_backward_cpu(const AttentionShape& shape, const Tensor& dout, const Tensor& q, const Tensor& k,
                            const Tensor& v, const Tensor& lse, const Sequences& sequences, Tensor& dq,
                            Tensor& dk, Tensor& dv) {
  run(make_tasks(shape, *sequences.host, false), Backward(shape, dout, q, k, v, lse, dq, dk, dv));
}

}  // namespace ranktune::kernels
