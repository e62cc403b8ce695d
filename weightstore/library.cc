// SPDX-License-Identifier: Apache-2.0
#include "weightstore/library.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "weightstore/client/weights_digest.h"
#include "weightstore/library_index.h"

namespace titan::weightstore {
namespace {

// stored/model/<id>; of versions: library_index.h.
constexpr std::string_view kPrefix = "stored/";
constexpr std::string_view kModelPrefix = "stored/model/";
// Written when records and blobs begin, both empty: from then on there is always a record.
constexpr std::string_view kBegunKey = "library/begun";
constexpr uint64_t kMaxBundleBytes = uint64_t{1} << 30;

std::string ModelKey(const std::string& id) { return std::string(kModelPrefix) + id; }

bool HasName(const StoredModel& model, const std::string& name) {
  return std::find(model.names.begin(), model.names.end(), name) != model.names.end();
}

std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

StatusOr<std::unique_ptr<Library>> Library::Open(storage::KeyValueStore& records,
                                                 LibraryOptions options) {
  TITAN_CHECK(static_cast<bool>(options.unix_ms));
  std::unique_ptr<Library> library(new Library(records, std::move(options)));
  TITAN_ASSIGN_OR_RETURN(library->blobs_,
                         BlobFiles::Open(library->options_.folder, library->options_.on_damage));
  TITAN_RETURN_IF_ERROR(library->CheckRecords());
  TITAN_RETURN_IF_ERROR(library->Restore());
  const std::lock_guard lock(library->mutex_);
  TITAN_RETURN_IF_ERROR(library->Collect().status());
  return library;
}

Status Library::CheckRecords() {
  TITAN_ASSIGN_OR_RETURN(const std::optional<storage::KeyValueStore::Entry> any, records_.Last(""));
  if (any.has_value()) return OkStatus();
  TITAN_ASSIGN_OR_RETURN(const std::vector<BlobFiles::Entry> blobs, blobs_->List());
  if (blobs.empty()) {
    storage::WriteBatch batch;
    batch.Put(kBegunKey, "");
    return records_.Write(batch, storage::Durability::kSynced);
  }
  uint64_t num_bytes = 0;
  for (const BlobFiles::Entry& blob : blobs) num_bytes += blob.num_bytes;
  return FailedPrecondition(
      "index '" + options_.index + "' is new or empty, but " + std::to_string(blobs.size()) +
      " files with " + std::to_string(num_bytes) + " bytes of weights lie in '" + options_.folder +
      "', and without the index that names them they would be deleted; put that index in the place "
      "of '" +
      options_.index + "', or move '" + options_.folder + "' away to begin with an empty store");
}

Status Library::Restore() {
  Status failure;
  TITAN_RETURN_IF_ERROR(
      records_.ScanPrefix(kPrefix, [&](std::string_view key, std::string_view value) {
        StatusOr<StoredModel> model = DecodeStoredModel(value);
        failure = model.status();
        if (model.ok()) models_[std::string(key)] = *std::move(model);
        return failure.ok();
      }));
  TITAN_RETURN_IF_ERROR(failure);
  TITAN_RETURN_IF_ERROR(
      records_.ScanPrefix(kCheckpointPrefix, [&](std::string_view, std::string_view value) {
        StatusOr<StoredModel> checkpoint = DecodeStoredModel(value);
        failure = checkpoint.status();
        if (checkpoint.ok()) {
          checkpoints_[{checkpoint->run_id, checkpoint->version}] = *std::move(checkpoint);
        }
        return failure.ok();
      }));
  return failure;
}

// --------------------------------------------------------------------------------------- the disk

StatusOr<DiskUse> Library::DiskLocked() const {
  DiskUse use;
  TITAN_ASSIGN_OR_RETURN(const std::vector<BlobFiles::Entry> entries, blobs_->List());
  for (const BlobFiles::Entry& entry : entries) use.used_bytes += entry.num_bytes;
  use.reserved_bytes = importing_bytes_;
  for (const auto& [run, bytes] : reserved_) use.reserved_bytes += bytes;
  TITAN_ASSIGN_OR_RETURN(const uint64_t free_bytes, blobs_->FreeBytes());
  use.keeps_nothing = options_.disk_limit_bytes == uint64_t{0};
  uint64_t room = free_bytes - std::min(free_bytes, options_.keep_free_bytes);
  use.limits = "the volume has " + std::to_string(free_bytes) + " bytes free, of which " +
               std::to_string(options_.keep_free_bytes) + " stay free";
  if (options_.disk_limit_bytes.has_value()) {
    const uint64_t limit = *options_.disk_limit_bytes;
    room = std::min(room, limit - std::min(limit, use.used_bytes));
    use.limits += "; disk_limit_bytes is " + std::to_string(limit);
  }
  use.limits += "; " + std::to_string(use.used_bytes) + " bytes are used and " +
                std::to_string(use.reserved_bytes) + " reserved for jobs and imports under way";
  use.available_bytes = room - std::min(room, use.reserved_bytes);
  return use;
}

StatusOr<DiskUse> Library::Disk() const {
  const std::lock_guard lock(mutex_);
  return DiskLocked();
}

Status Library::RoomFor(uint64_t bytes, const std::string& what) const {
  TITAN_ASSIGN_OR_RETURN(const DiskUse use, DiskLocked());
  if (bytes <= use.available_bytes) return OkStatus();
  return ResourceExhausted(
      what + " needs " + std::to_string(bytes) + " bytes of the weight store's disk, " +
      std::to_string(use.available_bytes) + " are available (" + use.limits +
      "); free the volume, or delete what is not needed with `titanctl weights "
      "rm`");
}

StatusOr<uint64_t> Library::Collect(const std::set<std::string>& without, bool dry_run) {
  std::set<std::string> named;
  for (const auto& [key, model] : models_) {
    if (without.contains(key)) continue;
    named.insert(model.bundle);
    for (const Hash128& blob : model.blobs) named.insert(ToHex(blob));
  }
  for (const auto& [key, checkpoint] : checkpoints_) {
    named.insert(checkpoint.bundle);
    for (const Hash128& blob : checkpoint.blobs) named.insert(ToHex(blob));
  }
  TITAN_ASSIGN_OR_RETURN(const std::vector<BlobFiles::Entry> entries, blobs_->List());
  uint64_t freed = 0;
  for (const BlobFiles::Entry& entry : entries) {
    const std::string hex = ToHex(entry.digest);
    if (named.contains(hex) || pins_.contains(hex)) continue;
    if (!dry_run) TITAN_RETURN_IF_ERROR(blobs_->Remove(entry.digest));
    freed += entry.num_bytes;
  }
  return freed;
}

Status Library::PublishPinned(BlobFiles::Writer& writer, const Hash128& digest) {
  const std::lock_guard lock(mutex_);
  TITAN_RETURN_IF_ERROR(writer.Publish());
  ++pins_[ToHex(digest)];
  return OkStatus();
}

void Library::Arrived(Import* import, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  import->reserved_ -= bytes;
  importing_bytes_ -= bytes;
}

void Library::Unpin(const std::vector<Hash128>& digests, uint64_t reserved) {
  const std::lock_guard lock(mutex_);
  for (const Hash128& digest : digests) {
    const auto pin = pins_.find(ToHex(digest));
    if (pin != pins_.end() && --pin->second == 0) pins_.erase(pin);
  }
  importing_bytes_ -= reserved;
  // What cannot be removed now is removed at the next start.
  (void)Collect();
}

Status Library::PutRecord(const std::string& key, const StoredModel& model) {
  TITAN_RETURN_IF_ERROR(WriteRecord(key, model));
  models_[key] = model;
  return OkStatus();
}

Status Library::WriteRecord(const std::string& key, const StoredModel& model) {
  storage::WriteBatch batch;
  batch.Put(key, EncodeStoredModel(model));
  const Status written = records_.Write(batch, storage::Durability::kSynced);
  if (written.ok()) return written;
  // The next start may find the record all the same: its blobs stay until then.
  for (const Hash128& blob : model.blobs) ++pins_[ToHex(blob)];
  if (!model.bundle.empty()) ++pins_[model.bundle];
  return written;
}

// ---------------------------------------------------------------------------------------- imports

StatusOr<std::unique_ptr<Library::Import>> Library::BeginImport(const std::string& name,
                                                                Manifest manifest,
                                                                uint64_t bundle_bytes,
                                                                const Hash128& weights_digest) {
  if (!name.empty()) TITAN_RETURN_IF_ERROR(CheckModelName(name));
  TITAN_ASSIGN_OR_RETURN(std::unique_ptr<Import> import,
                         Begin(std::move(manifest), bundle_bytes, weights_digest, "the model"));
  import->name_ = name;
  return import;
}

StatusOr<std::unique_ptr<Library::Import>> Library::Begin(Manifest manifest, uint64_t bundle_bytes,
                                                          const Hash128& digest,
                                                          const std::string& what) {
  TITAN_RETURN_IF_ERROR(Validate(manifest));
  if (bundle_bytes == 0 || bundle_bytes > kMaxBundleBytes) {
    return InvalidArgument("bundle_bytes: must be between 1 and 2^30");
  }
  std::unique_ptr<Import> import(new Import(*this));
  import->model_.weights_digest = digest;
  import->model_.bundle_bytes = bundle_bytes;
  import->model_.manifest = std::make_shared<const Manifest>(std::move(manifest));
  const uint64_t bytes = import->model_.num_bytes();
  const std::lock_guard lock(mutex_);
  TITAN_RETURN_IF_ERROR(RoomFor(bytes, what));
  importing_bytes_ += bytes;
  import->reserved_ = bytes;
  return import;
}

Library::Import::~Import() {
  writer_.reset();
  library_.Unpin(pinned_, reserved_);
}

uint64_t Library::Import::PartBytes() const {
  return part_ == 0 ? model_.bundle_bytes : model_.manifest->tensors[part_ - 1].num_bytes;
}

Status Library::Import::EndPart() {
  std::function<void(std::span<const std::byte>)> visit;
  if (part_ > 0) {
    visit = [this](std::span<const std::byte> bytes) {
      sum_ += TensorDigest(model_.manifest->tensors[part_ - 1], bytes.data());
    };
  }
  TITAN_ASSIGN_OR_RETURN(const Hash128 digest, writer_->Seal(visit));
  TITAN_RETURN_IF_ERROR(library_.PublishPinned(*writer_, digest));
  writer_.reset();
  library_.Arrived(this, PartBytes());
  pinned_.push_back(digest);
  if (part_ == 0) {
    model_.bundle = ToHex(digest);
  } else {
    model_.blobs.push_back(digest);
  }
  ++part_;
  part_done_ = 0;
  return OkStatus();
}

Status Library::Import::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    if (part_ > model_.manifest->tensors.size()) {
      return InvalidArgument("chunk: more bytes than the manifest's tensors have");
    }
    if (!writer_.has_value()) {
      TITAN_ASSIGN_OR_RETURN(BlobFiles::Writer writer, library_.blobs_->Create());
      writer_.emplace(std::move(writer));
    }
    const uint64_t take = std::min<uint64_t>(bytes.size(), PartBytes() - part_done_);
    TITAN_RETURN_IF_ERROR(writer_->Append(AsBytes(bytes.substr(0, take))));
    bytes.remove_prefix(take);
    part_done_ += take;
    if (part_done_ == PartBytes()) TITAN_RETURN_IF_ERROR(EndPart());
  }
  return OkStatus();
}

StatusOr<StoredModel> Library::Import::Finish(bool* existed) {
  if (part_ <= model_.manifest->tensors.size()) {
    return InvalidArgument("chunk: the stream ended in " +
                           (part_ == 0 ? std::string("the bundle")
                                       : "tensor " + model_.manifest->tensors[part_ - 1].name));
  }
  if (sum_ != model_.weights_digest) {
    return DataLoss("the weights that arrived have digest " + ToHex(sum_) + ", not " +
                    ToHex(model_.weights_digest));
  }
  TITAN_RETURN_IF_ERROR(library_.blobs_->Sync());
  model_.id = StoredModelId(model_.weights_digest, model_.bundle);
  const std::lock_guard lock(library_.mutex_);
  return checkpoint_ ? library_.PutCheckpoint(model_, existed) : library_.PutModel(*this, existed);
}

StatusOr<StoredModel> Library::PutModel(Import& import, bool* existed) {
  StoredModel& model = import.model_;
  const std::string& name = import.name_;
  const std::string key = ModelKey(model.id);
  for (const auto& [other_key, other] : models_) {
    if (other_key != key && !name.empty() && HasName(other, name)) {
      return AlreadyExists("name '" + name + "' belongs to model " + other.id +
                           "; choose another name, or delete that model");
    }
  }
  const auto known = models_.find(key);
  *existed = known != models_.end();
  if (*existed) model = known->second;
  if (*existed && (name.empty() || HasName(model, name))) return model;
  if (!*existed) model.stored_unix_ms = options_.unix_ms();
  if (!name.empty()) model.names.push_back(name);
  std::sort(model.names.begin(), model.names.end());
  TITAN_RETURN_IF_ERROR(PutRecord(key, model));
  return model;
}

StatusOr<Hash128> Library::PutBundle(std::string_view bundle) {
  if (bundle.empty() || bundle.size() > kMaxBundleBytes) {
    return InvalidArgument("bundle: must have 1 to 2^30 bytes");
  }
  TITAN_ASSIGN_OR_RETURN(BlobFiles::Writer writer, blobs_->Create());
  TITAN_RETURN_IF_ERROR(writer.Append(AsBytes(bundle)));
  TITAN_ASSIGN_OR_RETURN(const Hash128 digest, writer.Seal());
  TITAN_RETURN_IF_ERROR(PublishPinned(writer, digest));
  return digest;
}

// ------------------------------------------------------------------------------------------- runs

Status Library::Reserve(const std::string& run_id, const Manifest& manifest) {
  if (options_.disk_limit_bytes == uint64_t{0}) return OkStatus();
  uint64_t bytes = 0;
  for (const TensorEntry& tensor : manifest.tensors) bytes += tensor.num_bytes;
  const std::lock_guard lock(mutex_);
  const auto known = reserved_.find(run_id);
  if (known != reserved_.end() && known->second >= bytes) return OkStatus();  // promised
  TITAN_RETURN_IF_ERROR(RoomFor(bytes, "keeping the last version of run " + run_id));
  reserved_[run_id] = bytes;
  return OkStatus();
}

void Library::Unreserve(const std::string& run_id) {
  const std::lock_guard lock(mutex_);
  reserved_.erase(run_id);
}

Status Library::Keep(const std::string& run_id, uint64_t version, const Hash128& digest,
                     std::shared_ptr<const Manifest> manifest, const ViewPart& view,
                     bool in_reserved_room) {
  if (options_.disk_limit_bytes == uint64_t{0}) return OkStatus();
  const std::string key = StoredVersionKey(run_id, version);
  {
    const std::lock_guard lock(mutex_);
    if (models_.contains(key)) return OkStatus();
    if (!keeping_.insert(run_id).second) {
      return AlreadyExists("a version of run " + run_id +
                           " is being written to disk by another call");
    }
  }
  StoredModel model;
  model.run_id = run_id;
  model.version = version;
  model.weights_digest = digest;
  model.bundle = manifest->bundle;
  model.manifest = manifest;
  const std::string name = "version " + std::to_string(version) + " of run " + run_id;
  const Status kept = [&]() -> Status {
    if (Hash128 bundle; FromHex(model.bundle, &bundle)) {
      TITAN_ASSIGN_OR_RETURN(model.bundle_bytes, blobs_->SizeOf(bundle));
    }
    Hash128 sum;
    for (const TensorEntry& tensor : manifest->tensors) {
      TITAN_ASSIGN_OR_RETURN(const SlotView part, view(tensor.offset, tensor.num_bytes));
      const auto visit = [&](auto bytes) { sum += TensorDigest(tensor, bytes.data()); };
      TITAN_RETURN_IF_ERROR(
          PutPinned(part.bytes, in_reserved_room ? "" : name, visit, &model.blobs));
    }
    if (sum != digest) return Aborted(name + " changed while it was written to disk");
    TITAN_RETURN_IF_ERROR(blobs_->Sync());
    model.id = StoredModelId(digest, model.bundle);
    model.stored_unix_ms = options_.unix_ms();
    const std::lock_guard lock(mutex_);
    return PutRecord(key, model);
  }();
  Unpin(model.blobs, 0);
  const std::lock_guard lock(mutex_);
  keeping_.erase(run_id);
  if (kept.ok()) {
    not_kept_.erase(run_id);
  } else {
    not_kept_[run_id] = {version, MessageOf(kept)};
  }
  return kept;
}

Status Library::PutPinned(std::span<const std::byte> bytes, const std::string& wants_room,
                          const std::function<void(std::span<const std::byte>)>& visit,
                          std::vector<Hash128>* pinned) {
  const Hash128 digest = Hash128Of(bytes.data(), bytes.size(), 0);
  {
    const std::lock_guard lock(mutex_);  // from here on nobody removes it
    ++pins_[ToHex(digest)];
    pinned->push_back(digest);
  }
  if (blobs_->VisitWhole(digest, visit)) return OkStatus();
  if (!wants_room.empty()) {
    const std::lock_guard lock(mutex_);
    TITAN_RETURN_IF_ERROR(RoomFor(bytes.size(), wants_room));
  }
  TITAN_ASSIGN_OR_RETURN(BlobFiles::Writer writer, blobs_->Create());
  TITAN_RETURN_IF_ERROR(writer.Append(bytes));
  TITAN_ASSIGN_OR_RETURN(const Hash128 written, writer.Seal(visit));
  if (written != digest) return Aborted("a tensor changed while it was written to disk");
  return writer.Publish();
}

// ---------------------------------------------------------------------------------------- reading

const StoredModel* Library::FindLocked(const std::string& id_or_name) const {
  const auto imported = models_.find(ModelKey(id_or_name));
  if (imported != models_.end()) return &imported->second;
  for (const auto& [key, model] : models_) {
    if (model.id == id_or_name || HasName(model, id_or_name)) return &model;
  }
  return nullptr;
}

StatusOr<StoredModel> Library::FindModel(const std::string& id_or_name) const {
  const std::lock_guard lock(mutex_);
  if (const StoredModel* model = FindLocked(id_or_name); model != nullptr) return *model;
  return NotFound("no model '" + id_or_name +
                  "' is stored; see `titanctl weights ls`, or store one with `titanctl weights "
                  "import`");
}

StatusOr<const StoredModel*> Library::FindVersionLocked(const std::string& run_id,
                                                        uint64_t version) const {
  const auto found = models_.find(StoredVersionKey(run_id, version));
  if (found != models_.end()) return &found->second;
  return NotFound("version " + std::to_string(version) + " of run " + run_id + " is not on disk");
}

StatusOr<StoredModel> Library::FindVersion(const std::string& run_id, uint64_t version) const {
  const std::lock_guard lock(mutex_);
  TITAN_ASSIGN_OR_RETURN(const StoredModel* found, FindVersionLocked(run_id, version));
  return *found;
}

StatusOr<std::shared_ptr<void>> Library::HoldVersion(const std::string& run_id, uint64_t version) {
  const std::lock_guard lock(mutex_);
  TITAN_ASSIGN_OR_RETURN(const StoredModel* found, FindVersionLocked(run_id, version));
  for (const Hash128& blob : found->blobs) ++pins_[ToHex(blob)];
  return std::shared_ptr<void>(nullptr, [this, blobs = found->blobs](void*) { Unpin(blobs, 0); });
}

Status Library::ReadTensor(const StoredModel& model, size_t tensor,
                           std::span<std::byte> out) const {
  const Status read = blobs_->ReadWhole(model.blobs.at(tensor), out);
  return read.ok() ? read : Annotate(read, "tensor " + model.manifest->tensors.at(tensor).name);
}

std::string Library::NotKeptReason(const std::string& run_id, uint64_t version) const {
  const std::lock_guard lock(mutex_);
  const auto found = not_kept_.find(run_id);
  return found == not_kept_.end() || found->second.first != version ? "" : found->second.second;
}

void Library::NoteNotKept(const std::string& run_id, uint64_t version, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  not_kept_[run_id] = {version, reason};
}

std::vector<StoredModel> Library::List() const {
  const std::lock_guard lock(mutex_);
  std::vector<StoredModel> all;
  for (const auto& [key, model] : models_) all.push_back(model);  // models come before versions
  std::stable_sort(all.begin(), all.end(), [](const StoredModel& a, const StoredModel& b) {
    return std::pair(!a.run_id.empty(), a.run_id.empty() ? a.stored_unix_ms : 0) <
           std::pair(!b.run_id.empty(), b.run_id.empty() ? b.stored_unix_ms : 0);
  });
  return all;
}

StatusOr<uint64_t> Library::EraseRecord(const std::string& key) {
  storage::WriteBatch batch;
  batch.Erase(key);
  TITAN_RETURN_IF_ERROR(records_.Write(batch, storage::Durability::kSynced));
  models_.erase(key);
  return Collect();
}

StatusOr<Library::Collected> Library::CollectVersions(size_t keep_runs, bool dry_run) {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::string, const StoredModel*>> versions;
  for (const auto& [key, model] : models_) {
    if (model.run_id.empty() || HasCheckpoint(model.run_id)) continue;  // such a run goes on
    versions.emplace_back(key, &model);
  }
  // One version is kept of a run that ended; what was kept at the same time is ordered by name.
  std::stable_sort(versions.begin(), versions.end(), [](const auto& a, const auto& b) {
    return a.second->stored_unix_ms < b.second->stored_unix_ms;
  });
  Collected collected;
  collected.versions_left = std::min(keep_runs, versions.size());
  versions.resize(versions.size() - collected.versions_left);
  std::set<std::string> keys;
  storage::WriteBatch batch;
  for (const auto& [key, model] : versions) {
    collected.versions.push_back(*model);
    keys.insert(key);
    batch.Erase(key);
  }
  if (!dry_run && !keys.empty()) {
    TITAN_RETURN_IF_ERROR(records_.Write(batch, storage::Durability::kSynced));
    for (const std::string& key : keys) models_.erase(key);
  }
  TITAN_ASSIGN_OR_RETURN(collected.freed_bytes, Collect(keys, dry_run));
  return collected;
}

StatusOr<uint64_t> Library::RemoveModel(const std::string& id_or_name) {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, model] : models_) {
    if (!model.run_id.empty()) continue;
    if (model.id == id_or_name || HasName(model, id_or_name)) return EraseRecord(std::string(key));
  }
  return NotFound("no imported model '" + id_or_name + "'; see `titanctl weights ls`");
}

StatusOr<uint64_t> Library::RemoveVersion(const std::string& run_id, uint64_t version) {
  const std::lock_guard lock(mutex_);
  const std::string key = StoredVersionKey(run_id, version);
  if (!models_.contains(key)) {
    return NotFound("version " + std::to_string(version) + " of run " + run_id + " is not on disk");
  }
  return EraseRecord(key);
}

}  // namespace titan::weightstore
