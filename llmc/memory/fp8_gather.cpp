#include "llmc/memory/fp8_gather.h"

#include <algorithm>
#include <cstring>

#include "llmc/base/error.h"

Fp8Gather::Fp8Gather(MemoryPlan& plan, const Fp8Settings& settings, const LlamaConfig& config,
                     const TensorLayout& layout, const Sharding& sharding, ScaleStore& scales, int slots,
                     Stream& communication)
    : settings_(settings),
      config_(config),
      layout_(layout),
      sharding_(sharding),
      scales_(scales),
      communication_(communication),
      norm_stride_((size_t(config.C) + TensorLayout::kAlignment - 1) / TensorLayout::kAlignment *
                   TensorLayout::kAlignment),
      slots_(size_t(slots)),
      quantized_(size_t(config.L), false) {
  const int any_block = layout.block_unit(0);
  for (Slot& slot : slots_) {
    slot.planned_bytes = plan.add<uint8_t>(Segment::symmetric, "gathered", "FP8 weights of a block",
                                           layout.units[size_t(any_block)].size);
    slot.planned_norms = plan.add<bf16>(Segment::device, "gathered", "norms of a block", 2 * norm_stride_);
  }
  if (sharding.stage == 3)
    planned_own_ = plan.add<uint8_t>(Segment::symmetric, "weights", "FP8 weights of blocks, a part",
                                     size_t(config.L) * layout.part_size(any_block));
  planned_amax_ = plan.add<float>(Segment::symmetric, "FP8 scales", "largest weights", size_t(config.L * kProducts));
  for (int rank = 0; rank < sharding.degree(); ++rank) {
    size_t count = 0;
    for_norm_pieces(0, rank, [&](const Piece& piece, size_t) { count += piece.count; });
    packed_norms_ = std::max(packed_norms_, count);
  }
  packed_norms_ = (packed_norms_ + TensorLayout::kAlignment - 1) / TensorLayout::kAlignment * TensorLayout::kAlignment;
  planned_packed_ =
      plan.add<bf16>(Segment::symmetric, "gathered", "norms on their way", packed_norms_ * size_t(sharding.degree()));
}

void Fp8Gather::bind(const Arena& arena) {
  for (Slot& slot : slots_) slot.bytes = arena[slot.planned_bytes], slot.norms = arena[slot.planned_norms];
  if (sharding_.stage == 3) own_ = arena[planned_own_];
  amax_ = arena[planned_amax_];
  packed_ = arena[planned_packed_];
  // What is not quantized travels too: norms' places and padding; and the largest numbers of products that are not.
  for (const Slot& slot : slots_) {
    clear(communication_, slot.bytes, slot.planned_bytes.count);
    clear(communication_, slot.norms, slot.planned_norms.count);
  }
  if (own_) clear(communication_, own_, planned_own_.count);
  clear(communication_, packed_, planned_packed_.count);
  clear(communication_, amax_, planned_amax_.count);
}

// Where a rank's part lies before it is gathered: in stages 1 and 2, which keep whole blocks, in its place there.
uint8_t* Fp8Gather::own_bytes(int layer) const {
  const int unit = layout_.block_unit(layer);
  return own_ ? own_ + size_t(layer) * layout_.part_size(unit) : slot(layer).bytes + sharding_.part(layout_, unit);
}

SharedScale Fp8Gather::shared(int layer, Product product) const {
  const int number = fp8_number(layer, product, Role::weight);
  const ScaleWords words = scales_.weight_words();
  SharedScale s;
  s.amax = amax_ + layer * kProducts + int(product);
  if (words.scale) s.scale = words.scale + number;
  if (words.seen) s.seen = words.seen + number;
  if (words.statistics) s.statistics = words.statistics + number;
  s.power_of_two = settings_.power_of_two;
  s.not_finite = scales_.weights_not_finite();
  s.number = not_finite_word(number);
  return s;
}

namespace {

// Calls f with each stretch of a product in elements first .. first+count-1 of a block, where it begins among these and
// how long it is. Tensors of one product lie one behind the other, and only the first is sure to begin aligned.
template <class F>
void for_product_stretches(const TensorLayout& layout, int layer, size_t first, size_t count, F&& f) {
  const std::vector<Piece> pieces = layout.pieces(layout.block_unit(layer), first, count);
  for (const Product product : kEachProduct) {
    size_t begin = 0, end = 0;
    for (const Piece& piece : pieces) {
      if (strcmp(piece.tensor->row->product, product_name(product)) != 0) continue;
      if (end == 0) begin = piece.at;
      end = piece.at + piece.count;
    }
    if (end > begin) f(product, begin, end - begin);
  }
}

}  // namespace

template <class F>
void Fp8Gather::for_norm_pieces(int layer, int rank, F&& f) const {
  const int unit = layout_.block_unit(layer);
  const size_t size = layout_.part_size(unit);
  size_t packed = 0;
  for (const Piece& piece : layout_.pieces(unit, size_t(rank) * size, size)) {
    if (piece.tensor->row->fp8) continue;
    f(piece, packed);
    packed += piece.count;
  }
}

void Fp8Gather::find_amax(int layer, const bf16* own) {
  const int unit = layout_.block_unit(layer);
  for_product_stretches(layout_, layer, sharding_.part(layout_, unit), layout_.part_size(unit),
                        [&](Product product, size_t at, size_t count) {
                          largest_magnitude(communication_, amax_ + layer * kProducts + int(product), own + at, count);
                        });
}

void Fp8Gather::compare(float* amax, size_t count) { sharding_.gather.all_reduce_max(communication_, amax, count); }

void Fp8Gather::quantize(int layer, const bf16* own) {
  const int unit = layout_.block_unit(layer);
  for_product_stretches(layout_, layer, sharding_.part(layout_, unit), layout_.part_size(unit),
                        [&](Product product, size_t at, size_t count) {
                          quantize_flat(communication_, own_bytes(layer) + at, own + at, count, shared(layer, product));
                        });
  quantized_[size_t(layer)] = true;
}

void Fp8Gather::gather(int layer, const bf16* own) {
  if (!quantized_[size_t(layer)]) {
    float* amax = amax_ + layer * kProducts;
    if (!scales_.weight_words().scale) {
      clear(communication_, amax, kProducts);
      find_amax(layer, own);
      compare(amax, kProducts);
    }
    quantize(layer, own);
  }
  sharding_.gather.all_gather(communication_, slot(layer).bytes, own_bytes(layer),
                              layout_.part_size(layout_.block_unit(layer)));
  gather_norms(layer, own);
}

void Fp8Gather::gather_norms(int layer, const bf16* own) {
  bf16* packed = packed_ + size_t(sharding_.rank()) * packed_norms_;
  for_norm_pieces(layer, sharding_.rank(), [&](const Piece& piece, size_t at) {
    copy(communication_, packed + at, own + piece.at, piece.count);
  });
  sharding_.gather.all_gather(communication_, packed_, packed, packed_norms_ * sizeof(bf16));
  for (int rank = 0; rank < sharding_.degree(); ++rank)
    for_norm_pieces(layer, rank, [&](const Piece& piece, size_t at) {
      const bool first = strcmp(piece.tensor->row->product, "norm1") == 0;
      copy(communication_, slot(layer).norms + (first ? 0 : norm_stride_) + piece.first,
           packed_ + size_t(rank) * packed_norms_ + at, piece.count);
    });
}

void Fp8Gather::arrange(Stream& stream, int layer, QuantizedWeights& weights) const {
  for (const Product product : kEachProduct) {
    const size_t offset = layout_.offset(layout_.block_unit(layer), product_name(product));
    weights.take(stream, layer, product, slot(layer).bytes + offset, shared(layer, product));
  }
}
