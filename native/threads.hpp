// A pool of threads that starts once, sleeps between calls and survives fork.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>

namespace clearhead {

// set_thread_count, else CLEARHEAD_NUM_THREADS, else OMP_NUM_THREADS, else 1 in a forked process
// and in others the CPUs they may use (affinity and cgroup quota). Throws std::invalid_argument
// where CLEARHEAD_NUM_THREADS is not a count.
int thread_count();
void set_thread_count(int count);

// How many workers parallel_for(n, ...) is to use now for about so many floating-point operations
// in all; their numbers are below it. Too little work to wake a thread for is done by one.
int workers_for(int64_t n, double operations = std::numeric_limits<double>::infinity());

// Calls task(i, worker) once for each i < n, in no set order, on `workers` threads, the caller's
// among them. `interrupted` is asked on the caller's thread about every 50 ms: once it says true no
// further task starts. Returns whether all tasks ran. Called while another thread of this process
// is inside, it runs all tasks on the caller's thread: cores are not shared out twice.
bool parallel_for(int64_t n, int workers, const std::function<void(int64_t, int)>& task,
                  const std::function<bool()>& interrupted);

}  // namespace clearhead
