// Which worker sits on which CPU, and which slice of every matrix it reads: decided by the planner, carried
// out by Pool and Arena, which know no topology of their own.
#pragma once

#include <optional>
#include <vector>

namespace stratad {

// One slice of the rows of every expert matrix.
struct SliceSeat {
  std::vector<int> node_ids;  // where its pages belong; several are interleaved, none means not placed
  int weight = 1;             // its share of the rows, relative to the other slices
};

struct WorkerSeat {
  std::optional<int> cpu_id;  // the CPU it is pinned to; nullopt leaves it to the scheduler (test mode)
  int slice_index = 0;
};

struct WorkerLayout {
  std::vector<SliceSeat> slices;
  std::vector<WorkerSeat> workers;  // workers[0] is the seat of the submitting thread

  // Throws std::invalid_argument: no slice, no worker, a slice index out of range, a weight below one, or
  // more workers than slices while a slice has none. With fewer workers than slices, workers share the
  // orphans.
  void validate() const;
};

}  // namespace stratad
