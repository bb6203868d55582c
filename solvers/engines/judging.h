/* What stands on one device, judged: what `problems.patterns.judge` says of one, for `contents.c` and `exchange.c`.
 *
 * Latencies are table x variant x grid share x batch, `inf` where nothing runs; units as in `problems.joint`.
 */
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define WHOLE 100 /* percent of share, and most members of a device */
#define BATCHES_MAX 256
#define TOLERANCE 1e-9
#define BUSY_MIN 0.05 /* `promise.UTILISATION_MIN` */

typedef struct {
    int64_t pools, kinds, tables, variants, workloads, shares, batches, width;
    const double *mean_ms, *tail_ms, *power_w; /* table x variant x share x batch */
    const double *memory_mib;                  /* table x variant x batch */
    const double *press;                       /* table x variant x whole percent: what a replica presses itself */
    const double *sensitivity, *crowd;         /* table x variant */
    const double *batch;
    const int64_t *grid_pct, *kind_pool, *kind_table, *workload; /* the last: of a variant */
    const uint8_t *allowed;                                      /* pool x variant */
    const double *room_mib, *idle_w, *limit_w;                   /* by pool */
    const uint8_t *capped;
    const int64_t *clients;
    const double *limit_ms, *burst, *busy_max; /* by workload */
    const uint8_t *end_to_end, *dedicated;
    const int64_t *per_device;
    const int64_t *avoid_start, *avoids; /* by workload, both ways */
} Problem;

typedef struct {
    uint8_t *lawful;
    int64_t *column; /* row x place: which batch */
    double *latency_ms, *granted_rps, *full_rps, *power_w, *memory_mib, *draw_w;
} Judged;

/* ---- one replica ------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t low, high; /* rows of the grid, -1 below it */
    double weight;     /* the upper one's */
} Between;

static Between place(const Problem *p, int64_t pct)
{
    int64_t at = 0;
    while (at < p->shares - 1 && p->grid_pct[at] < pct) at++;
    if (p->grid_pct[at] <= pct) return (Between){at, at, 0.0};
    if (!at) return (Between){-1, 0, 0.0};
    return (Between){at - 1, at, (double)(pct - p->grid_pct[at - 1]) / (double)(p->grid_pct[at] - p->grid_pct[at - 1])};
}

static double latency(const double *cells, Between at, int64_t stride)
{
    if (at.low < 0) return INFINITY;
    double low = cells[at.low * stride], high = cells[at.high * stride];
    if (at.weight <= 0) return low;
    if (!isfinite(low) || !isfinite(high)) return INFINITY;
    return low * high / ((1 - at.weight) * high + at.weight * low);
}

static double watts(const double *cells, Between at, int64_t stride)
{
    if (at.low < 0) return INFINITY;
    if (at.weight <= 0) return cells[at.low * stride];
    return (1 - at.weight) * cells[at.low * stride] + at.weight * cells[at.high * stride];
}

/* `promise.bearable` and `rate_rps`: the rate that may be granted, 0 where the promise cannot be kept. */
static double granted(const Problem *p, int64_t work, double batch, double mean_ms, double tail_ms, double slack,
                      double *latency_ms)
{
    double limit = p->limit_ms[work], burst = p->burst[work], busy = p->busy_max[work], waits = 0;
    if (p->end_to_end[work]) {
        if (isfinite(limit) && burst > 0) {
            double left = limit / tail_ms - 2, spare = 2 * batch * (left > 0 ? left : 0);
            double borne = spare / (burst + spare);
            if (borne < busy) busy = borne;
        }
        if (!(busy >= BUSY_MIN)) busy = BUSY_MIN;
        waits = 1 + burst * busy / (2 * (1 - busy) * batch);
    }
    *latency_ms = tail_ms * (1 + waits);
    if (!(*latency_ms <= limit * (1 + slack)) || !isfinite(mean_ms)) return 0;
    return busy * 1000 * batch / mean_ms;
}

/* ---- judging devices --------------------------------------------------------------------------------------------- */

static int conflict(const Problem *p, int64_t one, int64_t other)
{
    for (int64_t i = p->avoid_start[one]; i < p->avoid_start[one + 1]; i++)
        if (p->avoids[i] == other) return 1;
    return 0;
}

static int rules_kept(const Problem *p, int64_t pool, int n, const int64_t *variant, const int64_t *pct)
{
    int64_t total = 0;
    for (int i = 0; i < n; i++) total += pct[i];
    if (total > WHOLE || n > p->clients[pool]) return 0;
    for (int i = 0; i < n; i++) {
        int64_t work = p->workload[variant[i]], times = 0;
        if (!p->allowed[pool * p->variants + variant[i]] || (n > 1 && p->dedicated[work])) return 0;
        for (int j = 0; j < n; j++) {
            times += p->workload[variant[j]] == work;
            if (j != i && conflict(p, work, p->workload[variant[j]])) return 0;
        }
        if (times > p->per_device[work]) return 0;
    }
    return 1;
}

/* While memory lacks, the member that loses least of its rate per MiB takes a smaller batch. */
static int fit_memory(int n, int64_t batches, double room, const double *choice,
                      const double *const *need, int64_t *column)
{
    for (;;) {
        double held = 0, least = INFINITY;
        int at = -1;
        int64_t lower = 0;
        for (int i = 0; i < n; i++) held += need[i][column[i]];
        if (!(held > room)) return 1;
        for (int i = 0; i < n; i++) {
            double now = choice[i * batches + column[i]];
            for (int64_t b = 0; b < column[i] && b < batches; b++) {
                double saved = need[i][column[i]] - need[i][b];
                if (!(choice[i * batches + b] > 0) || !(saved > 0)) continue;
                double loss = (1 - choice[i * batches + b] / (now > 0 ? now : 1.0)) / saved;
                if (loss < least) least = loss, at = i, lower = b;
            }
        }
        if (at < 0) return 0;
        column[at] = lower;
    }
}

/* Members stand first, in order. Returns whether the row is lawful. */
static int judge_row(const Problem *p, int64_t kind, const int64_t *variant, const int64_t *pct, const double *factor,
                     int eager, int64_t width, const Judged *out, int64_t row)
{
    int64_t nb = p->batches;
    double choice[WHOLE * BATCHES_MAX], rates[WHOLE * BATCHES_MAX], waits[WHOLE * BATCHES_MAX], means[WHOLE * BATCHES_MAX];
    const double *need[WHOLE];
    int64_t table = p->kind_table[kind], pool = p->kind_pool[kind], base = row * width;
    Between at[WHOLE];
    int n = 0;
    out->draw_w[row] = p->idle_w[pool];
    while (n < width && variant[n] >= 0) n++;
    if (n > WHOLE) return 0;
    int lawful = rules_kept(p, pool, n, variant, pct);
    double pressure = 0;
    for (int i = 0; i < n; i++) pressure += p->press[(table * p->variants + variant[i]) * (WHOLE + 1) + (pct[i] > WHOLE ? WHOLE : pct[i])];
    for (int i = 0; i < n; i++) {
        int64_t cell = table * p->variants + variant[i], work = p->workload[variant[i]], *column = &out->column[base + i];
        double own = p->press[cell * (WHOLE + 1) + (pct[i] > WHOLE ? WHOLE : pct[i])];
        double slow = factor ? factor[i] : n < 2 ? 1.0 : p->crowd[cell] * (1 + p->sensitivity[cell] * (pressure - own));
        at[i] = place(p, pct[i]);
        need[i] = p->memory_mib + cell * nb;
        for (int64_t b = 0; b < nb; b++) {
            double mean = latency(p->mean_ms + cell * p->shares * nb + b, at[i], nb) * slow, tail = mean;
            if (p->tail_ms != p->mean_ms) tail = latency(p->tail_ms + cell * p->shares * nb + b, at[i], nb) * slow;
            means[i * nb + b] = mean;
            rates[i * nb + b] = granted(p, work, p->batch[b], mean, tail, TOLERANCE, &waits[i * nb + b]);
            if (!(need[i][b] <= p->room_mib[pool] + TOLERANCE)) rates[i * nb + b] = 0;
            choice[i * nb + b] = !eager ? rates[i * nb + b] : rates[i * nb + b] > 0 ? 1000 * p->batch[b] / mean : 0;
        }
        *column = 0;
        for (int64_t b = 1; b < nb; b++)
            if (choice[i * nb + b] > choice[i * nb + *column]) *column = b;
        lawful &= choice[i * nb + *column] > 0;
    }
    if (lawful) lawful = fit_memory(n, nb, p->room_mib[pool] + TOLERANCE, choice, need, out->column + base);
    double draw = 0;
    for (int i = 0; i < n; i++) {
        int64_t b = out->column[base + i], cell = table * p->variants + variant[i];
        out->latency_ms[base + i] = waits[i * nb + b];
        out->granted_rps[base + i] = rates[i * nb + b];
        out->full_rps[base + i] = rates[i * nb + b] > 0 ? 1000 * p->batch[b] / means[i * nb + b] : 0;
        out->power_w[base + i] = watts(p->power_w + cell * p->shares * nb + b, at[i], nb);
        out->memory_mib[base + i] = need[i][b];
        draw += out->power_w[base + i];
    }
    draw += p->idle_w[pool];
    if (p->capped[pool] && !(draw <= p->limit_w[pool] + TOLERANCE)) lawful = 0;
    out->draw_w[row] = draw < p->limit_w[pool] ? draw : p->limit_w[pool];
    return lawful;
}
