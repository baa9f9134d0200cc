/* The CartPole case study by hand: blocks of environments that stay in registers and L1 for the whole run, SIMD inside a
 * block, OpenMP over blocks. Build: cc -O3 -march=native -ffast-math -fopenmp cartpole.c -lm
 *
 * Usage: cartpole FOLDER ENVS ROWS, with state.bin (f32[4][ENVS]), actions.bin (s32[ROWS][ENVS]) and resets.bin
 * (f32[ROWS][4][ENVS]) in FOLDER. Says "ready 0" on standard output, then answers to each line "STEPS" of its input with the
 * milliseconds of one run of so many steps, having written the final states to FOLDER/result.bin.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCK 64

static const float gravity = 9.8f, pole_mass = 0.1f, total_mass = 1.1f, half_length = 0.5f, pole_moment = 0.05f;
static const float push = 10.0f, time_step = 0.02f, max_position = 2.4f, max_angle = 0.20943951f;

/* Taylor polynomials after reduction by multiples of pi/2; good to about 1 ulp for the angles that occur here. */
static inline void sine_cosine(float angle, float *sine, float *cosine) {
  float turns = nearbyintf(angle * 0.63661977f);
  int quadrant = (int)turns;
  float r = (angle - turns * 1.57079637f) + turns * 4.37113883e-8f;
  float q = r * r;
  float s = r + r * q * (-1.66666667e-1f + q * (8.33333333e-3f + q * (-1.98412698e-4f + q * 2.75573192e-6f)));
  float c = 1.0f + q * (-0.5f + q * (4.16666667e-2f + q * (-1.38888889e-3f + q * 2.48015873e-5f)));
  float a = quadrant & 1 ? c : s, b = quadrant & 1 ? s : c;
  *sine = quadrant & 2 ? -a : a;
  *cosine = (quadrant + 1) & 2 ? -b : b;
}

/* Runs lanes [0, width) of one block; `states`, `actions` and `resets` point at the block's first environment. */
static inline void run_block(float *states, const int32_t *actions, const float *resets, long envs, long rows, long steps,
                             int width) {
  float x[BLOCK], dx[BLOCK], a[BLOCK], da[BLOCK];
  for (int i = 0; i < width; i++) {
    x[i] = states[i], dx[i] = states[envs + i], a[i] = states[2 * envs + i], da[i] = states[3 * envs + i];
  }
  for (long t = 0, row = 0; t < steps; t++, row = row + 1 == rows ? 0 : row + 1) {
    const int32_t *act = actions + row * envs;
    const float *reset = resets + row * 4 * envs;
#pragma omp simd
    for (int i = 0; i < width; i++) {
      float sine, cosine, force = act[i] == 1 ? push : -push;
      sine_cosine(a[i], &sine, &cosine);
      float pushed = (force + pole_moment * da[i] * da[i] * sine) / total_mass;
      float turn = (gravity * sine - cosine * pushed) /
                   (half_length * (4.0f / 3.0f - pole_mass * cosine * cosine / total_mass));
      float moved = pushed - pole_moment * turn * cosine / total_mass;
      float nx = x[i] + time_step * dx[i], ndx = dx[i] + time_step * moved;
      float na = a[i] + time_step * da[i], nda = da[i] + time_step * turn;
      int done = (fabsf(nx) > max_position) | (fabsf(na) > max_angle);
      x[i] = done ? reset[i] : nx;
      dx[i] = done ? reset[envs + i] : ndx;
      a[i] = done ? reset[2 * envs + i] : na;
      da[i] = done ? reset[3 * envs + i] : nda;
    }
  }
  for (int i = 0; i < width; i++) {
    states[i] = x[i], states[envs + i] = dx[i], states[2 * envs + i] = a[i], states[3 * envs + i] = da[i];
  }
}

static void run(float *states, const int32_t *actions, const float *resets, long envs, long rows, long steps) {
#pragma omp parallel for schedule(dynamic)
  for (long first = 0; first < envs; first += BLOCK) {
    long left = envs - first;
    if (left >= BLOCK) { /* a constant width lets the compiler keep the block in registers */
      run_block(states + first, actions + first, resets + first, envs, rows, steps, BLOCK);
    } else {
      run_block(states + first, actions + first, resets + first, envs, rows, steps, (int)left);
    }
  }
}

static void *transfer(const char *folder, const char *name, const char *mode, void *data, size_t bytes) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, mode);
  size_t done = !file ? 0 : *mode == 'r' ? fread(data, 1, bytes, file) : fwrite(data, 1, bytes, file);
  if (!file || fclose(file) || done != bytes) {
    fprintf(stderr, "cannot transfer %zu bytes of %s\n", bytes, path);
    exit(1);
  }
  return data;
}

static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  long envs = atol(argv[2]), rows = atol(argv[3]);
  size_t state_bytes = 16 * (size_t)envs, action_bytes = 4 * (size_t)(envs * rows);
  float *start = transfer(argv[1], "state.bin", "rb", malloc(state_bytes), state_bytes);
  int32_t *actions = transfer(argv[1], "actions.bin", "rb", malloc(action_bytes), action_bytes);
  float *resets = transfer(argv[1], "resets.bin", "rb", malloc(4 * action_bytes), 4 * action_bytes);
  float *states = malloc(state_bytes);
  printf("ready 0\n");
  fflush(stdout);
  for (char line[64]; fgets(line, sizeof line, stdin);) {
    memcpy(states, start, state_bytes);
    double begin = now_ms();
    run(states, actions, resets, envs, rows, atol(line));
    double end = now_ms();
    transfer(argv[1], "result.bin", "wb", states, state_bytes);
    printf("%.6f\n", end - begin);
    fflush(stdout);
  }
  return 0;
}
