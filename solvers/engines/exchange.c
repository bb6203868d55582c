/* Local search over whole devices: share and replicas change hands until fewer or cheaper devices serve everybody.
 *
 * One attempt closes a device (or has a cheaper one, or two, in its place) and then exchanges: share between two replicas
 * of a device, replicas between two devices, a replica for one of another workload. Half of the moves begin at a workload
 * that is short. What is short counts at prices that rise as long as it is and fall to the relaxed optimum's again; worse
 * moves are taken by chance, less and less. An attempt ends when the whole is worth less than the best so far, or has
 * taken its work: then everything is as it was. Every move is judged as `judge` does, and none breaks a rule further.
 *
 * Equal input gives equal output on any machine: no threads, no clock. Work is counted in elementary steps.
 */
#include "chance.h"
#include "judging.h"

#define DEVICE_STEPS 160   /* of work, to judge a device, beside its batches */
#define BATCH_STEPS 24     /* of one replica's batch */
#define TURN 16            /* moves between two looks at prices, times: */
#define TURNS_OF_PRICES 64
#define RISE 0.02          /* of the price of what is short, and how much of that it falls: */
#define FALL 0.3
#define PRICE_TIMES 100.0  /* as high as it gets */
#define HOSTS_TRIED 200
#define VICTIMS 6          /* devices looked at, at most, for one to close */
#define NOISE 0.1
#define FAILS 20           /* attempts in vain after which they are longer */
#define LONGER 1.5
#define KICK 4             /* so many in vain, and one device more may be closed at once */
#define GAIN 1e-7
#define SHORT 1e-9         /* part of a rate that is none: `solution.SERVED` */

typedef struct {
    int64_t step, caps, quotas, by_replica;
    double usd_per_wh;
    const double *usd, *budget_usd, *part;        /* by pool; the second: as budgets count */
    const int64_t *devices;                       /* by pool */
    const double *held;                           /* as in `contents.c`; none: by share */
    const double *cap_pools, *cap_room;           /* cap x pool; watts above idle */
    const int64_t *quota;                         /* by workload, -1: none */
    const double *quota_room, *most, *money;      /* the last two by workload */
    const int64_t *floor_start;                   /* by workload, one more */
    const double *floor_pools, *floor_least, *floor_usd; /* floor x pool; by floor */
    const double *rate_rps, *unserved_usd, *price; /* by workload */
    const double *missed;                         /* by workload: that it is short at all, beside how much */
    const double *speed, *pace;                   /* one by latencies: `contents.c` */
} Limits;

typedef struct {
    double heat, cold; /* $/h that a move may lose, at the beginning and at the end of an attempt */
    int64_t work, each, patience, seed; /* in all, of an attempt at first; attempts in vain after which it ends */
    int64_t closes; /* whether the first attempt begins by closing a device */
    int64_t serves; /* whether it ends when everybody who must be is served */
} Plan;

typedef struct {
    int64_t kind;
    int n;
    int64_t *variant, *pct;
    double *rate, usd, draw; /* watts above idle */
} Device;

typedef struct {
    const Problem *p;
    const Limits *t;
    int64_t room, used, width;
    Device *device, one, other; /* the last two: what a move makes of them */
    double *served, *price, *cap_watt, *quota_gpus, *replicas, *money, *floors, *change;
    int64_t *seen, seen_n, *shorts, shorts_n, *short_at, *spare;
    uint8_t *touched;
    int64_t *able, *able_start, *mine, *mine_start;
    uint64_t random;
    int64_t work;
    double worth;
    int64_t serves;
    Judged judged;
    Between at[WHOLE + 1];
    const double *speed, *pace; /* `contents.c` */
} Walk;

/* ---- devices and what they use ------------------------------------------------------------------------------------ */

static void copy(Device *to, const Device *from)
{
    to->kind = from->kind, to->n = from->n, to->usd = from->usd, to->draw = from->draw;
    for (int i = 0; i < from->n; i++)
        to->variant[i] = from->variant[i], to->pct[i] = from->pct[i], to->rate[i] = from->rate[i];
}

static void without(Device *d, int at)
{
    for (int i = at; i + 1 < d->n; i++) d->variant[i] = d->variant[i + 1], d->pct[i] = d->pct[i + 1];
    d->n--;
}

static void with(Device *d, int64_t variant, int64_t pct)
{
    d->variant[d->n] = variant, d->pct[d->n] = pct;
    d->n++;
}

static int64_t free_pct(const Device *d)
{
    int64_t left = WHOLE;
    for (int i = 0; i < d->n; i++) left -= d->pct[i];
    return left;
}

static int place_of(const Walk *w, const Device *d, int64_t work)
{
    for (int i = 0; i < d->n; i++)
        if (w->p->workload[d->variant[i]] == work) return i;
    return -1;
}

/* The batch of most rate of a replica, largest first: what a batch cannot reach need not be reckoned. None: 0. */
static double fastest(const Walk *w, int64_t cell, int64_t work, int64_t pct, double slow, int64_t *column)
{
    const Problem *p = w->p;
    const Between at = w->at[pct];
    double best = 0, unused, busy = p->busy_max[work] > BUSY_MIN ? p->busy_max[work] : BUSY_MIN;
    double limit = p->limit_ms[work] * (1 + 2 * TOLERANCE) / slow, top = busy * 1000 / slow * (1 + 2 * TOLERANCE);
    if (at.low < 0) return 0;
    int64_t low = (cell * p->shares + at.low) * p->batches, high = (cell * p->shares + at.high) * p->batches;
    for (int64_t b = p->batches - 1; b >= 0; b--) {
        double speed = (1 - at.weight) * w->speed[low + b] + at.weight * w->speed[high + b];
        if (top * p->batch[b] * speed < best) continue;
        if (limit * ((1 - at.weight) * w->pace[low + b] + at.weight * w->pace[high + b]) < 1) continue;
        const double *mean = p->mean_ms + cell * p->shares * p->batches + b, *tail = p->tail_ms + cell * p->shares * p->batches + b;
        double mean_ms = latency(mean, at, p->batches) * slow, tail_ms = mean == tail ? mean_ms : latency(tail, at, p->batches) * slow;
        double rate = granted(p, work, p->batch[b], mean_ms, tail_ms, TOLERANCE, &unused);
        if (rate > 0 && rate >= best) best = rate, *column = b;
    }
    return best;
}

/* What `judge_row` says, where memory is no matter. */
static int quickly(Walk *w, Device *d, double *watt)
{
    const Problem *p = w->p;
    int64_t table = p->kind_table[d->kind], pool = p->kind_pool[d->kind], column = 0;
    double pressure = 0, mib = 0, draw = p->idle_w[pool], drawn = 0;
    if (!rules_kept(p, pool, d->n, d->variant, d->pct)) return 0;
    for (int i = 0; i < d->n; i++) pressure += p->press[(table * p->variants + d->variant[i]) * (WHOLE + 1) + d->pct[i]];
    for (int i = 0; i < d->n; i++) {
        int64_t cell = table * p->variants + d->variant[i];
        double own = p->press[cell * (WHOLE + 1) + d->pct[i]];
        double slow = d->n < 2 ? 1.0 : p->crowd[cell] * (1 + p->sensitivity[cell] * (pressure - own));
        d->rate[i] = fastest(w, cell, p->workload[d->variant[i]], d->pct[i], slow, &column);
        if (!(d->rate[i] > 0)) return 0;
        mib += p->memory_mib[cell * p->batches + column];
        drawn += watts(p->power_w + cell * p->shares * p->batches + column, w->at[d->pct[i]], p->batches);
    }
    if (mib > p->room_mib[pool] + TOLERANCE) {
        if (d->n < w->width) d->variant[d->n] = -1;
        if (!judge_row(p, d->kind, d->variant, d->pct, NULL, 0, w->width, &w->judged, 0)) return 0;
        for (int i = 0; i < d->n; i++) d->rate[i] = w->judged.granted_rps[i];
        *watt = w->judged.draw_w[0];
        return 1;
    }
    draw += drawn;
    if (p->capped[pool] && !(draw <= p->limit_w[pool] + TOLERANCE)) return 0;
    *watt = draw < p->limit_w[pool] ? draw : p->limit_w[pool];
    return 1;
}

/* Shares that are no multiple of the step, since another has got all of a device or a part of that, are less. */
static void round_down(const Walk *w, Device *d)
{
    for (int i = 0; i < d->n && WHOLE % w->t->step; i++)
        if (d->pct[i] < WHOLE) d->pct[i] -= d->pct[i] % w->t->step;
}

/* Whether it is lawful; with its rates, its cost and what it draws. */
static int judged(Walk *w, Device *d)
{
    const Problem *p = w->p;
    const Limits *t = w->t;
    int n = d->n;
    double watt = 0;
    if (!n || n > p->clients[p->kind_pool[d->kind]]) return 0;
    for (int i = 1; i < n; i++)
        for (int j = i; j && (d->variant[j] < d->variant[j - 1] || (d->variant[j] == d->variant[j - 1] && d->pct[j] < d->pct[j - 1])); j--) {
            int64_t v = d->variant[j], c = d->pct[j];
            d->variant[j] = d->variant[j - 1], d->pct[j] = d->pct[j - 1], d->variant[j - 1] = v, d->pct[j - 1] = c;
        }
    w->work += DEVICE_STEPS + n * BATCH_STEPS * p->batches;
    if (!quickly(w, d, &watt)) return 0;
    int64_t pool = p->kind_pool[d->kind];
    d->draw = watt - p->idle_w[pool];
    d->usd = t->by_replica ? 0 : t->usd[pool] + t->usd_per_wh * watt;
    for (int i = 0; i < n && t->by_replica; i++) {
        if (!t->held) d->usd += t->usd[pool] * (double)d->pct[i] / WHOLE;
        else d->usd += t->held[((d->pct[i] >= WHOLE) * p->kinds + d->kind) * p->variants + d->variant[i]];
    }
    return 1;
}

static double lack(const Walk *w, int64_t work, double served)
{
    double rate = w->t->rate_rps[work];
    if (!(rate > 0)) return 0;
    double part = 1 - served / rate;
    return part > SHORT ? part : 0;
}

/* What lacks of a workload costs at least: who may wait does, as long as others have to be served. */
static double base_price(const Walk *w, int64_t work) { return w->serves && !(w->t->missed[work] > 0) ? 0 : w->t->price[work]; }

static double missed_usd(const Walk *w, int64_t work, double part)
{
    if (w->serves) return base_price(w, work) * part;
    return part > 0 ? w->t->unserved_usd[work] * part + w->t->missed[work] : 0;
}

static double floor_usd(const Walk *w, int64_t work)
{
    double usd = 0;
    for (int64_t f = w->t->floor_start[work]; f < w->t->floor_start[work + 1]; f++) {
        double missing = w->t->floor_least[f] - w->floors[f];
        if (missing > 0) usd += w->t->floor_usd[f] * missing / w->t->floor_least[f];
    }
    return usd;
}

static void use(Walk *w, const Device *d, double sign)
{
    const Problem *p = w->p;
    const Limits *t = w->t;
    if (!d->n) return;
    int64_t pool = p->kind_pool[d->kind];
    w->spare[pool] -= (int64_t)sign;
    for (int64_t c = 0; c < t->caps; c++)
        if (t->cap_pools[c * p->pools + pool] > 0) w->cap_watt[c] += sign * d->draw;
    for (int i = 0; i < d->n; i++) {
        int64_t work = p->workload[d->variant[i]];
        double share = (double)d->pct[i] / WHOLE;
        w->replicas[work] += sign;
        w->money[work] += sign * t->budget_usd[pool] * share;
        if (t->quota[work] >= 0) w->quota_gpus[t->quota[work]] += sign * t->part[pool] * share;
        for (int64_t f = t->floor_start[work]; f < t->floor_start[work + 1]; f++)
            if (t->floor_pools[f * p->pools + pool] > 0) w->floors[f] += sign;
    }
}

static int over(double used, double before, double room) { return used > room * (1 + 1e-9) + 1e-9 && used > before + 1e-9; }

/* Whether a device in the place of another (or of none) breaks no rule further; two by two. */
static int allowed(Walk *w, const Device *const *before, const Device *const *after, int n)
{
    const Problem *p = w->p;
    const Limits *t = w->t;
    for (int64_t c = 0; c < t->caps; c++) {
        double more = 0;
        for (int i = 0; i < n; i++) {
            if (before[i]->n && t->cap_pools[c * p->pools + p->kind_pool[before[i]->kind]] > 0) more -= before[i]->draw;
            if (t->cap_pools[c * p->pools + p->kind_pool[after[i]->kind]] > 0) more += after[i]->draw;
        }
        if (over(w->cap_watt[c] + more, w->cap_watt[c], t->cap_room[c])) return 0;
    }
    int fits = 1;
    for (int i = 0; i < n; i++) {
        use(w, before[i], -1);
        use(w, after[i], 1);
    }
    for (int i = 0; i < n && fits; i++) {
        if (w->spare[p->kind_pool[after[i]->kind]] < 0) fits = 0;
        for (int j = 0; j < after[i]->n && fits; j++) {
            int64_t work = p->workload[after[i]->variant[j]], q = t->quota[work];
            if (w->replicas[work] > t->most[work] || w->money[work] > t->money[work] * (1 + 1e-9)) fits = 0;
            if (q >= 0 && w->quota_gpus[q] > t->quota_room[q] * (1 + 1e-9) + 1e-9) fits = 0;
        }
    }
    if (fits) return 1;
    for (int i = 0; i < n; i++) {
        use(w, after[i], -1);
        use(w, before[i], 1);
    }
    return 0;
}

static void list_short(Walk *w, int64_t work)
{
    int64_t at = w->short_at[work];
    if ((at >= 0) == (lack(w, work, w->served[work]) > 0)) return;
    if (at < 0) w->short_at[work] = w->shorts_n, w->shorts[w->shorts_n++] = work;
    else {
        int64_t last = w->shorts[--w->shorts_n];
        w->shorts[at] = last, w->short_at[last] = at, w->short_at[work] = -1;
    }
}

static void note(Walk *w, const Device *d, double sign)
{
    for (int i = 0; i < d->n; i++) {
        int64_t work = w->p->workload[d->variant[i]];
        if (!w->touched[work]) w->touched[work] = 1, w->change[work] = 0, w->seen[w->seen_n++] = work;
        w->change[work] += sign * d->rate[i];
    }
}

/* Put `w->one` in the place of a device and `w->other` in that of another (-1: none), if that is worth it. */
static int taken(Walk *w, int64_t at, int64_t also, double heat)
{
    round_down(w, &w->one), round_down(w, &w->other);
    if (!judged(w, &w->one) || (also >= 0 && !judged(w, &w->other))) return 0;
    Device *old[2] = {&w->device[at], also >= 0 ? &w->device[also] : NULL};
    const Device *made[2] = {&w->one, &w->other};
    int n = also >= 0 ? 2 : 1, done = 0;
    double usd = 0, counted = 0, missed = 0, most = -heat * log(uniform(&w->random) + 1e-300) + 1e-12;
    w->seen_n = 0;
    for (int i = 0; i < n; i++) usd += made[i]->usd - old[i]->usd, note(w, old[i], -1), note(w, made[i], 1);
    for (int64_t i = 0; i < w->seen_n; i++) {
        int64_t work = w->seen[i];
        double before = lack(w, work, w->served[work]), after = lack(w, work, w->served[work] + w->change[work]);
        if (before == after) continue;
        counted += w->price[work] * (after - before);
        missed += missed_usd(w, work, after) - missed_usd(w, work, before);
    }
    if (usd + counted <= most) {
        double floors = 0;
        for (int64_t i = 0; i < w->seen_n; i++) floors -= floor_usd(w, w->seen[i]);
        done = allowed(w, (const Device *const *)old, made, n);
        if (done) {
            for (int64_t i = 0; i < w->seen_n; i++) floors += floor_usd(w, w->seen[i]);
            if (usd + counted + floors > most) {
                for (int i = 0; i < n; i++) use(w, made[i], -1), use(w, old[i], 1);
                done = 0;
            }
        }
        if (done) {
            w->worth += usd + missed + floors;
            for (int64_t i = 0; i < w->seen_n; i++) {
                w->served[w->seen[i]] += w->change[w->seen[i]];
                list_short(w, w->seen[i]);
            }
            for (int i = 0; i < n; i++) copy(old[i], made[i]);
        }
    }
    for (int64_t i = 0; i < w->seen_n; i++) w->touched[w->seen[i]] = 0;
    return done;
}

/* ---- moves -------------------------------------------------------------------------------------------------------- */

static const int64_t STEPS[] = {1, 1, 1, 2, 2, 3, 4, 5, 7, 10, 15, 20};

static int64_t amount(Walk *w) { return STEPS[below(&w->random, 12)] * w->t->step; }

static int64_t some_variant(Walk *w, int64_t pool)
{
    int64_t n = w->able_start[pool + 1] - w->able_start[pool];
    return n ? w->able[w->able_start[pool] + below(&w->random, n)] : -1;
}

static int64_t variant_for(Walk *w, int64_t pool, int64_t work)
{
    int64_t n = w->mine_start[work + 1] - w->mine_start[work];
    int64_t variant = n ? w->mine[w->mine_start[work] + below(&w->random, n)] : -1;
    return variant >= 0 && w->p->allowed[pool * w->p->variants + variant] ? variant : -1;
}

/* Share for somebody: what is free, the rest of it from a member. None: that has too little. */
static int64_t share_from(Device *d, int at, int64_t pct)
{
    int64_t lacking = pct - free_pct(d);
    if (lacking <= 0) return pct;
    if (d->pct[at] <= lacking) return 0;
    d->pct[at] -= lacking;
    return pct;
}

static int joins(Walk *w, Device *d, int64_t variant, int64_t pct, int at)
{
    if (variant < 0 || d->n >= w->p->clients[w->p->kind_pool[d->kind]]) return 0;
    pct = share_from(d, at, pct);
    if (pct <= 0) return 0;
    with(d, variant, pct);
    return 1;
}

/* Share from one member (or, `from` -1, what is free) to another. */
static int hands_over(Device *d, int from, int to, int64_t pct)
{
    int64_t left = free_pct(d);
    if (from < 0) {
        if (left <= 0) return 0;
        d->pct[to] += pct < left ? pct : left;
    } else if (d->pct[from] > pct) d->pct[from] -= pct, d->pct[to] += pct;
    else {
        d->pct[to] += d->pct[from];
        without(d, from);
    }
    return 1;
}

/* A member of `w->one` and one of another device change places; that device, -1 where there is none. */
static int64_t swaps(Walk *w, int64_t at, int x)
{
    int64_t also = below(&w->random, w->used);
    if (also == at) return -1;
    copy(&w->other, &w->device[also]);
    int y = (int)below(&w->random, w->other.n);
    int64_t variant = w->one.variant[x];
    w->one.variant[x] = w->other.variant[y], w->other.variant[y] = variant;
    return also;
}

/* More of a workload that is short. */
static int serve(Walk *w, int64_t work, double heat)
{
    int64_t at = -1, also = -1;
    int x = -1;
    double way = uniform(&w->random);
    /* Where nobody hosts it nothing is looked at; whoever draws after that draws the same. */
    for (int turn = 0; way >= 0.3 && !(w->replicas[work] > 0) && turn < HOSTS_TRIED; turn++) next(&w->random);
    for (int turn = 0; way >= 0.3 && w->replicas[work] > 0 && x < 0 && turn < HOSTS_TRIED; turn++) {
        at = below(&w->random, w->used);
        x = place_of(w, &w->device[at], work);
    }
    w->work += DEVICE_STEPS / 4;
    if (x < 0) {
        at = below(&w->random, w->used);
        copy(&w->one, &w->device[at]);
        if (place_of(w, &w->one, work) >= 0) return 0;
        int64_t variant = variant_for(w, w->p->kind_pool[w->one.kind], work);
        int y = (int)below(&w->random, w->one.n);
        if (variant < 0) return 0;
        if (way < 0.15) w->one.variant[y] = variant;
        else if (!joins(w, &w->one, variant, amount(w) * (1 + below(&w->random, 5)), y)) return 0;
        return taken(w, at, -1, heat);
    }
    copy(&w->one, &w->device[at]);
    if (way < 0.8) {
        int y = free_pct(&w->one) > 0 && below(&w->random, 2) ? -1 : (int)below(&w->random, w->one.n);
        if (y == x) y = w->one.n > 1 ? (x + 1) % w->one.n : -1;
        if (!hands_over(&w->one, y, x, amount(w))) return 0;
    } else if ((also = swaps(w, at, x)) < 0) return 0;
    return taken(w, at, also, heat);
}

static int wander(Walk *w, double heat)
{
    const Problem *p = w->p;
    int64_t at = below(&w->random, w->used), also = -1;
    Device *one = &w->one, *other = &w->other;
    copy(one, &w->device[at]);
    int x = (int)below(&w->random, one->n);
    double way = uniform(&w->random);
    int64_t pool = p->kind_pool[one->kind], pct = amount(w);
    if (way < 0.42) {
        if (one->n < 2) return 0;
        int y = (int)below(&w->random, one->n - 1);
        if (!hands_over(one, x, y >= x ? y + 1 : y, pct)) return 0;
    } else if (way < 0.50) {
        if (!below(&w->random, 3) && one->pct[x] > pct) one->pct[x] -= pct;
        else if (!hands_over(one, -1, x, pct)) return 0;
    } else if (way < 0.58) {
        int64_t variant = some_variant(w, pool);
        if (variant < 0) return 0;
        one->variant[x] = variant;
    } else if (way < 0.64) {
        if (!joins(w, one, some_variant(w, pool), pct * (1 + below(&w->random, 4)), x)) return 0;
    } else if (way < 0.84) {
        if ((also = swaps(w, at, x)) < 0) return 0;
    } else if (way < 0.95) {
        also = below(&w->random, w->used);
        if (also == at || one->n < 2) return 0;
        copy(other, &w->device[also]);
        int64_t variant = one->variant[x], had = one->pct[x];
        if (!joins(w, other, variant, had, (int)below(&w->random, other->n))) return 0;
        without(one, x);
        one->pct[below(&w->random, one->n)] += had;
    } else {
        int64_t kind = below(&w->random, p->kinds), to = p->kind_pool[kind];
        if (kind == one->kind || (to != pool && w->spare[to] < 1)) return 0;
        one->kind = kind;
    }
    return taken(w, at, also, heat);
}

/* ---- attempts ----------------------------------------------------------------------------------------------------- */

static double summed(const Walk *w)
{
    double usd = 0;
    for (int64_t i = 0; i < w->used; i++) usd += w->device[i].usd;
    for (int64_t k = 0; k < w->p->workloads; k++)
        usd += missed_usd(w, k, lack(w, k, w->served[k])) + floor_usd(w, k);
    return usd;
}

static void count_up(Walk *w)
{
    const Problem *p = w->p;
    size_t works = sizeof(double) * (size_t)p->workloads;
    memset(w->served, 0, works), memset(w->replicas, 0, works), memset(w->money, 0, works);
    memset(w->cap_watt, 0, sizeof(double) * (size_t)w->t->caps);
    memset(w->quota_gpus, 0, sizeof(double) * (size_t)w->t->quotas);
    memset(w->floors, 0, sizeof(double) * (size_t)w->t->floor_start[p->workloads]);
    for (int64_t pool = 0; pool < p->pools; pool++) w->spare[pool] = w->t->devices[pool];
    for (int64_t i = 0; i < w->used; i++) {
        const Device *d = &w->device[i];
        use(w, d, 1);
        for (int x = 0; x < d->n; x++) w->served[p->workload[d->variant[x]]] += d->rate[x];
    }
    for (int64_t k = 0; k < p->workloads; k++) list_short(w, k);
    w->worth = summed(w);
    w->work += w->used * DEVICE_STEPS / 8 + p->workloads;
}

static void put_back(Walk *w, const Device *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) copy(&w->device[i], &from[i]);
    w->used = n;
    count_up(w);
}

/* Of some devices the one that is worth least for what it costs. */
static int64_t victim(Walk *w)
{
    double least = INFINITY;
    int64_t found = 0;
    for (int64_t turn = 1 + below(&w->random, VICTIMS); turn; turn--) {
        int64_t at = below(&w->random, w->used);
        const Device *d = &w->device[at];
        double worth = 0;
        for (int i = 0; i < d->n; i++) {
            int64_t work = w->p->workload[d->variant[i]];
            if (w->t->rate_rps[work] > 0) worth += w->t->price[work] * d->rate[i] / w->t->rate_rps[work];
        }
        worth = worth / (d->usd + 1e-9) + NOISE * uniform(&w->random);
        if (worth < least) least = worth, found = at;
    }
    return found;
}

/* A cheaper device of another pool with what one had, or with what another of its kind has. */
static int opened(Walk *w, const Device *gone, double usd)
{
    const Problem *p = w->p;
    int64_t kind = below(&w->random, p->kinds), pool = p->kind_pool[kind];
    if (w->used >= w->room || w->spare[pool] < 1 || pool == p->kind_pool[gone->kind]) return 0;
    Device *d = &w->device[w->used];
    d->n = 0;
    for (int turn = 0, like = (int)below(&w->random, 2); like && !d->n && turn < 50; turn++) {
        const Device *other = &w->device[below(&w->random, w->used)];
        if (other->kind == kind) copy(d, other);
    }
    d->kind = kind;
    for (int i = 0; !d->n && i < gone->n; i++) with(d, gone->variant[i], gone->pct[i]);
    while (d->n && !judged(w, d)) without(d, (int)below(&w->random, d->n));
    if (!d->n || d->usd >= usd) return 0;
    w->spare[pool]--;
    w->used++;
    return 1;
}

/* A device more for some of those that are short. */
static void relieve(Walk *w)
{
    int64_t kind = below(&w->random, w->p->kinds), pool = w->p->kind_pool[kind], most = 1 + below(&w->random, 3);
    if (w->used >= w->room || w->spare[pool] < 1) return;
    Device *d = &w->device[w->used];
    d->kind = kind, d->n = 0;
    for (int64_t turn = 0; turn < most && d->n < w->p->clients[pool]; turn++) {
        int64_t work = w->shorts[below(&w->random, w->shorts_n)], variant = variant_for(w, pool, work);
        if (variant >= 0 && place_of(w, d, work) < 0) with(d, variant, 0);
    }
    for (int i = 0; i < d->n; i++) d->pct[i] = WHOLE / d->n / w->t->step * w->t->step;
    while (d->n && !judged(w, d)) without(d, (int)below(&w->random, d->n));
    w->used += d->n > 0;
}

/* How many are short who must be served. */
static int64_t owed(const Walk *w)
{
    int64_t must = 0;
    for (int64_t at = 0; at < w->shorts_n; at++) must += w->t->missed[w->shorts[at]] > 0;
    return must;
}

/* Close a device, and have less in its place; where anybody is short, by turns, have one more. Where all are in use and
 * somebody who must be served is short they all stay: to serve with the same ones comes first. */
static void disturb(Walk *w, Device *gone)
{
    int64_t spare = 0;
    for (int64_t pool = 0; pool < w->p->pools; pool++) spare += w->spare[pool];
    if (w->shorts_n && (w->serves || (spare < 1 && owed(w)) || below(&w->random, 2))) {
        relieve(w);
        count_up(w);
        return;
    }
    int64_t at = victim(w);
    copy(gone, &w->device[at]);
    if (--w->used != at) copy(&w->device[at], &w->device[w->used]);
    double left = gone->usd;
    for (int turn = 0, most = below(&w->random, 2) ? 8 : 0; turn < most; turn++)
        if (opened(w, gone, left)) {
            left -= w->device[w->used - 1].usd;
            if (below(&w->random, 2)) break;
        }
    count_up(w);
}

static void move_prices(Walk *w)
{
    for (int64_t k = 0; k < w->p->workloads; k++) {
        double base = base_price(w, k), most = base * PRICE_TIMES < w->t->unserved_usd[k] ? base * PRICE_TIMES : w->t->unserved_usd[k];
        double to = w->price[k] * (w->short_at[k] >= 0 ? 1 + RISE : 1 - RISE * FALL);
        if (to < base) to = base;
        w->price[k] = to < most ? to : most;
    }
    w->work += w->p->workloads;
}

/* One attempt; whether something better was found that is worth telling. */
static int attempt(Walk *w, const Plan *plan, double each, Device *best, int64_t *best_used, double *best_worth)
{
    int64_t begun = w->work;
    double begun_worth = *best_worth;
    for (int64_t k = 0; k < w->p->workloads; k++) w->price[k] = base_price(w, k);
    for (int64_t look = 0; w->work < plan->work; look++) {
        double part = (double)(w->work - begun) / each;
        if (part >= 1) break;
        double heat = plan->heat * pow(plan->cold / plan->heat, part);
        if (look % TURNS_OF_PRICES == 0) move_prices(w);
        for (int turn = 0; turn < TURN; turn++) {
            int64_t work = w->shorts_n && below(&w->random, 2) ? w->shorts[below(&w->random, w->shorts_n)] : -1;
            w->work += DEVICE_STEPS / 8;
            if (!(work >= 0 ? serve(w, work, heat) : wander(w, heat)) || w->worth >= *best_worth - GAIN) continue;
            w->worth = summed(w);
            if (w->worth >= *best_worth - GAIN) continue;
            *best_worth = w->worth, *best_used = w->used;
            for (int64_t i = 0; i < w->used; i++) copy(&best[i], &w->device[i]);
            w->work += w->used * DEVICE_STEPS / 16;
            if (plan->serves && !owed(w)) return 1;
        }
        if (*best_worth < begun_worth - plan->heat) return 1;
    }
    return 0;
}

static Device *devices_of(int64_t room, int64_t width)
{
    Device *made = calloc((size_t)room, sizeof(Device));
    for (int64_t i = 0; i < room; i++) {
        made[i].variant = calloc((size_t)width + 1, sizeof(int64_t));
        made[i].pct = calloc((size_t)width + 1, sizeof(int64_t));
        made[i].rate = calloc((size_t)width + 1, sizeof(double));
    }
    return made;
}

static void dropped(Device *devices, int64_t room)
{
    for (int64_t i = 0; i < room; i++) free(devices[i].variant), free(devices[i].pct), free(devices[i].rate);
    free(devices);
}

/* Devices one by one: kind, and members as rows of `width`. There is room for `room`; how many the best has. What it is
 * worth, what was done, attempts, and the work that an attempt takes at last are told. */
int64_t exchange(const Problem *p, const Limits *t, const Plan *plan, int64_t rows, int64_t room, int64_t *kind, int64_t *variant, int64_t *pct, double *told)
{
    int64_t works = p->workloads, floors = t->floor_start[works], width = p->width, column[WHOLE], best_used = 0;
    double numbers[6][WHOLE];
    uint8_t lawful;
    double *reals = calloc((size_t)(6 * works + t->caps + t->quotas + floors + 4), sizeof(double)), *at = reals;
    int64_t *wholes = calloc((size_t)(4 * works + 4 * p->pools + p->pools * p->variants + p->variants + 8), sizeof(int64_t)), *to = wholes;
    Walk w = {.p = p, .t = t, .room = room, .width = width, .random = (uint64_t)plan->seed * 0x9E3779B97F4A7C15ULL + 0x1234567,
        .judged = {&lawful, column, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]}};
    w.served = at, w.price = at += works, w.replicas = at += works, w.money = at += works, w.change = at += works;
    w.cap_watt = at += works, w.quota_gpus = at += t->caps, w.floors = at += t->quotas;
    w.seen = to, w.shorts = to += works, w.short_at = to += works, w.mine_start = to += works;
    w.spare = to += works + 1, w.able_start = to += p->pools, w.mine = to += p->pools + 1, w.able = to += p->variants;
    w.touched = calloc((size_t)works + 1, 1);
    w.speed = t->speed, w.pace = t->pace, w.serves = plan->serves;
    for (int64_t pct = 0; pct <= WHOLE; pct++) w.at[pct] = place(p, pct);
    for (int64_t k = 0; k < works; k++) w.short_at[k] = -1;
    for (int64_t i = 0, n = 0; i < p->pools; w.able_start[++i] = n)
        for (int64_t v = 0; v < p->variants; v++)
            if (p->allowed[i * p->variants + v]) w.able[n++] = v;
    for (int64_t k = 0, n = 0; k < works; w.mine_start[++k] = n)
        for (int64_t v = 0; v < p->variants; v++)
            if (p->workload[v] == k) w.mine[n++] = v;
    Device *all = devices_of(2 * room + 3, width), *best = all + room;
    w.device = all, w.one = all[2 * room], w.other = all[2 * room + 1];
    for (int64_t row = 0; row < rows && w.used < room; row++) {
        Device *d = &w.device[w.used];
        d->kind = kind[row], d->n = 0;
        for (int64_t i = 0; i < width && variant[row * width + i] >= 0; i++) with(d, variant[row * width + i], pct[row * width + i]);
        w.used += judged(&w, d);
    }
    count_up(&w);
    double best_worth = w.worth, each = (double)plan->each;
    best_used = w.used;
    for (int64_t i = 0; i < w.used; i++) copy(&best[i], &w.device[i]);
    int64_t attempts = 0, vain = 0, served = plan->serves && !owed(&w);
    while (!served && w.work < plan->work && w.used > 1 && vain < plan->patience) {
        int64_t kicks = attempts++ || plan->closes ? 1 + below(&w.random, 1 + vain / KICK) : 0;
        for (int64_t turn = 0; turn < kicks && w.used > 1; turn++) disturb(&w, &all[2 * room + 2]);
        if (w.used && attempt(&w, plan, each, best, &best_used, &best_worth)) {
            vain = 0, served = plan->serves && !owed(&w);
            continue;
        }
        put_back(&w, best, best_used);
        if (++vain % FAILS == 0) each *= LONGER;
    }
    told[0] = best_worth, told[1] = (double)w.work, told[2] = (double)attempts, told[3] = each, told[4] = (double)served;
    for (int64_t row = 0; row < best_used; row++) {
        kind[row] = best[row].kind;
        for (int64_t i = 0; i < width; i++) {
            variant[row * width + i] = i < best[row].n ? best[row].variant[i] : -1;
            pct[row * width + i] = i < best[row].n ? best[row].pct[i] : 0;
        }
    }
    dropped(all, 2 * room + 3);
    free(reals), free(wholes), free(w.touched);
    return best_used;
}
