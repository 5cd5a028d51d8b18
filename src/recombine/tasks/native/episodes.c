/* Episodes of grid worlds: the expert's walk, and what the agent observes. `recombine.tasks.grids` defines all of it.

Integers, comparisons, and float32 operations in the order of the definition, none of them fused: the same bits.
*/
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "past_caches.h"

#define ENDED -1
#define NOTHING 0
#define NUM_MOVES 4
#define NUM_CHOICES (1 + NUM_MOVES)
#define NOINLINE static __attribute__((noinline)) /* so that a product and a sum cannot become one operation */

/* ---------------------------------------------------------------- the expert of the preference grid */

typedef struct {
  const int64_t *start, *objects, *moves; /* (episodes), (episodes, objects), (cells, 4) */
  const float *worth;                     /* (episodes, objects) */
  int64_t *cells, *actions;               /* (episodes, steps) */
  uint8_t *present, *optimal;             /* (episodes, steps, objects), (episodes, steps, 5) */
  int64_t num_episodes, num_objects, num_cells, num_steps, plans_for_remaining, threads;
} collection;

NOINLINE void multiply(float *to, const float *from, float factor, int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] = factor * from[i];
}

/* entered[c][S] is the value of stepping onto cell c while the objects S remain; here where object j of S lies at c. */
NOINLINE void collect(float *entered, const int64_t *objects, const float *worth, int64_t num_objects) {
  const int64_t num_sets = (int64_t)1 << num_objects;
  for (int64_t j = 0; j < num_objects; j++) {
    float *here = entered + objects[j] * num_sets;
    for (int64_t set = 0; set < num_sets; set++)
      if (set >> j & 1) here[set] = worth[j] + here[set ^ ((int64_t)1 << j)];
  }
}

NOINLINE void take_best(float *value, const float *entered, const int64_t *moves, int64_t num_cells, int64_t num_sets) {
  for (int64_t c = 0; c < num_cells; c++, value += num_sets, moves += NUM_MOVES) {
    const float *a = entered + moves[0] * num_sets, *b = entered + moves[1] * num_sets;
    const float *d = entered + moves[2] * num_sets, *e = entered + moves[3] * num_sets;
    for (int64_t set = 0; set < num_sets; set++) {
      const float one = a[set] > b[set] ? a[set] : b[set], other = d[set] > e[set] ? d[set] : e[set];
      const float best = one > other ? one : other;
      value[set] = best > 0 ? best : 0;
    }
  }
}

/* `entering` has room for num_steps + 1 tables of (cells, sets): W_0, W_1, ..., and V. */
static void plan(const collection *p, int64_t episode, float discount, float *entering) {
  const int64_t num_sets = (int64_t)1 << p->num_objects, size = p->num_cells * num_sets;
  float *value = entering + p->num_steps * size;
  memset(value, 0, size * sizeof(float));
  for (int64_t n = 0; n < p->num_steps; n++, entering += size) {
    multiply(entering, value, discount, size);
    collect(entering, p->objects + episode * p->num_objects, p->worth + episode * p->num_objects, p->num_objects);
    take_best(value, entering, p->moves, p->num_cells, num_sets);
  }
}

static void walk(const collection *p, int64_t episode, const float *entering) {
  const int64_t *objects = p->objects + episode * p->num_objects, size = p->num_cells << p->num_objects;
  int64_t cell = p->start[episode], left = ((int64_t)1 << p->num_objects) - 1, active = 1;
  for (int64_t step = 0; step < p->num_steps; step++) {
    const int64_t at = episode * p->num_steps + step, *leads = p->moves + cell * NUM_MOVES;
    const float *values = entering + (p->plans_for_remaining ? p->num_steps - 1 - step : p->num_steps - 1) * size;
    float value[NUM_CHOICES] = {0}, best = 0;
    for (int a = 1; a < NUM_CHOICES; a++) {
      value[a] = values[(leads[a - 1] << p->num_objects) + left];
      best = value[a] > best ? value[a] : best;
    }
    int64_t action = NUM_CHOICES;
    for (int a = NUM_CHOICES - 1; a >= 0; a--) {
      p->optimal[at * NUM_CHOICES + a] = value[a] == best;
      if (value[a] == best) action = a;
    }
    for (int64_t j = 0; j < p->num_objects; j++) p->present[at * p->num_objects + j] = left >> j & 1;
    p->cells[at] = cell, p->actions[at] = active ? action : ENDED;
    cell = action == NOTHING ? cell : leads[action - 1];
    for (int64_t j = 0; j < p->num_objects; j++)
      if (objects[j] == cell) left &= ~((int64_t)1 << j);
    active &= action != NOTHING;
  }
}

/* Returns 0, or 1 if there is not enough memory. */
int recombine_demonstrate_preferences(const collection *p, float discount) {
  const int64_t tables = (p->num_steps + 1) * (p->num_cells << p->num_objects);
  int failed = 0;
#pragma omp parallel for num_threads(p->threads) schedule(static) reduction(| : failed) if (p->threads > 1)
  for (int64_t part = 0; part < p->threads; part++) {
    float *entering = malloc(tables * sizeof(float));
    failed |= !entering;
    const int64_t end = entering ? (part + 1) * p->num_episodes / p->threads : 0;
    for (int64_t episode = part * p->num_episodes / p->threads; episode < end; episode++) {
      plan(p, episode, discount, entering);
      walk(p, episode, entering);
    }
    free(entering);
  }
  return failed;
}

/* ---------------------------------------------------------------- the goal grid */

#define MAX_OTHERS 8
#define MAX_CELLS 1024

typedef struct {
  const int64_t *moves, *distance;             /* (mazes, cells, 4), (mazes, cells, cells) */
  const uint8_t *shortest;                     /* (mazes, cells, goals, 4): moves with which shortest paths begin */
  const uint8_t *walls, *quadrants;            /* (mazes, cells), (quadrants, cells) */
  const float *uniform;                        /* (episodes, 4, cells) */
  const int64_t *anything, *something_else;    /* (episodes, others) */
  const int64_t *goals;                        /* (episodes, 4): quadrant, interaction, maze, kind */
  int64_t *objects, *kinds, *code, *maze;      /* (episodes, objects), (episodes, objects), (episodes), (episodes) */
  int64_t *cells, *actions;                    /* (episodes, steps) */
  uint8_t *optimal;                            /* (episodes, steps, 4 + interactions) */
  int64_t num_episodes, num_cells, num_steps, has_decoy, num_others, num_interactions, num_mazes, num_kinds, threads;
} pursuit;

/* The cell with the largest number of those that are open, the first of several; 0 if none is. */
static int64_t find_luckiest(const float *uniform, const uint8_t *open, int64_t num_cells) {
  int64_t best = 0;
  float most = 0;
  for (int64_t c = 0; c < num_cells; c++)
    if (open[c] && uniform[c] + 1 > most) best = c, most = uniform[c] + 1;
  return best;
}

/* The `count` cells with the largest numbers of those that are open, in order; they are closed. Returns whether several have
the same number, or too few are open. */
static int take_luckiest(int64_t *taken, const float *uniform, uint8_t *open, int64_t num_cells, int64_t count) {
  int in_doubt = 0;
  for (int64_t i = 0; i < count; i++) {
    const int64_t best = find_luckiest(uniform, open, num_cells);
    int64_t equal = 0;
    for (int64_t c = 0; c < num_cells; c++) equal += open[c] & (uniform[c] + 1 == uniform[best] + 1);
    in_doubt |= equal != 1;
    taken[i] = best, open[best] = 0;
  }
  return in_doubt;
}

/* Cells and kinds of the objects; the agent's cell into `start`. Returns whether the cells are in doubt. */
static int place(const pursuit *p, int64_t episode, int64_t *start) {
  const int64_t cells = p->num_cells, *goals = p->goals + 4 * episode, maze = goals[2], kind = goals[3];
  const int64_t others = p->num_others, first = 1 + p->has_decoy;
  const float *uniform = p->uniform + 4 * episode * cells;
  const uint8_t *walls = p->walls + maze * cells, *inside = p->quadrants + goals[0] * cells;
  int64_t *objects = p->objects + episode * (first + others), *kinds = p->kinds + episode * (first + others);
  uint8_t open[MAX_CELLS], left[MAX_CELLS];
  for (int64_t c = 0; c < cells; c++) left[c] = !walls[c], open[c] = left[c] & inside[c];
  objects[0] = find_luckiest(uniform, open, cells);
  const int64_t *steps = p->distance + maze * cells * cells + objects[0];
  for (int64_t c = 0; c < cells; c++) open[c] = steps[c * cells] > 0 && steps[c * cells] < p->num_steps;
  *start = find_luckiest(uniform + cells, open, cells);
  left[objects[0]] = left[*start] = 0;
  for (int64_t c = 0; c < cells; c++) open[c] = left[c] & !inside[c];
  if (p->has_decoy) objects[1] = find_luckiest(uniform + 2 * cells, open, cells), left[objects[1]] = 0;
  const int in_doubt = take_luckiest(objects + first, uniform + 3 * cells, left, cells, others);
  for (int64_t i = 0; i < first; i++) kinds[i] = kind;
  for (int64_t i = 0; i < others; i++) {
    const int64_t barred = !p->has_decoy || inside[objects[first + i]], at = episode * others + i;
    kinds[first + i] = barred ? (kind + 1 + p->something_else[at]) % p->num_kinds : p->anything[at];
  }
  return in_doubt;
}

static void walk_to_goal(const pursuit *p, int64_t episode, int64_t cell, int64_t goal) {
  const int64_t *goals = p->goals + 4 * episode, first = goals[2] * p->num_cells, num_actions = NUM_MOVES + p->num_interactions;
  uint8_t *optimal = p->optimal + episode * p->num_steps * num_actions;
  int64_t ended = 0;
  memset(optimal, 0, p->num_steps * num_actions);
  for (int64_t step = 0; step < p->num_steps; step++, optimal += num_actions) {
    const int64_t arrived = cell == goal;
    memcpy(optimal, p->shortest + ((first + cell) * p->num_cells + goal) * NUM_MOVES, NUM_MOVES);
    optimal[NUM_MOVES + goals[1]] = arrived;
    int64_t action = 0;
    while (action < num_actions - 1 && !optimal[action]) action++;
    if (!optimal[action]) action = 0; /* no way at all */
    p->cells[episode * p->num_steps + step] = cell;
    p->actions[episode * p->num_steps + step] = ended ? ENDED : action;
    ended = arrived;
    if (!arrived) cell = p->moves[(first + cell) * NUM_MOVES + (action < NUM_MOVES ? action : NUM_MOVES - 1)];
  }
}

/* Returns 0, or 1 if it is in doubt in some episode which cells its objects have. */
int recombine_demonstrate_goals(const pursuit *p) {
  int in_doubt = 0;
#pragma omp parallel for num_threads(p->threads) schedule(static) reduction(| : in_doubt) if (p->threads > 1)
  for (int64_t episode = 0; episode < p->num_episodes; episode++) {
    const int64_t *goals = p->goals + 4 * episode;
    int64_t start;
    in_doubt |= place(p, episode, &start);
    p->maze[episode] = goals[2];
    p->code[episode] = ((goals[0] * p->num_interactions + goals[1]) * p->num_mazes + goals[2]) * p->num_kinds + goals[3];
    walk_to_goal(p, episode, start, p->objects[episode * (1 + p->has_decoy + p->num_others)]);
  }
  return in_doubt;
}

/* ---------------------------------------------------------------- observations */

typedef struct {
  const int64_t *actions, *cells;   /* (episodes, steps) */
  const uint8_t *present;           /* (episodes, steps, objects), or NULL: all of them, always */
  const int64_t *objects, *kinds;   /* (episodes, objects) */
  const float *codes, *walls;       /* (codes, code), (maps, cells) or NULL */
  const int64_t *code, *map;        /* (episodes): which of them; NULL: number e, and number 0 */
  const float *scales;              /* by the number of ones in an observation */
  float *inputs;                    /* (episodes, steps, code + planes + clock) */
  int64_t num_episodes, num_steps, num_objects, num_kinds, num_cells, code_size, clock, threads;
} observation;

static void observe(const observation *p, int64_t episode, float *to) {
  const int64_t *objects = p->objects + episode * p->num_objects, *kinds = p->kinds + episode * p->num_objects;
  const int64_t planes = (p->num_kinds + 1) * p->num_cells, walled = p->walls ? p->num_cells : 0;
  const float *code = p->codes + (p->code ? p->code[episode] : episode) * p->code_size;
  const float *walls = p->walls ? p->walls + (p->map ? p->map[episode] : 0) * p->num_cells : NULL;
  int64_t fixed = 1 + (p->clock > 0);
  for (int64_t c = 0; c < walled; c++) fixed += walls[c] != 0;
  for (int64_t step = 0; step < p->num_steps; step++) {
    const int64_t at = episode * p->num_steps + step, active = p->actions[at] != ENDED;
    const uint8_t *present = p->present ? p->present + at * p->num_objects : NULL;
    int64_t ones = fixed;
    for (int64_t j = 0; j < p->num_objects; j++) ones += present ? present[j] : 1;
    const float is_active = active, scale = active ? p->scales[ones] : 0;
    for (int64_t i = 0; i < p->code_size; i++) to[i] = code[i] * is_active;
    to += p->code_size;
    memset(to, 0, planes * sizeof(float));
    for (int64_t j = 0; j < p->num_objects; j++)
      to[kinds[j] * p->num_cells + objects[j]] = !present || present[j] ? scale : 0;
    to[p->num_kinds * p->num_cells + p->cells[at]] = scale;
    to += planes;
    for (int64_t c = 0; c < walled; c++) to[c] = walls[c] * scale;
    to += walled;
    memset(to, 0, p->clock * sizeof(float));
    if (p->clock) to[p->clock - 1 - step] = scale;
    to += p->clock;
  }
}

/* Returns 0, or 1 if there is not enough memory. */
int recombine_observe(const observation *p) {
  const int64_t width = p->code_size + (p->num_kinds + 1 + (p->walls != NULL)) * p->num_cells + p->clock;
  const int64_t size = p->num_steps * width;
  int failed = 0;
#pragma omp parallel for num_threads(p->threads) schedule(static) reduction(| : failed) if (p->threads > 1)
  for (int64_t part = 0; part < p->threads; part++) {
    float *made = malloc(size * sizeof(float));
    failed |= !made;
    const int64_t end = made ? (part + 1) * p->num_episodes / p->threads : 0;
    for (int64_t episode = part * p->num_episodes / p->threads; episode < end; episode++) {
      observe(p, episode, made);
      copy_past_caches(p->inputs + episode * size, made, size);
    }
    finish_copies();
    free(made);
  }
  return failed;
}
