#include "gpu/uploader.hpp"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <stdexcept>

namespace stratad {

Uploader::Uploader()
    : thread_([this] {
        pthread_setname_np(pthread_self(), "stratad-upload");
        run();
      }) {}

Uploader::~Uploader() {
  {
    const std::lock_guard guard(mutex_);
    is_stopping_ = true;
  }
  wake_.notify_all();
}

void Uploader::submit(Upload& upload, Urgency urgency) {
  {
    const std::lock_guard guard(mutex_);
    upload.state.store(Upload::State::kQueued, std::memory_order_relaxed);
    (urgency == Urgency::kUrgent ? urgent_ : background_).push_back(&upload);
  }
  wake_.notify_one();
}

void Uploader::wait(Upload& upload) {
  if (upload.is_pending()) {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return !upload.is_pending(); });
  }
  if (upload.state.load(std::memory_order_acquire) == Upload::State::kFailed)
    throw std::runtime_error("copying expert weights to the GPU failed: " + upload.error);
}

void Uploader::drain() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return urgent_.empty() && background_.empty() && !is_copying_; });
}

void Uploader::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return is_stopping_ || !urgent_.empty() || !background_.empty(); });
    if (is_stopping_) return;
    std::deque<Upload*>& queue = urgent_.empty() ? background_ : urgent_;
    Upload& upload = *queue.front();
    queue.pop_front();
    is_copying_ = true;
    lock.unlock();
    copy(upload);
    lock.lock();
    is_copying_ = false;
    done_.notify_all();
  }
}

void Uploader::copy(Upload& upload) noexcept {
  const auto start = std::chrono::steady_clock::now();
  try {
    for (const Copy& part : upload.copies) {
      ggml_backend_tensor_set(part.target, part.source, part.offset, part.size);
      bytes_.fetch_add(part.size, std::memory_order_relaxed);
    }
    nanoseconds_.fetch_add(
        static_cast<uint64_t>((std::chrono::steady_clock::now() - start) / std::chrono::nanoseconds(1)),
        std::memory_order_relaxed);
    upload.state.store(Upload::State::kDone, std::memory_order_release);
  } catch (const std::exception& error) {
    upload.error = error.what();
    upload.state.store(Upload::State::kFailed, std::memory_order_release);
  }
}

}  // namespace stratad
