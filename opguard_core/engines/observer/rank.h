// What operators do to what is known of storages, and undeclared writes. Mirrors the bookkeeping of rank.RankContext.
#pragma once

#include "observer.h"

namespace opguard {

// Look again at inputs that ought to be unchanged: training state always, everything for operators not torch's own.
inline void Observer::find_undeclared_writes(Call& call) {
  if (call.others.empty()) return;
  const bool foreign = call.plan.foreign;
  const int64_t seq = static_cast<int64_t>(call.entry->seq);
  const size_t num_rows = call.slots.rows.size();
  std::unordered_map<Code, size_t> before;
  std::vector<int64_t> written;
  for (size_t i = 0; i < num_rows; ++i) {
    const SlotRow& row = call.slots.rows[i];
    if (row.direction == directions::IN && row.status == statuses::PROBED) before[row.slot] = i;
    if (row.direction == directions::MUT) written.push_back(row.storage);
  }
  for (const Given& kept : call.others) {
    auto look_again = [&](Code path, const at::Tensor& tensor, Code told) {
      auto found = before.find(path);
      if (found == before.end()) return;
      const SlotRow& row = call.slots.rows[found->second];
      if (!foreign && row.name == EMPTY_TEXT) return;
      for (const int64_t storage : written) {
        if (storage == row.storage) return;
      }
      probes_->undeclared(call.slots, seq, told, tensor, found->second);
    };
    const TensorArgument& argument = *kept.argument;
    if (kept.value.isTensor()) {
      if (kept.value.toTensor().defined()) look_again(argument.path, kept.value.toTensor(), argument.undeclared_path);
    } else if (argument.items && kept.value.isList()) {
      size_t index = 0;
      for (const c10::IValue& item : kept.value.toListRef()) {
        if (item.isTensor() && item.toTensor().defined()) look_again(argument.items->of(index), item.toTensor(), argument.undeclared_items->of(index));
        ++index;
      }
    }
  }
}

inline bool Observer::touches_training(const at::Tensor& tensor, bool grad_enabled) const {
  if (grad_enabled) return tensor.requires_grad();
  const Storage* record = storages_->known(tensor);
  return record != nullptr && (record->gradient || record->named());
}

inline void Observer::mark_gradient(const at::Tensor& tensor) const {
  if (Storage* record = storages_->known(tensor)) record->gradient = true;
}

// Drop digests of what an unrecorded operator wrote.
inline void Observer::forget_written(const c10::SmallVectorImpl<Given>& written, bool wrote) {
  for (const Given& kept : written) {
    each(kept.value, kept.argument->written_path, kept.argument->written_items.get(), [&](Code, const at::Tensor& tensor) {
      if (!is_plain(tensor)) return;
      Storage* record = storages_->known(tensor);
      if (record == nullptr) return;
      if (wrote) {
        const Location place = probes_->locate(tensor, static_cast<int64_t>(outbox_->next_seq()));
        place.record->wrote(place.offset, place.geometry, kNoVersion, nullptr);
      } else {
        record->forget_written();
      }
    });
  }
}

// Drop digests of what an operator that is not torch's own was given to read: its schema may not say all that it writes.
inline void Observer::forget_read(const Call& call) {
  if (!call.plan.foreign) return;
  for (const Given& kept : call.others) {
    each(kept.value, kept.argument->path, kept.argument->items.get(), [&](Code, const at::Tensor& tensor) {
      Storage* record = is_plain(tensor) ? storages_->known(tensor) : nullptr;
      if (record != nullptr) record->forget_written();
    });
  }
}

// Follow allocation, growth and writes of an operator that gives no event.
inline void Observer::keep_book(const OperatorPlan& plan, const c10::SmallVectorImpl<Given>& written, const c10::IValue& first, Values results) {
  if (plan.resizes) {
    if (!first.isTensor() || !first.toTensor().defined() || !first.toTensor().has_storage()) return;
    if (Storage* record = storages_->known(first.toTensor())) record->grew(static_cast<int64_t>(first.toTensor().storage().nbytes()));
    return;
  }
  if (plan.uninitialised) {
    for (const auto& result : plan.returns) {
      each(results[result.position], result.path, result.items.get(), [&](Code, const at::Tensor& tensor) {
        if (is_plain(tensor)) storages_->of(tensor, static_cast<int64_t>(outbox_->next_seq()))->never_written();
      });
    }
  }
  forget_written(written, true);
}

}  // namespace opguard
