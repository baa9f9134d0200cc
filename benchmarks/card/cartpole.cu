/* The CartPole case study by hand for NVIDIA GPUs: a thread for each environment, its state in registers for the whole run, one
 * launch. `cartpole` reads random numbers from a pool, as the paper's own kernel does; `cartpole_naive` draws them in the loop, the
 * same that JAX draws. Compiled by NVRTC, see nvrtc.py.
 *
 * Source of the random numbers: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011), Threefry-2x32 of 20 rounds;
 * jax.random with partitionable keys (JEP 263): key i of a split, and word i of an array, are those of the counter (0, i).
 */
struct State { float x, dx, a, da; };
struct Words { unsigned first, second; };

/* One Euler step; returns whether the environment is done. */
static __device__ bool advance(State &s, bool is_right) {
  const float gravity = 9.8f, pole_mass = 0.1f, total_mass = 1.1f, half_length = 0.5f, pole_moment = 0.05f;
  const float push = 10.0f, time_step = 0.02f, max_position = 2.4f, max_angle = 0.20943951f;
  float sine, cosine, force = is_right ? push : -push;
  sincosf(s.a, &sine, &cosine);
  float pushed = (force + pole_moment * s.da * s.da * sine) / total_mass;
  float turn = (gravity * sine - cosine * pushed) / (half_length * (4.0f / 3.0f - pole_mass * cosine * cosine / total_mass));
  float moved = pushed - pole_moment * turn * cosine / total_mass;
  s.x += time_step * s.dx;
  s.dx += time_step * moved;
  s.a += time_step * s.da;
  s.da += time_step * turn;
  return fabsf(s.x) > max_position || fabsf(s.a) > max_angle;
}

static __device__ Words threefry(Words key, unsigned counter) {
  const int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  unsigned keys[3] = {key.first, key.second, key.first ^ key.second ^ 0x1BD11BDAu};
  unsigned a = keys[0], b = counter + keys[1];
#pragma unroll
  for (unsigned group = 0; group < 5; group++) {
#pragma unroll
    for (int round = 0; round < 4; round++) {
      int turn = turns[group % 2][round];
      a += b;
      b = (b << turn | b >> (32 - turn)) ^ a;
    }
    a += keys[(group + 1) % 3];
    b += keys[(group + 2) % 3] + group + 1;
  }
  return {a, b};
}

/* A float of [0, 1). */
static __device__ float draw(Words key, unsigned counter) {
  Words words = threefry(key, counter);
  return (float)((words.first ^ words.second) >> 9) * 0x1p-23f;
}

static __device__ void leave(State s, float *result, long envs, long i) {
  result[i] = s.x, result[envs + i] = s.dx, result[2 * envs + i] = s.a, result[3 * envs + i] = s.da;
}

extern "C" __global__ void cartpole(const float *start, const int *actions, const float *resets, const int *sizes,
                                    float *result) {
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  int steps = sizes[0], rows = sizes[1];
  long envs = sizes[2];
  if (i >= envs) return;
  State s = {start[i], start[envs + i], start[2 * envs + i], start[3 * envs + i]};
  for (int t = 0, row = 0; t < steps; t++, row = row + 1 == rows ? 0 : row + 1)
    if (advance(s, actions[row * envs + i] == 1)) {
      const float *reset = resets + row * 4 * envs + i;
      s = {reset[0], reset[envs], reset[2 * envs], reset[3 * envs]};
    }
  leave(s, result, envs, i);
}

extern "C" __global__ void cartpole_naive(const float *start, const unsigned *keys, const int *sizes, float *result) {
  const float low = -0.05f, range = 0.1f;
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  int steps = sizes[0];
  long envs = sizes[1];
  if (i >= envs) return;
  State s = {start[i], start[envs + i], start[2 * envs + i], start[3 * envs + i]};
  Words key = {keys[0], keys[1]};
  for (int t = 0; t < steps; t++) {
    Words action = threefry(key, 1), reset = threefry(key, 2);
    key = threefry(key, 0);
    if (advance(s, draw(action, i) < 0.5f))
      s = {draw(reset, i) * range + low, draw(reset, envs + i) * range + low, draw(reset, 2 * envs + i) * range + low,
           draw(reset, 3 * envs + i) * range + low};
  }
  leave(s, result, envs, i);
}
