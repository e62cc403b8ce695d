// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "core/transport/sealed.h"
#include "core/transport/ucx_worker.h"

namespace titan::transport {
namespace {

// The descriptor of this process that is of the file whose map begins there; -1: none. UCX keeps
// that of a segment open and tells nobody its number.
int FileOfMap(const void* address) {
  std::ifstream maps("/proc/self/maps");
  struct stat wanted {};
  for (std::string line; std::getline(maps, line) && wanted.st_ino == 0;) {
    unsigned long begin = 0, inode = 0;
    unsigned major_number = 0, minor_number = 0;
    if (std::sscanf(line.c_str(), "%lx-%*x %*s %*x %x:%x %lu", &begin, &major_number, &minor_number,
                    &inode) == 4 &&
        begin == reinterpret_cast<uintptr_t>(address)) {
      wanted.st_dev = makedev(major_number, minor_number);
      wanted.st_ino = inode;
    }
  }
  DIR* folder = wanted.st_ino != 0 ? opendir("/proc/self/fd") : nullptr;
  if (folder == nullptr) return -1;
  int found = -1;
  while (const dirent* entry = readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    struct stat file {};
    if (entry->d_name[0] != '.' && fstat(fd, &file) == 0 && file.st_dev == wanted.st_dev &&
        file.st_ino == wanted.st_ino) {
      found = fd;
      break;
    }
  }
  closedir(folder);
  return found;
}

// UCX's segment becomes one of `file`: the map in this process, and what peers open.
Status PutInPlace(int file, int segment, std::span<std::byte> map) {
  if (::mmap(map.data(), map.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) ==
          MAP_FAILED ||
      ::dup3(file, segment, O_CLOEXEC) < 0) {
    return Internal(fmt::format("a memory file in place of UCX's: {}", std::strerror(errno)));
  }
  ::madvise(map.data(), map.size(), MADV_DONTFORK);
  return OkStatus();
}

}  // namespace

// ---- the thread that registers

TaskThread::~TaskThread() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TaskThread::Post(std::function<void()> task) {
  {
    const std::scoped_lock lock(mutex_);
    posted_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void TaskThread::Run(const std::function<void()>& task) {
  std::promise<void> done;
  Post([&] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

void TaskThread::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !posted_.empty(); });
    if (posted_.empty()) return;
    std::vector<std::function<void()>> tasks;
    tasks.swap(posted_);
    lock.unlock();
    for (auto& task : tasks) {
      task();
      task = nullptr;  // and what it keeps
    }
    lock.lock();
  }
}

// ---- windows

void UcxWorker::CountRegistered(uint64_t num_bytes, bool more) {
  registered_bytes_ += more ? num_bytes : -num_bytes;
  if (!options_.registered) return;
  options_.registered(more ? static_cast<double>(num_bytes) : -static_cast<double>(num_bytes));
}

UcxWindow::~UcxWindow() { worker.Unmap(*this); }

void UcxWorker::Unmap(UcxWindow& window) {
  registrar_->Post([this, handle = window.handle, bytes = window.memory.size(),
                    owner = std::move(window.owner)] {
    ucp_mem_unmap(context_, handle);
    CountRegistered(bytes, false);
  });
}

StatusOr<std::shared_ptr<UcxWindow>> UcxWorker::Map(std::span<std::byte> memory,
                                                    std::shared_ptr<const void> owner) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = memory.data();
  params.length = memory.size();
  StatusOr<std::shared_ptr<UcxWindow>> window = Internal("unset");
  registrar_->Run([&] { window = MapNow(params, std::move(owner), -1); });
  return window;
}

StatusOr<std::shared_ptr<UcxWindow>> UcxWorker::Allocate(size_t bytes) {
  return AllocateOver(-1, bytes);
}

StatusOr<std::shared_ptr<UcxWindow>> UcxWorker::AllocateOver(int file, size_t bytes) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  StatusOr<std::shared_ptr<UcxWindow>> window = Internal("unset");
  registrar_->Run([&] { window = MapNow(params, nullptr, file); });
  return window;
}

StatusOr<std::shared_ptr<UcxWindow>> UcxWorker::MapNow(const ucp_mem_map_params_t& params,
                                                       std::shared_ptr<const void> owner,
                                                       int file) {
  // Here, where all windows that ended before have been unregistered.
  TITAN_RETURN_IF_ERROR(CheckLockable(registered_bytes_ + params.length,
                                      "windows for one-sided reads", options_.lockable));
  ucp_mem_h handle = nullptr;
  ucs_status_t status = ucp_mem_map(context_, &params, &handle);
  if (status != UCS_OK) {
    return ResourceExhausted(fmt::format(
        "UCX takes no window of {} bytes beside {} that are registered ({}); is that more than may "
        "be locked (`ulimit -l`)?",
        params.length, registered_bytes_.load(), ucs_status_string(status)));
  }
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
  status = ucp_mem_query(handle, &attributes);
  void* key = nullptr;
  size_t size = 0;
  if (status == UCS_OK) status = ucp_rkey_pack(context_, handle, &key, &size);
  if (status != UCS_OK) {
    ucp_mem_unmap(context_, handle);
    return Internal(fmt::format("UCX gives no key of a window: {}", ucs_status_string(status)));
  }
  const std::span<std::byte> memory(static_cast<std::byte*>(attributes.address), params.length);
  CountRegistered(memory.size(), true);
  auto window = std::make_shared<UcxWindow>(*this, memory, handle, std::move(owner));
  window->key = {.address = reinterpret_cast<uint64_t>(memory.data()),
                 .bytes = memory.size(),
                 .key = Sealed(kKeyMark, key, size),
                 .file = ""};
  ucp_rkey_buffer_release(key);
  const bool allocated = (params.field_mask & UCP_MEM_MAP_PARAM_FIELD_FLAGS) != 0 &&
                         (params.flags & UCP_MEM_MAP_ALLOCATE) != 0;
  if (lane() == RmaLane::kRdma || !allocated) return window;
  const int segment = FileOfMap(memory.data());
  if (segment < 0) return Internal("UCX's segment of shared memory has no file in this process");
  window->key.file = fmt::format("/proc/{}/fd/{}", getpid(), segment);
  if (file >= 0) TITAN_RETURN_IF_ERROR(PutInPlace(file, segment, memory));
  return window;
}

}  // namespace titan::transport
