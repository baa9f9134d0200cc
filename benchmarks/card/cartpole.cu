/* The CartPole case study by hand for NVIDIA GPUs: a thread for each environment, its state in registers for the whole run, one
 * launch. As the paper's own kernel, it reads random numbers from a pool. Compiled by NVRTC, see nvrtc.py.
 */
extern "C" __global__ void cartpole(const float *start, const int *actions, const float *resets, const int *sizes,
                                    float *result) {
  const float gravity = 9.8f, pole_mass = 0.1f, total_mass = 1.1f, half_length = 0.5f, pole_moment = 0.05f;
  const float push = 10.0f, time_step = 0.02f, max_position = 2.4f, max_angle = 0.20943951f;
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  int steps = sizes[0], rows = sizes[1];
  long envs = sizes[2];
  if (i >= envs) return;
  float x = start[i], dx = start[envs + i], a = start[2 * envs + i], da = start[3 * envs + i];
  for (int t = 0, row = 0; t < steps; t++, row = row + 1 == rows ? 0 : row + 1) {
    float sine, cosine, force = actions[row * envs + i] == 1 ? push : -push;
    sincosf(a, &sine, &cosine);
    float pushed = (force + pole_moment * da * da * sine) / total_mass;
    float turn = (gravity * sine - cosine * pushed) / (half_length * (4.0f / 3.0f - pole_mass * cosine * cosine / total_mass));
    float moved = pushed - pole_moment * turn * cosine / total_mass;
    x += time_step * dx;
    dx += time_step * moved;
    a += time_step * da;
    da += time_step * turn;
    if (fabsf(x) > max_position || fabsf(a) > max_angle) {
      const float *reset = resets + row * 4 * envs + i;
      x = reset[0], dx = reset[envs], a = reset[2 * envs], da = reset[3 * envs];
    }
  }
  result[i] = x, result[envs + i] = dx, result[2 * envs + i] = a, result[3 * envs + i] = da;
}
