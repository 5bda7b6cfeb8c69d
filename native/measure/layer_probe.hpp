// What working together costs: how long a job of the pool takes beyond the work in it.
//
// A layer is a job of phases whose tasks take a known time each. What it takes longer than one worker's share
// of that work is the price of handing out, claiming, joining and waking.
#pragma once

#include <vector>

#include "measure/read_probe.hpp"

namespace stratad {

struct LayerShape {
  int phase_count = 2;  // gate and up, then down
  int tasks_per_worker = 3;
  double task_seconds = 0;  // how long a task works
  double gap_seconds = 0;   // how long the submitting thread does something else between two layers
  // One task for each worker instead, which ends when all workers of the pool have begun theirs: then nobody
  // can be left out.
  bool meets = false;
};

// Seconds of each of up to `layer_count` layers beyond their work. Stops after `limit_seconds`, with at least
// one layer. The calling thread is worker 0. Throws std::invalid_argument for a shape that cannot be run.
std::vector<double> measure_layers(Pool& pool, const LayerShape& shape, int layer_count, double limit_seconds,
                                   const GoOn& go_on);

}  // namespace stratad
