// One thread that copies expert weights from the arena to a GPU, so that the decode thread never stands still
// for a copy: a copy out of memory that is not pinned blocks its caller with every backend, and ggml's events
// cannot be asked whether they have happened.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ggml-backend.h"

namespace stratad {

struct Copy {
  ggml_tensor* target = nullptr;  // bytes; its header is read by this thread only
  const char* source = nullptr;
  size_t offset = 0, size = 0;
};

// Belongs to who hands it in, and must live until it is done.
struct Upload {
  std::vector<Copy> copies;
  enum class State { kIdle, kQueued, kDone, kFailed };
  // Release by the thread that copies, acquire by who reads what it copied.
  std::atomic<State> state{State::kIdle};
  std::string error;  // of kFailed

  bool is_pending() const noexcept { return state.load(std::memory_order_acquire) == State::kQueued; }
};

class Uploader {
 public:
  Uploader();
  ~Uploader();  // finishes the copy at hand and drops the rest
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // Urgent: somebody waits for it. The others come after all of these.
  enum class Urgency { kUrgent, kBackground };
  void submit(Upload& upload, Urgency urgency);
  // Returns when it is done; throws std::runtime_error when it has failed.
  void wait(Upload& upload);
  // Waits until nothing is queued or being copied.
  void drain();

  uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  double seconds() const noexcept {
    return static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) * 1e-9;
  }

 private:
  void run();
  void copy(Upload& upload) noexcept;

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Upload*> urgent_, background_;
  bool is_stopping_ = false, is_copying_ = false;
  std::atomic<uint64_t> bytes_{0}, nanoseconds_{0};
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace stratad
